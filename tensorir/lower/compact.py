"""Pass: allocate shared and register buffers at the innermost statement that uses them, at the size used there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tensorir.arith.affine import Arith
from tensorir.arith.box import Side, union
from tensorir.ir.build import as_expr, binary
from tensorir.ir.dims import dims_in, most
from tensorir.ir.tree import (
    Alloc,
    Buffer,
    Const,
    Expr,
    IntrinCall,
    Load,
    Loop,
    Program,
    Seq,
    Stmt,
    Store,
)  # fmt: skip
from tensorir.ir.visit import Rewriter
from tensorir.lower.boxes import common, local_accesses, sides_of
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def compact(program: Program, target: Target) -> Program:
    """Wrap the smallest subtree that uses a local buffer in an Alloc and rebase indices to its box.

    gives: every SHARED, WARP or REGISTER buffer has an Alloc; its shape is the box touched inside

    A dimension without a box of constant extent is stored whole; raises ``lower.box`` if that has no constant size.
    """
    return each_nest(program, lambda nest: _kernel(nest, program.known))


def _kernel(nest: Stmt, known: Arith) -> Stmt:
    axes, body = bound_loops(nest)
    accesses = local_accesses(body)
    if not accesses:
        return nest
    arith = kernel_arith(known, axes, body)
    new: dict[Buffer, tuple[Buffer, list[Expr]]] = {}
    places: dict[Stmt | None, list[Buffer]] = {}
    for b, found in accesses.items():
        at, depth = common(found)
        new[b] = _boxed(b, sides_of(b, found, depth, axes, arith), arith)
        places.setdefault(at, []).append(new[b][0])
    return rewrap(axes, _place(body, new, places))


def _boxed(b: Buffer, accesses: list[list[Side | None]], arith: Arith) -> tuple[Buffer, list[Expr]]:
    shape: list[Expr] = []
    first: list[Expr] = []
    for d, extent in enumerate(b.shape):
        sides = [a[d] for a in accesses]
        box = union(sides)
        if box is None:
            box = _whole(b, d, extent, sides, arith)
        shape.append(as_expr(max(box.extent, 1)))  # in a version that never runs, conditions may leave nothing of it
        first.append(box.first.expr())
    return b.replace(shape=tuple(shape)), first


def _whole(b: Buffer, d: int, extent: Expr, sides: list[Side | None], arith: Arith) -> Side:
    """Interval of the whole dimension, extended to elements past its end that overshooting iterations touch."""
    if not isinstance(extent, Const) and not dims_in(extent):
        raise fail("lower.box", f"the part of {b.name} in use has no constant size along dimension {d}")
    low, high = 0, most(extent)
    for s in sides:
        if s is not None:
            a, z = arith.range_of(s.first)
            if math.isinf(a) or math.isinf(z):
                raise fail("lower.box", f"the part of {b.name} in use has no constant size along dimension {d}")
            low, high = min(low, int(a)), max(high, int(z) + s.extent)
    return Side(arith.linear(as_expr(low)), high - low)


def _place(
    body: Stmt, new: Mapping[Buffer, tuple[Buffer, list[Expr]]], places: Mapping[Stmt | None, list[Buffer]]
) -> Stmt:
    out: Stmt = _Rebase(new, places)(body)
    for b in places.get(None, ()):
        out = Alloc(b, out)
    return out


class _Rebase(Rewriter):
    """Subtract box starts from indices, replace buffers by their compact versions, insert Allocs."""

    def __init__(
        self, new: Mapping[Buffer, tuple[Buffer, list[Expr]]], places: Mapping[Stmt | None, list[Buffer]]
    ) -> None:
        self.new, self.places = new, places

    def __call__(self, n: object) -> Any:
        done = super().__call__(n)
        for b in self.places.get(n, ()) if isinstance(n, Seq) else ():
            done = Alloc(b, done)
        return done

    def on_Loop(self, n: Loop) -> Stmt:
        done = self.children(n)
        for b in self.places.get(n, ()):
            done = done.replace(body=Alloc(b, done.body))
        return done

    def _moved(self, b: Buffer, index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if b not in self.new:
            return b, index
        buffer, first = self.new[b]
        return buffer, tuple(binary("-", i, self(f)) for i, f in zip(index, first, strict=True))

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        buffer, index = self._moved(n.buffer, n.index)
        return n if buffer is n.buffer else Load(buffer, index, n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        buffer, index = self._moved(n.buffer, n.index)
        return n if buffer is n.buffer else n.replace(buffer=buffer, index=index)

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        moved = []
        for r in n.operands:
            buffer, first = self._moved(r.buffer, r.first)
            moved.append(r.replace(buffer=buffer, first=first))
        return n.replace(operands=tuple(moved))
