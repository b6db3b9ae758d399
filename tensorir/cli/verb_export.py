"""tensorir export: a folder that runs without this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import json_option, log_option, put, put_json, say, usage
from tensorir.cli.options import split, workload_options
from tensorir.errors import TensorIRError

if TYPE_CHECKING:
    from tensorir.target import Target

Write = Callable[[Path, list[str]], Path]
"""What writes a folder for some destinations."""


@click.command("export", cls=common.Verb, context_settings=common.SETTINGS)
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

    Destinations that take OpenCL and CUDA have a folder of each in DIR: pyopencl,cupy are DIR/opencl and DIR/cuda.

    --shapes exports a kernel for each shape of a set, of the fewest that are fast on all of them, and the choice.
    """
    from tensorir.export.folder import by_language, each_language, places
    from tensorir.target import Target

    parameters = split(given)
    asked = [d.strip() for part in to for d in part.split(",") if d.strip()]
    parsed = Target.parse(target) if target else None
    wanted = by_language(asked, None if parsed is None else parsed.language)
    if parameters["shapes"] and untuned:
        raise usage("--untuned is about one kernel, not about --shapes")
    if not parameters["shapes"] and regret is not None:
        raise usage("--regret is about a set: it needs --shapes")

    def made(language: str | None) -> tuple[Write, dict[str, Any]]:
        meant = parsed or language
        if parameters["shapes"]:
            return _set(op, shape, parameters, meant, log, regret)
        return _one(op, shape, parameters, meant, log, untuned)

    waiting = each_language(wanted, made)
    code, written, folders = common.OK, [], places(output, wanted)
    for language, (write, about) in waiting.items():
        folder = write(folders[language], wanted[language])
        code = max(code, _test(folder) if test else common.OK)
        files = sorted(p.name for p in folder.iterdir())
        written.append({"folder": str(folder), "files": files, **about})
    if as_json:
        several = {"folder": str(output), "files": [], "folders": written}
        put_json({"schema": 1, **(written[0] if len(written) == 1 else several)})
    else:
        put("\n".join(w["folder"] for w in written))
    return code


def _one(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], target: Target | str | None, log: str, untuned: bool
) -> tuple[Write, dict[str, Any]]:
    """What writes the kernel of one shape; what the document says of it."""
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
    write = partial(
        export, source_of(s), trace=str(s.trace), outputs=work.outputs, reference=work.reference,
        kind=chosen.target.kind, about=about, max_error=work.allowed_error(chosen.template),
    )  # fmt: skip
    return write, chosen.json()


def _set(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], target: Target | str | None, log: str,
    regret: float | None,
) -> tuple[Write, dict[str, Any]]:  # fmt: skip
    """What writes the kernels of a set of shapes; what the document says of them."""
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
    return found.export, {"portfolio": found.portfolio.json()}


def _not_tuned(work: Any, log: str, target: Target | str | None) -> TensorIRError:
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
