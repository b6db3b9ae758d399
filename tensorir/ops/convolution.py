"""conv2d: implicit GEMM with both operands staged, for CPUs (one work-item a block, vector register tiles) and GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorir import nn
from tensorir.api.workload import Template, Templates, Workload
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_number, plain_ints, shown
from tensorir.expr.compute import placeholder
from tensorir.ir.dtypes import dtype_of, is_float
from tensorir.ops.baselines import conv2d_baselines
from tensorir.ops.common import added_type, flags, need_precision, out_dtype, positive
from tensorir.ops.conv_cpu import cpu_templates
from tensorir.ops.images import epilogue
from tensorir.ops.operators import OPERATORS
from tensorir.ops.problems import Conv, accumulator

DEFAULTS = dict(residual=False, prepack=False, max_error=1e-4, precision="fp32")
"""Options that a workload is only named by where they are not these."""


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
    p, q = y.shape[2:] if nchw else y.shape[1:3]
    shape = Conv(n=n, c=c, h=h, w=w, k=k, r=r, s=s, p=p, q=q, stride=stride, pad=pad, dilation=dilation, groups=groups,
                 layout=layout, dtype=dtype, bias=bias, act=act, residual=residual, prepack=prepack,
                 max_error=max_error, precision=precision)  # fmt: skip
    return Workload(
        "conv2d", epilogue(y, b, d, shape),
        templates=Templates(
            cpu_templates(shape),
            lambda: _for_gpus(shape),
        ),
        reference=lambda *arrays: reference(shape, *arrays),
        flops=shape.flops,
        origin=("ops", "conv2d", params),
        operator=OPERATORS["conv2d"],
        baselines=conv2d_baselines(shape),
        max_error=max_error,
    )  # fmt: skip


def _for_gpus(shape: Conv) -> Mapping[str, Template]:
    from tensorir.ops.conv_gpu import gpu_templates  # a half of what an operator costs to import

    return gpu_templates(shape)


def reference(shape: Conv, x: np.ndarray, w: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """The convolution in float64 (integers exactly), tap by tap; ``rest``: bias and residual as far as used."""
    from tensorir.ops.common import activate

    nchw = shape.nchw
    kind = np.float64 if is_float(shape.dtype) else np.int64
    a: np.ndarray = np.asarray(x).astype(kind)
    f: np.ndarray = np.asarray(w).astype(kind)
    if not nchw:
        a, f = a.transpose(0, 3, 1, 2), f.transpose(0, 3, 1, 2)
    pad, st, d, g = shape.pad, shape.stride, shape.dilation, shape.groups
    a = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    p, q, kg, cg = shape.p, shape.q, shape.kg, shape.cg
    y: np.ndarray = np.zeros((shape.n, shape.k, p, q), kind)
    for i in range(g):
        for r in range(shape.r):
            for s in range(shape.s):
                part = a[
                    :,
                    i * cg : (i + 1) * cg,
                    r * d : r * d + (p - 1) * st + 1 : st,
                    s * d : s * d + (q - 1) * st + 1 : st,
                ]
                taps = f[i * kg : (i + 1) * kg, :, r, s]
                y[:, i * kg : (i + 1) * kg] += (taps @ part.reshape(shape.n, cg, -1)).reshape(shape.n, kg, p, q)
    more: list[np.ndarray] = [np.asarray(v).astype(kind) for v in rest]
    if shape.bias:
        y += more.pop(0)[:, None, None]
    y = y if nchw else y.transpose(0, 2, 3, 1)
    if shape.residual:
        y = y + more.pop(0)
    return np.ascontiguousarray(activate(y, shape.act)).astype(out_dtype(shape.dtype, shape.act))
