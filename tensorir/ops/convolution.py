"""Workloads of 2-D convolutions and their gradients, with references in NumPy."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tensorir import nn
from tensorir.api.workload import Template, Templates, Workload
from tensorir.automatic.facts import Wishes
from tensorir.engines.problems import Conv
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_number, plain_ints
from tensorir.expr.compute import placeholder
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import dtype_of, is_float
from tensorir.nn.sides import WindowAxis, sides_of, texts_of
from tensorir.ops.baselines import conv2d_baselines
from tensorir.ops.common import (
    Ruled,
    activate,
    added_type,
    epilogue,
    fastest,
    flags,
    need_precision,
    out_dtype,
    positive,
)
from tensorir.ops.operators import OPERATORS
from tensorir.target import Target

DEFAULTS = dict(residual=False, prepack=False, max_error=1e-4, precision="fp32")
"""Options omitted from a workload's name when they have these values."""
LOADED_ALONE = ("cpu_tile_column", "cpu_tile_strip")
"""CPU templates that are created without running rules, to load kernels of theirs."""
FEWEST_CHANNELS = 4
"""Least channels of a group to treat it as a matrix product."""
WAYS = ("cpu_tile_column", "cpu_tile_turned", "cpu_tile_image", "cpu_tile_registers")
"""CPU templates compared by modelled time to choose the default."""
SIDES = {"x": ("n", "c", "h", "w"), "w": ("k", "cg", "r", "s"), "y": ("n", "k", "p", "q")}
"""Dimensions of image x, filter w and result y, in the order of NCHW."""
PRODUCTS = {"y": ("xw", "ncpq, kc -> nkpq"), "x": ("yw", "nkpq, kc -> ncpq"), "w": ("xy", "ncpq, nkpq -> kc")}
"""Result among image x, filter w and result y -> (its operands, einsum of them at one tap)."""


@plain_ints
def conv2d(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3, stride: object = 1,
           pad: object = 0, dilation: object = 1, groups: int = 1, layout: str = "NCHW", dtype: str = "float32",
           bias: bool = False, act: str | None = None, residual: bool = False, prepack: bool = False,
           max_error: float = 1e-4, precision: str = "fp32") -> Workload:  # fmt: skip
    """Workload of a 2-D convolution with bias, residual and activation in one kernel; shapes as in ``nn.conv2d``.

    dtype:     of x and w; the result's type follows as in ``matmul``
    stride, pad, dilation: as in ``nn.conv2d``, or as text: "2x1", "0x1x2x1". Templates are those of ``tir.auto`` if
    rows and columns differ, or padding before and after
    prepack:   True if the weights are constants: they are packed ahead of time, once for all launches
    max_error: maximum error of an algorithm relative to the largest output (Winograd's grows with its tiles)
    precision: of float32 products on GPUs, as in ``matmul``: "fp32", "tf32" or "3xtf32"

    Arguments: x, w, then bias (k,) and a residual of the result's shape if enabled.
    Raises DeclarationError with the name of the illegal parameter; ``prepack`` requires equal rows and columns
    and even padding.
    """
    given = dict(n=n, c=c, h=h, w=w, k=k, r=r, s=s, **_geometry(stride, pad, dilation), groups=groups,
                 layout=layout, dtype=dtype_of(dtype).name, bias=bias, act=act, residual=residual, prepack=prepack,
                 max_error=max_error, precision=precision)  # fmt: skip
    flags(given, ("bias", "residual", "prepack"))
    most = need_number("max_error", max_error, 0)
    shape, y = _declared({**given, "max_error": most})
    if prepack and shape.uneven:
        message = f"nothing is packed ahead of stride={stride}, pad={pad}, dilation={dilation}"
        raise refuse(DeclarationError, "conv2d.prepack", message, hint="prepack=False")
    added = added_type(shape.dtype)
    b = placeholder((k,), added, name="b") if bias else None
    d = placeholder(y.shape, added, name="residual") if residual else None
    out = epilogue(y, shape, 1 if shape.nchw else 3, bias=b, d=d)  # which refuses activations that are none
    return _workload("conv2d", out, shape, given, "y", baselines=conv2d_baselines(shape), max_error=most)


@plain_ints
def conv2d_backward_data(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3,
                         stride: object = 1, pad: object = 0, dilation: object = 1,
                         groups: int = 1, layout: str = "NCHW",
                         dtype: str = "float32", precision: str = "fp32") -> Workload:  # fmt: skip
    """Workload of a convolution's gradient with respect to its image; parameters as in ``conv2d``.

    Arguments: dy, w, in the shapes of the result and filter of ``nn.conv2d``.
    Raises DeclarationError with the name of the illegal parameter.
    """
    given = dict(n=n, c=c, h=h, w=w, k=k, r=r, s=s, **_geometry(stride, pad, dilation), groups=groups,
                 layout=layout, dtype=dtype_of(dtype).name, precision=precision)  # fmt: skip
    shape, _ = _declared(given)
    dx = nn.conv2d_backward_data(
        _operand("dy", shape), _operand("w", shape), (h, w), accumulate=shape.wide, **_how(given)
    )
    return _workload("conv2d_backward_data", epilogue(dx, shape, 1), shape, given, "x")


@plain_ints
def conv2d_backward_weight(n: int = 1, c: int = 64, h: int = 56, w: int = 56, k: int = 64, r: int = 3, s: int = 3,
                           stride: object = 1, pad: object = 0, dilation: object = 1,
                           groups: int = 1, layout: str = "NCHW",
                           dtype: str = "float32", precision: str = "fp32") -> Workload:  # fmt: skip
    """Workload of a convolution's gradient with respect to its filter; parameters as in ``conv2d``.

    Arguments: x, dy, in the shapes of the image and result of ``nn.conv2d``.
    Raises DeclarationError with the name of the illegal parameter.
    """
    given = dict(n=n, c=c, h=h, w=w, k=k, r=r, s=s, **_geometry(stride, pad, dilation), groups=groups,
                 layout=layout, dtype=dtype_of(dtype).name, precision=precision)  # fmt: skip
    shape, _ = _declared(given)
    dw = nn.conv2d_backward_weight(
        _operand("x", shape), _operand("dy", shape), (r, s), accumulate=shape.wide, **_how(given)
    )
    return _workload("conv2d_backward_weight", epilogue(dw, shape, 1), shape, given, "w")


def _geometry(stride: object, pad: object, dilation: object) -> dict[str, Any]:
    return {**texts_of(sides_of(2, stride, pad, dilation))}


def _how(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("stride", "pad", "dilation", "groups", "layout")}


def _declared(given: Mapping[str, Any]) -> tuple[Conv, Tensor]:
    """(shape, sums) of a convolution, parameters checked: problem of the engines, and the declared ``nn.conv2d``."""
    need_precision("conv2d", given["precision"], given["dtype"])
    positive(given, ("n", "c", "h", "w", "k", "r", "s"))
    nn.need_layout(given["layout"])
    groups = given["groups"]
    counts = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    whole = counts and given["c"] % groups == 0  # what does not fit is refused by the declaration
    how = {name: given[name] for name in ("stride", "pad", "dilation")}
    plain = all(isinstance(v, int) for v in how.values())
    told = {} if plain else {"stride": 1, "pad": 0, "dilation": 1, "uneven": sides_of(2, **how)}
    shape = Conv(**{**given, **told, "groups": groups if whole else 1}, p=1, q=1)
    y = nn.conv2d(_operand("x", shape), _operand("w", shape), accumulate=shape.wide, **_how(given))
    p, q = y.shape[2:] if shape.nchw else y.shape[1:3]
    return replace(shape, p=p, q=q), y


def _operand(name: str, shape: Conv) -> Tensor:
    """Placeholder of the image ("x"), the filter ("w"), or the gradient of the result ("dy")."""
    first, second, *pixels = (getattr(shape, v) for v in SIDES[name[-1]])
    order = (first, second, *pixels) if shape.nchw else (first, *pixels, second)
    return placeholder(order, shape.dtype, name=name)


def _workload(name: str, out: Tensor, shape: Conv, given: Mapping[str, Any], made: str, **more: Any) -> Workload:
    kept, fits = ("w",) if shape.prepack else (), made == "y" and shape.winograd_tiles
    ruled = Ruled(out, Wishes(shape.precision, kept, max_error=shape.max_error), {"cpu": {"tile", "winograd"}})

    def alone() -> Mapping[str, Template]:
        several = not _in_groups(shape) and min(shape.c, shape.k, shape.p * shape.q) > 1
        fast = {"cpu_winograd": ruled.later("cpu_winograd", approximate=True)}
        return {name: ruled.later(name) for name in (LOADED_ALONE if several else ())} | (fast if fits else {})

    def first(target: Target) -> str:
        of = ruled.tiled("cpu", target)
        # it takes several kernels: not what a call without further wishes starts with
        return "cpu_winograd" if shape.prepack and "cpu_winograd" in of else _begins_with(shape, of, target)

    later = {kind: functools.partial(ruled.tiled, kind) for kind in ("cpu", "gpu")}
    return Workload(
        name,
        out,
        templates=None if shape.uneven else Templates({}, later, alone, {"cpu": first}, ruled.named),
        reference=lambda *arrays: reference(shape, made, *arrays),
        flops=shape.flops,
        origin=("ops", name, {v: x for v, x in given.items() if v not in DEFAULTS or x != DEFAULTS[v]}),
        operator=OPERATORS[name],
        **more,
    )


def _begins_with(shape: Conv, ruled: Mapping[str, Template], target: Target) -> str:
    """Name of the default CPU template: the fastest of ``WAYS`` by modelled time, else the first template."""
    narrow = max(shape.cg, shape.kg) < FEWEST_CHANNELS
    ways = {} if narrow else {name: ruled[name] for name in WAYS if name in ruled}
    if len(ways) < 2:
        return next(iter(ruled))
    return fastest(ways.items(), target)


def _in_groups(shape: Conv) -> bool:
    """True for several groups, and for one input and one output channel, which are scheduled like a group."""
    return shape.groups > 1 or shape.c == shape.k == 1


def reference(shape: Conv, made: str, *arrays: np.ndarray) -> np.ndarray:
    """A convolution ("y"), or its gradient with respect to "x" or "w", in NumPy, tap by tap.

    Computed in float64 or int64, converted to ``out_dtype``.
    arrays: the workload's arguments: both operands, then bias and residual if used
    """
    kind, (others, product) = np.float64 if is_float(shape.dtype) else np.int64, PRODUCTS[made]
    rows, columns = shape.sides
    first, *more = (np.asarray(a).astype(kind) for a in arrays)
    second, *more = more
    held = {v: a if shape.nchw else a.transpose(0, 3, 1, 2) for v, a in zip(others, (first, second), strict=True)}
    held[made] = np.zeros([getattr(shape, v) for v in SIDES[made]], kind)
    held["x"] = np.pad(held["x"], ((0, 0), (0, 0), *((side.before, side.after) for side in shape.sides)))
    for at in _meetings(shape):
        held[made][at[made]] += np.einsum(product, *(held[v][at[v]] for v in others), optimize=True)
    y: np.ndarray = held[made]
    if made == "x":
        y = y[:, :, rows.before : rows.before + shape.h, columns.before : columns.before + shape.w]
    if shape.bias:
        y = y + more.pop(0)[:, None, None]
    y = y if shape.nchw else y.transpose(0, 2, 3, 1)
    if shape.residual:
        y = y + more.pop(0)
    return np.ascontiguousarray(activate(y, shape.act)).astype(out_dtype(shape.dtype, shape.act))


def _meetings(shape: Conv) -> Iterator[dict[str, tuple[Any, ...]]]:
    """Yield {"x": …, "w": …, "y": …} per group and tap: the indices of padded image, filter and result that meet."""
    every, (rows, columns) = slice(None), shape.sides

    def met(side: WindowAxis, tap: int, results: int) -> slice:
        first = tap * side.dilation
        return slice(first, first + (results - 1) * side.stride + 1, side.stride)

    for g, r, s in itertools.product(range(shape.groups), range(shape.r), range(shape.s)):
        inner, outer = (slice(g * n, (g + 1) * n) for n in (shape.cg, shape.kg))
        pixels = met(rows, r, shape.p), met(columns, s, shape.q)
        yield {"x": (every, inner, *pixels), "w": (outer, every, r, s), "y": (every, outer)}
