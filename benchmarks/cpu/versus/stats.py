"""Figures from rounds: medians, ratios and their intervals.

A competitor's rounds are one figure each, the median of the batches of that slot: a slot in which the machine was slow
counts as one. Intervals are percentiles of a bootstrap over rounds; seeds are fixed, so that the same rounds give the
same figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rounds = Sequence[float]
Draws = NDArray[Any]

CONFIDENCE, RESAMPLES = 0.95, 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def median_of(rounds: Rounds) -> Interval:
    """The median of the rounds."""
    values = np.array(rounds)
    return _interval(statistics.median(rounds), np.median(values[_resamples(len(values))], axis=1))


def ratio(theirs: Rounds, ours: Rounds) -> Interval:
    """Their time over ours, above 1 where ours is faster."""
    return _interval(_ratio(theirs, ours), _draws(theirs, ours))


def geomean(values: Iterable[float]) -> float:
    kept = list(values)
    return math.exp(sum(map(math.log, kept)) / len(kept))


def geomean_of(pairs: Sequence[tuple[Rounds, Rounds]]) -> Interval:
    """Geometric mean of the ratios of (theirs, ours)."""
    logs = [np.log(_draws(theirs, ours, seed)) for seed, (theirs, ours) in enumerate(pairs)]
    return _interval(geomean(_ratio(a, b) for a, b in pairs), np.exp(np.mean(logs, axis=0)))


def sums_of(terms: Sequence[tuple[int, Rounds, Rounds]]) -> Interval:
    """Sum of their times over the sum of ours, each (times, theirs, ours) counted ``times`` times."""
    above, below = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for seed, (times, theirs, ours) in enumerate(terms):
        a, b = _both(theirs, ours, seed)
        above, below = above + times * a, below + times * b
    total = [sum(t * statistics.median(pair[i]) for t, *pair in terms) for i in (0, 1)]
    return _interval(total[0] / total[1], above / below)


def _ratio(theirs: Rounds, ours: Rounds) -> float:
    return statistics.median(theirs) / statistics.median(ours)


def _draws(theirs: Rounds, ours: Rounds, seed: int = 0) -> Draws:
    a, b = _both(theirs, ours, seed)
    return np.asarray(a / b)


def _both(theirs: Rounds, ours: Rounds, seed: int) -> tuple[Draws, Draws]:
    """Medians in each resample; both take the same rounds, whose conditions they shared."""
    n = min(len(theirs), len(ours))
    drawn = _resamples(n, seed)
    a, b = (np.median(np.array(v[:n])[drawn], axis=1) for v in (theirs, ours))
    return a, b


@cache
def _resamples(n: int, seed: int = 0) -> Draws:
    """Which rounds each resample takes."""
    return np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))


def _interval(value: float, drawn: Draws) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Interval(value, min(float(low), value), max(float(high), value))
