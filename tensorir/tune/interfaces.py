"""Interfaces of a search's collaborators: space, strategy, bench (the measuring side), log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tensorir.tune.claims import Others
from tensorir.tune.flight import Flights
from tensorir.tune.pool import Config, HasRows
from tensorir.tune.record import Record, RunIdentity
from tensorir.tune.trial import FinalRound, Outcome, Trial

GRACE_S = 1.5  # that the first trial may take beyond the budget: no run outlives its own by more than two seconds
Table = Mapping[int, float | None]
"""{row: seconds, None if failed}, as measured on another device or for another shape."""


class SpaceLike(HasRows, Protocol):
    """Interface of a configuration space; implemented by ``tensorir.tune.space.Space``."""

    @property
    def size(self) -> int: ...
    @property
    def default(self) -> Config: ...
    def config(self, row: int) -> Config: ...
    def index(self, config: Mapping[str, object]) -> int: ...


class Strategy(Protocol):
    """Interface of a search strategy: proposes rows (``ask``) and receives times (``tell``).

    A row is an index into the pool (``Space.legal``). ``ask`` never repeats a row and never returns one that
    was told; the list is shorter than ``n``, in the end empty, when the pool is exhausted. ``counts``, ``surrogate``,
    ``expected_gain``, ``forget`` and ``load`` are used where there are any.
    """

    def ask(self, n: int = 1) -> list[int]:
        """Propose up to ``n`` unmeasured rows; [] when exhausted."""
        ...

    def tell(self, row: int, seconds: float | None) -> None:
        """Record the time of a row; None (or no finite positive number) if it failed.

        Rows that were never asked for are welcome: earlier records, the default configuration.
        """
        ...


Make = Callable[..., Strategy]
"""``make(name, space, seed=…, budget=…)`` returns a strategy, with ``priors=…`` where there are any."""


class Log(Protocol):
    """Interface of a log; implemented by ``tensorir.tune.store.LogWriter``."""

    @property
    def path(self) -> Path: ...
    def append(self, record: Record) -> None: ...


class Ahead(Protocol):
    """Interface of a builder that compiles several configurations in parallel before they are timed."""

    @property
    def width(self) -> int: ...
    def build(self, wanted: Sequence[Trial], remaining_s: float | None) -> Sequence[Outcome | None]:
        """Outcome of each trial that building determines (such as a compile error), in order; None for one to be
        measured.
        """
        ...


@dataclass(frozen=True)
class Bench:
    """The measuring side of a search, as functions.

    measure: ``measure(trial, remaining_s)`` returns what became of it. After ``remaining_s`` seconds (None: no limit)
             it must have returned, ``CANCELLED`` when it was not done: such a trial is neither logged nor counted
    final:   re-measures finalists interleaved with each other and with the baseline; None for no final round
    ahead:   builds the next few configurations at once; the strategy is then asked for them together
    flights: places that measure at the same time, in place of ``measure``. In which order they answer decides what is
             asked next, so only one place gives the same trials again
    cold_s:  seconds until a new worker is ready: the final round may need one, as what hangs is killed
    """

    measure: Callable[[Trial, float | None], Outcome]
    final: Callable[[Sequence[Record], float | None], FinalRound] | None = None
    ahead: Ahead | None = None
    flights: Flights | None = None
    cold_s: float = 0.0


@dataclass(frozen=True)
class Task:
    """The computation to tune.

    spaces: of all templates; the first template's default is *the* default
    reuse:  earlier records of any kind. Those accepted by ``identity`` inform the strategy and are not measured again;
            those of other devices, versions and shapes with configurations legal here are warm starts
            (``tensorir.tune.warm_start``)
    priors: warm-start tables by template; from ``reuse`` when None
    known:  trials of ``reuse`` that need no second measurement; from ``usable`` when None
    own:    ids of trials of this run, never measured again
    flops:  operations of one run, for rates; None: no rates
    """

    identity: RunIdentity
    spaces: Mapping[str, SpaceLike]
    reuse: Iterable[Record] = ()
    flops: float | None = None
    priors: Mapping[str, Sequence[Table]] | None = None
    own: frozenset[str] = frozenset()
    known: Sequence[Record] | None = None


@dataclass(frozen=True)
class SearchPart:
    """Options for one part of a longer search, as a time slice of one shape among several.

    also:     ids of trials for the final round, whatever their times
    defaults: measure the templates' defaults first, then the strategies' choices
    grace_s:  seconds past the budget for the first trial while nothing is known
    make:     the maker of strategies; ``tensorir.tune.strategy.make`` when None
    clock:    function that returns the time in seconds
    others:   other processes on the same log; their configurations are left to them
    """

    also: frozenset[str] = frozenset()
    defaults: bool = True
    grace_s: float = GRACE_S
    make: Make | None = None
    clock: Callable[[], float] = field(default=time.monotonic)
    others: Others | None = None
