"""Kernels that do several calls of an exported one at once: a folder each, inside its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorir.codegen.source import Source
from tensorir.errors import TensorIRError, refuse
from tensorir.export.asked import programs
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.part import ExportError, Part


@dataclass(frozen=True)
class Batch:
    """A kernel for so many items.

    mapped:   the inputs of which it takes one for each item; it takes one of each other for all
    programs: by language
    """

    items: int
    mapped: tuple[str, ...]
    programs: Mapping[str, Part]

    @property
    def folder(self) -> str:
        return f"batched_{self.items}"


def batches(source: Source, to: Sequence[str], given: Sequence[Part]) -> dict[str, Batch]:
    """By folder, the kernels for batches for those destinations that map, by language.

    They take the inputs of ``source`` by their names, some with a dimension of the items in front, and give its outputs
    with one. Raises ExportError ``export.batched`` for what does not fit, and what lowering raises.
    """
    if not given:
        return {}
    which = mapping(to)
    if not which:
        legal = ", ".join(name for name, row in DESTINATIONS.items() if row.maps)
        raise _wrong(f"{', '.join(to)} cannot map a kernel", f"without batched, or to one of {legal}")
    found: dict[str, Batch] = {}
    for part in given:
        items, mapped = _mapped(source, part.source)
        made = Batch(items, mapped, programs(part, which))
        if made.folder in found:
            raise _wrong(f"there are two kernels for {items} items", "one of them")
        found[made.folder] = made
    return found


def mapping(to: Sequence[str]) -> tuple[str, ...]:
    """The destinations that map."""
    return tuple(name for name in to if DESTINATIONS[name].maps)


def entries(to: Sequence[str], found: Mapping[str, Batch]) -> list[dict[str, object]]:
    """``manifest["batched"]``."""
    which = list(mapping(to))
    return [{"folder": name, "items": b.items, "mapped": list(b.mapped), "targets": which} for name, b in found.items()]


def _mapped(source: Source, batched: Source) -> tuple[int, tuple[str, ...]]:
    """How many items a kernel does at once, and of which inputs it takes one for each."""
    wanted = {p.name: p for p in source.inputs}
    if sorted(wanted) != sorted(p.name for p in batched.inputs) or len(source.outputs) != len(batched.outputs):
        given = ", ".join(p.name for p in batched.inputs)
        message = f"the kernel for a batch takes {given} and gives {len(batched.outputs)} outputs"
        raise _wrong(message, f"{', '.join(wanted)}, and {len(source.outputs)} outputs, as the kernel itself")
    mapped = tuple(p.name for p in batched.inputs if p.shape != wanted[p.name].shape)
    first = batched.outputs[0].shape
    pairs = [(p, wanted[p.name], p.name in mapped) for p in batched.inputs]
    pairs += [(p, own, True) for p, own in zip(batched.outputs, source.outputs, strict=True)]
    for p, own, many in pairs:
        shape = (first[:1] if many else ()) + own.shape
        if (p.dtype, p.shape) != (own.dtype, shape):
            said = f"the kernel for a batch: {p.name} is {p.dtype}{list(p.shape)}"
            raise _wrong(said, f"{own.dtype}{list(shape)}, or the same extent in front of all that have one")
    if not isinstance(first[0], int):
        raise _wrong(f"the kernel for a batch is for {first[0]} items, which each call decides", "an int there")
    return first[0], mapped


def _wrong(message: str, hint: str) -> TensorIRError:
    return refuse(ExportError, "export.batched", message, hint=hint)
