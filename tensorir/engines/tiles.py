"""``Tile``: base of engine configurations, with knobs, legality rules and resource use.

A subclass defines a complete configuration space: knobs with values, rules for legal configurations, and the device
resources used. Its methods read only the knobs they need, so ``tune.legal`` can test each rule as soon as these knobs
are fixed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, overload

from tensorir.engines.problems import TileProblem
from tensorir.target import Target

if TYPE_CHECKING:  # loading a tuned kernel needs none of them
    from tensorir.tune.legal import Predicate

Value = TypeVar("Value")
P = TypeVar("P", bound=TileProblem)
Config = Mapping[str, Any]
Knobs = Mapping[str, Sequence[object]]
Rule = Callable[[Any], bool]


class Knob(Generic[Value]):
    """A configuration field with its possible values, the first tried first."""

    def __init__(self, *values: Value) -> None:
        self.values = values

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, tile: None, owner: type) -> Self: ...

    @overload
    def __get__(self, tile: Tile[Any], owner: type) -> Value: ...

    def __get__(self, tile: Tile[Any] | None, owner: type) -> Self | Value:
        return self if tile is None else tile.config[self.name]


class Tile(Generic[P]):
    """A configuration of an engine for problem ``p`` on a target: the sizes of blocks and tiles.

    rules: name -> constraint, function of a Tile; a configuration is legal if all hold
    """

    rules: ClassVar[Mapping[str, Rule]] = {}

    def __init__(self, config: Config, p: P, target: Target) -> None:
        self.config, self.p, self.target = config, p, target

    @classmethod
    def needs(cls, p: P) -> str | None:
        """Required target feature, such as "sm_80"; "" for none, None if the engine cannot compute the problem."""
        return ""

    @classmethod
    def start(cls, p: P, target: Target) -> Config | None:
        """Start configuration; None if the search is to start with the first legal one."""
        return None

    @classmethod
    def expected(cls, p: P, target: Target) -> Callable[[Config], float] | None:
        """Function from a configuration to modelled seconds; None without a model."""
        return None

    @classmethod
    def knobs(cls, p: P, target: Target) -> Knobs:
        """{knob: possible values} for the problem and target, the first value tried first; by default the class's own
        ``Knob`` fields, without inherited ones.
        """
        return {name: knob.values for name, knob in vars(cls).items() if isinstance(knob, Knob)}

    @classmethod
    def where(cls, p: P, target: Target) -> dict[str, Predicate]:
        """{rule name: predicate on a configuration}, the legality rules in the form that a Space takes."""

        def asked(rule: Rule) -> Predicate:
            return lambda c: rule(cls(c, p, target))

        return {name: asked(rule) for name, rule in cls.rules.items()}

    @classmethod
    def among(cls, knobs: Knobs, p: P, target: Target) -> Iterator[Self]:
        """Legal configurations of all knob combinations, last knob fastest."""
        for values in itertools.product(*knobs.values()):
            tile = cls(dict(zip(knobs, values, strict=True)), p, target)
            if all(rule(tile) for rule in cls.rules.values()):
                yield tile

    def but(self, p: P | None = None, **changed: object) -> Self:
        """A copy with changed knobs or problem."""
        return type(self)({**self.config, **changed}, p or self.p, self.target)

    @property
    def operand_bytes(self) -> int:
        """Shared-memory bytes for staged operands."""
        return 0

    @property
    def result_bytes(self) -> int:
        """Shared-memory bytes for staged results, in addition to operands."""
        return 0

    @property
    def sides(self) -> Iterable[tuple[int, int, int]]:
        """(block extent, always acceptable extent, total extent) per dimension, for ``sensible``; () to allow all."""
        return ()

    def shared(self) -> bool:
        """True if operands and results together fit the target's shared memory (``shared_optin_bytes``)."""
        operands, room = self.operand_bytes, self.target.shared_optin_bytes
        return operands <= room and operands + self.result_bytes <= room

    def sensible(self) -> bool:
        """True if no block is larger than needed: each extent of ``sides`` is at most the one that always is
        acceptable, or its half, rounded down, is less than the total extent.
        """
        return all(tile <= least or tile // 2 < extent for tile, least, extent in self.sides)


def legal(knobs: Knobs, where: Mapping[str, Predicate]) -> Iterator[Config]:
    """Yield the configurations of all knob combinations that satisfy ``where``, last knob fastest."""
    for values in itertools.product(*knobs.values()):
        c = dict(zip(knobs, values, strict=True))
        if all(test(c) for test in where.values()):
            yield c


def cheapest(knobs: Knobs, where: Mapping[str, Predicate], cost: Callable[[Config], Any], enough: float = -math.inf
             ) -> Config | None:  # fmt: skip
    """Legal configuration of least cost, the first of equals; None if none is legal.

    enough: a known lower bound of the cost: the search ends at the first configuration that has it
    """
    priced: list[tuple[Any, Config]] = []
    for c in legal(knobs, where):
        priced.append((cost(c), c))
        if priced[-1][0] == enough:
            return c
    return min(priced, key=lambda both: both[0])[1] if priced else None
