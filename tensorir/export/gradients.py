"""Kernels for the gradients of an exported one: a folder each, inside its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorir.codec import small_file
from tensorir.codegen.names import identifier
from tensorir.codegen.source import Param, Source
from tensorir.errors import TensorIRError, refuse
from tensorir.export.asked import MAX_MANIFEST, existing, programs
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.part import ExportError, Part


def gradients(source: Source, to: Sequence[str], backward: Mapping[str, Part]) -> dict[str, dict[str, Part]]:
    """By input, the programs that compute its gradient for those destinations that differentiate, by language.

    They take inputs and outputs of ``source`` by their names, and the gradient that comes in as ``d_<output>``. Raises
    ExportError ``export.backward`` for what does not fit, and what lowering raises.
    """
    if not backward:
        return {}
    which = differentiating(to)
    if not which:
        legal = ", ".join(name for name, row in DESTINATIONS.items() if row.gradients)
        raise _wrong(f"{', '.join(to)} cannot differentiate", f"without backward, or to one of {legal}")
    floats = {p.name: p for p in source.inputs if p.role == "input" and "float" in p.dtype}
    for of, part in backward.items():
        if of not in floats:
            raise _wrong(f"there is no gradient of {of}: no such input, or none of floats", ", ".join(floats) or "none")
        _check(source, of, part.source)
    return {of: programs(part, which) for of, part in backward.items()}


def differentiating(to: Sequence[str]) -> tuple[str, ...]:
    """The destinations that differentiate."""
    return tuple(name for name in to if DESTINATIONS[name].gradients)


def folder_of(of: str) -> str:
    """The folder of an input's gradient."""
    return f"backward_{identifier(of)}"


def entries(to: Sequence[str], found: Mapping[str, Mapping[str, Part]]) -> dict[str, Any]:
    """``manifest["backward"]``: by input, the folder and what its kernel takes."""
    which = list(differentiating(to))
    return {
        of: {
            "folder": folder_of(of),
            "inputs": [p.name for p in next(iter(made.values())).source.inputs],
            "targets": which,
        }
        for of, made in found.items()
    }


def earlier(folder: Path) -> list[Path]:
    """The folders of gradients and batches of our own earlier export to ``folder``."""
    try:
        manifest = json.loads(small_file(folder / "manifest.json", MAX_MANIFEST))
        inner = [*manifest.get("backward", {}).values(), *manifest.get("batched", [])]
        names = [about["folder"] for about in inner]
        return [folder / name for name in names if Path(name).name == name and (folder / name).is_dir()]
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return []


def remove(folder: Path) -> None:
    """Take away an earlier export; what somebody else put there stays, and with it the folder."""
    try:
        names = existing(folder)
    except ExportError:
        return
    for name in names:
        (folder / name).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def _check(source: Source, of: str, gradient: Source) -> None:
    """Refuse a kernel that is none for the gradient of an input."""
    known = {f"d_{p.name}": p for p in source.outputs if "float" in p.dtype}
    known |= {p.name: p for p in (*source.outputs, *source.inputs)}
    what = f"the kernel for the gradient of {of}"
    for p in gradient.inputs:
        if p.name not in known:
            raise _wrong(f"{what} takes {p.name}", f"its inputs are some of {', '.join(known)}")
        _check_alike(f"{what}: its {p.name}", p, known[p.name])
    if len(gradient.outputs) != 1:
        raise _wrong(f"{what} has {len(gradient.outputs)} outputs", "one output")
    wanted = next(p for p in source.inputs if p.name == of)
    _check_alike(f"{what}: its output", gradient.outputs[0], wanted)


def _check_alike(what: str, p: Param, known: Param) -> None:
    if (p.dtype, p.shape) != (known.dtype, known.shape):
        said = f"{what} is {p.dtype}{list(p.shape)}"
        raise _wrong(said, f"{known.dtype}{list(known.shape)}, as {known.name} is")


def _wrong(message: str, hint: str) -> TensorIRError:
    return refuse(ExportError, "export.backward", message, hint=hint)
