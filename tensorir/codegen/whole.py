"""What C has no operator for: any shifts, quotients by 0, powers, ``abs``, bits as another type, halves of products."""

from __future__ import annotations

from tensorir.codegen.c_text import extreme_lanes
from tensorir.codegen.dialect import Dialect
from tensorir.codegen.helpers import helper_text
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


_POWER = """\
{inline} {kind} {name}({kind} a, {kind} b) {{
  {wide} made = 1, square = ({wide})a;
{negative}  for (; b != 0; b = ({kind})(b >> 1)) {{
    if (b & 1) made *= square;
    square *= square;
  }}
  return ({kind})made;
}}"""
_NEGATIVE = "  if (b < 0) return ({kind})(a == 1 || a == -1 ? (b & 1 ? a : 1) : 0);\n"
"""Of a negative exponent the power is a fraction, and is rounded toward zero."""


def narrow(dtype: str) -> bool:
    """Whether an integer fits C's ``int`` or ``unsigned int``, in which C divides what is smaller."""
    return DTYPES[dtype].bits <= 32


def quotient_helper(op: str, dtype: str, d: Dialect) -> tuple[str, str]:
    """The name and the text of ``//`` or ``%`` where the divisor may be 0: 0, as NumPy's."""
    stem = "floordiv" if op == "//" else "mod"
    if DTYPES[dtype].kind == "u":
        kind = "uint32" if narrow(dtype) else dtype
        name, c = f"tir_{stem}_any_{kind}", d.types[kind]
        return name, f"{d.inline} {c} {name}({c} a, {c} b) {{ return b == 0 ? 0 : a {op[0]} b; }}"
    kind = "int" if narrow(dtype) else dtype
    name, c = f"tir_{stem}_any_{kind}", d.types["int32" if kind == "int" else kind]
    inner = helper_text(f"tir_{stem}_{kind}", d).replace(f"tir_{stem}_{kind}", name)
    return name, inner.replace("if (b == -1)", "if (b == 0) return 0; if (b == -1)", 1)


def power_helper(dtype: str, d: Dialect) -> tuple[str, str]:
    """The name and the text of an integer to the power of another one, which wraps around as NumPy's."""
    name, kind = f"tir_power_{dtype}", d.types[dtype]
    negative = _NEGATIVE.format(kind=kind) if DTYPES[dtype].kind == "i" else ""
    wide = d.types["uint32" if narrow(dtype) else unsigned(dtype)]
    return name, _POWER.format(inline=d.inline, kind=kind, name=name, wide=wide, negative=negative)


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
