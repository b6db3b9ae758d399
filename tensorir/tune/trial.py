"""Data classes of measurements: request (Trial), result (Outcome), final round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from tensorir.codec import CodecError, decode, travels
from tensorir.runtime.machine import ProcessorLoad


@travels(sparse=True)
@dataclass(frozen=True)
class Trial:
    """A request to measure one configuration.

    kind:   "default" or "trial"; trials after a failed default are "default" until one passes
    best_s: the least seconds of a valid result so far, where several trials are measured at the same time
    """

    template: str
    config: Mapping[str, object]
    kind: str = "trial"
    best_s: float | None = None


@travels
@dataclass(frozen=True)
class Check:
    """Result of a comparison with the reference.

    max_err: the largest difference; a word where it is no number
    shapes:  on which shapes, and where
    """

    ok: bool
    max_err: float | str | None = None
    shapes: tuple[str, ...] = ()


@travels(sparse=True)
@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about a configuration known before it is timed, as in its record."""

    trace: list[Any] | None = None
    source_sha256: str | None = None
    check: Check | None = None
    resources: Mapping[str, Any] | None = None


@travels(sparse=True)
@dataclass(frozen=True)
class Standing:
    """The result of one contestant in a race.

    standing: ``best``; ``tie``: not found slower than any other; ``slower``: than contestant ``than``
    ratio:    its time over that of the best, from medians over the rounds in which both ran
    low, high: order statistics of the ratio, a 95 % interval of its median for two contestants chosen beforehand and a
               number of rounds fixed beforehand; the best is chosen by its times, so this one is a little too narrow
    rounds:   in how many it ran
    """

    standing: str
    ratio: float
    low: float
    high: float
    rounds: int
    than: int | None = None


@travels(sparse=True)
@dataclass(frozen=True)
class Outcome(Known):
    """Outcome of a measurement: the fields of its record that are the measurement's own.

    status:    one of ``tensorir.tune.record.STATUSES``
    detail:    why it failed, where, and what else is worth knowing: plain data
    estimator: how the time was come by (``tensorir.runtime.estimate``)
    drift:     by how much slower the machine was than in the reference's own trial
    load:      use of the processor by other processes meanwhile
    race:      how it came out of the race of a final round
    device:    which of several devices of one kind measured it
    """

    status: str
    detail: Mapping[str, Any] | str | None = None
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    samples: tuple[float, ...] | None = None
    estimator: str | None = None
    drift: float | None = None
    load: ProcessorLoad | None = None
    flags: tuple[str, ...] | None = None
    race: Standing | None = None
    device: Mapping[str, object] | None = None

    @property
    def ok(self) -> bool:
        """True for a right result with a time."""
        return self.status == "ok"

    @property
    def told(self) -> Mapping[str, Any]:
        """The detail as a mapping; {} if it is a text or absent."""
        return self.detail if isinstance(self.detail, Mapping) else {}

    @property
    def phase(self) -> str:
        """Phase in which the trial ended; "" if unknown."""
        return str(self.told.get("phase", ""))

    @property
    def steady_s(self) -> float:
        """Seconds to compare: ``time_s``, from which the machine's drift is already divided out; inf without a time."""
        return math.inf if self.time_s is None else max(self.time_s, math.ulp(0.0))

    def telling(self, **more: object) -> Self:
        """This outcome with entries added to its detail, unless that is a text."""
        return self if isinstance(self.detail, str) else replace(self, detail={**self.told, **more})

    def knowing(self, known: Known) -> Self:
        """This outcome with missing fields filled from ``known``."""
        own = {f.name: getattr(self, f.name) for f in fields(Known)}
        return replace(self, **{n: getattr(known, n) for n, v in own.items() if v is None})


_OUTCOME = tuple(f.name for f in fields(Outcome))
CANCELLED = Outcome("cancelled")
"""Outcome of a trial for which no time was left: neither logged nor counted."""


@travels(sparse=True)
@dataclass(frozen=True)
class Reply(Outcome):
    """Outcome of a request to a worker.

    answer: the requested data; None if the outcome says it all
    last:   true if the worker cannot continue and the next request needs a new one
    """

    answer: Mapping[str, Any] | None = None
    last: bool | None = None

    @classmethod
    def of(cls, data: Mapping[str, object]) -> Reply:
        """Parse a worker's message, which is untrusted, as candidates ran in that process."""
        try:
            return decode(cls, data)
        except CodecError as error:
            return cls("internal_error", {"message": f"an answer that cannot be read: {error}"[:1000]})

    @classmethod
    def just(cls, outcome: Outcome) -> Reply:
        """A Reply with an outcome and no answer."""
        return cls(**{name: getattr(outcome, name) for name in _OUTCOME})

    @property
    def outcome(self) -> Outcome:
        """Outcome without the fields of a reply, as it is recorded."""
        return Outcome(**{name: getattr(self, name) for name in _OUTCOME})


@travels(sparse=True)
@dataclass(frozen=True)
class Peer:
    """Timing of a vendor library.

    spread: slowest slot over fastest; samples: the slots, in seconds
    load:   machine load during timing, if timed alone
    """

    name: str
    time_s: float
    low_s: float | None = None
    high_s: float | None = None
    spread: float | None = None
    samples: tuple[float, ...] | None = None
    load: ProcessorLoad | None = None


@travels(sparse=True)
@dataclass(frozen=True)
class FinalRound:
    """Result of a final round: finalists and libraries, timed interleaved.

    results:  Outcome of each finalist, in order; status tells if it turned out wrong or crashed. A finalist that its
              ``race`` does not call slower than another ties with the best
    baseline: the fastest library of ``against`` in the same round
    load:     load of the machine by other processes meanwhile
    """

    results: tuple[Outcome, ...]
    baseline: Peer | None = None
    load: ProcessorLoad | None = None
    against: tuple[Peer, ...] = ()
