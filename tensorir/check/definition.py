"""Compares two tensor declarations at sampled elements: the user's, and a template's or algorithm's replacement.

Both are evaluated in the prime field, where rounding, summation order and algorithms such as Winograd's make no
difference; input elements are drawn at random when first read. Samples are elements likely to reveal a difference: at
corners and edges of the result, around multiples of the divisors in its indices, and inside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.expr.program import calls_of, computes_of
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.doubles import Doubles, apart
from tensorir.interp.exponentials import field_of
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import (
    SLAB_ELEMENTS,
    Evaluator,
    arguments_of,
    constant_values,
    random_arguments,
    scanned,
    scattered,
    value_of,
)  # fmt: skip
from tensorir.interp.whole import INPUT_SIZES, Whole, asks_order, joins_by_order
from tensorir.ir.node import Node
from tensorir.ir.structure import place
from tensorir.ir.tree import Binary, Buffer, Const, Expr, Placed, Prefix, Reduce, Select, Var
from tensorir.ir.visit import find

TERMS_OF_COMPARISON = 6_000_000
"""Terms to compute for a comparison, of both sides together: about a second. A batch that was begun is finished."""
ELEMENTS_AT_LEAST = 4
"""Elements that are compared whatever they cost: one of each sort."""
REMEMBERED_COMPARISONS = 1024
"""Comparisons that a process remembers."""
MOST_AXES = 6
"""Of a result all of whose corners are compared; beyond it as many are drawn."""
INNER_ELEMENTS = 24

Key = tuple[Any, ...]


_told: dict[tuple[Key, Key, float | None], str] = {}


def differs_as_class(
    definition: Sequence[Tensor], outputs: Sequence[Tensor], most: float | None = None, key: Key | None = None
) -> str:
    """Describe in words how ``outputs`` differ from ``definition``, as ``differs`` does; "" if no difference was found.
    Results are cached in this process by the structure of both declarations, names ignored.

    Configurations of a template usually change loops only, so that they share an entry.

    most: allowed error relative to the largest result, for ``outputs`` that approximate
    key:  ``key_of(definition)``; None: computed here
    """
    wanted = (key_of(definition) if key is None else key, key_of(outputs), most)
    if wanted not in _told:
        while len(_told) >= REMEMBERED_COMPARISONS:
            del _told[next(iter(_told))]
        _told[wanted] = differs(definition, outputs, most=most)
    return _told[wanted]


def differs(definition: Sequence[Tensor], outputs: Sequence[Tensor], seed: int = 0, most: float | None = None) -> str:
    """Describe in words how ``outputs`` differ from ``definition`` at sampled elements; "" if no difference was found.

    Values are computed in a prime field first; in doubles if values differ there and a function, rounding or the order
    of numbers may be the reason.

    most: allowed error relative to the largest result, for ``outputs`` that approximate; None: none are approximate
    """
    if why := _unlike(definition, outputs):
        return why
    calls = calls_of([*definition, *outputs])
    why = _compared(definition, outputs, field_of([*definition, *outputs]), seed, None)
    if not why:
        return ""
    every = [*definition, *outputs]
    for numbers in map(Whole, INPUT_SIZES if asks_order(every) else ()):
        found = _compared(definition, outputs, numbers, seed, None)
        if numbers.exact_so_far:
            return found or _compared(definition, outputs, Whole(INPUT_SIZES[-1]), seed + 1, None)
    if most is None and not calls and not joins_by_order(every):
        return why
    signs = (
        (False, True) if calls else (False,)
    )  # logarithms and roots of negative numbers are NaN, which equals itself
    return next(filter(None, (_compared(definition, outputs, Doubles(p), seed, most) for p in signs)), "")


def _unlike(definition: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Describe arguments or results of different type or extent, "" if none; axes of extent 1 are ignored."""
    for what, old, new in (
        ("arguments", arguments_of(definition), arguments_of(outputs)),
        ("results", list(definition), list(outputs)),
    ):
        told = [", ".join(f"{a.name}: {a.dtype}{list(_shape(a))}" for a in side) for side in (old, new)]
        if [(a.dtype, _long(a)) for a in old] != [(a.dtype, _long(a)) for a in new]:
            return f"its {what} are ({told[1]}), those of the definition ({told[0]})"
    return ""


def _shape(a: Tensor | Var) -> tuple[int, ...]:
    return () if isinstance(a, Var) else a.shape


def _long(a: Tensor | Var) -> tuple[int, ...]:
    return tuple(n for n in _shape(a) if n != 1)


def _compared(
    definition: Sequence[Tensor], outputs: Sequence[Tensor], numbers: Numbers, seed: int, most: float | None
) -> str:
    pools = argument_pools(definition, numbers, seed)
    sides = Samples(definition, pools, numbers), Samples(outputs, pools, numbers)
    for n, (old, new) in enumerate(zip(definition, outputs, strict=True)):
        spare = TERMS_OF_COMPARISON * (n + 1) // len(definition)
        marks = divided_by((old, new))
        for batch in _batches(_points(old.shape, marks, seed)):
            want, got = sides[0].at(old, batch), sides[1].at(new, _in_shape(batch, old.shape, new.shape))
            wrong = apart(got, want, most) if type(numbers) is Doubles else numbers.differ(got, want, old.dtype)
            if wrong.any():
                at = batch[int(np.argmax(wrong))].tolist()
                some = f"{int(wrong.sum())} of {len(batch)} sampled elements differ"
                return f"its {new.name}{at} is not that of the definition ({some})"
            if sides[0].work + sides[1].work > spare:
                break
    return ""


def _in_shape(points: Points, old: tuple[int, ...], new: tuple[int, ...]) -> Points:
    """Convert element indices from shape ``old`` to ``new``, which differ in axes of extent 1."""
    if old == new:
        return points
    flat = np.ravel_multi_index(tuple(points.T), old) if old else np.zeros(len(points), np.int64)
    made = np.unravel_index(flat, new) if new else ()
    return np.stack([*made], axis=1) if made else np.zeros((len(points), 0), np.int64)


def divided_by(outputs: Sequence[Tensor]) -> set[int]:
    """Absolute values of the integer constants in index arithmetic (divisors, comparison bounds, summands): tiles and
    padding end next to multiples of them.
    """
    found: set[int] = set()
    for op in computes_of(outputs):
        for body in op.bodies:
            found |= {abs(int(c.value)) for e in find(body, Binary) if e.dtype in ("index", "bool")
                      for c in (e.a, e.b) if isinstance(c, Const) and c.dtype == "index"}  # fmt: skip
    return found


def _points(shape: tuple[int, ...], marks: set[int], seed: int) -> Points:
    """Indices of elements to compare, one per row, without repetition, alternating: corners of ``shape``; ends of each
    axis and indices ``m - 1``, ``m``, ``m + 1`` for each of ``marks``; random elements.
    """
    if not shape or 0 in shape:
        return np.zeros((int(not shape), len(shape)), np.int64)
    rng = np.random.default_rng(seed)
    sides = [sorted({0, n - 1}) for n in shape]
    corners = [*itertools.product(*sides)] if len(shape) <= MOST_AXES else []
    corners += [tuple(int(rng.choice(side)) for side in sides) for _ in range(0 if corners else 1 << MOST_AXES)]
    corners = [corners[0], corners[-1], *(corners[1 + int(n)] for n in rng.permutation(max(0, len(corners) - 2)))]
    columns, ends = [], []
    for n in shape:
        near = {i for m in marks for i in (m - 1, m, m + 1) if 0 <= i < n} | {0, 1, n - 2, n - 1} & set(range(n))
        column = np.resize(rng.permutation(sorted(near)), min(len(near), INNER_ELEMENTS))
        columns.append(np.concatenate([column, rng.integers(0, n, INNER_ELEMENTS)])[:INNER_ELEMENTS])
    for d, n in enumerate(shape):
        drawn = [[int(rng.integers(0, m)) for m in shape] for _ in range(2)]
        ends += [(*one[:d], i, *one[d + 1 :]) for one, i in zip(drawn, (0, n - 1), strict=True)]
    marked = [tuple(int(c[j]) for c in columns) for j in range(INNER_ELEMENTS)]
    drawn = [[int(rng.integers(0, n)) for n in shape] for _ in range(INNER_ELEMENTS)]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(corners, ends, marked, map(tuple, drawn)))
    return np.array(list(dict.fromkeys(row for row in in_turn if row is not None)), np.int64)


def _batches(points: Points) -> Iterator[Points]:
    """Split ``points`` into batches of doubling size, small ones first, as one element may be expensive."""
    first, size = 0, ELEMENTS_AT_LEAST
    while first < len(points):
        yield points[first : first + size]
        first, size = first + size, 2 * size


def key_of(outputs: Sequence[Tensor]) -> Key:
    """Return a hashable form of declarations without their names: equal keys mean equal results for equal arguments."""
    number: dict[Any, int] = {}
    table: dict[Any, int] = {}  # what nodes are made of, said with the numbers of other entries

    def entry(made: Any) -> int:
        return table.setdefault(made, len(table))

    def said(x: Any) -> Any:
        if type(x) is tuple:
            return tuple([said(y) for y in x])
        if not isinstance(x, Node):
            return x
        if x not in number:
            made = [len(table), _given(x)] if isinstance(x, Var | Buffer) else [said(getattr(x, f)) for f in x.FIELDS]
            number[x] = entry((type(x), *made))
        return number[x]

    for a in arguments_of(outputs):
        said(a if isinstance(a, Var) else a.buffer)
    for op in computes_of(outputs):
        entry((said(op.axes), op.extents, said(op.bodies), tuple([said(t.buffer) for t in op.outputs])))
    return (*table, tuple([said(t.buffer) for t in outputs]))


def _given(x: Var | Buffer) -> Any:
    """Contents of a node without its name: extent of a variable; (dtype, dims, data) of an array."""
    return x.extent if isinstance(x, Var) else (x.dtype, x.dims, x.data)


# --- elements that are drawn when they are read


POOL_OF_VALUES = 65_537
"""Different values that the elements of an argument have."""

Points = NDArray[np.int64]
"""A row of indices for each element."""


def argument_pools(outputs: Sequence[Tensor], numbers: Numbers, seed: int) -> list[np.ndarray]:
    """Return one array per argument, in order of declaration: values that its elements are drawn from; for a scalar,
    its value.
    """
    return random_arguments(outputs, seed, numbers, count=POOL_OF_VALUES)


class Samples:
    """Lazy evaluation of ``outputs``: ``Samples(outputs, pools, numbers).at(t, points)`` computes only the elements of
    tensor ``t`` at ``points``.

    pools: values of each argument's elements, in order of declaration (``argument_pools``)
    work:  number of reduction terms computed so far
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
        """Elements of ``t``, shape ``(len(points),)``, at ``points``: one row of indices per element."""
        return self.read(t.buffer, [points[:, d] for d in range(points.shape[1])], len(points))

    def read(self, b: Buffer, index: Sequence[np.ndarray], count: int) -> np.ndarray:
        """Return ``count`` elements of buffer ``b``; ``index`` has an array of ``count`` indices per dimension, clipped
        to the shape.
        """
        flat = np.zeros(count, np.int64)
        for i, n in zip(index, b.dims, strict=True):
            flat = flat * n + np.clip(i, 0, max(n - 1, 0))
        if b in self._pools:
            n, pool = self._pools[b]
            mixed = (flat.astype(np.uint64) + np.uint64(n << 40)) * np.uint64(0x9E3779B97F4A7C15)
            return pool[((mixed ^ (mixed >> np.uint64(29))) % np.uint64(POOL_OF_VALUES)).astype(np.int64)]
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
        step = max(1, SLAB_ELEMENTS // max(terms, 1))
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
        """Elements of the scan ``body`` at ``flat`` (row-major) indices; each row with a requested element is scanned
        whole.
        """
        along = place(part.at, op.axes)
        places = list(np.unravel_index(flat, op.extents))
        at, extent = places.pop(along), op.extents[along]
        sides = [n for d, n in enumerate(op.extents) if d != along]
        row = np.ravel_multi_index(tuple(places), sides) if sides else np.zeros(len(flat), np.int64)
        wanted, back = np.unique(row, return_inverse=True)
        out = np.zeros(len(flat), self.numbers.storage(body.dtype))
        step = max(1, SLAB_ELEMENTS // max(extent, 1))
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
    """Expression evaluator whose loads compute their elements through ``Samples``."""

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
