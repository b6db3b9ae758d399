"""Matrix products on GPUs: a reduction that reuses two operands is viewed as a product and scheduled by an engine.

Engines: warpgroups (wgmma), tensor cores by warps (mma), register tiles of threads, shared-memory tiles. For a
convolution the im2col matrix is never stored: a block copies its tile from the image to shared memory (implicit GEMM).
Cheap maps, such as zero padding, are computed during the copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.automatic.rules.conv_filter import FilterTile
from tensorir.automatic.rules.conv_image import ImageTile, forward_shape
from tensorir.automatic.rules.conv_part import ConvPart
from tensorir.automatic.rules.conv_view import conv_view
from tensorir.automatic.rules.matrix_view import MatrixView, matrix_view, multiplies
from tensorir.automatic.rules.products import ProductPart, summed
from tensorir.engines.gemm_blocks import Blocks, Engine, Sums, multiprocessors, part_length
from tensorir.engines.gemm_gpu import SharedTile, WarpTile
from tensorir.engines.gemm_hopper import ROW_BYTES, STORED, HopperTile, leave_in_tiles
from tensorir.engines.gemm_tensor import VECTOR, TensorTile, added, leave_in_vectors
from tensorir.engines.problems import Gemm
from tensorir.engines.steps import out_stage
from tensorir.errors import DeclarationError
from tensorir.ir.dims import most
from tensorir.ir.structure import identical
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.gpu_model import thread_registers
from tensorir.tune.legal import Predicate
from tensorir.tune.space import Space

ENGINES: Mapping[str, type[Engine]] = {
    "tile_wgmma": HopperTile,
    "tile_mma": TensorTile,
    "tile_warp": WarpTile,
    "tile": SharedTile,
}
"""Template name -> engine, most promising first."""
ON_TENSOR_CORES = (HopperTile, TensorTile)

VALUES: Mapping[type[Engine], Mapping[str, int]] = {
    HopperTile: dict(groups=3, pingpong=2, rows=2, bn=8, depth=3, cluster=2, raster=3, resident=2, splits=4, atomic=1,
                     rest=1),
    TensorTile: dict(bm=3, bn=3, wm=2, wn=2, bk=2, depth=3, in_flight=2, raster=3, splits=4, atomic=1, rest=1,
                     staged=2),
    WarpTile: dict(li=2, ri=2, rj=3, wi=2, wj=2, bk=2, depth=3, in_flight=2, raster=2, splits=4, atomic=1, rest=1),
    SharedTile: dict(ti=4, tj=3, ri=4, rj=4, bk=2, vector=2, fragments=2, depth=2, splits=4),
}  # fmt: skip
"""Maximum values searched per knob of each engine, when other parts have knobs too."""
CHEAP_OPS = 16
"""Maximum operations of a map recomputed for each copied element, zero padding included."""
MOST_WASTED = 2
"""Maximum factor by which padding to whole steps may increase columns times terms."""
KEPT_KNOBS = ("splits", "depth", "in_flight", "cluster", "resident", "pingpong", "staged")
"""Knobs fixed at the engine's default when the model chooses the start: copies, output path and distribution of
tiles.
"""
UNROLLED = 1024
"""Maximum unrolled multiply-adds per thread of a default; more leave too few registers for addresses."""
MOST_REGISTERS = 255
"""Maximum registers per thread."""
ADDRESS = 6
"""Registers per element copied without vectors, for its address and conditions. Beyond this NVRTC spills (7 x 7 filters
of three channels); up to ``ROLLED`` such copies are unrolled, else four at a time.
"""
ROLLED = 16
TRIED_CONFIGURATIONS = 400
"""Configurations that the model compares for a default."""
NEAR_FACTOR = 1.1
"""The engine's default is kept if its modelled time is at most this factor of the best."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a reduction with operand reuse, its epilogue and cheap maps that only it reads, one per suitable
    engine.
    """
    total = summed(graph, anchor)
    if total:
        yield from by_engines(graph, anchor, target, total)


def by_engines(graph: Graph, anchor: Nest, target: Target, total: Nest) -> Iterator[Part]:
    """Yield parts for the matrix product ``total``, one per suitable engine; a convolution's own tile is placed by
    modelled time.
    """
    conv = convolved(graph, anchor, target, total)
    for part in multiplied(graph, anchor, target, total):
        if conv and not _faster(part, conv):
            yield conv
            conv = None
        yield part
    if conv:
        yield conv


def convolved(graph: Graph, anchor: Nest, target: Target, total: Nest) -> ConvPart | None:
    """Part for a convolution or gradient on tensor cores; None if ``total`` is none or no instruction fits."""
    found = conv_view(graph, anchor, total) if target.language == "cuda" else None
    if found is None:
        return None
    shape = replace(found.shape, precision=graph.wishes.precision if found.shape.dtype == "float32" else "fp32")
    p = forward_shape(shape) if found.made == "x" else shape
    tile = FilterTile if found.made == "w" else ImageTile
    fits = p is not None and (p.wide or p.dtype) == total.writes[0].dtype and tile.needs(p)
    if p is None or not fits or not target.has(fits):
        return None
    part = ConvPart(graph, anchor, target, p, found.stages, tile, found.names)
    return part if next(part.legal(), None) else None


def _faster(part: Part, than: Part) -> bool:
    """True if the default of ``part`` has less modelled time than that of ``than``."""
    one, other = (p.space.expected_s for p in (part, than))
    if one is None or other is None:
        return False
    return one(part.space.default) < other(than.space.default)


def multiplied(graph: Graph, anchor: Nest, target: Target, total: Nest) -> Iterator[Part]:
    """Yield parts for the matrix product ``total``, one per suitable engine."""
    view = matrix_view(total, anchor.writes[0].dtype, graph.wishes.precision) if target.kind == "gpu" else None
    if not view:
        return
    for name, engine in ENGINES.items():
        # copies of warpgroups stay under one tap
        of = view.stepped(ROW_BYTES // view.gemm.element_bytes) if engine is HopperTile else view
        if of.plain and of.grouped:
            of = of.in_groups(_groups(graph, total))
        p = replace(of.gemm, in_rows=of.gemm.in_rows or _leave_as_rows(of, engine), beta=_adds(anchor, total))
        needs, wasted = engine.needs(p), p.n * p.k > MOST_WASTED * view.gemm.n * view.gemm.k
        suits = engine not in ON_TENSOR_CORES or (multiplies(total) and (p.wide or p.dtype) == total.writes[0].dtype)
        if needs is None or not suits or wasted or (needs and not target.has(needs)):
            continue
        part = BlockProductPart(graph, anchor, target, total, of, p, name, engine)
        if part.first:
            yield part


class BlockProductPart(ProductPart[Engine]):
    """Matrix product by blocks that copy tiles of both operands to shared memory."""

    def __init__(self, graph: Graph, anchor: Nest, target: Target, total: Nest, view: MatrixView, p: Gemm,
                 way: str, engine: type[Engine]) -> None:  # fmt: skip
        self.view, self.way, self.values = view, way, VALUES[engine]
        self.needs = engine.needs(view.gemm) or ""
        self.made = {n.name: _kept(n) for n in graph.producers(total) if _joins(graph, n, total)}
        super().__init__(graph, anchor, target, total, p, engine, tuple(self.made))

    @property
    def name(self) -> str:
        return self.way

    @cached_property
    def every(self) -> Mapping[str, Sequence[object]]:
        """All knobs of the engine with their values.

        Partial last waves (``rest``) and atomic addition require plain matrices, atomics also ``Wishes.any_order``.
        Long sums of warpgroups whose parts may end anywhere get numbers of parts that fill the multiprocessors.
        """
        own: dict[str, Sequence[object]] = {**self.engine.knobs(self.p, self.target)}
        if self._ends_anywhere:
            k, step = self.p.k, ROW_BYTES // self.p.element_bytes
            own["splits"] = sorted({-(-k // part_length(k, n, step)) for n in self._parts if n * step <= k}) or [1]
        matrices = self.view.plain and self.alone
        kept = {"rest": matrices, "atomic": matrices and not self.epilogue and self.graph.wishes.any_order}
        return {name: list(values) if kept.get(name, True) else [0] for name, values in own.items()}

    @property
    def _parts(self) -> set[int]:
        """Numbers of parts of long sums (split-K) that fill all multiprocessors, or two thirds of them."""
        units = multiprocessors(self.target)
        return {units // n for n in range(1, units + 1)} | {2 * units // 3}

    @property
    def _ends_anywhere(self) -> bool:
        """True if parts of a warpgroup's sum need not be multiples of a step: no operand is contiguous along the
        terms.
        """
        return self.engine is HopperTile and self.p.ta and not self.p.tb

    @cached_property
    def first(self) -> Config:
        """Engine's default, or a configuration with much less modelled time; {} if none is legal."""
        start = self.engine.start(self.p, self.target) or {}
        usual = {name: start.get(name, values[0]) for name, values in self.every.items()}
        usual = {name: x if x in self.every[name] else self.every[name][0] for name, x in usual.items()}
        where, expected = self.where(), self.expected()
        legal: list[Config] = [usual] if all(test(usual) for test in where.values()) else []
        kept = {name: [usual[name]] for name in KEPT_KNOBS if name in usual}
        if "splits" in usual:  # other tiles may need none, and leave room for fewer copies
            kept["splits"] = sorted({1, usual["splits"]})
        if "raster" in usual:
            kept["raster"] = [*dict.fromkeys((usual["raster"], 1))]
        if self.engine in ON_TENSOR_CORES:  # three tiles may leave room for results, or for another block
            kept["depth"] = [*dict.fromkeys((usual["depth"], 3))]
        if self._ends_anywhere:
            del kept["splits"]
        for knobs in ({**self.every, **kept}, self.every):
            if not legal or (expected and knobs is not self.every):
                legal += self._drawn(knobs, where)
        if not expected or not legal:
            return legal[0] if legal else {}
        through_shared = self.engine(usual, self.p, self.target).result_bytes > 0  # and in whole sectors then
        tiles = [self.engine(c, self.p, self.target) for c in legal]
        whole = [t for t in tiles if not through_shared or t.result_bytes or t.config.get("splits", 1) > 1]
        fine = [t for t in whole if t.unrolled <= UNROLLED and self._registers(t) <= MOST_REGISTERS]
        legal = [t.config for t in fine] or legal
        times = [expected(c) for c in legal]
        least = min(times)
        return legal[0] if times[0] <= NEAR_FACTOR * least else legal[times.index(least)]

    def _registers(self, tile: Engine) -> int:
        """Estimated registers per thread; 0 for warpgroups, whose copies are issued by a separate producer."""
        if not isinstance(tile, WarpTile | TensorTile):
            return 0
        model, alone = tile.model, 0
        for side, vectors in zip((tile.high, tile.wide), self._in_vectors, strict=True):
            each = -(-side * tile.bk // model.threads)
            alone += 0 if vectors else each if each <= ROLLED else 4
        return thread_registers(tile.modelled(self.p), model) + ADDRESS * alone

    @cached_property
    def _in_vectors(self) -> tuple[bool, bool]:
        """For both operands: True if copies are vectorized."""
        return self.view.in_vectors(self.made)

    @staticmethod
    def _drawn(knobs: Mapping[str, Sequence[object]], where: Mapping[str, Predicate]) -> list[Config]:
        """Evenly spaced legal configurations; [] if none is legal."""
        own: dict[str, Any] = dict(knobs)
        space = Space(where=where, **own)
        try:
            found = len(space.legal)
        except DeclarationError:
            return []
        return [space.config(row) for row in range(0, found, max(1, found // TRIED_CONFIGURATIONS))]

    def where(self) -> Mapping[str, Predicate]:
        where = dict(super().where())
        if self.view.grouped and not self.p.align:  # else engines keep to a group
            where["groups"] = self._room_for_groups if self.engine is SharedTile else self._of_one_group
        if self.engine is HopperTile and not self._ends_anywhere and len(self.view.terms) > 1:
            where["whole parts"] = self._in_whole_parts
        return where

    def _in_whole_parts(self, c: Config) -> bool:
        """True if parts of a reduction are multiples of a step: elements past a part's end are not zero-filled by a
        copy.
        """
        tile = self.engine(c, self.p, self.target)
        return not isinstance(tile, Blocks) or tile.splits == 1 or self.p.k % (tile.splits * tile.step) == 0

    def _of_one_group(self, c: Config) -> bool:
        """True if all cells of a tile belong to one group, as fragments require."""
        return all(each % side == 0 for each, side in self._grouped_sides(self.engine(c, self.p, self.target)))

    def _room_for_groups(self, c: Config) -> bool:
        """True if a tile is within one group, or covers whole groups whose operands fit shared memory."""
        tile = self.engine(c, self.p, self.target)
        met = [(each % side) * (side % each) == 0 and -(-side // each) for each, side in self._grouped_sides(tile)]
        return all(met) and math.prod(met) * tile.operand_bytes <= self.target.shared_optin_bytes

    def _grouped_sides(self, tile: Engine) -> list[tuple[int, int]]:
        """(size of a group, size of a tile) for rows and columns, as far as these are grouped."""
        sides = ((self.view.rows, tile.high), (self.view.columns, tile.wide))
        return [(self.view.size(of), side) for of, side in sides if any(d.said for d in of)]

    def expected(self) -> Callable[[Config], float] | None:
        return self.engine.expected(self.p, self.target)

    def declare(self, s: BaseSchedule, config: Config) -> None:
        tile = self.engine(config, self.p, self.target)
        if isinstance(tile, Blocks):
            tile.declare(s)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        tile = self.engine(config, self.p, self.target)
        given = self.view.walked(s, self.made)
        if isinstance(tile, Blocks) and tile.rest:
            for part, sums in tile.each(s, self.total.name):
                part.product(s, sums, given)
            return
        tile.product(s, self._sums(s, tile), given)
        for name in self.made:
            if name in s.index.stages:
                s.compute_inline(name)

    def _sums(self, s: BaseSchedule, tile: Engine) -> Sums:
        """Stages of the product; with tensor cores, results with several row axes are stored through a matrix view."""
        name = self.total.name
        if not isinstance(tile, ON_TENSOR_CORES) or self.view.gemm.in_rows or not tile.leaves_whole:
            return tile.sums(s, name, lambda out: self.view.as_matrix(s, out), self.epilogue)
        rows, made = out_stage(s, name, epilogue=self.epilogue), self.p.made
        third = added(s, rows, name)[: int(self.p.beta)]
        packs = packed_names(third, s.index.names())
        sums = Sums.over(name, self.view.as_rows(s, rows, third), self.p.axes)
        if isinstance(tile, TensorTile):
            lanes = self.view.results_together(VECTOR)
            return sums._replace(leave=lambda block, i, j: leave_in_vectors(s, rows, packs, block, i, j, lanes))
        return sums._replace(leave=lambda wi, i, j: leave_in_tiles(s, rows, packs, wi, i, j, made, tile.panel))


def _groups(graph: Graph, total: Nest) -> int:
    """Number of groups: first extent of the array of matrices that the second operand selects from; 1 if there is
    none.
    """
    taken = [load for n in graph.producers(total) for load in n.loads if len(load.index) == 3]
    return most(taken[0].buffer.shape[0]) if taken else 1


def _leave_as_rows(view: MatrixView, engine: type[Engine]) -> bool:
    """True if results stored with several axes can pass through shared memory as rows of one matrix."""
    return (
        view.rows_follow(STORED) if engine is HopperTile else engine is TensorTile and view.results_together(VECTOR) > 1
    )


def _adds(anchor: Nest, total: Nest) -> bool:
    """True if the epilogue also reads another array elementwise (beta D, residual)."""
    own = tuple(it.var for it in anchor.spatial)
    return any(identical(x.index, own) for x in anchor.loads if x.buffer not in (*anchor.writes, *total.writes))


def _joins(graph: Graph, nest: Nest, total: Nest) -> bool:
    """True if ``nest`` is a cheap map that only ``total`` reads, to be recomputed while a block copies it."""
    cheap = nest.kind == "map" and not nest.calls and nest.operations <= CHEAP_OPS and len(nest.writes) == 1
    return cheap and graph.readers(nest) == [total] and not graph.is_output(nest)


def _kept(nest: Nest) -> int:
    """Number of trailing dimensions of a map that all its loads share."""
    own = [it.var for it in nest.spatial]
    kept = [len(own)]
    for load in nest.loads:
        both = zip(reversed(own), reversed(load.index), strict=False)
        kept.append(next((n for n, (x, y) in enumerate(both) if x is not y), min(len(own), len(load.index))))
    return min(kept)
