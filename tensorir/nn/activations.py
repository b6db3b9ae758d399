"""Activation functions, and the epilogue ``act(alpha * y + beta * d + bias)``."""

from __future__ import annotations

from collections.abc import Callable

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_choice, need_int, plain_ints, shown
from tensorir.expr.compute import compute
from tensorir.expr.functions import cast, erf, exp, maximum, tanh
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import as_expr
from tensorir.ir.tree import Expr
from tensorir.nn.arguments import axis_names, need_tensors

ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh")


@answers()
def bias_act(
    y: Tensor,
    bias: Tensor | None,
    act: str | None,
    *,
    axis: int,
    name: str = "out",
    alpha: Expr | None = None,
    d: Tensor | None = None,
    beta: Expr | None = None,
) -> Tensor:
    """``act(alpha * y + beta * d + bias)``, bias along dimension ``axis``; ``y`` itself without bias, act, alpha and d.

    act: None, "relu", "gelu" (erf form), "silu", "sigmoid" or "tanh";  d: a tensor of y's shape
    alpha, beta: scalars, 1 if None; ``beta`` is ignored without ``d``
    Raises DeclarationError ``nn.act``, ``argument.*``.
    """
    need_tensors(y=y, **{n: t for n, t in (("bias", bias), ("d", d)) if t is not None})
    need_int("axis", axis, 0, max(0, y.ndim - 1))
    _need_act(act)
    if bias is None and act is None and alpha is None and d is None:
        return y

    def element(*i: Expr) -> Expr:
        v = y[i]
        if alpha is not None:
            v = alpha * v
        if d is not None:
            v = v + (d[i] if beta is None else beta * d[i])
        if bias is not None:
            v = v + bias[i[axis]]
        return activation(v, act)

    names = axis_names(y)
    return compute(y.shape, element, name=name, axes=names)


@answers()
def activation(v: Expr, act: str | None) -> Expr:
    """``act`` applied to an element, or to a whole tensor; unchanged for None. Raises ``nn.act`` for unknown names."""
    _need_act(act)
    v = v if isinstance(v, Tensor) else as_expr(v)
    if act == "relu":
        return maximum(v, 0)
    if act == "gelu":
        return v * (erf(v * 0.7071067811865476) * 0.5 + 0.5)  # a factor of at most 1: v * 2 could overflow
    if act == "silu":
        return v / (exp(-v) + 1)
    if act == "sigmoid":
        return 1 / (exp(-v) + 1)
    return tanh(v) if act == "tanh" else v


def _need_act(act: object) -> None:
    if act is not None and (not isinstance(act, str) or act not in ACTIVATIONS):
        hint = f"None or one of {', '.join(ACTIVATIONS)}"
        raise refuse(DeclarationError, "nn.act", f"act={shown(act)} is not known", hint=hint)


def _each(x: Tensor, value: Callable[[Expr], Expr], name: str) -> Tensor:
    """Elementwise tensor function."""
    need_tensors(x=x)
    return compute(x.shape, lambda *i: value(x[i]), name=name, axes=axis_names(x))


@plain_ints
def relu(x: Tensor, *, name: str = "relu") -> Tensor:
    """``max(x, 0)`` elementwise."""
    return _each(x, lambda v: activation(v, "relu"), name)


@plain_ints
def gelu(x: Tensor, approximate: str = "none", *, name: str = "gelu") -> Tensor:
    """``x`` times the normal distribution function of ``x``, elementwise.

    approximate: "none" (by the error function) or "tanh"
    """
    if need_choice("approximate", approximate, ("none", "tanh")) == "none":
        return _each(x, lambda v: activation(v, "gelu"), name)
    return _each(x, lambda v: v * 0.5 * (tanh((v + v * v * v * 0.044715) * 0.7978845608028654) + 1), name)


@plain_ints
def silu(x: Tensor, *, name: str = "silu") -> Tensor:
    """``x / (1 + exp(-x))`` elementwise."""
    return _each(x, lambda v: activation(v, "silu"), name)


@plain_ints
def sigmoid(x: Tensor, *, name: str = "sigmoid") -> Tensor:
    """``1 / (1 + exp(-x))`` elementwise."""
    return _each(x, lambda v: activation(v, "sigmoid"), name)


@answers()
def convert(x: Tensor, dtype: str, *, name: str = "cast") -> Tensor:
    """``x`` in another element type, elementwise."""
    return _each(x, lambda v: cast(v, dtype), name)
