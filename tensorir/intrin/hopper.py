"""CUDA instructions of Hopper (sm_90a): wgmma and TMA tile copies.

``wgmma`` multiplies 64 rows by up to 256 columns, asynchronously, from shared memory into the registers of 128 threads.
One thread starts a tensor copy (TMA): it moves a tile of an array, with zeros beyond the array's edges, and signals a
barrier on arrival. Both use rows of 128 bytes with permuted 16-byte pieces, to avoid bank conflicts (PTX ISA, sections
on wgmma.mma_async and cp.async.bulk.tensor).
"""

from __future__ import annotations

import functools
import re

from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as sum_
from tensorir.expr.tensor import Tensor
from tensorir.intrin.cuda import MULTIPLICATIONS, Multiplication, operand_fragment
from tensorir.intrin.declare import Intrin, meaning
from tensorir.intrin.match import MOST_SPAN
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr

ROWS = 64
"""Of one product: sixteen for each warp of a warpgroup."""
COLUMNS = tuple(range(8, 257, 8))
INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))
"""Those of sums of integers: PTX has no others for them."""
KINDS = ("f16", "bf16", "e4m3", "e5m2", "tf32", "s8", "u8")

MOST_REGISTERS = 65536
"""Of a multiprocessor."""

_NAME = re.compile(r"wgmma\.m(?:64|(\d+)x(\d+))n(\d+)k(\d+)\.(\w+)\.([nt])([nt])(\.rs)?")

_FUNCTION = re.compile(r"tir_wgmma_m64n(\d+)k(\d+)_(\w+)_([ntr])([nt])")
_STORE = re.compile(r"tma\.store\.(\w+)\.([1-9]\d{0,2})x([1-9]\d{0,2})")

_WGMMA = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void {name}({kind} *d, {a_type}, unsigned long long b, int adds = 1) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{adds}, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{n}k{k}.{ptx} {{{registers}}}, {a}, %{b}, p{scales};\\n}}"
               : {held}
               : {a_value}, "l"(b), "r"(adds));
}}
#endif"""


def first_registers(threads: int) -> int:
    """Registers per thread at launch of a block of ``threads`` that has a multiprocessor alone, before redistribution
    by ``setmaxnreg``: a multiple of 8, at most 248.
    """
    return min(255, MOST_REGISTERS // threads) // 8 * 8


def tile_store_named(name: str) -> Intrin | None:
    """The TMA store called ``name``, such as "tma.store.bfloat16.64x64"; None for other names, more than 256 rows or
    columns, or rows that are no multiple of 16 bytes.
    """
    found = _STORE.fullmatch(name)
    if found is None or found[1] not in DTYPES:
        return None
    rows, columns = int(found[2]), int(found[3])
    row = columns * DTYPES[found[1]].bits // 8
    return tile_store(found[1], (rows, columns)) if rows <= MOST_SPAN >= columns and row % 16 == 0 else None


def wgmma_named(name: str) -> Intrin | None:
    """The product called ``name``, such as "wgmma.m64n256k16.bf16.nt"; None for other names, and for shapes, types or
    orders that the hardware has not.

    The last letters say how a and b are stored: a "n" as (m, k), b "t" as (n, k), as in a BLAS call; only 16-bit types
    may have the other orders. With "m4x16" in place of "m64", rows are pixels of an image, four rows of sixteen. With
    the suffix ".rs", a is in the registers of the warpgroup, which may have computed it, in any order.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    n, k, kind, order = int(found[3]), int(found[4]), found[5], found[6] + found[7]
    m = MULTIPLICATIONS.get(kind)
    held = found[8] is not None
    if m is None or kind not in KINDS or k != m.k or (m.word != 2 and order != "nt" and not (held and order == "tt")):
        return None
    if n not in (INTEGER_COLUMNS if m.sums == "int32" else COLUMNS):
        return None
    if found[1] is None:
        return wgmma(kind, n, order, held)
    if held:
        return None
    high, wide = int(found[1]), int(found[2])
    return wgmma_pixels(kind, n, high, wide) if high * wide == ROWS and wide % 8 == 0 and order == "nt" else None


def wgmma_of(function: str) -> Intrin | None:
    """The wgmma instruction whose emitted text defines the CUDA function ``function``; None if there is none."""
    found = _FUNCTION.fullmatch(function)
    if found is None:
        return None
    n, k, kind, of_a, of_b = found.groups()
    held = of_a == "r"
    return wgmma_named(f"wgmma.m64n{n}k{k}.{kind}.{'n' if held else of_a}{of_b}{'.rs' if held else ''}")


@functools.cache
def wgmma_pixels(kind: str, n: int, high: int, wide: int) -> Intrin:
    """The wgmma on image pixels: ``d[p, q, j] += sum over k of a[p, q, k] * b[j, k]`` for ``high`` x ``wide`` = 64
    pixels.

    kind: key of ``MULTIPLICATIONS``, such as "bf16";  n: columns of d
    """
    m = MULTIPLICATIONS[kind]
    a, b = placeholder((high, wide, m.k), m.dtype, name="a"), placeholder((n, m.k), m.dtype, name="b")
    k = reduce_axis(m.k, "k")
    d = compute(
        (high, wide, n),
        lambda p, q, j: sum_(
            a[p, q, k] * b[j, k] if m.dtype == m.sums else cast(a[p, q, k], m.sums) * cast(b[j, k], m.sums), axis=k
        ),
        name="d",
    )
    warp, row, eight = {8: ("p/2", "q", "p%2"), 16: ("p", "q%8", "q/8")}.get(wide, ("p, q/16", "q%8", "q/8%2"))
    return _product(m, n, "nt", d, f"m{high}x{wide}", f"p, q, j -> {warp}, {row}, j/2%4 | j/8, {eight}, j%2")


@functools.cache
def wgmma(kind: str, n: int, order: str, held: bool = False) -> Intrin:
    """The wgmma ``d[i, j] += sum over k of a[i, k] * b[k, j]`` on 64 x ``n`` accumulators.

    kind: key of ``MULTIPLICATIONS``, such as "bf16";  order: "nn", "nt", "tn" or "tt": how a and b are stored
    held: True if a is in registers: each warp has sixteen rows, laid out as for ``mma``
    """
    m = MULTIPLICATIONS[kind]
    of_a, of_b = order[0], order[1]
    a = placeholder((ROWS, m.k) if of_a == "n" else (m.k, ROWS), m.dtype, name="a")
    b = placeholder((m.k, n) if of_b == "n" else (n, m.k), m.dtype, name="b")
    k = reduce_axis(m.k, "k")

    def wide(x: Tensor, *at: Expr) -> Expr:
        return x[at] if m.dtype == m.sums else cast(x[at], m.sums)

    d = compute(
        (ROWS, n),
        lambda i, j: sum_(
            (wide(a, i, k) if of_a == "n" else wide(a, k, i)) * (wide(b, k, j) if of_b == "n" else wide(b, j, k)),
            axis=k,
        ),
        name="d",
    )
    return _product(m, n, order, d, f"m{ROWS}", "i, j -> i/16, i%8, j/2%4 | j/8, i/8%2, j%2", held)


def _product(m: Multiplication, n: int, order: str, d: Tensor, rows: str, fragment: str, held: bool = False) -> Intrin:
    function = f"tir_wgmma_m64n{n}k{m.k}_{m.name}_{'r' if held else order[0]}{order[1]}"
    of_a = {"a": operand_fragment(m, "a", order[0], warps=4)} if held else {}
    return Intrin(
        name=f"wgmma.{rows}n{n}k{m.k}.{m.name}.{order}{'.rs' if held else ''}",
        semantics=meaning(d, accumulate=True),
        emit={"cuda": f"{function}({{d}}, {{a}}, {{b}}{{adds}});"},
        source="PTX ISA, asynchronous warpgroup-level matrix instructions: wgmma.mma_async",
        align={"d": 4, **dict.fromkeys(of_a, 4)},
        needs=("sm_90a",),
        fragments={"d": fragment, **of_a},
        prelude={"cuda": _text(m, n, order, function, held)},
        descriptors=("b",) if held else ("a", "b"),
        later=True,
    )


def _text(m: Multiplication, n: int, order: str, function: str, in_registers: bool) -> str:
    count = n // 2
    given = [count + r for r in range(4 if in_registers else 1)]
    kind, constraint = ("int", "r") if m.sums == "int32" else ("float", "f")
    types = ".".join(m.ptx.split(".")[:3])
    turned = f", {int(order[1] == 'n')}" if m.word == 2 else ""
    if not in_registers and turned:
        turned = f", {int(order[0] == 't')}{turned}"
    return _WGMMA.format(
        name=function, kind=kind, n=n, k=m.k, ptx=types, b=given[-1] + 1, adds=given[-1] + 2,
        a=f"{{{','.join(f'%{r}' for r in given)}}}" if in_registers else f"%{count}",
        a_type="const void *a" if in_registers else "unsigned long long a",
        a_value=", ".join(f'"r"(((const unsigned *)a)[{r}])' for r in range(4)) if in_registers else '"l"(a)',
        registers=",".join(f"%{r}" for r in range(count)),
        held=", ".join(f'"+{constraint}"(d[{r}])' for r in range(count)),
        scales=("" if m.sums == "int32" else ", 1, 1") + turned,
    )  # fmt: skip


@functools.cache
def tile_copy(dtype: str, box: tuple[int, ...], blocks: int = 1, pixels: bool = False) -> Intrin:
    """The TMA load of a tile of shape ``box`` from an array to shared memory, 0 beyond the array's ends.

    blocks: number of the cluster's blocks that receive the tile at the same address (multicast): all or one
    pixels: True if the tile's rows are consecutive pixels of images (the im2col mode of tensor maps)
    """
    s = placeholder(box, dtype, name="s")
    d = _same(s)
    kind, alone, shared = ("load", "tir_tma_load", "tir_tma_multicast")
    if pixels:
        kind, alone, shared = ("im2col", "tir_tma_im2col", "tir_tma_im2col_multicast")
    return Intrin(
        name=f"tma.{kind}.{dtype}.{'x'.join(map(str, box))}{f'.to{blocks}' if blocks > 1 else ''}",
        semantics=meaning(d),
        emit={
            "cuda": f"{shared}({{d}}, &{{s_map}}, {{barrier}}, {(1 << blocks) - 1}, {{s_at}});"
            if blocks > 1
            else f"{alone}({{d}}, &{{s_map}}, {{barrier}}, {{s_at}});"
        },
        blocks=blocks,
        source="PTX ISA, cp.async.bulk.tensor",
        needs=("sm_90",),
        maps=("s",),
    )


@functools.cache
def tile_store(dtype: str, box: tuple[int, ...]) -> Intrin:
    """The TMA store of a tile of shape ``box`` from shared memory to an array; elements beyond the array's ends are
    skipped.
    """
    s = placeholder(box, dtype, name="s")
    d = _same(s)
    return Intrin(
        name=f"tma.store.{dtype}.{'x'.join(map(str, box))}",
        semantics=meaning(d),
        emit={"cuda": "tir_tma_store(&{d_map}, {s}, {d_at});"},
        source="PTX ISA, cp.async.bulk.tensor",
        needs=("sm_90",),
        maps=("d",),
    )


def _same(s: Tensor) -> Tensor:
    out: Tensor = compute(s.shape, lambda *at: s[at], name="d")
    return out
