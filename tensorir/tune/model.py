"""Gaussian process models of a search: expected improvement and probability of success of candidate rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.tune.gp import Conditioned, Hyperparameters, Posterior
from tensorir.tune.pool import Features, Floats, Ints, Pool

Results = Mapping[int, float | None]
Trend = Callable[[npt.ArrayLike], Floats]


class Points:
    """Function from rows to points: coordinates of knobs in [0, 1], then features, scaled to [0, 1] over the rows of
    the first call (later ones may be outside; what is not finite counts as 0).

    Raises DeclarationError ``space.features`` if the features raise, or change in number.
    """

    def __init__(self, pool: Pool, features: Features | None = None) -> None:
        self._pool, self._features = pool, features
        self._known: dict[int, list[float]] = {}
        self._range: tuple[Floats, Floats] | None = None

    def __call__(self, rows: Ints | Sequence[int]) -> Floats:
        knobs = self._pool.points(rows)
        if self._features is None or not len(rows):
            return knobs
        raw = np.array([self._of(int(r)) for r in rows], dtype=np.float64)
        if self._range is None:  # scaled as the first, large batch is
            low, high = raw.min(axis=0), raw.max(axis=0)
            self._range = low, np.where(high > low, high - low, 1.0)
        return np.concatenate([knobs, (raw - self._range[0]) / self._range[1]], axis=1)

    def _of(self, row: int) -> list[float]:
        if row not in self._known:
            config = self._pool.config(row)
            assert self._features is not None
            try:
                found = np.array(list(self._features(config)), dtype=np.float64)
            except Exception as error:
                message = f"features({config}) raised {type(error).__name__}: {error}"
                raise refuse(DeclarationError, "space.features", message) from error
            width = len(next(iter(self._known.values()))) if self._known else len(found)
            if found.ndim != 1 or len(found) != width:
                message = f"features({config}) gave {found.tolist()}, for other configurations {width} numbers"
                raise refuse(DeclarationError, "space.features", message, hint="as many numbers for each configuration")
            self._known[row] = [float(v) if np.isfinite(v) else 0.0 for v in found]
        return self._known[row]


class Model:
    """Gaussian processes over candidate rows with hyperparameters fixed between fits.

    One models times of successful rows; after a failure, a second models success.

    trend: predicted times of rows (``Priors.trend``), of which the process models the residual
    """

    def __init__(
        self,
        pool: Pool,
        points: Points,
        candidates: Ints,
        hyper: Hyper,
        results: Results,
        trend: Trend | None = None,
    ) -> None:
        self.pool, self.points, self.candidates, self.trend = pool, points, candidates, trend
        self.fitted, self._hyper = len(results), hyper
        self._at_candidates = None if trend is None else trend(candidates)
        self._at = points(candidates)
        timed = measured(results)
        rows, y = for_fitting(list(timed), self._beyond_trend(timed))
        self._times = _Process(points, self._at, self._fitted(points(rows), y), 2 * len(results))
        self._works: _Process | None = None
        self._place = {int(row): n for n, row in enumerate(candidates)}

    def consider(self, rows: Ints) -> None:
        """Append ``rows``, none of them a candidate yet, to the candidates."""
        if not len(rows):
            return
        at = self.points(rows)
        self._place |= {int(row): len(self.candidates) + n for n, row in enumerate(rows)}
        self.candidates, self._at = np.concatenate([self.candidates, rows]), np.concatenate([self._at, at])
        if self.trend is not None and self._at_candidates is not None:
            self._at_candidates = np.concatenate([self._at_candidates, self.trend(rows)])
        for process in (self._times, self._works):
            if process is not None:
                process.consider(at)

    def improvement(
        self, results: Results, pending: Sequence[int], free: Ints, rivals: Sequence[int] | None = None
    ) -> tuple[Floats, Floats]:
        """(expected improvement, probability of success) of candidates ``free`` (Jones, Schonlau, Welch 1998, equation
        15).

        ``free`` are positions in ``candidates``; ``pending`` rows are being measured. What is to be improved on is the
        mean of the process where it is least among the measured rows (``rivals``, if given), as the least measured
        value is lucky; as far as the noise of timings may explain it, since what is rough about a space stays as it is.
        """
        from skopt.acquisition import gaussian_ei

        timed = measured(results)
        y = self._beyond_trend(timed)
        failed = [row for row in results if row not in timed]  # they shrink the deviation, as what is being measured
        posterior = self._times.observing([*timed, *failed, *pending])
        belief, known = posterior.condition(y, self._scale(y)), posterior.smoothed(y, TIME_NOISE)
        if self.trend is not None and self._at_candidates is not None:
            belief, known = Conditioned(belief.mean + self._at_candidates, belief.std), known + self.trend(list(timed))
        if rivals is not None:
            known = known[np.isin(list(timed), rivals)]
        gain: Floats = gaussian_ei(free, belief, y_opt=float(known.min()), xi=0.0)
        return gain, np.ones(len(free)) if len(timed) == len(results) else self._chances(results)[free]

    def _beyond_trend(self, timed: Mapping[int, float]) -> Floats:
        y = response(list(timed.values()))
        return y if self.trend is None else y - self.trend(list(timed))

    def _fitted(self, at: Floats, y: Floats) -> tuple[Any, float]:
        """(kernel, noise variance) of the process of times."""
        return self._hyper.times.fit(at, standard(y))

    def _scale(self, y: Floats) -> float:
        """Standard deviation of the modelled residual; 0: that of ``y``."""
        return 0.0

    def chances(self, results: Results, rows: Ints) -> Floats:
        """Probability of each of ``rows`` to compile and run: 1 before a failure, the overall rate for rows outside of
        the candidates.
        """
        if None not in results.values():
            return np.ones(len(rows))
        known = self._chances(results)
        overall = float(np.mean([t is not None for t in results.values()]))
        places = [self._place.get(int(row)) for row in rows]
        return np.array([overall if n is None else known[n] for n in places])

    def _chances(self, results: Results) -> Floats:
        """Probability of success in (0, 1] of every candidate: least-squares classification by a Gaussian process on 0
        and 1.

        Hidden constraints are normal (22 % of one recorded space fails although statically valid). (Least-squares
        classification: Rasmussen and Williams, section 6.5.)
        """
        worked = np.array([float(t is not None) for t in results.values()])
        if self._works is None:
            rows, y = for_fitting(list(results), worked)
            fitted = self._hyper.works.fit(self.points(rows), standard(y))
            self._works = _Process(self.points, self._at, fitted, 2 * len(results))
        return np.clip(self._works.observing(list(results)).condition(worked).mean, LEAST_CHANCE, 1.0)


class Guided(Model):
    """A Model whose trend predicts log seconds (``Guide.trend``), with prior residual ``MODEL_ERROR``.

    With few results, the residual's standard deviation is about ``MODEL_ERROR``; more results revise it.
    """

    def _beyond_trend(self, timed: Mapping[int, float]) -> Floats:
        assert self.trend is not None
        return squashed(np.log(np.array(list(timed.values()))) - self.trend(list(timed)))

    def _fitted(self, at: Floats, y: Floats) -> tuple[Any, float]:
        return self._hyper.times.current() if len(at) < FEW_TO_FIT else super()._fitted(at, y)

    def _scale(self, y: Floats) -> float:
        off = float(((y - y.mean()) ** 2).sum())
        return float(np.sqrt((off + FEW_TO_FIT * MODEL_ERROR**2) / (len(y) + FEW_TO_FIT)))


class Hyper:
    """Hyperparameters of a model's two processes, each refitted from its last optimum."""

    def __init__(self, dimensions: int) -> None:
        self.times, self.works = Hyperparameters(dimensions), Hyperparameters(dimensions)


class _Process:
    """A posterior reused between calls whose observed rows share a prefix."""

    def __init__(self, points: Points, at: Floats, fitted: tuple[Any, float], capacity: int) -> None:
        self._points, self._posterior = points, Posterior(at, *fitted, capacity=capacity)
        self._order: list[int] = []

    def consider(self, at: Floats) -> None:
        """Append candidates at points ``at``."""
        self._posterior.consider(at)

    def observing(self, rows: list[int]) -> Posterior:
        """The posterior given ``rows``, reusing the common prefix."""
        same = sum(1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(self._order, rows, strict=False)))
        self._posterior.keep(same)
        if rows[same:]:
            self._posterior.add(self._points(rows[same:]))
        self._order = rows
        return self._posterior


def measured(results: Results) -> dict[int, float]:
    """{row: seconds} of rows that did not fail."""
    return {row: t for row, t in results.items() if t is not None}


def standard(y: Floats) -> Floats:
    """``y`` shifted and scaled to mean 0 and standard deviation 1; zeros if all are equal."""
    return np.asarray((y - y.mean()) / (float(y.std()) or 1.0))


def response(times: Sequence[float | None]) -> Floats:
    """Log seconds with the slow half compressed, as values for the Gaussian process; failures count as the slowest
    success.

    Times span two orders of magnitude, and only fast ones matter; uncompressed, the length scales would fit differences
    between slow configurations.
    """
    return squashed(np.array([np.nan if t is None else np.log(t) for t in times], dtype=np.float64))


def squashed(y: Floats) -> Floats:
    """``y`` with values above the median m compressed: m + s tanh((y - m) / s) with s = m - min(y); NaN becomes the
    largest result.
    """
    middle, best = float(np.nanmedian(y)), float(np.nanmin(y))
    span = middle - best
    if span > 0:
        y = np.where(y > middle, middle + span * np.tanh((y - middle) / span), y)
    return np.where(np.isnan(y), np.nanmax(y), y)


FEW_TO_FIT = 8  # results from which length scales are fitted to what differs from a model's times
MODEL_ERROR = 0.15  # relative deviation of the times of a model that is right
TIME_NOISE = 0.05  # relative deviation of a time that is measured next to other programs
LEAST_CHANCE = 0.001  # nothing is ruled out for good
FIT_ROWS = 120  # the likelihood costs the cube of this; more rows hardly move the length scales


def for_fitting(rows: list[int], y: Floats) -> tuple[list[int], Floats]:
    """(rows, their values) for fitting hyperparameters: all up to ``FIT_ROWS``, else that many: a third of them the
    least values, the others evenly spaced by rank.
    """
    if len(rows) <= FIT_ROWS:
        return rows, y
    order = np.argsort(y, kind="stable")
    best, others = order[: FIT_ROWS // 3], order[FIT_ROWS // 3 :]
    keep = np.concatenate([best, others[np.linspace(0, len(others) - 1, FIT_ROWS - len(best)).astype(np.int64)]])
    return [rows[i] for i in keep], y[keep]
