"""tensorir export: a folder that runs without this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import json_option, log_option, put, put_json, say, usage
from tensorir.cli.options import split, workload_options

if TYPE_CHECKING:
    from tensorir.target import Target


@click.command("export", context_settings=common.SETTINGS)
@workload_options
@click.option("--to", multiple=True, required=True, metavar="DEST,…", help="source, pyopencl, cupy.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR")
@click.option("--target", help="Export for another kind of target than that of the best record.")
@click.option("--untuned", is_flag=True, help="Export the default schedule when there is no record.")
@click.option("--test", is_flag=True, help="Run the folder's self-test.")
@click.option("--regret", type=click.FloatRange(min=0), help="--shapes: what its kernel may cost a shape (0.05).")
@log_option
@json_option
def command(op: str, shape: tuple[str, ...], to: tuple[str, ...], output: Path, target: str | None, untuned: bool,
            test: bool, regret: float | None, log: str, as_json: bool, **given: Any) -> int:  # fmt: skip
    """Export the best recorded kernel of OP; never tunes.

    --shapes exports a kernel for each shape of a set, of the fewest that are fast on all of them, and the choice.
    """
    from tensorir.export.folder import DESTINATIONS, check_names
    from tensorir.target import Target

    parameters = split(given)
    places = [d.strip() for part in to for d in part.split(",") if d.strip()]
    check_names(places)
    if target is None and any(DESTINATIONS.get(d) == ("cuda",) for d in places):
        target = "cuda"
    parsed = Target.parse(target) if target else None
    if parameters["shapes"]:
        if untuned:
            raise usage("--untuned is about one kernel, not about --shapes")
        folder, about = _set(op, shape, parameters, output, places, parsed, log, regret)
    else:
        if regret is not None:
            raise usage("--regret is about a set: it needs --shapes")
        folder, about = _one(op, shape, parameters, output, places, parsed, log, untuned)
    code = _test(folder) if test else common.OK
    if as_json:
        files = sorted(p.name for p in folder.iterdir())
        put_json({"schema": 1, "folder": str(folder), "files": files, **about})
    else:
        put(str(folder))
    return code


def _one(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], output: Path, places: list[str],
    target: Target | None, log: str, untuned: bool,
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    """The kernel of one shape; what the document says of it."""
    from tensorir.api.candidate import source_of
    from tensorir.api.export_shapes import about_record
    from tensorir.cli.chosen import offline, recorded
    from tensorir.cli.parse import workloads
    from tensorir.export.folder import export

    (make,) = workloads(op, shape, {**parameters, "log": log})
    work = make()
    chosen = recorded(work, target, log)
    if chosen is None:
        if not untuned:
            raise _not_tuned(work, log, target)
        chosen = offline(work, target, log, None, None)
    s = work.schedule(chosen.config, template=chosen.template, target=chosen.target)
    about = {
        "workload": work.title,
        "config": chosen.config,
        "template": chosen.template,
        "record": None if chosen.record is None else about_record(chosen.record),
    }
    folder = export(
        source_of(s), output, places, str(s.trace), outputs=work.outputs, reference=work.reference,
        kind=chosen.target.kind, about=about,
    )  # fmt: skip
    return folder, chosen.json()


def _set(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], output: Path, places: list[str],
    target: Target | None, log: str, regret: float | None,
) -> tuple[Path, dict[str, Any]]:  # fmt: skip
    """The kernels of a set of shapes; what the document says of them."""
    from tensorir.api.export_shapes import recorded_set
    from tensorir.api.identity import flag
    from tensorir.cli.parse import weighted
    from tensorir.tune.portfolio import REGRET

    made = [(make(), weight) for make, weight in weighted(op, shape, parameters)]
    parameters = {name: value for name, value in parameters.items() if name != "arg"}
    flags = [flag(name, value) for name, value in parameters.items() if value is not None and value is not False]
    flags += [] if log == "tuning_logs" else [flag("log", log)]
    found = recorded_set(
        [work for work, _ in made], [weight for _, weight in made], target, log,
        REGRET if regret is None else regret, command=" ".join(["tensorir tune", op, *flags]),
    )  # fmt: skip
    for remark in found.remarks:
        say(remark)
    return found.export(output, places), {"portfolio": found.portfolio.json()}


def _not_tuned(work: Any, log: str, target: Target | None) -> Exception:
    from tensorir.api.identity import command_for, most_like, suits
    from tensorir.api.load import left_out
    from tensorir.errors import NotTuned, Problem
    from tensorir.tune.log import LogReader

    message = f"{work.title} is not tuned in {log}{left_out(work, log, lambda record: suits(record, target))}"
    like = most_like(work, LogReader(log).records())
    message += f"; nearest tuned: {like:.400}" if like else ""
    return NotTuned(Problem("export.not-tuned", message, hint=f"{command_for(work)}, or --untuned for the default"))


def _test(folder: Path) -> int:
    import subprocess
    import sys

    path = str(folder.resolve() / "selftest.py")
    done = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)
    say((done.stdout + done.stderr).strip()[-1000:])
    return common.OK if done.returncode == 0 else common.WRONG
