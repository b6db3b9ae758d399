"""conv2d on GPUs: by shared tiles on any, and the templates for CUDA, where these suit the convolution."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tensorir.api.workload import Template
from tensorir.ops import winograd_fused, winograd_gpu
from tensorir.ops.blocks import ALIGNED, bind_grid, groups_met, has_room, start
from tensorir.ops.common import Config, out_stage
from tensorir.ops.conv_cpu import admissible
from tensorir.ops.conv_hopper import conv_warpgroups, gpu_hopper, hopper_space
from tensorir.ops.conv_tensor import conv_multiplication, conv_space, gpu_tensor, view
from tensorir.ops.conv_warp import warp_template
from tensorir.ops.depthwise_gpu import depthwise_template
from tensorir.ops.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.space import Space


def gpu_templates(shape: Conv) -> dict[str, Template]:
    """The templates for GPUs by name, the one that a search begins with first."""
    on_gpu = Template(lambda sch, cfg: gpu_tile(sch, cfg, shape), lambda t: _gpu_space(shape, t), kinds=("gpu",))
    return {
        **_tensor_cores(shape),
        **warp_template(shape),
        **depthwise_template(shape),
        "gpu_tile": on_gpu,
        **_winograds(shape),
    }


def _tensor_cores(shape: Conv) -> dict[str, Template]:
    """The template for tensor cores, where these fit the convolution."""
    m = conv_multiplication(shape)
    if m is None:
        return {}

    def function(s: Schedule, c: Config) -> Schedule:
        return gpu_tensor(s, c, shape, view(s, shape))

    cores = {"gpu_tensor": Template(function, lambda t: conv_space(shape, t), ("gpu",), needs=m.needs)}
    if conv_warpgroups(shape) is None:
        return cores

    def groups(s: Schedule, c: Config) -> Schedule:
        return gpu_hopper(s, c, shape, s.target)

    return {"gpu_hopper": Template(groups, lambda t: hopper_space(shape, t), ("gpu",), needs="sm_90a"), **cores}


def _winograds(shape: Conv) -> dict[str, Template]:
    """Winograd's algorithm for CUDA, where it applies and ``max_error`` allows it; never what a search starts with."""
    fits = shape.r == 3 and shape.groups == 1 and shape.precision != "tf32"
    allowed = admissible(shape) if fits else []
    sizes = [m for m in winograd_gpu.TILES if m in allowed]
    if not sizes:
        return {}
    needs = "sm_70" if shape.precision == "fp32" else "sm_80"
    space = partial(winograd_gpu.winograd_space, shape, sizes=sizes)
    found = {
        "gpu_winograd": Template(
            lambda s, c: winograd_gpu.gpu_winograd(s, c, shape), space, ("gpu",), approximate=True, needs=needs
        )
    }
    if shape.precision == "fp32":
        blocks = partial(winograd_fused.fused_space, shape)
        found["gpu_winograd_fused"] = Template(
            lambda s, c: winograd_fused.gpu_winograd_fused(s, c, shape),
            blocks,
            ("gpu",),
            approximate=True,
            needs="sm_70",
        )
    return found


def gpu_tile(s: Schedule, c: Config, shape: Conv) -> Schedule:
    """Implicit GEMM: a block computes bk channels x (bp x bq) pixels; both operands staged per ``bc`` channels."""
    nchw = shape.nchw
    out = out_stage(s, "y")
    kb, kt, kl = s.split(f"{out}.k", [None, c["tk"], c["rk"]])
    pb, pt, pl = s.split(f"{out}.p", [None, c["tp"], c["rp"]])
    qb, qt, ql = s.split(f"{out}.q", [None, c["tq"], c["rq"]])
    s.reorder(f"{out}.n", kb, pb, qb, kt, pt, qt, *((kl, pl, ql) if nchw else (pl, ql, kl)))
    pixels, threads = s.fuse(pb, qb), s.fuse(pt, qt)
    bind_grid(s, [f"{out}.n"], [kb], [pixels])
    s.bind(kt, "thread.y").bind(threads, "thread.x")
    s.compute_at("y", threads)
    co, ci = s.split("y.c", [None, c["bc"]])
    s.reorder("y.n", co, ci, "y.r", "y.s", "y.k", "y.p", "y.q")
    s.unroll("y.k").unroll("y.p").unroll("y.q")
    s.stage_in("w", at=co, scope="shared", order=[1, 2, 3, 0])
    if shape.pad:
        s.stage_in("x_pad", at=co, scope="shared")
        s.compute_inline("x_pad")
    else:
        s.stage_in("x", at=co, scope="shared")
    return s


def tile_bytes(c: Config, shape: Conv) -> int:
    """Shared memory that ``gpu_tile`` stages: the filters of its outputs, and the channels of the image that those read
    of all groups that they may belong to, each for ``bc`` channels of a group at a time.
    """

    def side(size: int, taps: int) -> int:
        return int((size - 1) * shape.stride + (taps - 1) * shape.dilation + 1)

    outputs, groups = c["tk"] * c["rk"], shape.groups
    met = groups_met(shape.k, shape.k // groups, outputs) if groups > 1 else 1
    strip = side(c["tp"] * c["rp"], shape.r) * side(c["tq"] * c["rq"], shape.s)
    cells = outputs * c["bc"] * shape.taps + ((met - 1) * shape.cg + c["bc"]) * strip
    return int(shape.element_bytes * cells) + 2 * ALIGNED


def _gpu_space(shape: Conv, target: Target) -> Space:
    from tensorir.tune.space import Space

    def threads(c: Mapping[str, Any]) -> bool:
        few = shape.k * shape.p * shape.q < 1024
        return bool((1 if few else 32) <= c["tk"] * c["tp"] * c["tq"] <= 256)

    def shared(c: Mapping[str, Any]) -> bool:
        return tile_bytes(c, shape) <= target.shared_optin_bytes

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(1 <= c["rk"] * c["rp"] * c["rq"] <= 64)

    def grid(c: Mapping[str, Any]) -> bool:
        k, p, q = (
            -(-shape.k // (c["tk"] * c["rk"])),
            -(-shape.p // (c["tp"] * c["rp"])),
            -(-shape.q // (c["tq"] * c["rq"])),
        )
        return has_room(target, shape.n, k, p * q)

    where = {"threads": threads, "shared": shared, "registers": registers}
    if shape.n * shape.k * shape.p * shape.q > target.max_grid[0]:
        where["grid"] = grid
    small = min(shape.p, shape.q)
    wanted = dict(tk=8, rk=4, tp=4 if small >= 4 else 1, rp=1, tq=8 if small >= 4 else 4, rq=2, bc=4)
    knobs = dict(
        tk=[4, 8, 16, 2, 1],
        rk=[4, 8, 2, 1],
        tp=[4, 2, 8, 1],
        rp=[1, 2, 4],
        tq=[8, 4, 16, 1],
        rq=[2, 1, 4, 7],
        bc=[4, 8, 2, 1, 16],
    )
    default = start(knobs, where, lambda c: tile_bytes(c, shape), wanted)
    return Space(where=where, default=default, **knobs)
