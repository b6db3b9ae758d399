"""Finds loops that the interpreter can vectorize: iterations as extra lanes, or as terms of one sum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tensorir.arith.affine import Arith, same
from tensorir.interp.distinct_cells import DistinctCells
from tensorir.interp.frame import Action, Frame, KernelLike
from tensorir.interp.lanes import Lanes
from tensorir.ir.build import as_int
from tensorir.ir.lanes import lanes_of
from tensorir.ir.structure import among
from tensorir.ir.tree import Alloc, Binary, Const, Expr, If, Kind, Load, Loop, Prefetch, Ramp, Seq, Stmt, Store, Var
from tensorir.ir.visit import find, has

_T = TypeVar("_T")
AT_ONCE = 1 << 16
"""Lanes of loops around several statements, and terms of sums, that are computed together: more save no time."""

PRIVATE_CELLS = 1 << 22
"""Elements of all lanes' own memory that a loop may ask for to run at once."""


@dataclass(frozen=True, eq=False)
class Lift:
    """A loop nest whose iterations the interpreter runs at once, as additional lanes.

    spread: loops with independent iterations around ``body``
    summed: loops around one store that add ``term`` to an element, in any order, where ``guards`` hold
    """

    spread: list[Loop]
    body: Stmt
    summed: tuple[Loop, ...] = ()
    guards: tuple[Expr, ...] = ()
    term: Expr | None = None

    @property
    def times(self) -> int:
        """Number of lanes while ``body`` runs, relative to that outside the nest."""
        return math.prod(as_int(x.extent) for x in self.spread)


class Lifts:
    """Finder of a kernel's loops that may run at once.

    exact: function from a dtype to True if its sums do not depend on order
    """

    def __init__(self, k: KernelLike, exact: Callable[[str], bool]) -> None:
        bx, by, bz = k.block
        self._exact, self._arith = exact, Arith()
        alone = bx * by * bz == 1 and not any(x.kind is Kind.CLUSTER for x in k.axes)
        self._apart = _apart(k, alone)  # type: ignore[arg-type]  # protocols do not say that kernels can be hashed

    def of(self, s: Loop, lanes: int) -> Lift | None:
        """Plan (``Lift``) for running at once the iterations of the loop ``s`` and of loops directly inside it, up to
        the first one that must run in order; ``lanes``: number of lanes outside. None: run ``s`` in order.
        """
        most = AT_ONCE // max(1, lanes)
        if not most:
            return None
        found = _one_store(s, self._arith, self._exact, most)
        if found is not None:
            return found
        nest: list[Loop] = []
        at: Stmt = s
        while isinstance(at, Loop) and isinstance(at.extent, Const) and 0 < as_int(at.extent) <= most:
            if not self._apart(at):
                break
            nest.append(at)
            most //= as_int(at.extent)
            at = at.body
        lift = Lift(nest, at)
        if not nest or lift.times == 1:
            return None
        own = sum(math.prod(a.buffer.dims) * a.buffer.lanes for a in find(at, Alloc))
        return lift if own * lanes * lift.times <= PRIVATE_CELLS else None


@functools.lru_cache(maxsize=16)
def _apart(k: KernelLike, alone: bool) -> DistinctCells:
    """Test of a kernel's loops for iterations with distinct elements, made once per kernel.

    alone: True if blocks have one thread, whose shared memory is private
    """
    return DistinctCells(k.axes, k.body, alone)


def _one_store(s: Loop, arith: Arith, exact: Callable[[str], bool], most: int) -> Lift | None:
    """Plan (``Lift``) for running all iterations of a nest with a single store (and loops, guards, prefetches) at once;
    None for other nests, or if different iterations may store to one element other than as terms of its sum.

    most: largest number of iterations of a nest that sums
    Elements are distinct if loop (and vector) strides form a mixed radix; the value may read the same buffer only at
    the stored element.
    """
    perfect = _perfect(s)
    if perfect is None:
        return None
    nest, guards, store = perfect
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
        body: Stmt = store
        for cond in reversed(guards):
            body = If(cond, body)
        return Lift(spread, body)
    value, times = store.value, math.prod(as_int(x.extent) for x in nest)
    if not (isinstance(value, Binary) and value.op == "+" and len(own) == 1 and among(own[0], (value.a, value.b))):
        return None
    if store.adds or store.later or not exact(value.dtype) or not 0 < times <= most:
        return None
    return Lift(spread, store, tuple(summed), guards, value.b if own[0] is value.a else value.a)


def _perfect(s: Stmt) -> tuple[list[Loop], tuple[Expr, ...], Store] | None:
    """(loops, guards, store) of a perfect nest: constant extents, guards without loads, one store; None for others.

    Loops outermost first; prefetches are ignored.
    """
    nest: list[Loop] = []
    guards: list[Expr] = []
    while not isinstance(s, Store):
        if isinstance(s, Loop) and isinstance(s.extent, Const):
            nest.append(s)
            s = s.body
        elif isinstance(s, If) and not has(s.cond, Load):
            guards.append(s.cond)
            s = s.then
        elif isinstance(s, Seq) and len(rest := [x for x in s.stmts if not isinstance(x, Prefetch)]) == 1:
            s = rest[0]
        else:
            return None
    return nest, tuple(guards), s


def at_once(machine: Lanes, lift: Lift) -> Action:
    """Closure that executes the nest with all iterations as lanes; each element's terms are summed and added once."""
    term, store = lift.term, lift.body
    if term is None:
        body, widened = _widened(machine, lift.spread, lambda: machine.stmt(lift.body), has(lift.body, Alloc))
        return lambda f: body(widened(f))
    assert isinstance(store, Store)
    kind, times = term.dtype, math.prod(as_int(x.extent) for x in lift.summed)
    total, vector, sum_of = Var("total", kind), lanes_of(store.value) > 1, machine.n.sum
    own = next(x for x in find(store.value, Load) if x.buffer is store.buffer)
    added = replace(store, value=Binary("+", own, total, kind))
    (terms, conds), wide = _widened(
        machine, [*lift.spread, *lift.summed], lambda: (machine.expr(term), [machine.expr(g) for g in lift.guards])
    )
    add, narrow = _widened(machine, lift.spread, lambda: machine.stmt(added))

    def run(f: Frame) -> None:
        every, here = wide(f), narrow(f)
        part, which = _guarded(every, conds)
        if not len(part.lane):
            return
        x = np.asarray(terms(part))
        if x.ndim == 0:
            x = np.broadcast_to(x, (len(part.lane), 1) if vector else part.lane.shape)
        if which is not None:
            some, x = x, np.zeros((len(every.lane), *x.shape[1:]), x.dtype)
            x[which] = some
            meant = np.zeros(len(every.lane), bool)
            meant[which] = True
        x = sum_of(x.reshape(len(here.lane), times, *x.shape[1:]), (1,), kind)
        if which is not None:  # cells to which no term is added are not touched
            with_terms = np.asarray(meant.reshape(len(here.lane), times).any(axis=1))
            here, x = here.only(with_terms), x[with_terms]
        here.env[total] = x
        add(here)

    return run


def _guarded(f: Frame, conds: list[Callable[[Frame], object]]) -> tuple[Frame, np.ndarray | None]:
    """(frame of the lanes in which all conditions hold, their positions in ``f`` or None for all lanes)."""
    which: np.ndarray | None = None
    for cond in conds:
        holds: np.ndarray = np.broadcast_to(np.asarray(cond(f), bool), f.lane.shape)
        if not holds.all():
            which = np.flatnonzero(holds) if which is None else which[holds]
            f = f.only(holds)
    return f, which


def _widened(
    machine: Lanes, nest: list[Loop], compiled: Callable[[], _T], private: bool = False
) -> tuple[_T, Callable[[Frame], Frame]]:
    """(result of ``compiled()``, compiled for all iterations of a nest at once; function from a frame to the frame with
    these lanes).

    private: True if memory allocated inside is separate for each lane
    """
    extents = [as_int(x.extent) for x in nest]
    times = math.prod(extents)
    grid = {x.var: g.ravel() for x, g in zip(nest, np.indices(extents), strict=True)}
    with machine.widened(set(grid), times, private) as known:
        made = compiled()
    key = object()

    def widened(f: Frame) -> Frame:
        wide = f.cache.get(key)
        if wide is None:
            wide = f.cache[key] = f.repeated(times, grid, private)
        _refresh(wide, f, times, known, grid)
        return wide

    return made, widened


def _refresh(wide: Frame, f: Frame, times: int, known: set[Var], inner: Mapping[Var, object]) -> None:
    """Update the cached frame ``wide``, ``times`` lanes for each of ``f``, to the values that variables have in ``f``
    now.

    known: variables whose values never change;  inner: loop variables of the nest
    """
    for v, x in f.env.items():
        if v not in inner and (v not in known or v not in wide.env):
            wide.env[v] = np.repeat(x, times) if isinstance(x, np.ndarray) and x.ndim else x
