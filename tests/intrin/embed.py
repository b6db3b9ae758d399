"""A computation whose inner nest is exactly what an instruction means."""

import tensorir as tir
from tensorir.ir.structure import among, place
from tensorir.ir.tree import Load, Update, Var
from tensorir.ir.visit import Rewriter, substitute

ROWS, TIMES = 3, 5


class _Rows(Rewriter):
    """Operands become rows of larger tensors, read from an unaligned column on."""

    def __init__(self, tensors, lead):
        self.tensors, self.lead = tensors, lead

    def on_Load(self, n: Load):
        *outer, last = self.children(n).index
        return self.tensors[n.buffer][(*self.lead, *outer, last + 1)]


def embedded(intrin):
    """(output tensor, the axis names of the instruction's loops): one instruction per row, several times if it adds."""
    statement, out = intrin.statement, intrin.outputs[0]
    adds = isinstance(statement, Update)
    shape = (TIMES, ROWS) if adds else (ROWS,)
    tensors = {
        b: tir.placeholder((*shape, *b.dims[:-1], b.dims[-1] + 2), b.dtype, name=b.name.upper())
        for b in intrin.operands
        if b is not out
    }
    spatial = [x for x in intrin.loops if among(x.var, statement.index)]
    inner = {
        x.var: tir.reduce_axis(int(x.extent.value), name=f"u{n}")
        for n, x in enumerate(intrin.loops)
        if x not in spatial
    }
    time = tir.reduce_axis(TIMES, name="t")

    def value(r, *cell):
        at: dict[Var, object] = {**inner, **{x.var: cell[place(x.var, statement.index)] for x in spatial}}
        lead = (time, r) if adds else (r,)
        e = _Rows(tensors, lead)(substitute(statement.values[0] if adds else statement.value, at))
        return tir.sum(e, axis=(time, *inner.values())) if adds else e

    cells = [f"v{d}" for d in range(len(out.shape))]
    made = tir.compute((ROWS, *out.dims), value, name="Y", axes=["r", *cells])
    names = [cells[place(x.var, statement.index)] if x in spatial else inner[x.var].name for x in intrin.loops]
    return made, names
