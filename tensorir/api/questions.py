"""Requests to measuring processes and their replies, as serializable data classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorir.api.operator import Origin
from tensorir.codec import decode, encode, travels
from tensorir.codegen.source import Source
from tensorir.errors import Problem
from tensorir.expr.reread import at_largest
from tensorir.expr.tensor import Tensor
from tensorir.tune.inputs import ArgumentRange
from tensorir.tune.trial import Known


@travels
@dataclass(frozen=True)
class Output:
    """Name, dtype and shape of one output."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> list[Output]:
        """Return the Output of each tensor, symbolic dims at their largest value."""
        return [cls(t.name, t.dtype, t.shape) for t in at_largest(list(tensors))]


# --- what is asked


@travels
@dataclass(frozen=True)
class Setup:
    """A workload on a device, as a measuring process needs it.

    key:        unique key
    origin:     recipe of the workload; None if sources are sent along
    device:     name, None for the first usable one
    exact, continuous: true if whole numbers give exact results; if results on floats are comparable
    folder:     of the expected outputs
    wait:       time only while no other tuning does
    """

    key: str
    device: str | None
    arguments: tuple[ArgumentRange, ...]
    outputs: tuple[Output, ...]
    origin: Origin | None = None
    title: str = ""
    exact: bool = True
    continuous: bool = False
    folder: str = ""
    wait: bool = True

    @property
    def elements(self) -> int:
        """Total number of elements of all arguments and outputs."""
        return sum(_size(a.shape) for some in (self.arguments, self.outputs) for a in some)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


@travels
@dataclass(frozen=True)
class Ready:
    """A configuration's source made by another process.

    max_error: see ``tensorir.api.candidate.Candidate``
    """

    source: Source
    known: Known
    max_error: float | None


@travels(sparse=True)
@dataclass(frozen=True)
class Wanted:
    """A configuration to process.

    ready:  its source if already made; None: the measuring process makes it
    sha256: required digest of its source, if any
    """

    template: str
    config: Mapping[str, object]
    ready: Ready | None = None
    sha256: str | None = None

    @property
    def known(self) -> Known:
        """Facts about the configuration known before it is processed; an empty Known if its source is not made yet."""
        return Known() if self.ready is None else self.ready.known


@travels
@dataclass(frozen=True)
class Standard:
    """The run's reference configuration, timed interleaved with others.

    seconds: per call, in its own trial
    """

    wanted: Wanted
    seconds: float

    @property
    def name(self) -> str:
        """Text that identifies the reference."""
        return f"{self.wanted.sha256} {self.seconds}"


@travels
@dataclass(frozen=True)
class Hello:
    """A request for the device's description; answered by DeviceDescription, or by Unusable."""


@travels(sparse=True)
@dataclass(frozen=True)
class Measure:
    """Measure a configuration; the outcome is the answer.

    best_s:  the least seconds so far: what is clearly slower is refused early
    seconds: until all must be done
    """

    wanted: Wanted
    best_s: float | None = None
    reference: Standard | None = None
    seconds: float | None = None


@travels
@dataclass(frozen=True)
class Build:
    """Make, check and compile a configuration; answered by Ready, with the seconds of its phases."""

    wanted: Wanted


@travels
@dataclass(frozen=True)
class Digest:
    """Request for the digests of several configurations' sources; answered by Digests."""

    wanted: tuple[Wanted, ...]


@travels
@dataclass(frozen=True)
class Examine:
    """Request to run every check on a configuration; answered by Checks."""

    wanted: Wanted


@travels(sparse=True)
@dataclass(frozen=True)
class FirstPeer:
    """Request to time the fastest library briefly; answered by a Peer, or None if there is none."""

    reference: Standard | None = None


@travels(sparse=True)
@dataclass(frozen=True)
class Final:
    """Measure the finalists again, interleaved with each other and with libraries; answered by a FinalRound.

    race_s:  seconds that the finalists race at most
    floats:  the seed of the inputs
    seconds: until all must be done, None for no limit
    peers:   whether libraries are timed at all; all_peers: the slow ones as well
    """

    finalists: tuple[Wanted, ...]
    race_s: float
    floats: int
    seconds: float | None = None
    peers: bool = True
    all_peers: bool = False
    reference: Standard | None = None


@travels
@dataclass(frozen=True)
class Guarded:
    """Request to run untrusted text on arrays in ``folder``; answered by Ran or Failed."""

    source: Source
    folder: str


Question = Hello | Measure | Build | Digest | Examine | FirstPeer | Final | Guarded
QUESTIONS: dict[str, type[Question]] = {
    "hello": Hello,
    "measure": Measure,
    "build": Build,
    "digests": Digest,
    "check": Examine,
    "baseline": FirstPeer,
    "final": Final,
    "guarded": Guarded,
}
_NAMES = {kind: name for name, kind in QUESTIONS.items()}


@travels(sparse=True)
@dataclass(frozen=True)
class Request:
    """A question with its setup.

    expect: what the device must be like (``tensorir.api.identity.fingerprint``), None for any
    limits: seconds for some phases, where they are other than usual
    """

    do: str
    question: Mapping[str, Any]
    setup: Setup
    expect: Mapping[str, object] | None = None
    limits: Mapping[str, float] | None = None

    @classmethod
    def of(
        cls,
        question: Question,
        setup: Setup,
        expect: Mapping[str, object] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Request:
        """Request with ``question`` encoded under the name of its class."""
        return cls(_NAMES[type(question)], encode(question), setup, expect, limits)

    def asked(self) -> Question:
        """Return the decoded question."""
        return decode(QUESTIONS[self.do], self.question)


# --- what is answered


@travels
@dataclass(frozen=True)
class DeviceDescription:
    """A device (``api.identity.describe``) and the names of the workload's baselines, () without a workload here."""

    device: Mapping[str, object]
    baselines: tuple[str, ...] = ()


@travels
@dataclass(frozen=True)
class Unusable:
    """A worker's answer that its device cannot be opened, with the problems."""

    problems: tuple[Problem, ...]


@travels
@dataclass(frozen=True)
class Digests:
    """The SHA-256 of each source, None where there is none."""

    found: tuple[str | None, ...]


@travels
@dataclass(frozen=True)
class Checked:
    """Name of one check, whether it passed, and details as text."""

    name: str
    ok: bool
    detail: str


@travels
@dataclass(frozen=True)
class Checks:
    """All checks of a configuration, up to the first that failed."""

    checks: tuple[Checked, ...]

    @property
    def ok(self) -> bool:
        """True if all passed."""
        return all(c.ok for c in self.checks)


@travels
@dataclass(frozen=True)
class Ran:
    """Answer to a guarded run that finished: problems found in the guard bytes, () if none."""

    problems: tuple[Problem, ...]


@travels
@dataclass(frozen=True)
class Failed:
    """A guarded run failed: exception class, problems, compiler output."""

    kind: str
    problems: tuple[Problem, ...]
    log: str = ""
