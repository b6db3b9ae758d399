"""1-D, 2-D and 3-D convolutions."""

from __future__ import annotations

from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_choice, need_int, plain_ints, shown, wrong
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.nn.activations import convert
from tensorir.nn.arguments import need_floats, need_tensors, wide
from tensorir.nn.sides import WindowAxis, no_output, sides_of


@plain_ints
def pad2d(x: Tensor, pad: object, *, layout: str = "NCHW", name: str = "x_pad") -> Tensor:
    """``x`` (N, C, H, W), or (N, H, W, C) for NHWC, with zeros around its rows and columns; ``pad`` as of ``conv2d``.

    Raises DeclarationError ``conv2d.rank``, ``conv2d.pad``, ``argument.value``.
    """
    need_tensors(x=x)
    need_choice("layout", layout, ("NCHW", "NHWC"))
    if x.ndim != 4:
        raise refuse(DeclarationError, "conv2d.rank", f"x {x.shape} must have 4 dimensions")
    return _padded(x, sides_of(2, pad=pad), layout == "NCHW", name)


def _padded(x: Tensor, sides: tuple[WindowAxis, ...], nchw: bool, name: str) -> Tensor:
    rows, columns = sides
    more = rows.before + rows.after, columns.before + columns.after
    if nchw:
        n, c, h, w = x.shape
        shape = (n, c, h + more[0], w + more[1])
        return compute(shape, lambda n, c, h, w: x.get(n, c, h - rows.before, w - columns.before, fill=0), name=name)
    n, h, w, c = x.shape
    shape = (n, h + more[0], w + more[1], c)
    return compute(shape, lambda n, h, w, c: x.get(n, h - rows.before, w - columns.before, c, fill=0), name=name)


@plain_ints
def conv2d(x: Tensor, w: Tensor, *, stride: object = 1, pad: object = 0, dilation: object = 1, groups: int = 1,
           layout: str = "NCHW", accumulate: str | None = None, name: str = "y") -> Tensor:  # fmt: skip
    """2-D convolution without bias.

    NCHW: x (N, C, H, W), w (K, C/groups, R, S), returns (N, K, P, Q)
    NHWC: x (N, H, W, C), w (K, R, S, C/groups), returns (N, P, Q, K)
    stride, dilation: an int, or one for rows and one for columns
    pad: zeros on all sides; (rows, columns) on both ends of each; ((top, bottom), (left, right)); or in ONNX's order
         (top, left, bottom, right)
    P = (H + top + bottom - dilation*(R - 1) - 1) // stride + 1, Q likewise; reads outside x are 0.
    accumulate: type of the sums and of the result; by default that of the operands
    Work: 2*N*K*P*Q*(C/groups)*R*S flops.

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.

    Source: cross-correlation, as cuDNN's CUDNN_CROSS_CORRELATION, not the flipped kernel of signal processing.
    """
    need_tensors(x=x, w=w)
    nchw = need_layout(layout)
    _rank(x=x, w=w)
    n, c, h, wd = x.shape if nchw else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    k, cg, r, s = w.shape if nchw else (w.shape[0], w.shape[3], w.shape[1], w.shape[2])
    sides = sides_of(2, stride, pad, dilation)
    check_groups(groups, c, cg, k)
    if (refused := no_output((h, wd), (r, s), sides)) is not None:
        raise refused
    rows, columns = sides
    p, q = rows.results(h, r), columns.results(wd, s)
    xp = _padded(x, sides, nchw, f"{x.name}_pad") if rows.padded or columns.padded else x
    rc, rr, rs = reduce_axis(cg, "c"), reduce_axis(r, "r"), reduce_axis(s, "s")
    per_group = k // groups

    def value(n_: Expr, k_: Expr, p_: Expr, q_: Expr) -> Expr:
        ch = rc if groups == 1 else (k_ // per_group) * cg + rc
        row, col = p_ * rows.stride + rr * rows.dilation, q_ * columns.stride + rs * columns.dilation
        a = xp[n_, ch, row, col] if nchw else xp[n_, row, col, ch]
        b = w[k_, rc, rr, rs] if nchw else w[k_, rr, rs, rc]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rc, rr, rs) if nchw else (rr, rs, rc))

    if nchw:
        return compute((n, k, p, q), value, name=name, axes=("n", "k", "p", "q"))
    return compute((n, p, q, k), lambda n, p, q, k: value(n, k, p, q), name=name)


@answers()
def need_layout(layout: object) -> bool:
    """True for "NCHW", False for "NHWC"; raises ``conv2d.layout`` for others."""
    if not isinstance(layout, str) or layout not in ("NCHW", "NHWC"):
        raise refuse(
            DeclarationError, "conv2d.layout", f"layout={shown(layout)} is not known", hint="layout='NCHW' or 'NHWC'"
        )
    return layout == "NCHW"


def _rank(**given: Tensor) -> None:
    if any(t.ndim != 4 for t in given.values()):
        both = " and ".join(f"{name} {t.shape}" for name, t in given.items())
        raise refuse(DeclarationError, "conv2d.rank", f"{both} must have 4 dimensions")


def _two(name: str, value: Any) -> tuple[int, int]:
    """Pair of positive ints, from a tuple of two; raises ``argument.type`` for lists and others."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise wrong(name, value, "a pair of ints")
    return need_int(f"{name}[0]", value[0], 1), need_int(f"{name}[1]", value[1], 1)


def check_results(have: tuple[int, int], size: tuple[int, int], taps: tuple[int, int], sides: tuple[WindowAxis, ...]
                  ) -> None:  # fmt: skip
    """Raise ``conv2d.extent`` unless ``have``, (rows, columns), is the output size of a convolution.

    size: (rows, columns) of the image;  taps: of the filter;  sides: windows along rows and columns
    """
    want = tuple(side.results(n, f) for n, f, side in zip(size, taps, sides, strict=True))
    if have != want:
        message = f"dy has {have} rows and columns, the results of {taps} taps on an image of {size} are {want}"
        raise refuse(DeclarationError, "conv2d.extent", message)


@answers()
def out_extent(size: int, taps: int, stride: int, pad: int, dilation: int) -> int:
    """(size + 2*pad - dilation*(taps - 1) - 1) // stride + 1, a convolution's output extent; may be below 1.

    Raises DeclarationError ``conv2d.stride``, ``conv2d.pad``, ``conv2d.dilation``, ``argument.type``.
    """
    (side,) = sides_of(1, stride, pad, dilation)
    return int(side.results(need_int("size", size), need_int("taps", taps)))


def check_groups(groups: object, c: int, cg: int, k: int) -> None:
    """Raise ``conv2d.groups`` unless ``groups`` is a divisor of c and k, ``conv2d.channels`` unless cg * groups == c.

    c, k: channels of image and result;  cg: input channels of the filter
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise refuse(DeclarationError, "conv2d.groups", f"groups={shown(groups)} must be an int >= 1")
    if c % groups or k % groups:
        raise refuse(DeclarationError, "conv2d.groups", f"groups={shown(groups)} does not divide c={c} and k={k}")
    if cg * groups != c:
        raise refuse(
            DeclarationError,
            "conv2d.channels",
            f"w has {cg} channels a group but x has c={c} in groups={groups}: expected {c // groups}",
        )


def _sized(x: Tensor, w: Tensor, rank: int, sides: tuple[WindowAxis, ...], groups: int, name: str) -> Tensor:
    """Convolution over ``rank`` trailing dimensions, channels first, of x's type; narrower floats add up in float32.

    Without a padded copy: reads outside of ``x`` are 0.
    """
    need_floats(x=x, w=w)
    if x.ndim != rank + 2 or w.ndim != rank + 2:
        raise refuse(DeclarationError, "conv2d.rank", f"x {x.shape} and w {w.shape} must have {rank + 2} dimensions")
    (c, sizes), (k, cg, taps) = (x.shape[1], x.shape[2:]), (w.shape[0], w.shape[1], w.shape[2:])
    check_groups(groups, c, cg, k)
    if (refused := no_output(sizes, taps, sides)) is not None:
        raise refused
    results = [side.results(n, f) for side, n, f in zip(sides, sizes, taps, strict=True)]
    pad = any(side.padded for side in sides)
    rc, *rt = reduce_axis(cg, "c"), *(reduce_axis(f, n) for f, n in zip(taps, "trs"[-rank:], strict=True))
    each, narrow = k // groups, DTYPES[x.dtype].widened

    def value(*i: Expr) -> Expr:
        channel = rc if groups == 1 else (i[1] // each) * cg + rc
        at = [p * d.stride + r * d.dilation - d.before for p, r, d in zip(i[2:], rt, sides, strict=True)]
        read = x.get(i[0], channel, *at, fill=0) if pad else x[(i[0], channel, *at)]
        return total(wide(read) * wide(w[(i[1], rc, *rt)]), axis=(rc, *rt))

    axes = ("n", "k", *"opq"[-rank:])
    y: Tensor = compute((x.shape[0], k, *results), value, name=f"{name}_sum" if narrow else name, axes=axes)
    return convert(y, x.dtype, name=name) if narrow else y


@plain_ints
def conv1d(x: Tensor, w: Tensor, *, stride: object = 1, pad: object = 0, dilation: object = 1, groups: int = 1,
           name: str = "y") -> Tensor:  # fmt: skip
    """1-D convolution without bias: x (N, C, W), w (K, C/groups, S), returns (N, K, Q) of x's type.

    Parameters as of ``conv2d``, pad: an int or (before, after); narrower floats are added up in float32.
    Raises DeclarationError (``conv2d.*``, ``nn.dtype``).
    """
    return _sized(x, w, 1, sides_of(1, stride, pad, dilation), groups, name)


@plain_ints
def conv3d(x: Tensor, w: Tensor, *, stride: object = 1, pad: object = 0, dilation: object = 1, groups: int = 1,
           name: str = "y") -> Tensor:  # fmt: skip
    """3-D convolution without bias: x (N, C, D, H, W), w (K, C/groups, T, R, S), returns (N, K, O, P, Q).

    pad: an int, one for each dimension, three pairs (before, after), or six ints: all before, all after. As ``conv1d``
    in other respects. Raises DeclarationError (``conv2d.*``, ``nn.dtype``).
    """
    return _sized(x, w, 3, sides_of(3, stride, pad, dilation), groups, name)
