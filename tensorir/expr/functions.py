"""Functions on expressions and whole tensors: where, cast, logic, comparisons, math."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.expr.signatures import Choice, Conversion, Logic, OfOne, OfTwo
from tensorir.expr.whole import elementwise
from tensorir.ir import build
from tensorir.ir.dtypes import dtype_of
from tensorir.ir.tree import Expr


def _of_tensors(function: Callable[..., Expr]) -> Callable[..., Any]:
    """``function`` of elements, extended to whole tensors, for which it returns an elementwise computed tensor."""
    signature = inspect.signature(function)

    @answers()
    @functools.wraps(function)
    def called(*args: object, **options: object) -> object:
        if any(getattr(type(a), "WHOLE", False) for a in (*args, *options.values())):
            given = signature.bind(*args, **options).args
            return elementwise(function, given, function.__name__.strip("_"))
        return function(*args, **options)

    return called


def _of_one(function: Callable[[object], Expr]) -> OfOne:
    return _of_tensors(function)


def _of_two(function: Callable[[object, object], Expr]) -> OfTwo:
    return _of_tensors(function)


def _choice(function: Callable[[object, object, object], Expr]) -> Choice:
    return _of_tensors(function)


def _conversion(function: Callable[[object, object], Expr]) -> Conversion:
    return _of_tensors(function)


def _logic(function: Callable[..., Expr]) -> Logic:
    return _of_tensors(function)


@_choice
def where(cond: object, a: object, b: object) -> Expr:
    """``a`` if ``cond`` is true, else ``b``, in their common type; the other side is not evaluated, so it may be out of
    range. A number as ``cond`` is true unless 0; a Python bool raises DeclarationError ``declare.truth-value``.
    """
    return build.select(_condition(cond), a, b)


@_conversion
def cast(x: object, dtype: object) -> Expr:
    """``x`` converted to ``dtype``: to integers toward zero, to bool by ``!= 0``."""
    return build.converted(x, dtype_of(dtype).name)


@_logic
def all_(*conds: object) -> Expr:
    """Logical "and" of all conditions, numbers true unless 0; true without any. A Python bool raises
    ``declare.truth-value``.
    """
    out = build.as_expr(True)
    for c in conds:
        out = build.binary("and", out, _condition(c))
    return out


@_logic
def any_(*conds: object) -> Expr:
    """Logical "or" of all conditions, numbers true unless 0; false without any. A Python bool raises
    ``declare.truth-value``.
    """
    out = build.as_expr(False)
    for c in conds:
        out = build.binary("or", out, _condition(c))
    return out


@_of_two
def equal(a: object, b: object) -> Expr:
    """``a == b``."""
    return build.binary("==", a, b)


@_of_two
def not_equal(a: object, b: object) -> Expr:
    """``a != b``."""
    return build.binary("!=", a, b)


@_of_two
def minimum(a: object, b: object) -> Expr:
    """The smaller of two values; NaN if either is NaN, as ``numpy.minimum``."""
    return build.binary("min", a, b)


@_of_two
def maximum(a: object, b: object) -> Expr:
    """The larger of two values; NaN if either is NaN, as ``numpy.maximum``."""
    return build.binary("max", a, b)


@_conversion
def bitcast(x: object, dtype: object) -> Expr:
    """The bits of ``x`` read as a value of ``dtype``, of the same width: ``bitcast(x, "uint32")`` of a float32 has its
    sign and exponent.

    Raises DeclarationError ``declare.bitcast``.
    """
    return build.bitcast(x, dtype_of(dtype).name)


@_of_two
def mulhi(a: object, b: object) -> Expr:
    """The upper half of the bits of the product of two integers in their common type, computed without overflow:
    ``(a * b) >> 32`` of uint32. Indices count as int32.

    Raises DeclarationError ``declare.bitwise`` for operands that are no integers.
    """
    return build.mulhi(a, b)


def _condition(cond: Any) -> Expr:
    if isinstance(cond, bool):
        raise refuse(
            DeclarationError,
            "declare.truth-value",
            "a condition is a plain Python bool, known while the computation is declared",
            hint="a == b or tir.equal(a, b) for `is`; Python's own if for what is known now",
        )
    return build.cast(cond, "bool")  # a number is a condition as in NumPy: where it is not 0


@_of_one
def exp(x: object) -> Expr:
    """e to the power of ``x``; integers become float64, indices and those below 32 bits float32."""
    return build.call("exp", x)


@_of_one
def exp2(x: object) -> Expr:
    """2 to the power of ``x``; integers become float64, indices and those below 32 bits float32."""
    return build.call("exp2", x)


@_of_one
def log(x: object) -> Expr:
    """The natural logarithm; integers become float64, indices and those below 32 bits float32."""
    return build.call("log", x)


@_of_one
def log2(x: object) -> Expr:
    """The logarithm to base 2; integers become float64, indices and those below 32 bits float32."""
    return build.call("log2", x)


@_of_one
def sqrt(x: object) -> Expr:
    """The square root; integers become float64, indices and those below 32 bits float32."""
    return build.call("sqrt", x)


@_of_one
def rsqrt(x: object) -> Expr:
    """``1 / sqrt(x)``; integers become float64, indices and those below 32 bits float32."""
    return build.call("rsqrt", x)


@_of_one
def sin(x: object) -> Expr:
    """The sine of ``x`` radians; integers become float64, indices and those below 32 bits float32."""
    return build.call("sin", x)


@_of_one
def cos(x: object) -> Expr:
    """The cosine of ``x`` radians; integers become float64, indices and those below 32 bits float32."""
    return build.call("cos", x)


@_of_one
def tanh(x: object) -> Expr:
    """The hyperbolic tangent; integers become float64, indices and those below 32 bits float32."""
    return build.call("tanh", x)


@_of_one
def erf(x: object) -> Expr:
    """The error function; integers become float64, indices and those below 32 bits float32."""
    return build.call("erf", x)


@_of_one
def floor(x: object) -> Expr:
    """The largest whole number <= ``x``, a float; integers become float64, indices and those below 32 bits float32."""
    return build.call("floor", x)


@_of_one
def ceil(x: object) -> Expr:
    """The smallest whole number >= ``x``, a float; integers become float64, indices and those below 32 bits float32."""
    return build.call("ceil", x)


@_of_one
def round(x: object) -> Expr:
    """The nearest whole number, ties to even, a float; integers become float64, indices and those below 32 bits
    float32.
    """
    return build.call("round", x)


@_of_one
def abs(x: object) -> Expr:
    """The absolute value; integers stay integers."""
    return build.call("abs", x)


@_of_two
def pow(a: object, b: object) -> Expr:
    """``a`` to the power of ``b``; integers become float64, indices and those below 32 bits float32."""
    return build.call("pow", a, b)
