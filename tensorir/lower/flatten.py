"""One index per access: layouts become strides."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.arith.affine import Arith
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.tree import (
    Alloc,
    Buffer,
    Expr,
    IntrinCall,
    Kind,
    Layout,
    Load,
    Loop,
    Program,
    Region,
    Scope,
    Select,
    Stmt,
    Store,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, uses
from tensorir.lower.form import bound_loops, each_nest, kernel_arith, lowering, rewrap
from tensorir.target import Target


@lowering
def flatten(program: Program, target: Target) -> Program:
    """gives: every access has one index; buffers that the program allocates are one-dimensional, without layout."""
    swap: dict[Buffer, Buffer] = {}

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        arith = kernel_arith(axes, body)
        return rewrap(axes, _Flatten(arith, swap, _vector_layouts(body))(body))

    return each_nest(program, kernel)


def _vector_layouts(body: Stmt) -> dict[Buffer, Layout]:
    """Register tiles without a layout of their own store the dimension that vector lanes walk innermost."""
    lanes = {x.var for x in find(body, Loop) if x.kind is Kind.VECTOR}
    tiles = {r.buffer for r in find(body, Region)}  # instructions rely on the order that they were matched against
    out: dict[Buffer, Layout] = {}
    for n in find(body, Load) + find(body, Store) if lanes else []:
        b = n.buffer
        if b.scope is Scope.REGISTER and b.layout is None and b not in out and b not in tiles:
            walked = [d for d, i in enumerate(n.index) if uses(i, lanes)]
            if len(walked) == 1 and walked[0] != len(b.shape) - 1:
                order = (*(d for d in range(len(b.shape)) if d != walked[0]), walked[0])
                out[b] = Layout(order, (0,) * len(order))
    return out


def sizes(b: Buffer) -> tuple[tuple[int, ...], int]:
    """The stride of each dimension and the number of elements stored."""
    dims = [as_int(n) for n in b.shape]
    order: Sequence[int] = b.layout.order if b.layout else range(len(dims))
    pad: Sequence[int] = b.layout.pad if b.layout else [0] * len(dims)
    strides, size = [0] * len(dims), 1
    for d in reversed(order):
        strides[d] = size
        size *= dims[d] + pad[d]
    return tuple(strides), size


class _Flatten(Rewriter):
    def __init__(self, arith: Arith, swap: dict[Buffer, Buffer], layouts: dict[Buffer, Layout]) -> None:
        self.arith, self.swap, self.layouts = arith, swap, layouts
        self.strides: dict[Buffer, tuple[int, ...]] = {}

    def _buffer(self, b: Buffer) -> Buffer:
        if b.origin is not None and b.data is None and b.scope.value == "global" and b.layout is None:
            return b  # parameters keep their shape for the signature
        if b not in self.swap:
            self.swap[b] = b.replace(shape=(as_expr(sizes(self._laid_out(b))[1]),), layout=None)
        return self.swap[b]

    def _laid_out(self, b: Buffer) -> Buffer:
        return b.replace(layout=self.layouts[b]) if b in self.layouts else b

    def _flat(self, b: Buffer, index: tuple[Expr, ...]) -> tuple[Expr]:
        if b not in self.strides:
            self.strides[b] = sizes(self._laid_out(b))[0]
        out: Expr = const(0)
        for i, stride in zip(index, self.strides[b], strict=True):
            out = binary("+", out, binary("*", i, stride))
        return (self.arith.linear(out).expr(),)

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        return Load(self._buffer(n.buffer), self._flat(n.buffer, n.index), n.dtype)

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(buffer=self._buffer(n.buffer), index=self._flat(n.buffer, n.index))

    def on_Alloc(self, n: Alloc) -> Alloc:
        return Alloc(self._buffer(n.buffer), self(n.body))

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        return n.replace(operands=tuple(
            Region(self._buffer(r.buffer), self._flat(r.buffer, r.first), r.extents, self.strides[r.buffer])
            for r in n.operands
        ))  # fmt: skip

    def on_Select(self, n: Select) -> Expr:
        return self.children(n)
