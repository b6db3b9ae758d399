"""Sequential test for the fastest of several kernels, by interleaved timed rounds; stops as early as the noise allows.

Times of a shared machine drift, come in bursts and have tails of every kind, so nothing is assumed of them. Two things
are made true instead. Kernels are compared within a round only, and each round runs them in an order drawn at random.
Then, if two of them take the same time, either one is as likely to be ahead in a round as the other, whatever the
machine does and whatever it did before: the sign of their difference is a coin (the randomisation argument of
R. A. Fisher, The Design of Experiments, 1935, section 21).

Against a fair coin one can bet. Whoever stakes a share of the capital on heads at every toss has in the long run no
more than what he began with: the capital is a supermartingale, and it ever reaches C with probability at most 1/C
(J. Ville, 1939). So the capital of a bet that A is ahead of B is evidence that may be looked at after every round, and
rounds may be added until it suffices, which no p-value of a fixed number of rounds allows (S. R. Howard, A. Ramdas,
J. McAuliffe, J. Sekhon, Annals of Statistics 49, 2021; A. Ramdas, P. Grünwald, V. Vovk, G. Shafer, Statistical Science
38, 2023). Several stakes are bet side by side, because nobody knows how often A will be ahead.

A race of n has n (n - 1) such bets, and one counts once its capital exceeds n (n - 1) / error (C. E. Bonferroni): the
probability that any kernel is ever called slower than one that is not faster is at most ``error``. Who has been found
slower leaves, as in the races of O. Maron and A. W. Moore (Neural Information Processing Systems 6, 1994).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorir.tune.record import interval
from tensorir.tune.trial import Standing

FAMILY_ERROR = 0.05  # of the whole family of comparisons
LEAD_LOG_RATIO = 0.005  # in log time: a smaller lead is no lead; the placement of code and data is worth 0.2 %
TIE_LOG_RATIO = 0.02  # in log time: who is shown to be closer than that need not be told apart
MOST_ROUNDS = 10_000
_CHANCES = np.array([0.52, 0.55, 0.6, 0.7, 0.8, 0.9, 0.97])  # of being ahead, on which is bet


def log_capital(ahead: NDArray[np.int64], rounds: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log of the wealth from betting 1 on winning each of ``rounds`` fair coin tosses, of which ``ahead`` were won.

    A mixture over several win probabilities p: each part grows by 2 p on a win and 2 (1 - p) on a loss.
    """
    won, lost = ahead[..., None], (rounds - ahead)[..., None]
    parts = won * np.log(2 * _CHANCES) + lost * np.log(2 * (1 - _CHANCES))
    most = parts.max(axis=-1)
    result: NDArray[np.float64] = most + np.log(np.exp(parts - most[..., None]).mean(axis=-1))
    return result


class Race:
    """State of a race among ``count`` kernels (contestants), fed with rounds of times.

    >>> race = Race(3)
    >>> while not race.decided:
    ...     race.add({n: time_of(n) for n in race.order()})
    >>> race.standings()

    error:  probability that any contestant is called slower than one that is not faster
    margin: leads in log time that do not count
    tie:    difference in log time below which contestants need not be told apart
    """

    def __init__(
        self,
        count: int,
        *,
        error: float = FAMILY_ERROR,
        margin: float = LEAD_LOG_RATIO,
        tie: float = TIE_LOG_RATIO,
        seed: int = 0,
    ) -> None:
        self.running = list(range(count))
        self._margin, self._tie, self._random = margin, tie, random.Random(seed)
        self._needed = math.log(max(1, count * (count - 1)) / error)
        self._ahead = np.zeros((count, count), np.int64)  # rounds in which the row led by more than the margin
        self._near = np.zeros((count, count), np.int64)  # rounds in which it was not slower by more than a tie
        self._met = np.zeros((count, count), np.int64)
        self._logs: list[NDArray[np.float64]] = []
        self._than: dict[int, int] = {}

    @property
    def rounds(self) -> int:
        """Number of rounds so far."""
        return len(self._logs)

    def order(self) -> list[int]:
        """Random order of the kernels in the next round; the test's validity depends on it."""
        return self._random.sample(self.running, len(self.running))

    def add(self, seconds: dict[int, float]) -> None:
        """Add a round: {contestant: seconds} of those in ``running``; those shown to be slower leave that list."""
        logs = np.full(len(self._met), np.nan)
        logs[list(seconds)] = np.log(list(seconds.values()))
        self._logs.append(logs)
        lead = logs[None, :] - logs[:, None]
        self._met += ~np.isnan(lead)
        self._ahead += lead > self._margin
        self._near += lead > -self._tie
        sure = log_capital(self._ahead, self._met) >= self._needed
        for n in self.running[:]:
            winners = np.flatnonzero(sure[:, n])
            if winners.size and len(self.running) > 1:  # leads may run in a circle; somebody stays
                self.running.remove(n)
                self._than[n] = int(winners[0])

    @property
    def decided(self) -> bool:
        """True if one contestant is left, the rest are shown to be tied, or ``MOST_ROUNDS`` rounds have been run."""
        if len(self.running) <= 1 or self.rounds >= MOST_ROUNDS:
            return True
        left = np.ix_(self.running, self.running)
        sure = log_capital(self._near[left], self._met[left]) >= self._needed
        return bool(sure[~np.eye(len(self.running), dtype=bool)].all())

    def standings(self) -> list[Standing]:
        """Standing of each contestant, in order of their numbers; requires at least one round."""
        logs = np.array(self._logs)
        common = logs[:, self.running]
        middles = np.median(common - common.mean(axis=1, keepdims=True), axis=0)
        best = self.running[int(np.argmin(middles))]
        above = dict(zip(self.running, middles - middles.min(), strict=True))
        return [self._standing(logs, n, best, above.get(n)) for n in range(logs.shape[1])]

    def _standing(self, logs: NDArray[np.float64], n: int, best: int, above: float | None) -> Standing:
        apart = logs[:, n] - logs[:, best]
        apart = apart[~np.isnan(apart)]
        middle = max(0.0, float(np.median(apart))) if above is None else float(above)
        low, high = interval(apart.tolist(), middle)
        what = "best" if n == best else "slower" if n in self._than else "tie"
        return Standing(what, math.exp(middle), math.exp(low), math.exp(high), len(apart), self._than.get(n))


def reconciled(medians: Sequence[float], standings: Sequence[Standing]) -> list[float]:
    """Seconds of each contestant, from race ratios scaled to the medians measured separately.

    The medians have a unit but are noisy; the ratios are precise but have none. The scale is the median of medians over
    ratios.
    """
    scale = float(np.median([m / s.ratio for m, s in zip(medians, standings, strict=True)]))
    return [scale * s.ratio for s in standings]
