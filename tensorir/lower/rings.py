"""Ring buffers for software pipelining: ``depth`` slots in one array, one per iteration in flight."""

from __future__ import annotations

from collections.abc import Mapping

from tensorir.ir.build import as_expr
from tensorir.ir.tree import Alloc, Buffer, Expr, Load, Region, Stmt, Store
from tensorir.ir.visit import Rewriter
from tensorir.schedule.analysis import statements


def ring(b: Buffer, depth: int) -> Buffer:
    """``b`` extended by a leading dimension of ``depth`` slots."""
    layout = b.layout
    if layout is not None:
        pieces = ((0, 1, 0), *((d + 1, divisor, extent) for d, divisor, extent in layout.pieces))
        folds = tuple(tuple((d + 1, *rest) for d, *rest in onto) for onto in layout.folds)
        layout = layout.replace(names=("slot", *layout.names), pieces=pieces, folds=((), *folds) if folds else ())
    return b.replace(shape=(as_expr(depth), *b.shape), layout=layout)


class InSlot(Rewriter):
    """Rewriter: accesses of buffers replaced by rings use slot ``slot``."""

    def __init__(self, rings: Mapping[Buffer, Buffer], slot: Expr) -> None:
        self.rings, self.slot = rings, slot

    def on_Load(self, n: Load) -> Load:
        n = self.children(n)
        return Load(self.rings[n.buffer], (self.slot, *n.index), n.dtype) if n.buffer in self.rings else n

    def on_Store(self, n: Store) -> Store:
        n = self.children(n)
        return n.replace(buffer=self.rings[n.buffer], index=(self.slot, *n.index)) if n.buffer in self.rings else n

    def on_Region(self, n: Region) -> Region:
        if n.buffer not in self.rings:
            return n
        return Region(self.rings[n.buffer], (self.slot, *n.first), (1, *n.extents))


def allocs(body: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """(buffers allocated at the top of a loop body, the statements inside these Allocs)."""
    out = []
    while isinstance(body, Alloc):
        out.append(body.buffer)
        body = body.body
    return out, list(statements(body))


def allocated(buffers: list[Buffer], body: Stmt) -> Stmt:
    """``body`` inside an Alloc of each of ``buffers``, the last one outermost."""
    for b in buffers:
        body = Alloc(b, body)
    return body
