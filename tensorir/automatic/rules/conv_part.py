"""Common base of rules for convolutions: ``ConvTile``, one configuration's steps, and ``ConvPart``, the part
around it.
"""

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
"""Constraint on a configuration."""
VALUES_BESIDE_OTHERS = 3
"""Maximum values per knob when other parts of the schedule have knobs too."""


@dataclass(frozen=True)
class ConvStages:
    """Names of a convolution's stages and arrays.

    sums: the reduction stage;  out: the epilogue, which reads each sum once; "" if there is none
    image: the array under the taps;  other: the filter, or the gradient dy
    moved: True if a stage only pads or spreads the image for this convolution
    shared: True if stages other than one elementwise map read the sums
    walk:  axes of the sums as declared, the left side of a ``reindex`` view;  axes: role letter -> axis name
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
        """The same stages with a new stage ``out`` that copies the sums from scope ``scope``, if ``shared``; else
        unchanged.
        """
        return replace(self, out=s.stage_out(self.sums, at="root", scope=scope).name) if self.shared else self

    def said(self, more: Mapping[str, str]) -> dict[str, str]:
        """New axis -> its definition in names of the sums' axes, for a ``reindex`` view.

        more: definitions that are not a single axis, with role letters in braces: {"k": "{k}%4"}
        """
        other = {letter: own for letter, own in self.axes.items() if own != letter}
        return other | {letter: text.format(**self.axes) for letter, text in more.items()}


class ConvTile(Tile[Conv], ABC):
    """Base of schedules of a convolution: one configuration of knobs, its constraints and its steps.

    way: suffix of template names;  approximate: see ``Part``
    """

    way: ClassVar[str]
    approximate: ClassVar[bool] = False

    def declare(self, s: BaseSchedule, of: ConvStages) -> None:
        """Replace the convolution by another algorithm (``s.redeclare``) before any stage is scheduled; does nothing
        unless overridden.
        """

    @abstractmethod
    def schedule(self, s: BaseSchedule, of: ConvStages) -> BaseSchedule:
        """Schedule the convolution; return ``s``."""


class ConvPart(Part):
    """A convolution, or one of its gradients, as a part with the knobs and steps of a ``ConvTile``."""

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
