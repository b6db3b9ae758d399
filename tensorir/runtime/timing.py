"""Times callables in batches or short slots; medians with nonparametric confidence intervals.

What tuning stores and prints is estimated from slots by ``tensorir.runtime.estimate``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from math import ceil, comb
from typing import Protocol

from tensorir.errors import LaunchError, Problem
from tensorir.errors.needs import need_int, need_list, need_number, wrong
from tensorir.errors.shown import Shown

BATCH_SECONDS = 0.004  # long against the 30-80 us of one finish, short against changes of the machine's speed
PART_SECONDS = 0.0005  # short against the time slices of other programs
SLOT_PARTS = 3  # more of them leave less noise, but other kernels must wait longer for their turn
SLOT_SECONDS = 0.006
_MOST_PER_BATCH = 10000
_CONFIDENCE = 0.95


@dataclass(frozen=True, repr=False)
class Timing(Shown):
    """Seconds per call: the median of ``samples`` and its 95 % confidence interval.

    Fewer than six samples cannot give 95 %; low and high are then the smallest and the largest.

    samples: seconds per call, one per batch
    copies:  problems ``launch.copied-…`` for host arrays that a call copies first, which is not in the time
    """

    median_s: float
    low_s: float
    high_s: float
    samples: tuple[float, ...] = field(repr=False)
    copies: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[float]) -> Timing:
        """Median and interval of ``samples``, seconds per call; raises LaunchError for none, or for no numbers."""
        given = need_list("samples", samples, "seconds", LaunchError)
        if not given:
            raise wrong("samples", samples, "at least one", LaunchError)
        kept = tuple(need_number("a sample", s, error=LaunchError) for s in given)
        ordered = sorted(kept)
        skip = outside(len(ordered))
        half = len(ordered) // 2
        median = ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
        return cls(median, ordered[skip], ordered[-1 - skip], kept)

    def __str__(self) -> str:
        scale, unit = next((p for p in ((1.0, "s"), (1e-3, "ms")) if self.median_s >= p[0]), (1e-6, "us"))
        low, middle, high = (x / scale for x in (self.low_s, self.median_s, self.high_s))
        said = f"{middle:.4g} {unit} [{low:.4g}, {high:.4g}] of {len(self.samples)}"
        return said + (f", without copying {copied_names(self.copies)}" if self.copies else "")

    def __repr__(self) -> str:
        return f"<Timing {self}>"


def copied_names(copies: Iterable[Problem]) -> str:
    """Names of the copied arrays, separated by commas, from the problems that report the copies."""
    return ", ".join(dict.fromkeys(p.message.partition(":")[0] for p in copies))


@cache
def outside(n: int) -> int:
    """Number k of samples beyond either end of the median's 95 % confidence interval, of n samples.

    The interval from the (k+1)-th smallest to the (k+1)-th largest misses the median with probability
    2 P(Binomial(n, 1/2) <= k). 0 for n < 9; below 6 samples the full range has less confidence.
    """
    if n > 1000:  # the normal approximation, rounded outwards
        return max(0, int(n / 2 - 1.96 * n**0.5 / 2) - 1)
    skip, tail = 0, 0
    for k in range(n // 2):
        tail += comb(n, k)
        if 2 * tail > (1 - _CONFIDENCE) * 2**n:
            break
        skip = k
    return skip


class Launch(Protocol):
    """Interface of an asynchronous call with ``finish``, such as BoundLaunch."""

    def __call__(self) -> object: ...

    def finish(self) -> None: ...


Timed = Launch | Callable[[], object]


def _nothing() -> None:
    return None


class _Batch:
    """Runs a callable in batches of ``calls`` calls, by default lasting about BATCH_SECONDS."""

    def __init__(self, call: Timed, calls: int = 0) -> None:
        self._call: Callable[[], object] = call
        self._finish: Callable[[], object] = getattr(call, "finish", _nothing)
        self.calls = calls or 1
        if not calls:
            self.run()  # the first launch compiles
            self.calibrate()

    def run(self) -> float:
        """Seconds per call of one batch."""
        call, finish, calls = self._call, self._finish, self.calls
        started = time.perf_counter()
        for _ in range(calls):
            call()
        finish()
        return (time.perf_counter() - started) / calls

    def calibrate(self) -> None:
        """Choose the batch size, warming up meanwhile."""
        for _ in range(8):
            seconds = self.run()
            wanted = min(_MOST_PER_BATCH, max(1, ceil(BATCH_SECONDS / max(seconds, 1e-9))))
            grown = min(wanted, self.calls * 16)
            if 0.7 * grown <= self.calls <= 1.5 * grown:
                return
            self.calls = grown


def slots(calls: Sequence[Timed], seconds: float) -> list[Callable[[], float]]:
    """Per callable, a function that runs several short parts and returns seconds per call of the fastest part.

    Other programs only ever slow a part down, and they rarely meet all of them: on two cores with a load of six, ratios
    of such times scattered by 5 % where those of whole batches scattered by 20 %, and interleaved slots follow each
    other before the load has changed. Each part pays for a finish of its own.

    seconds: of one call of the fastest, roughly. All have parts of as many calls and as many parts, else the same
             kernel twice would not be measured alike
    """
    repeated = max(1, min(_MOST_PER_BATCH, ceil(PART_SECONDS / max(seconds, 1e-9))))
    parts = max(1, min(SLOT_PARTS, int(SLOT_SECONDS / max(seconds * repeated, 1e-9))))

    def slot(batch: _Batch) -> float:
        return min(batch.run() for _ in range(parts))

    return [partial(slot, _Batch(call, repeated)) for call in calls]


def batch(call: Timed, calls: int) -> float:
    """Seconds per call over ``calls`` calls, clamped to 1 to 10,000, and one finish."""
    return _Batch(call, max(1, min(_MOST_PER_BATCH, calls))).run()


def measure(call: Timed, repeat: int = 30, min_seconds: float = 0.1, max_seconds: float = 10.0) -> Timing:
    """Timing of one callable, a sample per batch of calls (some 4 ms): at least ``repeat`` batches and ``min_seconds``,
    but it stops after ``max_seconds``, once it has three. Warm-up batches precede and are not counted.

    Raises LaunchError for numbers out of range.
    """
    need_int("repeat", repeat, 1, error=LaunchError)
    need_number("min_seconds", min_seconds, 0, LaunchError), need_number("max_seconds", max_seconds, 0, LaunchError)
    batch, samples, started = _Batch(call), list[float](), time.perf_counter()
    while True:
        samples.append(batch.run())
        elapsed = time.perf_counter() - started
        if (len(samples) >= repeat and elapsed >= min_seconds) or (elapsed >= max_seconds and len(samples) >= 3):
            return Timing.of(samples)


def interleaved(calls: Sequence[Timed], rounds: int = 30) -> list[Timing]:
    """Timing of each of several callables, interleaved: one batch each per round, so that drift affects all equally.

    A callable with a ``finish`` method (a BoundLaunch) is enqueued in a batch and finished once; others are
    taken to be complete when they return. The order of a round starts one further each time. At least one round is run.
    """
    batches = [_Batch(call) for call in calls]
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(max(1, rounds)):
        for place in range(len(batches)):
            n = (turn + place) % len(batches)
            samples[n].append(batches[n].run())
    return [Timing.of(s) for s in samples]
