"""Constructors of expressions: type promotion as NumPy's, constant folding, math functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.habits import habit
from tensorir.errors.needs import shown
from tensorir.ir.dtypes import DTYPES, is_float, promote, rounded
from tensorir.ir.identities import identity
from tensorir.ir.shared import once
from tensorir.ir.structure import same

if TYPE_CHECKING:
    from tensorir.ir.tree import Const, Expr, Var

COMPARE = {"<", "<=", "==", "!="}
LOGIC = {"and", "or"}
BITS = {"&": "and", "|": "or", "^": "!="}
"""Bitwise operator -> operator that has its meaning on bools."""
SHIFTS = {"<<", ">>"}
MATH = {
    "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "tanh": 1, "erf": 1, "sin": 1, "cos": 1, "abs": 1, "floor": 1,
    "ceil": 1, "round": 1, "pow": 2, "exp2": 1, "log2": 1,
}  # fmt: skip
"""Name -> number of arguments. ``floor`` … on floats only; ``abs`` keeps integer types."""


def as_expr(x: Any, like: str | None = None) -> Expr:
    """``x`` as an expression: expressions, numbers of Python and NumPy, Fractions, tensors and arrays of rank 0.

    Python numbers adopt the type ``like`` where NumPy allows it; without it ints are indices, floats float32. Next to
    integers floats are float64. Raises DeclarationError: ``declare.whole`` and ``declare.captured-array`` for arrays,
    ``declare.constant-range`` for numbers that do not fit, ``declare.value`` for other objects.
    """
    if isinstance(x, _t.Expr):
        return x
    if hasattr(x, "as_expr"):
        return x.as_expr()  # type: ignore[no-any-return]
    if isinstance(x, bool):
        return _t.Const(x, "bool")
    if isinstance(x, int):
        return _fitting(x, like if like and DTYPES[like].kind in "fiu" else "index")
    if isinstance(x, float):
        float_kind = like if like and is_float(like) else "float32" if like in (None, "index", "bool") else "float64"
        return _t.Const(x, float_kind) if math.isnan(x) else _fitting(x, float_kind)
    if isinstance(x, Fraction):
        return _t.Const(x, like if like and is_float(like) else "float32")
    kind = getattr(getattr(x, "dtype", None), "name", None)
    if kind in DTYPES and getattr(x, "shape", None) == ():
        return _t.Const(x.item(), kind)
    if isinstance(shape := getattr(x, "shape", None), tuple):
        if getattr(x, "WHOLE", False) and shape == ():
            return x[()]  # type: ignore[no-any-return]
        if getattr(x, "WHOLE", False):
            index = ", ".join("ijklmnpq"[: len(shape)])
            message = f"{x.name} is a whole tensor of shape {shape} where one element of it is meant"
            raise refuse(DeclarationError, "declare.whole", message, hint=f"{x.name}[{index}]")
        if shape:
            raise refuse(
                DeclarationError,
                "declare.captured-array",
                f"the computation uses an array of shape {shape} directly",
                hint="declare it as tir.placeholder(shape, dtype) or tir.constant(array)",
            )
    sort = kind or type(x).__name__
    message = f"cannot use {shown(x)} ({type(x).__name__}) in a computation"
    raise refuse(DeclarationError, "declare.value", message, hint=habit("dtype", sort) or "")


def as_value(x: object) -> Expr:
    """``x`` as an element's value: an expression like ``as_expr``'s, but index arithmetic is converted to int32.

    Raises ``declare.constant-range`` if one of its constants exceeds int32.
    """
    e = as_expr(x)
    if e.dtype != "index":
        return e
    for c in (n for n in _constants(e) if n.dtype == "index"):
        _fitting(c.value, "int32")
    return cast(e, "int32")


def converted(x: object, dtype: str) -> Expr:
    """``x`` explicitly converted to ``dtype``; constant floats are cut toward zero to integers.

    Raises DeclarationError ``declare.constant-range`` for a plain number that ``dtype`` cannot represent.
    """
    e = as_expr(x, dtype)
    if isinstance(e, _t.Const) and is_float(e.dtype) and DTYPES[dtype].kind in "iu":
        if not math.isfinite(e.value):
            raise refuse(DeclarationError, "declare.constant-range", f"{e.value} does not fit {dtype}")
        _fitting(int(e.value), dtype)
    return cast(e, dtype)


def _constants(e: Expr) -> Iterator[Const]:
    """Constants in an expression, in order."""
    todo: list[Expr] = [e]
    seen: set[Expr] = set()
    while todo:
        x = todo.pop()
        if isinstance(x, _t.Const):
            yield x
        elif x not in seen:
            seen.add(x)
            todo += (c for c in x.backwards() if isinstance(c, _t.Expr))


def _fitting(x: int | float, dtype: str) -> Const:
    """A plain number as a Const of ``dtype``; raises ``declare.constant-range`` if out of range."""
    kind = DTYPES["int64" if dtype == "index" else dtype]
    whole = kind.kind != "f"
    infinite = isinstance(x, float) and math.isinf(x) and not whole and kind.name != "float8_e4m3"
    if infinite or (kind.low <= x <= kind.high if whole else math.isfinite(rounded(x, dtype))):
        return _t.Const(x, dtype)
    low, high = (f"{-kind.largest:g}", f"{kind.largest:g}") if kind.kind == "f" else (kind.low, kind.high)
    wider = "tir.cast(…, 'float32') of what it meets" if kind.widened else "a smaller number, or infinity"
    raise refuse(DeclarationError, "declare.constant-range", f"{shown(x)} does not fit {kind.name} ({low} to {high})",
                 hint=wider if kind.kind == "f" else "tir.cast(…, 'int64') of what it meets, or a float")  # fmt: skip


def as_int(e: Expr) -> int:
    """Value of a constant extent as int; others raise DeclarationError, ``dim.constant`` if they depend on dims."""
    if isinstance(e, _t.Const):
        return int(e.value)
    raise no_constant(e)


def no_constant(e: Expr) -> TensorIRError:
    """The error for an extent that is not constant: ``dim.constant`` with dims, else ``declare.symbolic-extent``."""
    if dims := _dims(e):
        names = ", ".join(v.name for v in dims)
        message = f"a constant extent is needed here, and this one depends on {names}, known at launch only"
        hint = f"an int in place of {names}: a kernel of its own for each extent, tir.tune_shapes for several"
        return refuse(DeclarationError, "dim.constant", message, hint=hint)
    return refuse(
        DeclarationError, "declare.symbolic-extent", "this place needs a constant extent", hint="use an integer"
    )


@once
def is_extent(e: Expr) -> bool:
    """True if an expression consists of dims and numbers only."""
    if isinstance(e, _t.Binary):
        return is_extent(e.a) and is_extent(e.b) and bool(_dims(e))
    return isinstance(e, _t.Const) or (isinstance(e, _t.Var) and e.bounds is not None)


def is_comparison(e: Expr) -> bool:
    """True for ``a == b`` or ``a != b``."""
    return isinstance(e, _t.Binary) and e.op in ("==", "!=")


def truth(e: Expr) -> bool | None:
    """True or False if a condition is already decided at declaration (constants, identical operands, equal extents),
    else None.
    """
    if isinstance(e, _t.Const):
        return bool(e.value) if e.dtype == "bool" else None
    if isinstance(e, _t.Binary) and is_comparison(e):
        return same(e.a, e.b) == (e.op == "==") if is_extent(e.a) and is_extent(e.b) else e.truth
    return None


def _dims(e: Expr) -> list[Var]:
    found: dict[Var, None] = {}
    todo: list[Expr] = [e]
    seen: set[Expr] = set()
    while todo:
        x = todo.pop()
        if isinstance(x, _t.Var):
            if x.bounds is not None:
                found[x] = None
        elif x not in seen:
            seen.add(x)
            todo += (c for c in x.backwards() if isinstance(c, _t.Expr))
    return list(found)


def const(value: object, dtype: str = "index") -> Const:
    """A Const of ``value``."""
    return _t.Const(value, dtype)


def unary(op: str, a: object) -> Expr:
    """``-a``, ``not a`` or ``~a``, folded for constants; ``-`` of a bool raises ``declare.bool-difference``."""
    x = as_expr(a)
    if op == "-" and x.dtype == "bool":
        raise _no_difference("-x")
    if op == "~" and x.dtype == "index":
        return binary("-", -1, x)
    if isinstance(x, _t.Const):
        if op == "not":
            return _t.Const(not x.value, "bool")
        if op == "-" and x.value == 0 and is_float(x.dtype):
            return _t.Const(-float(x.value), x.dtype)
        return _t.Const(_wrap(-x.value if op == "-" else ~x.value, x.dtype), x.dtype)
    return _t.Unary(op, x, "bool" if op == "not" else x.dtype)


def invert(a: object) -> Expr:
    """``~a`` as the user writes it: logical not of a bool, bitwise of an integer; others raise ``declare.bitwise``."""
    x = as_expr(a)
    if x.dtype != "bool" and DTYPES[x.dtype].kind not in "iu":
        raise _no_bits(f"~ of {x.dtype}", x)
    return unary("not" if x.dtype == "bool" else "~", x)


def bitwise(op: str, a: object, b: object) -> Expr:
    """``a & b``, ``a | b`` or ``a ^ b`` as the user writes it: logical on bools, bitwise on integers, mixtures refused.

    Raises DeclarationError ``declare.bitwise``.
    """
    x, y = _pair(a, b)
    if x.dtype == y.dtype == "bool":
        return binary(BITS[op], x, y)
    _need_integers(op, x, y)
    return _mask(x, y) if op == "&" and x.dtype == y.dtype == "index" else binary(op, x, y)


def shift(op: str, a: object, b: object) -> Expr:
    """``a << b`` or ``a >> b`` as the user writes it, with NumPy's meaning: by as many bits as the type has or more, or
    by a negative number, gives 0, or -1 for what is negative and shifted to the right.

    A constant number of bits that does that is refused (``declare.shift``). Axes are shifted by constants as indices,
    and by anything else as int32. Raises DeclarationError ``declare.bitwise``.
    """
    x, y = _pair(a, b)
    _need_integers(op, x, y)
    kind = promote(x.dtype, y.dtype)
    bits = DTYPES[kind].bits
    if isinstance(y, _t.Const):
        if not 0 <= y.value < bits:
            message = f"{op} {y.value}: a shift of {'an index' if kind == 'index' else kind} is by 0 to {bits - 1} bits"
            raise refuse(DeclarationError, "declare.shift", message, hint=_instead(op, y.value, kind))
        if kind == "index":
            return binary("*" if op == "<<" else "//", x, 1 << y.value)
    elif kind == "index":
        x, y = cast(x, "int32"), cast(y, "int32")
    elif y.dtype == "index" and bits < 32:  # more than the type holds is still too many
        y = binary("min", binary("max", y, -1 if DTYPES[kind].kind == "i" else 0), bits)
    return binary(op, x, y)


def _instead(op: str, by: int, kind: str) -> str:
    if by < 0:
        return f"{'>>' if op == '<<' else '<<'} {-by}"
    return "tir.cast(…, 'int64') of what is shifted" if DTYPES[kind].bits < 64 else "0, which is what is left"


def _mask(x: Expr, y: Expr) -> Expr:
    """``x & y`` of indices, as a remainder where a constant keeps or clears the lowest bits, for range analysis."""
    for c, other in ((x, y), (y, x)):
        if isinstance(c, _t.Const):
            n = c.value
            if n >= 0 and n & (n + 1) == 0:
                return binary("%", other, n + 1)
            if n < 0 and -n & (-n - 1) == 0:
                return binary("-", other, binary("%", other, -n))
    return binary("&", x, y)


def _need_integers(op: str, x: Expr, y: Expr) -> None:
    kinds = {DTYPES[x.dtype].kind, DTYPES[y.dtype].kind}
    if not kinds <= {"i", "u"} or is_float(promote(x.dtype, y.dtype)):
        what = f"{_said(x)} {op} {_said(y)}" if op != "mulhi" else f"mulhi of {_said(x)} and {_said(y)}"
        raise _no_bits(what, x if is_float(x.dtype) else y)


def _said(x: Expr) -> str:
    return "an index" if x.dtype == "index" else x.dtype


def _no_bits(what: str, culprit: Expr) -> TensorIRError:
    kind = DTYPES[culprit.dtype]
    hint = "tir.cast(…, 'int32') of a condition that is a number, tir.not_equal(x, 0) of a number that is a condition"
    if kind.kind == "f":
        hint = f"tir.bitcast(x, 'uint{kind.bits}') for its bits, tir.cast(x, 'int32') for its value"
    elif kind.bits == 64:
        hint = "tir.cast(…, 'uint64') of both: no integer type holds all values of uint64 and of a signed type"
    message = f"{what}: bitwise operators take two integers, or two conditions"
    return refuse(DeclarationError, "declare.bitwise", message, hint=hint)


def bitcast(a: object, dtype: str) -> Expr:
    """The bits of ``a`` as a ``dtype`` of as many bits; raises ``declare.bitcast`` for other widths and for bool."""
    x = as_value(a)
    if DTYPES[x.dtype].bits != DTYPES[dtype].bits or "bool" in (x.dtype, dtype):
        have, want = (f"{n} ({DTYPES[n].bits} bits)" if n != "bool" else n for n in (x.dtype, dtype))
        alike = [d.name for d in DTYPES.values() if d.bits == DTYPES[x.dtype].bits and d.name not in ("bool", "index")]
        raise refuse(DeclarationError, "declare.bitcast", f"{have} as {want}: a bitcast keeps the bits, so both types "
                     "have as many, and neither is bool", hint=f"one of {', '.join(alike)}")  # fmt: skip
    if not is_float(x.dtype) and not is_float(dtype):
        return cast(x, dtype)  # integers of as many bits are converted by wrapping around
    return x if x.dtype == dtype else _t.Call("bitcast", (x,), dtype)


def mulhi(a: object, b: object) -> Expr:
    """The upper half of the bits of ``a * b``, in their common type (indices: int32); raises ``declare.bitwise``."""
    x, y = _pair(a, b)
    _need_integers("mulhi", x, y)
    kind = promote(x.dtype, y.dtype)
    kind = "int32" if kind == "index" else kind
    return _t.Call("mulhi", (cast(x, kind), cast(y, kind)), kind)


def cast(a: object, dtype: str) -> Expr:
    """``a`` converted to ``dtype``; ``a`` itself if it has that type."""
    x = as_expr(a)
    if x.dtype == dtype:
        return x
    if isinstance(x, _t.Const) and x.dtype == "index":
        return _t.Const(bool(x.value) if dtype == "bool" else _wrap(x.value, dtype), dtype)
    if isinstance(x, _t.Select) and isinstance(x.a, _t.Const) and isinstance(x.b, _t.Const) and x.dtype == "index":
        return _t.Select(x.cond, cast(x.a, dtype), cast(x.b, dtype), dtype)  # no vectors of 64 bits for a bit
    return _t.Cast(x, dtype)


def select(cond: object, a: object, b: object) -> Expr:
    """``a`` where ``cond``, else ``b``, in their common type; one of them alone if ``cond`` is constant."""
    c = as_expr(cond)
    if isinstance(c, _t.Const):
        chosen, other = (a, b) if c.value else (b, a)
        x, y = _pair(chosen, other)
        return cast(x, promote(x.dtype, y.dtype))
    x, y = _pair(a, b)
    kind = promote(x.dtype, y.dtype)
    return _t.Select(c, cast(x, kind), cast(y, kind), kind)


def call(fn: str, *args: object) -> Expr:
    """Call of ``fn`` of ``MATH``; int32 and wider become float64, narrower ones and indices float32 (not by abs)."""
    given = [as_expr(a) for a in args]
    assert len(given) == MATH[fn], f"{fn} of {len(given)} arguments"
    kind = given[0].dtype
    for g in given[1:]:
        kind = promote(kind, g.dtype)
    if not is_float(kind) and fn != "abs":
        kind = "float32" if DTYPES[kind].bits < 32 or kind == "index" else "float64"
    return _t.Call(fn, tuple(cast(g, kind) for g in given), kind)


def binary(op: str, a: object, b: object) -> Expr:
    """``a op b`` with constants folded and neutral operands dropped (``0 * x`` of floats stays: x may be NaN).

    Types are promoted as NumPy's: ``/`` of integers gives floats, ``+`` and ``*`` of bools are ``or`` and ``and``.
    Arithmetic on float constants is not folded. Raises ``declare.bool-difference`` for ``-`` of bools.
    """
    x, y = _pair(a, b)
    if op in LOGIC:
        return _logic(op, x, y)
    kind = promote(x.dtype, y.dtype)
    if op in COMPARE and is_float(kind) and {DTYPES[x.dtype].kind, DTYPES[y.dtype].kind} == {"i", "u"}:
        return _compared(op, x, y)
    if op == "/" and not is_float(kind):
        kind = "float64" if DTYPES[kind].bits >= 32 and kind != "index" else "float32"
    if kind == "bool":
        if op == "-":
            raise _no_difference("x - y")
        if op in _AS_LOGIC:
            return _logic(_AS_LOGIC[op], x, y)
        kind = _OF_BOOLS.get(op, kind)
    if op in SHIFTS and isinstance(y, _t.Const) and not 0 <= y.value < DTYPES[kind].bits:
        if op == "<<" or DTYPES[kind].kind == "u":
            return _t.Const(0, kind)
        y = _t.Const(DTYPES[kind].bits - 1, kind)
    folded = _fold(op, x, y, kind)
    if folded is not None:
        return folded
    if x.dtype != kind or y.dtype != kind:
        x, y = cast(x, kind), cast(y, kind)
    return _t.Binary(op, x, y, "bool" if op in COMPARE else kind)


_AS_LOGIC = {"+": "or", "max": "or", "*": "and", "min": "and"}
"""Arithmetic operator -> logical one that it is on bools, as in NumPy."""
_OF_BOOLS = {"//": "int8", "%": "int8"}
"""Operator -> dtype of its result on bools, where that is a number."""


def _no_difference(what: str) -> TensorIRError:
    return refuse(DeclarationError, "declare.bool-difference", f"{what} of bools has no meaning, as in NumPy",
                  hint="p ^ q for one of two, ~p for not p, tir.cast(p, 'int32') for 0 and 1")  # fmt: skip


def _compared(op: str, x: Expr, y: Expr) -> Expr:
    """Comparison of uint64 with a signed integer, by value as in NumPy."""
    if DTYPES[x.dtype].kind == "u":  # y < x is not x <= y
        return _compared(op, y, x) if op in ("==", "!=") else unary("not", _compared("<=" if op == "<" else "<", y, x))
    negative, same = binary("<", x, _t.Const(0, x.dtype)), binary(op, cast(x, "uint64"), y)
    return binary("and", unary("not", negative), same) if op == "==" else binary("or", negative, same)


POWERS = 8
"""The largest exponent for which a power of data is written as products."""


def power(a: object, b: object) -> Expr:
    """``a ** b``: products for small constant integers, sqrt for 0.5, else ``pow``; integers wrap around. Raises
    ``declare.power`` for negative constant exponents of integers.
    """
    x, y = _pair(a, b)
    kind = promote(x.dtype, y.dtype)
    n = y.value if isinstance(y, _t.Const) else None
    if not is_float(kind):
        return _whole_power(x, y, kind)
    if n == 0.5:
        return call("sqrt", cast(x, kind))
    if n is None or not math.isfinite(n) or n != int(n) or (is_float(kind) and abs(n) > POWERS):
        return call("pow", x, y)
    made = _product(cast(x, kind), abs(int(n)))
    return binary("/", 1, made) if n < 0 else made


def _whole_power(x: Expr, y: Expr, kind: str) -> Expr:
    """Integer ``x ** y`` in ``kind``; negative exponents round toward zero, a constant negative one is refused
    (``declare.power``).
    """
    n = y.value if isinstance(y, _t.Const) else None
    if n is not None and n < 0:
        raise refuse(DeclarationError, "declare.power", f"an integer to the power of {n} is no integer",
                     hint=f"x ** {n}.0, which is a float")  # fmt: skip
    kind = "int8" if kind == "bool" else kind
    if n is not None and (n <= POWERS or (kind == "index" and n <= 64)):
        return _product(cast(x, kind), int(n))
    kind = "int32" if kind == "index" else kind
    x, y = cast(x, kind), cast(y, kind)
    if isinstance(x, _t.Const) and x.value == 2:
        return binary("<<", _t.Const(1, kind), y)
    return _t.Call("power", (x, y), kind)


def _product(x: Expr, n: int) -> Expr:
    """``x ** n`` as products, by squaring."""
    if n == 0:
        return cast(_t.Const(1, "index"), x.dtype)
    half = _product(x, n // 2) if n > 1 else None
    if half is None:
        return x
    square = binary("*", half, half)
    return binary("*", square, x) if n % 2 else square


def divide(op: str, a: object, b: object) -> Expr:
    """``a // b`` or ``a % b`` as the user writes it; a constant integer 0 as ``b`` raises ``declare.zero-division``."""
    x, y = _pair(a, b)
    if isinstance(y, _t.Const) and y.value == 0 and not is_float(promote(x.dtype, y.dtype)):
        raise refuse(DeclarationError, "declare.zero-division", f"an integer is divided by 0 ({op} 0)",
                     hint="another divisor")  # fmt: skip
    return binary(op, x, y)


def _pair(a: Any, b: Any) -> tuple[Expr, Expr]:
    if isinstance(a, _t.Expr):
        return a, b if isinstance(b, _t.Expr) else as_expr(b, a.dtype)
    if isinstance(b, _t.Expr):
        return as_expr(a, b.dtype), b
    x = as_expr(a)
    return x, as_expr(b, x.dtype)


def _logic(op: str, x: Expr, y: Expr) -> Expr:
    for c, other in ((x, y), (y, x)):
        if isinstance(c, _t.Const):
            return other if bool(c.value) == (op == "and") else c
    return _t.Binary(op, x, y, "bool")


def _fold(op: str, x: Expr, y: Expr, kind: str) -> Expr | None:
    cx, cy = isinstance(x, _t.Const), isinstance(y, _t.Const)
    if cx and cy:
        p, q = x.value, y.value  # type: ignore[attr-defined]
        if op in COMPARE:
            p, q = (rounded(v, c.dtype) if is_float(c.dtype) else v for v, c in ((p, x), (q, y)))
            return _t.Const({"<": p < q, "<=": p <= q, "==": p == q, "!=": p != q}[op], "bool")
        if not is_float(kind) and (op not in ("//", "%", "/") or q != 0):
            return _t.Const(_wrap(_INT[op](_wrap(p, kind), _wrap(q, kind)), kind), kind) if op in _INT else None
        return None
    for left, c, other in ((False, y, x), (True, x, y)):
        if isinstance(c, _t.Const) and (gives := identity(op, c.value, kind, left)):
            return cast(other, kind) if gives == "x" else _t.Const(0, kind)
    return None


def _wrap(x: Any, dtype: str) -> Any:
    """Integer ``x`` wrapped around to ``dtype``; unchanged for indices."""
    kind = DTYPES[dtype]
    if kind.kind not in "iu" or dtype == "index":
        return x
    return (x - kind.low) % (1 << kind.bits) + kind.low


_INT: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda p, q: p + q,
    "-": lambda p, q: p - q,
    "*": lambda p, q: p * q,
    "//": lambda p, q: p // q,
    "%": lambda p, q: p % q,
    "min": min,
    "max": max,
    "^": operator.xor,
    "&": operator.and_,
    "|": operator.or_,
    "<<": operator.lshift,
    ">>": operator.rshift,
}


def lowest(dtype: str) -> Const:
    """Identity of max as a Const: -infinity for floats, else the least value of ``dtype``."""
    return _t.Const(-math.inf if is_float(dtype) else DTYPES[dtype].low, dtype)


def highest(dtype: str) -> Const:
    """Identity of min as a Const: infinity for floats, else the greatest value of ``dtype``."""
    return _t.Const(math.inf if is_float(dtype) else DTYPES[dtype].high, dtype)


from tensorir.ir import tree as _t  # noqa: E402  (nodes and builders know each other)
