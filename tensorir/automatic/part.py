"""``Part``: stages of a definition claimed by one rule, with knobs, constraints, cost model and schedule steps."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, cast

from tensorir.automatic.facts import Graph, Nest, widest_bits
from tensorir.automatic.levels import Levels, levels_of
from tensorir.errors.shown import Shown
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate
from tensorir.tune.space import Space

Config = Mapping[str, int]
"""Values of a part's knobs, by name: integers, except for knobs that only an engine reads."""
CLEARLY = 1.5
"""Least ratio of modelled seconds by which a plan or part goes before another: models differ by less."""


def parts_of(c: Config) -> int:
    """Parts of what a configuration splits, from its knob ``parts``; 1 without one."""
    return int(c.get("parts", 1))


def configurations(knobs: Mapping[str, Sequence[object]]) -> Iterator[Config]:
    """All combinations of knob values, legal or not."""
    for values in itertools.product(*knobs.values()):
        yield cast("Config", dict(zip(knobs, values, strict=True)))


class Part(ABC, Shown):
    """Stages that one rule claims and schedules by a configuration; ``anchor`` is the last stage.

    rule:   name of the rule
    reason: text for the trace, with numbers: the reason for the claim
    needs:  required feature of the target, such as "sm_80"; "" for none
    approximate: True if the algorithm differs from the declared one and rounds otherwise: never the default
    scalar: True if most of its work is not in vectors, on a device that has some
    plainest: True if no simpler part exists, so that its code length is not limited
    stored: names of claimed stages besides ``anchor`` whose results are stored, for other stages or as outputs
    """

    rule: ClassVar[str]
    plainest: ClassVar[bool] = False
    needs: str = ""
    approximate: bool = False
    scalar: bool = False
    stored: frozenset[str] = frozenset()

    def __init__(self, graph: Graph, anchor: Nest, target: Target, names: Sequence[str] = (), reason: str = "") -> None:
        self.graph, self.anchor, self.target, self.reason = graph, anchor, target, reason
        self.names = frozenset((*names, anchor.name))

    def __repr__(self) -> str:
        return f"<{self.name} of {', '.join(sorted(self.names))}: {self.reason}>"

    @property
    def name(self) -> str:
        """Name of the part in names of templates."""
        return self.rule

    @abstractmethod
    def schedule(self, s: BaseSchedule, config: Config) -> None:
        """Schedule the claimed stages in ``s``, in which no other step was applied to them."""

    def declare(self, s: BaseSchedule, config: Config) -> None:
        """Replace the stages by another algorithm (``s.redeclare``) before any stage is inlined or scheduled; does
        nothing unless overridden.
        """

    def declared(self, s: BaseSchedule, config: Config) -> None:
        """Replace the declared algorithm by the part's, if it has another (``declare``); the trace has the rule and its
        reason.
        """
        with s.because(f"{self.rule}: {self.reason}"):
            self.declare(s, config)

    def steps(self, s: BaseSchedule, config: Config) -> None:
        """Schedule the claimed stages in ``s`` by a configuration (``schedule``); the trace has the rule and its
        reason.
        """
        with s.because(f"{self.rule}: {self.reason}"):
            self.schedule(s, config)

    @cached_property
    def space(self) -> Space:
        """Search space of the part, cached: knobs, constraints, default configuration and cost model.

        The default is what ``start()`` returns, or the first legal configuration if that is None. Without a legal one,
        the space's ``default`` and ``legal`` raise DeclarationError ``space.empty``; an illegal one of ``start()`` is
        ``space.default-illegal`` at once.
        """
        return Space(where=self.where(), default=self.start(), **self.knobs()).expecting(self.expected())

    @property
    def alone(self) -> bool:
        """True if the definition has no stages other than the claimed ones."""
        return self.names >= {*self.graph.nests}

    def scope(self, nest: Nest, near: str) -> str | None:
        """The scope ``near`` for the results of a stage; None for outputs, which are in global memory."""
        return None if self.graph.is_output(nest) else near

    def knobs(self) -> Mapping[str, Sequence[object]]:
        """Knob name -> values, preferred ones first."""
        return {}

    def where(self) -> Mapping[str, Predicate]:
        """Constraint name -> predicate; a configuration is legal if all hold."""
        return {}

    def start(self) -> Config | None:
        """Default configuration; None for the first legal one."""
        return None

    def expected(self) -> Callable[[Config], float] | None:
        """Cost model, configuration -> seconds; None if there is no model."""
        return None

    def legal(self, **fixed: object) -> Iterator[Config]:
        """Legal configurations, last knob fastest, with the knobs ``fixed`` set, also to values not among theirs."""
        tests = self.where().values()
        knobs = {name: [fixed[name]] if name in fixed else values for name, values in self.knobs().items()}
        return (c for c in configurations(knobs) if all(t(c) for t in tests))

    def fastest(self) -> Config | None:
        """Legal configuration with the least modelled seconds; None if none is legal or there is no model."""
        seconds = self.expected()
        return None if seconds is None else min(self.legal(), key=seconds, default=None)

    @cached_property
    def levels(self) -> Levels:
        """Levels of the target."""
        return levels_of(self.target)

    @cached_property
    def bits(self) -> int:
        """Bits of the widest element type that the stages read or write; at least 8."""
        return widest_bits(self.graph.nests[name] for name in self.names)

    @property
    def work(self) -> float:
        """Operations plus 4 times the bytes of arrays of the stages, to rank parts by importance; not a time."""
        nests = [self.graph.nests[name] for name in self.names if name in self.graph.nests]
        return sum(n.work + 4.0 * n.moved for n in nests)
