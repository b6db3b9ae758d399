"""Matrix products on CPUs: a reduction that reuses two operands is viewed as a product and scheduled by an engine.

Convolutions are such products: rows are output channels, columns pixels of a row, terms channels and taps; panels of
im2col columns are packed in block memory. Grouped rows with one matrix per group have a separate engine, which reads
the matrix in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from tensorir.arith.access import alike
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules import stream, window
from tensorir.automatic.rules.product_view import ProductView, in_groups, innermost, product_view, short, turned_view
from tensorir.automatic.rules.products import ProductPart, summed
from tensorir.automatic.rules.window_image import Image, image_of
from tensorir.automatic.rules.window_reads import Reads
from tensorir.engines.gemm_cpu import (
    ColumnTile,
    PaddedTile,
    RegisterTile,
    cpu_engines,
    element_cycles,
    panel_cycles,
    reading_cycles,
)
from tensorir.engines.model import CpuTile, launched, priced
from tensorir.engines.problems import STEP, Gemm
from tensorir.engines.product import Product, sums_in_registers
from tensorir.engines.tiles import Knob, Knobs, Rule
from tensorir.ir.tree import Load
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

FEWEST_COLUMNS = 4
"""Least columns of a group that fill a vector."""
VALUES = {
    "columns": 4, "panels": 5, "depth": 3, "rows": 3, "tile": 4, "vectors": 4, "outputs": 4, "pack_a": 2, "unroll_k": 2,
    "pack": 2,
}  # fmt: skip
"""Maximum values searched per knob of the engines, when other parts have knobs too."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a reduction with operand reuse and its epilogue, one per suitable engine."""
    total = summed(graph, anchor)
    if total:
        yield from by_engines(graph, anchor, target, total)


def by_engines(graph: Graph, anchor: Nest, target: Target, total: Nest) -> Iterator[Part]:
    """Yield parts for the matrix product ``total`` on a CPU, one per suitable engine; none for other targets."""
    if target.kind != "cpu":
        return
    grouped = in_groups(total) if total.reuses else None
    if grouped:
        yield from _of_groups(graph, anchor, target, total, grouped)
    elif view := product_view(total):
        yield from _of_views(graph, anchor, target, total, view)
    else:
        yield from _by_groups(graph, anchor, target, total, tb=False)


def _of_views(graph: Graph, anchor: Nest, target: Target, total: Nest, view: ProductView) -> Iterator[Part]:
    """Yield a part per engine for a product, its transposed view ("turned") and blocks that stage the image ("image").

    With one of the latter by modelled seconds; others also pay the kernel that stores the padded image.
    """
    constants, beside = graph.wishes.constants, 0.0
    views = [view.with_constants(constants)]
    ways: list[tuple[str, ProductView, type[RegisterTile], Image | None]] = [
        (name, views[0], engine, None) for name, engine in cpu_engines(views[0].gemm.on(target)).items()
    ]
    if turned := turned_view(total, constants):
        views.append(turned.with_constants(constants))
        ways.append(("turned", views[1], ColumnTile, None))
    image = image_of(graph, Reads(total), narrow=False)
    if image and image.made and not {b.name for b in image.made.reads} <= {*constants}:  # those are made once
        kept = [x for v in views if (x := v.under(total, image))]
        ways += [("image", x, PaddedTile, image) for x in kept]
        if kept:
            beside = seconds_of(next(stream.offers(graph, image.made, target)))
    parts = [RegisterProductPart(graph, anchor, target, total, *way) for way in ways]
    if any(part.view is not views[0] for part in parts):
        parts.sort(key=lambda part: seconds_of(part) + (0.0 if part.image else beside))
    yield from parts


def _of_groups(graph: Graph, anchor: Nest, target: Target, total: Nest, grouped: Nest) -> Iterator[Part]:
    """Yield parts for products in groups, with vectors no wider than a group's columns, and register tiles; by modelled
    seconds.
    """
    constants = graph.wishes.constants
    parts: list[Part] = []
    turned = turned_view(grouped, constants)
    view = turned or product_view(grouped)
    if view and view.gemm.n >= FEWEST_COLUMNS:
        view, wide = view.with_constants(constants), view.gemm.sum_bytes << (view.gemm.n - 1).bit_length()
        name = "turned" if turned else "column"
        wide = min(wide, target.vector_bytes)
        parts.append(RegisterProductPart(graph, anchor, target, total, name, view, ColumnTile, None, wide))
    yield from sorted([*parts, *window.offers(graph, anchor, target)], key=seconds_of)


def gathered(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for grouped rows whose matrices are contiguous along the terms, with lanes along the terms."""
    total = summed(graph, anchor) if target.kind == "cpu" else None
    if total and not product_view(total):
        yield from _by_groups(graph, anchor, target, total, tb=True)


def _by_groups(graph: Graph, anchor: Nest, target: Target, total: Nest, tb: bool) -> Iterator[Part]:
    grouped = rows_in_groups(total)
    if grouped and grouped.tb == tb:
        part = GroupedRowsPart(graph, anchor, target, total, grouped, RowsTile)
        if part.first:
            yield part


def rows_in_groups(total: Nest) -> Gemm | None:
    """The grouped product that a reduction declares, with one matrix per ``align`` rows; None for other reductions."""
    inside = {x for load in total.loads for i in load.index for x in find(i, Load)}
    loads = [x for x in total.loads if x not in inside and x.buffer not in total.writes]
    axes = (total.spatial, total.reduced)
    if len(loads) != 2 or [*map(len, axes)] != [2, 1] or not total.constant or len(total.writes) != 1:
        return None
    (rows, columns), (terms,) = axes
    for a, b in (loads, reversed(loads)):
        align = alike(b, rows.var)
        along = [alike(a, it.var) for it in (rows, columns, terms)] + [alike(b, it.var) for it in (columns, terms)]
        if align > 1 and along == [1, 0, 1, 1, 1]:
            m, n, k = (total.size([it]) for it in (rows, columns, terms))
            tb = not innermost(b, [columns], total)
            return Gemm(m=m, n=n, k=k, tb=tb, align=align, dtype=total.writes[0].dtype)
    return None


def seconds_of(part: Part) -> float:
    """Modelled seconds of a part's default configuration; infinite if there is none or no model."""
    expected, start = part.expected(), part.start()
    return math.inf if expected is None or start is None else expected(start)


class RegisterProductPart(ProductPart[RegisterTile]):
    """Matrix product by register tiles over packed panels or strips."""

    values = VALUES

    def __init__(self, graph: Graph, anchor: Nest, target: Target, total: Nest, way: str, view: ProductView,
                 engine: type[RegisterTile], image: Image | None = None, vector_bytes: int = 0) -> None:  # fmt: skip
        made = [image.made.name] if image and image.made else []
        super().__init__(graph, anchor, target, total, view.gemm, engine, made)
        self.image = image
        if vector_bytes:
            self.p = replace(self.p, vector_bytes=vector_bytes)
        self.view, self.way = view, way

    @property
    def name(self) -> str:
        return f"tile_{self.way}"

    @cached_property
    def first(self) -> Config:
        """Default configuration of the engine's model, else the first legal one; {} if none is legal."""
        tile = next(self.engine.among(self.every, self.p, self.target), None)
        return self.engine.start(self.p, self.target) or (tile.config if tile else {})

    def expected(self) -> Callable[[Config], float] | None:
        return self.engine.expected(self.p, self.target)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        tile = self.engine(config, self.p, self.target)
        image = self.image
        name = image.stage(s) if image else ""
        of = self.view.walked(s, self.total, self.epilogue)
        if image:
            of = of._replace(keep=lambda block: image.keep(s, name, block, self.p.vector_lanes))
        tile.product(s, of)
        if self.view.again:
            s.compute_inline(of.b)


class RowsTile(CpuTile[Gemm]):
    """Engine for grouped products: ``rows`` rows per block in tiles of ``tile`` x ``vectors``, b read in place."""

    rows, tile, vectors = Knob(STEP, 32, 64, 128), Knob(4, 8, 2, 1), Knob(2, 1, 3, 4)

    def product(self, s: BaseSchedule, of: Product) -> BaseSchedule:
        """Schedule a grouped product whose matrices are read in place; returns ``s``."""
        out, lanes = of.written(s), self.p.vector_lanes
        _, rows = s.share_out(f"{out}.i", each=self.rows)
        i, j = s.register_tile(rows, f"{out}.j", sizes=[self.tile, self.vectors * lanes], lanes=lanes)
        s.reorder(j, i)
        s.compute_at(of.stage, i)
        sums_in_registers(s, of, of.stage, self.p, 1)
        return s

    rules: ClassVar[Mapping[str, Rule]] = {
        "registers": lambda t: (t.tile + 1) * t.vectors * t.p.product_room < t.p.registers
    }

    @classmethod
    def knobs(cls, p: Gemm, target: Target) -> Knobs:
        every = super().knobs(p, target)
        return {**every, "rows": [r for r in cls.rows.values if p.align % r == 0]}

    def cost(self) -> float:
        p, width = self.p, self.vectors * self.p.vector_lanes
        tiles, elements = self.rows // self.tile, width * p.k
        panel = panel_cycles(p, self.rows, self.tile, self.vectors) * p.k
        panel += element_cycles(p, p.k, width, in_place=True) * elements * tiles
        cycles = priced(-(-p.n // width) * panel, -(-p.m // self.rows), self.machine)
        return launched(cycles + reading_cycles(p, self.rows, width, self.machine.cores), self.machine)


class GroupedRowsPart(ProductPart[RowsTile]):
    """Grouped rows with one matrix per group, in register tiles that do not cross groups."""

    values = VALUES

    @property
    def name(self) -> str:
        return "tile_groups"

    @cached_property
    def first(self) -> Config:
        return self.engine.start(self.p, self.target) or {}

    def expected(self) -> Callable[[Config], float] | None:
        return self.engine.expected(self.p, self.target)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        total = self.total
        axes = dict(zip((*total.spatial, *total.reduced), "ijk", strict=True))
        own = ", ".join(short(total, it) for it in total.spatial)
        if own != "i, j" or short(total, total.reduced[0]) != "k":
            new = ", ".join(f"{x} = {short(total, it)}" for it, x in axes.items())
            s.reindex(total.name, f"{own} | {short(total, total.reduced[0])} -> {new}", writes="i, j")
        self.engine(config, self.p, self.target).product(s, Product(total.name, "", "", out=self.epilogue))
