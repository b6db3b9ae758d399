"""What is learnt from the measurements so far: expected improvement and feasibility over candidate rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.tune.gp import Conditioned, Hyperparameters, Posterior
from tensorir.tune.pool import Features, Floats, Ints, Pool

Results = Mapping[int, float | None]
Trend = Callable[[npt.ArrayLike], Floats]


class Points:
    """Rows as points: the knobs and, when the caller gives a function, its features as further columns."""

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
    """A Gaussian process with fixed hyper-parameters over candidate rows, kept current between two fits.

    trend: what is expected of rows (``Priors.trend``); the process is then of what differs from it
    """

    def __init__(
        self,
        pool: Pool,
        points: Points,
        candidates: Ints,
        hyper: Hyperparameters,
        results: Results,
        trend: Trend | None = None,
    ) -> None:
        self.pool, self.points, self.candidates, self.trend = pool, points, candidates, trend
        self.fitted = len(results)
        self._at_candidates = None if trend is None else trend(candidates)
        at = points(candidates)
        rows = list(results)
        y = self._beyond_trend(results)
        rows, y = for_fitting(rows, y)
        kernel, noise = hyper.fit(points(rows), (y - y.mean()) / (float(y.std()) or 1.0))
        self._posterior = Posterior(at, kernel, noise, capacity=2 * len(results))
        self._order: list[int] = []
        self._place = {int(row): n for n, row in enumerate(candidates)}

    def improvement(self, results: Results, pending: Sequence[int], free: Ints) -> Floats:
        """Expected improvement (Jones, Schonlau, Welch 1998, equation 15) times the chance to run at all.

        ``free`` are positions in ``candidates``; ``pending`` rows are being measured.
        """
        from skopt.acquisition import gaussian_ei

        self._observe([*results, *pending])
        belief = self._posterior.condition(self._beyond_trend(results))
        if self._at_candidates is not None:
            belief = Conditioned(belief.mean + self._at_candidates, belief.std)
        best = float(response(list(results.values())).min())
        gain: Floats = gaussian_ei(free, belief, y_opt=best, xi=0.0)
        return gain if None not in results.values() else gain * self._chances(results)[free]

    def _beyond_trend(self, results: Results) -> Floats:
        y = response(list(results.values()))
        return y if self.trend is None else y - self.trend(list(results))

    def chances(self, results: Results, rows: Ints) -> Floats:
        """The chance of each of ``rows`` to compile and run."""
        if None not in results.values():
            return np.ones(len(rows))
        known = self._chances(results)
        overall = float(np.mean([t is not None for t in results.values()]))
        places = [self._place.get(int(row)) for row in rows]
        return np.array([overall if n is None else known[n] for n in places])

    def _chances(self, results: Results) -> Floats:
        """For every candidate, a number in (0, 1]: regression on 0 and 1 with the same process.

        Hidden constraints are normal (22 % of one recorded space fails although statically valid). The length
        scales know about them, because failures are among the values they were fitted to. (Least-squares
        classification: Rasmussen and Williams, section 6.5.)
        """
        if self._order[: len(results)] != list(results):
            self._observe(list(results))
        worked = np.array([float(t is not None) for t in results.values()])
        return np.clip(self._posterior.condition(worked).mean, LEAST_CHANCE, 1.0)

    def _observe(self, rows: list[int]) -> None:
        """Make the posterior's observations these rows, reusing the common beginning."""
        same = sum(1 for _ in takewhile(lambda ab: ab[0] == ab[1], zip(self._order, rows, strict=False)))
        self._posterior.keep(same)
        for point in self.points(rows[same:]):
            self._posterior.add(point)
        self._order = rows


def response(times: Sequence[float | None]) -> Floats:
    """What is modelled: log seconds with the slow half squashed, failures as the slowest that ran.

    Times span two orders of magnitude and only the fast end matters; without the squashing the model spends
    its length scales on how bad the bad ones are.
    """
    y = np.array([np.nan if t is None else np.log(t) for t in times], dtype=np.float64)
    middle, best = float(np.nanmedian(y)), float(np.nanmin(y))
    span = middle - best
    if span > 0:
        y = np.where(y > middle, middle + span * np.tanh((y - middle) / span), y)
    return np.where(np.isnan(y), np.nanmax(y), y)


LEAST_CHANCE = 0.02  # nothing is ruled out for good
FIT_ROWS = 300  # the likelihood costs the cube of this; more rows no longer move the length scales


def for_fitting(rows: list[int], y: Floats) -> tuple[list[int], Floats]:
    """The rows the hyper-parameters are fitted to: all, or the fastest third and an even sample of the others."""
    if len(rows) <= FIT_ROWS:
        return rows, y
    order = np.argsort(y, kind="stable")
    best, others = order[: FIT_ROWS // 3], order[FIT_ROWS // 3 :]
    keep = np.concatenate([best, others[np.linspace(0, len(others) - 1, FIT_ROWS - len(best)).astype(np.int64)]])
    return [rows[i] for i in keep], y[keep]
