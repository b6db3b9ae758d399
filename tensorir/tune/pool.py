"""``Pool``: the legal configurations that strategies search, as rows of value indices with distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Config = dict[str, Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Features = Callable[[Config], Sequence[float]]
Expected = Callable[[Config], float]

HOPELESS_RATIO = 3.0
"""Ratio to the least expected seconds beyond which a row counts as hopeless and is tried last."""


class HasRows(Protocol):
    """Interface of a space of configurations: knobs' names, their values, and the legal rows as an array of value
    indices.
    """

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def values(self) -> tuple[tuple[Any, ...], ...]: ...

    @property
    def legal(self) -> np.ndarray: ...


@runtime_checkable
class Grows(HasRows, Protocol):
    """Interface of a space that may list only a sample of its rows (``sampled``), and more on demand."""

    @property
    def sampled(self) -> bool: ...

    def list_around(self, row: int, pairs: int) -> None: ...


class Pool:
    """All configurations that may be measured, one row of value indices each.

    A row number is the only name strategies have for a configuration, so nothing they propose can be
    illegal, rounded or outside the declared values. Where a space is too large to list, more of its rows may get
    numbers, after those that have one (``neighbours``).

    expected_s: a model of the seconds that a configuration takes, None without one
    features:   numbers derived from a configuration, for the search's model to learn from, None without any
    conditional: true if some knobs mean nothing in some configurations, so that distances say less
    """

    conditional = False

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Sequence[Any]],
        rows: npt.ArrayLike,
        expected_s: Expected | None = None,
        features: Features | None = None,
    ) -> None:
        self.expected_s, self.features = expected_s, features
        self.names = tuple(names)
        self.values = tuple(tuple(v) for v in values)
        self.rows: npt.NDArray[Any] = np.asarray(rows)
        self._listed = len(self.rows)
        self._space: Grows | None = None
        self._expected: Floats = np.zeros(0)
        self._slowness: Floats = np.zeros(0)

    @classmethod
    def of(cls, space: Pool | HasRows) -> Pool:
        """``space`` itself if it is a Pool, else a Pool of its legal configurations."""
        if isinstance(space, Pool):
            return space
        given = getattr(space, "expected_s", None), getattr(space, "features", None)
        made = cls(space.names, space.values, space.legal, *given)
        made.conditional = bool(getattr(space, "conditional", False))
        if isinstance(space, Grows) and space.sampled:
            made._space = space
        return made

    @property
    def partial(self) -> bool:
        """True if the space lists only a sample of its rows, so that rows may be added later."""
        return self._space is not None

    @property
    def added(self) -> int:
        """Number of rows added since the start."""
        return len(self.rows) - self._listed

    def catch_up(self) -> int:
        """Include rows that were listed in the space meanwhile; returns the number of all rows."""
        if self._space is not None and len(self._space.legal) > len(self.rows):
            self.rows = self._space.legal
        return len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def config(self, row: int) -> Config:
        """Configuration of a row."""
        return {name: self.values[j][int(self.rows[row, j])] for j, name in enumerate(self.names)}

    def neighbours(self, row: int, pairs: int = 0) -> Ints:
        """Rows that differ from ``row`` in exactly one knob; listed now if the space is sampled.

        pairs: random two-knob changes tried to list more rows of a sampled space
        """
        if self._space is not None:
            self._space.list_around(row, pairs)
            self.catch_up()
        return np.flatnonzero(self.differing(row) == 1)

    def differing(self, row: int, among: Ints | None = None) -> npt.NDArray[np.int64]:
        """Number of knobs in which each row (or each of ``among``) differs from ``row``."""
        rows = self.rows if among is None else self.rows[among]
        return np.asarray((rows != self.rows[row]).sum(axis=1))

    @property
    def slowness(self) -> Floats:
        """Predicted time of each row over the least predicted; inf where the model gives no positive number, 1 for all
        rows without a model or if it gives none.
        """
        if self.expected_s is None or not len(self):
            return np.ones(len(self))
        if len(self._slowness) < len(self):
            new = [self.expected_s(self.config(row)) for row in range(len(self._expected), len(self))]
            self._expected = np.concatenate([self._expected, np.array(new, dtype=np.float64)])
            found = np.where(self._expected > 0, self._expected, np.inf)  # not a time
            self._slowness = found / found.min() if np.isfinite(found.min()) else np.ones(len(self))
        return self._slowness

    @property
    def hopeless(self) -> npt.NDArray[np.bool_]:
        """Mask of rows predicted slower than ``HOPELESS_RATIO`` times the fastest, to be tried last; none without a
        model.
        """
        if self.expected_s is None:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(self.slowness > HOPELESS_RATIO)

    @cached_property
    def switches(self) -> Ints:
        """Knobs of two values, or of words: those that may decide what other knobs mean."""
        words = (j for j, v in enumerate(self.values) if len(v) == 2 or (v and all(isinstance(x, str) for x in v)))
        return np.array([j for j in words if len(np.unique(self.rows[:, j])) > 1], dtype=np.int64)

    @cached_property
    def _columns(self) -> list[tuple[int, Floats]]:
        return [(j, column) for j, v in enumerate(self.values) for column in encode(v)]

    def points(self, rows: npt.ArrayLike) -> Floats:
        """Coordinates of ``rows`` in the unit cube, one row of floats each, for distances."""
        some = self.rows[np.asarray(rows, dtype=np.int64)]
        if not self._columns:
            return np.zeros((len(some), 1))
        return np.stack([column[some[:, j]] for j, column in self._columns], axis=1)


def encode(values: Sequence[Any]) -> list[Floats]:
    """Columns of coordinates in [0, 1] for the values of one knob; [] for a single value.

    Numbers: their logarithm, as tile sizes act multiplicatively (log2 ordinals beat one-hot columns; BaCO, arXiv
    2212.11142, section 4.2); evenly spaced ones also as they are. Whole numbers not all powers of two: also their
    largest power-of-two divisor, as 96 and 160 are alike for warps, vectors and sectors, 96 and 97 are not. Tuples of
    numbers: one column per position. Permutations: the position of each word. Other words: one-hot columns.
    """
    if len(values) < 2:
        return []
    if all(_is_number(v) for v in values):
        return [_ordinal(values), *_linear(values), *_evenness(values)]
    widths = {len(v) if isinstance(v, tuple) else -1 for v in values}
    if len(widths) == 1 and -1 not in widths and all(_is_number(x) for v in values for x in v):
        places = [_ordinal([v[n] for v in values]) for n in range(widths.pop())]
        return [p for p in places if p.max() > 0]
    if len(values) == 2:
        return [np.array([0.0, 1.0])]
    if -1 not in widths and len({frozenset(v) for v in values}) == 1 and all(len(set(v)) == len(v) for v in values):
        # orders of the same things: where each of them is (Spearman's distance; BaCO, section 4.2)
        return [np.array([v.index(x) / (len(v) - 1) for v in values]) for x in sorted(values[0], key=repr)]
    # two different words are as far apart as the ends of a number knob
    return [np.where(np.arange(len(values)) == n, math.sqrt(0.5), 0.0) for n in range(len(values))]


LINEAR_FROM = 8


def _linear(values: Sequence[Any]) -> list[Floats]:
    """[column in [0, 1] on a linear scale] for evenly spaced numbers (sizes or counts); [] for others and for short
    lists.

    For short lists the logarithm says as much, and a further column draws values apart.
    """
    if len(values) < LINEAR_FROM or any(isinstance(v, bool) for v in values):
        return []
    low, high = min(values), max(values)
    try:
        at = np.array([(v - low) / (high - low) for v in values])
    except OverflowError:
        return []
    even = np.allclose(np.diff(np.sort(at)), 1 / (len(values) - 1), rtol=0.0, atol=1e-6)
    return [at] if even else []


def _evenness(values: Sequence[Any]) -> list[Floats]:
    """Column with the power of two that divides each value, up to 2**6, scaled; [] if redundant."""
    if not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
        return []
    twos = np.minimum([(v & -v).bit_length() - 1 for v in values], 6)
    powers = all(v & (v - 1) == 0 for v in values)
    return [] if len(values) < 4 or powers or twos.max() < 2 else [np.asarray(twos / twos.max())]


def _is_number(v: object) -> bool:
    return isinstance(v, (bool, int, float))


def _ordinal(numbers: Sequence[float]) -> Floats:
    """Column of log2 of the numbers, scaled to [0, 1]; integers may be arbitrarily large."""
    if min(numbers) > 0:
        x = np.array([math.log2(v) for v in numbers])
    else:  # "off, 1, 2, 4 …": zero is one step below one
        x = np.array([math.log2(1 + abs(v)) * (1 if v > 0 else -1) for v in numbers])
    span = x.max() - x.min()
    return np.asarray((x - x.min()) / span if span > 0 else np.zeros_like(x))
