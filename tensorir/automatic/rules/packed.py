"""Packing of an operand for register tiles: lane axis last, so that lanes load contiguous vectors."""

from __future__ import annotations

from tensorir.arith.access import Group
from tensorir.automatic.rules.window_reads import Reads
from tensorir.ir.tree import Var
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule


def packable(reads: Reads, g: Group) -> bool:
    """True if the operand's indices are distinct plain axes and it is loaded once, so that it can be stored in another
    order.
    """
    loads = [x for x in reads.nest.loads if x.buffer is g.load.buffer]
    plain = [i for i in map(reads.arith.simplify, g.load.index) if reads.arith.linear(i).terms]
    own = {it.var for it in reads.nest.stage.iters}
    return len(loads) == 1 and len({id(i) for i in plain}) == len(plain) and all(i in own for i in plain)


def pack(s: BaseSchedule, reads: Reads, g: Group, lane: Var, wide: str | None = None) -> str:
    """Reindex a sum to read the operand ``g`` in another order, lane axis last; return the name of the stage that packs
    it.

    wide: dtype to convert the packed operand to; None keeps its own
    """
    n, name = reads.nest, g.load.buffer.name
    short = {it.var: n.loops[it.var].removeprefix(f"{n.name}.") for it in n.stage.iters}
    read = [v for form in g.forms for v in form.terms if isinstance(v, Var) and v is not lane]
    cells, terms = (", ".join(short[it.var] for it in group) for group in (n.spatial, n.reduced))
    order, view = ", ".join(short[v] for v in (*read, lane)), f"{cells} | {terms} -> {cells}, {terms}"
    (packed,) = packed_names([name], s.index.names())
    s.reindex(n.name, view, reads={name: order}, dtype=wide)
    return packed
