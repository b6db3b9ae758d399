"""Element types: sizes, kinds, ranges, and promotion as NumPy's (NEP 50)."""

from __future__ import annotations

import functools
import math
import struct
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import meant
from tensorir.errors.needs import shown


@dataclass(frozen=True)
class DType:
    """An element type. kind: "f" float, "i" signed, "u" unsigned, "b" bool

    digits: significand bits of a float, the implicit leading one included: integers of so many bits are exact
    numpy:  its name in NumPy or ml_dtypes, if different
    """

    name: str
    kind: str
    bits: int
    digits: int = 0
    numpy: str = ""

    @property
    def widened(self) -> bool:
        """True for storage-only floats, which compute in float32."""
        return self.kind == "f" and self.bits < 32

    @property
    def normal(self) -> float:
        """Least positive normal number of a float type."""
        return float(2.0 ** (2 - 2 ** (self.bits - self.digits - 1)))

    @property
    def largest(self) -> float:
        """Largest finite number of a float type."""
        if self.name == "float8_e4m3":
            return 448.0
        return float((2 - Fraction(2) ** (1 - self.digits)) * Fraction(2) ** (2 ** (self.bits - self.digits - 1) - 1))

    @property
    def low(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def high(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - (self.kind == "i"))) - 1


DTYPES = {
    d.name: d
    for d in (
        *(DType(f"float{n}", "f", n, digits) for n, digits in ((64, 53), (32, 24), (16, 11))),
        DType("bfloat16", "f", 16, 8),
        # Of the Open Compute Project (OFP8): e4m3 has no infinities, 448 is its largest number. ml_dtypes' own
        # "float8_e4m3" is another, with infinities.
        DType("float8_e4m3", "f", 8, 4, "float8_e4m3fn"),
        DType("float8_e5m2", "f", 8, 3),
        *(DType(f"int{n}", "i", n) for n in (8, 16, 32, 64)),
        *(DType(f"uint{n}", "u", n) for n in (8, 16, 32, 64)),
        DType("bool", "b", 8),
        # Axes and plain Python integers: takes the type of whatever it meets, int32 when it meets nothing.
        DType("index", "i", 32),
    )
}


WIDENED = frozenset(d.name for d in DTYPES.values() if d.widened)
"""Types of memory: values are widened to float32 when they are loaded, and rounded when they are stored."""

SHORT_NAMES = {
    **{f"{short}{n}": f"float{n}" for short in ("f", "fp") for n in (16, 32, 64)},
    **{f"{short}{n}": f"{whole}{n}" for short, whole in (("i", "int"), ("s", "int"), ("u", "uint")) for n in (16, 32)},
    "bf16": "bfloat16", "e4m3": "float8_e4m3", "e5m2": "float8_e5m2", "fp8_e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2", "s8": "int8", "i64": "int64", "u64": "uint64",
    "boolean": "bool",
}  # fmt: skip
"""Name of a dtype in other tools -> ours, unless it means something else in NumPy: its "i8" has 8 bytes."""

_BY_NUMPY = {d.numpy or d.name: d.name for d in DTYPES.values()}


def from_numpy(name: str) -> str | None:
    """Our name of a NumPy or ml_dtypes dtype; None if kernels do not support it."""
    return _BY_NUMPY.get(name)


def dtype_of(given: object) -> DType:
    """The DType that ``given`` names: one of ours, whatever ``numpy.dtype`` takes (a type, "f4", "half", a type of
    ml_dtypes), or another library's by its name (``torch.float32``).

    As in NumPy ``float`` is float64 and ``int`` is int64. Raises DeclarationError ``declare.dtype``.
    """
    word = given.lower() if isinstance(given, str) else ""
    found = DTYPES.get(SHORT_NAMES.get(word, word))
    found = found or DTYPES.get(from_numpy(_numpy_name(given)) or "")
    if found is None or found.name == "index":
        word = given if isinstance(given, str) else given.__name__ if isinstance(given, type) else shown(given)
        hint = meant("dtype", word, [n for n in DTYPES if n != "index"], SHORT_NAMES)
        raise refuse(DeclarationError, "declare.dtype", f"dtype {shown(given)} is not known", hint=hint)
    return found


def _numpy_name(given: object) -> str:
    """Name of a NumPy or ml_dtypes dtype; "" for structured, foreign-endian or other objects."""
    if given is None:
        return ""
    if isinstance(given, str) and given in _BY_NUMPY:  # NumPy knows names of ml_dtypes only once that is imported
        return given
    if type(given).__module__.partition(".")[0] == "torch":
        return str(given).removeprefix("torch.")
    import numpy as np

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about names that NumPy is giving up
            kind: np.dtype[Any] = np.dtype(given)  # type: ignore[call-overload]
    except Exception:  # whatever an object with a dtype of its own raises
        return ""
    return str(kind.name) if kind.isnative and kind.subdtype is None and kind.names is None else ""


def is_float(name: str) -> bool:
    """True for float dtypes."""
    return DTYPES[name].kind == "f"


def keeps_zero(old: str, new: str) -> bool:
    """True if a conversion maps 0 to 0 also in the prime field of exact checks, where float-to-integer conversions and
    those from or to bool are opaque.
    """
    return (is_float(new) or not is_float(old)) and (new == "bool") == (old == "bool")


def rounded(value: int | float | Fraction, dtype: str) -> float:
    """``value`` rounded to nearest even as a constant of ``dtype``; inf if too large. Fractions, of which algorithms
    are made, keep float32 precision for narrow types, as these compute in float32.
    """
    kind = DTYPES["float32" if isinstance(value, Fraction) and DTYPES[dtype].widened else dtype]
    if value == 0 or (isinstance(value, float) and (kind.bits == 64 or not math.isfinite(value))):
        return float(value)
    if isinstance(value, float) and kind.name == "float32":  # a constant tensor may have many
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    exact = abs(Fraction(value))
    leading = exact.numerator.bit_length() - exact.denominator.bit_length()
    leading -= exact < Fraction(2) ** leading
    step = Fraction(2) ** (max(leading, math.frexp(kind.normal)[1] - 1) - kind.digits + 1)
    near = round(exact / step) * step
    return math.copysign(math.inf if near > kind.largest else float(near), -1 if value < 0 else 1)


@functools.cache
def promote(a: str, b: str) -> str:
    """Result dtype of ``a op b``, as NumPy's result_type; ``index`` is weak."""
    if a == b:
        return a
    x, y = DTYPES[a], DTYPES[b]
    if a == "index" or b == "index":
        other = y if a == "index" else x
        return "index" if other.kind == "b" else other.name
    if x.kind == "b" or y.kind == "b":
        return y.name if x.kind == "b" else x.name
    if x.kind == "f" and y.kind == "f":
        if x.bits == y.bits or max(x.bits, y.bits) == 16:
            return "float32"  # float16 with bfloat16; most pairs with 8 bits NumPy refuses
        return x.name if x.bits > y.bits else y.name
    if x.kind == "f" or y.kind == "f":
        f, i = (x, y) if x.kind == "f" else (y, x)
        if f.name == "bfloat16" or (f.bits == 8 and i.bits == 8):
            return f.name  # as ml_dtypes
        needed = 16 if i.bits <= 8 else 32 if i.bits <= 16 else 64
        return f.name if f.bits >= needed else f"float{needed}"
    if x.kind == y.kind:
        return x.name if x.bits > y.bits else y.name
    u, i = (x, y) if x.kind == "u" else (y, x)
    return i.name if i.bits > u.bits else f"int{u.bits * 2}" if u.bits < 64 else "float64"
