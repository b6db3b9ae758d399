"""Workloads of ``nn`` operators without hand-written templates; they are scheduled by ``tir.auto``.

A shape is text such as "4096x1024", as on the command line, a tuple of ints, or an int.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from tensorir import nn
from tensorir.api.workload import Workload
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import plain_ints, shown, text_of
from tensorir.expr.compute import placeholder
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import dtype_of
from tensorir.nn.sides import each, sides_of, texts_of
from tensorir.ops.operators import OPERATORS

Shape = str | int | Sequence[int]


def _extents(name: str, given: Shape) -> tuple[int, ...]:
    sizes = given if isinstance(given, list | tuple) else [given]  # a number is what logs say of one dimension
    parts = given.split("x") if isinstance(given, str) else [shown(n) for n in sizes]
    if not parts or not all(re.fullmatch(r"[1-9]\d{0,11}", p) for p in parts):
        message = f"{name}={shown(given)} is no shape"
        raise refuse(DeclarationError, "ops.extent", message, hint='"4096x1024", or (4096, 1024)')
    return tuple(map(int, parts))


def _work(name: str, define: Callable[..., Tensor], shapes: Mapping[str, Shape], dtype: str,
          indices: Sequence[str] = (), **params: object) -> Workload:  # fmt: skip
    """Workload of ``define`` applied to placeholders of the given shapes; those named in ``indices`` are int32."""
    sizes, kind = {n: _extents(n, s) for n, s in shapes.items()}, dtype_of(dtype).name
    made = define(*(placeholder(s, "int32" if n in indices else kind, name=n) for n, s in sizes.items()))
    said = {n: "x".join(map(str, s)) for n, s in sizes.items()}
    return Workload(name, made, origin=("ops", name, {**said, **params, "dtype": kind}), operator=OPERATORS[name])


@plain_ints
def softmax(x: Shape = "128x512", axis: int = -1, dtype: str = "float32") -> Workload:
    """Workload of ``nn.softmax`` along ``axis`` of a tensor of shape ``x``."""
    return _work("softmax", lambda x: nn.softmax(x, axis), {"x": x}, dtype, axis=axis)


@plain_ints
def log_softmax(x: Shape = "128x512", axis: int = -1, dtype: str = "float32") -> Workload:
    """Workload of ``nn.log_softmax`` along ``axis`` of a tensor of shape ``x``."""
    return _work("log_softmax", lambda x: nn.log_softmax(x, axis), {"x": x}, dtype, axis=axis)


@plain_ints
def layer_norm(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of ``nn.layer_norm`` over the last axis, with weight and bias per element."""
    row = _extents("x", x)[-1:]
    define = lambda x, weight, bias: nn.layer_norm(x, row, weight, bias)  # noqa: E731
    return _rows("layer_norm", define, x, ("weight", "bias"), dtype)


@plain_ints
def rms_norm(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of ``nn.rms_norm`` over the last axis, with a weight per element."""
    row = _extents("x", x)[-1:]
    return _rows("rms_norm", lambda x, weight: nn.rms_norm(x, row, weight), x, ("weight",), dtype)


def _rows(name: str, define: Callable[..., Tensor], x: Shape, more: Sequence[str], dtype: str) -> Workload:
    work = _work(name, define, {"x": x, **{n: _extents("x", x)[-1:] for n in more}}, dtype)
    return _typed(work, "x")


def _typed(work: Workload, *inputs: str) -> Workload:
    """``work`` with an origin (its recorded parameters) of only the shapes of ``inputs``; other shapes follow from
    them.
    """
    assert work.origin is not None
    kept = {k: v for k, v in work.origin.options.items() if k in inputs or not isinstance(v, str) or k == "dtype"}
    work.origin = type(work.origin)("ops", work.name, kept)
    return work


@plain_ints
def batch_norm(x: Shape = "1x64x56x56", dtype: str = "float32") -> Workload:
    """Workload of ``nn.batch_norm`` in inference: mean, variance, weight and bias per channel are arguments."""
    channels = _extents("x", x)[1:2]
    shapes = {"x": x, **dict.fromkeys(("mean", "var", "weight", "bias"), channels)}
    return _typed(_work("batch_norm", nn.batch_norm, shapes, dtype), "x")


@plain_ints
def group_norm(x: Shape = "1x64x56x56", groups: int = 8, dtype: str = "float32") -> Workload:
    """Workload of ``nn.group_norm`` with ``groups`` groups of channels."""
    return _work("group_norm", lambda x: nn.group_norm(x, groups), {"x": x}, dtype, groups=groups)


@plain_ints
def relu(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of elementwise ``nn.relu``."""
    return _work("relu", nn.relu, {"x": x}, dtype)


@plain_ints
def gelu(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of elementwise ``nn.gelu``, by the error function."""
    return _work("gelu", nn.gelu, {"x": x}, dtype)


@plain_ints
def silu(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of elementwise ``nn.silu``."""
    return _work("silu", nn.silu, {"x": x}, dtype)


@plain_ints
def sigmoid(x: Shape = "128x512", dtype: str = "float32") -> Workload:
    """Workload of elementwise ``nn.sigmoid``."""
    return _work("sigmoid", nn.sigmoid, {"x": x}, dtype)


@plain_ints
def cumsum(x: Shape = "128x512", axis: int = -1, dtype: str = "float32") -> Workload:
    """Workload of ``nn.cumsum`` along ``axis`` of a tensor of shape ``x``."""
    return _work("cumsum", lambda x: nn.cumsum(x, axis), {"x": x}, dtype, axis=axis)


@plain_ints
def max_pool2d(x: Shape = "1x64x56x56", window: object = 3, stride: object = 2, pad: object = 1, dtype: str = "float32"
               ) -> Workload:  # fmt: skip
    """Workload of ``nn.max_pool2d``; window, stride and pad may differ for rows and columns: "3x2"."""
    return _pooled("max_pool2d", nn.max_pool2d, x, window, stride, pad, dtype)


@plain_ints
def avg_pool2d(x: Shape = "1x64x56x56", window: object = 2, stride: object = 2, pad: object = 0, dtype: str = "float32"
               ) -> Workload:  # fmt: skip
    """Workload of ``nn.avg_pool2d``; parameters as in ``max_pool2d``."""
    return _pooled("avg_pool2d", nn.avg_pool2d, x, window, stride, pad, dtype)


def _pooled(name: str, define: Callable[..., Tensor], x: Shape, window: object, stride: object, pad: object,
            dtype: str) -> Workload:  # fmt: skip
    said = texts_of(sides_of(2, stride, pad))
    given = {
        "window": text_of(each("window", window, 2, 1, "ops.extent")),
        "stride": said["stride"],
        "pad": said["pad"],
    }
    return _work(name, lambda x: define(x, *given.values()), {"x": x}, dtype, (), **given)


@plain_ints
def adaptive_avg_pool2d(x: Shape = "1x64x56x56", size: int = 1, dtype: str = "float32") -> Workload:
    """Workload of ``nn.adaptive_avg_pool2d`` to ``size`` rows and columns."""
    return _work("adaptive_avg_pool2d", lambda x: nn.adaptive_avg_pool2d(x, size), {"x": x}, dtype, size=size)


@plain_ints
def linear(x: Shape = "128x256", w: Shape = "512x256", dtype: str = "float32") -> Workload:
    """Workload of ``nn.linear``: x (…, in) by w (out, in)."""
    return _work("linear", nn.linear, {"x": x, "w": w}, dtype)


@plain_ints
def conv1d(x: Shape = "1x64x128", w: Shape = "64x64x3", stride: object = 1, pad: object = 0, dilation: object = 1,
           groups: int = 1, dtype: str = "float32") -> Workload:  # fmt: skip
    """Workload of ``nn.conv1d``: x (N, C, W) by w (K, C/groups, S)."""
    return _convolution("conv1d", nn.conv1d, x, w, dtype, groups, stride=stride, pad=pad, dilation=dilation)


@plain_ints
def conv3d(x: Shape = "1x16x8x14x14", w: Shape = "16x16x3x3x3", stride: object = 1, pad: object = 0,
           dilation: object = 1, groups: int = 1, dtype: str = "float32") -> Workload:  # fmt: skip
    """Workload of ``nn.conv3d``: x (N, C, D, H, W) by w (K, C/groups, T, R, S)."""
    return _convolution("conv3d", nn.conv3d, x, w, dtype, groups, stride=stride, pad=pad, dilation=dilation)


@plain_ints
def conv_transpose2d(x: Shape = "1x64x14x14", w: Shape = "64x32x4x4", stride: object = 1, pad: object = 0,
                     dilation: object = 1, groups: int = 1, dtype: str = "float32") -> Workload:  # fmt: skip
    """Workload of ``nn.conv_transpose2d``: x (N, C, H, W) by w (C, K/groups, R, S)."""
    how = dict(stride=stride, pad=pad, dilation=dilation)
    return _convolution("conv_transpose2d", nn.conv_transpose2d, x, w, dtype, groups, **how)


def _convolution(name: str, define: Callable[..., Tensor], x: Shape, w: Shape, dtype: str, groups: int,
                 **how: object) -> Workload:  # fmt: skip
    rank = len(_extents("x", x)) - 2
    given = {**texts_of(sides_of(max(rank, 1), **how)), "groups": groups}
    return _work(name, lambda x, w: define(x, w, **given), {"x": x, "w": w}, dtype, (), **given)


@plain_ints
def embedding(indices: Shape = "128", weight: Shape = "1000x512", dtype: str = "float32") -> Workload:
    """Workload of ``nn.embedding``: rows of ``weight`` (rows, width) selected by int32 ``indices``."""
    shapes = {"indices": indices, "weight": weight}
    return _work("embedding", nn.embedding, shapes, dtype, indices=("indices",))


@plain_ints
def attention(q: Shape = "1x8x128x64", k: Shape = "1x8x128x64", causal: bool = False, dtype: str = "float32"
              ) -> Workload:  # fmt: skip
    """Workload of ``nn.attention``: queries (batch, heads, length, width), keys and values of shape ``k``."""
    define = lambda q, k, v: nn.attention(q, k, v, causal=causal)  # noqa: E731
    return _typed(_work("attention", define, {"q": q, "k": k, "v": k}, dtype, causal=causal), "q", "k")
