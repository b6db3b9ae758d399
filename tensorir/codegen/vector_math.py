"""C text of float32 math functions for CPUs: polynomials on reduced arguments, scalar or vector of any width.

Each function is written once, with the dialect's types, selects and bit casts. Results agree in all dialects and widths
up to the last bit, which depends on the compiler's contraction to FMA. ``VECTOR_ULPS`` bounds the errors with and
without contraction, assuming round-to-nearest and subnormals, but no -ffast-math. ``benchmarks/vector_math.py`` fits
the coefficients and measures errors over all arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorir.codegen.dialect import Dialect
from tensorir.interp.ulps import VECTOR_ULPS

_MAGIC = "12582912.0f"
"""1.5 * 2^23: a sum with it is rounded to a whole number, which its low bits hold; as bits it is 0x4b400000."""


@dataclass(frozen=True)
class Spelling:
    """A dialect's spelling of operations on float32 scalars (``lanes`` 1) or vectors; methods take and return C text.

    inline: prefix of function definitions;  start: prefix of their names
    """

    d: Dialect
    lanes: int
    inline: str
    start: str = "tir"

    @property
    def floats(self) -> str:
        """C type of arguments and results: float, or a vector of ``lanes`` floats."""
        return self._vector("float") if self.lanes > 1 else self.d.types["float32"]

    @property
    def bits(self) -> str:
        """C type of unsigned 32-bit integers, with as many lanes as ``floats``."""
        return self._vector("uint") if self.lanes > 1 else self.d.types["uint32"]

    def function(self, name: str) -> str:
        """C name of the function ``name`` of ``VECTOR_FUNCTIONS`` for this type."""
        return f"{self.start}_{name}_{self.floats}"

    def choose(self, mask: str, a: str, b: str) -> str:
        """C text of ``mask ? a : b`` per lane."""
        if self.lanes == 1:
            return f"({mask}) ? {a} : {b}" if "&" in mask else f"{mask} ? {a} : {b}"
        return self.d.choose.format(type="float", lanes=self.lanes, mask=mask, a=a, b=b)

    def of_bits(self, x: str) -> str:
        """C text of the unsigned integers ``x`` reinterpreted as floats."""
        if self.lanes == 1 and self.d.casts:
            return self.d.casts["uint32", "float32"].format(x=x)
        return self.d.reinterpret.format(type="float", lanes=self._many, x=x)

    def bits_of(self, x: str) -> str:
        """C text of the floats ``x`` reinterpreted as unsigned integers."""
        if self.lanes == 1 and self.d.casts:
            return self.d.casts["float32", "uint32"].format(x=x)
        return self.d.reinterpret.format(type="uint", lanes=self._many, x=x)

    def all(self, x: str) -> str:
        """C text of the scalar ``x`` broadcast to every lane."""
        return x if self.lanes == 1 else self.d.splat.format(type="float", lanes=self.lanes, x=x)

    @property
    def _many(self) -> str:
        return str(self.lanes) if self.lanes > 1 else ""

    def _vector(self, stem: str) -> str:
        return f"{stem}{self.lanes}"


def vector_function(name: str, s: Spelling) -> dict[str, str]:
    """Return {C name: definition} of the function ``name`` of ``VECTOR_FUNCTIONS`` and of those that it calls."""
    needs, said, body = _BODIES[name]
    out: dict[str, str] = {}
    for needed in needs:
        out |= vector_function(needed, s)
    f, most = s.floats, VECTOR_ULPS[name]
    about = f"// {name}(x) within {most:g} ulp{'s' * (most > 1)}: {said}"
    lines = "".join(f"  {line}\n" for line in (about, *body(s)))
    return {**out, s.function(name): f"{s.inline} {f} {s.function(name)}({f} x) {{\n{lines}}}"}


def _horner(x: str, coefficients: tuple[str, ...]) -> str:
    """C text of a polynomial in Horner form; coefficients from the constant term up."""
    text = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        text = f"{f'({text})' if ' ' in text else text} * {x} {'-' if c[0] == '-' else '+'} {c.lstrip('-')}"
    return text


def _scaled(s: Spelling, y: str) -> str:
    """C text of ``y * 2**k``, where the variable ``n`` holds k + 254: in two factors, so that subnormal and overflowing
    results are right.
    """
    return f"{y} * {s.of_bits('(n >> 1) << 23')} * {s.of_bits('(n - (n >> 1)) << 23')}"


def _clamped(s: Spelling, low: str, high: str) -> list[str]:
    """C lines that set ``t`` to ``x`` clamped to ``low`` and ``high``, whose results are 0 and infinity; NaN stays."""
    return [
        f"const {s.floats} low = {s.all(low)}, high = {s.all(high)};",
        f"{s.floats} t = {s.choose('x < low', 'low', 'x')};",
        f"t = {s.choose('t > high', 'high', 't')};",
    ]


EXP = ("0.5f", "0.16666666f", "0.041666463f", "0.008333571f", "0.0013935097f", "0.00019739558f")
EXP2 = ("0.6931472f", "0.24022648f", "0.055503596f", "0.009618503f", "0.0013390997f", "0.00015327803f")
LOG = (
    "0.33333313f", "-0.2500001f", "0.20002073f", "-0.16667993f", "0.14220315f", "-0.12406087f", "0.11883792f",
    "-0.11671285f", "0.067501776f",
)  # fmt: skip
TANH = ("-0.3333333f", "0.13333221f", "-0.053948183f", "0.021706948f", "-0.008190253f", "0.0021530152f")
ERF = (
    "0.12837917f", "-0.3761263f", "0.11283626f", "-0.026855731f", "0.005192405f", "-0.00080497697f", "0.0000799665f",
)  # fmt: skip
LOG_ERFC = (
    "0.00017468445f", "-1.1295149f", "-0.6333469f", "-0.10828004f", "0.025119351f", "-0.004171009f", "0.0004344446f",
    "-0.000021092741f",
)  # fmt: skip
SIN = ("-0.16666667f", "0.008333379f", "-0.00019853014f", "0.0000028314842f")
COS = ("0.041666668f", "-0.0013888979f", "0.000024821482f", "-0.00000028821486f")
"""Coefficients, that of the lowest power first, each rounded to float32 before the next ones are fitted."""


def _exp(s: Spelling) -> list[str]:
    f = s.floats
    return [
        *_clamped(s, "-104.0f", "89.0f"),
        f"const {f} k = t * 1.44269504f + {_MAGIC}, m = k - {_MAGIC};",
        f"const {s.bits} n = {s.bits_of('k')} - 0x4b3fff02u;",
        f"const {f} r = (t - m * 0.693359375f) + m * 2.12194440e-4f;",
        f"const {f} p = {_horner('r', EXP)};",
        f"return {_scaled(s, '((p * (r * r) + r) + 1.0f)')};",
    ]


def _exp2(s: Spelling) -> list[str]:
    f = s.floats
    return [
        *_clamped(s, "-151.0f", "129.0f"),
        f"const {f} k = t + {_MAGIC}, r = t - (k - {_MAGIC});",
        f"const {s.bits} n = {s.bits_of('k')} - 0x4b3fff02u;",
        f"const {f} p = {_horner('r', EXP2)};",
        f"return {_scaled(s, '(p * r + 1.0f)')};",
    ]


def _log1p_of_rest(s: Spelling) -> list[str]:
    """C lines that set m and f of ``x = 2**m * (1 + f)``, f in [sqrt(1/2) - 1, sqrt(2) - 1], z = f * f, and p so that
    ``(p * f - 0.5) * z`` is log(1 + f) - f.
    """
    f = s.floats
    return [
        f"const {f} v = {s.choose('x < 1.17549435e-38f', 'x * 8388608.0f', 'x')};",
        f"const {f} less = {s.choose('x < 1.17549435e-38f', s.all('12583062.0f'), s.all('12583039.0f'))};",
        f"const {s.bits} n = {s.bits_of('v')} + 0x4afb0du;",
        f"const {f} m = {s.of_bits('(n >> 23) + 0x4b400000u')} - less;",
        f"const {f} f = {s.of_bits('(n & 0x7fffffu) + 0x3f3504f3u')} - 1.0f, z = f * f;",
        f"const {f} p = {_horner('f', LOG)};",
    ]


def _end_of_log(s: Spelling) -> list[str]:
    """C lines that return ``y`` for positive finite ``x``, the limits at 0 and infinity, and NaN otherwise."""
    outside = s.choose("x == 0.0f", s.all("-INFINITY"), s.all("NAN"))
    return [
        f"const {s.floats} outside = {s.choose('x > 0.0f', 'x', f'({outside})')};",
        f"return {s.choose('(x > 0.0f) & (x < INFINITY)', 'y', 'outside')};",
    ]


def _log(s: Spelling) -> list[str]:
    return [
        *_log1p_of_rest(s),
        f"const {s.floats} low = (p * f - 0.5f) * z - m * 2.12194440e-4f;",
        f"const {s.floats} y = (f + low) + m * 0.693359375f;",
        *_end_of_log(s),
    ]


def _log2(s: Spelling) -> list[str]:
    return [
        *_log1p_of_rest(s),
        f"const {s.floats} low = (p * f - 0.5f) * z;",
        f"const {s.floats} y = ((low * 1.44269504f + f * 0.442695041f) + f) + m;",
        *_end_of_log(s),
    ]


def _absolute(s: Spelling) -> str:
    return f"const {s.floats} a = {s.of_bits(s.bits_of('x') + ' & 0x7fffffffu')};"


def _signed(s: Spelling, y: str) -> str:
    return s.of_bits(f"{s.bits_of(y)} | ({s.bits_of('x')} & 0x80000000u)")


def _tanh(s: Spelling) -> list[str]:
    f = s.floats
    return [
        _absolute(s),
        f"const {f} z = a * a, e = {s.function('exp')}(-2.0f * a);",
        f"const {f} p = {_horner('z', TANH)};",
        f"const {f} small = p * z * a + a, large = 1.0f - 2.0f * e / (1.0f + e);",
        f"const {f} y = {s.choose('a < 0.625f', 'small', 'large')};",
        f"return {_signed(s, 'y')};",
    ]


def _erf(s: Spelling) -> list[str]:
    f = s.floats
    return [
        _absolute(s),
        f"const {f} z = a * a, b = {s.choose('a > 4.0f', s.all('4.0f'), 'a')};",
        f"const {f} p = {_horner('z', ERF)};",
        f"const {f} q = {_horner('b', LOG_ERFC)};",
        f"const {f} small = p * a + a, large = 1.0f - {s.function('exp')}(q);",
        f"const {f} y = {s.choose('a < 0.925f', 'small', 'large')};",
        f"return {_signed(s, 'y')};",
    ]


def _rsqrt(s: Spelling) -> list[str]:
    f = s.floats
    outside = s.choose("x > 0.0f", s.all("0.0f"), s.all("NAN"))
    limit = s.of_bits(f"{s.bits_of('x')} | 0x7f800000u")
    return [
        f"const {f} v = {s.choose('x < 7.88860905e-31f', 'x * 16777216.0f', 'x')}, h = v * 0.5f;",
        f"{f} y = {s.of_bits('0x5f375a86u - (' + s.bits_of('v') + ' >> 1)')};",
        "y = y * (1.5f - h * y * y);",
        "y = y * (1.5f - h * y * y);",
        f"y = {s.of_bits(s.bits_of('y') + ' & 0xfffff000u')};",
        f"const {f} w = y + y, e = 1.0f - 0.5f * h * (w * w);",
        "y = y + y * (e * (0.375f * e + 0.5f));",
        f"y = {s.choose('x < 7.88860905e-31f', 'y * 4096.0f', 'y')};",
        f"const {f} outside = {s.choose('x == 0.0f', limit, f'({outside})')};",
        f"return {s.choose('(x > 0.0f) & (x < INFINITY)', 'y', 'outside')};",
    ]


_PI_HALVES = ("1.5703125f", "4.82559204e-4f", "1.2665987e-6f", "9.89530236e-10f", "2.55795385e-12f", "5.39030295e-15f")
"""pi / 2 in parts of 8 bits, whose products with numbers of 16 bits are exact, and a rest."""
_LARGE_ANGLE = "100000.0f"
"""Beyond it the reduction of an argument to a quarter turn would need more digits of pi."""


def _sin(s: Spelling, turn: int = 0) -> list[str]:
    """C lines of the function sin(x + turn * pi / 2): sine for turn 0, cosine for 1."""
    f, u = s.floats, s.bits
    first, second, third, fourth, fifth, rest = _PI_HALVES
    sign = "((q & 2u) << 30)" + ("" if turn else f" ^ ({s.bits_of('x')} & 0x80000000u)")
    return [
        _absolute(s),
        f"const {f} k = a * 0.636619772f + {_MAGIC}, m = k - {_MAGIC};",
        f"const {u} q = {s.bits_of('k')}{' + 1u' * turn};",
        f"const {f} b = (a - m * {first}) - m * {second};",
        f"const {f} c = b - m * {third}, s = (b - c) - m * {third};",
        f"const {f} d = c - m * {fourth}, t = (c - d) - m * {fourth};",
        f"const {f} g = d - m * {fifth}, u = (d - g) - m * {fifth};",
        f"const {f} r = g + (((s + t) + u) - m * {rest}), z = r * r;",
        f"const {f} p = {_horner('z', SIN)};",
        f"const {f} o = {_horner('z', COS)};",
        f"const {f} sine = r * z * p + r, cosine = (o * z - 0.5f) * z + 1.0f;",
        f"{f} y = {s.choose('(q & 1u) != 0u', 'cosine', 'sine')};",
        f"y = {s.of_bits(s.bits_of('y') + f' ^ {sign}')};",
        *_large_lanes(s, "cos" if turn else "sin"),
        "return y;",
    ]


def _cos(s: Spelling) -> list[str]:
    return _sin(s, 1)


def _large_lanes(s: Spelling, name: str) -> list[str]:
    """C lines that call the library's function for lanes whose ``x`` is too large for argument reduction."""
    call = s.d.functions[name][0]
    if s.lanes == 1:
        return [f"if (a > {_LARGE_ANGLE}) y = {call}(x);"]
    if s.d.family == "c":
        some = " | ".join(f"large[{n}]" for n in range(s.lanes))
        move = f"if (large[n]) to[n] = {call}(from[n]);"
    else:
        some = "any(large.lo | large.hi)" if s.lanes == 16 else "any(large)"
        move = f"if (((int *)&large)[n]) ((float *)&to)[n] = {call}(((float *)&from)[n]);"
    return [
        f"const int{s.lanes} large = a > {_LARGE_ANGLE};",
        f"if ({some}) {{",
        f"  {s.floats} from = x, to = y;",
        f"  for (int n = 0; n < {s.lanes}; ++n)",
        f"    {move}",
        "  y = to;",
        "}",
    ]


_BODIES: dict[str, tuple[tuple[str, ...], str, Callable[[Spelling], list[str]]]] = {
    "exp": ((), "2^n e^r, where x = n ln 2 + r", _exp),
    "exp2": ((), "2^n 2^r, where x = n + r", _exp2),
    "log": ((), "m ln 2 + log(1 + f), where x = 2^m (1 + f)", _log),
    "log2": ((), "m + log(1 + f) / ln 2, where x = 2^m (1 + f)", _log2),
    "tanh": (("exp",), "a polynomial near 0, then 1 - 2 e / (1 + e), where e = exp(-2 a)", _tanh),
    "erf": (("exp",), "a polynomial near 0, then 1 - exp(q), where q = log(1 - erf(a))", _erf),
    "sin": ((), "that of r or its cosine, where a = m pi / 2 + r; s, t and u are what is cut off", _sin),
    "cos": ((), "that of r or its sine, where a = m pi / 2 + r; s, t and u are what is cut off", _cos),
    "rsqrt": ((), "Newton's method, at last from 12 bits of y, whose square is exact", _rsqrt),
}
"""Function -> those of this table that it calls, how it is computed, and the lines of its body, of ``x``."""

VECTOR_FUNCTIONS = frozenset(_BODIES)
