"""Gradients of 2-D convolution, and transposed convolution."""

from __future__ import annotations

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_int, plain_ints
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import all_, cast, equal, where
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.nn.activations import convert
from tensorir.nn.arguments import need_floats, need_tensors
from tensorir.nn.convolutions import _padded, _rank, _two, check_groups, check_results, need_layout
from tensorir.nn.sides import sides_of


@plain_ints
def conv2d_backward_data(
    dy: Tensor, w: Tensor, size: tuple[int, int], *, stride: object = 1, pad: object = 0, dilation: object = 1,
    groups: int = 1, layout: str = "NCHW", accumulate: str | None = None, name: str = "dx",
) -> Tensor:  # fmt: skip
    """Gradient of ``conv2d`` with respect to its image, from ``dy``, that of its result.

    dy, w: in the shapes of ``conv2d``'s result and filter;  size: (H, W) of the image, a tuple: strides leave it open
    returns: NCHW (N, C, H, W), NHWC (N, H, W, C)

    Stage ``dy_spread``: dy padded, with stride - 1 zeros between its elements; the gradient is its stride-1 convolution
    with the filter rotated by 180 degrees. Equal to ``torch.nn.grad.conv2d_input``. H, W, P and Q are constants.

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.
    """
    need_tensors(dy=dy, w=w)
    nchw = need_layout(layout)
    _rank(dy=dy, w=w)
    n, k, p, q = dy.shape if nchw else (dy.shape[0], dy.shape[3], dy.shape[1], dy.shape[2])
    kw, cg, r, s = w.shape if nchw else (w.shape[0], w.shape[3], w.shape[1], w.shape[2])
    h, wd = _two("size", size)
    sides = sides_of(2, stride, pad, dilation)
    need_int("groups", groups, 1)
    check_groups(groups, cg * groups, cg, k)
    if kw != k:
        raise refuse(DeclarationError, "conv2d.channels", f"dy has k={k} channels and w computes {kw}")
    check_results((p, q), (h, wd), (r, s), sides)
    spans = (r - 1) * sides[0].dilation, (s - 1) * sides[1].dilation
    tall, wide, per_group = h + spans[0], wd + spans[1], k // groups

    def spread(n_: Expr, k_: Expr, i: Expr, j: Expr) -> Expr:
        places = [x + (side.before - span) for x, side, span in zip((i, j), sides, spans, strict=True)]
        steps = list(zip(places, (side.stride for side in sides), strict=True))
        at = [x if step == 1 else x // step for x, step in steps]
        value = dy.get(n_, k_, *at, fill=0) if nchw else dy.get(n_, *at, k_, fill=0)
        met = [equal(x % step, 0) for x, step in steps if step > 1]
        return where(all_(*met), value, 0) if met else value

    if nchw:
        far = compute((n, k, tall, wide), spread, name="dy_spread", axes=("n", "k", "h", "w"))
    else:
        far = compute((n, tall, wide, k), lambda n, h, w, k: spread(n, k, h, w), name="dy_spread")
    rk, rr, rs = reduce_axis(per_group, "k"), reduce_axis(r, "r"), reduce_axis(s, "s")

    def value(n_: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        channel = rk if groups == 1 else (c // cg) * per_group + rk
        inner = c if groups == 1 else c % cg
        row, column = i + (r - 1 - rr) * sides[0].dilation, j + (s - 1 - rs) * sides[1].dilation
        a = far[n_, channel, row, column] if nchw else far[n_, row, column, channel]
        b = w[channel, inner, rr, rs] if nchw else w[channel, rr, rs, inner]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rk, rr, rs))

    if nchw:
        return compute((n, cg * groups, h, wd), value, name=name, axes=("n", "c", "h", "w"))
    return compute((n, h, wd, cg * groups), lambda n, h, w, c: value(n, c, h, w), name=name)


@plain_ints
def conv2d_backward_weight(
    x: Tensor, dy: Tensor, taps: tuple[int, int], *, stride: object = 1, pad: object = 0, dilation: object = 1,
    groups: int = 1, layout: str = "NCHW", accumulate: str | None = None, name: str = "dw",
) -> Tensor:  # fmt: skip
    """Gradient of ``conv2d`` with respect to its filter, from its image and ``dy``, the gradient of its result.

    taps: (R, S) of the filter, a tuple: strides leave it open
    returns: NCHW (K, C/groups, R, S), NHWC (K, R, S, C/groups), as ``torch.nn.grad.conv2d_weight``

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.
    """
    need_tensors(x=x, dy=dy)
    nchw = need_layout(layout)
    _rank(x=x, dy=dy)
    n, c, h, wd = x.shape if nchw else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    ny, k, p, q = dy.shape if nchw else (dy.shape[0], dy.shape[3], dy.shape[1], dy.shape[2])
    r, s = _two("taps", taps)
    sides = sides_of(2, stride, pad, dilation)
    need_int("groups", groups, 1)
    check_groups(groups, c, c // groups, k)
    if ny != n:
        raise refuse(DeclarationError, "conv2d.extent", f"x holds {n} images and dy the results of {ny}")
    check_results((p, q), (h, wd), (r, s), sides)
    xp = _padded(x, sides, nchw, f"{x.name}_pad") if any(side.padded for side in sides) else x
    rows, columns = sides
    rn, rp, rq = reduce_axis(n, "n"), reduce_axis(p, "p"), reduce_axis(q, "q")
    cg, per_group = c // groups, k // groups

    def value(k_: Expr, c_: Expr, r_: Expr, s_: Expr) -> Expr:
        ch = c_ if groups == 1 else (k_ // per_group) * cg + c_
        row, column = rp * rows.stride + r_ * rows.dilation, rq * columns.stride + s_ * columns.dilation
        a = dy[rn, k_, rp, rq] if nchw else dy[rn, rp, rq, k_]
        b = xp[rn, ch, row, column] if nchw else xp[rn, row, column, ch]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rn, rp, rq))

    if nchw:
        return compute((k, cg, r, s), value, name=name, axes=("k", "c", "r", "s"))
    return compute((k, r, s, cg), lambda k, r, s, c: value(k, c, r, s), name=name)


@plain_ints
def conv_transpose2d(x: Tensor, w: Tensor, *, stride: object = 1, pad: object = 0, dilation: object = 1,
                     groups: int = 1,
                     name: str = "y") -> Tensor:  # fmt: skip
    """Transposed 2-D convolution without bias: x (N, C, P, Q), w (C, K/groups, R, S), returns (N, K, H, W).

    H = (P - 1)*stride - top - bottom + dilation*(R - 1) + 1, W likewise: ``conv2d_backward_data`` of that size, with
    its stage ``dy_spread``; constant P and Q. The result has x's type; narrower floats are added up in float32.
    Raises DeclarationError (``conv2d.*``, ``nn.dtype``).
    """
    need_floats(x=x, w=w)
    _rank(x=x, w=w)
    sides = sides_of(2, stride, pad, dilation)
    need_int("groups", groups, 1)
    size = [
        (p - 1) * side.stride - side.before - side.after + side.dilation * (r - 1) + 1
        for p, r, side in zip(x.shape[2:], w.shape[2:], sides, strict=True)
    ]
    if any(n < 1 for n in size):
        raise refuse(DeclarationError, "conv2d.extent", f"pad={pad} leaves nothing of {tuple(size)} rows and columns")
    narrow = DTYPES[x.dtype].widened
    y = conv2d_backward_data(
        x, w, (size[0], size[1]), stride=stride, pad=pad, dilation=dilation, groups=groups,
        accumulate="float32" if narrow else None, name=f"{name}_sum" if narrow else name,
    )  # fmt: skip
    return convert(y, x.dtype, name=name) if narrow else y
