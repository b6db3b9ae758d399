"""Argument validation shared by the functions of ``nn``."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.needs import need_int, need_list, spelt, wrong
from tensorir.expr.functions import cast
from tensorir.expr.scan import letters
from tensorir.expr.tensor import Tensor
from tensorir.ir.dims import same_shape
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.tree import Expr

Index = tuple[Expr, ...]


def need_tensors(**given: object) -> None:
    """Raise ``argument.type`` for arguments that are no tensors."""
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise wrong(name, x, "a Tensor", hint="tir.placeholder(shape, dtype)")


def need_floats(**given: object) -> None:
    """Raise ``nn.dtype`` unless all arguments are float tensors of one dtype."""
    need_tensors(**given)
    found = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    kinds = list(dict.fromkeys(x.dtype for x in found.values()))
    if len(kinds) > 1 or not is_float(kinds[0]):
        told = ", ".join(f"{name} {x.dtype}" for name, x in found.items())
        raise refuse(DeclarationError, "nn.dtype", f"{told}: one float type is expected",
                     hint="tir.nn.convert(x, 'float32')")  # fmt: skip


def need_dim(dim: object, x: Tensor) -> int:
    """Return ``dim``, counted from the end if negative, as a number from 0; raises ``nn.dim`` outside of the rank."""
    d = need_int("dim", dim)
    if not -x.ndim <= d < x.ndim:
        legal = f"{-x.ndim} to {x.ndim - 1}" if x.ndim else "none"
        raise refuse(DeclarationError, "nn.dim", f"dim={d}, but {x.name} has {x.ndim} dimensions", hint=f"dim={legal}")
    return d % x.ndim


def need_shape(name: str, x: Tensor, shape: Sequence[object]) -> None:
    """Raise ``nn.shape`` unless tensor ``x`` has ``shape``, symbolic extents included; ``argument.type`` for others."""
    need_tensors(**{name: x})
    if not same_shape(x.shape, shape):
        raise misfit(f"{name} has the shape {x.shape}, expected {tuple(shape)}")


def misfit(message: str, hint: str = "") -> TensorIRError:
    """The ``nn.shape`` error with this message, to be raised by the caller."""
    return refuse(DeclarationError, "nn.shape", message, hint=hint)


def need_several(name: str, value: object, count: int, low: int) -> tuple[int, ...]:
    """Return ``count`` ints >= ``low`` from one int (repeated), a list, or text like "2x1"; raises ``argument.*``."""
    value = spelt(value)
    if not isinstance(value, list | tuple):
        return (need_int(name, value, low),) * count
    found = need_list(name, value, "ints")
    if len(found) != count:
        raise wrong(name, value, f"an int or {count} of them")
    return tuple(need_int(f"{name}[{n}]", v, low) for n, v in enumerate(found))


def axis_names(x: Tensor) -> list[str]:
    """Names of the axes of ``x``: those of its declaration; single letters for a placeholder."""
    return [v.name for v in x.op.axes] if x.op else list(letters(x.ndim))


def wide(x: Expr) -> Expr:
    """``x`` in the type in which it is accumulated: float32 for narrower floats."""
    return cast(x, "float32") if DTYPES[x.dtype].widened else x
