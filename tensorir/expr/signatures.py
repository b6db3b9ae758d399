"""Type signatures (Protocols) of functions that accept elements and whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, SupportsFloat, overload

from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr, Var

Axes = Var | Sequence[Var]
"""The reduce axes of a reduction of elements."""

Value = Expr | Tensor | SupportsFloat
"""A lambda's result for one tensor: an expression, a number, or a tensor of rank 0."""


class OfOne(Protocol):
    """Signature of a unary function."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]  # a tensor is an object as well
    @overload
    def __call__(self, x: object) -> Expr: ...


class OfTwo(Protocol):
    """Signature of a binary function with broadcasting."""

    @overload
    def __call__(self, a: Tensor, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, a: object, b: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, a: object, b: object) -> Expr: ...


class Conversion(Protocol):
    """Signature of ``cast``-like functions."""

    @overload
    def __call__(self, x: Tensor, dtype: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, x: object, dtype: object) -> Expr: ...


class Choice(Protocol):
    """Signature of ``where``."""

    @overload
    def __call__(self, cond: Tensor, a: object, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: Tensor, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: object, b: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: object, b: object) -> Expr: ...


class Logic(Protocol):
    """Signature of functions on conditions."""

    @overload
    def __call__(self, *conds: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, *conds: object) -> Expr: ...


class Reduction(Protocol):
    """Signature of reductions: over reduce axes of elements, or dimensions of a tensor (default: all)."""

    @overload
    def __call__(self, value: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...
    @overload
    def __call__(self, value: object, axis: Axes, where: object = None) -> Expr: ...
