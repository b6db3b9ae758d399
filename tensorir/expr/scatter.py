"""``scatter``: combines terms into computed target elements, as in histograms and segmented sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_name
from tensorir.expr.bounds import check_accesses, gathered
from tensorir.expr.compute import axis_names, called, extents_of
from tensorir.expr.scan import joining, letters
from tensorir.expr.tensor import Compute, Tensor, has_reduce
from tensorir.ir.build import as_expr, as_value, cast, const, converted
from tensorir.ir.dims import same_shape
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import Combiner, Const, Expr, Load, Placed, Reduce, Var
from tensorir.ir.visit import find


@answers()
def scatter(
    shape: Sequence[int] | int,
    over: Sequence[int] | int,
    index: Callable[..., object],
    value: Callable[..., object],
    op: object = "sum",
    fill: object = 0,
    name: str = "B",
) -> Tensor:
    """A tensor whose cells combine the terms that are sent to them, in the order of the domain.

    shape: of the result, ints;  over: extents of the domain
    index: function from one symbolic index per dimension of the domain to a term's cell: an index per dimension of the
           result, as a tuple
    value: function of the same indices -> the term; the result has its dtype (an int literal: int32)
    op:    "sum", "prod", "min", "max", a ``tir.combiner`` of one value, or "set": a term replaces the cell's content,
           and no two terms go to one cell
    fill:  initial content of cells: a number, or a tensor of the result's shape and dtype

    Indices read from inputs are checked at launch; for "set" also that targets are distinct. Its stages are ``B.init``
    and ``B``. Raises DeclarationError: ``scatter.*``, ``declare.*``.
    """
    extents, domain = extents_of(shape, name), extents_of(over, name)
    axes = tuple(Var(n, "index", extent=e) for n, e in zip(axis_names(value, len(domain)), domain, strict=True))
    axis_names(index, len(domain))
    term = _expression(called(value, axes, name), "value", name)
    place = _place(called(index, axes, name), extents, name)
    cells = tuple(Var(n, "index") for n in letters(len(extents)))
    part = Placed(place, _fill(fill, extents, term.dtype, cells, name))
    body = Reduce(_joins(op, term), axes, (term,), 0, term.dtype, part)
    made = Compute(need_name("name", name), cells, extents, (body,))
    if isinstance(op, str) and op == "set":
        _need_unique(place, axes, name)
    check_accesses(made)
    made.outputs = (Tensor(name, extents, term.dtype, made),)
    return made.outputs[0]


def _joins(op: Any, term: Expr) -> Combiner:
    if isinstance(op, str) and op == "set":
        old, new = Var("a0", term.dtype), Var("b0", term.dtype)
        return Combiner("set", (old,), (new,), (new,), (const(0, term.dtype),), False)
    return joining(op, [term.dtype], False, "scatter.operator")


def _expression(given: Any, what: str, name: str) -> Expr:
    made = as_value(given)
    if has_reduce(made):
        raise refuse(DeclarationError, "scatter.reduction", f"the {what} of {name} is made of a reduction",
                     hint="a tir.compute before it, whose element it is")  # fmt: skip
    return made


def _place(given: Any, extents: tuple[int | Expr, ...], name: str) -> tuple[Expr, ...]:
    found = given if isinstance(given, tuple) else (given,)
    if len(found) != len(extents):
        raise refuse(DeclarationError, "scatter.index", f"{name} has {len(extents)} dimensions, and index= gives "
                     f"{len(found)} indices", hint="lambda t: (row[t], column[t]), one for each dimension")  # fmt: skip
    out = []
    for i in found:
        e = as_expr(i)
        if DTYPES[e.dtype].kind not in "iu" or has_reduce(e):
            raise refuse(DeclarationError, "scatter.index", f"an index of {name} is {show(e)}, a {e.dtype}",
                         hint="integers: tir.cast(…, 'int32')")  # fmt: skip
        out.append(cast(e, "index"))
    return tuple(out)


def _fill(fill: Any, extents: tuple[int | Expr, ...], dtype: str, cells: tuple[Var, ...], name: str) -> Expr:
    if not isinstance(fill, Tensor):
        return converted(fill, dtype)
    if not same_shape(fill.shape, extents) or fill.dtype != dtype:
        raise refuse(DeclarationError, "scatter.fill", f"{name} is {dtype}{list(extents)}, and its fill {fill.name} "
                     f"{fill.dtype}{list(fill.shape)}", hint="a tensor of the same shape and dtype")  # fmt: skip
    return fill[cells] if cells else fill[()]


def _need_unique(place: tuple[Expr, ...], axes: tuple[Var, ...], name: str) -> None:
    """Raise DeclarationError ``scatter.unique`` if a launch cannot check that the target indices ``place`` are
    distinct.
    """
    for i in place:
        load = gathered(i)
        if among(i, axes) or (load is not None and all(isinstance(j, Const) or among(j, axes) for j in load.index)):
            continue
        if find(i, (Load, Var)):
            raise refuse(
                DeclarationError, "scatter.unique", f"whether terms of {name} go to different cells is checked at "
                f"launch, and {show(i)} is neither an axis nor an element at[t] of an input",
                hint='the finished index as an input, or op="max", "sum" …')  # fmt: skip
