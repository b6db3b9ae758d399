"""Test extents that differ from axis to axis, so that a kernel confusing two axes gives wrong results.

With equal extents a swapped index, guard, grid or argument goes unseen, as with equal numbers of blocks. Both orders of
extents are needed: a guard with the wrong, longer extent fails only if it admits extra iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_expr
from tensorir.ir.dims import at, dims_in
from tensorir.ir.tree import Expr, Load, PadLoad, Var
from tensorir.ir.visit import find

PRIME_DIMS = (7, 5, 3, 11, 13, 17)
"""Values of dims that end no axis: the first one's, the second one's, and so on."""


def independent(outputs: Sequence[Tensor], axes: Iterable[Var]) -> list[list[Var]]:
    """Group axes that must have the same extent: those that index one dimension of a tensor, or whose extents use one
    symbolic dim (the columns of a softmax and its sums' axis). Groups of output axes come first.
    """
    parent: dict[object, object] = {}

    def root(x: object) -> object:
        while (up := parent.setdefault(x, x)) is not x:
            x = up
        return x

    for op in computes_of(outputs):
        for d, (v, n) in enumerate(zip(op.axes, op.extents, strict=True)):
            for same in (*((t.buffer, d) for t in op.outputs), *dims_in(n)):
                parent[root(same)] = root(v)
        for body in op.bodies:
            for v in getattr(body, "axes", ()):
                for dim in dims_in(v.extent):
                    parent[root(dim)] = root(v)
            for load in (x for x in find(body, Expr) if isinstance(x, Load | PadLoad)):
                for d, i in enumerate(load.index):
                    if isinstance(i, Var) and i.bounds is None:
                        parent[root((load.buffer, d))] = root(i)
    groups: dict[object, list[Var]] = {}
    for v in sorted(axes, key=lambda v: v.extent is not None):
        groups.setdefault(root(v), []).append(v)
    return list(groups.values())


def ascending(groups: Sequence[Sequence[Var]], periods: Mapping[Var, int], work: int) -> dict[Var, int]:
    """Return {axis: extent}, increasing from group to group, in number of elements and of tiles.

    groups:  axes with a common extent (``independent``);  periods: largest tile size of each axis
    work:    most iterations; beyond it, extents of untiled reductions shrink first, then those of all untiled axes,
             even if that is not enough
    """
    for level in range(3):
        out, last, few = dict[Var, int](), 0, 1
        for group in groups:
            p = max(periods[v] for v in group)
            short = p == 1 and level > (group[0].extent is None)
            n = few + 1 if short else -(-last // p) * p + 1 if last else p // 2 + 1 + (p == 1)
            while n in out.values():
                n += 1
            few, last = (n, last) if short else (few, n)
            out |= dict.fromkeys(group, n)
        if math.prod(out[g[0]] for g in groups) <= work:
            break
    return out


def kept_apart(wanted: Mapping[Var, int], cut: Mapping[Var, int]) -> dict[Var, int]:
    """Return the ``cut`` extents, increased where axes with different ``wanted`` extents would have the same one."""
    out: dict[Var, int] = {}
    for v in sorted(wanted, key=lambda v: wanted[v]):
        n = cut[v]
        while any(out[u] == n and wanted[u] != wanted[v] for u in out):
            n += 1
        out[v] = n
    return {v: out[v] for v in cut}


def kept_in_order(wanted: Mapping[Var, int], cut: Mapping[Var, int]) -> dict[Var, int]:
    """Return the ``cut`` extents, increased where necessary to be in the same order as the ``wanted`` ones."""
    out, last = dict[Var, int](), (0, 0)
    for v in sorted(wanted, key=lambda v: wanted[v]):
        last = wanted[v], max(cut[v], last[1] + (wanted[v] != last[0]))
        out[v] = last[1]
    return out


def values_apart(dims: Sequence[Var], wanted: Mapping[Var, int]) -> dict[Var, int]:
    """Return {dim: value in its range nearest to ``wanted[dim]``}, different for different ``wanted`` where ranges
    allow it.
    """
    out: dict[Var, int] = {}
    for d in sorted(dims, key=lambda d: wanted[d]):
        low, high = d.bounds or (1, 1)
        n = min(max(wanted[d], low), high)
        if any(out[e] == n and wanted[e] != wanted[d] for e in out):
            near = (*range(n + 1, n + 1 + len(dims)), *range(n - 1, n - 1 - len(dims), -1))
            n = next((k for k in near if low <= k <= high and k not in out.values()), n)
        out[d] = n
    return {d: out[d] for d in dims}


def reaching(extent: Expr, dim: Var, wanted: int) -> int:
    """Return the least value of ``dim``, within its declared range, with ``extent(dim) >= wanted``; the top of the
    range if none reaches it. ``extent`` must not decrease with ``dim``.
    """
    low, high = dim.bounds or (1, 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(as_expr(extent), {dim: middle}) >= wanted else (middle + 1, high)
    return low
