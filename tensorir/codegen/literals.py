"""C literals for constants."""

from __future__ import annotations

import math
import struct

from tensorir.codegen.dialect import Dialect
from tensorir.ir.dtypes import DTYPES, rounded
from tensorir.ir.tree import Const


def literal(e: Const, d: Dialect) -> str:
    """C literal of the constant's value and type, or an expression for infinities and NaN."""
    if DTYPES[e.dtype].kind == "f":
        value = rounded(e.value, e.dtype)
        kind = "float64" if e.dtype == "float64" else "float32"
        if math.isinf(value):
            return ("-" if value < 0 else "") + d.infinity[kind]
        if math.isnan(value):
            return f"({d.infinity[kind]} - {d.infinity[kind]})"
        text = repr(float(value)) if kind == "float64" else _float32(float(value))
        return text if kind == "float64" else f"{text}f"
    if e.dtype == "bool":
        return "1" if e.value else "0"
    value = int(e.value)
    if value == -(2**31) and DTYPES[e.dtype].bits == 32:
        return "(-2147483647 - 1)"
    if value == -(2**63):
        return f"({literal(Const(value + 1, e.dtype), d)} - 1)"
    unsigned = "u" if e.dtype in ("uint32", "uint64") else ""
    if DTYPES[e.dtype].bits == 64:
        return d.whole.format(value=value, unsigned=unsigned, UNSIGNED=unsigned.upper())
    return f"{value}{unsigned}"


def _float32(value: float) -> str:
    """The shortest decimal text that reads back as the same float32."""
    exact = struct.unpack("f", struct.pack("f", value))[0] if abs(value) < 3.5e38 else value
    for digits in range(1, 18):
        text = f"{exact:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == exact:
            return repr(float(text))
    return repr(exact)
