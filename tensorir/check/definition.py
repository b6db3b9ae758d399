"""Whether a declaration that a template made itself means what the workload declares: compared at sampled elements.

Both are evaluated in the prime field, where rounding, the order of sums and algorithms such as Winograd's make no
difference, with inputs whose elements are drawn when they are read. Elements are sampled where declarations that were
meant to be equal differ: at corners and edges of the result, next to the numbers that their indices are divided by,
and inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorir.expr.program import calls_of, computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.doubles import Doubles, apart
from tensorir.interp.exponentials import field_of
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of
from tensorir.interp.samples import Points, Samples, argument_pools
from tensorir.interp.whole import SIZES, Whole, asks_order, joins_by_order
from tensorir.ir.node import Node
from tensorir.ir.tree import Binary, Buffer, Const, Var
from tensorir.ir.visit import find

WORK = 6_000_000
"""Terms to compute for a comparison, of both sides together: about a second. A batch that was begun is finished."""
FIRST = 4
"""Elements that are compared whatever they cost: one of each sort."""
KEPT = 1024
"""Comparisons that a process remembers."""
MOST_AXES = 6
"""Of a result all of whose corners are compared; beyond it as many are drawn."""
INSIDE = 24

Key = tuple[Any, ...]


_told: dict[tuple[Key, Key, float | None], str] = {}


def differs_as_class(
    definition: Sequence[Tensor], outputs: Sequence[Tensor], most: float | None = None, key: Key | None = None
) -> str:
    """``differs``, once in this process for all declarations that say the same.

    A class is what ``key_of`` tells apart: most knobs of a template decide about loops, and nothing that it declares.

    key: ``key_of(definition)``, where it is known
    """
    wanted = (key_of(definition) if key is None else key, key_of(outputs), most)
    if wanted not in _told:
        while len(_told) >= KEPT:
            del _told[next(iter(_told))]
        _told[wanted] = differs(definition, outputs, most=most)
    return _told[wanted]


def differs(definition: Sequence[Tensor], outputs: Sequence[Tensor], seed: int = 0, most: float | None = None) -> str:
    """Return how ``outputs`` differ from ``definition``, in words; empty where no difference was found.

    most: how far results may be off relative to the largest one, of what computes in another way than declared: it is
          compared in doubles where it is another one in the field, as is what calls functions that are opaque there
    """
    if why := _unlike(definition, outputs):
        return why
    calls = calls_of([*definition, *outputs])
    why = _compared(definition, outputs, field_of([*definition, *outputs]), seed, None)
    if not why:
        return ""
    every = [*definition, *outputs]
    for numbers in map(Whole, SIZES if asks_order(every) else ()):
        found = _compared(definition, outputs, numbers, seed, None)
        if numbers.exact_so_far:
            return found or _compared(definition, outputs, Whole(SIZES[-1]), seed + 1, None)
    if most is None and not calls and not joins_by_order(every):
        return why
    signs = (
        (False, True) if calls else (False,)
    )  # logarithms and roots of negative numbers are NaN, which equals itself
    return next(filter(None, (_compared(definition, outputs, Doubles(p), seed, most) for p in signs)), "")


def _unlike(definition: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Arguments or results of other types or extents; axes of extent 1 more or less are the same array."""
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
        spare = WORK * (n + 1) // len(definition)
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
    """Points of an array as points of one that has axes of extent 1 elsewhere."""
    if old == new:
        return points
    flat = np.ravel_multi_index(tuple(points.T), old) if old else np.zeros(len(points), np.int64)
    made = np.unravel_index(flat, new) if new else ()
    return np.stack([*made], axis=1) if made else np.zeros((len(points), 0), np.int64)


def divided_by(outputs: Sequence[Tensor]) -> set[int]:
    """Return the numbers by which indices are divided, with which they are compared, or that are added to them: next to
    those, tiles and padding end.
    """
    found: set[int] = set()
    for op in computes_of(outputs):
        for body in op.bodies:
            found |= {abs(int(c.value)) for e in find(body, Binary) if e.dtype in ("index", "bool")
                      for c in (e.a, e.b) if isinstance(c, Const) and c.dtype == "index"}  # fmt: skip
    return found


def _points(shape: tuple[int, ...], marks: set[int], seed: int) -> Points:
    """Elements to compare, each once, cycling through all sorts: corners; along each axis its ends, and what is next to
    ``marks``, with the other indices drawn; any.
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
        column = np.resize(rng.permutation(sorted(near)), min(len(near), INSIDE))
        columns.append(np.concatenate([column, rng.integers(0, n, INSIDE)])[:INSIDE])
    for d, n in enumerate(shape):
        drawn = [[int(rng.integers(0, m)) for m in shape] for _ in range(2)]
        ends += [(*one[:d], i, *one[d + 1 :]) for one, i in zip(drawn, (0, n - 1), strict=True)]
    marked = [tuple(int(c[j]) for c in columns) for j in range(INSIDE)]
    drawn = [[int(rng.integers(0, n)) for n in shape] for _ in range(INSIDE)]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(corners, ends, marked, map(tuple, drawn)))
    return np.array(list(dict.fromkeys(row for row in in_turn if row is not None)), np.int64)


def _batches(points: Points) -> Iterator[Points]:
    """A few elements, in case each costs much, then twice as many each time."""
    first, size = 0, FIRST
    while first < len(points):
        yield points[first : first + size]
        first, size = first + size, 2 * size


def key_of(outputs: Sequence[Tensor]) -> Key:
    """Return what declarations say, apart from names: equal keys mean equal results for equal arguments."""
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
    """What is known of a variable or an array besides where it comes from."""
    return x.extent if isinstance(x, Var) else (x.dtype, x.dims, x.data)
