"""A part of an automatic schedule: the stages that one rule schedules, and how."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, cast

from tensorir.automatic.facts import Graph, Nest, widest_bits
from tensorir.errors.shown import Shown
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate
from tensorir.tune.space import Space

Config = Mapping[str, int]
"""The values of knobs: whole numbers, other than what an engine alone reads."""


def configurations(knobs: Mapping[str, Sequence[object]]) -> Iterator[Config]:
    """All configurations of knobs, legal or not."""
    for values in itertools.product(*knobs.values()):
        yield cast("Config", dict(zip(knobs, values, strict=True)))


class Part(ABC, Shown):
    """Stages that a rule has claimed, ``anchor`` the last of them, which it schedules for a configuration.

    rule:   the name of the rule
    reason: why the rule claims them, with numbers; the trace says it with every step
    needs:  what a target must have besides, such as "sm_80"
    approximate: whether it computes in another way than declared, with rounding of its own: never the default
    plainest: whether nothing plainer is left to try, so that no length of text is too much
    """

    rule: ClassVar[str]
    plainest: ClassVar[bool] = False
    needs: str = ""
    approximate: bool = False

    def __init__(self, graph: Graph, anchor: Nest, target: Target, names: Sequence[str] = (), reason: str = "") -> None:
        self.graph, self.anchor, self.target, self.reason = graph, anchor, target, reason
        self.names = frozenset((*names, anchor.name))

    def __repr__(self) -> str:
        return f"<{self.name} of {', '.join(sorted(self.names))}: {self.reason}>"

    @property
    def name(self) -> str:
        """The name of this way to schedule them, in the names of templates."""
        return self.rule

    @abstractmethod
    def schedule(self, s: BaseSchedule, config: Config) -> None:
        """Schedule the stages of a program in which nothing else was done to them."""

    def declare(self, s: BaseSchedule, config: Config) -> None:
        """Declare the stages otherwise, by a registered algorithm, before any stage is inlined or scheduled."""

    def declared(self, s: BaseSchedule, config: Config) -> None:
        """Likewise; the trace says the rule and why it claims the stages."""
        with s.because(f"{self.rule}: {self.reason}"):
            self.declare(s, config)

    def steps(self, s: BaseSchedule, config: Config) -> None:
        """Schedule the stages; the trace says the rule and why it claims them."""
        with s.because(f"{self.rule}: {self.reason}"):
            self.schedule(s, config)

    @cached_property
    def space(self) -> Space:
        """Its configurations."""
        return Space(where=self.where(), default=self.start(), **self.knobs()).expecting(self.expected())

    @property
    def alone(self) -> bool:
        """True when a definition has no other stages."""
        return self.names >= {*self.graph.nests}

    def knobs(self) -> Mapping[str, Sequence[object]]:
        """The knobs with their values, those to start with first."""
        return {}

    def where(self) -> Mapping[str, Predicate]:
        """The constraints of legal configurations, by name."""
        return {}

    def start(self) -> Config | None:
        """The configuration to start from; None for the first legal one."""
        return None

    def expected(self) -> Callable[[Config], float] | None:
        """The seconds that a configuration is expected to take; None where nobody can tell."""
        return None

    def legal(self, **fixed: object) -> Iterator[Config]:
        """The legal configurations, with some knobs fixed."""
        tests = self.where().values()
        knobs = {name: [fixed[name]] if name in fixed else values for name, values in self.knobs().items()}
        return (c for c in configurations(knobs) if all(t(c) for t in tests))

    def fastest(self) -> Config | None:
        """The legal configuration that is expected to be fastest; None where none is legal, or nobody can tell."""
        seconds = self.expected()
        return None if seconds is None else min(self.legal(), key=seconds, default=None)

    @cached_property
    def bits(self) -> int:
        """Bits of the widest element that is read or made."""
        return widest_bits(self.graph.nests[name] for name in self.names)

    @property
    def work(self) -> float:
        """The amount of work, to tell which part is the one that counts: operations, and bytes moved."""
        nests = [self.graph.nests[name] for name in self.names if name in self.graph.nests]
        return sum(n.work + 4.0 * n.moved for n in nests)
