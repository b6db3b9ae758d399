"""Hardware instructions as data: what one means in the loop tree, what it needs, and the text to emit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import binary
from tensorir.ir.tree import Buffer, Load, Program, Region, Stmt, Store, Update, Var
from tensorir.ir.visit import Rewriter, find, substitute


@dataclass(frozen=True, eq=False)
class Intrin:
    """One instruction.

    semantics: a program over operand buffers (its inputs, then its outputs) that computes exactly what it does
    emit:      dialect -> text, with ``{operand}`` standing for the address of the operand's first element
    needs:     target features, see ``target.Target``;  align: operand -> bytes
    source:    the section of the manual
    """

    name: str
    semantics: Program
    emit: Mapping[str, str]
    source: str
    align: Mapping[str, int]

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Inputs, then outputs (an operand both read and written appears once, as an output)."""
        return self.semantics.params

    def inline(self, regions: tuple[Region, ...]) -> Stmt:
        """The meaning of a call on ``regions``."""
        return _Onto(dict(zip(self.operands, regions, strict=True)))(_fresh(self.semantics.body))  # type: ignore[no-any-return]


class _Onto(Rewriter):
    def __init__(self, regions: Mapping[Buffer, Region]) -> None:
        self.regions = regions

    def _at(self, buffer: Buffer, index: tuple) -> tuple[Buffer, tuple]:  # type: ignore[type-arg]
        r = self.regions[buffer]
        lead = len(r.first) - len(index)
        moved = [binary("+", f, i) for f, i in zip(r.first[lead:], index, strict=True)]
        return r.buffer, (*r.first[:lead], *moved)

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        buffer, index = self._at(n.buffer, n.index)
        return Load(buffer, index, n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        buffer, index = self._at(n.buffer, n.index)
        return Store(buffer, index, n.value)

    def on_Update(self, n: Update) -> Update:
        n = self.children(n)
        buffer, index = self._at(n.buffers[0], n.index)
        return n.replace(buffers=(buffer,), index=index)


def _fresh(body: Stmt) -> Stmt:
    """New loop variables, so that several calls can stand in one program."""
    from tensorir.ir.tree import Loop

    for x in find(body, Loop):
        new = x.var.replace()
        body = _Rename(x.var, new)(body)
    return body


class _Rename(Rewriter):
    def __init__(self, old: Var, new: Var) -> None:
        self.old, self.new = old, new

    def on_Loop(self, n):  # type: ignore[no-untyped-def]
        n = self.children(n)
        if n.var is self.old:
            return substitute(n.replace(var=self.new), {self.old: self.new})
        return n


INTRINSICS: dict[str, Intrin] = {}


def register(intrin: Intrin) -> Intrin:
    """Make an instruction known by name; users declare their own the same way."""
    INTRINSICS[intrin.name] = intrin
    return intrin


def intrinsic(name: str) -> Intrin:
    """The instruction called ``name``."""
    import tensorir.intrin.opencl  # noqa: F401  (registers the table)

    if name in INTRINSICS:
        return INTRINSICS[name]
    close = difflib.get_close_matches(name, INTRINSICS, n=3) or list(INTRINSICS)[:6]
    raise ScheduleError(Problem("tensorize.unknown", f"there is no instruction {name!r}", hint=f"one of {', '.join(close)} …"))
