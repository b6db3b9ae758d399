"""What a run asks of the machine, so that everything else runs with no GPU as well."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from .building import Built, Job
from .candidates import Listed, configurations
from .problems import Problem


class Broken(Exception):
    """The device no longer works in this process; only a new one helps."""


@dataclass(frozen=True)
class Compared:
    """How a result compares with the expected one; largest: difference of one element, None where not a number.

    of_bound: the largest error over what may be, of normal numbers; None where only whole ones were compared
    """

    exact: bool
    largest: float | None = 0.0
    remark: str = ""
    of_bound: float | None = None


@dataclass(frozen=True)
class Pace:
    """How long to measure. rounds: samples of each competitor; sample_s: least seconds of one; warm_up_s: before."""

    rounds: int = 7
    sample_s: float = 2e-3
    warm_up_s: float = 0.1


@dataclass
class Times:
    """Seconds of one call in each round by competitor; failed: who could not take part, and why."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Case(ABC):
    """One problem on the device: its data, what is expected, and the libraries that compute the same."""

    about: dict[str, Any]
    """For the row: bytes and number of the buffer sets."""
    asks: Callable[[str], None] = staticmethod(lambda _: None)
    """Told the name of each library before it is asked."""
    without: Collection[str] = ()
    """Libraries that are not asked."""

    @abstractmethod
    def check(self, built: Built) -> Compared:
        """Run on small whole numbers: the result has to be the exact one, rounded once. What is not timed runs on
        normal numbers as well, which have to be as near as rounding explains.
        """

    @abstractmethod
    def errors(self, built: Built) -> dict[str, float]:
        """Largest error on normal data against float64 over the largest result: "ours" and each library."""

    @abstractmethod
    def screen(self, built: Built) -> float | None:
        """Seconds of one call, in few samples with a cold cache; None where nothing is timed."""

    @abstractmethod
    def compete(self, built: Built, pace: Pace, cold: bool) -> Times:
        """Ours and the libraries, interleaved. cold: buffers rotate through more than the L2 holds."""

    def close(self) -> None:  # noqa: B027
        """Give the memory back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Device(ABC):
    """A machine that builds programs and runs them."""

    target: str
    shared_optin_bytes: int

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """What figures depend on: names and versions."""

    def list_ahead(self, asked: Iterable[tuple[Problem, int]]) -> None:  # noqa: B027
        """The configurations of these, and how many of each, will be asked for soon."""

    def listed(self, problem: Problem, count: int, wait: bool = True) -> Listed | None:
        """Template and configurations; None where they are not known yet and nobody waits."""
        return configurations(problem, problem.target(self.target), count) if wait else None

    @abstractmethod
    def ahead(self, jobs: Iterable[Job]) -> None:
        """These will be asked for soon."""

    @abstractmethod
    def built(self, job: Job) -> Built:
        """The program of a job; BuildFailure with the reason."""

    @abstractmethod
    def case(self, problem: Problem) -> Case:
        """The data of one problem."""

    def healthy(self) -> bool:
        """Whether it still computes."""
        return True

    def close(self) -> None:  # noqa: B027
        """End what was started."""
