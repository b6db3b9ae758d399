"""Estimates kernel times by interleaved rounds with a reference kernel; every stored, printed or divided time is from
here.

Kernels, and the libraries compared with, run in *rounds* of one slot each. A slot is the fastest of a few short parts
(``timing.slots``): other programs only slow parts down, and rarely all of them. Each slot is divided by the *reference
kernel*'s slot of the same round. The reference is the default configuration of the log's first run. A kernel's time is
the median of these ratios times the reference's seconds, the median of its slots when first measured. So disturbances
of both (another clock, a neighbour on a shared machine) cancel, and all times of a log refer to one pace: the machine's
when the reference was first measured. ``pace`` is the present slowdown relative to it. Without a reference, the time is
the median of the slots.

low_s and high_s are order statistics of the ratios times the same seconds: from six rounds on, a 95 % interval of the
median for any noise; for fewer, the range, widened as far as normal noise needs it. The reference's seconds are a unit
and contribute no error.

On two cores with a load of eight, ten rounds of the same kernel scattered by 8 % (standard deviation of log time) and
their interval contained the median of many in 95 of 100 cases; fastest slots scattered by 12 %, fastest slots over the
reference's fastest by 15 %.

Each part includes its own synchronization, 15 us of 500 on that machine: times are a few percent above those of long
batches (``timing.measure``), equally for all kernels.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tensorir.errors.shown import Shown
from tensorir.runtime.timing import SLOT_SECONDS, Timed, Timing, slots

SPREAD_RATIO = 3.0  # a slowest slot over the fastest one from which a time says little
WARM_S = 0.004
SETTLE_S = 0.3  # at most, until the threads of a library have stopped spinning (OpenBLAS 27 ms, Intel's OpenMP 200 ms)
_WIDER = {2: 16.0, 3: 4.0, 4: 2.0, 5: 1.4}  # the log of the range, by rounds: 95 % of intervals hold the middle
MAX_END_RATIO = 1000.0  # what is further from the middle is not an end of an interval that anybody measured
_NAP_S = 0.004
_QUIET = 0.1  # of a core


@dataclass(frozen=True, repr=False)
class Estimate(Shown):
    """Estimated seconds per call, with a 95 % interval of the median.

    samples: the slots as the clock had them, seconds per call, one per round
    pace:    the reference's time in these rounds over that when it was first measured; 1 without one
    """

    seconds: float
    low_s: float
    high_s: float
    samples: tuple[float, ...] = field(repr=False)
    pace: float = 1.0

    @classmethod
    def of(cls, own: Sequence[float], reference: Sequence[float] | None = None, seconds: float = 0.0) -> Estimate:
        """Estimate from slots and the reference's slots of the same rounds, scaled by the reference's time ``seconds``;
        without a reference, median and interval of the slots.
        """
        if reference is None:
            return cls(*middle(own), tuple(own))
        ratio, low, high = middle([a / b for a, b in zip(own, reference, strict=True)])
        times = ratio * seconds, low * seconds, high * seconds
        return cls(*times, tuple(own), Timing.of(reference).median_s / seconds)

    @property
    def spread(self) -> float:
        """Slowest slot over fastest."""
        return max(self.samples) / min(self.samples)

    def scaled(self, factor: float) -> Estimate:
        """This estimate with seconds and interval multiplied by ``factor``; samples and pace are kept."""
        return Estimate(self.seconds * factor, self.low_s * factor, self.high_s * factor, self.samples, self.pace)


@dataclass(frozen=True)
class ReferenceLaunch:
    """The reference kernel: its launch, and its seconds when first measured."""

    call: Timed
    seconds: float


class Rounds:
    """Interleaved timing of several callables, one slot each per round, in random order.

    calls: with rough seconds per call, to size the slots
    loud:  positions of libraries whose threads may spin after returning: the next slot waits until they rest, then
           warms up (an idle CPU is slower, by 11 % after one call, by none after 4 ms)
    """

    def __init__(self, calls: Sequence[tuple[Timed, float]], loud: Collection[int] = ()) -> None:
        self.samples: list[list[float]] = [[] for _ in calls]
        self._calls = [call for call, _ in calls]
        self._slots = [slots([call], seconds)[0] for call, seconds in calls]
        self._loud, self._spinning = frozenset(loud), bool(loud)
        self._random = random.Random(len(self._slots))

    def run(self) -> None:
        """Run one round."""
        order = list(range(len(self._slots)))
        self._random.shuffle(order)
        for n in order:
            warm_s = 0.0
            if self._spinning and n not in self._loud:
                settle()
                warm_s = WARM_S
            if self._loud:
                self._warm(n, warm_s)
            self.samples[n].append(self._slots[n]())
            self._spinning = n in self._loud

    def _warm(self, n: int, seconds: float) -> None:
        """Run untimed calls for at least ``seconds``."""
        end = time.perf_counter() + seconds
        while True:
            self._calls[n]()
            getattr(self._calls[n], "finish", _nothing)()
            if time.perf_counter() >= end:
                return

    def estimates(self, anchor: int | None = None, seconds: float | None = None) -> list[Estimate]:
        """Estimates of all callables; ``anchor``: position of the reference that slots are divided by.

        seconds: anchor's time when first measured; None: its present time
        """
        if anchor is None:
            return [Estimate.of(own) for own in self.samples]
        others, alone = self.samples[anchor], Estimate.of(self.samples[anchor])
        unit = alone.seconds if seconds is None else seconds
        made = [Estimate.of(own, others, unit) for own in self.samples]
        # over itself it is 1 in every round: its interval is that of its slots
        made[anchor] = replace(alone.scaled(unit / alone.seconds), pace=made[anchor].pace)
        return made


def middle(samples: Sequence[float]) -> tuple[float, float, float]:
    """(median, low, high): 95 % interval of at least two samples, its ends clamped to the median divided and multiplied
    by ``MAX_END_RATIO``; with fewer than six samples, their range widened.
    """
    found, wider = Timing.of(samples), _WIDER.get(len(samples), 1.0)
    middle = found.median_s
    low, high = (found.low_s / middle) ** wider, (found.high_s / middle) ** wider
    return middle, middle * max(low, 1 / MAX_END_RATIO), middle * min(high, MAX_END_RATIO)


def _nothing() -> None:
    return None


def look(
    call: Timed,
    seconds: float,
    reference: ReferenceLaunch | None = None,
    rounds: int = 10,
    least_s: float = 0.05,
    most_s: float = 0.6,
    enough: Callable[[Sequence[float], Sequence[float]], bool] | None = None,
) -> Estimate:
    """Time one callable in rounds with the reference. seconds: rough time per call

    rounds, least_s, most_s: minimum rounds and time; maximum time, but three rounds at least
    enough: predicate on both slot lists that ends timing early
    """
    if seconds < SLOT_SECONDS:  # one call alone says too much: it pays for a finish
        seconds = slots([call], seconds)[0]()
    entries = [(call, seconds)] if reference is None else [(call, seconds), (reference.call, reference.seconds)]
    turns = Rounds(entries)
    own, others = turns.samples[0], turns.samples[-1] if reference is not None else []
    began = time.perf_counter()
    while True:
        turns.run()
        spent = time.perf_counter() - began
        if enough is not None and enough(own, others):
            break
        if (len(own) >= rounds and spent >= least_s) or (len(own) >= 3 and spent >= most_s):
            break
    return Estimate.of(own) if reference is None else Estimate.of(own, others, reference.seconds)


def settle() -> None:
    """Wait until this process's threads are idle, SETTLE_S at most."""
    end = time.perf_counter() + SETTLE_S
    while True:
        used, began = time.process_time(), time.perf_counter()
        time.sleep(_NAP_S)
        now = time.perf_counter()
        if time.process_time() - used < _QUIET * (now - began) or now > end:
            return
