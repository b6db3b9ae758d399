"""Parameters of matrix products (``Gemm``) and convolutions (``Conv``), as engines see them.

Extents are counts of elements. ``on(target)`` adds the core parameters of the CPU that a template is for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Self

from tensorir.algorithms.winograd import allowed_tiles
from tensorir.ir.dtypes import DTYPES, WIDENED, is_float
from tensorir.nn.sides import WindowAxis
from tensorir.target import Target

WINOGRAD_CHANNELS = 8
"""Least channels of image and result for Winograd's algorithm; with fewer, transforms dominate."""
PRECISIONS = ("fp32", "tf32", "3xtf32")
"""Precisions of float32 products on GPUs: float32; one tf32 product (10 mantissa bits); three tf32 products."""
STEP = 16
"""Divisor of the rows of a group in grouped products: the rows of one tensor-core instruction."""


def accumulator(dtype: str) -> str | None:
    """Wider dtype in which products of ``dtype`` accumulate; None if the same."""
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
    """Common parameters of product sums: dtypes, epilogue, core.

    dtype: of the operands;  precision: of float32 products on tensor cores
    result: result dtype, if not ``result_type``
    prepack: one operand is constant and packed once
    registers, vector_bytes: number and bytes of a CPU core's vector registers; 0 before ``on``
    block_bytes: bytes of block memory; 0 before ``on``
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
        """This problem with the core parameters of ``target``."""
        room = target.shared_optin_bytes
        return replace(self, registers=target.registers, vector_bytes=target.vector_bytes, block_bytes=room)

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of the operands."""
        return DTYPES[self.dtype].bits // 8

    @property
    def wide(self) -> str | None:
        """Accumulator dtype if wider than the operands', else None."""
        return accumulator(self.dtype)

    @property
    def sum_bytes(self) -> int:
        """Bytes per accumulator element."""
        return _sum_bytes(self.dtype)

    @property
    def product_room(self) -> int:
        """Registers per accumulator: 1 for floats, 2 for integers (no fused multiply-add)."""
        return 1 if is_float(self.wide or self.dtype) else 2

    @property
    def vector_lanes(self) -> int:
        """Accumulators per vector register, rounded down to 4, 8 or 16; 2 for less, and before ``on``."""
        return _lanes(self.vector_bytes // self.sum_bytes)

    @property
    def made(self) -> str:
        """Result dtype."""
        return self.result or result_type(self.dtype)

    @property
    def leaves_in_halves(self) -> bool:
        """True for 16-bit results (``made``): fragments of tensor cores store them in half sectors."""
        return DTYPES[self.made].bits == 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Gemm(TileProblem):
    """Matrix products: ``batch`` times (m, k) by (k, n), or one grouped product with ``groups`` matrices b.

    ta, tb: a is stored (k, m), b (n, k);  tc: results are stored (n, m)
    alpha, beta: the epilogue scales the sums by alpha, and adds beta times a third matrix
    align: grouped product: rows per block with one matrix of b (``grouped_matmul``); 0 for other products
    apart: for a and b, elements stored per element of the matrix: 1.0 for a stored matrix, below 1.0 if the matrix
           repeats elements (im2col), above 1.0 if it skips stored ones
    in_rows: results are stored as rows of a matrix
    run, row_run: columns of b (rows of a) per contiguous run in memory; 0 if all are one run
    image: for windows over a padded image with ``row_run`` pixels per row: (rows of pixels, least, more), where blocks
           of d rows read least + d * more bytes; () for other products
    prepack_a, prepack: a (b) is a constant, packed once
    """

    m: int
    n: int
    k: int
    batch: int = 1
    ta: bool = False
    tb: bool = False
    tc: bool = False
    alpha: bool = False
    beta: bool = False
    groups: int = 1
    align: int = 0
    apart: tuple[float, ...] = (1.0, 1.0)
    in_rows: bool = True
    run: int = 0
    row_run: int = 0
    image: tuple[int, ...] = ()
    prepack_a: bool = False

    @property
    def axes(self) -> list[str]:
        """Names of the leading axes (before rows and columns)."""
        return ["z"] if self.batch > 1 else []

    @property
    def lead(self) -> str:
        """Leading axes as index map text."""
        return "z, " if self.batch > 1 else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conv(TileProblem):
    """A 2-D convolution of n images of c channels and h x w pixels to k channels and p x q pixels, or its gradients.

    r, s: taps of the filter;  layout: "NCHW" or "NHWC"
    back: the forward convolution, if this one computes the gradient of its image
    uneven: (rows, columns) if they differ or padding before and after does; ``stride``, ``pad`` and ``dilation`` have
            their defaults then; () for others
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
        """WindowAxis of rows and of columns."""
        return self.uneven or (WindowAxis(self.stride, self.pad, self.pad, self.dilation),) * 2

    @property
    def parts(self) -> int:
        """Stride of ``back``: pixels equal modulo it share filter taps; 0 if this is no image gradient."""
        return self.back.stride if self.back else 0

    @property
    def winograd_tiles(self) -> list[int]:
        """Tile sizes m of Winograd's algorithm whose error bound is within ``max_error``; [] if none applies."""
        dense = self.stride == self.dilation == self.groups == 1 and self.r == self.s and not self.uneven
        large = min(self.c, self.k) >= WINOGRAD_CHANNELS and self.dtype == "float32"
        return allowed_tiles(self.r, self.max_error) if dense and large else []

    @property
    def border(self) -> tuple[int, int]:
        """(rows above, columns left of) the image read by the first results."""
        if self.back is None:
            return self.pad, self.pad
        return (self.r - 1) * self.dilation - self.pad, (self.s - 1) * self.dilation - self.pad

    @property
    def nchw(self) -> bool:
        """True for layout NCHW."""
        return self.layout == "NCHW"

    @property
    def cg(self) -> int:
        """Input channels per group."""
        return self.c // self.groups

    @property
    def kg(self) -> int:
        """Output channels per group."""
        return self.k // self.groups

    @property
    def taps(self) -> int:
        """Filter taps (r * s)."""
        return self.r * self.s

    @property
    def pixels(self) -> int:
        """Output pixels of all images (n * p * q)."""
        return self.n * self.p * self.q

    @property
    def flops(self) -> int:
        """Multiplications and additions of a convolution, or of a gradient."""
        return 2 * self.n * self.k * self.p * self.q * self.cg * self.taps
