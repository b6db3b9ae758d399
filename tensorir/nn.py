"""Pure definitions in the language of ``expr``: tensors in, a tensor out; they know nothing of schedules."""

from __future__ import annotations

from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import unknown
from tensorir.errors.needs import need_bool, need_choice, need_int, plain_ints, shown, wrong
from tensorir.expr.compute import compute, reduce_axis
from tensorir.expr.functions import all_, cast, equal, erf, exp, maximum, tanh, where
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr


def _tensors(**given: Any) -> None:
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise wrong(name, x, "a Tensor", hint="tir.placeholder(shape, dtype)")


def __getattr__(name: str) -> Any:
    raise unknown("nn", name, "tensorir.nn", [n for n in globals() if not n.startswith("_")])


ACTIVATIONS = ("relu", "gelu", "silu", "sigmoid", "tanh")


@plain_ints
def matmul(
    a: Tensor, b: Tensor, *, ta: bool = False, tb: bool = False, accumulate: str | None = None, name: str = "C"
) -> Tensor:
    """Matrix product, 2-D or batched.

    a: ([batch,] M, K), or ([batch,] K, M) with ``ta``;  b: ([batch,] K, N), or ([batch,] N, K) with ``tb``
    returns: ([batch,] M, N), accumulated in ``accumulate`` (default: the operands' type)
    Raises DeclarationError (``matmul.shape``) when the shapes do not fit.
    """
    _tensors(a=a, b=b)
    need_bool("ta", ta)
    need_bool("tb", tb)
    batch, flat = a.shape[:-2], a.ndim not in (2, 3) or b.ndim != a.ndim
    m, k = (0, 0) if flat else (a.shape[-1], a.shape[-2]) if ta else a.shape[-2:]
    kb, n = (0, 0) if flat else (b.shape[-1], b.shape[-2]) if tb else b.shape[-2:]
    if flat or b.shape[:-2] != batch or kb != k:
        raise refuse(
            DeclarationError,
            "matmul.shape",
            f"a {a.shape}{' transposed' if ta else ''} and b {b.shape}{' transposed' if tb else ''} do not multiply",
        )
    kk = reduce_axis(k, name="k")

    def product(lead: tuple[Expr, ...], i: Expr, j: Expr) -> Expr:
        x = a[(*lead, kk, i)] if ta else a[(*lead, i, kk)]
        y = b[(*lead, j, kk)] if tb else b[(*lead, kk, j)]
        if accumulate:
            x, y = cast(x, accumulate), cast(y, accumulate)
        return total(x * y, axis=kk)

    if batch:
        return compute((*batch, m, n), lambda z, i, j: product((z,), i, j), name=name)  # type: ignore[no-any-return]
    return compute((m, n), lambda i, j: product((), i, j), name=name)  # type: ignore[no-any-return]


@plain_ints
def grouped_matmul(
    a: Tensor, b: Tensor, group: Tensor, *, align: int, tb: bool = False, accumulate: str | None = None, name: str = "C"
) -> Tensor:
    """Rows of several groups one after another, each times the matrix of its group (layers of a mixture of experts).

    a: (M, K);  b: (groups, K, N), or (groups, N, K) with ``tb``
    group: int32 (ceil(M / align),), the group of each ``align`` rows. Rows that it gives a number that is no group's,
           such as -1, are 0 in the result, so that the space for rows may be larger than what is filled
    returns: (M, N), accumulated in ``accumulate`` (default: the operands' type)

    A group begins at a multiple of ``align`` rows; what fills its last ones up is computed and of no interest. This is
    the contiguous layout of DeepGEMM, with one entry for each of its blocks of rows.

    The matrix of each ``align`` rows is declared as a tensor of its own, "b_block" (ceil(M / align), …), to be computed
    where it is read.
    Raises DeclarationError (``grouped-matmul.shape``).
    """
    _tensors(a=a, b=b, group=group)
    need_int("align", align, 1)
    need_bool("tb", tb)
    if a.ndim != 2 or b.ndim != 3 or a.shape[1] != b.shape[2 if tb else 1]:
        raise refuse(
            DeclarationError,
            "grouped-matmul.shape",
            f"a {a.shape} and the matrices of b {b.shape}{' transposed' if tb else ''} do not multiply",
            hint=f"a of (M, K), b of (groups, {'N, K' if tb else 'K, N'})",
        )
    (m, k), n, blocks = a.shape, b.shape[1 if tb else 2], -(-a.shape[0] // align)
    if group.shape != (blocks,) or group.dtype != "int32":
        raise refuse(
            DeclarationError,
            "grouped-matmul.shape",
            f"group is {group.dtype} {group.shape}: {m} rows have {blocks} times {align}",
            hint=f'tir.placeholder(({blocks},), "int32", name="group")',
        )
    own = compute((blocks, *b.shape[1:]), lambda z, r, x: b.get(group[z], r, x, fill=0), name="b_block")
    kk = reduce_axis(k, name="k")

    def product(i: Expr, j: Expr) -> Expr:
        x, y = a[i, kk], own[i // align, j, kk] if tb else own[i // align, kk, j]
        if accumulate:
            x, y = cast(x, accumulate), cast(y, accumulate)
        return total(x * y, axis=kk)

    return compute((m, n), product, name=name)  # type: ignore[no-any-return]


@plain_ints
def pad2d(x: Tensor, pad: int, *, layout: str = "NCHW", name: str = "x_pad") -> Tensor:
    """``x`` with ``pad`` zeros around its rows and columns."""
    _tensors(x=x)
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
    _tensors(x=x, w=w)
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


@plain_ints
def conv2d_backward_data(
    dy: Tensor, w: Tensor, size: tuple[int, int], *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
    layout: str = "NCHW", accumulate: str | None = None, name: str = "dx",
) -> Tensor:  # fmt: skip
    """Gradient of ``conv2d`` with respect to its image, from ``dy``, that of its result.

    dy, w: in the shapes of ``conv2d``'s result and filter;  size: (H, W) of the image, which a stride leaves open
    returns: NCHW (N, C, H, W), NHWC (N, H, W, C)

    With stride 1 it is a convolution of dy with the filter turned by half a turn; a stride puts zeros between the
    elements of dy first (``dy_spread``). Equal to ``torch.nn.grad.conv2d_input``.

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.
    """
    _tensors(dy=dy, w=w)
    nchw = need_layout(layout)
    _rank(dy=dy, w=w)
    n, k, p, q = dy.shape if nchw else (dy.shape[0], dy.shape[3], dy.shape[1], dy.shape[2])
    kw, cg, r, s = w.shape if nchw else (w.shape[0], w.shape[3], w.shape[1], w.shape[2])
    h, wd = _two("size", size)
    _check(dict(stride=stride, dilation=dilation, groups=groups), pad, cg * groups, cg, k, groups)
    if kw != k:
        raise refuse(DeclarationError, "conv2d.channels", f"dy has k={k} channels and w computes {kw}")
    _results((p, q), (h, wd), (r, s), stride, pad, dilation)
    tall, wide, per_group = h + (r - 1) * dilation, wd + (s - 1) * dilation, k // groups

    def spread(n_: Expr, k_: Expr, i: Expr, j: Expr) -> Expr:
        row, column = i + (pad - (r - 1) * dilation), j + (pad - (s - 1) * dilation)
        at = (row, column) if stride == 1 else (row // stride, column // stride)
        value = dy.get(n_, k_, *at, fill=0) if nchw else dy.get(n_, *at, k_, fill=0)
        return value if stride == 1 else where(all_(equal(row % stride, 0), equal(column % stride, 0)), value, 0)

    if nchw:
        far = compute((n, k, tall, wide), spread, name="dy_spread", axes=("n", "k", "h", "w"))
    else:
        far = compute((n, tall, wide, k), lambda n, h, w, k: spread(n, k, h, w), name="dy_spread")
    rk, rr, rs = reduce_axis(per_group, "k"), reduce_axis(r, "r"), reduce_axis(s, "s")

    def value(n_: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        channel = rk if groups == 1 else (c // cg) * per_group + rk
        inner = c if groups == 1 else c % cg
        row, column = i + (r - 1 - rr) * dilation, j + (s - 1 - rs) * dilation
        a = far[n_, channel, row, column] if nchw else far[n_, row, column, channel]
        b = w[channel, inner, rr, rs] if nchw else w[channel, rr, rs, inner]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rk, rr, rs))

    if nchw:
        return compute((n, cg * groups, h, wd), value, name=name, axes=("n", "c", "h", "w"))  # type: ignore[no-any-return]
    return compute((n, h, wd, cg * groups), lambda n, h, w, c: value(n, c, h, w), name=name)  # type: ignore[no-any-return]


@plain_ints
def conv2d_backward_weight(
    x: Tensor, dy: Tensor, taps: tuple[int, int], *, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1,
    layout: str = "NCHW", accumulate: str | None = None, name: str = "dw",
) -> Tensor:  # fmt: skip
    """Gradient of ``conv2d`` with respect to its filter, from its image and ``dy``, the gradient of its result.

    taps: (R, S) of the filter, which a stride leaves open
    returns: NCHW (K, C/groups, R, S), NHWC (K, R, S, C/groups), as ``torch.nn.grad.conv2d_weight``

    Raises DeclarationError (``conv2d.*``) naming the parameter that does not fit.
    """
    _tensors(x=x, dy=dy)
    nchw = need_layout(layout)
    _rank(x=x, dy=dy)
    n, c, h, wd = x.shape if nchw else (x.shape[0], x.shape[3], x.shape[1], x.shape[2])
    ny, k, p, q = dy.shape if nchw else (dy.shape[0], dy.shape[3], dy.shape[1], dy.shape[2])
    r, s = _two("taps", taps)
    _check(dict(stride=stride, dilation=dilation, groups=groups), pad, c, c // groups if groups else c, k, groups)
    if ny != n:
        raise refuse(DeclarationError, "conv2d.extent", f"x holds {n} images and dy the results of {ny}")
    _results((p, q), (h, wd), (r, s), stride, pad, dilation)
    xp = pad2d(x, pad, layout=layout, name=f"{x.name}_pad") if pad else x
    rn, rp, rq = reduce_axis(n, "n"), reduce_axis(p, "p"), reduce_axis(q, "q")
    cg, per_group = c // groups, k // groups

    def value(k_: Expr, c_: Expr, r_: Expr, s_: Expr) -> Expr:
        ch = c_ if groups == 1 else (k_ // per_group) * cg + c_
        row, column = rp * stride + r_ * dilation, rq * stride + s_ * dilation
        a = dy[rn, k_, rp, rq] if nchw else dy[rn, rp, rq, k_]
        b = xp[rn, ch, row, column] if nchw else xp[rn, row, column, ch]
        if accumulate:
            a, b = cast(a, accumulate), cast(b, accumulate)
        return total(a * b, axis=(rn, rp, rq))

    if nchw:
        return compute((k, cg, r, s), value, name=name, axes=("k", "c", "r", "s"))  # type: ignore[no-any-return]
    return compute((k, r, s, cg), lambda k, r, s, c: value(k, c, r, s), name=name)  # type: ignore[no-any-return]


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
    """``act(alpha * y + beta * d + bias)``, bias along dimension ``axis``; ``y`` itself when nothing is asked for.

    act: None, "relu", "gelu" (erf form), "silu", "sigmoid" or "tanh";  alpha, beta: scalars;  d: a tensor of y's shape
    """
    _tensors(y=y, **{n: t for n, t in (("bias", bias), ("d", d)) if t is not None})
    need_int("axis", axis, 0, max(0, y.ndim - 1))
    if act is not None and (not isinstance(act, str) or act not in ACTIVATIONS):
        raise refuse(
            DeclarationError,
            "nn.act",
            f"act={shown(act)} is not known",
            hint=f"None or one of {', '.join(ACTIVATIONS)}",
        )
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

    names = [v.name for v in y.op.axes] if y.op else [f"i{n}" for n in range(y.ndim)]
    return compute(y.shape, element, name=name, axes=names)  # type: ignore[no-any-return]


def activation(v: Expr, act: str | None) -> Expr:
    """An activation function of one value."""
    if act == "relu":
        return maximum(v, 0)
    if act == "gelu":
        return v * (erf(v * 0.7071067811865476) + 1) * 0.5
    if act == "silu":
        return v / (exp(-v) + 1)
    if act == "sigmoid":
        return 1 / (exp(-v) + 1)
    return tanh(v) if act == "tanh" else v


def relu(x: Tensor, *, name: str = "relu") -> Tensor:
    """``max(x, 0)`` elementwise."""
    return bias_act(x, None, "relu", axis=0, name=name)


def convert(x: Tensor, dtype: str, *, name: str = "cast") -> Tensor:
    """``x`` in another element type, elementwise."""
    _tensors(x=x)
    names = [v.name for v in x.op.axes] if x.op else [f"i{n}" for n in range(x.ndim)]
    return compute(x.shape, lambda *i: cast(x[i], dtype), name=name, axes=names)  # type: ignore[no-any-return]
