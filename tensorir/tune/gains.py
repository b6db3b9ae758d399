"""Which of several shapes to tune next: the one whose next trial promises most time saved per second of tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence

RECENT = 8  # trials whose gains are taken for a trend
HOPE = 0.5  # of log time: the median configuration of a space is e**0.9 to e**1.2 slower than its best
UNKNOWN = 1.0  # the same while nothing valid is known of a shape


def expected_gain(weight: float, curve: Sequence[float], cost_s: float, typical_s: float = 0.0) -> float:
    """Seconds of weighted running time that a second of tuning is expected to save.

    weight:    how often the shape runs
    curve:     the best seconds after each trial so far, inf while nothing was valid; at least one
    cost_s:    seconds that a trial takes
    typical_s: what the kernel may take while nothing is known

    The mean of a trend (the log gain a trial of the last ``RECENT``) and of a hope that fades: the best of n
    exchangeable draws moves by about 1/n of the spread with the next one. The idea is that of the task scheduler of
    Ansor (arXiv 2006.06762, section 6), which mixes a backward difference with an optimistic guess.
    """
    best = curve[-1]
    if not math.isfinite(best):
        return weight * typical_s * UNKNOWN / len(curve) / max(cost_s, 1e-9)
    some = [t for t in curve[-RECENT - 1 :] if math.isfinite(t)]
    trend = math.log(some[0] / best) / (len(some) - 1) if len(some) > 1 else 0.0
    return weight * best * 0.5 * (trend + HOPE / len(curve)) / max(cost_s, 1e-9)
