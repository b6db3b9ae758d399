"""Built-in reductions (sum, max, argmax, …) and user-defined combiners."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, overload

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.handles import Value
from tensorir.errors.needs import need_bool, need_function, need_name, need_names, shown
from tensorir.errors.shown import Shown, few_lines, short
from tensorir.expr.segments import within
from tensorir.expr.signatures import Axes, Reduction
from tensorir.ir.build import as_expr, as_value, binary, cast, const, converted, highest, lowest, select, unary
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES, dtype_of, is_float
from tensorir.ir.text import brief
from tensorir.ir.tree import Combiner, Const, Expr, Reduce, Var

BUILT_IN = ("sum", "prod", "min", "max", "any", "all", "argmin", "argmax")


def _of_tensors(function: Callable[[object, Axes, object], Expr]) -> Reduction:
    """``function`` of elements and reduce axes, extended to whole tensors and their dimensions."""

    @answers()
    @functools.wraps(function)
    def called(value: Any, *args: Any, **options: Any) -> Any:
        if getattr(type(value), "WHOLE", False):
            return value._made(function.__name__, value, *args, **options)
        return function(value, *args, **options)

    return called


@_of_tensors
def sum(value: object, axis: Axes, where: object = None) -> Expr:
    """The sum of ``value`` over reduce axes, in its dtype; 0 without terms.

    where: condition; terms where it is false are left out
    Of a whole tensor: over dimensions, as in NumPy; integers and bools are summed in 64 bits, without ``where``.
    Raises DeclarationError: ``reduce.axis``, ``reduce.bool`` for elements of bool.
    """
    return _simple("sum", value, axis, where)


@_of_tensors
def prod(value: object, axis: Axes, where: object = None) -> Expr:
    """The product of ``value`` over reduce axes, in its dtype; 1 without terms. All else as ``sum``."""
    return _simple("prod", value, axis, where)


@_of_tensors
def min(value: object, axis: Axes, where: object = None) -> Expr:
    """The smallest value over reduce axes, NaN if one is NaN; without terms infinity, or the largest integer of the
    dtype.

    where: condition; terms where it is false are left out (elements only, not whole tensors)
    Raises DeclarationError: ``reduce.axis``, ``reduce.bool``.
    """
    return _simple("min", value, axis, where)


@_of_tensors
def max(value: object, axis: Axes, where: object = None) -> Expr:
    """The largest value over reduce axes, NaN if one is NaN; without terms -infinity, or the least integer of the
    dtype.

    where: condition; terms where it is false are left out (elements only, not whole tensors)
    Raises DeclarationError: ``reduce.axis``, ``reduce.bool``.
    """
    return _simple("max", value, axis, where)


@_of_tensors
def any(value: object, axis: Axes, where: object = None) -> Expr:
    """True if ``value`` is true, or not 0, anywhere along reduce axes; false without terms. Terms where the condition
    ``where`` is false are left out.
    """
    return _simple("any", cast(as_expr(value), "bool"), axis, where)


@_of_tensors
def all(value: object, axis: Axes, where: object = None) -> Expr:
    """True if ``value`` is true, or not 0, everywhere along reduce axes, also without terms. Terms where the condition
    ``where`` is false are left out.
    """
    return _simple("all", cast(as_expr(value), "bool"), axis, where)


@_of_tensors
def argmin(value: object, axis: Axes, where: object = None) -> Expr:
    """The position of the smallest value along one reduce axis: the first one on ties; of the first NaN, if there are
    NaNs.

    An int32; for an axis of more than 2**31 elements an int64; without terms the largest value of that type. Terms
    where the condition ``where`` is false are left out. Raises DeclarationError ``reduce.axis`` for several axes.
    """
    return _position("argmin", value, axis, where)


@_of_tensors
def argmax(value: object, axis: Axes, where: object = None) -> Expr:
    """The position of the largest value along one reduce axis: the first one on ties; of the first NaN, if there are
    NaNs.

    An int32; for an axis of more than 2**31 elements an int64; without terms the largest value of that type. Terms
    where the condition ``where`` is false are left out. Raises DeclarationError ``reduce.axis`` for several axes.
    """
    return _position("argmax", value, axis, where)


class UserCombiner(Value, Shown):
    """A user-defined reduction ``f``: call it as ``f(value, axis=…)``, or pass it to scans and scatters."""

    def __init__(self, result: Callable[..., object], identity: object, name: str, commutative: bool) -> None:
        self.result, self.identity, self.name, self.commutative = result, identity, name, commutative

    def __repr__(self) -> str:
        several = isinstance(self.identity, tuple)
        count = len(self.identity) if isinstance(self.identity, tuple) else 1
        try:
            joined = ", ".join(map(brief, self.joining(["float32"] * count, several).result))
        except Exception:  # a function for other types, or the user's own mistake, which its use will tell
            joined = short(self.result)
        order = "" if self.commutative else ", in order"
        state = " and ".join(f"({', '.join(f'{x}{n}' for n in range(count))})" if several else f"{x}0" for x in "ab")
        return few_lines(f"<combiner {self.name}: {state} give {joined}; identity {shown(self.identity)}{order}>")

    @overload
    def __call__(self, value: tuple[object, ...], axis: Axes, where: object = None) -> tuple[Expr, ...]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, value: object, axis: Axes, where: object = None) -> Expr: ...

    @answers()
    def __call__(self, value: object, axis: Axes, where: object = None) -> Expr | tuple[Expr, ...]:
        several = isinstance(value, tuple)
        values = tuple(as_value(v) for v in (value if isinstance(value, tuple) else (value,)))
        out = _reduce(self.joining([v.dtype for v in values], several), axis, values, where)
        return out if several else out[0]

    def joining(self, dtypes: Sequence[str], several: bool) -> Combiner:
        """Return the combiner as an expression for values of these dtypes.

        several: True if the user's function takes and returns tuples, even of one value
        """
        need_bool("several", several)
        dtypes = [dtype_of(d).name for d in need_names("dtypes", dtypes)]
        start = _as_many("reduce.identity", "the identity", self.identity, len(dtypes), several)
        old = tuple(Var(f"a{n}", d) for n, d in enumerate(dtypes))
        new = tuple(Var(f"b{n}", d) for n, d in enumerate(dtypes))
        given = self.result(old, new) if several else self.result(old[0], new[0])
        joined = _as_many("reduce.result", "the result", given, len(dtypes), several)
        return Combiner(
            self.name,
            old,
            new,
            tuple(cast(as_expr(r, d), d) for r, d in zip(joined, dtypes, strict=True)),
            tuple(_constant(converted(i, d)) for i, d in zip(start, dtypes, strict=True)),
            self.commutative,
        )


@answers()
def combiner(
    result: Callable[..., object], identity: object = None, name: str = "user", commutative: bool = True
) -> UserCombiner:
    """Define a reduction: ``f = combiner(lambda a, b: …, identity)`` is called as ``f(value, axis=…)``.

    For a state of several values, ``result`` takes and returns tuples ``(a, b)``, ``identity`` is a tuple, and f takes
    a tuple of values and returns a tuple of expressions to return from ``compute``. ``result`` must be associative,
    with ``identity`` as its neutral element, and commutative unless ``commutative=False``: schedules rely on it,
    ``check`` tests it. Without commutativity terms are combined in the order of their axes, ``a`` the earlier ones.

    Raises DeclarationError: ``reduce.identity`` without an identity, ``reduce.name`` for a built-in name such as "sum".
    """
    need_function("result", result)
    if identity is None:
        message = f"the combiner {shown(name)} has no identity, with which results begin"
        raise refuse(DeclarationError, "reduce.identity", message, hint="the value that changes no other: 0 of a sum")
    if need_name("name", name) in BUILT_IN:
        message = f"{name!r} is a built-in reduction, and means something else to checks and schedules"
        raise refuse(DeclarationError, "reduce.name", message, hint=f"name='my_{name}'")
    return UserCombiner(result, identity, name, need_bool("commutative", commutative))


def _as_many(code: str, what: str, given: Any, count: int, several: bool) -> tuple[Any, ...]:
    """``given`` as a tuple of ``count`` items. Raises DeclarationError with ``code`` if a tuple is given for a single
    value or vice versa.
    """
    if several is isinstance(given, tuple) and (not several or len(given) == count):
        return given if several else (given,)
    wanted = f"a tuple of {count}" if several else "a single one"
    raise refuse(DeclarationError, code, f"{what} of a combiner of {count} values is {wanted}, not {shown(given)}")


def _constant(e: Expr) -> Const:
    if isinstance(e, Const):
        return e
    raise refuse(DeclarationError, "reduce.identity", "the identity of a combiner must be a constant")


def _reduce(made: Combiner, axis: Axes, values: tuple[Expr, ...], where: Any) -> tuple[Expr, ...]:
    if made.name in ("min", "max") and not _axis_like(axis):
        what = f"tir.{made.name} reduces over an axis; {shown(axis)} is none"
        raise refuse(
            DeclarationError, "reduce.axis", what, hint=f"tir.{made.name}imum(a, b) of two values, axis=k of many"
        )
    axes = _axes(axis)
    if len(set(axes)) != len(axes) or not axes:
        raise refuse(DeclarationError, "reduce.axis", "each reduce axis is given once, and at least one")
    if where is not None:
        if isinstance(where, bool):
            raise refuse(DeclarationError, "declare.truth-value", "where= got a plain Python bool",
                         hint="tir.equal(a, b) for a == b")  # fmt: skip
        chosen = cast(as_expr(where), "bool")
        values = tuple(select(chosen, v, i) for v, i in zip(values, made.identity, strict=True))
    for there in within(axes):
        values = tuple(select(there, v, i) for v, i in zip(values, made.identity, strict=True))
    return tuple(Reduce(made, axes, values, n, v.dtype) for n, v in enumerate(values))


def _axis_like(axis: Any) -> bool:
    """True if ``axis`` has the type of an axis or of several, as a misplaced positional argument may have."""
    return isinstance(axis, Var | list | tuple | str)


def _axes(axis: Any) -> tuple[Var, ...]:
    axes = tuple(axis) if isinstance(axis, list | tuple) else (axis,)
    for a in axes:
        if not isinstance(a, Var) or a.extent is None:
            name = a.name if isinstance(a, Var) else a
            raise refuse(DeclarationError, "reduce.axis", f"axis={shown(name)} is not a reduce axis",
                         hint="k = tir.reduce_axis(extent, name='k'), and axis=k")  # fmt: skip
    return axes


def simple_combiner(name: str, dtype: str) -> Combiner:
    """Combiner of the built-in reduction ``name`` ("sum", "prod", "min", "max", "any", "all") for values of ``dtype``.
    Raises DeclarationError ``reduce.bool``.
    """
    a, b = Var("a0", dtype), Var("b0", dtype)
    made: dict[str, tuple[Expr, Const]] = {
        "sum": (binary("+", a, b), const(0, dtype)),
        "prod": (binary("*", a, b), const(1, dtype)),
        "min": (binary("min", a, b), highest(dtype)),
        "max": (binary("max", a, b), lowest(dtype)),
        "any": (binary("or", a, b), const(False, dtype)),
        "all": (binary("and", a, b), const(True, dtype)),
    } if name in ("any", "all") or dtype != "bool" else {}  # fmt: skip
    if name not in made:
        raise refuse(
            DeclarationError, "reduce.bool", f"tir.{name} of a bool", hint="tir.cast(…, 'int32'), or tir.any / tir.all"
        )
    result, identity = made[name]
    return Combiner(name, (a,), (b,), (result,), (identity,))


def _simple(name: str, value: Any, axis: Axes, where: Any) -> Expr:
    e = as_value(value)
    return _reduce(simple_combiner(name, e.dtype), axis, (e,), where)[0]


def _position(name: str, value: Any, axis: Axes, where: Any) -> Expr:
    e, axes = as_value(value), _axes(axis)
    if len(axes) != 1:
        raise refuse(DeclarationError, "reduce.axis", f"tir.{name} reduces over one axis, not {len(axes)}")
    kind = "int64" if most(as_expr(axes[0].extent)) > 2**31 else "int32"
    a, b = (Var("a0", e.dtype), Var("a1", kind)), (Var("b0", e.dtype), Var("b1", kind))
    takes = _takes(name, a, b)
    last = highest(e.dtype) if name == "argmin" else lowest(e.dtype)
    made = Combiner(
        name, a, b, (select(takes, b[0], a[0]), select(takes, b[1], a[1])), (last, const(DTYPES[kind].high, kind))
    )
    return _reduce(made, axes, (e, cast(axes[0], kind)), where)[1]


def _takes(name: str, a: tuple[Var, Var], b: tuple[Var, Var]) -> Expr:
    """Condition that the pair (value, index) ``b`` wins over ``a`` in argmin or argmax: NaN wins over numbers, ties go
    to the smaller index, as in NumPy.
    """
    (x, p), (y, q) = a, b
    first = binary("<", q, p)
    tie = binary("and", binary("==", x, y), first)
    small, large = (x, y) if name == "argmin" else (y, x)
    if not is_float(x.dtype):
        return binary("or", binary("<", large, small), tie)
    nan = binary("and", binary("!=", y, y), first)
    better = binary("and", unary("not", binary("<=", small, large)), binary("or", binary("==", x, x), nan))
    return binary("or", better, tie)
