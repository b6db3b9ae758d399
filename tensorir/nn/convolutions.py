"""Convolutions of one, two and three dimensions."""

from __future__ import annotations

from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import need_choice, need_int, plain_ints, shown, wrong
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Expr
from tensorir.nn.activations import convert
from tensorir.nn.arguments import need_floats, need_tensors, wide


@plain_ints
def pad2d(x: Tensor, pad: int, *, layout: str = "NCHW", name: str = "x_pad") -> Tensor:
    """``x`` with ``pad`` zeros around its rows and columns."""
    need_tensors(x=x)
    need_int("pad", pad, 0)
    need_choice("layout", layout, ("NCHW", "NHWC"))
    if x.ndim != 4:
        raise refuse(DeclarationError, "conv2d.rank", f"x {x.shape} must have 4 dimensions")
    if layout == "NCHW":
        n, c, h, w = x.shape
        shape = (n, c, h + 2 * pad, w + 2 * pad)
        return compute(shape, lambda n, c, h, w: x.get(n, c, h - pad, w - pad, fill=0), name=name)  # type: ignore[no-any-return]
    n, h, w, c = x.shape
    shape = (n, h + 2 * pad, w + 2 * pad, c)
    return compute(shape, lambda n, h, w, c: x.get(n, h - pad, w - pad, c, fill=0), name=name)  # type: ignore[no-any-return]


@plain_ints
def conv2d(x: Tensor, w: Tensor, *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
           layout: str = "NCHW", accumulate: str | None = None, name: str = "y") -> Tensor:  # fmt: skip
    """2-D convolution without bias.

    NCHW: x (N, C, H, W), w (K, C/groups, R, S), returns (N, K, P, Q)
    NHWC: x (N, H, W, C), w (K, R, S, C/groups), returns (N, P, Q, K)
    P = (H + 2*pad - dilation*(R - 1) - 1) // stride + 1, Q likewise; reads outside x are 0.
    Work: 2*N*K*P*Q*(C/groups)*R*S flops.

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.

    Source: cross-correlation, as cuDNN's CUDNN_CROSS_CORRELATION, not the flipped kernel of signal processing.
    """
    need_tensors(x=x, w=w)
    nchw = need_layout(layout)
    _rank(x=x, w=w)
    n, c, h, wd = x.shape if nchw else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    k, cg, r, s = w.shape if nchw else (w.shape[0], w.shape[3], w.shape[1], w.shape[2])
    _check(dict(stride=stride, dilation=dilation, groups=groups), pad, c, cg, k, groups)
    p, q = (out_extent(size, f, stride, pad, dilation) for size, f in ((h, r), (wd, s)))
    for extent, size, f, axis in ((p, h, r, "h"), (q, wd, s, "w")):
        if not isinstance(extent, Expr) and extent < 1:
            taps = "r" if axis == "h" else "s"
            raise refuse(
                DeclarationError,
                "conv2d.extent",
                f"{axis}={size} with pad={pad} is smaller than the kernel {taps}={f} (dilation={dilation}): no output",
            )
    xp = pad2d(x, pad, layout=layout, name=f"{x.name}_pad") if pad else x
    rc, rr, rs = reduce_axis(cg, "c"), reduce_axis(r, "r"), reduce_axis(s, "s")
    per_group = k // groups

    def value(n_: Expr, k_: Expr, p_: Expr, q_: Expr) -> Expr:
        ch = rc if groups == 1 else (k_ // per_group) * cg + rc
        row, col = p_ * stride + rr * dilation, q_ * stride + rs * dilation
        a = xp[n_, ch, row, col] if nchw else xp[n_, row, col, ch]
        b = w[k_, rc, rr, rs] if nchw else w[k_, rr, rs, rc]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rc, rr, rs) if nchw else (rr, rs, rc))

    if nchw:
        return compute((n, k, p, q), value, name=name, axes=("n", "k", "p", "q"))  # type: ignore[no-any-return]
    return compute((n, p, q, k), lambda n, p, q, k: value(n, k, p, q), name=name)  # type: ignore[no-any-return]


def need_layout(layout: object) -> bool:
    """Return whether a layout of images is "NCHW"; refuse what is neither that nor "NHWC" (``conv2d.layout``)."""
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
    """A pair of extents."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise wrong(name, value, "a pair of ints")
    return need_int(f"{name}[0]", value[0], 1), need_int(f"{name}[1]", value[1], 1)


def _results(have: tuple[int, int], size: tuple[int, int], taps: tuple[int, int], *how: int) -> None:
    """Check that dy is as large as the results of such a convolution."""
    want = tuple(out_extent(n, f, *how) for n, f in zip(size, taps, strict=True))
    if have != want:
        message = f"dy has {have} rows and columns, the results of {taps} taps on an image of {size} are {want}"
        raise refuse(DeclarationError, "conv2d.extent", message)


def out_extent(size: int, taps: int, stride: int, pad: int, dilation: int) -> int:
    """Outputs along one dimension of a convolution (may be below 1)."""
    return (size + 2 * pad - dilation * (taps - 1) - 1) // stride + 1


def _check(positive: dict[str, int], pad: int, c: int, cg: int, k: int, groups: int) -> None:
    for name, v in positive.items():
        if isinstance(v, bool) or not isinstance(v, int) or v < 1:
            raise refuse(DeclarationError, f"conv2d.{name}", f"{name}={shown(v)} must be an int >= 1")
    if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
        raise refuse(DeclarationError, "conv2d.pad", f"pad={shown(pad)} must be an int >= 0")
    if c % groups or k % groups:
        raise refuse(DeclarationError, "conv2d.groups", f"groups={groups} does not divide c={c} and k={k}")
    if cg * groups != c:
        raise refuse(
            DeclarationError,
            "conv2d.channels",
            f"w has {cg} channels a group but x has c={c} in groups={groups}: expected {c // groups}",
        )


def _sized(x: Tensor, w: Tensor, rank: int, geometry: dict[str, int], name: str) -> Tensor:
    """A convolution over ``rank`` dimensions, channels before them."""
    need_floats(x=x, w=w)
    if x.ndim != rank + 2 or w.ndim != rank + 2:
        raise refuse(DeclarationError, "conv2d.rank", f"x {x.shape} and w {w.shape} must have {rank + 2} dimensions")
    stride, pad, dilation, groups = (geometry[n] for n in ("stride", "pad", "dilation", "groups"))
    (c, sizes), (k, cg, taps) = (x.shape[1], x.shape[2:]), (w.shape[0], w.shape[1], w.shape[2:])
    _check(dict(stride=stride, dilation=dilation, groups=groups), pad, c, cg, k, groups)
    results = [out_extent(n, f, stride, pad, dilation) for n, f in zip(sizes, taps, strict=True)]
    if any(not isinstance(n, Expr) and n < 1 for n in results):
        message = f"x {x.shape} with pad={pad} is smaller than the kernel {w.shape} (dilation={dilation}): no output"
        raise refuse(DeclarationError, "conv2d.extent", message)
    rc, *rt = reduce_axis(cg, "c"), *(reduce_axis(f, n) for f, n in zip(taps, "trs"[-rank:], strict=True))
    each, narrow = k // groups, DTYPES[x.dtype].widened

    def value(*i: Expr) -> Expr:
        channel = rc if groups == 1 else (i[1] // each) * cg + rc
        at = [p * stride + r * dilation - pad for p, r in zip(i[2:], rt, strict=True)]
        read = x.get(i[0], channel, *at, fill=0) if pad else x[(i[0], channel, *at)]
        return total(wide(read) * wide(w[(i[1], rc, *rt)]), axis=(rc, *rt))

    axes = ("n", "k", *"opq"[-rank:])
    y: Tensor = compute((x.shape[0], k, *results), value, name=f"{name}_sum" if narrow else name, axes=axes)
    return convert(y, x.dtype, name=name) if narrow else y


@plain_ints
def conv1d(x: Tensor, w: Tensor, *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
           name: str = "y") -> Tensor:  # fmt: skip
    """1-D convolution without bias: x (N, C, W), w (K, C/groups, S), returns (N, K, Q) of x's type.

    Parameters as of ``conv2d``; narrower floats are added up in float32. Raises DeclarationError (``conv2d.*``,
    ``nn.dtype``).
    """
    return _sized(x, w, 1, dict(stride=stride, pad=pad, dilation=dilation, groups=groups), name)


@plain_ints
def conv3d(x: Tensor, w: Tensor, *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
           name: str = "y") -> Tensor:  # fmt: skip
    """3-D convolution without bias: x (N, C, D, H, W), w (K, C/groups, T, R, S), returns (N, K, O, P, Q).

    As ``conv1d`` in other respects. Raises DeclarationError (``conv2d.*``, ``nn.dtype``).
    """
    return _sized(x, w, 3, dict(stride=stride, pad=pad, dilation=dilation, groups=groups), name)
