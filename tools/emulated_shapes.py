"""Each class of CUDA kernels on many shapes with edges and tails, run as text on the CPU and compared exactly.

    python tools/emulated_shapes.py              # 50 shapes a class
    python tools/emulated_shapes.py --count 5 --only int8
    python tools/emulated_shapes.py --count 2 --seed 7      # other shapes and configurations of every class
    python tools/emulated_shapes.py --save       # and writes benchmarks/results/cuda_shapes.json

A shape counts where every run's result equals the reference and the emulator has nothing to tell: no race, no read of
memory that nobody wrote, no access out of bounds, no copy in flight that is used, no barrier that some never reach,
none that nobody completes. Kernels of warpgroups (wgmma) run three times each: in three orders of threads, with copies
that land as late as the text allows and with copies that may land at once. Every kernel runs once more with infinities
among its inputs, which must not spread to results that are made without them. The targets of those of warpgroups have
two or three multiprocessors, so that blocks walk several tiles, and their configurations are small. Each kernel is
compiled by NVRTC as well, where that is installed. Needs a C++ compiler. Nothing here was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.algorithms.winograd import matrices
from tensorir.check.emulate import emulate
from tensorir.check.outliers import infinities_spread, with_infinities
from tensorir.codegen.source import Source
from tensorir.errors import CompileError, DeviceError
from tensorir.interp.reference import random_arguments
from tensorir.runtime.cuda import compile_cubin

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "cuda_shapes.json"
EDGES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129, 136)
ROW_EDGES = (1, 7, 16, 63, 64, 65, 100, 127, 128, 129, 192, 200, 257)
WGMMA = "gpu_tile_wgmma"
WIDE_EDGES = (8, 16, 24, 56, 64, 72, 120, 128, 136, 160, 200)
"""Of a stored row, in the 2 bytes of a 16-bit float."""


@dataclass(frozen=True)
class Class:
    """``draw`` gives a shape, ``configure`` a configuration of the template, by the number of the try.

    runs: (seed of the order of threads, whether copies may land at once)
    template: which, where it is not the target's own
    """

    make: Callable[..., tir.Workload]
    draw: Callable[..., dict[str, Any]]
    given: dict[str, Any]
    configure: Callable[..., dict[str, Any]]
    arch: str = "sm_80"
    units: tuple[int, ...] = (0,)
    runs: tuple[tuple[int, bool], ...] = ((0, False),)
    template: str | None = None


def product(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A product whose extents lie at, just before and just behind those of tiles."""
    m, n, k = (rng.choice(EDGES) for _ in "mnk")
    turned = {"ta": rng.random() < 0.5, "tb": rng.random() < 0.5}
    return {"m": m, "n": n, "k": k, "batch": rng.choice((1, 1, 1, 3)), **turned, **options}


def whole_epilogue(rng: random.Random, draw: Callable[..., dict[str, Any]], **options: Any) -> dict[str, Any]:
    """A product that ``draw`` draws, with all that may be done to its sums in the same kernel."""
    drawn = {**draw(rng, **options), "bias": True, "alpha": True, "beta": True}
    return {**drawn, "act": rng.choice((None, "relu"))}


def waves(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """A product of a few waves of small tiles, with terms enough for parts; rows of pieces of 16 bytes."""
    piece = 16 // size
    drawn = {
        "m": rng.choice((192, 257, 320, 392, 450)) // piece * piece,
        "n": rng.choice((40, 64, 72, 104, 136, 200)) // piece * piece,
        "k": rng.choice((256, 264, 320, 392) if size == 4 else (520, 584, 776)),
        "bias": rng.random() < 0.4,
        "act": rng.choice((None, None, "relu")),
    }
    return {"ta": rng.random() < 0.3, "tb": rng.random() < 0.5, **drawn, **options}


def convolution(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A convolution of a small image."""
    r, s = rng.choice((1, 3, 5)), rng.choice((1, 3))
    drawn = {
        "n": rng.choice((1, 2)),
        "c": rng.choice((3, 8, 16, 24, 40)),
        "h": rng.randint(5, 12),
        "w": rng.randint(5, 34),
        "k": rng.choice((8, 24, 33, 64)),
        "pad": rng.choice((0, 1)),
        "bias": rng.random() < 0.5,
    }
    return {**drawn, "r": r, "s": s, "layout": "NHWC", **options}


def image_of_tiles(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A 3x3 convolution of a small image, as Winograd's algorithm takes them."""
    pad = rng.choice((0, 1, 1, 2))
    drawn = {
        "n": rng.choice((1, 2, 3)),
        "c": rng.choice((8, 9, 16, 24, 33)),
        "h": rng.randint(max(1, 3 - 2 * pad), 13),
        "w": rng.randint(max(1, 3 - 2 * pad), 18),
        "k": rng.choice((8, 10, 32, 40, 65)),
        "pad": pad,
        "layout": rng.choice(("NHWC", "NCHW")),
        "bias": rng.random() < 0.5,
        "act": rng.choice((None, "relu")),
        "residual": rng.random() < 0.3,
        "prepack": rng.random() < 0.3,
    }
    return {**drawn, **options}


def depthwise(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A convolution of a small image with a filter for each channel."""
    c = rng.choice((2, 3, 8, 12, 32, 40))
    steps = {"stride": rng.choice((1, 2)), "dilation": rng.choice((1, 1, 2)), "pad": rng.choice((1, 2))}
    drawn = {"h": rng.randint(9, 14), "c": c, "k": c, "groups": c, "layout": rng.choice(("NHWC", "NCHW"))}
    return {**convolution(rng), **drawn, **steps, **options}


def rows_of_pieces(rng: random.Random, size: int, orders: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """A product whose operands' rows are multiples of 16 bytes, as tensor copies want them; others are any extents.

    size: bytes of an element;  k is up to seven tiles of 128 bytes, so that every ring wraps around
    """
    order = rng.choice(orders)
    ta, tb = order[0] == "t", order[1] == "t"
    piece, row = 16 // size, 128 // size

    def wide() -> int:
        return max(piece, rng.choice(WIDE_EDGES) // piece * piece)

    k = rng.randrange(1, 7) * row + rng.choice((0, piece, row // 2, row - piece))
    if ta and not tb:  # no row is stored along k
        k -= rng.choice((0, 1, 3))
    drawn = {
        "m": wide() if ta else rng.choice(ROW_EDGES),
        "n": rng.choice(ROW_EDGES[:-1]) if tb else wide(),
        "k": k,
        "batch": rng.choice((1, 1, 1, 2, 3)),
        "bias": rng.random() < 0.4,
        "act": rng.choice((None, None, "relu")),
    }
    return {**drawn, "ta": ta, "tb": tb, **options}


def image_of_pieces(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """A convolution with stride 1 whose pixels are multiples of 16 bytes, as tensor copies want them."""
    r, s = rng.choice((1, 3, 5)), rng.choice((1, 3))
    piece = 16 // size
    drawn = {
        "n": rng.choice((1, 2, 3)),
        "c": piece * rng.choice((4, 5, 8, 9, 17)),
        "h": rng.randint(5, 20),
        "w": rng.randint(5, 40),
        "k": piece * rng.choice((4, 5, 9, 16)),
        "pad": rng.choice((0, 1, 2)),
        "bias": rng.random() < 0.5,
        "act": rng.choice((None, "relu")),
    }
    return {**drawn, "r": r, "s": s, "layout": "NHWC", **options}


def image_in_steps(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """Such a convolution with a stride, whose tiles are every so many-th pixel of an image; some filters have gaps."""
    drawn = image_of_pieces(rng, size, **options)
    dilation = rng.choice((1, 1, 2))
    least = (max(drawn["r"], drawn["s"]) - 1) * dilation + 1
    more = {v: max(least, drawn[v] + rng.randint(0, 12)) for v in "hw"}
    return {**drawn, **more, "stride": rng.choice((2, 2, 2, 3, 4, 7)), "dilation": dilation}


def image_in_line(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """Such a convolution, with a stride and gaps or without; small images too, several of which are in a tile."""
    drawn = rng.choice((image_of_pieces, image_in_steps))(rng, size, **options)
    small = {v: max(1, (drawn[t] - 1) * drawn.get("dilation", 1) + 1 - 2 * drawn["pad"]) for v, t in ("hr", "ws")}
    small = {v: rng.randint(least, least + 6) for v, least in small.items()} | {"n": rng.randint(1, 9)}
    return {**drawn, **rng.choice(({}, small)), "s": drawn["s"]}


def image_that_is_read(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """Such a convolution of which not all that is read lies before the image: copies do not go through such."""
    while True:
        drawn = image_in_line(rng, size, **options)
        stride, dilation, pad = drawn.get("stride", 1), drawn.get("dilation", 1), drawn["pad"]
        sides = ((drawn[side], (drawn[taps] - 1) * dilation) for side, taps in ("hr", "ws"))
        if all((side + 2 * pad - reach - 1) // stride * stride - pad + reach >= 0 for side, reach in sides):
            return drawn


def gradient_of_pieces(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """The gradient of such a convolution with stride 1, whose image may be small; some filters have gaps, some borders
    are wider than the filter.
    """
    drawn = {k: v for k, v in image_of_pieces(rng, size, **options).items() if k not in ("bias", "act")}
    least = {v: max(1, drawn[t] - 2 * drawn["pad"]) for v, t in ("hr", "ws")}
    small = {v: rng.randint(n, n + 6) for v, n in least.items()} | {"n": rng.randint(1, 9)}
    return {**drawn, **rng.choice(({}, small))}


def filter_of_pieces(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """The gradient of such a convolution's filter, with pixels enough for parts in two of three; of the image itself
    something is read.
    """
    while True:
        drawn = {k: v for k, v in image_in_line(rng, size, **options).items() if k not in ("bias", "act")}
        drawn |= rng.choice(({}, {"n": rng.randint(6, 12)}, {"n": rng.randint(12, 20)}))
        if WGMMA in tir.ops.conv2d_backward_weight(**drawn).templates:
            return drawn


def filter_in_groups(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """Such a gradient in groups, whose channels are whole tiles."""
    groups = rng.choice((2, 3))
    channels = {v: groups * 128 // size * rng.choice((1, 2)) for v in "ck"}
    drawn = filter_of_pieces(rng, size, **options)
    return {**drawn, **channels, "groups": groups, "n": 4 * drawn["n"]}  # else rings hold all that is summed


def image_in_groups(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """Such a convolution in groups, whose channels are whole tiles."""
    groups = rng.choice((2, 3))
    channels = {"c": groups * 128 // size * rng.choice((1, 2)), "k": groups * rng.choice((32, 64, 96, 160))}
    return {**image_of_pieces(rng, size, **options), **channels, "groups": groups, "stride": rng.choice((1, 1, 2))}


def rows_in_groups(rng: random.Random, size: int, **options: Any) -> dict[str, Any]:
    """A product of rows in groups. Tables name each group any number of times, or never, and what is no group.

    size: bytes of an element of which rows are whole pieces of 16 bytes, as tensor copies want them; 0 for any rows
    """
    piece = 16 // size if size else 1

    def wide(extents: tuple[int, ...]) -> int:
        return max(piece, rng.choice(extents) // piece * piece)

    k = rng.randrange(1, 5) * 128 // size + rng.choice((0, piece)) if size else rng.choice(EDGES)
    align = rng.choice((64, 128) if size else (16, 32, 48, 64, 128))
    drawn = {
        "m": rng.choice((1, align - 1, align, align + 1, 2 * align, 3 * align - 7, 4 * align + 1)),
        "n": wide(EDGES),
        "k": k,
        "groups": rng.choice((1, 2, 3, 7)),
        "act": rng.choice((None, None, "relu")),
    }
    return {**drawn, "align": align, "tb": rng.random() < 0.5, **options}


def any_legal(rng: random.Random, space: Any, n: int) -> dict[str, Any]:
    """The default and random configurations in turn."""
    return space.default if n % 2 else space.config(rng.randrange(len(space.legal)))


def small_tiles(rng: random.Random, space: Any, n: int) -> dict[str, Any]:
    """Configurations of many tiles and short rings in three of four tries, then any."""
    if n % 4 == 3:
        return any_legal(rng, space, n // 4)
    every = [space.config(row) for row in range(len(space.legal))]
    small = [c for c in every if c["bn"] <= 96 and c["depth"] <= 3 and c["raster"] <= 2 and c["resident"]]
    narrow = [c for c in small if c["groups"] * c["rows"] == 1 + n % 3]
    return rng.choice(narrow or small or every)


def rest_in_parts(rng: random.Random, space: Any, n: int) -> dict[str, Any]:
    """Configurations that have what whole waves leave in parts."""
    every = [space.config(row) for row in range(len(space.legal))]
    rests = [c for c in every if c["rest"]]
    small = [c for c in rests if c.get("bn", 64) <= 64]
    return rng.choice(small if small and n % 4 else rests or every)


def few_parts(rng: random.Random, space: Any, n: int) -> dict[str, Any]:
    """The same in at most four parts: rings wrap around in them."""
    return small_parts(rng, space, n, 4)


def small_parts(rng: random.Random, space: Any, n: int, most: float = math.inf) -> dict[str, Any]:
    """Configurations of many tiles and short rings in three of four tries, whose sums are in parts in every second."""
    every = [c for row in range(len(space.legal)) if (c := space.config(row))["splits"] <= most]
    every = [c for c in every if (c["splits"] > 1) == bool(n % 2)] or every
    small = [c for c in every if c["bn"] <= 128 and c["depth"] <= 3 and c["raster"] <= 2 and n % 4]
    narrow = [c for c in small if c["groups"] * c["rows"] == 1 + n % 3]
    return rng.choice(narrow or small or every)


def _whole(draw: Callable[..., dict[str, Any]], **given: Any) -> Class:
    return Class(tir.ops.matmul, whole_epilogue, {"draw": draw, **given}, any_legal)


def _warpgroups(size: int, orders: tuple[str, ...], **given: Any) -> Class:
    given = {"size": size, "orders": orders, **given}
    runs = ((0, False), (1, True), (2, False))
    return Class(tir.ops.matmul, rows_of_pieces, given, small_tiles, "sm_90a", (2, 3), runs)


def _pixels(size: int, draw: Callable[..., dict[str, Any]] = image_that_is_read, **given: Any) -> Class:
    runs = ((0, False), (1, True), (2, False))
    return Class(tir.ops.conv2d, draw, {"size": size, **given}, small_parts, "sm_90a", (2, 3), runs, WGMMA)


def _filters(draw: Callable[..., dict[str, Any]], **given: Any) -> Class:
    return replace(_pixels(2, draw, **given), make=tir.ops.conv2d_backward_weight, configure=few_parts)


def _in_groups(**given: Any) -> Class:
    return Class(tir.ops.grouped_matmul, rows_in_groups, {"size": 0, **given}, any_legal)


def _waves(size: int, arch: str, **given: Any) -> Class:
    runs = ((0, False), (1, True), (2, False)) if arch == "sm_90a" else ((0, False),)
    return Class(tir.ops.matmul, waves, {"size": size, **given}, rest_in_parts, arch, (4, 6), runs)


def _groups_of_pieces(size: int, **given: Any) -> Class:
    given, runs = {"size": size, **given}, ((0, False), (1, True), (2, False))
    return Class(tir.ops.grouped_matmul, rows_in_groups, given, small_tiles, "sm_90a", (2, 3), runs)


CLASSES: dict[str, Class] = {
    "fp32 in threads": Class(tir.ops.matmul, product, {}, any_legal),
    "fp16 mma.sync": Class(tir.ops.matmul, product, {"dtype": "float16"}, any_legal),
    "bf16 mma.sync": Class(tir.ops.matmul, product, {"dtype": "bfloat16"}, any_legal),
    "int8 mma.sync": Class(tir.ops.matmul, product, {"dtype": "int8"}, any_legal),
    "e4m3 mma.sync": Class(tir.ops.matmul, product, {"dtype": "float8_e4m3"}, any_legal, "sm_89"),
    "fp16 mma.sync of sm_75": Class(tir.ops.matmul, product, {"dtype": "float16"}, any_legal, "sm_75"),
    "int8 mma.sync of sm_75": Class(tir.ops.matmul, product, {"dtype": "int8"}, any_legal, "sm_75"),
    "fp32 in threads, whole epilogue": _whole(product),
    "fp16 mma.sync, whole epilogue": _whole(product, dtype="float16"),
    "fp32 by tf32": Class(tir.ops.matmul, product, {"precision": "tf32"}, any_legal),
    "fp32 by 3xTF32": Class(tir.ops.matmul, product, {"precision": "3xtf32"}, any_legal),
    "fp16 convolution": Class(tir.ops.conv2d, convolution, {"dtype": "float16"}, any_legal),
    "fp16 convolution, NCHW": Class(tir.ops.conv2d, convolution, {"dtype": "float16", "layout": "NCHW"}, any_legal),
    "fp32 in threads, a rest in parts": _waves(4, "sm_80"),
    "bf16 mma.sync, a rest in parts": _waves(2, "sm_80", dtype="bfloat16"),
    "fp32 in groups, in threads": _in_groups(),
    "bf16 in groups, mma.sync": _in_groups(dtype="bfloat16"),
    "tf32 in groups, mma.sync": _in_groups(precision="tf32"),
    "fp32 convolution in threads, NHWC": Class(tir.ops.conv2d, convolution, {}, any_legal),
    "fp32 convolution in threads, NCHW": Class(tir.ops.conv2d, convolution, {"layout": "NCHW"}, any_legal),
    "fp32 depthwise": Class(tir.ops.conv2d, depthwise, {}, any_legal, template="gpu_tile_windows"),
    "fp16 depthwise": Class(tir.ops.conv2d, depthwise, {"dtype": "float16"}, any_legal, template="gpu_tile_windows"),
    "fp32 Winograd": Class(tir.ops.conv2d, image_of_tiles, {}, any_legal, template="gpu_winograd"),
    "fp32 Winograd, one kernel": Class(tir.ops.conv2d, image_of_tiles, {}, any_legal, template="gpu_winograd_fused"),
    "3xTF32 Winograd": Class(
        tir.ops.conv2d, image_of_tiles, {"precision": "3xtf32"}, any_legal, template="gpu_winograd"
    ),
    "fp16 wgmma, B transposed": _warpgroups(2, ("nt",), dtype="float16"),
    "fp16 wgmma, other orders": _warpgroups(2, ("nn", "tn", "tt"), dtype="float16"),
    "bf16 wgmma, B transposed": _warpgroups(2, ("nt",), dtype="bfloat16"),
    "bf16 wgmma, other orders": _warpgroups(2, ("nn", "tn", "tt"), dtype="bfloat16"),
    "tf32 wgmma": _warpgroups(4, ("nt",), precision="tf32"),
    "int8 wgmma": _warpgroups(1, ("nt",), dtype="int8"),
    "uint8 wgmma": _warpgroups(1, ("nt",), dtype="uint8"),
    "e4m3 wgmma": _warpgroups(1, ("nt",), dtype="float8_e4m3"),
    "e5m2 wgmma": _warpgroups(1, ("nt",), dtype="float8_e5m2"),
    "bf16 wgmma, whole epilogue": replace(
        _warpgroups(2, ("nt", "nn", "tn", "tt"), draw=rows_of_pieces, dtype="bfloat16"), draw=whole_epilogue
    ),
    "bf16 wgmma convolution, im2col": _pixels(2, dtype="bfloat16"),
    "int8 wgmma convolution, im2col": _pixels(1, dtype="int8"),
    "e4m3 wgmma convolution, im2col": _pixels(1, dtype="float8_e4m3"),
    "tf32 wgmma convolution, im2col": _pixels(4, precision="tf32"),
    "bf16 wgmma convolution in groups, im2col": _pixels(2, image_in_groups, dtype="bfloat16"),
    "bf16 wgmma gradient of images, im2col": replace(
        _pixels(2, gradient_of_pieces, dtype="bfloat16"), make=tir.ops.conv2d_backward_data
    ),
    "bf16 wgmma gradient of filters, im2col": _filters(filter_of_pieces, dtype="bfloat16"),
    "fp16 wgmma gradient of filters in groups, im2col": _filters(filter_in_groups, dtype="float16"),
    "bf16 wgmma, a rest in parts": _waves(2, "sm_90a", dtype="bfloat16"),
    "bf16 wgmma in groups": _groups_of_pieces(2, dtype="bfloat16"),
    "int8 wgmma in groups": _groups_of_pieces(1, dtype="int8", tb=True),
}


@dataclass
class Case:
    """One kernel of a class."""

    shape: dict[str, Any]
    work: tir.Workload
    config: dict[str, Any]
    template: str
    target: str

    def schedule(self) -> tir.Schedule:
        return self.work.schedule(self.config, self.template, self.target)

    def source(self) -> Source:
        return self.schedule().emitted()

    def turns(self) -> tuple[int, int]:
        """Tiles of the busiest block, and iterations of its ring; of kernels of warpgroups."""
        c, p = self.config, {"groups": 1, **self.shape}
        kernel = next(k for k in self.source().kernels if k.maps)
        size = {"float16": 2, "bfloat16": 2, "float32": 4}.get(p.get("dtype", "float32"), 1)
        if "r" in p:
            p = _product(self.work, p)
        rows = 64 * c["rows"] * (1 if c["pingpong"] else c["groups"])
        many = -(-p["m"] // rows) * -(-p["n"] // c["bn"]) * p.get("batch", 1) * c["splits"]
        each = -(-many // kernel.grid[0])
        return each, each * -(-p["k"] * size // (128 * c["splits"]))


def _product(work: tir.Workload, p: dict[str, Any]) -> dict[str, Any]:
    """The product that a convolution or a gradient of it is, in whole tiles of 128 bytes."""
    image, first = (work.inputs[0].shape, work.outputs[0].shape), p.get("groups", 1)
    size = {"float16": 2, "bfloat16": 2, "float32": 4}.get(p.get("dtype", "float32"), 1)
    c, k = (-(-p[v] // first * size // 128) * 128 // size for v in "ck")
    if work.name == "conv2d_backward_weight":
        pixels = math.prod(work.inputs[1].shape[:3])
        return dict(m=p["k"] // first, n=p["r"] * p["s"] * c, k=pixels, batch=first)
    made, summed = ("c", k) if work.name == "conv2d_backward_data" else ("k", c)
    return dict(m=math.prod(image[1][:3]), n=p[made] // first, k=p["r"] * p["s"] * summed, batch=first)


def cases(c: Class, count: int, seed: int = 0) -> Iterator[Case]:
    """The kernels of a class; of one seed always the same."""
    rng = random.Random(seed)
    for n in range(count):
        shape = c.draw(rng, **c.given)
        shape = {k: v for k, v in shape.items() if k not in ("size", "orders")}
        work, units = c.make(**shape), rng.choice(c.units) if len(c.units) > 1 else c.units[0]
        target = f"cuda -arch={c.arch}" + (f" -units={units}" if units else "")
        template = work.template_for(target, c.template)
        space = work.templates[template].space_for(tir.Target.parse(target))
        yield Case(shape, work, c.configure(rng, space, n), template, target)


def whole_filters(m: int) -> np.float32:
    """What filters are multiples of, so that transforming them to tiles of m x m outputs gives whole numbers."""
    _, g, _ = matrices(m, 3)
    return np.float32(math.lcm(*(x.denominator for row in g for x in row)) ** 2)


def wrong(case: Case, source: Source, runs: tuple[tuple[int, bool], ...]) -> str:
    """What is wrong with one kernel; empty where it is right."""
    for seed, eager in runs:
        arrays = random_arguments(case.work.outputs, seed)
        if "winograd" in case.template:
            arrays[1] *= whole_filters(case.config.get("m", 2))
        run = emulate(source, arrays, seed, eager)
        if run.problems:
            return str(run.problems[0])
        if not np.array_equal(run.outputs[0], case.work.reference(*arrays)):
            return "another result"
    outputs = case.schedule().outputs
    for far in with_infinities(outputs, random_arguments(outputs, 0)):
        run = emulate(source, far)
        if told := run.problems or infinities_spread(outputs, run.outputs, far):
            return str(told)
    return ""


def refused(source: Source, arch: str) -> str | None:
    """What NVRTC has against it, empty if it compiles; None where there is no NVRTC."""
    try:
        compile_cubin(source.text, arch)
    except DeviceError:
        return None
    except CompileError as e:
        return str(e)
    return ""


def row(name: str, c: Class, count: int, seed: int = 0) -> dict[str, Any]:
    """One class on ``count`` shapes that ``seed`` draws."""
    failed, refusals, several, around = [], [], 0, 0
    for case in cases(c, count, seed):
        source = case.source()
        told = wrong(case, source, c.runs)
        if told:
            failed.append({"shape": case.shape, "config": case.config, "target": case.target, "wrong": told})
            print(name, case.shape, case.config, case.target, told, flush=True)
        refusals.append(refused(source, c.arch))
        if case.template in ("gpu_tile_wgmma", WGMMA):
            boxes, turns = case.turns()
            several += boxes > 1
            around += turns > case.config["depth"]
    out = {"class": name, "arch": c.arch, "shapes": count, "runs": count * len(c.runs), "exact": count - len(failed)}
    if None not in refusals:
        out["compiled"] = sum(r == "" for r in refusals)
        out["refused"] = sorted({r for r in refusals if r})
    if "wgmma" in name:
        out |= {"several_tiles_a_block": several, "ring_wraps_around": around}
    return {**out, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50, help="shapes of each class")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of shapes and configurations")
    parser.add_argument("--only", default="", help="classes whose name contains this")
    parser.add_argument(
        "--save", action="store_true", help=f"write {RESULT.name} among the results; with --only, its part"
    )
    options = parser.parse_args()
    if options.save and options.seed:
        parser.error("what is kept is of seed 0: --save takes no other --seed")
    known = {r["class"]: r for r in json.loads(RESULT.read_text())} if RESULT.exists() else {}
    for name, c in CLASSES.items():
        if options.only not in name:
            continue
        found = known[name] = row(name, c, options.count, options.seed)
        compiled = f", {found['compiled']} compiled for {c.arch}" if "compiled" in found else ""
        print(f"{name:26s} {found['exact']} of {options.count} exact{compiled}", flush=True)
        if options.save:
            RESULT.write_text(json.dumps([known[n] for n in CLASSES if n in known], indent=1) + "\n")


if __name__ == "__main__":
    main()
