"""Conditions of lanes as masks, and choices by them, in OpenCL C and in C with vector extensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorir.ir.dtypes import DTYPES, WIDENED
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Binary, Broadcast, Expr, Select, Unary

if TYPE_CHECKING:
    from tensorir.codegen.expressions import Expressions


def bits_of(dtype: str) -> int:
    """Width in bits of a ``dtype`` element inside vectors: 32 for narrow floats, 64 for indices."""
    return DTYPES["float32" if dtype in WIDENED else "int64" if dtype == "index" else dtype].bits


def choice(e: Select, out: Expressions) -> str:
    """C text of a Select on vectors, ``mask ? a : b`` per lane; masks are signed integers as wide as the result's
    lanes.
    """
    chosen = mask(e.cond, bits_of(e.dtype), out)
    return out.chosen(e.dtype, lanes_of(e), chosen, out.number_of(e.a, 3), out.number_of(e.b, 3))


def mask(e: Expr, bits: int, out: Expressions) -> str:
    """C text of a vector condition as signed integers of ``bits`` bits per lane: -1 true, 0 false."""
    lanes = lanes_of(e)
    match e:
        case Binary(op="and" | "or"):
            return f"({mask(e.a, bits, out)} {'&' if e.op == 'and' else '|'} {mask(e.b, bits, out)})"
        case Unary(op="not"):
            return f"~{mask(e.a, bits, out)}"
        case Broadcast():
            return out.splat(f"int{bits}", lanes, f"-({out(e.value)})")
        case Binary() if e.a.dtype == "bool":
            return f"({mask(e.a, bits, out)} {e.op} {mask(e.b, bits, out)})"
        case Binary():
            text = f"({out.binary(e, 0)})"
            own = bits_of(e.a.dtype)
            return text if own == bits else out.converted(lanes, f"int{bits}", f"int{own}", text)
    raise AssertionError(f"{type(e).__name__} is no mask")
