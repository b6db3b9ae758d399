"""Python operators and NumPy functions on symbolic values (expressions and whole tensors)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from tensorir.errors import DeclarationError, DeclarationTypeError, TensorIRError, refuse
from tensorir.errors.habits import answers, habit
from tensorir.errors.needs import shown
from tensorir.errors.user_source import item_of, items_of, number_of, put_right, search_of, truth_of

T = TypeVar("T")


class Operators(Generic[T]):
    """Mixin with Python's operators and NumPy's protocols; each calls ``_made`` with the NumPy name of the operation.

    WHOLE: true for whole arrays, false for elements;  KIND: key in the table of habits
    """

    __slots__ = ()
    WHOLE = False
    KIND = "element"

    def _made(self, name: str, /, *args: Any, **options: Any) -> T:
        raise NotImplementedError

    def __add__(self, o: Any) -> T:
        return self._made("add", self, o)

    def __radd__(self, o: Any) -> T:
        return self._made("add", o, self)

    def __sub__(self, o: Any) -> T:
        return self._made("subtract", self, o)

    def __rsub__(self, o: Any) -> T:
        return self._made("subtract", o, self)

    def __mul__(self, o: Any) -> T:
        return self._made("multiply", self, o)

    def __rmul__(self, o: Any) -> T:
        return self._made("multiply", o, self)

    def __truediv__(self, o: Any) -> T:
        return self._made("divide", self, o)

    def __rtruediv__(self, o: Any) -> T:
        return self._made("divide", o, self)

    def __floordiv__(self, o: Any) -> T:
        return self._made("floor_divide", self, o)

    def __rfloordiv__(self, o: Any) -> T:
        return self._made("floor_divide", o, self)

    def __mod__(self, o: Any) -> T:
        return self._made("remainder", self, o)

    def __rmod__(self, o: Any) -> T:
        return self._made("remainder", o, self)

    def __divmod__(self, o: Any) -> tuple[T, T]:
        return self // o, self % o

    def __rdivmod__(self, o: Any) -> tuple[T, T]:
        return o // self, o % self

    def __pow__(self, o: Any, modulus: Any = None) -> T:
        power = self._made("power", self, o)
        return power if modulus is None or power is NotImplemented else power % modulus

    def __rpow__(self, o: Any) -> T:
        return self._made("power", o, self)

    def __matmul__(self, o: Any) -> T:
        return self._made("matmul", self, o)

    def __rmatmul__(self, o: Any) -> T:
        return self._made("matmul", o, self)

    def __neg__(self) -> T:
        return self._made("negative", self)

    def __pos__(self) -> T:
        return self._made("positive", self)

    def __abs__(self) -> T:
        return self._made("absolute", self)

    def __round__(self, digits: int | None = None) -> T:
        return self._made("rint", self) if digits is None else self._made("round", self, digits)

    def __floor__(self) -> T:
        return self._made("floor", self)

    def __ceil__(self) -> T:
        return self._made("ceil", self)

    def __trunc__(self) -> T:
        return self._made("trunc", self)

    def __lt__(self, o: Any) -> T:
        return self._made("less", self, o)

    def __le__(self, o: Any) -> T:
        return self._made("less_equal", self, o)

    def __gt__(self, o: Any) -> T:
        return self._made("greater", self, o)

    def __ge__(self, o: Any) -> T:
        return self._made("greater_equal", self, o)

    def __eq__(self, o: object) -> T:  # type: ignore[override]
        return self._compared("equal", o)

    def __ne__(self, o: object) -> T:  # type: ignore[override]
        return self._compared("not_equal", o)

    __hash__ = object.__hash__

    def _compared(self, name: str, o: object) -> T:
        made = self._made(name, self, o)
        if o is self and hasattr(type(made), "truth"):
            object.__setattr__(made, "truth", name == "equal")  # nodes may be frozen
        return made

    def __and__(self, o: Any) -> T:
        return self._made("bitwise_and", self, o)

    def __rand__(self, o: Any) -> T:
        return self._made("bitwise_and", o, self)

    def __or__(self, o: Any) -> T:
        return self._made("bitwise_or", self, o)

    def __ror__(self, o: Any) -> T:
        return self._made("bitwise_or", o, self)

    def __xor__(self, o: Any) -> T:
        return self._made("bitwise_xor", self, o)

    def __rxor__(self, o: Any) -> T:
        return self._made("bitwise_xor", o, self)

    def __lshift__(self, o: Any) -> T:
        return self._made("left_shift", self, o)

    def __rlshift__(self, o: Any) -> T:
        return self._made("left_shift", o, self)

    def __rshift__(self, o: Any) -> T:
        return self._made("right_shift", self, o)

    def __rrshift__(self, o: Any) -> T:
        return self._made("right_shift", o, self)

    def __invert__(self) -> T:
        return self._made("invert", self)

    @answers()
    def astype(self, dtype: object) -> T:
        """This value converted to ``dtype``, as ``tir.cast``."""
        return self._made("astype", self, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            what = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
            given = "".join(f" with {k}=" for k in options)
            raise no_function(what + given, self.KIND, ufunc.__name__ if method == "__call__" else method)
        return self._made(ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self._made(function.__name__, *args, **kwargs)

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise no_number("an array of numbers")

    def __float__(self) -> float:
        raise no_number("a float")

    def __int__(self) -> int:
        raise no_number("an int")

    def __complex__(self) -> complex:
        raise no_number("a complex number")

    def __index__(self) -> int:
        raise no_number("an int")

    def __bool__(self) -> bool:
        raise no_truth()


def no_truth(comparison: bool = False, whole: bool = False) -> TensorIRError:
    """The error for ``if``, ``and``, ``or``, ``not`` on a symbolic value, to be raised by the caller.

    comparison: the value is a comparison;  whole: it is an array
    """
    general = "tir.where(cond, a, b) for if/else, tir.all_(p, q) for and, tir.any_ for or, ~p for not, tir.maximum"
    message = "a symbolic value has no truth value while the computation is being declared"
    if comparison:
        message = (
            "a comparison of values has no truth value yet: `a is b` asks for one object, `p & q` joins conditions, "
            "`any(B is x for x in …)` searches"
        )
    rule = search_of if whole else truth_of
    return refuse(DeclarationError, "declare.truth-value", message, hint=put_right(rule, general))


def no_iteration() -> TensorIRError:
    """The error for ``for``, ``in`` and unpacking of a symbolic value, to be raised by the caller."""
    hint = put_right(
        items_of, "tir.sum(…, axis=k) over k = tir.reduce_axis(n); an element is read with its indices, A[i, j]"
    )
    message = "a symbolic value is one number: it cannot be iterated"
    return refuse(DeclarationTypeError, "declare.iterated", message, hint=hint)


def no_item() -> TensorIRError:
    """The error for ``[…]`` on an element, to be raised by the caller."""
    message = "one element was indexed: it is one number"
    hint = put_right(item_of, "A[i, j] with all indices in one pair of brackets")
    return refuse(DeclarationTypeError, "declare.indexed", message, hint=hint)


def no_number(what: str) -> TensorIRError:
    """The error for int(), float(), math.exp(), range() … of a symbolic value, to be raised by the caller."""
    general = 'tir.cast(x, "int32") for int(x), tir.exp(x) for math.exp(x), tir.reduce_axis(n) for range(n)'
    message = f"a symbolic value is not {what}: it has none while the computation is being declared"
    return refuse(DeclarationTypeError, "declare.number", message, hint=put_right(number_of, general))


def no_function(what: str, kind: str, name: str) -> TensorIRError:
    """The error for an unsupported NumPy or torch function, to be raised by the caller."""
    known = habit(kind, name) or habit("function", name)
    hint = known or "tir.exp log sqrt tanh sin cos floor where maximum …, and np's of those names; docs/language.md"
    return refuse(DeclarationTypeError, "declare.function", f"{what} means nothing in a declaration", hint=hint)


def too_many(name: str, args: tuple[object, ...], options: dict[str, object]) -> TensorIRError:
    """The error for unsupported arguments of a function in a declaration, to be raised by the caller."""
    given = ", ".join([*map(shown, args[1:]), *(f"{k}={shown(v)}" for k, v in options.items())])
    hints = [*(habit(f"{name}()", k) for k in options), habit("function", name), "leave it out"]
    message = f"{name}(…, {given}): this argument means nothing in a declaration"
    return refuse(DeclarationTypeError, "declare.function", message, hint=next(filter(None, hints)))
