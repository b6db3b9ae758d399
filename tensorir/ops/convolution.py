"""conv2d: implicit GEMM with both operands staged, for CPUs (one work-item a block, vector register tiles) and GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir import nn
from tensorir.api.workload import Template, Templates, Workload
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_number, plain_ints, shown
from tensorir.expr.compute import placeholder
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import dtype_of, is_float
from tensorir.ops.baselines import conv2d_baselines
from tensorir.ops.common import (
    Config,
    accumulator,
    added_type,
    divisors_near,
    flags,
    need_precision,
    out_dtype,
    out_stage,
    positive,
)
from tensorir.ops.conv_cpu import cpu_templates
from tensorir.ops.images import epilogue

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.tune.space import Space

DEFAULTS = dict(residual=False, prepack=False, max_error=1e-4, precision="fp32")
"""Options that a workload is only named by where they are not these."""
LANES = 8
SHARED_CPU = 480 * 1024  # bytes of block memory that stay in one core's second-level cache


@plain_ints
def conv2d(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3, stride: int = 1,
           pad: int = 0, dilation: int = 1, groups: int = 1, layout: str = "NCHW", dtype: str = "float32",
           bias: bool = False, act: str | None = None, residual: bool = False, prepack: bool = False,
           max_error: float = 1e-4, precision: str = "fp32") -> Workload:  # fmt: skip
    """A 2-D convolution with optional bias, residual and activation in one kernel; see ``nn.conv2d`` for shapes.

    dtype:     of x and w; that of the result follows as in ``matmul``
    Arguments: x, w, then bias (k,) and a residual of the result's shape as far as they are asked for.
    prepack:   the weights are constants: what only depends on them is packed ahead, once for all launches
    max_error: error relative to the largest output that an algorithm may have (Winograd's grows with its tiles)
    precision: of products of float32 on GPUs, as in ``matmul``: "fp32", "tf32" or "3xtf32"

    Raises DeclarationError naming the parameter that does not fit.
    """
    dtype = dtype_of(dtype).name
    params = dict(n=n, c=c, h=h, w=w, k=k, r=r, s=s, stride=stride, pad=pad, dilation=dilation, groups=groups,
                  layout=layout, dtype=dtype, bias=bias, act=act)  # fmt: skip
    options = dict(residual=residual, prepack=prepack, max_error=max_error, precision=precision)
    positive(params, ("n", "c", "h", "w", "k", "r", "s"))
    flags({**params, **options}, ("bias", "residual", "prepack"))
    max_error = need_number("max_error", max_error, 0)
    need_precision("conv2d", precision, dtype)
    params |= {name: value for name, value in options.items() if value != DEFAULTS[name]}
    if not isinstance(layout, str) or layout not in ("NCHW", "NHWC"):
        raise refuse(
            DeclarationError, "conv2d.layout", f"layout={shown(layout)} is not known", hint="layout='NCHW' or 'NHWC'"
        )
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or c % groups or k % groups:
        raise refuse(DeclarationError, "conv2d.groups", f"groups={shown(groups)} does not divide c={c} and k={k}")
    nchw = layout == "NCHW"
    x = placeholder((n, c, h, w) if nchw else (n, h, w, c), dtype, name="x")
    weights = placeholder((k, c // groups, r, s) if nchw else (k, r, s, c // groups), dtype, name="w")
    b = placeholder((k,), added_type(x.dtype), name="b") if bias else None
    wide = accumulator(x.dtype)
    y = nn.conv2d(x, weights, stride=stride, pad=pad, dilation=dilation, groups=groups, layout=layout, accumulate=wide)
    d = placeholder(y.shape, added_type(x.dtype), name="residual") if residual else None
    operands = {"x": x, "w": weights, "b": b, "d": d}
    out = epilogue(y, operands, params)
    p, q = (out.shape[2], out.shape[3]) if nchw else (out.shape[1], out.shape[2])
    shape = {**params, **options, "p": p, "q": q, "cg": c // groups}
    general = Template(lambda sch, cfg: cpu_tile(sch, cfg, shape), lambda _: _cpu_space(shape), kinds=("cpu",))
    return Workload(
        "conv2d", out,
        templates=Templates(
            cpu_templates(operands, shape, max_error) or {"cpu_tile": general},
            lambda: _for_gpus(operands, shape, max_error),
        ),
        reference=lambda *arrays: reference(shape, *arrays),
        flops=2 * n * k * p * q * (c // groups) * r * s,
        origin=("ops", "conv2d", params),
        baselines=conv2d_baselines(shape),
        max_error=max_error,
    )  # fmt: skip


def _for_gpus(
    operands: Mapping[str, Tensor | None], shape: Mapping[str, Any], max_error: float
) -> Mapping[str, Template]:
    from tensorir.ops.conv_gpu import gpu_templates  # a half of what an operator costs to import

    return gpu_templates(operands, shape, max_error)


def cpu_tile(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """One work-item a block; a register tile of ``kt`` x ``qt`` with vector lanes along ``lanes``.

    Inside a block: weights packed to [c][r][s][k] in block memory, the padded input strip beside them (or padded by a
    kernel of its own), then for each tile the whole reduction into registers.
    """
    nchw, vector_k = shape["layout"] == "NCHW", c["lanes"] == "k"
    k_tile = c["kt"] * (LANES if vector_k else 1)
    q_tile = c["qt"] * (1 if vector_k else LANES)
    out = out_stage(s, "y")
    kb, ki, kl = s.split(f"{out}.k", [None, c["kblock"], k_tile])
    pb, pi = s.split(f"{out}.p", [None, c["rows"]])
    qb, ql = s.split(f"{out}.q", [None, q_tile])
    s.reorder(f"{out}.n", kb, pb, ki, pi, qb, *((kl, ql) if nchw else (ql, kl)))
    s.bind(f"{out}.n", "block.z").bind(kb, "block.x").bind(pb, "block.y")
    s.compute_at("y", qb)
    tile, lane = s.split("y.k" if vector_k else "y.q", [None, LANES])
    rest = "y.q" if vector_k else "y.k"
    s.reorder("y.n", "y.p", *_reduction(nchw), rest, tile, lane)
    s.unroll(rest).unroll(tile).vectorize(lane)
    if c["unroll_s"]:
        s.unroll("y.s")
    if c["stage_w"]:
        s.stage_in("w", at=ki, scope="shared", order=[1, 2, 3, 0] if vector_k else None, cooperative=False)
        if vector_k and c["gather_w"]:  # eight strided loads, one vector store
            several, lane = s.split("w_shared.ax0", [None, LANES])
            s.reorder("w_shared.ax1", "w_shared.ax2", "w_shared.ax3", several, lane)
            s.vectorize(lane)
    if shape["pad"]:
        _pad(s, c, pb, nchw)
    _write_tile(s, c, nchw, kl, ql)
    return s


def _reduction(nchw: bool) -> tuple[str, str, str]:
    return ("y.c", "y.r", "y.s") if nchw else ("y.r", "y.s", "y.c")


def _pad(s: Schedule, c: Config, pb: str, nchw: bool) -> None:
    if c["pad"] == "stage":
        s.set_scope("x_pad", "shared")
        s.compute_at("x_pad", pb)
    else:
        s.bind("x_pad.c" if nchw else "x_pad.h", "block.x")


def _write_tile(s: Schedule, c: Config, nchw: bool, kl: str, ql: str) -> None:
    """The finished tile leaves the registers: along the lanes where memory agrees, else element by element."""
    vector_k = c["lanes"] == "k"
    along, across = (kl, ql) if vector_k else (ql, kl)
    if vector_k != nchw:
        tile, lane = s.split(along, [None, LANES])
        s.reorder(across, tile, lane)
        s.unroll(across).unroll(tile).vectorize(lane)
    else:
        s.unroll(kl).unroll(ql)


def _cpu_space(shape: Mapping[str, Any]) -> Space:
    from tensorir.tune.space import Space

    k, p, q = shape["k"], shape["p"], shape["q"]
    taps = shape["cg"] * shape["r"] * shape["s"]

    def registers(c: Mapping[str, Any]) -> bool:
        return bool(c["kt"] * c["qt"] + (c["kt"] if c["lanes"] == "k" else c["qt"]) + 1 <= 16)

    def sensible(c: Mapping[str, Any]) -> bool:
        wide_k, wide_q = _tile(c)
        return bool(wide_k < k + LANES and wide_q < q + LANES and c["kblock"] * wide_k < k + wide_k)

    def fits(c: Mapping[str, Any]) -> bool:
        return _block_bytes(c, shape) <= SHARED_CPU

    def meaningful(c: Mapping[str, Any]) -> bool:
        if not shape["pad"] and c["pad"] == "kernel":
            return False
        if c["lanes"] == "q":
            return bool(c["gather_w"] == 0)
        return bool(c["stage_w"] == 1 or (taps > 8192 and c["gather_w"] == 0))

    lanes = ["k", "q"] if shape["groups"] == 1 else ["q"]
    space: dict[str, list[Any]] = dict(
        lanes=lanes,
        kt=[1, 2, 3, 4, 6, 8, 12],
        qt=[1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14],
        rows=divisors_near(p, (1, 2, 4, 7, 14, 28)),
        kblock=[1, 2, 3, 4, 6, 8, 12, 16, 24],
        stage_w=[1, 0],
        gather_w=[0, 1],
        pad=["stage", "kernel"],
        unroll_s=[0, 1],
    )
    where = {"registers": registers, "sensible": sensible, "fits": fits, "meaningful": meaningful}
    return Space(where=where, default=_cpu_default(space, where, shape), **space)


def _tile(c: Mapping[str, Any]) -> tuple[int, int]:
    """Channels and pixels of the register tile."""
    return (LANES * c["kt"], c["qt"]) if c["lanes"] == "k" else (c["kt"], LANES * c["qt"])


def _block_bytes(c: Mapping[str, Any], shape: Mapping[str, Any]) -> int:
    """Block memory: the packed weights of one tile and the padded strip of input rows."""
    total = 4 * _tile(c)[0] * shape["cg"] * shape["r"] * shape["s"] if c["stage_w"] else 0
    if shape["pad"] and c["pad"] == "stage":
        strip = (c["rows"] - 1) * shape["stride"] + shape["dilation"] * (shape["r"] - 1) + 1
        total += 4 * shape["c"] * strip * (shape["w"] + 2 * shape["pad"])
    return int(total)


def _cpu_default(
    space: Mapping[str, list[Any]], where: Mapping[str, Any], shape: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The legal configuration that a small model of the core likes best.

    Per step of the reduction a tile needs kt*qt multiply-adds (two a cycle, latency 4) and kt + qt loads (two a cycle);
    the rest is waste at ragged edges, repeated staging, and whether the blocks fill an even number of cores.
    """
    best: tuple[float, dict[str, Any]] | None = None
    for lanes, kt, qt in itertools.product(space["lanes"], space["kt"], space["qt"]):
        for rows, kblock, stage_w in itertools.product(space["rows"], space["kblock"], space["stage_w"]):
            c = dict(
                lanes=lanes,
                kt=kt,
                qt=qt,
                rows=rows,
                kblock=kblock,
                stage_w=stage_w,
                gather_w=1 if lanes == "k" and stage_w else 0,
                pad="stage",
                unroll_s=0,
            )
            score = _cpu_score(c, shape)
            if (best is None or score > best[0]) and all(test(c) for test in where.values()):
                best = (score, c)
    return best[1] if best else None


def _cpu_score(c: Mapping[str, Any], shape: Mapping[str, Any]) -> float:
    kt, qt = c["kt"], c["qt"]
    wide_k, wide_q = _tile(c)
    k, p, q = shape["k"], shape["p"], shape["q"]
    cycles = max(kt * qt / 2, (kt + qt) / 2, 4.0)
    if c["lanes"] == "q" and shape["stride"] > 1:
        cycles += qt * LANES  # strided pixels are gathered one by one
    if not c["stage_w"] and c["lanes"] == "k":
        cycles += kt * LANES
    useful = (k / (-(-k // wide_k) * wide_k)) * (q / (-(-q // wide_q) * wide_q))
    strips, groups = -(-p // c["rows"]), -(-k // (wide_k * c["kblock"]))
    useful *= p / (strips * c["rows"])
    blocks = shape["n"] * strips * groups
    balance = blocks / (-(-blocks // 2) * 2) * (0.9 if blocks < 4 else 1.0)
    taps = shape["cg"] * shape["r"] * shape["s"]
    work = shape["n"] * k * p * q * taps / LANES  # vector multiply-adds
    packed = strips * k * taps * (1.0 if c["stage_w"] else 0.0) * shape["n"]
    padded = (
        blocks
        * c["rows"]
        * shape["stride"]
        * (shape["w"] + 2 * shape["pad"])
        * shape["c"]
        * (1.5 if shape["pad"] else 0.0)
    )
    return float(useful * balance / (work * cycles / (kt * qt) + packed + padded))


def reference(shape: Mapping[str, Any], x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """The convolution in float64 (integers exactly), tap by tap; ``rest``: bias and residual as far as used."""
    from tensorir.ops.common import activate

    nchw = shape["layout"] == "NCHW"
    kind = np.float64 if is_float(shape["dtype"]) else np.int64
    a, f = np.asarray(x).astype(kind), np.asarray(w).astype(kind)
    if not nchw:
        a, f = a.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2)
    pad, st, d, g = shape["pad"], shape["stride"], shape["dilation"], shape["groups"]
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    p, q, kg, cg = shape["p"], shape["q"], shape["k"] // shape["groups"], shape["cg"]
    y = np.zeros((shape["n"], shape["k"], p, q), kind)
    for i in range(g):
        for r in range(shape["r"]):
            for s in range(shape["s"]):
                part = a[
                    :,
                    i * cg : (i + 1) * cg,
                    r * d : r * d + (p - 1) * st + 1 : st,
                    s * d : s * d + (q - 1) * st + 1 : st,
                ]
                taps = f[i * kg : (i + 1) * kg, :, r, s]
                y[:, i * kg : (i + 1) * kg] += (taps @ part.reshape(shape["n"], cg, -1)).reshape(shape["n"], kg, p, q)
    more = [np.asarray(v).astype(kind) for v in rest]
    if shape["bias"]:
        y += more.pop(0)[:, None, None]
    y = y if nchw else y.transpose(0, 2, 3, 1)
    if shape.get("residual"):
        y = y + more.pop(0)
    return np.ascontiguousarray(activate(y, shape["act"])).astype(out_dtype(shape["dtype"], shape["act"]))
