"""Part of the layer "tables": how tiles of Hopper kernels are stored, and what their tensor maps say.

A tile is permuted by whoever copies it, as its map says, and by the product that reads it, as its descriptor says. The
layout that the schedule declares has to be what both do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cuda_boxes import COLUMNS, in_boxes
from cuda_judge import Trial, trial
from cuda_kernels import HOPPER

import tensorir as tir
from tensorir.api.schedule import Schedule
from tensorir.check.equivalence import compare
from tensorir.codegen.source import Source, TensorMap
from tensorir.engines.gemm_hopper import swizzled_rows
from tensorir.errors import TensorIRError
from tensorir.interp.numbers import Field
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication
from tensorir.intrin.hopper import KINDS
from tensorir.runtime import tensor_maps


@dataclass(frozen=True)
class Sided:
    """One mutant of a kernel's tiles; ``judge``: who notices it."""

    kind: str
    place: str
    judge: Callable[[], tuple[str, str] | None]


def orders(m: Multiplication) -> tuple[str, ...]:
    """The storage orders of operands that products of warpgroups read."""
    return () if m.name not in KINDS else ("nn", "nt", "tn", "tt") if m.word == 2 else ("nt",)


def instruction(m: Multiplication, order: str) -> str:
    return f"wgmma.m64n{COLUMNS}k{m.k}.{m.name}.{order}"


def product(name: str, order: str) -> Schedule:
    """A product of one warpgroup with a ring of two tiles, whose rows end inside the second block's."""
    m = MULTIPLICATIONS[name]
    given: dict[str, Any] = dict(m=72, n=72, k=144, ta=order[0] == "t", tb=order[1] == "t", dtype=m.dtype)
    if m.name == "tf32":
        given["precision"] = "tf32"
    config = dict(groups=1, rows=1, bn=COLUMNS, depth=2, cluster=1, raster=1, resident=1, splits=1, atomic=0,
                  rest=0, pingpong=0)  # fmt: skip
    return tir.ops.matmul(**given).schedule(config, "gpu_tile_wgmma", HOPPER.format(3))


STRIDED = "strided"
"""In place of an order of operands: a convolution, whose tiles of the image are every second pixel."""


LINED = "im2col"
"""Likewise, whose tiles are pixels in one line: copies go through the image."""


def convolution(name: str, order: str) -> Schedule:
    """A convolution of one warpgroup whose pixels and channels end inside the last tile."""
    m = MULTIPLICATIONS[name]
    given: dict[str, Any] = dict(n=2, h=12, w=22, c=40 * m.word, k=80, r=2, s=2, stride=2, dtype=m.dtype)
    if order == LINED:
        given |= dict(n=5, h=13, w=10, r=3, pad=1)
    if m.name == "tf32":
        given["precision"] = "tf32"
    w, target = tir.ops.conv2d(**given, layout="NHWC"), HOPPER.format(3)
    if order == STRIDED:
        return in_boxes(w, m, target)
    config = dict(groups=1, rows=1, bn=COLUMNS, depth=2, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0,
                  pingpong=0)  # fmt: skip
    return w.templates["gpu_tile_wgmma"].function(tir.Schedule(w.outputs, target), config)


def mutants(name: str, order: str) -> Iterator[Sided]:
    """Another layout of one tile, and another map of one array."""
    m = MULTIPLICATIONS[name]
    right = swizzled_rows(4 // m.word)
    whole = order in (STRIDED, LINED)
    for k, operand in enumerate("" if whole else "ab"):
        for other in other_layouts(4 // m.word):
            place = f"{operand}, {order}: {right} -> {other}"
            yield Sided("layout of a tile", place, lambda k=k, other=other: _layout(name, order, k, right, other))
    t = trial(convolution(name, order) if whole else product(name, order))
    (kernel,) = t.source.kernels
    for k, given in enumerate(kernel.maps):
        for kind, changed in pixel_maps(given) if given.lower else other_maps(given):
            yield Sided(kind, f"{given} -> {changed}", lambda k=k, changed=changed: _mapped(t, k, changed))


def other_layouts(size: int) -> Iterator[str]:
    """Permuted by other bits, by fewer, not at all."""
    row, piece = 128 // size, 16 // size
    yield f"x/{row}, r, x/{piece}%8, x%{piece}"
    yield f"x/{row}, r, x/{piece}%8 ^ r/2%8, x%{piece}"
    yield f"x/{row}, r, x/{piece}%8 ^ r%4, x%{piece}"
    yield f"x/{row // 2}, r, x/{piece}%4 ^ r/2%4, x%{piece}"


def other_maps(m: TensorMap) -> Iterator[tuple[str, TensorMap]]:
    """Permuted otherwise, of another box, with other steps, of an array of another shape."""
    steps = m.steps or (1,) * len(m.box)
    several = [d for d, (n, step) in enumerate(zip(m.box, steps, strict=True)) if n > step]  # elements of a tile
    for span in (0, 32, 64):
        yield "swizzle of a map", replace(m, swizzle=span)
    for d in several[:-1]:
        for n in (m.box[d] // 2, 2 * m.box[d]):
            yield "box of a map", replace(m, box=put(m.box, d, n))
        for by in (1, -1):
            if step := max(steps[d] + by, 0):
                box, others = put(m.box, d, m.box[d] // steps[d] * step), put(steps, d, step)
                yield "step of a map", replace(m, box=box, steps=others)
                yield "step of a map, the box as before", replace(m, steps=others)
    piece = 16 // tensor_maps.TENSOR_MAP_TYPES[m.dtype][1]
    for d, n in enumerate(m.shape):
        by = piece if d == len(m.shape) - 1 else 1
        yield "shape of a map", replace(m, shape=put(m.shape, d, n - by))
        if d in several:  # beyond others nothing is asked for
            yield "shape of a map", replace(m, shape=put(m.shape, d, n + by))


def pixel_maps(m: TensorMap) -> Iterator[tuple[str, TensorMap]]:
    """Of an image that is gone through: other corners, steps and numbers of pixels, rows for columns."""
    _, *steps, _ = m.steps
    for side in (0, 1):
        for by in (1, -1):
            yield "corner of a map", replace(m, lower=put(m.lower, side, m.lower[side] + by))
        for by in (1, -steps[side]):  # a step's worth of pixels behind the last one is none
            yield "corner of a map", replace(m, upper=put(m.upper, side, m.upper[side] + by))
        for by in (1, -1):
            if step := steps[side] + by:
                yield "step of a map", replace(m, steps=put(m.steps, side + 1, step))
    yield "corners of a map exchanged", replace(m, lower=m.lower[::-1], upper=m.upper[::-1])
    yield "corners of a map exchanged", replace(m, lower=m.upper, upper=m.lower)
    for span in (0, 32, 64):
        yield "swizzle of a map", replace(m, swizzle=span)
    for n in (m.box[0] // 2, 2 * m.box[0]):
        yield "box of a map", replace(m, box=(n, m.box[1]))
    piece = 16 // tensor_maps.TENSOR_MAP_TYPES[m.dtype][1]
    for d, n in enumerate(m.shape):
        for by in (piece, -piece) if d == len(m.shape) - 1 else (1, -1):
            yield "shape of a map", replace(m, shape=put(m.shape, d, n + by))


def put(numbers: tuple[int, ...], d: int, n: int) -> tuple[int, ...]:
    """The numbers with another in place ``d``."""
    return (*numbers[:d], n, *numbers[d + 1 :])


def _layout(name: str, order: str, which: int, old: str, new: str) -> tuple[str, str] | None:
    s = product(name, order)
    steps = json.loads(s.trace.to_json())
    text = json.dumps(steps).split(json.dumps(old)[1:-1])
    changed = "".join(x + (new if n == which else old) for n, x in enumerate(text[:-1])) + text[-1]
    try:
        made = Schedule(s.began_with, s.target).replay(changed)
        problem = compare(made, Field(), 1)
        if problem is not None:
            return "interpreter", problem.code
        t = trial(made)
        return t._run(t.source.text, 0)
    except TensorIRError as e:
        return "legality", e.code


def _mapped(t: Trial, which: int, changed: TensorMap) -> tuple[str, str] | None:
    (kernel,) = t.source.kernels
    maps = tuple(changed if n == which else m for n, m in enumerate(kernel.maps))
    source: Source = replace(t.source, kernels=(replace(kernel, maps=maps),))
    try:
        return replace(t, source=source)._run(source.text, 0)
    except TensorIRError as e:
        return "legality", e.code
