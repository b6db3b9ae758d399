"""What C has no operator for: shifts by any number of bits, ``abs``, bits as another type, upper halves of products."""

from __future__ import annotations

from tensorir.codegen.c_text import extreme_lanes
from tensorir.codegen.dialect import Dialect
from tensorir.ir.dtypes import DTYPES

_BITS_OF = {"float16": "tir_bits_float16", "bfloat16": "tir_to_bfloat16"}
_OF_BITS = {"float16": "tir_of_bits_float16", "bfloat16": "tir_from_bfloat16"}


def shift_helper(op: str, dtype: str, d: Dialect) -> tuple[str, str]:
    """The name and the text of a shift by any number of bits, as NumPy's: by none of the type's, the sign is left."""
    kind, bits, name = d.types[dtype], DTYPES[dtype].bits, f"tir_sh{'l' if op == '<<' else 'r'}_{dtype}"
    few = f"({d.types[f'uint{bits}']})b < {bits}"
    if op == ">>":
        result = f"a >> ({few} ? b : {bits - 1})" if DTYPES[dtype].kind == "i" else f"{few} ? a {op} b : 0"
    else:
        result = f"{few} ? {f'({kind})(({d.types[unsigned(dtype)]})a << b)' if d.wraps else 'a << b'} : 0"
    return name, f"{d.inline} {kind} {name}({kind} a, {kind} b) {{ return {result}; }}"


def unsigned(dtype: str) -> str:
    """The unsigned integer of as many bits; ``dtype`` itself where it is one."""
    return f"u{dtype}" if DTYPES[dtype].kind == "i" else dtype


def absolute_helper(dtype: str, d: Dialect) -> tuple[str, str]:
    """The name and the text of ``abs`` of signed integers of 32 or 64 bits; the least one has none, and stays."""
    kind, name = d.types[dtype], f"tir_abs_{dtype}"
    positive = d.types["uint32" if dtype == "index" else f"u{dtype}"]
    return name, f"{d.inline} {kind} {name}({kind} a) {{ return a < 0 ? ({kind})-({positive})a : a; }}"


def narrow_bits(old: str, new: str, d: Dialect) -> tuple[str, str]:
    """The helper between a float of 16 or 8 bits and its bits, and its call with ``{0}`` in it."""
    if DTYPES[old].kind == "f":
        helper = _BITS_OF.get(old, f"tir_to_{old}")
        cast = f"({d.types[new]})" if DTYPES[new].kind == "i" else ""
        return helper, f"{cast}{helper}({{0}})"
    helper = _OF_BITS.get(new, f"tir_from_{new}")
    return helper, f"{helper}(({d.types[f'uint{DTYPES[new].bits}']})({{0}}))"


def upper_half(dtype: str, d: Dialect) -> str:
    """The upper half of a product, with ``{a}`` and ``{b}`` in it; factors of fewer bits are multiplied as int."""
    bits = DTYPES[dtype].bits
    if bits < 32:
        wide = d.types["uint32" if DTYPES[dtype].kind == "u" else "int32"]
        return f"({d.types[dtype]})(({wide}){{a}} * {{b}} >> {bits})"
    return f"{d.upper[dtype]}({{a}}, {{b}})"


def extreme_helper(fn: str, kind: str, lanes: int, bounded: bool, inline: str, d: Dialect) -> tuple[str, str]:
    """The name and the text of ``min`` or ``max`` of two floats of the C type ``kind``, NaN where one of them is.

    bounded: the second one is a constant, and a number;  inline: what stands before a function of vectors

    ``b > a ? b : a`` is one instruction of x86, which gives its second operand where one is NaN. Where that may be b,
    all bits are set: compilers would join a second choice of b with the first one and lose the instruction, and a
    constant is a masked load, which is slow as long as nobody has touched its page.
    """
    sign = ">" if fn == "max" else "<"
    if d.family == "cuda" and kind == "float":
        return f"tir_{fn}_float", cuda_extreme(fn)
    name = f"tir{'_wide' if inline == 'WIDE_INLINE' else ''}_{fn}{'_const' if bounded else ''}_{kind}"
    chosen = f"b {sign} a ? b : a"
    if d.family == "c" and lanes > 1:
        return name, extreme_lanes(name, kind, sign, bounded)
    if not bounded and d.family != "opencl":
        chosen = f"b != b ? b : {chosen}"
    elif not bounded:
        bits = "long" if kind.startswith("double") else "int"
        whole, missing = (f"{bits}{lanes}", "(b != b)") if lanes > 1 else (bits, f"-({bits})(b != b)")
        chosen = f"as_{kind}(as_{whole}({chosen}) | {missing})"
    return name, f"{inline or d.inline} {kind} {name}({kind} a, {kind} b) {{ return {chosen}; }}"


_CUDA_EXTREME = """\
__device__ __forceinline__ float tir_FN_float(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("FN.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return b != b ? b : b SIGN a ? b : a;
#endif
}"""


def cuda_extreme(fn: str) -> str:
    """The function ``tir_max_float`` or ``tir_min_float`` of two floats, NaN where one of them is."""
    return _CUDA_EXTREME.replace("FN", fn).replace("SIGN", ">" if fn == "max" else "<")
