"""tensorir tune: search, with progress on stderr and a table or one JSON document on stdout."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import (
    Duration,
    Names,
    Stop,
    device_option,
    json_option,
    log_option,
    put,
    put_code,
    put_json,
    say,
    usage,
)
from tensorir.cli.options import split, workload_options
from tensorir.runtime.host import target_here
from tensorir.tune.process import start_early

if TYPE_CHECKING:
    from tensorir.api.options import Options
    from tensorir.api.workload import Workload
    from tensorir.tune.outcome import TuneOutcome


TUNERS = ["bayes", "climb", "evolve", "grid", "random", "replay"]  # strategy.STRATEGIES, which imports NumPy


@click.command("tune", cls=common.Verb, context_settings=common.SETTINGS)
@workload_options
@device_option
@click.option("--trials", type=click.IntRange(min=1), help="Configurations in total, earlier ones included.")
@click.option("--budget", type=Duration(), help="Wall time of the command (default 60s without --trials).")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--tuner", type=Names(TUNERS), default="bayes", show_default=True)
@click.option("--template", multiple=True, metavar="NAME", help="Search this template only (see tensorir list).")
@click.option("--restrict", multiple=True, metavar="EXPR", help="A condition on knobs, such as 'tile <= 8'.")
@click.option("--builders", type=click.IntRange(min=1), help="Candidates built at once on PoCL (default: a core each).")
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="For one launch.")
@click.option("--compile-timeout", type=Duration(), default="60s", show_default=True)
@log_option
@click.option("--fresh", is_flag=True, help="Do not use earlier records.")
@click.option("--no-wait", is_flag=True, help="Time next to other tunings on this device instead of taking turns.")
@click.option("--patience", type=click.IntRange(min=1), help="Stop after so many trials without a gain.")
@click.option(
    "--least-gain",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Stop when the model expects less of the next trials: 0.01 is 1 %.",
)
@click.option("--top", type=click.IntRange(min=1, max=50), default=5, show_default=True, help="Finalists.")
@click.option("--progress", type=Names(["auto", "live", "plain", "none"]), default="auto", show_default=True)
@click.option("--regret", type=click.FloatRange(min=0), help="--shapes: what its kernel may cost a shape (0.05).")
@click.option("-o", "--output", metavar="DIR", help="--shapes: write the kernels, and the choice among them as code.")
@click.option("--dry-run", is_flag=True, help="Say what would be searched; measure nothing.")
@json_option
def command(op: str, shape: tuple[str, ...], device: str | None, as_json: bool, dry_run: bool, **given: Any) -> int:
    """Search for the fastest schedule of OP and log every trial.

    OP is conv2d, conv2d_backward_data or conv2d_backward_weight (NxCxHxW KxCxRxS), matmul or grouped_matmul (MxNxK),
    or FILE.py:FUNCTION. The same command continues where the last one stopped. Ctrl-C ends it with the best so far.
    --device cuda:0,cuda:1 measures on several devices of one kind at the same time.

    --shapes tunes a set of shapes under one budget and finds the fewest kernels that are fast on all of them.
    """
    from tensorir.cli.parse import weighted

    began = common.process_start()
    if not dry_run and "," not in (device or ""):
        start_early("tensorir.api.worker")  # whose imports take as long as those of this process
    parameters = split(given)
    regret, folder = given.pop("regret"), given.pop("output")
    if not parameters["shapes"] and (regret is not None or folder is not None):
        raise usage("--regret and -o are about a set: they need --shapes")
    made = [(make(), weight) for make, weight in weighted(op, shape, parameters)]
    works = [work for work, _ in made]
    if dry_run:
        return _dry(works, device, as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given["budget"] = given["budget"] or (None if given["trials"] else 60.0)
    if folder is not None:
        _make(folder)
    if parameters["shapes"]:
        return _set(works, [weight for _, weight in made], device, began, regret, folder, as_json, given)
    outcome = _one(works[0], device, began, given)
    if as_json:
        put_json(outcome.json())
    else:
        from tensorir.cli.tables import outcome_text

        put(outcome_text(outcome))
    return _code([outcome])


def _make(folder: str) -> None:
    """The folder for results: what cannot be written is known before anything is measured."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise usage(f"cannot make the folder {folder}: {error.strerror or type(error).__name__}") from None


def _one(work: Workload, device: str | None, began: float, given: dict[str, Any]) -> TuneOutcome:
    from tensorir.api.tuning import tune
    from tensorir.cli.watch import watch

    with watch(given.pop("progress"), work, given["trials"], given["budget"], began, given["log"]) as seen:
        options = _options(given, began, seen.on_trial)
        return tune(work, _several(device), replace(options, on_start=seen.on_start, on_peer=seen.on_peer))


def _several(device: str | None) -> Any:
    """The names of ``--device``; one by itself as it is."""
    return device.split(",") if device and "," in device else device


def _set(
    works: list[Workload], weights: list[float], device: str | None, began: float, regret: float | None,
    folder: str | None, as_json: bool, given: dict[str, Any],
) -> int:  # fmt: skip
    """Several shapes under one budget."""
    from tensorir.api.shape_set import tune_set
    from tensorir.cli.watch_set import watch_set
    from tensorir.tune.portfolio import REGRET

    with watch_set(given.pop("progress"), works, weights, given["budget"], began) as seen:
        options = _options(given, began, seen.on_trial)
        found = tune_set(works, weights, _several(device), options, REGRET if regret is None else regret)
    for r in found.results:
        if r.outcome is None:
            say(f"left out {r.work.title}: {r.refused}" if r.refused else f"no time left for {r.work.title}")
    if as_json:
        put_json(found.json())
    else:
        from tensorir.cli.tables import set_text

        put(set_text(found))
    if folder is not None and found.portfolio is not None:
        say(f"wrote {found.save(folder)}: choose.py, choose.c, kernels.json")
    code = _code(found.outcomes)
    if code == common.OK and found.status != "ok":  # before anything was measured
        return common.INTERRUPTED if found.status == "interrupted" else common.NO_CONFIG
    return code


def _options(given: dict[str, Any], started: float, on_trial: Any) -> Options:
    from tensorir.api.options import Options

    return Options(
        trials=given["trials"],
        budget_s=given["budget"],
        seed=given["seed"],
        log=given["log"],
        on_trial=on_trial,
        strategy=given["tuner"],
        restrict=given["restrict"],
        templates=given["template"],
        timeout=given["timeout"],
        compile_timeout=given["compile_timeout"],
        fresh=given["fresh"],
        wait=not given["no_wait"],
        patience=given["patience"],
        least_gain=given["least_gain"],
        top=given["top"],
        builders=given["builders"],
        started=started,
    )


def _code(outcomes: Sequence[TuneOutcome]) -> int:
    from tensorir.cli.common import words

    code = common.OK
    for outcome in outcomes:
        if outcome.error is not None:
            say(words(outcome.error))
        if outcome.stopped == "device_lost":
            say("tensorir: the device is lost; everything up to then is in the log")
            return common.DEVICE_LOST
        if outcome.error is not None:
            return common.LOG
        if outcome.status == "interrupted":
            return common.INTERRUPTED
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
        target = target_here(device.split(",")[0] if device else "opencl")
        name = work.template_for(target)
        space = work.templates[name].space_for(target)
        s = work.schedule(target=target)
        documents.append(
            {"workload": work.title, "template": name, "configs": space.size, "legal": len(space.legal),
             "default": space.default, "knobs": {n: list(v) for n, v in zip(space.names, space.values, strict=True)},
             "tree": str(s), "source": s.source()}
        )  # fmt: skip
        if not as_json:
            put(f"{work.title}: template {name}, {space.explain()}\n\n{s}\n")
            put_code(s.source())
    if as_json:
        put_json({"schema": 1, "dry_run": True, "workloads": documents})
    if not documents:
        raise Stop(common.USAGE, "nothing to tune")
    return common.OK
