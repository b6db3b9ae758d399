"""Blocks of a large grid that write nothing: where dims are small, those for the largest ones have nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tensorir.arith.affine import conjuncts
from tensorir.interp.frame import KernelLike
from tensorir.interp.lanes import Lanes
from tensorir.ir.tree import Alloc, Expr, If, Let, Load, Loop, Seq, Stmt, Store, Var
from tensorir.ir.visit import find

LOOKED_AT = 1 << 18
"""Threads whose guards are evaluated together."""
SAMPLES = 64
"""Blocks that write nothing and run all the same, besides those next to others."""

Guards = tuple[Expr, ...]


def worth_running(k: KernelLike, known: set[Var], lanes: Callable[[range], Lanes], count: int) -> np.ndarray:
    """Return the numbers of the blocks that may write to arrays; of those that do not, the ones next to them, the last
    one and some between: they read as well.

    known: scalars;  lanes: compiles expressions for some of the ``count`` blocks
    """
    every = np.arange(count)
    told = known | {x.var for x in k.axes}
    stores = _guards(k.body, (), told)
    if stores is None or any(not guards for guards in stores):
        return every
    busy = np.zeros(count, bool)
    threads = int(np.prod(k.block))
    step = max(1, LOOKED_AT // threads)
    for first in range(0, count, step):
        blocks = range(first, min(count, first + step))
        busy[blocks.start : blocks.stop] = _writes(lanes(blocks), stores).reshape(len(blocks), threads).any(axis=1)
    kept = busy.copy()
    kept[1:] |= busy[:-1]
    kept[:-1] |= busy[1:]
    kept[:: max(1, count // SAMPLES)] = True
    kept[-1] = True
    return every[kept]


def _guards(s: Stmt, around: Guards, told: set[Var]) -> list[Guards] | None:
    """For each store to an array of the kernel the conditions around it that blocks, threads and scalars decide; None
    where other statements may write as well.
    """
    found = list[Guards]()
    for stmt, guards in _plain(s, around, told):
        if stmt is None:
            return None
        found.append(guards)
    return list(dict.fromkeys(found))


def _plain(s: Stmt, around: Guards, told: set[Var]) -> Iterator[tuple[Store | None, Guards]]:
    match s:
        case Store():
            yield s, around
        case If():
            known = [c for c in conjuncts(s.cond) if not find(c, Load) and all(v in told for v in find(c, Var))]
            yield from _plain(s.then, (*around, *known), told)
        case Loop() | Let():
            yield from _plain(s.body, around, told)
        case Alloc():  # what it keeps to itself is nobody's
            yield from ((x, g) for x, g in _plain(s.body, around, told) if x is None or x.buffer is not s.buffer)
        case Seq():
            for x in s.stmts:
                yield from _plain(x, around, told)
        case _:
            yield None, around


def _writes(machine: Lanes, stores: list[Guards]) -> np.ndarray:
    """Which threads reach one of the stores."""
    frame = machine.frame
    found = np.zeros(len(frame.lane), bool)
    for guards in stores:
        reached = np.ones(len(frame.lane), bool)
        for c in guards:
            reached &= np.asarray(machine.expr(c)(frame), bool)
        found |= reached
    return found
