"""CUDA instructions on tensor cores, which the 32 threads of a warp run together.

Which lane holds which element is said by the PTX ISA, in the sections on matrix fragments and on ldmatrix. Operands
come in two orders: the suffix ``nt`` says that a is stored as (m, k) and b as (n, k), as in a BLAS call; registers hold
the same either way, so that only what fills them differs.
"""

from __future__ import annotations

from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as sum_
from tensorir.intrin.intrin import Intrin, meaning, register

HALVES = {"f16": "float16", "bf16": "bfloat16"}
_NEEDS = {"f16": ("sm_80",), "bf16": ("sm_80",)}

# Fragments of a 16-bit m16n8k16 multiplication.
_A = {"n": "i, k -> i%8, k/2%4 | k/8, i/8, k%2", "t": "k, i -> i%8, k/2%4 | k/8, i/8, k%2"}
_B = {"n": "k, j -> j, k/2%4 | k/8, k%2", "t": "j, k -> j, k/2%4 | k/8, k%2"}
_D = "i, j -> i%8, j/2 | i/8, j%2"
# Two of b's side by side, as one ldmatrix brings them.
_B2 = {"n": "k, j -> j%8, k/2%4 | j/8, k/8, k%2", "t": "j, k -> j%8, k/2%4 | j/8, k/8, k%2"}
# Rows of 16 bytes that lanes point to: those of the matrix that fills their register.
_ROWS = {
    "a.n": "i, k -> k/8, i | k%8",
    "a.t": "k, i -> k/8, i/8, k%8 | i%8",
    "b.n": "k, j -> j/8, k | j%8",
    "b.t": "j, k -> j/8, k/8, j%8 | k%8",
}

_MMA = """\
#ifndef TIR_EMULATED
static __device__ __forceinline__ void {name}(float *d, const void *a_, const void *b_) {{
  const unsigned *a = (const unsigned *)a_, *b = (const unsigned *)b_;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, "
               "{{%0,%1,%2,%3}};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
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


def mma(kind: str, order: str) -> Intrin:
    """``d[i, j] += sum over k of a[i, k] * b[k, j]``, 16 x 8 x 16, products and sums in float32."""
    dtype, of_a, of_b = HALVES[kind], order[0], order[1]
    a = placeholder((16, 16), dtype, name="a")
    b = placeholder((16, 8) if of_b == "n" else (8, 16), dtype, name="b")
    k = reduce_axis(16, "k")
    d = compute(
        (16, 8),
        lambda i, j: sum_(
            cast(a[i, k] if of_a == "n" else a[k, i], "float32") * cast(b[k, j] if of_b == "n" else b[j, k], "float32"),
            axis=k,
        ),
        name="d",
    )
    function = f"tir_mma_m16n8k16_{kind}"
    return Intrin(
        name=f"mma.m16n8k16.{kind}.{order}",
        semantics=meaning(d, accumulate=True),
        emit={"cuda": f"{function}({{d}}, {{a}}, {{b}});"},
        source="PTX ISA, matrix fragments for mma.m16n8k16 with floating point type",
        align={"a": 4, "b": 4},
        needs=_NEEDS[kind],
        fragments={"a": _A[of_a], "b": _B[of_b], "d": _D},
        prelude={"cuda": _MMA.format(name=function, kind=kind)},
    )


def ldmatrix(kind: str, operand: str, order: str) -> Intrin:
    """A tile of 16 x 16 from shared memory into the registers where ``mma`` wants it.

    operand: "a", or "b" (two of them: 16 columns);  order: "n" or "t", how the tile is stored
    """
    s = placeholder((16, 16), HALVES[kind], name="s")
    d = compute((16, 16), lambda r, c: s[r, c], name="d")
    trans = (operand, order) in (("a", "t"), ("b", "n"))
    function = "tir_ldmatrix_x4_trans" if trans else "tir_ldmatrix_x4"
    return Intrin(
        name=f"ldmatrix.{kind}.{operand}.{order}",
        semantics=meaning(d),
        emit={"cuda": f"{function}({{d}}, {{s}});"},
        source="PTX ISA, warp-level matrix instructions: ldmatrix",
        align={"s": 16, "d": 4},
        needs=("sm_75",),
        fragments={"d": (_A if operand == "a" else _B2)[order]},
        addresses={"s": _ROWS[f"{operand}.{order}"]},
        prelude={"cuda": _LDMATRIX.format(name=function, trans=".trans" if trans else "")},
    )


for _kind in HALVES:
    for _order in ("nn", "nt", "tn", "tt"):
        register(mma(_kind, _order))
    for _operand in "ab":
        for _how in "nt":
            register(ldmatrix(_kind, _operand, _how))
