"""Functions that declare tensors, axes and parameters: placeholder, constant, reduce_axis, scalar, dim, compute."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, cast, overload

from tensorir.errors import DeclarationError, TensorIRError, line_of, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_function, need_int, need_name, need_names, shown, wrong
from tensorir.expr.bounds import check_accesses
from tensorir.expr.segments import data_axis, need_most
from tensorir.expr.signatures import Value
from tensorir.expr.tensor import Compute, Tensor, next_order
from tensorir.ir.build import as_value
from tensorir.ir.dims import LARGEST_DIM, dims_in, span
from tensorir.ir.dtypes import dtype_of
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import Expr, Load, Reduce, Var
from tensorir.ir.visit import Rewriter, find, substitute

MOST_CELLS = 2**62
"""The largest extent: addresses have 64 bits."""

MAX_RANK = 64
"""The most dimensions, as NumPy's arrays have them."""

Extent = int | Expr
Shape = Sequence[Extent] | Extent


@answers()
def placeholder(shape: Shape, dtype: object = "float32", name: str = "A") -> Tensor:
    """Declare an input array; returns its Tensor, which is indexed in ``compute``.

    shape: up to 64 ints >= 0, dims or expressions of dims; a single one is one dimension, () one element
    dtype: see ``ir/dtypes.py``
    Raises DeclarationError: ``declare.shape``, ``dim.range``, ``declare.dtype``, ``declare.name``.
    """
    return Tensor(_name(name), extents_of(shape, name), dtype_of(dtype).name)


@answers()
def constant(array: object, name: str | None = None) -> Tensor:
    """A tensor of known values, stored in the program (filter banks, transform matrices).

    array: an array, whose dtype is kept; or numbers in rows of equal length, where floats become float32 and ints
           int64. Fractions (``fractions.Fraction``) become float32, and exact checks take them at their true value
    Raises DeclarationError: ``argument.type`` for other values, ``declare.dtype`` for other dtypes.
    """
    import numpy as np

    try:
        values = np.asarray(array)
    except (TypeError, ValueError):  # rows of different lengths, an object with an __array__ of its own
        values = np.empty((), object)
    label = _name("constant" if name is None else name)
    if values.size and all(isinstance(v, Fraction) for v in values.flat):
        return Tensor(label, tuple(values.shape), "float32", data=tuple(values.flat))
    if values.dtype.kind not in "biufV":  # V: types of ml_dtypes
        raise wrong("array", array, "numbers in rows of equal length")
    if values.dtype == np.float64 and not hasattr(array, "dtype"):
        values = values.astype(np.float32)  # Python floats are weak
    data = tuple(values.ravel().tolist())
    return Tensor(label, tuple(values.shape), dtype_of(values.dtype).name, data=data)


@answers()
def reduce_axis(extent: Extent, name: str = "k", most: int | None = None) -> Var:
    """An axis to reduce over, 0 <= axis < extent.

    extent: an int or of dims; in a lambda also an element of an integer input, or the difference of two neighbours,
            with ``most`` as its bound: ``k = tir.reduce_axis(P[i + 1] - P[i], most=64)``, whose terms are read as
            ``A[P[i] + k]``. A launch refuses extents that are negative or larger than ``most``.
    Raises DeclarationError: ``declare.shape``, ``declare.data-extent`` (also for ``most`` with an int).
    """
    if isinstance(extent, Expr) and (most is not None or find(extent, Load)):
        return (
            need_most(extent, name) if most is None else data_axis(extent, need_int("most", most, 1, MOST_CELLS), name)
        )
    begin: Any = extent
    second: Any = name
    if most is not None:
        raise refuse(DeclarationError, "declare.data-extent", f"the extent {shown(extent)} of reduce axis {name} needs "
                     "no bound", hint=f"tir.reduce_axis({shown(extent)})")  # fmt: skip
    if isinstance(extent, tuple | list | range) or type(second) is int:  # TVM's (begin, extent), Python's range
        spans = isinstance(extent, range)
        given = (extent, second) if type(second) is int else (begin.start, begin.stop) if spans else tuple(begin)
        size = begin.stop - begin.start if spans else given[-1] if given else 1
        message = f"a reduce axis starts at 0 and has one int for its extent, not {shown(given)}"
        raise refuse(DeclarationError, "declare.shape", message, hint=f"k = tir.reduce_axis({shown(size)})")
    (n,) = extents_of((begin,), name)
    return Var(_name(name), "index", extent=n)


@answers()
def scalar(name: str, dtype: object = "float32") -> Expr:
    """A parameter that each launch passes by value (alpha, eps …); inputs and scalars are passed in order of
    declaration.
    """
    return Var(_name(name), dtype_of(dtype).name, order=next_order())


@answers()
def dim(name: str, low: int = 1, high: int = 4096) -> Expr:
    """An extent known at launch, for shapes, reduce axes and index arithmetic: one build serves every extent.

    >>> n = tir.dim("n", low=1, high=4096)
    >>> A = tir.placeholder((n, 64), name="A")

    low, high: the least and the largest extent; reads are proved in range for all of them, and copies that need a
               constant size take the largest. A launch reads the extent from the shapes of its arguments

    Raises DeclarationError ``dim.range``; ``declare.name`` for a name that is no identifier.
    """
    label = _name(name)
    if not label.isidentifier() or keyword.iskeyword(label):
        message = f"the name of a dim stands in expressions of extents, which {shown(name)} cannot"
        raise refuse(DeclarationError, "declare.name", message, hint="an identifier: n, rows, batch_size")
    least, largest = need_int("low", low), need_int("high", high)
    if not 1 <= least <= largest <= LARGEST_DIM:
        message = f"the extents of dim {label} are {shown(low)} to {shown(high)}: they start at 1, end below 2**31"
        raise refuse(DeclarationError, "dim.range", message, hint=f"tir.dim({label!r}, low=1, high=4096)")
    return Var(label, "index", order=next_order(), bounds=(least, largest))


@overload
def compute(shape: Shape, fn: Callable[..., Value], name: str = "C", axes: Sequence[str] | None = None) -> Tensor: ...
@overload
def compute(
    shape: Shape, fn: Callable[..., tuple[object, ...]], name: str = "C", axes: Sequence[str] | None = None
) -> tuple[Tensor, ...]: ...
@answers()
def compute(
    shape: Shape, fn: Callable[..., object], name: str = "C", axes: Sequence[str] | None = None
) -> Tensor | tuple[Tensor, ...]:
    """A tensor defined element by element: ``fn`` is called once with one symbolic index per dimension.

    shape: of the result, ints, dims or expressions of them
    fn:    returns an expression or a number, or a tuple of them for a tuple of tensors, ``C_0``, ``C_1`` …, whose
           reductions are over the same axes
    axes:  names of the axes; by default those of fn's parameters
    Every access is proved in range here, or refused with a counterexample; indices that are elements of inputs are
    checked at launch. A reduction inside a larger expression becomes a compute of its own, such as ``C_sum``.

    Raises DeclarationError (``declare.*``).
    """
    extents = extents_of(shape, name)
    need_function("fn", fn) if axes is not None else None
    names = axis_names(fn, len(extents)) if axes is None else need_names("axes", axes)
    if len(names) != len(extents):
        message = f"the shape of {name} has {len(extents)} dimensions but axes= names {len(names)}"
        raise refuse(DeclarationError, "declare.lambda-arity", message)
    variables = tuple(Var(n, "index") for n in names)
    result = called(fn, variables, name)
    several = isinstance(result, tuple)
    bodies = tuple(_body(r, name, variables, extents) for r in (result if several else (result,)))
    _same_reduction(bodies, name)
    op = Compute(_name(name), variables, extents, bodies)
    check_accesses(op)
    labels = [op.name] if not several else [f"{op.name}_{n}" for n in range(len(bodies))]
    op.outputs = tuple(Tensor(n, extents, b.dtype, op) for n, b in zip(labels, bodies, strict=True))
    return op.outputs if several else op.outputs[0]


def called(fn: Callable[..., Any], axes: tuple[Var, ...], name: str) -> Any:
    """Return ``fn(*axes)`` for the user's lambda ``fn`` of tensor ``name``; its exceptions become DeclarationError
    ``declare.lambda-failed`` with the user's line, but TensorIRErrors pass unchanged.
    """
    try:
        return fn(*axes)
    except TensorIRError:
        raise
    except Exception as e:  # the user's own code: its line is named, and the error keeps its cause
        message = f"the lambda of {name} raised {type(e).__name__}: {e}"
        raise refuse(DeclarationError, "declare.lambda-failed", message, where=line_of(e)) from e


def axis_names(fn: Callable[..., Any], rank: int) -> list[str]:
    """Return names for ``rank`` axes: those of the lambda's parameters, and i0, i1, … for ``*args``.

    Raises DeclarationError: ``declare.lambda-arity`` if it requires another number of arguments,
    ``declare.not-callable`` if it is no function or its parameters are unknown.
    """
    if not callable(fn):
        raise refuse(DeclarationError, "declare.not-callable", f"expected a lambda, got {shown(fn)}")
    try:
        params = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have none
        raise refuse(DeclarationError, "declare.not-callable", f"the parameters of {shown(fn)} are not known",
                     hint="axes=['i', …]") from None  # fmt: skip
    if any(p.kind is p.VAR_POSITIONAL for p in params):
        fixed = [p.name for p in params if p.kind is not p.VAR_POSITIONAL]
        return (fixed + [f"i{n}" for n in range(rank - len(fixed))])[:rank]
    needed = [p.name for p in params if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    usable = [p.name for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) != rank:
        raise refuse(
            DeclarationError, "declare.lambda-arity",
            f"the shape has {rank} dimensions but the lambda takes {len(needed)} ({', '.join(needed)})",
        )  # fmt: skip
    return usable[:rank]


def _body(value: Any, name: str, axes: Sequence[Var], extents: Sequence[Any]) -> Expr:
    if value is None:
        raise refuse(DeclarationError, "declare.lambda-none", f"the lambda of {name} returned None",
                     hint="return the element's expression")  # fmt: skip
    body = as_value(value)
    _not_too_deep(body, name)
    body = epilogue(body, name, axes, extents, check_accesses)
    bound = set(body.axes) if isinstance(body, Reduce) else set()
    loose = [v.name for v in find(body, Var) if v.extent is not None and v not in bound]
    if loose:
        raise refuse(
            DeclarationError,
            "declare.loose-axis",
            f"{name} uses reduce axis {loose[0]} outside a reduction over it",
            hint=f"tir.sum(…, axis={loose[0]})",
        )
    return body


LEVELS = 20_000
"""Operations of one expression, each an operand of the next: of some more, Python frees nodes too deep in its stack."""


def _not_too_deep(body: Expr, name: str) -> None:
    """Raise DeclarationError ``declare.too-deep`` for an expression nested deeper than ``LEVELS``."""
    if body.height > LEVELS:
        message = f"{name} nests more than {LEVELS} operations in one expression"
        hint = "tir.sum over a reduce axis, or several computes: one for each round"
        raise refuse(DeclarationError, "declare.too-deep", message, hint=hint)


def _same_reduction(bodies: tuple[Expr, ...], name: str) -> None:
    axes = {tuple(map(id, b.axes)) if isinstance(b, Reduce) else () for b in bodies}
    if len(axes) > 1:
        raise refuse(DeclarationError, "declare.mixed-reductions", f"the results of {name} reduce over different axes",
                     hint="one compute for each set of axes")  # fmt: skip


def extents_of(shape: Shape, name: str) -> tuple[Extent, ...]:
    """Return a shape, or a single extent, as a tuple of ints and expressions of dims.

    Raises DeclarationError: ``declare.shape`` for more than 64 dimensions or extents that are no ints from 0 to 2**62,
    ``dim.range`` for expressions of dims that may be outside 1 to 2**31 - 1.
    """
    row = getattr(shape, "ndim", int(isinstance(shape, Sequence) and not isinstance(shape, str))) == 1
    given = tuple(islice(cast("Sequence[Extent]", shape), MAX_RANK + 1)) if row else (shape,)  # never all of a huge one
    if len(given) > MAX_RANK:
        message = f"the shape {shown(shape)} of {shown(name)} has more than {MAX_RANK} dimensions"
        raise refuse(DeclarationError, "declare.shape", message, hint="a tuple of ints, such as (64, 48)")
    out: list[Any] = []
    for n in given:
        if isinstance(n, Expr) and dims_in(n):
            out.append(_extent(n, name))
            continue
        try:
            out.append(need_int("an extent", n, 0, MOST_CELLS))
        except DeclarationError:
            message = f"the shape {shown(shape)} of {shown(name)} holds {shown(n)}: extents are ints from 0 to 2**62"
            hint = "tir.compute((n, m), lambda i, j: …)" if callable(shape) else "a tuple of ints, such as (64, 48)"
            raise refuse(DeclarationError, "declare.shape", message, hint=hint) from None
    return tuple(out)


def _extent(n: Expr, name: str) -> Expr:
    """``n``, an extent that depends on dims, if it is always from 1 to 2**31 - 1. Raises DeclarationError
    ``dim.range``.
    """
    low, high = span(n)
    if low < 1 or high > LARGEST_DIM:
        message = f"extent {show(n)} of {shown(name)} is {low} to {high}: those that depend on dims are 1 to 2**31 - 1"
        names = ", ".join(v.name for v in dims_in(n))
        raise refuse(DeclarationError, "dim.range", message, hint=f"a narrower range of {names}: tir.dim(…, low=…)")
    return n


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise refuse(DeclarationError, "declare.name", f"a name must be a non-empty string, got {shown(name)}")
    return need_name("the name", name, code="declare.name")


# Reductions inside larger expressions: each becomes a compute of its own, which the expression reads.


def epilogue(
    body: Expr, name: str, axes: Sequence[Var], extents: Sequence[int], check: Callable[[Compute], None]
) -> Expr:
    """``body`` with each nested reduction replaced by a read of a new tensor that computes it (``C_sum``), over only
    the axes that the reduction depends on. A ``body`` that is a reduction itself remains one.

    check: function that validates the accesses of a new compute
    """
    inside = _Apart(name, dict(zip(axes, extents, strict=True)), check)
    return body.map(inside) if isinstance(body, Reduce) else inside(body)


class _Apart(Rewriter):
    def __init__(self, name: str, axes: dict[Var, int], check: Callable[[Compute], None]) -> None:
        self.name, self.axes, self.check = name, axes, check
        self.made: dict[tuple[int, ...], tuple[tuple[Tensor, ...], tuple[Var, ...]]] = {}
        self.kept: list[Reduce] = []  # whose ids are keys

    def on_Reduce(self, n: Reduce) -> Expr:
        key = (id(n.combiner), *map(id, n.axes), *map(id, n.values))
        if key not in self.made:
            self.kept.append(n)
            self.made[key] = self._compute(n.map(self))
        tensors, used = self.made[key]
        return tensors[n.which][used]

    def _compute(self, n: Reduce) -> tuple[tuple[Tensor, ...], tuple[Var, ...]]:
        within = {v for e in n.values for v in find(e, Var)}
        outer = [v for v in within if v.extent is not None and not among(v, n.axes)]
        used = (*(v for v in self.axes if v in within), *sorted(outer, key=lambda v: v.name))
        own = tuple(Var(v.name, "index") for v in used)
        sizes = tuple(self.axes[v] if v in self.axes else int(v.extent) for v in used)
        values = tuple(substitute(e, dict(zip(used, own, strict=True))) for e in n.values)
        bodies = tuple(n.replace(values=values, which=w, dtype=e.dtype) for w, e in enumerate(values))
        op = Compute(f"{self.name}_{n.combiner.name}", own, sizes, bodies)
        self.check(op)
        labels = [op.name] if len(bodies) == 1 else [f"{op.name}_{w}" for w in range(len(bodies))]
        op.outputs = tuple(Tensor(label, sizes, b.dtype, op) for label, b in zip(labels, bodies, strict=True))
        return op.outputs, used
