"""Recreates a workload in a worker process from its Origin: an operator, or a function in a user's file."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorir.api.workload import Origin, Workload
from tensorir.errors import DeclarationError, TensorIRError, line_of, refuse
from tensorir.expr.tensor import Tensor


def rebuild(origin: Origin) -> Workload:
    """Return the Workload made by calling the Origin's function; runs the user's file for the kind "file"."""
    if origin.kind == "file":
        return from_file(origin.place, origin.name, origin.options)
    made: Workload = origin.make()
    return made


def from_file(place: str, name: str, options: Mapping[str, object]) -> Workload:
    """Run a user's Python file and call its function ``name(**options)``; returns its Workload, or one made of the
    tensors it returns with ``tir.auto`` templates. Its ``origin`` is set, and the file's folder appended to
    ``sys.path``.

    Raises DeclarationError ``workload.file`` for a missing file or function, other results, and any exception in it.
    """
    path = Path(place)
    if not path.is_file():
        raise refuse(DeclarationError, "workload.file", f"there is no file {place}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # its own imports, here and in the worker, which gets this path
        sys.path.append(folder)
    found = _of_user(place, lambda: runpy.run_path(str(path), run_name="tensorir_workload"))
    function = found.get(name)
    if not callable(function):
        have = ", ".join(n for n, v in found.items() if callable(v) and not n.startswith("_"))
        raise refuse(DeclarationError, "workload.file", f"{place} has no function {name!r}", hint=have[:200])
    made = _of_user(f"{name}() of {place}", lambda: function(**options))
    given = made if isinstance(made, tuple | list) else [made]
    work = Workload(name, made) if given and all(isinstance(t, Tensor) for t in given) else made
    if not isinstance(work, Workload):
        message = f"{name}() of {place} returned {type(made).__name__}, not a tir.Workload, a tensor or several"
        raise refuse(DeclarationError, "workload.file", message)
    work.origin = Origin("file", name, dict(options), str(path.resolve()))
    return work


def _of_user(what: str, run: Callable[[], Any]) -> Any:
    """Result of user code ``run()``; what it raises becomes DeclarationError ``workload.file``, SystemExit included,
    but not this package's errors and KeyboardInterrupt.
    """
    try:
        return run()
    except (TensorIRError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{what} failed with {type(error).__name__}: {error}"
        raise refuse(DeclarationError, "workload.file", message, where=line_of(error)) from error
