"""Loops whose iterations may run at once."""

from __future__ import annotations

from tensorir.arith.affine import Arith, same
from tensorir.ir.build import as_int
from tensorir.ir.tree import Const, Load, Loop, Ramp, Store, Var
from tensorir.ir.visit import find


def liftable(s: Loop, arith: Arith) -> tuple[list[Loop], Store | None]:
    """A perfect nest around one store whose iterations touch distinct cells, so that they may run at once.

    The cells are distinct when the strides of the loops (and of the vector lanes) form a mixed radix; the stored value
    may read the same buffer only at the stored cell.
    """
    nest = [s]
    while isinstance(nest[-1].body, Loop):
        nest.append(nest[-1].body)
    store = nest[-1].body
    if not isinstance(store, Store) or not all(isinstance(x.extent, Const) for x in nest):
        return nest, None
    index = store.index[0]
    form = arith.linear(index.base if isinstance(index, Ramp) else index)
    names = {x.var for x in nest}
    if any(not isinstance(t, Var) and any(v in names for v in find(t, Var)) for t in form.terms):
        return nest, None
    radix = [(1, index.lanes)] if isinstance(index, Ramp) else []
    radix += [(abs(form.terms.get(x.var, 0)), as_int(x.extent)) for x in nest if as_int(x.extent) > 1]
    reach = 0
    for stride, extent in sorted(radix):
        if stride <= reach:
            return nest, None
        reach += stride * (extent - 1)
    for load in find(store.value, Load):
        if load.buffer is store.buffer and not same(load.index[0], index):
            return nest, None
    return nest, store
