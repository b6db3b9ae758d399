"""Ratios of times with intervals, and the decision whether one may be reported; all reported ratios come from here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tensorir.codec import Json
from tensorir.errors.shown import Shown
from tensorir.runtime.estimate import SPREAD_RATIO, middle
from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune.record import Record, interval

UNSTEADY_WIDTH = 1.5  # upper over lower end of the ratio's interval from which it is unsteady,
UNTOLD_WIDTH = 4.0  # and from which no number is given, nor for an unsteady one
ABSURD_RATIO = 10.0  # of more than that, or less than a tenth
ALIKE_RATIO = 1.05  # a ratio this near to 1 says "alike", and its interval may hold 1


@dataclass(frozen=True, repr=False)
class Span(Shown):
    """A time in seconds with its interval and spread (slowest slot over fastest).

    slots: times per round, interleaved with other kernels; comparable with slots of the same ``round``
    """

    time_s: float
    low_s: float
    high_s: float
    spread: float = 1.0
    slots: tuple[float, ...] = field(default=(), repr=False)
    round: str = ""

    @classmethod
    def of(cls, record: Record) -> Span:
        """Seconds of a record with interval, spread and times per round; the record must have a time."""
        return cls(record.steady_s, *record.span, _spread(record.samples), tuple(record.samples), record.round or "")

    @classmethod
    def of_library(cls, document: Mapping[str, object]) -> Span:
        """Seconds of a library with interval, spread and times per round, from fields ``time_s``, ``low_s``, …."""
        said = cast("Mapping[str, Any]", document)
        seconds, low, high = (
            max(float(said["time_s"]), math.ulp(0.0)),
            said.get("low_s"),
            said.get("high_s"),
        )
        slots, name = tuple(said.get("samples") or ()), str(said.get("round") or "")
        if low is None or high is None:
            low, high = interval(list(slots), seconds)
        spread = float(said.get("spread") or _spread(slots))
        return cls(seconds, min(low, seconds), max(high, seconds), spread, slots, name)

    def scaled(self, factor: float) -> Span:
        """Span with time and interval multiplied by ``factor``; times per round are kept."""
        return replace(self, time_s=self.time_s * factor, low_s=self.low_s * factor, high_s=self.high_s * factor)

    def over(self, other: Span) -> tuple[float, float]:
        """(low, high) of this time divided by the other: from slot-wise ratios if both share rounds, as common
        disturbances cancel; else combined from both intervals in log scale (Zou and Donner, "Construction of confidence
        limits about effect measures", Statistics in Medicine 27, 2008).
        """
        level = self.time_s / other.time_s
        if self.round and self.round == other.round and len(self.slots) == len(other.slots) > 1:
            found, low, high = middle([a / b for a, b in zip(self.slots, other.slots, strict=True)])
            return level * low / found, level * high / found
        below = math.hypot(math.log(self.time_s / self.low_s), math.log(other.high_s / other.time_s))
        above = math.hypot(math.log(self.high_s / self.time_s), math.log(other.time_s / other.low_s))
        return level * math.exp(-below), level * math.exp(above)


def _spread(slots: Sequence[float]) -> float:
    return max(slots) / min(slots) if slots else 1.0


@dataclass(frozen=True, repr=False)
class Ratio(Shown):
    """A ratio of times: ``value`` with interval ``low`` to ``high`` (``Span.over``).

    doubt: reason why it is unreliable; "" if reliable
    """

    value: float
    low: float
    high: float
    doubt: str = ""

    @classmethod
    def of(cls, above: Span, below: Span, load: ProcessorLoad | None = None) -> Ratio:
        """``above`` divided by ``below``; load: machine load during timing, if relevant."""
        value = above.time_s / below.time_s
        low, high = above.over(below)
        said = "" if load is None else load.words()
        if max(above.spread, below.spread) >= SPREAD_RATIO:
            said = f"slowest {max(above.spread, below.spread):.1f} times the fastest"
        elif not high <= UNSTEADY_WIDTH * low or value == math.inf:  # nor where times are no clock's
            said = f"anything from {_plain(low)} to {_plain(high)}"
        elif low <= 1.0 <= high and not 1 / ALIKE_RATIO <= value <= ALIKE_RATIO:
            said = f"{low:.2g} to {high:.2g} does not say which is faster"
        return cls(value, low, high, said)

    @classmethod
    def given(cls, fields: Json) -> Ratio:
        """A ratio read back from the fields that ``json`` wrote."""
        return cls(fields["ratio"], fields["ratio_low"], fields["ratio_high"], fields.get("doubt", ""))

    @property
    def steady(self) -> bool:
        """True if the ratio is reliable enough to report without a caveat."""
        return not self.doubt

    def text(self, of: str = "") -> str:
        """``1.70x numpy``; ``~1.7x numpy (unsteady)``; or a note that none can be given."""
        name = f" {of}" if of else ""
        if self.steady:
            return f"{self.value:.2f}x{name}"
        if self.hopeless:
            return f"unsteady{name and ' against'}{name}"
        return f"~{self.value:.2g}x{name} (unsteady)"

    def share(self, of: str) -> str:
        """Text ``54% of cudnn``; ``~54% of cudnn (unsteady)``; or ``unsteady against cudnn`` if no number can be
        given.
        """
        if self.steady:
            return f"{self.value:.0%} of {of}"
        return f"unsteady against {of}" if self.hopeless else f"~{self.value:.0%} of {of} (unsteady)"

    @property
    def hopeless(self) -> bool:
        """True if not even an approximate number can be given."""
        known = self.high <= UNTOLD_WIDTH * self.low and 1 / ABSURD_RATIO <= self.value <= ABSURD_RATIO
        return not self.steady and not known

    def json(self) -> dict[str, object]:
        """Dict for JSON documents: ratio, ratio_low, ratio_high, steady, and doubt if any."""
        found = {"ratio": self.value, "ratio_low": self.low, "ratio_high": self.high, "steady": self.steady}
        return found | ({"doubt": self.doubt} if self.doubt else {})


def _plain(x: float) -> str:
    return f"{x:.2g}" if x < 100 else f"{x:,.0f}"


def without_slots(peer: Mapping[str, object]) -> dict[str, object]:
    """A library's timing fields for documents, slots omitted."""
    return {k: v for k, v in peer.items() if k not in ("samples", "round")}
