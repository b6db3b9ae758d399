"""matmul: what it is (``gemm_cpu``: on CPUs, ``gemm_gpu``: on GPUs)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorir import nn
from tensorir.api.workload import Template, Templates, Workload
from tensorir.engines.gemm_cpu import cpu_templates
from tensorir.engines.problems import Gemm, accumulator
from tensorir.errors.needs import plain_ints
from tensorir.expr.compute import placeholder, scalar
from tensorir.ir.dtypes import dtype_of
from tensorir.ops.baselines import matmul_baselines
from tensorir.ops.common import activate, added_type, epilogue, exact, flags, need_precision, out_dtype, positive
from tensorir.ops.operators import OPERATORS


@plain_ints
def matmul(m: int = 512, n: int = 512, k: int = 512, batch: int = 1, ta: bool = False, tb: bool = False,
           dtype: str = "float32", bias: bool = False, act: str | None = None, alpha: bool = False,
           beta: bool = False, prepack: bool = False, precision: str = "fp32") -> Workload:  # fmt: skip
    """C = act(alpha A B + beta D + bias) with optional transposes and batch, in one kernel, or in two where the sums
    are made in parts (CUDA, ``splits``).

    a: (m, k) or (k, m) with ``ta``;  b: (k, n) or (n, k) with ``tb``; with batch > 1 both have it in front
    bias: (n,);  alpha, beta: scalar arguments;  beta adds a tensor d of the result's shape
    prepack: b is a constant: on CPUs it is packed ahead, once for all launches
    precision: of products of float32 on GPUs: "fp32", or on tensor cores (CUDA, sm_80) "tf32", whose operands are
               rounded to 10 bits, or "3xtf32", three such products, about as exact as float32
    dtype: of a and b. Results are of the same type; of 8-bit integers int32; of 8-bit floats, "float8_e4m3" and
           "float8_e5m2", bfloat16, and so are bias and d then: a sum of their products is soon too large for 8 bits.
           Their scales are alpha
    Arguments: a, b, then bias, d, alpha, beta as far as they are asked for.
    """
    dtype = dtype_of(dtype).name
    params = dict(m=m, n=n, k=k, batch=batch, ta=ta, tb=tb, dtype=dtype, bias=bias, act=act, alpha=alpha, beta=beta)
    positive(params, ("m", "n", "k", "batch"))
    flags({**params, "prepack": prepack}, ("ta", "tb", "bias", "alpha", "beta", "prepack"))
    need_precision("matmul", precision, dtype)
    shape = Gemm(m=m, n=n, k=k, batch=batch, ta=ta, tb=tb, dtype=dtype, bias=bias, act=act, alpha=alpha, beta=beta,
                 prepack=prepack, precision=precision)  # fmt: skip
    if precision != "fp32":
        params["precision"] = precision
    if prepack:  # others keep the name that they had before there was a choice
        params["prepack"] = True
    lead = (batch,) if batch > 1 else ()
    a = placeholder((*lead, k, m) if ta else (*lead, m, k), dtype, name="a")
    b = placeholder((*lead, n, k) if tb else (*lead, k, n), dtype, name="b")
    v = placeholder((n,), added_type(dtype), name="bias") if bias else None
    wide = accumulator(a.dtype)
    c = nn.matmul(a, b, ta=ta, tb=tb, accumulate=wide, name="c")
    d = placeholder((*lead, m, n), added_type(dtype), name="d") if beta else None
    scale = scalar("alpha", wide or a.dtype) if alpha else None
    other = scalar("beta", wide or a.dtype) if beta else None
    return Workload(
        "matmul", epilogue(c, shape, c.ndim - 1, bias=v, alpha=scale, d=d, beta=other),
        templates=Templates(cpu_templates(shape), {"gpu": lambda: _for_gpus(shape)}),
        reference=lambda *arrays: reference(shape, *arrays),
        flops=2 * batch * m * n * k,
        origin=("ops", "matmul", params),
        operator=OPERATORS["matmul"],
        baselines=matmul_baselines(shape),
    )  # fmt: skip


def _for_gpus(shape: Gemm) -> Mapping[str, Template]:
    from tensorir.engines.gemm_gpu import gpu_templates  # a half of what an operator costs to import

    return gpu_templates(shape)


def reference(p: Gemm, a: np.ndarray, b: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """The product in float64 (integers exactly); ``rest`` as in ``matmul``."""
    x, y, *more = exact(p.dtype, a, b, *rest)
    c = (np.swapaxes(x, -1, -2) if p.ta else x) @ (np.swapaxes(y, -1, -2) if p.tb else y)
    bias = more.pop(0) if p.bias else None
    d = more.pop(0) if p.beta else None
    if p.alpha:
        c = c * more.pop(0)
    if d is not None:
        c = c + more.pop(0) * d
    if bias is not None:
        c = c + bias
    return activate(c, p.act).astype(out_dtype(p.dtype, p.act))
