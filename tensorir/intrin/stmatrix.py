"""CUDA's stmatrix (sm_90): stores 16-bit results from warp registers to shared memory.

The inverse of ldmatrix. After a product, each register holds two neighbours of a row; direct stores would be 4 bytes
each, four times as many. With stmatrix, each thread supplies the address of a 16-byte row, and the hardware collects
the row's elements from the registers of four threads.
"""

from __future__ import annotations

import functools

from tensorir.expr.compute import compute, placeholder
from tensorir.intrin.cuda import MULTIPLICATIONS
from tensorir.intrin.declare import Intrin, meaning, ship

COLUMNS = 16
"""Of the tile that one instruction stores."""
KINDS = {m.name: m.dtype for m in MULTIPLICATIONS.values() if m.word == 2}

_TILES = {
    (16,): ("", "i%8", "i/8"),
    (64,): ("i/16", "i%8", "i/8%2"),
    (8, 8): ("p/2", "q", "p%2"),
    (4, 16): ("p", "q%8", "q/8"),
    (2, 32): ("p, q/16", "q%8", "q/8%2"),
    (1, 64): ("p, q/16", "q%8", "q/8%2"),
}
"""Rows of a tile, or pixels in rows of an image, to: which warp of a warpgroup has them, and of those of a warp, which
number they have among eight, and which eight it is. As ``mma`` and ``wgmma`` leave their sums."""

_TEXT = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void {name}(void *row, const void *s_) {{
  const unsigned *s = (const unsigned *)s_;
  asm volatile("stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%0], {{%1,%2,%3,%4}};"
               :: "r"((unsigned)__cvta_generic_to_shared(row)), "r"(s[0]), "r"(s[1]), "r"(s[2]), "r"(s[3]) : "memory");
}}
#endif"""


def stmatrix(kind: str, rows: tuple[int, ...], order: str) -> Intrin:
    r"""The stmatrix instruction: stores ``rows`` x 16 accumulators, converted to 16 bits, to shared memory.

    rows:  (16,) of a warp, (64,) of a warpgroup, or two dimensions of pixels
    order: "n" if the tile is stored by rows, "t" if by columns, (16, \*rows)
    """
    names = ("i",) if len(rows) == 1 else ("p", "q")
    warp, row, eight = _TILES[rows]
    dims = (*rows, COLUMNS) if order == "n" else (COLUMNS, *rows)
    index = ", ".join((*names, "j") if order == "n" else ("j", *names))
    s = placeholder(dims, KINDS[kind], name="s")
    d = compute(dims, lambda *at: s[at], name="d")
    whose = f"{warp}, " if warp else ""
    lanes, run = (row, "j%8") if order == "n" else ("j%8", row)
    function = "tir_stmatrix_x4" if order == "n" else "tir_stmatrix_x4_trans"
    return Intrin(
        name=f"stmatrix.m{'x'.join(map(str, rows))}.{kind}.{order}",
        semantics=meaning(d),
        emit={"cuda": f"{function}({{d}}, {{s}});"},
        source="PTX ISA, warp-level matrix instructions: stmatrix",
        align={"s": 4, "d": 16},
        needs=("sm_90",),
        fragments={"s": f"{index} -> {whose}{row}, j/2%4 | j/8, {eight}, j%2"},
        addresses={"d": f"{index} -> {whose}j/8, {eight}, {lanes} | {run}"},
        prelude={"cuda": _TEXT.format(name=function, trans="" if order == "n" else ".trans")},
    )


@functools.cache
def ship_all() -> None:
    """Register all instructions of this module by their names."""
    for kind in KINDS:
        for rows in _TILES:
            for order in "nt":
                ship(stmatrix(kind, rows, order))
