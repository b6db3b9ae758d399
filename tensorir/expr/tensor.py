"""``Tensor`` and ``Compute``: declared arrays and their definitions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, overload

from tensorir.errors import DeclarationError, DeclarationTypeError, TensorIRError, refuse
from tensorir.errors.habits import answers, public, unknown
from tensorir.errors.handles import Value
from tensorir.errors.needs import shown, wrong
from tensorir.errors.shown import Shown, few_lines
from tensorir.errors.user_source import item_of, put_right, rows_of, whole_of
from tensorir.ir.build import as_expr, cast, converted, is_comparison, no_constant
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.operators import Operators, no_truth
from tensorir.ir.structure import place
from tensorir.ir.text import brief, show
from tensorir.ir.tree import Buffer, Expr, Load, PadLoad, Reduce, Scope, Var
from tensorir.ir.visit import find

METHODS = (
    "sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "mean", "transpose", "reshape", "ravel", "flatten",
    "squeeze", "swapaxes", "round", "clip",
)  # fmt: skip
"""Methods of arrays that tensors have."""

_MAKE = "tir.placeholder, tir.constant or tir.compute, which make tensors"
_order = itertools.count(1)


def next_order() -> int:
    """A number larger than all returned before: the place of a declaration in the order of arguments."""
    return next(_order)


@dataclass(eq=False, repr=False)
class Compute(Value, Shown):
    """One ``compute`` call: ``bodies[n]`` defines output n over ``axes``; a body may be a Reduce.

    ranges: cache: {output: bounds of its elements}, filled on demand
    """

    name: str
    axes: tuple[Var, ...]
    extents: tuple[Any, ...]
    bodies: tuple[Expr, ...]
    outputs: tuple[Tensor, ...] = field(default=())
    ranges: dict[Tensor, tuple[float, float]] = field(default_factory=dict)
    _reads: tuple[Tensor, ...] | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return few_lines(f"<Compute {'; '.join(t.definition for t in self.outputs)}>")

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            raise unknown("op", name, "a Compute", public(Compute))

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that the bodies read, each once, in order of first appearance."""
        if self._reads is None:
            loads = [n for b in self.bodies for n in find(b, (Load, PadLoad)) if isinstance(n, Load | PadLoad)]
            self._reads = tuple(dict.fromkeys(n.buffer.origin for n in loads))
        return list(self._reads)


class Tensor(Value, Shown, Operators["Tensor"]):
    """An input array (placeholder), a constant, or a computed array; index it inside ``compute``.

    shape: ints, and expressions of dims;  dtype: a name such as "float32"
    op: the Compute that defines it; None for placeholders and constants

    Operators, NumPy's functions and methods of arrays, on whole tensors, make computed tensors: ``A + B``, ``A @ B``,
    ``A.T``, ``A.sum(axis=0)``, ``np.exp(A)``, ``A[1:, None]``, ``A == B`` (``expr/whole.py``). Compare tensors by
    ``is``.
    """

    WHOLE = True
    KIND = "tensor"
    truth: bool | None = None
    """Of ``==`` and ``!=`` with one tensor on both sides: what ``if`` takes it for."""
    _of_whole: ClassVar[Callable[[str, tuple[Any, ...], dict[str, Any]], Any]]
    """The result of a function by its name, arguments and options. ``expr/whole.py``, which needs tensors itself, sets
    it, and is imported with whatever of this package is the first."""

    def __init__(self, name: str, shape: tuple[Any, ...], dtype: str, op: Compute | None = None,
                 data: tuple[Any, ...] | None = None) -> None:  # fmt: skip
        if not (isinstance(name, str) and isinstance(shape, tuple) and isinstance(dtype, str) and dtype in DTYPES):
            raise wrong("what makes a tensor", (name, shape, dtype), "a name, a tuple and a dtype", hint=_MAKE)
        if not isinstance(op, Compute | None) or not isinstance(data, tuple | None):
            raise wrong("op", op, "what tir.compute makes", hint=_MAKE)
        self.name, self.shape, self.dtype, self.op = name, shape, dtype, op
        self.order = next_order()
        scope = Scope.AUTO if op is not None else Scope.CONSTANT if data is not None else Scope.GLOBAL
        sides = tuple(as_expr(n) for n in shape)
        self.buffer = Buffer(name, sides, dtype, scope, data=data, origin=self)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        means = f": {self.definition}" if self.op is not None else ""
        return few_lines(f"Tensor({self.name}: {self.dtype}[{', '.join(map(_side, self.shape))}]){means}")

    @property
    def definition(self) -> str:
        """Text such as ``C[i, j] = sum(A[i, k] * B[k, j], axis=k)``; only the name for placeholders and constants."""
        if self.op is None:
            return self.name
        axes = ", ".join(a.name for a in self.op.axes)
        return f"{self.name}[{axes}] = {brief(self.op.bodies[place(self, self.op.outputs)])}"

    @property
    def size(self) -> int:
        """The number of elements. Raises DeclarationError ``dim.constant`` if the shape depends on dims."""
        for n in self.shape:
            if isinstance(n, Expr):
                raise no_constant(n)
        return math.prod(self.shape)

    @property
    def T(self) -> Tensor:
        """The tensor with its dimensions in reverse order."""
        return self._made("transpose", self)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        if self.truth is None:
            raise no_truth(self.op is not None and any(map(is_comparison, self.op.bodies)), whole=True)
        return self.truth

    def __len__(self) -> int:
        if not self.shape:
            raise refuse(DeclarationTypeError, "declare.number", f"{self.name} has no dimension, and so no length")
        if isinstance(self.shape[0], Expr):
            raise no_constant(self.shape[0])
        return int(self.shape[0])

    def _made(self, name: str, /, *args: Any, **options: Any) -> Any:
        return type(self)._of_whole(name, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls._of_whole(function.__name__, tuple(args), kwargs or {})

    if not TYPE_CHECKING:  # methods of arrays; a type checker knows those that are written out

        def __getattr__(self, name):
            if name in METHODS:
                return functools.partial(self._made, name, self)
            raise unknown("tensor", name, "a Tensor", [*public(Tensor), *METHODS])

    def __call__(self, *index: object) -> Any:
        inside = ", ".join(shown(i) if not isinstance(i, Var) else i.name for i in index)
        raise refuse(DeclarationTypeError, "declare.called", f"{self.name} is read with brackets",
                     hint=f"{self.name}[{inside}]")  # fmt: skip

    def __setitem__(self, index: Any, value: Any) -> None:
        message = f"nothing is assigned to {self.name}: a tensor is declared once, all elements of it"
        hint = f"tir.compute({self.shape}, lambda i: tir.where(tir.equal(i, 0), value, {self.name}[i]))"
        raise refuse(DeclarationTypeError, "declare.assigned", message, hint=hint)

    @overload
    def __getitem__(self, index: SupportsIndex | tuple[SupportsIndex, ...]) -> Expr: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, index: slice | EllipsisType | tuple[object, ...] | None) -> Tensor: ...

    def __getitem__(self, index: Any) -> Any:
        given = index if isinstance(index, tuple) else (index,)
        if any(i is None or i is Ellipsis or isinstance(i, slice) for i in given) and not any(
            isinstance(i, Expr) for i in given
        ):
            return self._made("[]", self, given)
        # what is read from memory may be narrow; the arithmetic of addresses is that of indices
        return Load(self.buffer, tuple(cast(i, "index") for i in self._index(index)), self.dtype)

    def __iter__(self) -> Any:
        raise refuse(DeclarationTypeError, "declare.iterated", f"{self.name} is symbolic: it cannot be iterated",
                     hint=put_right(rows_of, "index it with the axes of a compute"))  # fmt: skip

    @answers(DeclarationError)
    def get(self, *index: object, fill: object = 0) -> Expr:
        """The element at ``index``, or ``fill`` if the index is out of bounds: a padded read.

        index: an integer expression per dimension, of any range;  fill: a number or expression, converted to the
               tensor's dtype
        Raises DeclarationError: ``declare.rank``, ``declare.index-type``, ``declare.slice``, ``declare.whole``.
        """
        return PadLoad(self.buffer, self._index(index), converted(fill, self.dtype), self.dtype)

    @answers(DeclarationError)
    def _index(self, index: Any) -> tuple[Expr, ...]:
        given = index if isinstance(index, tuple) else (index,)
        for n, i in enumerate(given):
            if isinstance(i, list) or (not isinstance(i, Expr) and getattr(i, "shape", None)):
                raise _no_gather(self, given, n)
        if len(given) != len(self.shape):
            raise refuse(
                DeclarationError, "declare.rank",
                f"{self.name} has {len(self.shape)} dimensions but is read with {len(given)} indices",
                hint=put_right(item_of, f"{self.name}[{', '.join('ijklmnpq'[: len(self.shape)])}]"),
            )  # fmt: skip
        out = []
        for i in given:
            if isinstance(i, slice) or i is Ellipsis or i is None:
                raise refuse(DeclarationError, "declare.slice", f"{self.name} is read with a slice",
                             hint="index one element with axes; a whole row is a compute over that axis")  # fmt: skip
            e = as_expr(i)
            if DTYPES[e.dtype].kind not in "iu":
                raise refuse(DeclarationError, "declare.index-type", f"{self.name} is indexed with a {e.dtype}",
                             hint=put_right(whole_of, "tir.cast(…, 'int32')"))  # fmt: skip
            out.append(e)
        return tuple(out)


def _side(n: Any) -> str:
    return show(n) if isinstance(n, Expr) else str(n)


def _no_gather(t: Tensor, given: tuple[Any, ...], place: int) -> TensorIRError:
    """Return the error for ``t`` indexed, in dimension ``place``, with a whole array."""
    index = given[place]
    what, name = (f"{index.name}, a whole tensor", index.name) if isinstance(index, Tensor) else ("an array", "at")
    what = "a list" if isinstance(index, list) else what
    sides = [*t.shape[:place], len(index), *t.shape[place + 1 :]]
    axes = "ijklmnpq"[: len(sides)]
    read = ", ".join(f"{name}[{a}]" if n == place else a for n, a in enumerate(axes))
    hint = f"tir.compute({tuple(sides)}, lambda {', '.join(axes)}: {t.name}[{read}])"
    if not isinstance(index, Tensor):
        hint += f' with at = tir.placeholder(({len(index)},), "int32", name="at")'
    elif index.dtype == "bool":  # its result would have a shape that is not known
        hint = f"tir.where({name}, {t.name}, 0)"
    return refuse(DeclarationError, "declare.whole", f"{t.name} is indexed with {what}", hint=hint)


def has_reduce(e: Expr) -> bool:
    """True if ``e`` contains a reduction."""
    return bool(find(e, Reduce))
