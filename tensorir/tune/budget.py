"""The time budget of a search: seconds left for trials, and seconds reserved for the final round."""

from __future__ import annotations

import statistics
from collections.abc import Callable

FINAL_SHARE = 0.25  # of the budget is the most that is kept back for the final round
UNKNOWN_SHARE = 0.1  # of the budget, while no trial says what one costs
ROUNDS_S = 1.5  # of nine rounds with a library, whose threads are waited for
COST_TRIALS = 15  # trials whose cost predicts the next one's
UNSPENT_SHARE = 0.1  # of the budget is worth a word
COST_MARGIN = 1.25  # of that cost must be left, or no further trial begins

TIME_PARTS = ("before", "trials", "between", "final", "end")
"""Parts of a search's time: until the first trial begins (worker, device, spaces, log), trials from their schedule to
their last slot, what the strategy and the log take between two, the final round, and the summary.
"""


class Budget:
    """Time accounting of a search, in seconds; it begins with the part "before".

    total_s: wall time from ``start``, final round included; None for no limit
    grace_s: seconds beyond it for the first trial while nothing is known
    final:   number of finalists, None for no final round;  cold_s: seconds to start a worker
    reused:  number of usable results from earlier runs
    """

    def __init__(
        self,
        clock: Callable[[], float],
        start: float | None,
        total_s: float | None,
        grace_s: float,
        final: int | None,
        cold_s: float,
    ) -> None:
        self.clock, self.start = clock, clock() if start is None else start
        self._total_s, self._grace_s, self._final, self._cold_s = total_s, grace_s, final, cold_s
        self.reused = 0
        self._costs: list[float] = []
        self._good: list[float] = []
        self._parts, self._part, self._since = dict.fromkeys(TIME_PARTS, 0.0), TIME_PARTS[0], self.start

    def enter(self, part: str) -> None:
        """Begin accounting for phase ``part`` of ``TIME_PARTS``; the previous phase ends."""
        now = self.clock()
        self._parts[self._part] += now - self._since
        self._part, self._since = part, now

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent so far per phase of ``TIME_PARTS``."""
        self.enter(self._part)
        return dict(self._parts)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.start

    @property
    def passed(self) -> int:
        """Number of this run's trials with right results."""
        return len(self._good)

    def paid(self, cost_s: float, ok: bool) -> None:
        """Record a trial's duration and success."""
        self._costs.append(cost_s)
        if ok:
            self._good.append(cost_s)

    def remaining(self) -> float | None:
        """Seconds until the end of the budget, negative after it; None without a limit."""
        return None if self._total_s is None else self.start + self._total_s - self.clock()

    @property
    def unspent_s(self) -> float | None:
        """Seconds until the end of the budget, at least 0; None without a limit."""
        remaining = self.remaining()
        return None if remaining is None else max(0.0, remaining)

    def for_trials(self) -> float | None:
        """Seconds until the final round must begin, negative after that; None without a limit."""
        remaining = self.remaining()
        return None if remaining is None else remaining - self._reserve()

    def left(self) -> float | None:
        """Seconds available to the next trial, None without a limit: those until the final round must begin (negative
        after that); for the first trial those of the whole budget, and ``grace_s`` more while nothing is known.
        """
        if self._costs:
            return self.for_trials()
        remaining = self.remaining()
        return None if remaining is None else remaining + (0.0 if self.reused else self._grace_s)

    def spent(self, cost_s: float | None = None) -> bool:
        """True if no more time is left before the final round than a trial takes: ``cost_s``, or by default
        ``COST_MARGIN`` times the median of the last ``COST_TRIALS``. Always False without a limit.
        """
        remaining = self.for_trials()
        if cost_s is None:
            cost_s = COST_MARGIN * statistics.median(self._costs[-COST_TRIALS:]) if self._costs else 0.0
        return remaining is not None and remaining <= cost_s

    def words(self) -> str:
        """Explanation with numbers why no further trial begins; "" if less than a tenth of the budget is left, or there
        is no limit.
        """
        remaining = self.remaining()
        if remaining is None or self._total_s is None or remaining < UNSPENT_SHARE * self._total_s:
            return ""
        kept = f"{self._reserve():.2g} s are kept for the final round"
        if not self._costs:
            return f"{remaining:.2g} s left, of which {kept}"
        cost = statistics.median(self._costs[-COST_TRIALS:])
        return f"{remaining:.2g} s left, of which {kept}: another trial takes some {cost:.2g} s"

    def _reserve(self) -> float:
        """Seconds reserved for the final round, assuming that all finalists are rebuilt and run for enough rounds."""
        if self._final is None or self._total_s is None:
            return 0.0
        if not self._good:
            return UNKNOWN_SHARE * self._total_s
        entries = min(self._final, len(self._good) + self.reused) + 2  # the default and the baseline
        afresh = self._cold_s + entries * statistics.median(self._good[-COST_TRIALS:])
        return min(FINAL_SHARE * self._total_s, afresh + ROUNDS_S)
