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
    """Type of functions of one element or whole tensor, which return the same kind."""

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]  # a tensor is an object as well
    @overload
    def __call__(self, x: object) -> Expr: ...


class OfTwo(Protocol):
    """Type of functions of two elements or whole tensors, which are broadcast."""

    @overload
    def __call__(self, a: Tensor, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, a: object, b: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, a: object, b: object) -> Expr: ...


class Conversion(Protocol):
    """Type of functions of an element or whole tensor and a dtype, such as ``cast``."""

    @overload
    def __call__(self, x: Tensor, dtype: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, x: object, dtype: object) -> Expr: ...


class Choice(Protocol):
    """Type of ``where``."""

    @overload
    def __call__(self, cond: Tensor, a: object, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: Tensor, b: object) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: object, b: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, cond: object, a: object, b: object) -> Expr: ...


class Logic(Protocol):
    """Type of functions of any number of conditions, such as ``all_``."""

    @overload
    def __call__(self, *conds: Tensor) -> Tensor: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, *conds: object) -> Expr: ...


class Reduction(Protocol):
    """Type of reductions: over reduce axes of elements, or over dimensions of a whole tensor (default: all)."""

    @overload
    def __call__(self, value: Tensor, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Tensor: ...
    @overload
    def __call__(self, value: object, axis: Axes, where: object = None) -> Expr: ...
