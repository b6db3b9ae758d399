"""tensorir export: a folder that runs without this package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import json_option, log_option, put, put_json, say
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
@log_option
@json_option
def command(op: str, shape: tuple[str, ...], to: tuple[str, ...], output: Path, target: str | None, untuned: bool,
            test: bool, log: str, as_json: bool, **given: Any) -> int:  # fmt: skip
    """Export the best recorded kernel of OP; never tunes."""
    from tensorir.api.candidate import source_of
    from tensorir.cli.chosen import offline, recorded
    from tensorir.cli.parse import workloads
    from tensorir.export.folder import DESTINATIONS, check_names, export
    from tensorir.target import Target

    parameters = split(given)
    places = [d.strip() for part in to for d in part.split(",") if d.strip()]
    check_names(places)
    (make,) = workloads(op, shape, {**parameters, "log": log})[:1]
    work = make()
    if target is None and any(DESTINATIONS.get(d) == ("cuda",) for d in places):
        target = "cuda"
    parsed = Target.parse(target) if target else None
    chosen = recorded(work, parsed, log)
    if chosen is None:
        if not untuned:
            raise _not_tuned(work, log, parsed)
        chosen = offline(work, target, log, None, None)
    s = work.schedule(chosen.config, template=chosen.template, target=chosen.target)
    about = {
        "workload": work.title,
        "config": chosen.config,
        "template": chosen.template,
        "record": _about(chosen.record),
    }
    folder = export(
        source_of(s), output, places, str(s.trace), outputs=work.outputs, reference=work.reference,
        kind=chosen.target.kind, about=about,
    )  # fmt: skip
    code = _test(folder) if test else common.OK
    if as_json:
        files = sorted(p.name for p in folder.iterdir())
        put_json({"schema": 1, "folder": str(folder), "files": files, **chosen.json()})
    else:
        put(str(folder))
    return code


def _about(record: Any) -> dict[str, Any] | None:
    if record is None:
        return None
    return {key: record[key] for key in ("id", "time_s", "device", "versions", "started")}


def _not_tuned(work: Any, log: str, target: Target | None) -> Exception:
    from tensorir.api.identity import command_for, most_like
    from tensorir.api.load import left_out
    from tensorir.cli.chosen import suits
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
