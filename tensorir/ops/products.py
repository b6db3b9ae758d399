"""Workloads of matrix products, plain and grouped, with references and baselines.

Rules schedule them (``automatic/rules/tile_cpu``, ``tile_gpu``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorir import nn
from tensorir.api.workload import Workload
from tensorir.automatic.facts import Wishes
from tensorir.engines.gemm_cpu import cpu_engines
from tensorir.engines.problems import STEP, Gemm, accumulator
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_int, plain_ints, wrong
from tensorir.expr.compute import placeholder, scalar
from tensorir.ir.dtypes import dtype_of
from tensorir.ops.baselines import matmul_baselines
from tensorir.ops.common import activate, added_type, epilogue, exact, flags, need_precision, out_dtype, positive, tiled
from tensorir.ops.operators import OPERATORS


@plain_ints
def matmul(m: int = 512, n: int = 512, k: int = 512, batch: int = 1, ta: bool = False, tb: bool = False,
           dtype: str = "float32", bias: bool = False, act: str | None = None, alpha: bool = False,
           beta: bool = False, prepack: bool = False, precision: str = "fp32") -> Workload:  # fmt: skip
    """Workload of C = act(alpha A B + beta D + bias), optionally transposed or batched.

    One kernel, or two with split-K (CUDA, ``splits``).

    a: (m, k) or (k, m) with ``ta``;  b: (k, n) or (n, k) with ``tb``; with batch > 1 both have it in front
    bias: (n,);  alpha, beta: scalar arguments;  beta adds a tensor d of the result's shape
    prepack: True if b is a constant: on CPUs it is packed ahead of time, once for all launches
    precision: of float32 products on GPUs: "fp32", or on tensor cores (CUDA, sm_80) "tf32", with operands rounded to
               10 bits, or "3xtf32", three tf32 products, about as exact as float32
    dtype: of a and b. The result has the same type; int32 for 8-bit integers; bfloat16 for 8-bit floats, "float8_e4m3"
           and "float8_e5m2", since sums of products soon exceed 8 bits; bias and d are bfloat16 then, scales are alpha

    Arguments: a, b, then bias, d, alpha, beta if enabled.
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
    out = epilogue(c, shape, c.ndim - 1, bias=v, alpha=scale, d=d, beta=other)
    return Workload(
        "matmul", out,
        templates=tiled(
            out, Wishes(precision, ("b",) if prepack else (), any_order=True),
            [f"cpu_tile_{way}" for way in cpu_engines(shape)],
        ),
        reference=lambda *arrays: reference(shape, *arrays),
        flops=2 * batch * m * n * k,
        origin=("ops", "matmul", params),
        operator=OPERATORS["matmul"],
        baselines=matmul_baselines(shape),
    )  # fmt: skip


def reference(p: Gemm, a: np.ndarray, b: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """The product in NumPy, computed in float64 or int64 and converted to ``out_dtype``.

    rest: bias, d, alpha, beta, as far as ``matmul`` has them, in this order
    """
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


MOST_ROWS = 2**31
"""Limit of ``blocks_of`` for ``align``, ``m`` and each size, in rows."""


@plain_ints
def grouped_matmul(m: int = 2048, n: int = 512, k: int = 512, groups: int = 8, align: int = 128, tb: bool = False,
                   dtype: str = "float32", act: str | None = None, precision: str = "fp32") -> Workload:  # fmt: skip
    """Workload of C = act(A B) with groups of rows of A, each with a separate B (mixture-of-experts layers).

    Groups are consecutive. One kernel, or two with split-K (CUDA, ``splits``).

    a: (m, k); each group begins at a multiple of ``align`` rows, itself a multiple of 16
    b: (groups, k, n), or (groups, n, k) with ``tb``
    group: int32 (ceil(m / align),), the group of each block of ``align`` rows, known at launch; rows of no group (-1)
           are act(0) in the result. ``blocks_of`` makes it from the sizes of groups
    precision: as in ``matmul``

    Arguments: a, b, group.
    """
    dtype = dtype_of(dtype).name
    params = dict(m=m, n=n, k=k, groups=groups, align=align, tb=tb, dtype=dtype, act=act)
    positive(params, ("m", "n", "k", "groups", "align"))
    flags(params, ("tb",))
    need_precision("grouped-matmul", precision, dtype)
    need_align(align)
    shape = Gemm(m=m, n=n, k=k, groups=groups, align=align, tb=tb, dtype=dtype, act=act, precision=precision)
    if precision != "fp32":
        params["precision"] = precision
    a = placeholder((m, k), dtype, name="a")
    b = placeholder((groups, n, k) if tb else (groups, k, n), dtype, name="b")
    group = placeholder((-(-m // align),), "int32", name="group")
    wide = accumulator(a.dtype)
    c = nn.grouped_matmul(a, b, group, align=align, tb=tb, accumulate=wide, name="c")
    out = epilogue(c, shape, 1)
    return Workload(
        "grouped_matmul", out,
        templates=tiled(out, Wishes(precision, any_order=True)),
        reference=lambda *arrays: grouped_reference(shape, *arrays),
        flops=2 * m * n * k,
        origin=("ops", "grouped_matmul", params),
        operator=OPERATORS["grouped_matmul"],
    )  # fmt: skip


def need_align(align: int) -> None:
    """Raise DeclarationError ``grouped-matmul.align`` unless ``align`` is a multiple of the smallest tile's rows."""
    if align % STEP:
        message = f"align={align} is no multiple of {STEP}, the rows of the smallest tile"
        hint = f"align={-(-align // STEP) * STEP}, and groups that begin at its multiples"
        raise refuse(DeclarationError, "grouped-matmul.align", message, hint=hint)


def blocks_of(sizes: Any, align: int = 128, m: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(group, starts) for groups of ``sizes`` rows: the argument ``group`` of ``grouped_matmul``; each group's first
    row.

    sizes: ints >= 0, one per group;  m: total rows available, by default as many as needed
    returns: int32 (ceil(m / align),), -1 after the last group; int64 (groups,)
    Raises DeclarationError (``grouped-matmul.align``; ``grouped-matmul.room`` if ``m`` is too small; ``argument.*``).
    """
    need_align(need_int("align", align, 1, MOST_ROWS))
    try:
        given = np.asarray(sizes)
    except (TypeError, ValueError):  # rows of different lengths
        given = np.empty((), object)
    if (
        given.ndim != 1
        or (given.size and given.dtype.kind not in "iu")
        or not ((given >= 0) & (given <= MOST_ROWS)).all()
    ):
        raise wrong("sizes", sizes, "ints from 0 to 2**31, one for each group")
    rows = given.astype(np.int64)
    blocks = -(-rows // align)
    full = int(blocks.sum()) * align
    need = full - int(-rows[blocks > 0][-1] % align) if full else 0  # the last group may end before its rows do
    room = full if m is None else need_int("m", m, 0, MOST_ROWS)
    if room < need:
        message = f"groups that begin at multiples of {align} rows take {need} rows, and m={m}"
        raise refuse(DeclarationError, "grouped-matmul.room", message, hint=f"m={full}")
    table = np.full(-(-room // align), -1, np.int32)
    table[: int(blocks.sum())] = np.repeat(np.arange(len(rows)), blocks)
    return table, (np.cumsum(blocks) - blocks) * align


def grouped_reference(p: Gemm, a: np.ndarray, b: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The grouped product in NumPy, computed in float64 or int64, converted to ``out_dtype``; act(0) in unused rows."""
    x, y = exact(p.dtype, a, b)
    y = np.swapaxes(y, -1, -2) if p.tb else y
    c = np.zeros((p.m, p.n), x.dtype)
    for block, g in enumerate(np.asarray(group).tolist()):
        rows = slice(block * p.align, (block + 1) * p.align)
        if 0 <= g < p.groups:
            c[rows] = x[rows] @ y[g]
    return activate(c, p.act).astype(out_dtype(p.dtype, p.act))
