"""Identifies measurements (digest of the definition, device, versions), and prints the shell commands for them."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir._package import PACKAGE_VERSION
from tensorir.api.operator import flag_words
from tensorir.errors import DeclarationError
from tensorir.expr.program import program_of
from tensorir.ir.text import said, show, text
from tensorir.ir.tree import Reduce, Update
from tensorir.ir.visit import reads, walk, writes
from tensorir.target import Target
from tensorir.tune.brief import Brief
from tensorir.tune.record import Record, RunIdentity, Setting, relevant, slug
from tensorir.tune.selection import counted
from tensorir.tune.store import is_file

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device

USUAL_LOG = "tuning_logs"
_PACKAGES = ("numpy", "scikit-optimize", "scikit-learn", "scipy")


def compute_digest(work: Work) -> str:
    """32 hex digits of the definition's SHA-256: its unscheduled program with dtypes, constants, combiners and
    ranges of dims; names of tensors count.
    """
    program = program_of(work.outputs)
    lines = [text(program)]
    seen: dict[str, None] = {}
    for b in (*program.params, *writes(program.body), *reads(program.body)):
        seen[f"{b.name} {b.dtype} {tuple(map(said, b.shape))} {b.data}"] = None
    for v in program.scalars:
        if v.bounds is not None:  # a record serves all extents of the range
            seen[f"{v.name} {v.bounds}"] = None
    for n in walk(program.body):
        if isinstance(n, Update | Reduce):
            results = ", ".join(show(e) for e in n.combiner.result)
            seen[f"{n.combiner.name} {results} {[i.value for i in n.combiner.identity]}"] = None
    return hashlib.sha256("\n".join([*lines, *seen]).encode()).hexdigest()[:32]


def describe(device: Device) -> dict[str, object]:
    """Description of a device for records: text fields, and its limits as a parseable target."""
    target = replace(device.target, device="")
    return {**device.identity, "id": device.name, "kind": target.kind, "target": target.text}


def versions_of(device: Mapping[str, object], search: bool = True) -> dict[str, str]:
    """Versions of the compilers and this package; also of the search's libraries if ``search``."""
    found = {"tensorir": PACKAGE_VERSION, "python": platform.python_version()}
    found |= {key: str(device[key]) for key in ("compiler", "pyopencl", "cupy") if key in device}
    if not search:
        return found
    from importlib.metadata import PackageNotFoundError, version

    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def identity_of(work: Work, device: Mapping[str, object], search: bool = True) -> RunIdentity:
    """RunIdentity of this workload's records on a device (``describe``).

    search: include versions of the search's libraries, stored in records but never compared
    """
    return RunIdentity(work.title, compute_digest(work), device, versions_of(device, search))


def fingerprint(device: Mapping[str, object], work: Work | None = None) -> dict[str, object]:
    """Device properties that must be equal on all workers for times to be comparable."""
    found: dict[str, Any] = {key: device.get(key) for key in ("name", "driver", "target")}
    found |= relevant(versions_of(device, search=False))
    return found if work is None else found | {"computation": compute_digest(work)}


def folder_of(work: Work, log: str) -> Path:
    """Path of a workload's records: a folder of the log, or the log itself if a file."""
    root = Path(log)
    return root if is_file(root) else root / slug(work.title)


def target_of(record: Setting) -> Target:
    """Target of a record's schedule; plain "opencl" if the record has none. Unknown ones raise DeclarationError."""
    stored = record.device.get("target")
    return Target.parse(stored if isinstance(stored, str) else "opencl")


def on_cores_of(record: Setting, target: Target) -> Target:
    """``target`` with as many cores as the device that a record was made on: spaces of templates depend on them.

    Unchanged if the record's target is of another language, or none that this version knows.
    """
    try:
        made_for = target_of(record)
    except DeclarationError:
        return target
    return replace(target, units=made_for.units) if made_for.language == target.language else target


def suits(record: Setting, target: Target | str | None) -> bool:
    """True if a record was made for a target of the same language, kind and architecture; for a text, if that is the
    language; for None always.
    """
    made_for = target_of(record)
    if isinstance(target, str):
        return made_for.language == target
    return target is None or all(getattr(made_for, f) == getattr(target, f) for f in ("language", "kind", "arch"))


def place_of(record: Record) -> str:
    """Key of records with comparable times over all shapes: device, limits, driver, versions."""
    device = record.device
    key = [*(device.get(name) for name in ("name", "driver", "target")), relevant(record.versions)]
    return json.dumps(key, sort_keys=True)


def command_for(work: Work, verb: str = "tune") -> str:
    """Shell command that applies ``verb`` to this workload; Python code if it has no command."""
    origin = work.origin
    if origin is None:
        return f"w.{verb}()"
    if origin.kind == "file":
        given = [f"--arg {shlex.quote(_argument(k, v))}" for k, v in origin.options.items()]
        return " ".join(["tensorir", verb, shlex.quote(f"{origin.place}:{origin.name}"), *given])
    told = [flag_words(k, v) for k, v in origin.options.items()]
    if work.operator is not None:
        told = work.operator.words(origin.options, work.usual)
    return " ".join(w for w in ("tensorir", verb, origin.name, *told) if w)


def _argument(name: str, value: object) -> str:
    """``K=V`` for --arg: V as JSON, or as text if that is no JSON."""
    return f"{name}={value if isinstance(value, str) and not _is_json(value) else json.dumps(value)}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def repro_command(work: Work, trial: str, log: str, device: str | None = None) -> str:
    """Shell command ``tensorir repro TRIAL …`` that measures a trial again (no ``--device`` if several are given)."""
    words, origin = ["tensorir", "repro", trial], work.origin
    if origin is not None and origin.kind == "file":
        words += ["--workload", f"{origin.place}:{origin.name}"]
        words += [word for k, v in origin.options.items() for word in ("--arg", _argument(k, v))]
    words += [] if log == USUAL_LOG else ["--log", log]
    words += ["--device", device] if device and "," not in device else []
    return shlex.join(words)


def most_like(work: Work, known: Brief) -> str:
    """Title of the log's nearest tuned shape with its distance, "conv2d n=1 … (distance 0.69)"; "" if none is tuned."""
    titles = {run.workload for run, statuses in counted(known) if statuses.get("ok")}
    alike = [t for t in titles if t.split()[:1] == work.title.split()[:1] and t != work.title]
    found = min(((distance(work.title, t), t) for t in alike), default=None)
    return "" if found is None else f"{found[1]} (distance {found[0]:.2f})"


A_WORD = 10.0
"""Distance for a word or a switch that differs."""


def distance(a: str, b: str) -> float:
    """Distance of two shapes of an operator, by titles: sum of |log((x + 1) / (y + 1))| over numbers, 10 for each other
    difference (a word, a switch, or a parameter of only one of them).
    """
    mine, theirs = _parameters(a), _parameters(b)
    return sum(_apart(mine.get(k, ""), theirs.get(k, "")) for k in mine.keys() | theirs.keys())


def _parameters(title: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in title.split() if "=" in word)


def _apart(x: str, y: str) -> float:
    if x == y:
        return 0.0
    numbers = all(v.isdecimal() and len(v) < 20 for v in (x, y))
    return abs(math.log((int(x) + 1) / (int(y) + 1))) if numbers else A_WORD
