"""Loops whose iterations may run at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tensorir.arith.affine import Arith, same
from tensorir.ir.build import as_int
from tensorir.ir.tree import Binary, Const, Expr, Load, Loop, Ramp, Store, Var
from tensorir.ir.visit import find, lanes_of

if TYPE_CHECKING:
    from tensorir.interp.machine import Action, Frame, Machine

_T = TypeVar("_T")
AT_ONCE = 1 << 16
"""Terms of sums that are computed together: more lanes than this save no time."""


@dataclass(frozen=True)
class Lift:
    """A perfect nest around one store, whose iterations may run at once.

    spread: loops whose iterations write distinct cells;  summed: those that add ``term`` to the cell, in any order
    """

    spread: list[Loop]
    summed: list[Loop]
    store: Store
    term: Expr | None = None


def liftable(s: Loop, arith: Arith, exact: Callable[[str], bool], most: int) -> Lift | None:
    """The perfect nest that begins with ``s``, where its iterations may run at once.

    exact: whether sums of a dtype do not depend on their order;  most: iterations of a nest that sums
    Cells are distinct when the strides of their loops (and of the vector lanes) form a mixed radix; the stored value
    may read the same buffer only at the stored cell.
    """
    nest = [s]
    while isinstance(nest[-1].body, Loop):
        nest.append(nest[-1].body)
    store = nest[-1].body
    if not isinstance(store, Store) or not all(isinstance(x.extent, Const) for x in nest):
        return None
    index = store.index[0]
    form = arith.linear(index.base if isinstance(index, Ramp) else index)
    names = {x.var for x in nest}
    if any(not isinstance(t, Var) and any(v in names for v in find(t, Var)) for t in form.terms):
        return None
    summed = [x for x in nest if as_int(x.extent) > 1 and not form.terms.get(x.var, 0)]
    spread = [x for x in nest if x not in summed]
    radix = [(1, index.lanes)] if isinstance(index, Ramp) else []
    radix += [(abs(form.terms.get(x.var, 0)), as_int(x.extent)) for x in spread if as_int(x.extent) > 1]
    reach = 0
    for stride, extent in sorted(radix):
        if stride <= reach:
            return None
        reach += stride * (extent - 1)
    own = [x for x in find(store.value, Load) if x.buffer is store.buffer]
    if any(not same(x.index[0], index) for x in own):
        return None
    if not summed:
        return Lift(spread, [], store)
    value, times = store.value, math.prod(as_int(x.extent) for x in nest)
    if not (isinstance(value, Binary) and value.op == "+" and len(own) == 1 and own[0] in (value.a, value.b)):
        return None
    if store.adds or store.later or not exact(value.dtype) or not 0 < times <= most:
        return None
    return Lift(spread, summed, store, value.b if own[0] is value.a else value.a)


def at_once(machine: Machine, lift: Lift) -> Action:
    """A closure that executes a nest: all its iterations are lanes, and sums are added to their cells once."""
    term, store = lift.term, lift.store
    if term is None:
        body, widened = _widened(machine, lift.spread, lambda: machine.stmt(store))
        return lambda f: body(widened(f))
    kind, times = term.dtype, math.prod(as_int(x.extent) for x in lift.summed)
    total, vector, sum_of = Var("total", kind), lanes_of(store.value) > 1, machine.n.sum
    own = next(x for x in find(store.value, Load) if x.buffer is store.buffer)
    added = replace(store, value=Binary("+", own, total, kind))
    terms, wide = _widened(machine, [*lift.spread, *lift.summed], lambda: machine.expr(term))
    add, narrow = _widened(machine, lift.spread, lambda: machine.stmt(added))

    def run(f: Frame) -> None:
        every, here = wide(f), narrow(f)
        x = np.asarray(terms(every))
        if x.ndim == 0:
            x = np.broadcast_to(x, (len(every.lane), 1) if vector else every.lane.shape)
        here.env[total] = sum_of(x.reshape(len(here.lane), times, *x.shape[1:]), (1,), kind)
        add(here)

    return run


def _widened(machine: Machine, nest: list[Loop], compiled: Callable[[], _T]) -> tuple[_T, Callable[[Frame], Frame]]:
    """What is ``compiled`` for all iterations of a nest at once, and their lanes, those of one thread side by side."""
    extents = [as_int(x.extent) for x in nest]
    times = math.prod(extents)
    grid = {x.var: g.ravel() for x, g in zip(nest, np.indices(extents), strict=True)}
    known, inner = machine.hardware, set(grid)  # another loop over the same variable leaves its last value
    machine.hardware = known | inner
    made = compiled()
    machine.hardware = known
    key = object()

    def widened(f: Frame) -> Frame:
        wide = f.cache.get(key)
        if wide is None:
            wide = f.cache[key] = f.repeated(times, grid)
        for v, x in f.env.items():
            if v not in inner and (v not in known or v not in wide.env):
                wide.env[v] = np.repeat(x, times) if isinstance(x, np.ndarray) and x.ndim else x
        return wide

    return made, widened
