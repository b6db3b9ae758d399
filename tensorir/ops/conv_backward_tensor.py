"""The gradient of conv2d's image on tensor cores: the convolution's own schedule, on what it sums up here.

With stride 1 that is a convolution of dy with the filter turned by half a turn. With a stride, every stride-th pixel of
the result meets the same taps, so that it falls into stride * stride convolutions, each with its part of the filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorir.api.workload import Template
from tensorir.ops.common import Config
from tensorir.ops.conv_hopper import gradient_template
from tensorir.ops.conv_tensor import (
    conv_multiplication,
    conv_space,
    gpu_tensor,
    sort_pixels,
    sort_sums,
)
from tensorir.ops.problems import Conv

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule


def data_templates(shape: Conv) -> dict[str, Template]:
    """The templates for tensor cores, where these fit the gradient."""
    as_forward = forward_shape(shape)
    m = None if as_forward is None else conv_multiplication(as_forward)
    if as_forward is None or m is None:
        return {}

    def function(s: Schedule, c: Config) -> Schedule:
        view(s, shape, as_forward)
        return gpu_tensor(s, c, as_forward, "dy_spread", "dx")

    cores = {"gpu_tensor": Template(function, lambda t: conv_space(as_forward, t), ("gpu",), needs=m.needs)}
    return gradient_template(shape, as_forward) | cores


def forward_shape(shape: Conv) -> Conv | None:
    """The gradient as convolutions of stride 1: their parameters. None for a stride with dilated taps, which meet
    pixels in another order.
    """
    stride, dilation, groups = shape.stride, shape.dilation, shape.groups
    if stride > 1 and dilation > 1:
        return None
    r, s, p, q = (-(-v // stride) for v in (shape.r, shape.s, shape.h, shape.w))
    return Conv(n=shape.n, c=shape.k, k=shape.c, h=shape.p, w=shape.q, r=r, s=s, p=p, q=q, pad=shape.pad,
                dilation=dilation, groups=groups, parts=stride, layout=shape.layout, dtype=shape.dtype,
                precision=shape.precision, result=(shape.h, shape.w))  # fmt: skip


def view(s: Schedule, shape: Conv, f: Conv) -> None:
    """Walk the gradient as ``f``, convolutions of "dy_spread" with taps that are counted backwards.

    Pixel h = stride * p + u of the image meets those taps alone that read an element of dy, no zero between two. They
    are every stride-th one, from a on, and rows of dy are those of "dy_spread" with one remainder.
    """
    stride, pad, cg = shape.stride, shape.pad, shape.cg
    rest = {"c": "k", **({"g": f"c/{cg}", "k": f"c%{cg}"} if shape.groups > 1 else {"k": "c"})}
    declared = "n, c, h, w | k, -r, -s" if shape.nchw else "n, h, w, c | k, -r, -s"
    if stride == 1:
        sort_pixels(s, "dy_spread", f, stride)
        sort_sums(s, "dx", declared, {"p": "h", "q": "w", **rest}, f)
        return
    sort_pixels(s, "dy_spread", f, stride, {"h": f.p + f.r, "w": f.q + f.s})
    said = {f"{v}": f"{x}%{stride}" for v, x in zip("uvab", "hwrs", strict=True)}
    said |= {f"{v}": f"{x}/{stride}" for v, x in zip("pqrs", "hwrs", strict=True)}
    sort_sums(s, "dx", declared, {**said, **rest}, f)
    for part, pixel, taps in (("a", "u", shape.r), ("b", "v", shape.s)):
        nearest = (taps - 1 - pad) % stride  # what is left of rows, or columns, that hold dy
        s.keep_term(f"dx.{part}", f"{stride - 1} - (dx.{pixel} + {stride - 1 - nearest}) % {stride}")
