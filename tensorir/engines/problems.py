"""Problems of operators, as their templates know them: products of matrices and convolutions, by their parameters.

Extents are counts of elements. ``on`` tells a problem the core that a CPU template is for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Self

from tensorir.ir.dtypes import DTYPES, WIDENED, is_float
from tensorir.nn.sides import WindowAxis
from tensorir.target import Target

PRECISIONS = ("fp32", "tf32", "3xtf32")
"""Of products of float32 on GPUs: float32 itself, in one product of 10 bits of mantissa, or in three."""


def accumulator(dtype: str) -> str | None:
    """The wider type that sums of products of ``dtype`` are held in; None where its own will do."""
    if dtype in WIDENED:
        return "float32"
    return "int32" if dtype in ("int8", "uint8") else None


def result_type(dtype: str) -> str:
    """The type of results of products of ``dtype``: int32 for 8-bit integers, bfloat16 for 8-bit floats, else the same.

    A sum of products of 8-bit floats is soon too large for them, unless it is scaled first.
    """
    if dtype in ("int8", "uint8"):
        return "int32"
    return "bfloat16" if is_float(dtype) and DTYPES[dtype].bits == 8 else dtype


@functools.cache
def _sum_bytes(dtype: str) -> int:
    return DTYPES[accumulator(dtype) or dtype].bits // 8


@functools.cache
def _lanes(room: int) -> int:
    return next((n for n in (16, 8, 4) if n <= room), 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileProblem:
    """Fields of all sums of products: their types, the operations on results, and the core that computes them.

    dtype: of the operands;  precision: of products of float32 on tensor cores
    result: of what is written, where that is not ``result_type``
    prepack: one operand is a constant, packed ahead once for all launches
    registers, vector_bytes: vector registers of a core, and their size; 0 where no core is meant
    block_bytes: block memory that it has
    """

    dtype: str = "float32"
    precision: str = "fp32"
    bias: bool = False
    act: str | None = None
    result: str = ""
    prepack: bool = False
    registers: int = 0
    vector_bytes: int = 0
    block_bytes: int = 0

    def on(self, target: Target) -> Self:
        """The same on a core of ``target``."""
        room = target.shared_optin_bytes
        return replace(self, registers=target.registers, vector_bytes=target.vector_bytes, block_bytes=room)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of the operands."""
        return DTYPES[self.dtype].bits // 8

    @property
    def wide(self) -> str | None:
        """The type that sums are held in where that is wider than the operands'; else None."""
        return accumulator(self.dtype)

    @property
    def sum_bytes(self) -> int:
        """Bytes of one sum."""
        return _sum_bytes(self.dtype)

    @property
    def product_room(self) -> int:
        """Registers that a sum takes: integers have no fused multiply-add, and their products need one as well."""
        return 1 if is_float(self.wide or self.dtype) else 2

    @property
    def vector_lanes(self) -> int:
        """Sums that one vector register holds, as far as the language has such vectors: 2, 4, 8 or 16."""
        return _lanes(self.vector_bytes // self.sum_bytes)

    @property
    def made(self) -> str:
        """The type of results."""
        return self.result or result_type(self.dtype)

    @property
    def leaves_in_halves(self) -> bool:
        """True when results have 16 bits: what the lanes of a fragment write at once is half of a sector then."""
        return DTYPES[self.made].bits == 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm(TileProblem):
    """Products of matrices: ``batch`` times (m, k) by (k, n), or one whose rows are in ``groups``.

    ta, tb: a is stored (k, m), b (n, k)
    alpha, beta: results are alpha times the sums, and beta times a third matrix more
    align: each so many rows of a have a matrix of b of their own (``grouped_matmul``); 0: all have the same
    apart: shares of a's and of b's elements that are places of their own in memory: 1.0 for matrices that are stored as
           such (pixels under several taps of a filter are not)
    in_rows: results are stored as rows of a matrix
    run: columns that are next to each other in b, where those are not all; else 0
    prepack_a: a is a constant; ``prepack``: b is
    """

    m: int
    n: int
    k: int
    batch: int = 1
    ta: bool = False
    tb: bool = False
    alpha: bool = False
    beta: bool = False
    groups: int = 1
    align: int = 0
    apart: tuple[float, ...] = (1.0, 1.0)
    in_rows: bool = True
    run: int = 0
    prepack_a: bool = False

    @property
    def axes(self) -> list[str]:
        """Names of the axes that stand before rows and columns."""
        return ["z"] if self.batch > 1 else []

    @property
    def lead(self) -> str:
        """The same in front of others in an index map."""
        return "z, " if self.batch > 1 else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv(TileProblem):
    """A 2-D convolution of n images of c channels and h x w pixels to k channels and p x q pixels, or its gradients.

    r, s: taps of the filter;  layout: "NCHW" or "NHWC"
    back: the convolution whose image's gradient this one computes, if it is one
    uneven: of rows and of columns where they differ, or the zeros at both ends of one: no template written for
            convolutions takes those, and ``stride``, ``pad`` and ``dilation`` are not set
    """

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    p: int
    q: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    groups: int = 1
    layout: str = "NCHW"
    residual: bool = False
    max_error: float = 1e-4
    back: Conv | None = None
    uneven: tuple[WindowAxis, ...] = ()

    @property
    def sides(self) -> tuple[WindowAxis, ...]:
        """Strides, padding and dilation of windows along rows and along columns."""
        return self.uneven or (WindowAxis(self.stride, self.pad, self.pad, self.dilation),) * 2

    @property
    def parts(self) -> int:
        """Of the gradient of an image, how many rows (and columns) of pixels meet taps of their own: its stride."""
        return self.back.stride if self.back else 0

    @property
    def border(self) -> tuple[int, int]:
        """Rows above and columns left of the image that the first results' taps read."""
        if self.back is None:
            return self.pad, self.pad
        return (self.r - 1) * self.dilation - self.pad, (self.s - 1) * self.dilation - self.pad

    @property
    def nchw(self) -> bool:
        """True when pixels of a row are contiguous, not channels."""
        return self.layout == "NCHW"

    @property
    def cg(self) -> int:
        """Channels of the image in a group."""
        return self.c // self.groups

    @property
    def kg(self) -> int:
        """Channels of the result in a group."""
        return self.k // self.groups

    @property
    def taps(self) -> int:
        """Taps of the filter."""
        return self.r * self.s

    @property
    def pixels(self) -> int:
        """Pixels of all results."""
        return self.n * self.p * self.q

    @property
    def flops(self) -> int:
        """Multiplications and additions of a convolution, or of a gradient."""
        return 2 * self.n * self.k * self.p * self.q * self.cg * self.taps
