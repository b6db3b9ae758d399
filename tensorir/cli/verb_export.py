"""tensorir export: a folder that runs without this package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tensorir.api.export_shapes import RecordedSet, about_record, recorded_set
from tensorir.api.identity import command_for, most_like
from tensorir.api.load import left_out, other_target
from tensorir.api.operator import flag_words
from tensorir.api.shipping import part_of_work
from tensorir.api.workload import Workload
from tensorir.cli import common
from tensorir.cli.choice import offline, recorded
from tensorir.cli.common import put, put_json, say, usage
from tensorir.cli.options import split
from tensorir.cli.parse import weighted, workloads
from tensorir.errors import NotTuned, Problem, TensorIRError
from tensorir.export.folder import export_part
from tensorir.export.options import (
    RELOWERED_LANGUAGES,
    by_language,
    destinations,
    each_language,
    operator,
    places,
    refuse_sets,
)
from tensorir.export.program import ExportProgram
from tensorir.target import Target
from tensorir.tune.log import LogReader
from tensorir.tune.portfolio import REGRET


def run(op: str, shape: tuple[str, ...], to: tuple[str, ...], name: str | None, arch: str | None, output: Path,
        target: str | None, untuned: bool, test: bool, regret: float | None, log: str, as_json: bool,
        **given: object) -> int:  # fmt: skip
    """Export the best recorded kernel of OP to a folder, without tuning; return the exit code, 5 if ``test`` and the
    folder's selftest.py fails.
    """
    parameters = split(given)
    asked = list(destinations(",".join(to)))
    operator(name, output)
    parsed = Target.parse(target) if target else None
    if parameters["shapes"] and (untuned or name or arch):
        raise usage("--untuned, --name and --arch are about one kernel, not about --shapes")
    if not parameters["shapes"] and regret is not None:
        raise usage("--regret is about a set: it needs --shapes")
    if parameters["shapes"]:
        written = _sets(op, shape, parameters, asked, output, parsed, log, regret)
    else:
        named = {"name": name, "arch": [one.strip() for one in (arch or "").split(",") if one.strip()]}
        written = [_one(op, shape, parameters, asked, output, named, parsed, log, untuned)]
    code = max((_test(Path(w["folder"])) for w in written), default=common.OK) if test else common.OK
    if as_json:
        several = {"folder": str(output), "files": [], "folders": written}
        put_json({"schema": 1, **(written[0] if len(written) == 1 else several)})
    else:
        put("\n".join(w["folder"] for w in written))
    return code


def _written(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Fields "folder" and "files" of a written folder, and those of ``about``, for JSON output."""
    return {"folder": str(folder), "files": sorted(p.name for p in folder.iterdir()), **about}


def _one(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], to: list[str], output: Path, named: dict[str, Any],
    target: Target | None, log: str, untuned: bool,
) -> dict[str, Any]:  # fmt: skip
    """Export the kernel of one shape in each language that the destinations ``to`` need; return fields for JSON output.

    named: further arguments of ``export_part``
    """
    wanted = by_language(to, None if target is None else target.language)
    (make,) = workloads(op, shape, {**parameters, "log": log})
    work = make()
    again = [language for language in wanted if language in RELOWERED_LANGUAGES]

    def made(language: str | None) -> tuple[ExportProgram, dict[str, Any]] | None:
        """(program, JSON fields) for a language; None to lower another language's kernel for it."""
        if language not in again:
            return _part(work, target or language, log, untuned)
        return _part(work, target or language, log, False) if recorded(work, target or language, log) else None

    found = [one for one in each_language(wanted, made).values() if one is not None]
    if not found:
        tuned = recorded(work, target, log) is not None
        found = [_part(work, target or (None if tuned else again[0]), log, untuned)]
    (first, about), *more = found
    folder = export_part(first, output, to, **named, others={part.source.language: part for part, _ in more})
    bodies = {part.source.language: said for part, said in more}
    return _written(folder, {**about, **({"bodies": bodies} if bodies else {})})


def _part(work: Workload, target: Target | str | None, log: str, untuned: bool) -> tuple[ExportProgram, dict[str, Any]]:
    """(program of the best recorded kernel for a target, JSON fields). Without a record: the default configuration if
    ``untuned``, else raises NotTuned.
    """
    chosen = recorded(work, target, log)
    if chosen is None:
        if not untuned:
            raise _not_tuned(work, log, target)
        chosen = offline(work, target, log, None, None)
    about = {
        "workload": work.title,
        "config": chosen.config,
        "template": chosen.template,
        "record": None if chosen.record is None else about_record(chosen.record),
    }
    return part_of_work(work, chosen.template, chosen.config, chosen.target, about), chosen.json()


def _sets(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], to: list[str], output: Path, target: Target | None,
    log: str, regret: float | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Export the kernels for a set of shapes, one folder per language; return fields for JSON output, one dict per
    folder.
    """
    refuse_sets(to)
    wanted = by_language(to, None if target is None else target.language)
    waiting = each_language(wanted, lambda language: _set(op, shape, parameters, target or language, log, regret))
    folders = places(output, wanted)
    return [
        _written(found.export(folders[language], wanted[language]), {"portfolio": found.portfolio.json()})
        for language, found in waiting.items()
    ]


def _set(
    op: str, shape: tuple[str, ...], parameters: dict[str, Any], target: Target | str | None, log: str,
    regret: float | None,
) -> RecordedSet:  # fmt: skip
    """Recorded kernels and their portfolio for a set of shapes on a target."""
    made = [(make(), weight) for make, weight in weighted(op, shape, parameters)]
    parameters = {name: value for name, value in parameters.items() if name != "arg"}
    flags = [flag_words(name, value) for name, value in parameters.items() if value is not None and value is not False]
    flags += [] if log == "tuning_logs" else [flag_words("log", log)]
    found = recorded_set(
        [work for work, _ in made], [weight for _, weight in made], target, log,
        REGRET if regret is None else regret, command=" ".join(["tensorir tune", op, *flags]),
    )  # fmt: skip
    for remark in found.remarks:
        say(remark)
    return found


def _not_tuned(work: Any, log: str, target: Target | str | None) -> TensorIRError:
    message = f"{work.title} is not tuned in {log}{left_out(work, log, other_target(target))}"
    like = most_like(work, LogReader(log).brief())
    message += f"; nearest tuned: {like:.400}" if like else ""
    return NotTuned(Problem("export.not-tuned", message, hint=f"{command_for(work)}, or --untuned for the default"))


def _test(folder: Path) -> int:
    path = str(folder.resolve() / "selftest.py")
    done = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)
    say((done.stdout + done.stderr).strip()[-1000:])
    return common.OK if done.returncode == 0 else common.WRONG_RESULT
