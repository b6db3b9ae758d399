"""Kernels of all classes at small sizes, each with one thing more than those before it: what breaks first tells why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import tensorir as tir

from .probes import Made, Probe
from .problems import Problem, convolution, product
from .words import held_in_words, in_words, words_of

TARGET = "cuda -arch=sm_90a"
_ONE = dict(groups=1, rows=1, bn=64, depth=2, cluster=1, raster=1, resident=0, splits=1, atomic=0, pingpong=0)
"""One warpgroup that computes one tile."""
_MANY = 64 * 134
"""Rows of more tiles than there are multiprocessors."""


def _made(problem: Problem, config: Mapping[str, Any]) -> Made:
    work, target = problem.workload(), tir.Target.parse(TARGET)
    template = problem.template or work.template_for(TARGET)
    chosen, s = work.templates[template], tir.Schedule(work.outputs, target)
    source = (chosen.function(s, {**chosen.space_for(target).default, **config}) or s).emitted()
    wide = _wide(problem)
    numbers = wide.drawn(whole=True)
    want = np.asarray(wide.workload().reference(*numbers))
    arrays = [_as_declared(x, a.dtype) for x, a in zip(numbers, problem.arguments, strict=True)]
    return Made(in_words(source), arrays, _as_declared(want, source.outputs[0].dtype))


def _wide(problem: Problem) -> Problem:
    """The same computation of types that NumPy has: whole numbers are as exact in them."""
    narrow = held_in_words(problem.parameters.get("dtype", ""))
    return replace(problem, options=tuple({**problem.parameters, "dtype": "float32"}.items())) if narrow else problem


def _as_declared(x: np.ndarray, dtype: str) -> np.ndarray:
    return words_of(x, dtype) if held_in_words(dtype) else x


def _rung(name: str, asks: str, problem: Problem, **config: Any) -> Probe:
    return Probe(name, asks, lambda: _made(problem, config))


def _cores(kind: str, **more: Any) -> Problem:
    return replace(product("contact", kind, 128, 128, 128, **more), template="gpu_tile_mma")


def _tile(kind: str = "bf16", m: int = 64, n: int = 64, k: int = 64, **more: Any) -> Problem:
    return replace(product("contact", kind, m, n, k, **{"tb": True, **more}), template="gpu_tile_wgmma")


def _image(kind: str = "bf16", **more: Any) -> Problem:
    shape = {**dict(n=1, c=64, h=18, w=18, k=64, r=3, s=3, pad=1, layout="NHWC"), **more}
    return replace(convolution("contact", kind, **shape), template="gpu_tile_wgmma")


def _steps() -> Iterator[Probe]:
    threads = replace(product("contact", "fp32", 128, 128, 64), template="gpu_tile")
    yield _rung("threads", "launches, arguments, copies to and from the device", threads)
    for kind in ("fp16", "bf16", "tf32", "3xtf32", "int8", "e4m3"):
        yield _rung(f"mma {kind}", "mma.sync, ldmatrix, cp.async", _cores(kind, tb=True))
    for order, more in (("nn", {}), ("tt", dict(ta=True, tb=True))):
        yield _rung(f"mma bf16 {order}", "ldmatrix that transposes", _cores("bf16", **more))
    yield _rung("wgmma", "one product of 64 x 64: descriptors of rows along k, the sums' registers", _tile(), **_ONE)
    for kind in ("fp16", "tf32", "int8", "e4m3"):
        yield _rung(f"wgmma {kind}", "the instruction's other types", _tile(kind, k=256), **_ONE)
    for order, more in (("nn", dict(tb=False)), ("tt", dict(ta=True)), ("tn", dict(ta=True, tb=False))):
        wide = _tile(n=128, **more)
        yield _rung(f"wgmma bf16 {order}", "operands not along k: leading and stride", wide, **{**_ONE, "bn": 128})
    yield _rung("wgmma 256", "256 columns, 128 sums a thread", _tile(n=256), **{**_ONE, "bn": 256})
    yield _rung("wgmma 96", "columns of which no tile of results is made: they leave by threads", _tile(n=96),
                **{**_ONE, "bn": 96})  # fmt: skip
    yield _rung("wgmma ring", "buffers used again and again: parities", _tile(k=1024), **{**_ONE, "depth": 3})
    yield _rung("wgmma odd", "edges in every dimension", _tile(m=200, n=136, k=200), **{**_ONE, "depth": 3})
    for groups, rows in ((2, 1), (3, 1), (1, 2)):
        high = _tile(m=64 * groups * rows, n=128, k=256)
        yield _rung(f"wgmma {groups} groups of {rows}", "warpgroups that share tiles, and registers given away", high,
                    **{**_ONE, "groups": groups, "rows": rows, "bn": 128, "depth": 3})  # fmt: skip
    yield _rung("wgmma cluster", "multicast, and barriers of the other block", _tile(m=256, n=128, k=512),
                **{**_ONE, "groups": 2, "bn": 128, "depth": 3, "cluster": 2})  # fmt: skip
    yield _rung("wgmma small cluster", "little memory, all of it at launch", _tile("tf32", m=128, n=32, k=128),
                **{**_ONE, "bn": 32, "cluster": 2})  # fmt: skip
    yield _rung("wgmma resident", "blocks that walk several tiles", _tile(m=_MANY, k=192), **{**_ONE, "resident": 1})
    turns = {**_ONE, "groups": 2, "depth": 3, "resident": 1, "pingpong": 1}
    yield _rung("wgmma in turns", "a third kind of barrier", _tile(m=2 * _MANY, k=192), **turns)
    yield _rung("wgmma in turns, cluster", "all of it at once", _tile(m=4 * _MANY, k=192), **{**turns, "cluster": 2})
    for atomic in (0, 1):
        yield _rung(f"wgmma split {'atomic' if atomic else 'sums'}", "parts of a reduction, two kernels",
                    _tile("tf32", k=1024), **{**_ONE, "splits": 4, "atomic": atomic})  # fmt: skip
    small = dict(n=3, h=7, w=7)
    yield _rung("conv wgmma", "pixels of an image in line, and its border", _image(), **_ONE)
    yield _rung("conv wgmma stride 2", "every second pixel", _image(stride=2), **_ONE)
    yield _rung("conv wgmma im2col", "pixels of several images in one tile", _image(**small), **_ONE)
    yield _rung("conv wgmma im2col 3x1", "a filter with rows alone, a stride", _image(r=3, s=1, stride=2, **small),
                **_ONE)  # fmt: skip
    yield _rung("conv wgmma 1x1 in one line", "pixels that are rows of a matrix", _image(r=1, s=1, pad=0, **small),
                **_ONE)  # fmt: skip
    filters = {**_ONE, "bn": 128, "resident": 1}
    yield _rung("conv wgmma filter", "a filter's gradient: sums over pixels, each of whose tiles is under two taps",
                _image(op="conv2d_backward_weight", n=2, h=9, w=7), **filters)  # fmt: skip
    yield _rung("conv wgmma filter in parts", "parts of its pixels, a stride, a cluster that gets them by multicast",
                _image(op="conv2d_backward_weight", n=16, h=14, w=14, k=256, stride=2),
                **{**filters, "groups": 2, "cluster": 2, "splits": 3})  # fmt: skip
    yield _rung("conv threads", "fp32 in threads", replace(_image("fp32", layout="NCHW"), template="gpu_tile"))


RUNGS = tuple(_steps())
