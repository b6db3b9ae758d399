"""Winograd convolution F(m x m, r x r) for stride 1: what it computes, and its CPU schedule.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016. The transform matrices are made by the
Cook-Toom construction (Blahut, "Fast Algorithms for Signal Processing", section 5.2) from small rational points, in
exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from tensorir.expr.compute import compute, constant, reduce_axis
from tensorir.expr.functions import cast
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr
from tensorir.ir.words import SIDES
from tensorir.ops.common import Config, last_stage, unroll_by, vector_lanes
from tensorir.ops.images import Shape, is_turned, padded, result, tap, write_channels
from tensorir.ops.model import PANEL
from tensorir.ops.strips import strip

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule

POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2), 4, -4)
SIZES = {3: (4, 2, 6), 5: (2, 4)}
"""Tile sizes m for filters of r taps."""
_ERROR = {(2, 3): 5e-6, (4, 3): 5e-5, (6, 3): 5e-4, (2, 5): 5e-5, (4, 5): 2e-4}

Matrix = list[list[Fraction]]


def error_bound(m: int, r: int) -> float:
    """Bound of float32's error relative to the largest output, for normal data and up to 1024 channels.

    Stated from measurements with a margin of 3 and more: the error grows with the size m + r - 1 of the transforms.
    """
    return _ERROR[m, r]


def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """``(AT, G, BT)`` with ``y = AT ((G g) * (BT d))`` for m outputs of a filter g of r taps over d, m + r - 1 long."""
    n = m + r - 1
    points = [Fraction(p) for p in POINTS[: n - 1]]
    at = [[p**i for p in points] + [Fraction(int(i == m - 1))] for i in range(m)]
    g, bt = [], []
    for j, p in enumerate(points):
        others = [x for k, x in enumerate(points) if k != j]
        scale = Fraction(1)
        for x in others:
            scale *= p - x
        g.append([p**k / scale for k in range(r)])
        bt.append([*_polynomial(others), Fraction(0)])
    g.append([Fraction(int(k == r - 1)) for k in range(r)])
    bt.append(_polynomial(points))
    return at, g, bt


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), lowest first."""
    out = [Fraction(1)]
    for root in roots:
        out = [a - root * b for a, b in zip([Fraction(0), *out], [*out, Fraction(0)], strict=True)]
    return out


def conv2d(x: Tensor, w: Tensor, shape: Shape) -> Tensor:
    """``nn.conv2d`` with stride 1 and square filters through tiles of m x m outputs; equal to it in exact arithmetic.

    Intermediates: x_pad (n, h, w, c), V (u, v, tile, c), U (k/16, u, v, c, k%16), M (u, v, tile, k)
    """
    n, c, k, r, p, q, m = (shape[v] for v in "nckrpqm")
    a, rows, columns = m + r - 1, -(-p // m), -(-q // m)
    at, g, bt = (constant(mat, name)
                 for mat, name in zip(matrices(m, r), ("AT", "G", "BT"), strict=True))  # fmt: skip

    xp = padded(x, shape, rows * m + r - 1, columns * m + r - 1)
    ry, rx = reduce_axis(a, "y"), reduce_axis(a, "x")

    def element(t: Expr, y: Expr, x_: Expr, c_: Expr) -> Expr:
        pixel: Expr = xp[t // (rows * columns), (t // columns) % rows * m + y, t % columns * m + x_, c_]
        return pixel

    tiles = n * rows * columns
    half = compute((a, a, tiles, c), lambda u, b, t, c: total(bt[u, ry] * element(t, ry, b, c), axis=ry), "T")
    v = compute((a, a, tiles, c), lambda u, v, t, c: total(bt[v, rx] * half[u, rx, t, c], axis=rx), "V")
    panels, gr, gs = -(-k // PANEL), reduce_axis(r, "r"), reduce_axis(r, "s")

    def transformed(ko: Expr, u: Expr, v: Expr, c: Expr, ki: Expr) -> Expr:
        wide = cast(g[u, gr], "float64") * cast(g[v, gs], "float64") * cast(tap(w, shape, ko, ki, c, gr, gs), "float64")
        return total(wide, axis=(gr, gs))

    exact = compute((panels, a, a, c, PANEL), transformed, "U64", axes=("ko", "u", "v", "c", "ki"))
    weights = compute(exact.shape, lambda ko, u, v, c, ki: cast(exact[ko, u, v, c, ki], x.dtype), "U")
    rc, ru, rv = reduce_axis(c, "c"), reduce_axis(a, "u"), reduce_axis(a, "v")
    products = compute(
        (a, a, tiles, panels * PANEL),
        lambda u, v_, t, k: total(v[u, v_, t, rc] * weights[k // PANEL, u, v_, rc, k % PANEL], axis=rc),
        "M",
        axes=("u", "v", "t", "k"),
    )
    back = compute(
        (m, a, tiles, panels * PANEL), lambda i, b, t, k: total(at[i, ru] * products[ru, b, t, k], axis=ru), "Z"
    )
    out = compute((m, m, tiles, panels * PANEL), lambda i, j, t, k: total(at[j, rv] * back[i, rv, t, k], axis=rv), "Y")

    return result(shape, lambda n, k, p, q: out[p % m, q % m, (n * rows + p // m) * columns + q // m, k])


def cpu_winograd(s: Schedule, c: Config, shape: Mapping[str, Any]) -> Schedule:
    """Kernels: the weights, the input transform, and per panel of 16 channels the products with their way back.

    c: m; rows of tiles a block (``tb``); panels a block (``panels``); channels of an input block (``cb``);
    tiles of a register tile (``tile``); ``unroll_c``
    """
    m, width = c["m"], vector_lanes(shape)
    _weights(s, shape["prepack"])
    _input(s, c, shape, width)
    out = last_stage(s, "y")
    p0, p1 = s.split(f"{out}.p", [None, m])
    q0, q1 = s.split(f"{out}.q", [None, m])
    pb, pt = s.split(p0, [None, c["tb"]])
    kb, kp, kh, kl = s.split(f"{out}.k", [None, c["panels"], PANEL // width, width])
    s.reorder(f"{out}.n", pb, kb, kp, pt, q0, kh, p1, q1, kl)
    s.bind(f"{out}.n", "block.z").bind(pb, "block.y").bind(kb, "block.x")
    s.compute_at("Y", kh)
    s.compute_at("Z", kh)
    for stage, order in (("Z", ("t", "b", "i", "u", "k")), ("Y", ("t", "i", "j", "v", "k"))):
        s.reorder(*(f"{stage}.{x}" for x in order))
        for x in order[1:4]:
            s.unroll(f"{stage}.{x}")
        s.vectorize(f"{stage}.k")
    s.unroll(p1)
    if is_turned(shape, m) and m in SIDES:
        s.partition(q0, [shape["q"] // m])  # what lies beyond the image is left out one by one
        s.reorder(kl, q1)
        s.unroll(kl).vectorize(q1)
    else:
        s.unroll(q1)
        write_channels(s, kl, shape)
    _products(s, c, kp, width)
    return s


def _weights(s: Schedule, ahead: bool) -> None:
    s.compute_at("U64", s.split("U.ki", [None, PANEL])[0])
    s.bind("U.ko", "block.x")
    if ahead:
        s.run_once("U")


def _input(s: Schedule, c: Config, shape: Mapping[str, Any], width: int) -> None:
    columns = -(-shape["q"] // c["m"])
    s.stage_out("V", "root", "register")
    tb, tw = s.split("V.out.t", [None, columns])
    cb, cl, lanes = s.split("V.out.c", [None, c["cb"] // width, width])
    s.reorder(tb, cb, tw, cl, "V.out.u", "V.out.v", lanes)
    s.bind(tb, "block.y").bind(cb, "block.x")
    s.compute_at("V", cl)
    s.compute_at("T", cl)
    for stage, order in (("T", ("t", "b", "u", "y", "c")), ("V", ("t", "u", "v", "x", "c"))):
        s.reorder(*(f"{stage}.{x}" for x in order))
        for x in order[1:4]:
            s.unroll(f"{stage}.{x}")
        s.vectorize(f"{stage}.c")
    s.unroll("V.out.u").unroll("V.out.v").vectorize(lanes)
    pad, extent = shape["pad"], columns * c["m"] + shape["r"] - 1
    strip(s, "x_pad", cb, shape, "w", extent, (pad, pad + shape["w"]))


def _products(s: Schedule, c: Config, panel: Any, width: int) -> None:
    s.set_scope("M", "shared")
    s.compute_at("M", panel)
    t0, t1 = s.split("M.t", [None, c["tile"]], tail="balanced")
    half, lanes = s.split("M.k", [None, width])
    s.reorder("M.u", "M.v", t0, "M.c", t1, half, lanes)
    s.stage_out("M", t0, "register")
    s.unroll(t1).unroll(half).vectorize(lanes)
    unroll_by(s, "M.c", c["unroll_c"])
    half, lanes = s.split("M.out.k", [None, width])
    s.unroll("M.out.t").unroll(half).vectorize(lanes)
    if c["fetch"]:
        s.prefetch("U", at="M.c", ahead="M.v")
