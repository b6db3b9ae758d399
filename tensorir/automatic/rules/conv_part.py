"""Common base of rules for convolutions: ``ConvTile``, one configuration's steps, and ``ConvPart``, the part
around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tensorir.algorithms.products import Convolution, convolution_of
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.products import spread, summed
from tensorir.engines.problems import Conv
from tensorir.engines.tiles import Tile
from tensorir.ir.build import COMPARE
from tensorir.ir.dims import most
from tensorir.ir.dtypes import is_float
from tensorir.ir.tree import Binary, Call, Cast, Expr, Select
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

Legal = Callable[[Config], object]
"""Constraint on a configuration."""
VALUES_BESIDE_OTHERS = 3
"""Maximum values per knob when other parts of the schedule have knobs too."""
STEPS = ("floor", "ceil", "round")
"""Functions whose results are whole numbers."""
WINOGRAD_STAGES = {"W", "U", "T", "V", "V_packed", "M", "Z", "Y"}
"""Names of stages in Winograd's algorithm, except the padded image and the filter's panel."""


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

    def last(self, s: BaseSchedule) -> str:
        """Name of the stage that writes the result, with the sums inlined into the epilogue if there is one."""
        if self.out:
            s.compute_inline(self.sums)
        return self.out or self.sums

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


def cells(s: BaseSchedule, out: str, shape: Conv) -> list[str]:
    """Names of the loops of stage ``out``, in the order image, channel, row, column for either layout."""
    n, *pixels = map(str, s.loops(out))
    channel = pixels.pop(0 if shape.nchw else -1)
    return [n, channel, *pixels]


# --- convolutions by Winograd's algorithm


def approximate_parts(graph: Graph, anchor: Nest, target: Target, tiles: Sequence[type[ConvTile]]) -> Iterator[Part]:
    """Yield a part for each of ``tiles`` that suits a convolution and its epilogue, if ``Wishes.max_error`` allows
    Winograd's rounding.
    """
    total = summed(graph, anchor) if graph.wishes.max_error else None
    op = total.writes[0].origin.op if total else None
    conv = convolution_of(op) if op is not None and total is not None and len(op.bodies) == 1 else ""
    if isinstance(conv, str) or total is None or _chooses(graph, total):
        return
    given, pad = {conv.image.buffer, conv.filter.buffer}, f"{conv.image.name}_pad"
    image = [n.name for n in graph.producers(total) if not given & {*n.writes}]  # the padded one
    p, taken = _problem(conv, graph), {*graph.nests, *(b.name for n in graph.nests.values() for b in n.reads)}
    if (WINOGRAD_STAGES | {pad, f"{conv.filter.name}_panel"}) & (taken - {*image}):  # stages are known by their names
        return
    of = ConvStages(total.name, anchor.name if anchor is not total else "", conv.image.name, conv.filter.name)
    for tile in tiles:
        if (needs := tile.needs(p)) is not None and (not needs or target.has(needs)):
            yield ConvPart(graph, anchor, target, p, of, tile, image)


def _chooses(graph: Graph, total: Nest) -> bool:
    """True if a stage that reads the sums is discontinuous (``_jumps``): ``where(y > 0, 1, 0)`` magnifies rounding."""
    return any(_jumps(x) for n in graph.readers(total) for x in find(n.stage.body, Expr))


def _jumps(e: Expr) -> bool:
    """True for a Select, a comparison, ``//`` or ``%`` of floats, a cast of floats to integers, and ``STEPS``."""
    if isinstance(e, Binary):
        return e.op in (*COMPARE, "//", "%") and is_float(e.a.dtype)
    if isinstance(e, Cast):
        return is_float(e.a.dtype) and not is_float(e.dtype)
    return isinstance(e, Select) or (isinstance(e, Call) and e.fn in STEPS)


def _problem(conv: Convolution, graph: Graph) -> Conv:
    """Parameters of a recognized convolution as a ``Conv``."""
    h, w = (most(conv.image.buffer.shape[conv.layout.index(v)]) for v in "HW")
    return Conv(
        n=conv.n, c=conv.c, h=h, w=w, k=conv.k, r=conv.r, s=conv.r, p=conv.p, q=conv.q, pad=conv.pad[1],
        layout=conv.layout, precision=graph.wishes.precision, max_error=graph.wishes.max_error,
        prepack=conv.filter.name in graph.wishes.constants,
    )  # fmt: skip
