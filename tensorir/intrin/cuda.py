"""CUDA tensor-core instructions executed by warps: mma and ldmatrix.

The PTX ISA (sections on matrix fragments and ldmatrix) defines the lane that holds each element. Operands come in two
storage orders: suffix ``nt`` means a stored as (m, k) and b as (n, k), as in BLAS calls. Registers are equal for both;
only the loads that fill them differ.

All types follow one pattern: a 32-bit register holds ``word`` neighbours along k, four lanes hold four times as many,
and an instruction sums over one or two registers: ``4 * word`` or ``8 * word`` products.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as sum_
from tensorir.expr.tensor import Tensor
from tensorir.intrin.declare import Intrin, meaning, ship
from tensorir.ir.tree import Expr


@dataclass(frozen=True)
class Multiplication:
    """A type combination of tensor-core multiplications (mma), for operands a (rows), b (columns) and accumulators d.

    word: elements of a or b per 32-bit register;  sums: dtype of d;  ptx: PTX types of d, a, b, c
    halves: registers along k per row of a or column of b
    """

    name: str
    dtype: str
    word: int
    sums: str
    ptx: str
    needs: str = "sm_80"
    halves: int = 2

    @property
    def k(self) -> int:
        """Number of terms that one instruction sums: its extent along k."""
        return 4 * self.word * self.halves

    @property
    def step(self) -> int:
        """Extent along k of the tile that one ldmatrix loads."""
        return 8 * self.word

    @property
    def row(self) -> int:
        """Number of elements in the 16 bytes of an ldmatrix row."""
        return 4 * self.word


MULTIPLICATIONS = {
    m.name: m
    for m in (
        Multiplication("f16", "float16", 2, "float32", "f32.f16.f16.f32"),
        Multiplication("bf16", "bfloat16", 2, "float32", "f32.bf16.bf16.f32"),
        Multiplication("e4m3", "float8_e4m3", 4, "float32", "f32.e4m3.e4m3.f32", "sm_89"),
        Multiplication("e5m2", "float8_e5m2", 4, "float32", "f32.e5m2.e5m2.f32", "sm_89"),
        Multiplication("s8", "int8", 4, "int32", "s32.s8.s8.s32"),
        Multiplication("u8", "uint8", 4, "int32", "s32.u8.u8.s32"),
        Multiplication("tf32", "float32", 1, "float32", "f32.tf32.tf32.f32"),
        Multiplication("3xtf32", "float32", 1, "float32", "f32.tf32.tf32.f32"),
    )
}
"""``tf32`` rounds its operands to 10 bits of mantissa. ``3xtf32`` splits each into two of those and adds up three
products, which leaves an error about that of float32 (Ootomo and Yokota, "Recovering single precision accuracy from
Tensor Cores", IJHPCA 2022)."""

SM_75_MULTIPLICATIONS = {
    m.name: m
    for m in (
        Multiplication("f16", "float16", 2, "float32", "f32.f16.f16.f32", "sm_75", halves=1),
        Multiplication("s8", "int8", 4, "int32", "s32.s8.s8.s32", "sm_75", halves=1),
        Multiplication("u8", "uint8", 4, "int32", "s32.u8.u8.s32", "sm_75", halves=1),
    )
}
"""Those of sm_75, whose tensor cores take half as many terms at a time; of integers eight rows, so that it is two
instructions of the hardware (m8n8k16) for sixteen."""

IN_HALF = (
    Multiplication("f16_f16", "float16", 2, "float16", "f16.f16.f16.f16"),
    Multiplication("f16_f16", "float16", 2, "float16", "f16.f16.f16.f16", "sm_75", halves=1),
)
"""Products of float16 added up in float16: twice as fast on GeForce cards, and exact to 11 bits at best. No template
takes them; ``ldmatrix.f16`` loads their operands."""


def _piece(name: str, divisor: int, extent: int) -> str:
    return name + (f"/{divisor}" if divisor > 1 else "") + (f"%{extent}" if extent else "")


def _fragment(names: str, lanes: list[str], registers: list[str]) -> str:
    return f"{', '.join(names)} -> {', '.join(lanes)} | {', '.join(registers)}"


def operand_fragment(m: Multiplication, operand: str, order: str, blocks: int = 1, warps: int = 1) -> str:
    """Text of the fragment layout, from element indices to lane and register, of operand "a" (16 rows per warp) or "b"
    (8 columns, times ``blocks``).

    order: "n" or "t": how the tile is stored;  warps: number of warps that share a
    """
    w = m.word
    inside = [_piece("k", 1, w)] if w > 1 else []
    half, lane = ([_piece("k", 4 * w, 0)], _piece("k", w, 4)) if m.halves > 1 else ([], _piece("k", w, 0))
    if operand == "a":
        warp, eight = ([], "i/8") if warps == 1 else (["i/16"], "i/8%2")
        return _fragment("ik" if order == "n" else "ki", [*warp, "i%8", lane], [*half, eight, *inside])
    column, block = ("j", []) if blocks == 1 else ("j%8", ["j/8"])
    return _fragment("kj" if order == "n" else "jk", [column, lane], [*block, *half, *inside])


def _along_k(operand: str, order: str) -> bool:
    """True if the stored rows of an operand run along k."""
    return (operand, order) in (("a", "n"), ("b", "t"))


def rows_shape(m: Multiplication, operand: str, order: str) -> tuple[int, int]:
    """(rows, columns), as stored, of the tile that one ldmatrix loads."""
    return (16, m.step) if _along_k(operand, order) else (m.step, 16)


def _rows(m: Multiplication, operand: str, order: str) -> str:
    """Text of the address layout of an ldmatrix: which lane gives the address of which 16-byte row."""
    n = m.row
    x, names = ("i", "ik") if operand == "a" else ("j", "jk")
    if _along_k(operand, order):
        outer = [_piece("k", n, 0), x] if operand == "a" else ["j/8", _piece("k", n, 0), "j%8"]
        return _fragment(names, outer, [_piece("k", 1, n)])
    outer = ["k/8", f"{x}/8", "k%8"] if operand == "a" else [f"{x}/8", "k"]
    return _fragment(names[::-1], outer, [f"{x}%8"])


_MMA = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void {name}({kind} *d{raw}, const void *a_, const void *b_) {{
  const unsigned *a = (const unsigned *)a_, *b = (const unsigned *)b_;
{text}
}}
#endif"""


def _function(m: Multiplication, name: str) -> str:
    """Text of the CUDA function ``name``, which executes one mma by inline assembly."""
    integers, half = m.sums == "int32", m.sums == "float16"
    kind, constraint = ("void", "r") if half else ("int", "r") if integers else ("float", "f")
    registers = 2 if half else 4
    if integers and m.halves == 1:
        text = [_asm(m, 8, "r", range(n, n + 2), [n // 2], [0]) for n in (0, 2)]
    else:
        text = [_asm(m, 16, constraint, range(registers), range(2 * m.halves), range(m.halves))]
    if half:
        text.insert(0, "  unsigned *d = (unsigned *)d_;")
    return _MMA.format(name=name, kind=kind, raw="_" if half else "", text="\n".join(text))


def _asm(m: Multiplication, rows: int, sums: str, d: Sequence[int], a: Sequence[int], b: Sequence[int]) -> str:
    """Text of the inline assembly of one mma with ``rows`` rows.

    sums: assembler constraint of accumulators;  d, a, b: numbers of the registers of each operand
    """
    numbers = iter(range(len(d) + len(a) + len(b)))
    of_d, of_a, of_b = ("{" + ",".join(f"%{next(numbers)}" for _ in x) + "}" for x in (d, a, b))
    into = ", ".join(f'"+{sums}"(d[{n}])' for n in d)
    given = ", ".join(f'"r"({x}[{n}])' for x, those in (("a", a), ("b", b)) for n in those)
    return f"""\
  asm volatile("mma.sync.aligned.m{rows}n8k{m.k}.row.col.{m.ptx} {of_d}, {of_a}, {of_b}, {of_d};"
               : {into}
               : {given});"""


_ROUNDED = """\
static __device__ __forceinline__ unsigned {name}_round(float x) {{
  unsigned u;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(x));
  return u;
}}
static __device__ __forceinline__ void {name}_once(float *d, const unsigned *a, const unsigned *b) {{
  asm volatile("mma.sync.aligned.m16n8k8.row.col.{ptx} {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}"""

_TF32 = f"""\
#ifndef TIR_EMULATED
{_ROUNDED}
static __device__ __forceinline__ void {{name}}(float *d, const float *a, const float *b) {{{{
  unsigned ra[4], rb[2];
  for (int n = 0; n < 4; ++n) ra[n] = {{name}}_round(a[n]);
  for (int n = 0; n < 2; ++n) rb[n] = {{name}}_round(b[n]);
  {{name}}_once(d, ra, rb);
}}}}
#endif"""

_3XTF32 = f"""\
#ifndef TIR_EMULATED
{_ROUNDED}
// x is big + small but for its last bits; small times small is below them
static __device__ __forceinline__ void {{name}}(float *d, const float *a, const float *b) {{{{
  unsigned big_a[4], small_a[4], big_b[2], small_b[2];
  for (int n = 0; n < 4; ++n) {{{{
    big_a[n] = {{name}}_round(a[n]);
    small_a[n] = {{name}}_round(a[n] - __uint_as_float(big_a[n]));
  }}}}
  for (int n = 0; n < 2; ++n) {{{{
    big_b[n] = {{name}}_round(b[n]);
    small_b[n] = {{name}}_round(b[n] - __uint_as_float(big_b[n]));
  }}}}
  {{name}}_once(d, small_a, big_b);
  {{name}}_once(d, big_a, small_b);
  {{name}}_once(d, big_a, big_b);
}}}}
#endif"""

_LDMATRIX = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void {name}(void *d_, const void *row) {{
  unsigned *d = (unsigned *)d_;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0,%1,%2,%3}}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"((unsigned)__cvta_generic_to_shared(row)) : "memory");
}}
#endif"""


def mma(m: Multiplication, order: str) -> Intrin:
    """The mma instruction: ``d[i, j] += sum over k of a[i, k] * b[k, j]`` on 16 x 8 accumulators.

    order: "nn", "nt", "tn" or "tt": how a and b are stored ("t": transposed)
    """
    of_a, of_b = order[0], order[1]
    a = placeholder((16, m.k) if of_a == "n" else (m.k, 16), m.dtype, name="a")
    b = placeholder((m.k, 8) if of_b == "n" else (8, m.k), m.dtype, name="b")
    k = reduce_axis(m.k, "k")

    def wide(x: Tensor, *at: Expr) -> Expr:
        return x[at] if m.dtype == m.sums else cast(x[at], m.sums)

    d = compute(
        (16, 8),
        lambda i, j: sum_(
            (wide(a, i, k) if of_a == "n" else wide(a, k, i)) * (wide(b, k, j) if of_b == "n" else wide(b, j, k)),
            axis=k,
        ),
        name="d",
    )
    function = f"tir_mma_m16n8k{m.k}_{m.name}"
    own = {"tf32": _TF32, "3xtf32": _3XTF32}.get(m.name)
    text = own.format(name=function, ptx=m.ptx) if own else _function(m, function)
    return Intrin(
        name=f"mma.m16n8k{m.k}.{m.name}.{order}",
        semantics=meaning(d, accumulate=True),
        emit={"cuda": f"{function}({{d}}, {{a}}, {{b}});"},
        source=f"PTX ISA, matrix fragments for mma.m16n8k{m.k} with types {m.ptx}",
        align={"a": 4, "b": 4, **({"d": 4} if m.sums == "float16" else {})},
        needs=(m.needs,),
        fragments={
            "a": operand_fragment(m, "a", of_a),
            "b": operand_fragment(m, "b", of_b),
            "d": "i, j -> i%8, j/2 | i/8, j%2",
        },
        prelude={"cuda": text},
    )


def loads_rows(m: Multiplication, operand: str, order: str) -> bool:
    """True if ldmatrix can load the operand: if its stored rows run along k, or its type has 16 bits (it can transpose
    these).
    """
    return m.word == 2 or _along_k(operand, order)


def ldmatrix(m: Multiplication, operand: str, order: str) -> Intrin:
    """The ldmatrix instruction that loads an mma operand tile from shared memory into registers.

    operand: "a", or "b" (for two instructions: 16 columns);  order: "n" or "t", how the tile is stored
    """
    along_k = _along_k(operand, order)
    s = placeholder(rows_shape(m, operand, order), m.dtype, name="s")
    d = compute(s.shape, lambda r, c: s[r, c], name="d")
    function = "tir_ldmatrix_x4" if along_k else "tir_ldmatrix_x4_trans"
    return Intrin(
        name=f"ldmatrix.{m.name}.{operand}.{order}",
        semantics=meaning(d),
        emit={"cuda": f"{function}({{d}}, {{s}});"},
        source="PTX ISA, warp-level matrix instructions: ldmatrix",
        align={"s": 16, "d": 4},
        needs=("sm_75",),
        fragments={"d": operand_fragment(m, operand, order, 1 if operand == "a" else 2)},
        addresses={"s": _rows(m, operand, order)},
        prelude={"cuda": _LDMATRIX.format(name=function, trans="" if along_k else ".trans")},
    )


@functools.cache
def ship_all() -> None:
    """Register all instructions of this module by their names."""
    for m in (*MULTIPLICATIONS.values(), *SM_75_MULTIPLICATIONS.values(), *IN_HALF):
        for order in ("nn", "nt", "tn", "tt"):
            ship(mma(m, order))
    for m in MULTIPLICATIONS.values():
        for operand in "ab":
            for how in "nt":
                if loads_rows(m, operand, how):
                    ship(ldmatrix(m, operand, how))
