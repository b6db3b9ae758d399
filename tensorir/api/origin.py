"""Making a workload again from where it came from: the package's operators, or a function of a user's file."""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorir.api.workload import Origin, Workload
from tensorir.errors import DeclarationError, TensorIRError, refuse


def origin_json(origin: Origin) -> dict[str, Any]:
    """An Origin as plain data."""
    return {"kind": origin.kind, "name": origin.name, "options": dict(origin.options), "place": origin.place}


def rebuild(data: Mapping[str, Any]) -> Workload:
    """The workload of ``origin_json``."""
    if data["kind"] == "ops":
        return from_ops(data["name"], data["options"])
    if data["kind"] == "module":
        made: Workload = getattr(importlib.import_module(data["place"]), data["name"])(**data["options"])
        return made
    return from_file(data["place"], data["name"], data["options"])


def _ops() -> Any:
    """The operators are built on this layer: they are found by name, when a workload is made from one."""
    return importlib.import_module("tensorir.ops")


def operators() -> tuple[str, ...]:
    """Names of the operators that come with the package."""
    return tuple(_ops().OPERATORS)


def from_ops(name: str, options: Mapping[str, Any]) -> Workload:
    """``tensorir.ops.NAME(**options)``."""
    ops = _ops()
    if name not in ops.OPERATORS:
        hint = ", ".join(ops.OPERATORS)
        raise refuse(DeclarationError, "workload.operator", f"there is no operator {name!r}", hint=hint)
    work: Workload = getattr(ops, name)(**options)
    if work.origin is None:
        work.origin = Origin("ops", name, dict(options))
    return work


def from_file(place: str, name: str, options: Mapping[str, Any]) -> Workload:
    """Run a user's Python file and call its function NAME with ``options``; it returns a Workload."""
    path = Path(place)
    if not path.is_file():
        raise refuse(DeclarationError, "workload.file", f"there is no file {place}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # its own imports, here and in the worker, which gets this path
        sys.path.append(folder)
    try:
        found = runpy.run_path(str(path), run_name="tensorir_workload")
    except TensorIRError:
        raise
    except Exception as error:
        raise refuse(
            DeclarationError, "workload.file", f"{place} failed with {type(error).__name__}: {error}"
        ) from error
    function = found.get(name)
    if not callable(function):
        have = ", ".join(n for n, v in found.items() if callable(v) and not n.startswith("_"))
        raise refuse(DeclarationError, "workload.file", f"{place} has no function {name!r}", hint=have[:200])
    try:
        work = function(**options)
    except TensorIRError:
        raise
    except Exception as error:
        message = f"{name}() of {place} failed with {type(error).__name__}: {error}"
        raise refuse(DeclarationError, "workload.file", message) from error
    if not isinstance(work, Workload):
        message = f"{name}() of {place} returned {type(work).__name__}, not a tir.Workload"
        raise refuse(DeclarationError, "workload.file", message)
    work.origin = Origin("file", name, dict(options), str(path.resolve()))
    return work
