"""Progress lines of a tuning run: pure functions from state to text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from tensorir.runtime.machine import NO_LOAD, ProcessorLoad
from tensorir.tune.ratio import Ratio, Span
from tensorir.tune.record import Record

EVERY_S = 10.0
UNTOLD_RATIO = 10.0  # upper over lower end of a time's interval from which it is no measurement
_SHORT_STATUSES = {
    "ok": "ok",
    "illegal_schedule": "illegal",
    "compile_error": "compile",
    "compile_timeout": "compile-timeout",
    "resource_limit": "resources",
    "launch_error": "launch",
    "run_timeout": "timeout",
    "crashed": "crashed",
    "device_error": "device",
    "device_lost": "lost",
    "wrong_result": "wrong",
    "nondeterministic": "nondet",
    "skipped_slow": "slow",
    "cancelled": "cancelled",
    "internal_error": "internal",
}


@dataclass
class Progress:
    """State of a progress line.

    total:      number of configurations wanted, None if only the budget limits
    budget_s:   None if only the number limits
    baseline:   (name, seconds) of the library, once known; peer: all its fields
    known:      usable earlier records
    load:       machine load during timing; None for devices it does not disturb (GPUs)
    """

    total: int | None = None
    budget_s: float | None = None
    flops: float | None = None
    baseline: tuple[str, float] | None = None
    peer: Mapping[str, object] | None = None
    known: int = 0
    load: ProcessorLoad | None = NO_LOAD
    best: Span | None = None
    best_s: float = math.inf
    counts: Counter[str] = field(default_factory=Counter)
    printed_s: float = -math.inf

    @property
    def done(self) -> int:
        """Number of configurations measured, earlier records included."""
        return self.known + self.counts.total()

    def start(self, device: Mapping[str, object], known: int) -> None:
        """Set the device and the number of usable earlier records."""
        self.known = known
        if device.get("kind") != "cpu":
            self.load = None

    def add(self, record: Record) -> bool:
        """Count a record and its machine load; True if it passed and is the best so far, which it then becomes."""
        self.counts[record.status] += 1
        if self.load is not None:
            self.load += ProcessorLoad.of(record.load)
        time_s = record.steady_s
        if record.status != "ok" or time_s >= self.best_s:
            return False
        self.best_s, self.best = time_s, Span.of(record)
        return True

    def hear(self, peer: Mapping[str, object]) -> None:
        """Set the fields of the library's timing."""
        self.baseline, self.peer = (str(peer["name"]), float(cast("float", peer["time_s"]))), peer
        if self.load is not None:
            self.load += ProcessorLoad.of(peer.get("load"))

    @property
    def ratio(self) -> Ratio | None:
        """The library's time divided by the best so far; None if one of them is missing."""
        peer = self.peer or (self.baseline and {"time_s": self.baseline[1]})
        return None if self.best is None or not peer else Ratio.of(Span.of_library(peer), self.best, self.load)

    def due(self, elapsed_s: float, improved: bool) -> bool:
        """True if a line should be printed now: after an improvement or ten quiet seconds. A True counts as printed."""
        if not improved and elapsed_s - self.printed_s < EVERY_S:
            return False
        self.printed_s = elapsed_s
        return True


@dataclass
class SetProgress:
    """State of a progress line over several shapes. weights: by shape title"""

    weights: Mapping[str, float]
    budget_s: float | None = None
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    def add(self, record: Record) -> bool:
        """Add a record; True if it is the best so far of its shape."""
        self.counts[record.status] += 1
        title, time_s = record.workload, record.steady_s
        better = time_s < self.best.get(title, math.inf)
        if better:
            self.first.setdefault(title, time_s)
            self.best[title] = time_s
        return better

    def total(self) -> str:
        """Text: weighted sum of the best times so far, and of the first ones."""
        if not self.best:
            return "nothing valid yet"
        now, first = (sum(self.weights[t] * s for t, s in d.items()) for d in (self.best, self.first))
        return f"total {milliseconds(now)} (first {milliseconds(first)})"


def set_line(state: SetProgress, elapsed_s: float) -> str:
    """Return ``[   12s] 37 trials, 23 of 23 shapes  total 12.34 ms (first 15.02 ms)  | ok 36  wrong 1 | eta 48s``."""
    text = f"[{duration(elapsed_s):>6}] {state.counts.total()} trials, {len(state.best)} of {len(state.weights)} shapes"
    text += f"  {state.total()}" + (f"  | {statuses(state.counts)}" if state.counts else "")
    left = None if state.budget_s is None else max(0.0, state.budget_s - elapsed_s)
    return text if left is None else f"{text} | eta {duration(left)}"


def line(state: Progress, elapsed_s: float) -> str:
    """Return ``[   12s] 18/200  best 0.0581 ms  398 GF/s  54% of cudnn  | ok 15  resources 2 | eta 3m40s``."""
    parts = [f"[{duration(elapsed_s):>6}] {state.done}" + (f"/{state.total}" if state.total is not None else "")]
    if math.isfinite(state.best_s):
        parts.append(f"best {milliseconds(state.best_s)}")
        if state.flops:
            parts.append(rate(state.flops / state.best_s))
        if state.baseline is not None and (ratio := state.ratio) is not None:
            parts.append(ratio.share(state.baseline[0]))
    else:
        parts.append("nothing valid yet")
    text = "  ".join(parts)
    if state.counts:
        text += f"  | {statuses(state.counts)}"
    if state.load is not None and state.load.disturbed:
        text += f" | {state.load.words()}"
    remaining = eta(state, elapsed_s)
    return text if remaining is None else f"{text} | eta {duration(remaining)}"


def eta(state: Progress, elapsed_s: float) -> float | None:
    """Seconds until the run ends, by trials or budget; None if unknown."""
    ends = []
    new = state.counts.total()
    if state.total is not None and new:
        ends.append(max(0, state.total - state.done) * elapsed_s / new)
    if state.budget_s is not None:
        ends.append(max(0.0, state.budget_s - elapsed_s))
    return min(ends, default=None)


def statuses(counts: Mapping[str, int]) -> str:
    """Return ``ok 15  compile 2  timeout 1``: ok first, then the failures by number."""
    order = sorted(counts.items(), key=lambda item: (item[0] != "ok", -item[1], item[0]))
    return "  ".join(f"{_SHORT_STATUSES.get(status, status)} {count}" for status, count in order if count)


def duration(seconds: float) -> str:
    """Return ``12s`` (below 100 s), ``3m40s`` or ``2h05m``, rounded; ``0s`` for negative times."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def milliseconds(seconds: float) -> str:
    """Text of a time: ``0.0581 ms``, ``12.34 ms``."""
    value = seconds * 1e3
    digits = 4 if value < 10 else 3 if value < 100 else 2
    return f"{value:.{digits}f} ms"


def between(time_s: float, low_s: float | None, high_s: float | None) -> str:
    """Text of a time with interval, ``0.0581 ms  [0.0570 ms, 0.0602 ms]``; the time alone without one, and
    ``~0.0581 ms  [cannot be told on this busy machine]`` for ends further apart than ``UNTOLD_RATIO``.
    """
    text = milliseconds(time_s)
    if low_s is None or high_s is None:
        return text
    if high_s > UNTOLD_RATIO * low_s:
        return f"~{text}  [cannot be told on this busy machine]"
    return f"{text}  [{milliseconds(low_s)}, {milliseconds(high_s)}]"


def rate(flops_per_second: float) -> str:
    """Text of a rate: ``398 GF/s``, ``1.25 TF/s``."""
    giga = flops_per_second / 1e9
    if giga >= 1000:
        return f"{giga / 1000:.2f} TF/s"
    return f"{giga:.0f} GF/s" if giga >= 10 else f"{giga:.2f} GF/s"
