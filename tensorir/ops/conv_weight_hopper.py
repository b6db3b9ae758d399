"""The gradient of conv2d's filter by warpgroups (CUDA, sm_90a): one product, summed over the pixels of all results.

Its rows are filters and its columns the channels of one tap after the other, so that one tile of dy meets several taps.
Neither operand is stored along what is summed, which products of warpgroups read as well (MN-major tiles). The pixels
under a tap are never stored as a matrix: the im2col mode of tensor maps goes through the image (``conv_im2col``), and
64 channels, a row of 128 bytes, are always under one tap. Few filters make few tiles, so that the pixels are cut into
parts (``gemm_blocks``).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.intrin.hopper import ROWS
from tensorir.ops.common import Config, out_stage
from tensorir.ops.conv_hopper import STORED, gone_through, leave_in_tiles
from tensorir.ops.gemm_blocks import Operand, Sums, part_length
from tensorir.ops.gemm_hopper import HopperTile, warpgroups
from tensorir.ops.problems import Conv, Gemm
from tensorir.ops.views import image_of, weight_axes
from tensorir.tune.legal import Predicate

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space

STEP = 64
"""Pixels that are multiplied at a time."""
PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 22, 26, 33, 44, 66, 88, 132)
"""That the pixels are cut into, near which there are as many of whole steps: they fill 132 multiprocessors."""
TILES = ((2, 1, 256), (2, 1, 192), (2, 1, 128), (2, 1, 64), (2, 2, 64), (1, 1, 256), (1, 1, 192), (1, 1, 128),
         (1, 1, 64))  # fmt: skip
"""groups, rows and bn of configurations to start with, each with the longest ring that there is room for."""


def weight_warpgroups(shape: Conv) -> dict[str, Template]:
    """The template for warpgroups: 16 bits, channels last, and images that a copy goes through. The channels of a group
    are whole tiles, since the next group's follow them.
    """
    p = product(shape)
    whole = shape.groups == 1 or (p.m % ROWS == 0 and shape.cg % STORED == 0)
    m = warpgroups(p) if not shape.nchw and shape.c % 8 == 0 and whole else None
    if m is None or m.word != 2 or not gone_through(shape):
        return {}

    def function(s: Schedule, c: Config) -> Schedule:
        return gpu_hopper(s, c, shape, s.target)

    return {"gpu_hopper": Template(function, lambda t: _space(shape, t), ("gpu",), needs="sm_90a")}


def is_narrow(shape: Conv) -> bool:
    """Whether most of what such tiles have under a tap is beyond the last channel."""
    return bool(2 * shape.cg <= STORED and shape.taps > 1)


def product(shape: Conv) -> Gemm:
    """The product as one matmul is described; the same pixels are under several taps."""
    groups, taps = shape.groups, shape.taps
    apart = min(1.0, shape.h * shape.w / (shape.p * shape.q * taps))
    return Gemm(m=shape.kg, n=taps * _channels(shape), k=shape.pixels, batch=groups, ta=True, dtype=shape.dtype,
                precision=shape.precision, apart=apart)  # fmt: skip


def _channels(shape: Conv) -> int:
    """Channels of a group under a tap, made up to whole rows of 128 bytes."""
    return int(-(-shape.cg // STORED) * STORED)


def as_product(s: Schedule, shape: Conv) -> None:
    """Walk the sums as a product over the pixels k of all results, with filters i and what is under their taps j.

    z, the group, is in front of all where there are several: dy_packed (k, i), x_pad_packed (k, j), sums (i, j)
    """
    z, image = "z, " if shape.groups > 1 else "", image_of(shape)
    s.reindex("dw", f"{weight_axes(shape)} -> k, t = (r, s), c, n, p, q", writes="k, t, c")
    axes = f"k, t, c | n, p, q -> {_rows_and_columns(shape)}, k = (n, p, q)"
    s.reindex("dw", axes, {"c": STORED}, {"dy": f"{z}k, i", image: f"{z}k, j"}, writes=f"{z}i, j")


def _rows_and_columns(shape: Conv) -> str:
    """Filters, of a group where there are several, and the channels under one tap after the other."""
    kg, several = shape.kg, shape.taps > 1
    rows = f"z = k/{kg}, i = k%{kg}" if shape.groups > 1 else "i = k"
    return f"{rows}, j = {'(t, c)' if several else '(c, t)'}"  # of one tap: that the channel is all there is


def gpu_hopper(s: Schedule, c: Config, shape: Conv, target: Target) -> Schedule:
    """c: as that of a product (``gemm_hopper``), whose tiles of ``bn`` are 64 channels under each of several taps, or
    more under one
    """
    p, own, image = product(shape), ["z"] if shape.groups > 1 else [], image_of(shape)
    z = "".join(f"{v}, " for v in own)
    as_product(s, shape)
    tile = HopperTile(c, p, target)
    rows = out_stage(s, "dw") if tile.leaves_whole else ""
    if rows:
        s.reindex(rows, "k, r, s, c -> i = k, j = (r, s, c)", {"c": STORED}, name="rows", writes="i, j")
        _as_matrix(s, f"{rows}.out", shape)
        sums = Sums.over("dw", f"{rows}.out", own)
    else:
        sums = tile.sums(s, "dw", lambda out: _as_matrix(s, out, shape))

    def leave(wi: Any, i: Any, j: Any) -> None:
        leave_in_tiles(s, rows, wi, i, j, shape.dtype)

    given = {"a": Operand("dy_packed", z, inlined=True), "b": Operand(f"{image}_packed", z, inlined=True)}
    tile.product(s, sums._replace(leave=leave), given)
    return s.compute_inline(image) if shape.pad else s


def _as_matrix(s: Schedule, out: str, shape: Conv) -> None:
    """Walk a filter by the rows and columns of the product."""
    s.reindex(out, "r, s -> t = (r, s)")
    s.reindex(out, f"k, t, c -> {_rows_and_columns(shape)}", {"c": STORED})


def _space(shape: Conv, target: Target) -> Space:
    """That of the product, with as many parts as there are of whole steps; parts do not meet in a result of 16 bits."""
    from tensorir.tune.space import Space

    p, steps = product(shape), -(-shape.pixels // STEP)
    of = HopperTile.space(p, target)
    parts = sorted({-(-p.k // part_length(p.k, n, STEP)) for n in PARTS if n <= steps})
    knobs: dict[str, Sequence[Any]] = {**dict(zip(of.names, of.values, strict=True)), "splits": parts}
    knobs |= {"atomic": [0], "rest": [0], "bn": [n for n in of.values[of.names.index("bn")] if n % STORED == 0]}
    where = {name: test for name, test in of.where.items() if name != "panels"}
    if shape.groups > 1:
        where["groups"] = lambda c: p.m % HopperTile(c, p, target).high == 0
    default = _default(knobs, where, of, parts)
    return Space(where=where, default=default, **knobs).expecting(of.expected_s)


def _default(knobs: Mapping[str, Sequence[Any]], where: Mapping[str, Predicate], of: Space, parts: Sequence[int]
             ) -> Config | None:  # fmt: skip
    """What is expected to take least of ``TILES``, with any number of parts; the first legal one of a device of which
    nothing is known.
    """
    tried = []
    for (groups, rows, bn), cluster, splits in itertools.product(TILES, knobs["cluster"], parts):
        c = {**{name: values[0] for name, values in knobs.items()}, "pingpong": 0, "raster": 1, "resident": 1,
             "groups": groups, "rows": rows, "bn": bn, "cluster": cluster, "splits": splits}  # fmt: skip
        rings = ({**c, "depth": depth} for depth in sorted(knobs["depth"], reverse=True))
        tried += [next((ring for ring in rings if all(test(ring) for test in where.values())), None)]
    legal = [c for c in tried if c is not None]
    return min(legal, key=of.expected_s) if legal and of.expected_s is not None else next(iter(legal), None)
