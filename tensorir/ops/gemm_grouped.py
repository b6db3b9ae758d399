"""grouped_matmul: rows of several groups, each times the matrix of its group; the templates are those of matmul."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorir import nn
from tensorir.api.workload import Workload
from tensorir.engines.gemm_cpu import STEP, RowsTile
from tensorir.engines.gemm_gpu import gpu_templates
from tensorir.engines.problems import Gemm, accumulator
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_int, plain_ints, wrong
from tensorir.expr.compute import placeholder
from tensorir.ir.dtypes import dtype_of
from tensorir.ops.common import activate, epilogue, exact, flags, need_precision, out_dtype, positive
from tensorir.ops.operators import OPERATORS

MOST = 2**31
"""Rows."""


@plain_ints
def grouped_matmul(m: int = 2048, n: int = 512, k: int = 512, groups: int = 8, align: int = 128, tb: bool = False,
                   dtype: str = "float32", act: str | None = None, precision: str = "fp32") -> Workload:  # fmt: skip
    """C = act(A B) where the rows of A are those of several groups, one after another, each with a B of its own
    (layers of a mixture of experts), in one kernel, or in two where the sums are made in parts (CUDA, ``splits``).

    a: (m, k), where each group begins at a multiple of ``align`` rows, itself a multiple of 16
    b: (groups, k, n), or (groups, n, k) with ``tb``
    group: int32 (ceil(m / align),), the group of each ``align`` rows, known at launch; rows of no group, as -1, are
           act(0) in the result. ``blocks_of`` makes it from the sizes of groups
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
    return Workload(
        "grouped_matmul", epilogue(c, shape, 1),
        templates={"cpu_rows": RowsTile.template(shape), **gpu_templates(shape)},
        reference=lambda *arrays: reference(shape, *arrays),
        flops=2 * m * n * k,
        origin=("ops", "grouped_matmul", params),
        operator=OPERATORS["grouped_matmul"],
    )  # fmt: skip


def need_align(align: int) -> None:
    """Refuse rows that tiles would share out to two groups: ``grouped-matmul.align``."""
    if align % STEP:
        message = f"align={align} is no multiple of {STEP}, the rows of the smallest tile"
        hint = f"align={-(-align // STEP) * STEP}, and groups that begin at its multiples"
        raise refuse(DeclarationError, "grouped-matmul.align", message, hint=hint)


def blocks_of(sizes: Any, align: int = 128, m: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The argument ``group`` for groups of so many rows, and the row at which each group begins.

    sizes: ints >= 0, one for each group;  m: rows that there is room for, by default as many as are needed
    returns: int32 (ceil(m / align),), -1 after the last group; int64 (groups,)

    Raises DeclarationError (``grouped-matmul.align``, ``grouped-matmul.room``).
    """
    need_align(need_int("align", align, 1, MOST))
    try:
        given = np.asarray(sizes)
    except (TypeError, ValueError):  # rows of different lengths
        given = np.empty((), object)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu") or not ((given >= 0) & (given <= MOST)).all():
        raise wrong("sizes", sizes, "ints from 0 to 2**31, one for each group")
    rows = given.astype(np.int64)
    blocks = -(-rows // align)
    full = int(blocks.sum()) * align
    need = full - int(-rows[blocks > 0][-1] % align) if full else 0  # the last group may end before its rows do
    room = full if m is None else need_int("m", m, 0, MOST)
    if room < need:
        message = f"groups that begin at multiples of {align} rows take {need} rows, and m={m}"
        raise refuse(DeclarationError, "grouped-matmul.room", message, hint=f"m={full}")
    table = np.full(-(-room // align), -1, np.int32)
    table[: int(blocks.sum())] = np.repeat(np.arange(len(rows)), blocks)
    return table, (np.cumsum(blocks) - blocks) * align


def reference(p: Gemm, a: np.ndarray, b: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The product in float64 (integers exactly)."""
    x, y = exact(p.dtype, a, b)
    y = np.swapaxes(y, -1, -2) if p.tb else y
    c = np.zeros((p.m, p.n), x.dtype)
    for block, g in enumerate(np.asarray(group).tolist()):
        rows = slice(block * p.align, (block + 1) * p.align)
        if 0 <= g < p.groups:
            c[rows] = x[rows] @ y[g]
    return activate(c, p.act).astype(out_dtype(p.dtype, p.act))
