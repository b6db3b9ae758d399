"""The kernels whose mutants are tried: one of each class, on two shapes whose texts differ in numbers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda_boxes import in_boxes

import tensorir as tir
from tensorir.automatic.rules.tile_gpu import ENGINES
from tensorir.engines.gemm_blocks import Engine
from tensorir.engines.gemm_gpu import SharedTile
from tensorir.engines.gemm_hopper import HopperTile
from tensorir.engines.gemm_tensor import TensorTile
from tensorir.intrin.cuda import MULTIPLICATIONS
from tensorir.schedule.schedule import BaseSchedule

TARGET = "cuda -arch=sm_80"
_THREADS = dict(ti=8, tj=8, ri=4, rj=4, bk=8, vector=4, fragments=1, depth=1)
HOPPER = "cuda -arch=sm_90a -units={}"
_WARPS = dict(bm=32, bn=32, wm=16, wn=16, bk=32, depth=3, in_flight=1, raster=1, splits=1, atomic=0, rest=0,
              staged=0)  # fmt: skip


@dataclass(frozen=True)
class Kernel:
    """``schedules``: the same kernel on each shape;  slots: of its rings, 0 if it has none."""

    name: str
    schedules: Callable[[], list[BaseSchedule]]
    slots: int = 0


def _tiled(shape: dict[str, Any], engine: type[Engine], config: dict[str, Any], target: str) -> BaseSchedule:
    """A matmul by an engine, also where its space would not have the configuration."""
    work, name = tir.ops.matmul(**shape), next(name for name, tile in ENGINES.items() if tile is engine)
    s = tir.Schedule(work.outputs, target)
    work.templates[f"gpu_{name}"].function(s, {"splits": 1, **config})
    return s


def _product(shape: dict[str, Any], engine: type[Engine], config: dict[str, Any], ring: int) -> BaseSchedule:
    s = _tiled(shape, engine, config, TARGET)
    if ring:
        s.pipeline("c.k.0", ring, async_=True)
    return s


def _kernel(
    name: str, sizes: tuple[tuple[int, int, int], ...], engine: type[Engine], config: dict[str, Any],
    slots: int = 0, ring: int = 0, **options: Any,
) -> Kernel:  # fmt: skip
    shapes = [dict(m=m, n=n, k=k, **options) for m, n, k in sizes]
    return Kernel(name, lambda: [_product(x, engine, config, ring) for x in shapes], slots)


def _half(order: str) -> Kernel:
    turned = dict(ta=order[0] == "t", tb=order[1] == "t")
    sizes = ((40, 40, 120), (56, 72, 152))
    return _kernel(f"fp16 {order}, cp.async", sizes, TensorTile, _WARPS, 3, dtype="float16", **turned)


def _groups(
    name: str, sizes: tuple[tuple[int, int, int], ...], units: int, config: dict[str, Any], **options: Any
) -> Kernel:
    """A kernel of warpgroups with roles, on so few multiprocessors that blocks walk two tiles each."""
    config = dict(rows=1, depth=3, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0,
                  pingpong=0) | config  # fmt: skip

    def schedule(shape: dict[str, Any]) -> BaseSchedule:
        return _tiled(shape, HopperTile, config, HOPPER.format(units))

    shapes = [dict(m=m, n=n, k=k, **options) for m, n, k in sizes]
    return Kernel(name, lambda: [schedule(x) for x in shapes], config["depth"])


def _template(
    name: str, works: list[tir.Workload], template: str, config: dict[str, Any], target: str = TARGET, slots: int = 0
) -> Kernel:  # fmt: skip
    """A template as it is, in a configuration that differs from its default so far."""

    def schedule(w: tir.Workload) -> BaseSchedule:
        s = tir.Schedule(w.outputs, target)
        chosen = w.templates[template]
        return chosen.function(s, {**chosen.space_for(s.target).default, **config}) or s

    return Kernel(name, lambda: [schedule(w) for w in works], slots)


def _boxes(name: str, works: list[tir.Workload]) -> Kernel:
    """The convolution in boxes of rows of sixteen pixels."""
    m, target = MULTIPLICATIONS["bf16"], HOPPER.format(2)
    return Kernel(name, lambda: [in_boxes(w, m, target, wide=16, depth=3) for w in works], 3)


_WARP = dict(li=8, ri=8, rj=8, wi=1, wj=2, bk=8, depth=2, in_flight=0, raster=1, splits=1, atomic=0, rest=0)
_TURNS = dict(groups=2, rows=1, bn=64, depth=3, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0, pingpong=1)
_LINE = {**_TURNS, "groups": 1, "pingpong": 0}
_FILTER = {**_LINE, "bn": 128}

KERNELS = {
    k.name: k
    for k in (
        _kernel("threads", ((37, 45, 19), (43, 53, 27)), SharedTile, _THREADS),
        _kernel("threads, registers ahead", ((40, 44, 24), (48, 52, 40)), SharedTile, _THREADS | dict(depth=2)),
        _kernel("threads, cp.async", ((40, 44, 44), (48, 52, 60)), SharedTile, _THREADS, 3, 3),
        *(_half(order) for order in ("nn", "nt", "tn", "tt")),
        _kernel("tf32 nn, cp.async", ((40, 40, 72), (56, 72, 88)), TensorTile, _WARPS | dict(bk=16), 3,
                precision="tf32"),
        _kernel("3xtf32 tt, cp.async", ((40, 40, 72), (56, 72, 88)), TensorTile, _WARPS | dict(bk=16), 3,
                precision="3xtf32", ta=True, tb=True),
        _kernel("int8 nt, cp.async", ((40, 40, 240), (56, 72, 304)), TensorTile, _WARPS | dict(bk=64), 3,
                dtype="int8", tb=True),
        _groups("bf16 nt, warpgroups", ((200, 56, 264), (152, 48, 408)), 2, dict(groups=2, bn=32), dtype="bfloat16",
                tb=True),
        _groups("fp16 nn, warpgroups", ((200, 72, 200), (168, 104, 280)), 3, dict(groups=1, rows=2, bn=64),
                dtype="float16"),
        _template("fp32, warp tiles", [
            tir.ops.matmul(m=m, n=n, k=k, tb=True) for m, n, k in ((40, 84, 28), (24, 100, 44))
        ], "gpu_tile_warp", _WARP),
        _template("fp32 convolution, warp tiles", [
            tir.ops.conv2d(n=n, c=12, h=h, w=7, k=24, pad=1, layout="NHWC") for n, h in ((1, 11), (2, 5))
        ], "gpu_tile_warp", _WARP),
        _template("fp32 Winograd in one kernel", [
            tir.ops.conv2d(n=n, c=20, h=h, w=11, k=40, pad=1, layout="NHWC") for n, h in ((1, 13), (1, 17))
        ], "gpu_winograd_fused", dict(bk=32, depth=2, bc=8, places=2)),
        _template("bf16 nt, warpgroups in turns", [
            tir.ops.matmul(m=m, n=n, k=k, tb=True, dtype="bfloat16") for m, n, k in ((280, 56, 264), (536, 40, 392))
        ], "gpu_tile_wgmma", _TURNS, HOPPER.format(2), 3),
        _template("fp8 nt, warpgroups", [
            tir.ops.matmul(m=m, n=n, k=k, tb=True, dtype="float8_e4m3") for m, n, k in ((300, 56, 400), (600, 48, 784))
        ], "gpu_tile_wgmma", {**_TURNS, "pingpong": 0}, HOPPER.format(2), 3),
        _boxes("bf16 convolution with a stride, warpgroups", [
            tir.ops.conv2d(n=n, h=h, w=w, c=72, k=64, r=1, s=3, pad=1, stride=2, dtype="bfloat16", layout="NHWC")
            for n, h, w in ((1, 13, 37), (2, 13, 45))
        ]),
        _template("bf16 convolution, im2col, warpgroups", [
            tir.ops.conv2d(n=n, h=h, w=w, c=72, k=64, r=3, s=2, pad=1, stride=2, dtype="bfloat16", layout="NHWC")
            for n, h, w in ((4, 9, 12), (6, 10, 16))
        ], "gpu_tile_wgmma", _LINE, HOPPER.format(2), 3),
        _template("bf16 gradient of filters, im2col, warpgroups", [
            tir.ops.conv2d_backward_weight(n=n, h=h, w=w, c=120, k=72, r=3, s=2, pad=1, stride=2, dtype="bfloat16",
                                           layout="NHWC")
            for n, h, w in ((7, 9, 12), (6, 9, 16))
        ], "gpu_tile_wgmma", _FILTER, HOPPER.format(2), 3),
        _template("bf16 grouped, mma.sync", [
            tir.ops.grouped_matmul(m=m, n=n, k=k, groups=3, align=32, dtype="bfloat16")
            for m, n, k in ((100, 40, 120), (140, 56, 152))
        ], "gpu_tile_mma", {**_WARPS, "bn": 64, "wn": 32, "rest": 0}, slots=3),
    )
}  # fmt: skip
