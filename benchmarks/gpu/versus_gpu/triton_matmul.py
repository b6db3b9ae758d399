"""C = A B in Triton for 16-bit floats, as a peer: tiles in groups of rows, chosen by Triton's autotuner."""

# no "from __future__ import annotations": Triton reads the annotations
from typing import Any

import triton
import triton.language as tl

_TILES = (
    (128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
)  # fmt: skip
"""Rows, columns, terms of a tile; warps; stages."""
_CONFIGS = [triton.Config(dict(BM=bm, BN=bn, BK=bk), num_warps=warps, num_stages=stages)
            for bm, bn, bk, warps, stages in _TILES]  # fmt: skip


@triton.autotune(configs=_CONFIGS, key=["m", "n", "k", "bk_stride", "ak_stride"])
@triton.jit
def _kernel(
    a, b, c, m, n, k, am_stride, ak_stride, bk_stride, bn_stride, cm_stride,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
    block = tl.program_id(0)
    group = block // (8 * columns)
    height = tl.minimum(rows - group * 8, 8)
    inside = block % (8 * columns)
    row, column = group * 8 + inside % height, inside // height
    i = row * BM + tl.arange(0, BM)
    j = column * BN + tl.arange(0, BN)
    # rows and columns beyond the end read the first ones again, and are not stored
    i_read, j_read = i % m, j % n
    terms = tl.arange(0, BK)
    a_at = a + i_read[:, None] * am_stride + terms[None, :] * ak_stride
    b_at = b + terms[:, None] * bk_stride + j_read[None, :] * bn_stride
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        left = k - start
        x = tl.load(a_at, mask=terms[None, :] < left, other=0.0)
        y = tl.load(b_at, mask=terms[:, None] < left, other=0.0)
        sums = tl.dot(x, y, sums)
        a_at += BK * ak_stride
        b_at += BK * bk_stride
    inner = (i[:, None] < m) & (j[None, :] < n)
    tl.store(c + i[:, None] * cm_stride + j[None, :], sums.to(c.dtype.element_ty), mask=inner)


def matmul(a: Any, b: Any, c: Any) -> None:
    """c[m, n] = a[m, k] b[k, n] for torch tensors of any strides; rows of c are contiguous."""
    (m, k), n = a.shape, b.shape[1]

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]),)

    _kernel[grid](a, b, c, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0))
