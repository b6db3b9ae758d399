"""C helpers for operations without a C operator: arbitrary shifts, quotients by 0, powers, ``abs``, bit casts, min and
max.
"""

from __future__ import annotations

import math

from tensorir.codegen.c_text import extreme_lanes, signed
from tensorir.codegen.dialect import Dialect
from tensorir.codegen.helpers import helper_text
from tensorir.ir.dtypes import DTYPES

_BITS_OF = {"float16": "tir_bits_float16", "bfloat16": "tir_to_bfloat16"}
_OF_BITS = {"float16": "tir_of_bits_float16", "bfloat16": "tir_from_bfloat16"}


def shift_helper(op: str, dtype: str, d: Dialect) -> tuple[str, str]:
    """(C name, C text) of a function that shifts by any count, as NumPy: counts beyond the width give 0 or the sign."""
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
"""Line for negative exponents: the power is a fraction, rounded toward zero."""


def narrow(dtype: str) -> bool:
    """True if integer type ``dtype`` fits C's ``int`` or ``unsigned int``, in which C computes smaller types."""
    return DTYPES[dtype].bits <= 32


def quotient_helper(op: str, dtype: str, d: Dialect) -> tuple[str, str]:
    """(C name, C text) of a function for ``//`` or ``%`` whose divisor may be 0; the result is 0 then, as NumPy's."""
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
    """(C name, C text) of a function for integer powers that wrap around, as NumPy's."""
    name, kind = f"tir_power_{dtype}", d.types[dtype]
    negative = _NEGATIVE.format(kind=kind) if DTYPES[dtype].kind == "i" else ""
    wide = d.types["uint32" if narrow(dtype) else unsigned(dtype)]
    return name, _POWER.format(inline=d.inline, kind=kind, name=name, wide=wide, negative=negative)


def unsigned(dtype: str) -> str:
    """Unsigned integer dtype of the same width as the integer ``dtype``."""
    return f"u{dtype}" if DTYPES[dtype].kind == "i" else dtype


def absolute_helper(dtype: str, d: Dialect) -> tuple[str, str]:
    """(C name, C text) of a function for ``abs`` of int32 or int64; the least number stays itself."""
    kind, name = d.types[dtype], f"tir_abs_{dtype}"
    positive = d.types["uint32" if dtype == "index" else f"u{dtype}"]
    return name, f"{d.inline} {kind} {name}({kind} a) {{ return a < 0 ? ({kind})-({positive})a : a; }}"


def narrow_bits(old: str, new: str, d: Dialect) -> tuple[str, str]:
    """(helper name, template ``{0}`` of a call) that reinterprets a 16- or 8-bit float as an integer or back."""
    if DTYPES[old].kind == "f":
        helper = _BITS_OF.get(old, f"tir_to_{old}")
        cast = f"({d.types[new]})" if DTYPES[new].kind == "i" else ""
        return helper, f"{cast}{helper}({{0}})"
    helper = _OF_BITS.get(new, f"tir_from_{new}")
    return helper, f"{helper}(({d.types[f'uint{DTYPES[new].bits}']})({{0}}))"


def upper_half(dtype: str, d: Dialect) -> str:
    """C expression template, with ``{a}`` and ``{b}``, for the upper half of a product; narrow factors are multiplied
    in 32 bits.
    """
    bits = DTYPES[dtype].bits
    if bits < 32:
        wide = d.types["uint32" if DTYPES[dtype].kind == "u" else "int32"]
        return f"({d.types[dtype]})(({wide}){{a}} * {{b}} >> {bits})"
    return f"{d.upper[dtype]}({{a}}, {{b}})"


def extreme_helper(fn: str, kind: str, lanes: int, bound: float | None, inline: str, d: Dialect) -> tuple[str, str]:
    """(C name, C text) of a function for ``min`` or ``max`` of two floats of C type ``kind``: NaN if either is, and -0
    < 0, so that any order of operands and terms gives the same bits.

    bound: second operand, if constant;  inline: qualifiers of vector functions

    ``b > a ? b : a`` is one x86 instruction, which returns its second operand if one is NaN or both are equal. In that
    case the sign of a maximum is cleared if b's is clear, and of a minimum set if b's is set. For NaN b all bits are
    set: with a second select of b, compilers would merge both and lose the instruction, and a constant would be a
    masked load, slow until its page is touched.
    """
    if d.family == "cuda" and kind == "float":
        return f"tir_{fn}_float", cuda_extreme(fn)
    case = "" if bound is None else "_zero" if _ties(fn, bound) else "_const"
    name = f"tir{'_wide' if inline == 'WIDE_INLINE' else ''}_{fn}{case}_{kind}"
    sign, size = ">" if fn == "max" else "<", 64 if kind.startswith("double") else 32
    if d.family == "c" and lanes > 1:
        return name, extreme_lanes(name, kind, sign, case)
    chosen = f"b {sign} a ? b : a"
    if d.family == "opencl":
        whole = f"{'long' if size == 64 else 'int'}{lanes if lanes > 1 else ''}"
        to, of = (f"as_{whole}({{}})", f"as_{kind}({{}})")
        missing = "(b != b)" if lanes > 1 else f"-({whole})(b != b)"
    else:
        to, of = d.casts[f"float{size}", f"int{size}"].replace("{x}", "{}"), d.casts[f"int{size}", f"float{size}"]
        of, missing = of.replace("{x}", "{}"), ""
    if case != "_const":
        rest = "0x7fffffff" if size == 32 else d.whole.format(value="0x7fffffffffffffff", unsigned="", UNSIGNED="")
        with_sign = signed(fn, to.format(chosen), "" if case else to.format("b"), rest)
        chosen = of.format(with_sign if case or not missing else f"({with_sign}) | {missing}")
    if not case and not missing:
        chosen = f"b != b ? b : {chosen}"
    return name, f"{inline or d.inline} {kind} {name}({kind} a, {kind} b) {{ return {chosen}; }}"


def _ties(fn: str, bound: float) -> bool:
    """True if ``bound`` is the zero that wins against the other zero: +0 in max, -0 in min."""
    return bound == 0 and (math.copysign(1, bound) > 0) == (fn == "max")


_CUDA_EXTREME = """\
__device__ __forceinline__ float tir_FN_float(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float y;
  asm("FN.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return b != b ? b : __int_as_float(SIGNED);
#endif
}"""


def cuda_extreme(fn: str) -> str:
    """CUDA text of ``tir_max_float`` or ``tir_min_float``: NaN if either argument is, -0 < 0."""
    chosen = f"__float_as_int(b {'>' if fn == 'max' else '<'} a ? b : a)"
    return _CUDA_EXTREME.replace("FN", fn).replace("SIGNED", signed(fn, chosen, "__float_as_int(b)", "0x7fffffff"))
