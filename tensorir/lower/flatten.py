"""Pass: multi-dimensional accesses become one linear index, using layouts and strides."""

from __future__ import annotations

from typing import Any

from tensorir.arith.affine import Arith, Linear
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.layout import Cell, Piece, cells, permuted
from tensorir.ir.tree import (
    Alloc,
    Buffer,
    Expr,
    IntrinCall,
    Kind,
    Layout,
    Load,
    Loop,
    Prefetch,
    Program,
    Region,
    Scope,
    Seq,
    Stmt,
    Store,
)  # fmt: skip
from tensorir.ir.visit import Pruner, find, reads, uses
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.lower.tiles import described, is_described, need_aligned
from tensorir.target import Target


@lowering
def flatten(program: Program, target: Target) -> Program:
    """Replace multi-dimensional indices by one linear index: ``A[i, j]   ->   A[i*64 + j]``.

    gives: every access has one index; buffers that the program allocates are one-dimensional, without layout; arrays
           copied by TMA keep their dimensions; prefetches are left on CPUs alone, of global arrays that are still read
    """
    swap: dict[Buffer, Buffer] = {b: b for b in _mapped(program)}

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        arith = kernel_arith(program.known, axes, body)
        # requests for cache lines are for CPUs, and for arrays that are still read from memory
        fetched = {b for b in reads(body) if b.scope is Scope.GLOBAL} if target.kind == "cpu" else set()
        return rewrap(axes, _Flatten(arith, swap, _vector_layouts(body), fetched)(body))

    return each_nest(program, kernel)


def _mapped(program: Program) -> set[Buffer]:
    """Arrays without a layout that TMA copies read or write: their tensor maps need the dimensions."""
    calls = find(program.body, IntrinCall)
    tiles = ((c, t, r.buffer) for c in calls for t, r in zip(c.intrin.operands, c.operands, strict=True))
    return {b for c, t, b in tiles if t.name in c.intrin.maps and b.layout is None}


def _vector_layouts(body: Stmt) -> dict[Buffer, Layout]:
    """Layouts for register tiles without one: the dimension indexed by vector lanes becomes innermost in memory.

    If writers and readers vectorize different dimensions, writers decide: an accumulator is written in every reduction
    step and read once.
    """
    lanes = {x.var for x in find(body, Loop) if x.kind is Kind.VECTOR}
    tiles = {r.buffer for r in find(body, Region)}  # instructions rely on the order that they were matched against
    inner: dict[Buffer, int] = {}
    accesses: list[Load | Store] = [*find(body, Store), *find(body, Load)] if lanes else []
    for n in accesses:
        b = n.buffer
        if b.scope is Scope.REGISTER and b.layout is None and b not in inner and b not in tiles:
            walked = [d for d, i in enumerate(n.index) if uses(i, lanes)]
            if len(walked) == 1:
                inner[b] = walked[0]
    last = {b: len(b.shape) - 1 for b in inner}
    return {b: permuted((*(k for k in range(last[b] + 1) if k != d), d)) for b, d in inner.items() if d != last[b]}


class _Flatten(Pruner):
    def __init__(
        self, arith: Arith, swap: dict[Buffer, Buffer], layouts: dict[Buffer, Layout], fetched: set[Buffer]
    ) -> None:
        self.arith, self.swap, self.layouts, self.fetched = arith, swap, layouts, fetched
        self.cells: dict[Buffer, tuple[Cell, ...]] = {}

    def _buffer(self, b: Buffer) -> Buffer:
        if b.scope is Scope.BARRIER or (
            b.origin is not None and b.data is None and b.scope.value == "global" and b.layout is None
        ):
            return b  # parameters keep their shape for the signature
        if b not in self.swap:
            self.swap[b] = b.replace(shape=(as_expr(cells(self._laid_out(b))[1]),), layout=None)
        return self.swap[b]

    def _laid_out(self, b: Buffer) -> Buffer:
        return b.replace(layout=self.layouts[b]) if b in self.layouts else b

    def _flat(self, b: Buffer, index: tuple[Expr, ...]) -> tuple[Expr]:
        if b not in self.cells:
            self.cells[b] = cells(self._laid_out(b))[0]
        parts: list[tuple[Expr, Any]] = []
        for cell in self.cells[b]:
            i = self._piece(index, cell.piece)
            for d, divisor, extent, scale in cell.folds:
                i = binary("^", i, binary("*", self._piece(index, (d, divisor, extent)), scale))
            parts.append((i, cell.stride))
        if all(i.dtype == "index" and isinstance(stride, int) for i, stride in parts):
            return (self.arith.written(self.arith.total(parts)),)
        out: Expr = const(0)
        for i, stride in parts:
            out = binary("+", out, binary("*", i, stride))
        return (self.arith.normal(out),)

    def _piece(self, index: tuple[Expr, ...], piece: Piece) -> Expr:
        d, divisor, extent = piece
        i = self._part(index[d], divisor, "//") if divisor > 1 else index[d]
        return self._part(i, extent, "%") if extent else i

    def _part(self, i: Expr, n: int, op: str) -> Expr:
        """``i // n`` or ``i % n``; operands stay nonnegative, where C and Python agree."""
        form = self.arith.linear(i)
        low, high = self.arith.range_of(Linear({t: c for t, c in form.terms.items() if c % n}, form.constant % n))
        if low >= 0 or low // n == high // n:
            return binary(op, form.expr(), n)
        floor = Linear({t: c // n for t, c in form.terms.items()}, form.constant // n)  # -i is 3*i - 4*i for n = 4
        rest = form.plus(floor, -n)
        if self.arith.range_of(rest)[0] < 0:  # an index from data: what is accessed exists, so it is not negative
            return binary(op, binary("max", form.expr(), 0), n)
        part = binary(op, rest.expr(), n)
        return binary("+", floor.expr(), part) if op == "//" else part

    def _strides(self, b: Buffer) -> tuple[int, ...]:
        """Strides per dimension within one block of the layout; () for register fragments."""
        if b.layout is not None and b.layout.lanes:
            return ()
        near = {c.piece[0]: c.stride for c in self.cells[b] if c.piece[1] == 1}
        return tuple(as_int(as_expr(near[d])) for d in range(len(near)))

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        return Load(self._buffer(n.buffer), self._flat(n.buffer, n.index), n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(buffer=self._buffer(n.buffer), index=self._flat(n.buffer, n.index))

    def on_Prefetch(self, n: Prefetch) -> Stmt:
        if n.buffer not in self.fetched:
            return Seq(())
        n = self.children(n)
        return n.replace(buffer=self._buffer(n.buffer), index=self._flat(n.buffer, n.index))

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, lambda a, body: Alloc(self._buffer(a.buffer), body))

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        tiles = zip(n.intrin.operands, n.operands, strict=True)
        return n.replace(operands=tuple(self._region(n, tile, r) for tile, r in tiles))

    def _region(self, call: IntrinCall, tile: Buffer, r: Region) -> Region:
        if tile.name in call.intrin.maps:  # told by where it begins in each dimension
            first, pixels = r.first, r.pixels
            if pixels is not None:
                first = (*pixels.place(r.first[0]), *r.first[1:])
                offset = tuple(self.arith.normal(i) for i in pixels.offset)
                pixels = pixels.replace(offset=offset)
            first = tuple(self.arith.normal(i) for i in first)
            return r.replace(buffer=self._buffer(r.buffer), first=first, pixels=pixels)
        first, strides, swizzle = self._flat(r.buffer, r.first), self._strides(r.buffer), 0
        if is_described(call, tile):
            strides, swizzle = described(call, tile, r.buffer, r.first, self.arith)
            if call.intrin.maps:
                need_aligned(call, r.buffer, first, self.arith)
        return Region(self._buffer(r.buffer), first, r.extents, strides, swizzle)
