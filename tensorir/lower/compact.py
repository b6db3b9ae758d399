"""Allocate local buffers where they live, no larger than the box that is used there."""

from __future__ import annotations

from collections.abc import Mapping

from tensorir.arith.affine import Arith
from tensorir.arith.box import Side, side_of, union
from tensorir.errors import TensorIRError
from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.tree import (
    Alloc, Buffer, Expr, IntrinCall, Load, Loop, Program, Region, Scope, Seq, Stage, Stmt, Store, Update, Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, walk
from tensorir.lower.form import bound_loops, each_nest, fail, loop_ranges, lowering, rewrap
from tensorir.schedule.analysis import in_loops
from tensorir.target import Target

LOCAL = (Scope.SHARED, Scope.REGISTER)
Access = tuple[Stage, tuple[Stmt, ...], tuple[Expr, ...]]


@lowering
def compact(program: Program, target: Target) -> Program:
    """Wrap the smallest subtree that uses a local buffer in an Alloc and rebase indices to its box.

    gives: every SHARED or REGISTER buffer has an Alloc; its shape is the box touched inside
    """
    return each_nest(program, _kernel)


def _kernel(nest: Stmt) -> Stmt:
    axes, body = bound_loops(nest)
    accesses: dict[Buffer, list[Access]] = {}
    _collect(body, (), accesses)
    if not accesses:
        return nest
    threads = [x for x in axes if x.kind.level == "thread"]
    arith = Arith(loop_ranges([*axes, *find(body, Loop)]))
    new: dict[Buffer, tuple[Buffer, list[Expr]]] = {}
    places: dict[Stmt | None, list[Buffer]] = {}
    for b, found in accesses.items():
        at, depth = _common(found)
        moving = loop_ranges([x for _, path, _ in found for x in path[depth:] if isinstance(x, Loop)])
        if b.scope is Scope.SHARED:
            moving.update(loop_ranges(threads))
        new[b] = _boxed(b, found, arith, moving)
        places.setdefault(at, []).append(new[b][0])
    return rewrap(axes, _place(body, new, places))


def _collect(s: Stmt, path: tuple[Stmt, ...], out: dict[Buffer, list[Access]]) -> None:
    if isinstance(s, Stage):
        for n in walk(s.body):
            for b, index in _touched(n):
                if b.scope in LOCAL:
                    out.setdefault(b, []).append((s, path, index))
        return
    for c in s.children():
        if isinstance(c, Stmt):
            _collect(c, (*path, s), out)


def _touched(n: object) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    if isinstance(n, Load | Store):
        return [(n.buffer, n.index)]
    if isinstance(n, Update):
        return [(b, n.index) for b in n.buffers]
    if isinstance(n, IntrinCall):
        out = []
        for r in n.operands:
            last = tuple(binary("+", f, e - 1) for f, e in zip(r.first, r.extents, strict=True))
            out += [(r.buffer, r.first), (r.buffer, last)]
        return out
    return []


def _common(found: list[Access]) -> tuple[Stmt | None, int]:
    """The innermost statement around all accesses, and its depth; None for the kernel's top."""
    depth = 0
    paths = [p for _, p, _ in found]
    while all(len(p) > depth for p in paths) and len({id(p[depth]) for p in paths}) == 1:
        depth += 1
    while depth and not isinstance(paths[0][depth - 1], Loop | Seq):
        depth -= 1
    return (paths[0][depth - 1] if depth else None), depth


def _boxed(b: Buffer, found: list[Access], arith: Arith, moving: Mapping[Var, tuple[float, float]]) -> tuple[Buffer, list[Expr]]:
    shape: list[Expr] = []
    first: list[Expr] = []
    for d, extent in enumerate(b.shape):
        sides: list[Side | None] = [side_of(in_loops(index[d], s), arith, moving) for s, _, index in found]
        box = union(sides, arith)
        if box is None:
            try:
                whole = as_int(extent)
            except TensorIRError:
                raise fail("lower.box", f"the part of {b.name} in use has no constant size along dimension {d}") from None
            over = max((s.first.constant + s.extent for s in sides if s is not None and not s.first.terms), default=0)
            box = Side(arith.linear(as_expr(0)), max(whole, over))
        shape.append(as_expr(box.extent))
        first.append(box.first.expr())
    return b.replace(shape=tuple(shape)), first


def _place(body: Stmt, new: Mapping[Buffer, tuple[Buffer, list[Expr]]], places: Mapping[Stmt | None, list[Buffer]]) -> Stmt:
    out = _Rebase(new, places)(body)
    for b in places.get(None, ()):
        out = Alloc(b, out)
    return out  # type: ignore[no-any-return]


class _Rebase(Rewriter):
    """Indices relative to the box, buffers replaced by their compact selves, allocations put in."""

    def __init__(self, new: Mapping[Buffer, tuple[Buffer, list[Expr]]], places: Mapping[Stmt | None, list[Buffer]]) -> None:
        self.new, self.places = new, places

    def __call__(self, n: object) -> object:
        done = super().__call__(n)
        for b in self.places.get(n, ()) if isinstance(n, Seq) else ():
            done = Alloc(b, done)  # type: ignore[arg-type]
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
        return buffer, tuple(binary("-", i, f) for i, f in zip(index, first, strict=True))

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        buffer, index = self._moved(n.buffer, n.index)
        return n if buffer is n.buffer else Load(buffer, index, n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        buffer, index = self._moved(n.buffer, n.index)
        return n if buffer is n.buffer else Store(buffer, index, n.value)

    def on_Update(self, n: Update) -> Update:
        n = self.children(n)
        index = self._moved(n.buffers[0], n.index)[1]
        return n.replace(buffers=tuple(self._moved(b, n.index)[0] for b in n.buffers), index=index)

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        moved = []
        for r in n.operands:
            buffer, first = self._moved(r.buffer, r.first)
            moved.append(Region(buffer, first, r.extents))
        return n.replace(operands=tuple(moved))
