"""Extents that differ where a declaration lets them: kernels that take one for another are seen.

Extents that are equal at every shape that is tried hide a swapped index, guard, grid or argument. So do grids with as
many blocks along both, and one order alone: a guard with a longer extent is seen where it lets something through.
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
    """Return axes in groups, those of outputs first: the axes of one group go along the same dimension of some tensor,
    or end with the same dim, as the columns of a softmax and what its sums go over do.
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
    """Return extents that are longer, and have more tiles, from group to group; where that is too much ``work``, sums
    without tiles are short, and then all that has none.

    periods: the size of each axis' largest tile
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
    """Return extents that were ``cut``, a little longer where they were different and are not any more."""
    out: dict[Var, int] = {}
    for v in sorted(wanted, key=lambda v: wanted[v]):
        n = cut[v]
        while any(out[u] == n and wanted[u] != wanted[v] for u in out):
            n += 1
        out[v] = n
    return {v: out[v] for v in cut}


def kept_in_order(wanted: Mapping[Var, int], cut: Mapping[Var, int]) -> dict[Var, int]:
    """Return extents that were ``cut``, longer where they would not be in the order that is wanted of them."""
    out, last = dict[Var, int](), (0, 0)
    for v in sorted(wanted, key=lambda v: wanted[v]):
        last = wanted[v], max(cut[v], last[1] + (wanted[v] != last[0]))
        out[v] = last[1]
    return out


def values_apart(dims: Sequence[Var], wanted: Mapping[Var, int]) -> dict[Var, int]:
    """Return the values of dims that are nearest to what is wanted of them and in their ranges, different where other
    values are wanted and their ranges allow it.
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
    """Return the least value of a dim, in its range, for which an extent that depends on it alone is as long as wanted;
    extents are taken to grow with their dims.
    """
    low, high = dim.bounds or (1, 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(as_expr(extent), {dim: middle}) >= wanted else (middle + 1, high)
    return low
