"""2-D pooling: max, average, adaptive average."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_bool, need_int, plain_ints, wrong
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast, maximum, minimum
from tensorir.expr.reducers import max as largest_of
from tensorir.expr.reducers import sum as total_of
from tensorir.expr.tensor import Tensor
from tensorir.ir.build import lowest
from tensorir.ir.tree import Expr, Var
from tensorir.nn.arguments import axis_names, misfit, need_floats, need_several, need_tensors, wide
from tensorir.nn.sides import pads_of


@dataclass(frozen=True)
class _Window:
    """Pooling windows along one dimension of ``size`` elements."""

    size: int
    taps: int
    stride: int
    before: int
    after: int
    dilation: int
    ceil: bool

    @property
    def results(self) -> int:
        """Number of windows, rounded up if ``ceil`` but without any that begins past the image; may be below 1."""
        room = self.size + self.before + self.after - self.dilation * (self.taps - 1) - 1
        if not self.ceil:
            return room // self.stride + 1
        out = -(-room // self.stride) + 1
        return out - 1 if (out - 1) * self.stride >= self.size + self.before else out

    @property
    def crosses(self) -> bool:
        """True if some window extends past an end, into padding or (with ``ceil``) beyond it."""
        return self.before > 0 or (self.results - 1) * self.stride + (self.taps - 1) * self.dilation >= self.size

    def first(self, i: Expr) -> Expr:
        """First index of window ``i``, negative in the padding."""
        return i * self.stride - self.before if self.before else i * self.stride

    def length(self, i: Expr, padding: bool) -> Any:
        """Number of elements of window ``i`` inside the image: an int if equal for all windows; for dilation 1.

        padding: True to count padding too, but nothing beyond it
        """
        if not self.crosses or (padding and not self.ceil):
            return self.taps
        end = minimum(self.first(i) + self.taps, self.size + self.after)
        return end - self.first(i) if padding else minimum(end, self.size) - maximum(self.first(i), 0)


def _windows(x: Tensor, kernel_size: object, stride: object, padding: object, dilation: object,
             ceil_mode: object) -> list[_Window]:  # fmt: skip
    """[windows along rows, windows along columns] from the arguments of a pooling function.

    Raises DeclarationError ``nn.shape`` unless rows and columns are constants, ``nn.window`` for padding above half of
    a window or an image smaller than one, ``argument.*``.
    """
    need_tensors(x=x)
    taps = need_several("kernel_size", kernel_size, 2, 1)
    steps = taps if stride is None else need_several("stride", stride, 2, 1)
    pads, apart = pads_of("padding", padding, 2, "nn.window"), need_several("dilation", dilation, 2, 1)
    up = need_bool("ceil_mode", ceil_mode)
    out = []
    for size, f, s, p, d in zip(_sizes(x), taps, steps, pads, apart, strict=True):
        if isinstance(size, Expr):
            raise misfit(f"the rows and columns of {x.name} {x.shape} must be ints: pooled images have a fixed size")
        if 2 * max(p) > f:
            raise refuse(DeclarationError, "nn.window", f"padding={max(p)} is more than half of kernel_size={f}")
        w = _Window(size, f, s, *p, d, up)
        if w.results < 1:
            zeros = p[0] if p[0] == p[1] else p
            message = f"{size} elements with padding={zeros} are fewer than a window of {f} (dilation={d}) reads"
            raise refuse(DeclarationError, "nn.window", message)
        out.append(w)
    return out


def _sizes(x: Tensor) -> tuple[Any, Any]:
    """(rows, columns) of images (N, C, H, W) or (C, H, W); raises ``nn.shape`` for other tensors."""
    if x.ndim not in (3, 4):
        raise misfit(f"{x.name} {x.shape} must have 3 or 4 dimensions", hint="(N, C, H, W) or (C, H, W)")
    return x.shape[-2], x.shape[-1]


def _pooled(x: Tensor, windows: list[_Window], fill: Any, value: Callable[[Expr, tuple[Var, ...]], Expr],
            name: str) -> Tensor:  # fmt: skip
    """Reduction over each window, reading ``fill`` outside the image."""
    axes = tuple(reduce_axis(w.taps, n) for w, n in zip(windows, "rs", strict=True))

    def element(*i: Expr) -> Expr:
        at = [w.first(p) + r * w.dilation for w, p, r in zip(windows, i[-2:], axes, strict=True)]
        crosses = any(w.crosses for w in windows)
        return value(x.get(*i[:-2], *at, fill=fill) if crosses else x[(*i[:-2], *at)], axes)

    shape = (*x.shape[:-2], *(w.results for w in windows))
    return compute(shape, element, name=name, axes=axis_names(x))


@plain_ints
def max_pool2d(x: Tensor, kernel_size: object, stride: object = None, padding: object = 0, dilation: object = 1,
               ceil_mode: bool = False, *, name: str = "max_pool2d") -> Tensor:  # fmt: skip
    """The largest element of each window, NaN where one is, as ``torch.nn.functional.max_pool2d``.

    x: (N, C, H, W) or (C, H, W), constant H and W
    kernel_size, stride, padding, dilation: an int, or one for rows and one for columns
    stride: by default kernel_size;  padding: at most half of kernel_size, uneven too, as ``pad`` of ``conv2d``; never
    the largest
    Raises DeclarationError ``nn.window``, ``nn.shape``.
    """
    windows = _windows(x, kernel_size, stride, padding, dilation, ceil_mode)
    return _pooled(x, windows, lowest(x.dtype), lambda e, axes: largest_of(e, axis=axes), name)


@plain_ints
def avg_pool2d(x: Tensor, kernel_size: object, stride: object = None, padding: object = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, divisor_override: int | None = None, *,
               name: str = "avg_pool2d") -> Tensor:  # fmt: skip
    """The mean of each window, as ``torch.nn.functional.avg_pool2d``.

    count_include_pad: True to count padding in the divisor;  divisor_override: the divisor, an int >= 1
    Sums of narrower floats are float32, the result has x's type.
    Other parameters as of ``max_pool2d``. Raises DeclarationError ``nn.window``, ``nn.shape``, ``nn.dtype``.
    """
    need_floats(x=x)
    windows = _windows(x, kernel_size, stride, padding, 1, ceil_mode)
    padded = need_bool("count_include_pad", count_include_pad)
    fixed = None if divisor_override is None else need_int("divisor_override", divisor_override, 1)
    total = _pooled(x, windows, 0, lambda e, axes: total_of(wide(e), axis=axes), f"{name}_sum")

    def count(p: Expr, q: Expr) -> Any:
        if fixed is not None:
            return fixed
        return windows[0].length(p, padded) * windows[1].length(q, padded)

    return _over(x, total, count, name)


def _over(x: Tensor, total: Tensor, count: Callable[[Expr, Expr], Any], name: str) -> Tensor:
    """``total / count`` per window, in the dtype of ``x``; ``count``: (row, column of a window) -> number."""

    def element(*i: Expr) -> Expr:
        n = count(i[-2], i[-1])
        return cast(total[i] / (cast(n, total.dtype) if isinstance(n, Expr) else n), x.dtype)

    return compute(total.shape, element, name=name, axes=axis_names(x))


@plain_ints
def adaptive_avg_pool2d(x: Tensor, output_size: object, *, name: str = "adaptive_avg_pool2d") -> Tensor:
    """The means of ``output_size`` windows that cover the image, as ``torch.nn.functional.adaptive_avg_pool2d``.

    output_size: an int, or one for rows and one for columns; None keeps a size
    Window i of n has the elements from floor(i * size / n) to ceil((i + 1) * size / n): where n does not divide the
    size, windows overlap and differ in length. Raises DeclarationError ``nn.shape``, ``nn.dtype``.
    """
    need_floats(x=x)
    sizes = _sizes(x)
    given: Any = output_size if isinstance(output_size, list | tuple) else (output_size, output_size)
    if len(given) != 2:
        raise wrong("output_size", output_size, "an int or 2 of them")
    if any(isinstance(n, Expr) for n in sizes):
        raise misfit(f"the rows and columns of {x.name} {x.shape} must be ints: pooled images have a fixed size")
    counts = [n if o is None else need_int("output_size", o, 1) for n, o in zip(sizes, given, strict=True)]
    pairs = list(zip(sizes, counts, strict=True))
    longest = [_longest(*pair) for pair in pairs]
    axes = tuple(reduce_axis(n, a) for n, a in zip(longest, "rs", strict=True))

    def first(i: Expr, n: int, o: int) -> Expr:
        return i * n // o if n % o else i * (n // o)

    def length(i: Expr, n: int, o: int) -> Any:
        return ((i + 1) * n + o - 1) // o - first(i, n, o) if n % o else n // o

    def sums(*i: Expr) -> Expr:
        at = [first(p, *pair) + r for p, pair, r in zip(i[-2:], pairs, axes, strict=True)]
        uneven = [(r, p, pair) for p, pair, r in zip(i[-2:], pairs, axes, strict=True) if pair[0] % pair[1]]
        if not uneven:
            return total_of(wide(x[(*i[:-2], *at)]), axis=axes)
        there = [r < length(p, *pair) for r, p, pair in uneven]
        value = x.get(*i[:-2], *at, fill=0)
        return total_of(wide(value), axis=axes, where=there[0] if len(there) == 1 else there[0] & there[1])

    total = compute((*x.shape[:-2], *counts), sums, name=f"{name}_sum", axes=axis_names(x))
    return _over(x, total, lambda p, q: length(p, *pairs[0]) * length(q, *pairs[1]), name)


def _longest(size: int, count: int) -> int:
    """Length of the longest of ``count`` windows covering ``size`` elements."""
    if count > size:  # parts of elements: some window has two, unless no element is cut
        return 2 if count % size else 1
    return max(-(-(i + 1) * size // count) - i * size // count for i in range(count // math.gcd(size, count)))
