"""``scan``: cumulative combinations along an axis, such as cumulative sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers, near
from tensorir.errors.needs import need_bool, need_int, need_name, shown
from tensorir.expr.bounds import check_accesses
from tensorir.expr.reducers import UserCombiner, simple_combiner
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dims import same_shape
from tensorir.ir.tree import Combiner, Prefix, Reduce, Var

SCANS = ("sum", "prod", "min", "max")
"""Built-in operators of scans."""


@overload
def scan(
    value: Tensor,
    axis: int = -1,
    op: object = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    name: str = "S",
) -> Tensor: ...
@overload
def scan(
    value: tuple[Tensor, ...],
    axis: int = -1,
    op: object = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    name: str = "S",
) -> tuple[Tensor, ...]: ...
@answers()
def scan(
    value: Tensor | tuple[Tensor, ...],
    axis: int = -1,
    op: object = "sum",
    exclusive: bool = False,
    reverse: bool = False,
    name: str = "S",
) -> Tensor | tuple[Tensor, ...]:
    """A tensor of the shape of ``value`` whose elements combine those of ``value`` up to their place along ``axis``.

    value: a tensor, or a tuple of tensors of one shape with a combiner of as many values, for a tuple of tensors
    op:    "sum", "prod", "min", "max", or a result of ``tir.combiner``; it need not commute
    exclusive: True to leave out the element at that place: the first result is the identity
    reverse:   True to combine from the last element down to that place

    The result has the dtype of ``value``. Its stage runs along ``axis``, its innermost loop, in order; the other loops
    may run in any order. Raises DeclarationError: ``scan.tensors``, ``scan.axis``, ``scan.operator``, ``reduce.*``.
    """
    several = isinstance(value, tuple)
    tensors = _tensors(value if isinstance(value, tuple) else (value,))
    shape = tensors[0].shape
    along = _axis(axis, tensors[0])
    part = need_bool("exclusive", exclusive), need_bool("reverse", reverse)
    joins = joining(op, [t.dtype for t in tensors], several)
    axes = tuple(Var(n, "index") for n in letters(len(shape)))
    over = Var(axes[along].name, "index", extent=shape[along])
    index = tuple(over if d == along else v for d, v in enumerate(axes))
    values, terms = tuple(t[index] for t in tensors), Prefix(axes[along], *part)
    bodies = tuple(Reduce(joins, (over,), values, n, v.dtype, terms) for n, v in enumerate(values))
    made = Compute(need_name("name", name), axes, shape, bodies)
    check_accesses(made)
    labels = [f"{name}_{n}" for n in range(len(bodies))] if several else [name]
    made.outputs = tuple(Tensor(n, shape, b.dtype, made) for n, b in zip(labels, bodies, strict=True))
    return made.outputs if several else made.outputs[0]


def letters(rank: int) -> Sequence[str]:
    """Return ``rank`` default axis names: i, j, k …"""
    return "ijklmnpq"[:rank] if rank <= 8 else [f"i{n}" for n in range(rank)]


def _tensors(given: tuple[Any, ...]) -> tuple[Tensor, ...]:
    for t in given:
        if not isinstance(t, Tensor):
            raise refuse(DeclarationError, "scan.tensors", f"a scan is of a tensor or a tuple of them, not {shown(t)}",
                         hint="tir.scan(A), with an expression as a tir.compute before it")  # fmt: skip
    if not given or not all(same_shape(t.shape, given[0].shape) for t in given):
        told = ", ".join(f"{t.name}{list(t.shape)}" for t in given) or "none"
        raise refuse(
            DeclarationError, "scan.tensors", f"a scan of several tensors is of those of one shape, not {told}"
        )
    return given


def _axis(axis: Any, t: Tensor) -> int:
    along = need_int("axis", axis)
    if not -t.ndim <= along < t.ndim:
        legal = f"{-t.ndim} to {t.ndim - 1}" if t.ndim else "none"
        raise refuse(DeclarationError, "scan.axis", f"axis={along}, but {t.name} has {t.ndim} dimensions",
                     hint=f"axis={legal}")  # fmt: skip
    return along % t.ndim


def joining(op: object, dtypes: Sequence[str], several: bool, code: str = "scan.operator") -> Combiner:
    """Return the combiner for the operator ``op``, a name or a user's combiner, on these dtypes. Raises
    DeclarationError with ``code`` for others.

    several: True for tuples of values
    """
    if isinstance(op, UserCombiner):
        return op.joining(dtypes, several)
    words = ", ".join(map(repr, SCANS))
    if not isinstance(op, str) or op not in SCANS:
        close = near(op, SCANS) if isinstance(op, str) else ""
        raise refuse(DeclarationError, code, f"op={shown(op)} is no operator of a {code.split('.')[0]}",
                     hint=close or f"{words}, or tir.combiner(lambda a, b: …, identity)")  # fmt: skip
    if several:
        message = f"op={op!r} joins single values, and there are {len(dtypes)} tensors"
        raise refuse(DeclarationError, code, message, hint="a tir.combiner of as many values")
    return simple_combiner(op, dtypes[0])
