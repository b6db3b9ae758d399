"""Common code of rules whose steps are written for convolutions: the tile that says them, and the part that has it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.products import spread
from tensorir.engines.problems import Conv
from tensorir.engines.tiles import Tile
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

Legal = Callable[[Config], object]
"""A constraint of configurations."""
VALUES_BESIDE_OTHERS = 3
"""Values of each knob that are searched where other parts of a schedule have knobs as well."""


@dataclass(frozen=True)
class ConvStages:
    """The names of a convolution's stages and arrays.

    sums: the stage that adds up;  out: the one that takes the sums one to one; "" where there is none
    image: the array under the taps;  other: the filter, or the gradient of results
    moved: a stage makes the image for this convolution alone, and only moves what it reads
    shared: others than one map read the sums, as they are stored
    walk:  the axes of the sums as they are declared, as a view says them;  axes: the names of each, by what it is
    """

    sums: str
    out: str
    image: str
    other: str
    moved: bool = False
    shared: bool = False
    walk: str = ""
    axes: Mapping[str, str] = field(default_factory=dict)

    def leaving(self, s: BaseSchedule, scope: str) -> ConvStages:
        """The same with a stage that takes sums from ``scope`` to where they are stored, if others read them."""
        return replace(self, out=s.stage_out(self.sums, at="root", scope=scope).name) if self.shared else self

    def said(self, more: Mapping[str, str]) -> dict[str, str]:
        """What new axes are made of, in the names of the sums' own; ``more``: those that are no axis as it stands, with
        axes by what they are in braces.
        """
        other = {letter: own for letter, own in self.axes.items() if own != letter}
        return other | {letter: text.format(**self.axes) for letter, text in more.items()}


class ConvTile(Tile[Conv], ABC):
    """A configuration of steps that are written for convolutions.

    way: its name in those of templates;  approximate: see ``Part``
    """

    way: ClassVar[str]
    approximate: ClassVar[bool] = False

    def declare(self, s: BaseSchedule, of: ConvStages) -> None:
        """Declare the convolution otherwise, as ``Part.declare`` may."""

    @abstractmethod
    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        """Schedule it."""


class ConvPart(Part):
    """A convolution, or one of its gradients, by the steps of a tile whose knobs are its own."""

    def __init__(self, graph: Graph, anchor: Nest, target: Target, p: Conv, of: ConvStages, tile: type[ConvTile],
                 names: Sequence[str] = ()) -> None:  # fmt: skip
        self.p, self.of, self.tile = p.on(target), of, tile
        self.needs, self.approximate = tile.needs(p) or "", tile.approximate
        why = f"a convolution of {p.c} to {p.k} channels, {p.r} x {p.s} taps for each of {p.n} x {p.p} x {p.q} pixels"
        super().__init__(graph, anchor, target, (of.sums, *names), why)

    rule = "convolution"

    @property
    def name(self) -> str:
        return self.tile.way

    def knobs(self) -> Mapping[str, Sequence[object]]:
        every = self.tile.knobs(self.p, self.target)
        if self.alone:
            return every
        first = self.start() or {}
        return {name: spread(v, first.get(name, v[0]), VALUES_BESIDE_OTHERS) for name, v in every.items()}

    def where(self) -> Mapping[str, Legal]:
        return self.tile.where(self.p, self.target)

    def start(self) -> Config | None:
        return self.tile.start(self.p, self.target)

    def expected(self) -> Callable[[Config], float] | None:
        return self.tile.expected(self.p, self.target)

    def declare(self, s: BaseSchedule, config: Config) -> None:
        self.tile(config, self.p, self.target).declare(s, self.of)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        self.tile(config, self.p, self.target).schedule(s, self.of)
