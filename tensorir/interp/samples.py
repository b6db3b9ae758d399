"""The meaning of declarations at single elements: what these need is computed, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import (
    CHUNK,
    Evaluator,
    arguments_of,
    constant_values,
    random_arguments,
    scanned,
    scattered,
    value_of,
)  # fmt: skip
from tensorir.ir.structure import place
from tensorir.ir.tree import Buffer, Expr, Placed, Prefix, Reduce, Select, Var

POOL = 65_537
"""Different values that the elements of an argument have."""

Points = NDArray[np.int64]
"""A row of indices for each element."""


def argument_pools(outputs: Sequence[Tensor], numbers: Numbers, seed: int) -> list[np.ndarray]:
    """Return the values that elements of each argument have, in order of declaration; the value itself of a scalar."""
    return random_arguments(outputs, seed, numbers, count=POOL)


class Samples:
    """``Samples(outputs, pools, numbers).at(t, points)``: elements of the tensors that ``outputs`` depend on.

    pools: for each argument in order of declaration the values that its elements have (``argument_pools``)
    work:  terms that have been computed so far
    """

    def __init__(self, outputs: Sequence[Tensor], pools: Sequence[np.ndarray], numbers: Numbers) -> None:
        self.numbers, self.work = numbers, 0
        self._pools: dict[Buffer, tuple[int, NDArray[Any]]] = {}
        self._scalars: dict[Any, Any] = {}
        self._whole: dict[Buffer, NDArray[Any]] = {}
        for n, (a, pool) in enumerate(zip(arguments_of(outputs), pools, strict=True)):
            if isinstance(a, Var):
                self._scalars[a] = numbers.inputs(pool, a.dtype)
            else:
                self._pools[a.buffer] = n, numbers.inputs(pool, a.dtype)

    def at(self, t: Tensor, points: Points) -> np.ndarray:
        """Return one element of ``t`` for each row of ``points``."""
        return self.read(t.buffer, [points[:, d] for d in range(points.shape[1])], len(points))

    def read(self, b: Buffer, index: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Return ``count`` elements of a buffer, an index for each dimension."""
        flat = np.zeros(count, np.int64)
        for i, n in zip(index, b.dims, strict=True):
            flat = flat * n + np.clip(i, 0, max(n - 1, 0))
        if b in self._pools:
            n, pool = self._pools[b]
            mixed = (flat.astype(np.uint64) + np.uint64(n << 40)) * np.uint64(0x9E3779B97F4A7C15)
            return pool[((mixed ^ (mixed >> np.uint64(29))) % np.uint64(POOL)).astype(np.int64)]
        if b in self._whole:
            return self._whole[b][flat]
        op = b.origin.op
        if op is None:
            self._whole[b] = constant_values(b, self.numbers).reshape(-1)
            return self._whole[b][flat]
        size = math.prod(b.dims)
        if size <= count:
            self._whole[b] = self._computed(op, b, np.arange(size))
            return self._whole[b][flat]
        if any(isinstance(body, Reduce) for body in op.bodies):
            wanted, back = np.unique(flat, return_inverse=True)
            return self._computed(op, b, wanted)[back]
        return self._computed(op, b, flat)

    def _computed(self, op: Compute, b: Buffer, flat: NDArray[np.int64]) -> NDArray[Any]:
        body = op.bodies[[t.buffer for t in op.outputs].index(b)]
        if isinstance(body, Reduce) and isinstance(body.part, Prefix):
            return self._scanned(op, body, body.part, flat)
        if isinstance(body, Reduce) and isinstance(body.part, Placed):
            if b not in self._whole:
                domain = [int(v.extent or 0) for v in body.axes]
                self.work += math.prod(domain) + math.prod(op.extents)
                grid: dict[Any, Any] = dict(zip(op.axes, np.ix_(*map(np.arange, op.extents)), strict=True))
                grid |= dict(zip(body.axes, np.ix_(*map(np.arange, domain)), strict=True))
                self._whole[b] = scattered(body, _Lazy(grid, self._scalars, self), op.extents).reshape(-1)
            return self._whole[b][flat]
        reduces = body.axes if isinstance(body, Reduce) else ()
        terms = math.prod(v.extent for v in reduces)
        step = max(1, CHUNK // max(terms, 1))
        out = np.zeros(len(flat), self.numbers.storage(body.dtype))
        for first in range(0, len(flat), step):
            some = flat[first : first + step]
            shape = (len(some), *(v.extent for v in reduces))
            self.work += math.prod(shape)
            axes = np.unravel_index(some, op.extents) if op.extents else ()
            env: dict[Any, Any] = {v: i.reshape(-1, *(1 for _ in reduces)) for v, i in zip(op.axes, axes, strict=True)}
            for d, v in enumerate(reduces):
                env[v] = np.arange(v.extent).reshape([-1 if d + 1 == n else 1 for n in range(len(shape))])
            out[first : first + step] = np.broadcast_to(
                value_of(body, _Lazy(env, self._scalars, self), shape, 1), (len(some),)
            )
        return out

    def _scanned(self, op: Compute, body: Reduce, part: Prefix, flat: NDArray[np.int64]) -> NDArray[Any]:
        """Elements of a scan: whole rows along its axis, of those that have any of them."""
        along = place(part.at, op.axes)
        places = list(np.unravel_index(flat, op.extents))
        at, extent = places.pop(along), op.extents[along]
        sides = [n for d, n in enumerate(op.extents) if d != along]
        row = np.ravel_multi_index(tuple(places), sides) if sides else np.zeros(len(flat), np.int64)
        wanted, back = np.unique(row, return_inverse=True)
        out = np.zeros(len(flat), self.numbers.storage(body.dtype))
        step = max(1, CHUNK // max(extent, 1))
        for first in range(0, len(wanted), step):
            some = wanted[first : first + step]
            self.work += len(some) * extent
            others = [v for v in op.axes if v is not part.at]
            index = np.unravel_index(some, sides) if sides else ()
            env: dict[Any, Any] = {v: i.reshape(-1, 1) for v, i in zip(others, index, strict=True)}
            env[body.axes[0]] = np.arange(extent).reshape(1, -1)
            rows = scanned(body, _Lazy(env, self._scalars, self), (len(some), extent))
            mine = (back >= first) & (back < first + step)
            out[mine] = rows[back[mine] - first, at[mine]]
        return out


class _Lazy(Evaluator):
    """Reads what a ``Samples`` makes."""

    def __init__(self, env: Mapping[Var, Any], scalars: Mapping[object, Any], samples: Samples) -> None:
        super().__init__(env, scalars, samples.numbers)
        self.samples = samples

    def _of(self, e: Expr) -> Any:
        if isinstance(e, Select):  # often decided for all points alike, and the other side may cost much
            cond = np.asarray(self(e.cond))
            if cond.all() or not cond.any():
                return np.asarray(self(e.a if cond.all() else e.b)).astype(self.n.storage(e.dtype), copy=False)
        return super()._of(e)

    def read(self, b: Buffer, index: list[Any]) -> Any:
        if not index:
            return self.samples.read(b, [], 1).reshape(())
        spread = np.broadcast_arrays(*index)
        found = self.samples.read(b, [i.reshape(-1) for i in spread], spread[0].size)
        return found.reshape(spread[0].shape)
