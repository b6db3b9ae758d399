"""Elementwise functions by their NumPy names, to which operators and NumPy or torch calls are dispatched."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_int
from tensorir.ir.build import (
    as_expr,
    binary,
    bitwise,
    call,
    cast,
    converted,
    divide,
    invert,
    power,
    select,
    shift,
    unary,
)
from tensorir.ir.dtypes import dtype_of, is_float
from tensorir.ir.operators import no_function, too_many
from tensorir.ir.tree import Expr


@answers()
def element(name: str, args: tuple[object, ...], options: Mapping[str, object]) -> Any:
    """Apply the elementwise function ``name`` of NumPy or torch to ``args``; the result is an Expr, or two for divmod.

    Raises DeclarationTypeError ``declare.function`` for unsupported functions and arguments.
    """
    function = ELEMENTS.get(name)
    if function is None:
        raise no_function(name, "element", name)
    try:
        return function(*args, **options)
    except TypeError as e:
        if isinstance(e, TensorIRError):
            raise
        try:
            inspect.signature(function).bind(*args, **options)
        except TypeError:
            raise too_many(name, args, dict(options)) from None
        raise


def _whole(fn: str) -> Callable[[Any], Expr]:
    """Function that applies ``fn`` (floor, ceil or round) to a float and leaves an integer unchanged."""

    def function(x: Any) -> Expr:
        e = as_expr(x)
        return call(fn, e) if is_float(e.dtype) else e

    return function


def _math(fn: str) -> Callable[[Any], Expr]:
    return lambda x: call(fn, x)


def _condition(x: Any) -> Expr:
    return cast(x, "bool")


def _sign(x: Any) -> Expr:
    e = as_expr(x)
    if not _signed(e):
        return binary("min", e, 1)
    zero = 0 if is_float(e.dtype) else e  # of -0 too, and NaN stays
    return select(binary("<", 0, e), 1, select(binary("<", e, 0), -1, select(binary("==", e, 0), zero, e)))


def _signed(e: Expr) -> bool:
    return not e.dtype.startswith(("uint", "bool"))


def _round(x: Any, decimals: int = 0) -> Expr:
    """``numpy.round``, ``decimals`` from -30 to 30; negative ones of integers raise ``declare.function``."""
    e, n = as_expr(x), need_int("decimals", decimals, -30, 30)
    if n == 0 or (n > 0 and not is_float(e.dtype)):
        return _whole("round")(e)
    if not is_float(e.dtype):
        raise refuse(DeclarationError, "declare.function", f"an integer is rounded to {-n} digits",
                     hint=f"x // {10**-n} * {10**-n} rounds down")  # fmt: skip
    scale = 10 ** abs(n)
    first, then = ("*", "/") if n > 0 else ("/", "*")
    return binary(then, call("round", binary(first, e, scale)), scale)


def _clip(x: Any, min: Any = None, max: Any = None) -> Expr:
    """``numpy.clip``: ``x`` limited to [min, max]; None for no limit."""
    low = x if min is None else binary("max", x, min)
    return as_expr(low if max is None else binary("min", low, max))


def _logic(op: str) -> Callable[[Any, Any], Expr]:
    return lambda a, b: binary(op, _condition(a), _condition(b))


def _absolute(x: Any) -> Expr:
    e = as_expr(x)
    return call("abs", e) if _signed(e) else e


def _sigmoid(x: Any) -> Expr:
    return binary("/", 1, binary("+", call("exp", unary("-", x)), 1))


ELEMENTS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: binary("+", a, b),
    "subtract": lambda a, b: binary("-", a, b),
    "multiply": lambda a, b: binary("*", a, b),
    "divide": lambda a, b: binary("/", a, b),
    "floor_divide": lambda a, b: divide("//", a, b),
    "remainder": lambda a, b: divide("%", a, b),
    "divmod": lambda a, b: (divide("//", a, b), divide("%", a, b)),
    "power": power,
    "square": lambda x: binary("*", x, x),
    "reciprocal": lambda x: power(x, -1),
    "negative": lambda x: unary("-", x),
    "positive": as_expr,
    "absolute": _absolute,
    "fabs": _absolute,
    "sign": _sign,
    "rint": _whole("round"),
    "round": _round,
    "floor": _whole("floor"),
    "ceil": _whole("ceil"),
    "trunc": lambda x: select(binary("<", x, 0), _whole("ceil")(x), _whole("floor")(x)),
    **{fn: _math(fn) for fn in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos")},
    "log10": lambda x: binary("*", call("log2", x), 0.3010299956639812),
    "tan": lambda x: binary("/", call("sin", x), call("cos", x)),
    "expit": _sigmoid,
    "maximum": lambda a, b: binary("max", a, b),
    "minimum": lambda a, b: binary("min", a, b),
    "clip": _clip,
    "less": lambda a, b: binary("<", a, b),
    "less_equal": lambda a, b: binary("<=", a, b),
    "greater": lambda a, b: binary("<", b, a),
    "greater_equal": lambda a, b: binary("<=", b, a),
    "equal": lambda a, b: binary("==", a, b),
    "not_equal": lambda a, b: binary("!=", a, b),
    "isnan": lambda x: binary("!=", x, x),
    "logical_and": _logic("and"),
    "logical_or": _logic("or"),
    "logical_xor": _logic("!="),
    "logical_not": lambda x: unary("not", _condition(x)),
    "where": lambda condition, x, y: select(_condition(condition), x, y),
    "bitwise_and": lambda a, b: bitwise("&", a, b),
    "bitwise_or": lambda a, b: bitwise("|", a, b),
    "bitwise_xor": lambda a, b: bitwise("^", a, b),
    "left_shift": lambda a, b: shift("<<", a, b),
    "right_shift": lambda a, b: shift(">>", a, b),
    "invert": invert,
    "astype": lambda x, dtype: converted(x, dtype_of(dtype).name),
}
"""Name of a function of NumPy or torch -> function from elements to the expression of its result, two for divmod."""

TORCH = {"pow": "power", "abs": "absolute", "neg": "negative", "mul": "multiply", "sub": "subtract", "div": "divide",
         "true_divide": "divide", "clamp": "clip", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
         "gt": "greater", "ge": "greater_equal", "sigmoid": "expit", "max": "maximum", "min": "minimum"}  # fmt: skip
"""torch's name of a function -> NumPy's."""

ELEMENTS.update({name: ELEMENTS[same] for name, same in TORCH.items()})
ELEMENTS["relu"] = lambda x: binary("max", x, 0)
ELEMENTS["silu"] = lambda x: binary("*", x, _sigmoid(x))
