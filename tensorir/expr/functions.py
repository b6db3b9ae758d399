"""Functions on expressions: choice, casts, logic, comparisons by name, and the math table."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.expr.whole import elementwise
from tensorir.ir import build
from tensorir.ir.dtypes import dtype_of
from tensorir.ir.tree import Expr

F = TypeVar("F", bound=Callable[..., Any])


def _of_tensors(function: F) -> F:
    """``function`` of elements, and element by element of whole tensors."""

    @answers()
    @functools.wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        if any(getattr(type(a), "WHOLE", False) for a in args):
            return elementwise(lambda *given: function(*given, **options), args, function.__name__.strip("_"))
        return function(*args, **options)

    return called  # type: ignore[return-value]


@_of_tensors
def where(cond: object, a: object, b: object) -> Expr:
    """``a`` where ``cond`` holds, else ``b``; the other side is not evaluated, so it may be out of range."""
    return build.select(_condition(cond), a, b)


@_of_tensors
def cast(x: object, dtype: object) -> Expr:
    """``x`` converted to ``dtype``: to integers toward zero, to bool by ``!= 0``."""
    return build.converted(x, dtype_of(dtype).name)


@_of_tensors
def all_(*conds: object) -> Expr:
    """Whether every condition holds."""
    out = build.as_expr(True)
    for c in conds:
        out = build.binary("and", out, _condition(c))
    return out


@_of_tensors
def any_(*conds: object) -> Expr:
    """Whether some condition holds."""
    out = build.as_expr(False)
    for c in conds:
        out = build.binary("or", out, _condition(c))
    return out


@_of_tensors
def equal(a: object, b: object) -> Expr:
    """``a == b``."""
    return build.binary("==", a, b)


@_of_tensors
def not_equal(a: object, b: object) -> Expr:
    """``a != b``."""
    return build.binary("!=", a, b)


@_of_tensors
def minimum(a: object, b: object) -> Expr:
    """The smaller of two values, NaN where one of them is, as ``numpy.minimum``."""
    return build.binary("min", a, b)


@_of_tensors
def maximum(a: object, b: object) -> Expr:
    """The larger of two values, NaN where one of them is, as ``numpy.maximum``."""
    return build.binary("max", a, b)


@_of_tensors
def bitcast(x: object, dtype: object) -> Expr:
    """The bits of ``x`` as a ``dtype`` of as many: ``bitcast(x, "uint32")`` of a float32 has its sign and exponent.

    Raises DeclarationError ``declare.bitcast``.
    """
    return build.bitcast(x, dtype_of(dtype).name)


@_of_tensors
def mulhi(a: object, b: object) -> Expr:
    """The upper half of the bits of the product of two integers: ``(a * b) >> 32`` of uint32, with nothing cut off.

    Raises DeclarationError ``declare.bitwise``.
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


def _math(name: str) -> Callable[..., Expr]:
    def function(*args: Any) -> Expr:
        return build.call(name, *args)

    function.__name__ = name
    function.__doc__ = f"``{name}`` elementwise; integers are converted to float first (``abs`` keeps them)."
    return function


exp, log, sqrt, rsqrt, tanh, erf, sin, cos, floor, ceil, round, pow, exp2, log2, abs = (
    _of_tensors(_math(n))
    for n in (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "erf",
        "sin",
        "cos",
        "floor",
        "ceil",
        "round",
        "pow",
        "exp2",
        "log2",
        "abs",
    )
)
