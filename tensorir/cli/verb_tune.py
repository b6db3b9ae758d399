"""tensorir tune: search, with progress on stderr and a table or one JSON document on stdout."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import Duration, Stop, device_option, json_option, log_option, put, put_json, say
from tensorir.cli.options import split, workload_options
from tensorir.runtime.host import target_here

if TYPE_CHECKING:
    from tensorir.api.tuning import Options
    from tensorir.api.workload import Workload
    from tensorir.tune.outcome import TuneOutcome


TUNERS = ["bayes", "climb", "evolve", "grid", "random", "replay"]  # strategy.STRATEGIES, which imports NumPy


@click.command("tune", context_settings=common.SETTINGS)
@workload_options
@device_option
@click.option("--trials", type=click.IntRange(min=1), help="Configurations in total, earlier ones included.")
@click.option("--budget", type=Duration(), help="Wall time of the command (default 60s without --trials).")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--tuner", type=click.Choice(TUNERS), default="bayes", show_default=True)
@click.option("--template", multiple=True, metavar="NAME", help="Search this template only (see tensorir list).")
@click.option("--restrict", multiple=True, metavar="EXPR", help="A condition on knobs, such as 'tile <= 8'.")
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="For one launch.")
@click.option("--compile-timeout", type=Duration(), default="60s", show_default=True)
@log_option
@click.option("--fresh", is_flag=True, help="Do not use earlier records.")
@click.option("--patience", type=click.IntRange(min=1), help="Stop after so many trials without a gain.")
@click.option("--top", type=click.IntRange(min=1, max=50), default=5, show_default=True, help="Finalists.")
@click.option("--progress", type=click.Choice(["auto", "live", "plain", "none"]), default="auto", show_default=True)
@click.option("--dry-run", is_flag=True, help="Say what would be searched; measure nothing.")
@json_option
def command(op: str, shape: tuple[str, ...], device: str | None, as_json: bool, dry_run: bool, **given: Any) -> int:
    """Search for the fastest schedule of OP and log every trial.

    OP is conv2d, conv2d_backward_data or conv2d_backward_weight (NxCxHxW KxCxRxS), matmul or grouped_matmul (MxNxK),
    or FILE.py:FUNCTION. The same command continues where the last one stopped. Ctrl-C ends it with the best so far.
    """
    from tensorir.cli.parse import workloads

    parameters = split(given)
    works = [make() for make in workloads(op, shape, parameters)]
    if dry_run:
        return _dry(works, device, as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    budget = given.pop("budget") or (None if given["trials"] else 60.0)
    outcomes = _all(works, device, budget, given)
    if as_json:
        documents = [outcome.json() for outcome in outcomes]
        put_json(documents[0] if len(works) == 1 else _set_document(documents))
    else:
        from tensorir.cli.tables import outcome_text, set_text

        put(outcome_text(outcomes[0]) if len(works) == 1 else set_text(outcomes))
    return _code(outcomes)


def _all(works: list[Workload], device: str | None, budget: float | None, given: dict[str, Any]) -> list[TuneOutcome]:
    """One after the other; what is left of the budget is shared equally among those still to come."""
    from tensorir.api.tuning import tune
    from tensorir.cli.watch import watch

    began = common.process_start()
    mode = given.pop("progress")
    outcomes: list[TuneOutcome] = []
    for n, work in enumerate(works):
        started = began if n == 0 else time.monotonic()
        share = None if budget is None else (began + budget - started) / (len(works) - n)
        if share is not None and share <= 0.5 and n:
            say(f"no time left for {work.title}")
            break
        with watch(mode, work, given["trials"], share, started) as seen:
            outcomes.append(tune(work, device, _options(given, share, started, seen)))
        if outcomes[-1].status == "interrupted" or outcomes[-1].error is not None:
            break
    return outcomes


def _options(given: dict[str, Any], share: float | None, started: float, seen: Any) -> Options:
    from tensorir.api.tuning import Options

    return Options(
        trials=given["trials"],
        budget_s=share,
        seed=given["seed"],
        log=given["log"],
        on_trial=seen.on_trial,
        strategy=given["tuner"],
        restrict=given["restrict"],
        templates=given["template"],
        timeout=given["timeout"],
        compile_timeout=given["compile_timeout"],
        fresh=given["fresh"],
        patience=given["patience"],
        top=given["top"],
        started=started,
        on_start=seen.on_start,
        on_baseline=seen.on_baseline,
    )


def _set_document(documents: list[dict[str, Any]]) -> dict[str, Any]:
    worst = next((d["status"] for d in documents if d["status"] != "ok"), "ok")
    return {"schema": 1, "status": worst, "results": documents}


def _code(outcomes: list[TuneOutcome]) -> int:
    from tensorir.cli.common import words

    code = common.OK
    for outcome in outcomes:
        if outcome.error is not None:
            say(words(outcome.error))
            return common.LOG
        if outcome.status == "interrupted":
            return common.INTERRUPTED
        if outcome.stopped == "device_lost":
            say("tensorir: the device is lost; everything up to then is in the log")
            return common.DEVICE_LOST
        if outcome.status == "no_valid_config":
            code = common.NO_CONFIG
            _say_why(outcome)
    return code


def _say_why(outcome: TuneOutcome) -> None:
    say(f"tensorir: no valid configuration of {outcome.identity.workload} was found")
    for reason in outcome.reasons[:6]:
        say(f"  {reason['count']}x {reason['reason']}  (tensorir repro {reason['trial']})")


def _dry(works: list[Workload], device: str | None, as_json: bool) -> int:
    """Space sizes and the default schedule, without a device."""
    documents = []
    for work in works:
        target = target_here(device or "opencl")
        name = work.template_for(target)
        space = work.templates[name].space_for(target)
        s = work.schedule(target=target)
        documents.append(
            {"workload": work.title, "template": name, "configs": space.size, "legal": len(space.legal),
             "default": space.default, "knobs": {n: list(v) for n, v in zip(space.names, space.values, strict=True)},
             "tree": str(s), "source": s.source()}
        )  # fmt: skip
        if not as_json:
            put(f"{work.title}: template {name}, {space.explain()}\n\n{s}\n\n{s.source()}")
    if as_json:
        put_json({"schema": 1, "dry_run": True, "workloads": documents})
    if not documents:
        raise Stop(common.USAGE, "nothing to tune")
    return common.OK
