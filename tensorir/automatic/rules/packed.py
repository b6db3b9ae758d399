"""Operands that a tile keeps in another order, the axis of its lanes last, so that these read vectors of them."""

from __future__ import annotations

from tensorir.arith.access import Group
from tensorir.automatic.rules.register_counts import Reads
from tensorir.ir.tree import Var
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule


def packable(reads: Reads, g: Group) -> bool:
    """True when an operand of a sum is read at its axes as they are, at one place: it can be kept in another order."""
    loads = [x for x in reads.nest.loads if x.buffer is g.load.buffer]
    plain = [i for i in map(reads.arith.simplify, g.load.index) if reads.arith.linear(i).terms]
    own = {it.var for it in reads.nest.stage.iters}
    return len(loads) == 1 and len({id(i) for i in plain}) == len(plain) and all(i in own for i in plain)


def pack(s: BaseSchedule, reads: Reads, g: Group, lane: Var, wide: str | None = None) -> str:
    """Walk a sum as it is, with one operand in another order, and in another type if it is converted to that; the stage
    that packs it.
    """
    n, name = reads.nest, g.load.buffer.name
    short = {it.var: n.loops[it.var].removeprefix(f"{n.name}.") for it in n.stage.iters}
    read = [v for form in g.forms for v in form.terms if isinstance(v, Var) and v is not lane]
    cells, terms = (", ".join(short[it.var] for it in group) for group in (n.spatial, n.reduced))
    order, view = ", ".join(short[v] for v in (*read, lane)), f"{cells} | {terms} -> {cells}, {terms}"
    (packed,) = packed_names([name], s.index.names())
    s.reindex(n.name, view, reads={name: order}, dtype=wide)
    return packed
