"""Winograd convolution F(m x m, r x r) for stride 1, as an algorithm for ``s.redeclare``.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016. The transform matrices are made by the
Cook-Toom construction (Blahut, "Fast Algorithms for Signal Processing", section 5.2) from small rational points, in
exact arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tensorir.algorithms.products import Convolution, convolution_of, reduction_of
from tensorir.algorithms.registry import algorithm
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int, need_list
from tensorir.expr.compute import compute, constant, reduce_axis
from tensorir.expr.functions import not_equal
from tensorir.expr.reducers import sum as total
from tensorir.expr.reread import with_other
from tensorir.expr.tensor import Tensor
from tensorir.ir.tree import Expr, Var

POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2), 4, -4)
SIZES = {3: (4, 2, 6), 5: (2, 4)}
"""Taps r of a filter -> tile sizes m."""
_ERROR = {(2, 3): 5e-6, (4, 3): 5e-5, (6, 3): 5e-4, (2, 5): 5e-5, (4, 5): 2e-4}

Matrix = list[list[Fraction]]


def error_bound(m: int, r: int) -> float:
    """Return the bound of float32's error relative to the largest output, for normal data and up to 1024 channels.

    m, r: a pair of ``SIZES``; KeyError for others
    From measurements with a margin of at least 3: the error grows with the size m + r - 1 of the transforms.
    """
    return _ERROR[m, r]


def allowed_tiles(r: int, max_error: float) -> list[int]:
    """Return the tile sizes m for filters of r taps with ``error_bound(m, r) <= max_error``, in the order of ``SIZES``;
    [] if none, as for r other than 3 and 5.
    """
    return [m for m in SIZES.get(r, ()) if error_bound(m, r) <= max_error]


def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return ``(AT, G, BT)`` with ``y = AT ((G g) * (BT d))`` for m outputs of a filter g of r taps over m + r - 1
    inputs d, as exact fractions; m + r <= 11.
    """
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


def bound(outputs: tuple[Tensor, ...], tile: int, of: str | None = None, **_: object) -> float:
    """Bound of the rounding error relative to the largest result, for the convolution that ``winograd`` would
    compute.
    """
    return error_bound(tile, convolution(outputs, tile, of).r)


@algorithm("winograd", error=bound)
def winograd(outputs: tuple[Tensor, ...], tile: int, panel: int = 0, whole: Sequence[int] = (1, 1),
             of: str | None = None) -> tuple[Tensor, ...]:  # fmt: skip
    """Return ``outputs`` with their convolution computed in Winograd tiles of ``tile`` x ``tile`` results; its readers
    stay.

    panel: output channels per panel of the transformed filters, contiguous for vectors; 0 for one matrix product for
    each element of a transformed tile
    whole: multiples to which the numbers of tiles and of output channels of these products are rounded up; ignored with
    ``panel``
    of:    name of the convolution, if there are several reductions
    Raises ScheduleError ``winograd.convolution``, ``winograd.tile``, ``winograd.whole``, ``redeclare.stage``.
    """
    conv = convolution(outputs, tile, of)
    by = tuple(
        need_int("whole", n, 1, error=ScheduleError) for n in need_list("whole", whole, "two ints", ScheduleError)
    )
    if len(by) != 2:
        raise ScheduleError(Problem("winograd.whole", f"whole={by} are multiples of tiles and of output channels",
                                    hint="whole=[32, 64]"))  # fmt: skip
    tiles = _Tiles(conv, tile)
    lanes = need_int("panel", panel, 0, error=ScheduleError)
    made = _in_panels(tiles, lanes) if lanes else _by_places(tiles, (by[0], by[1]))
    return with_other(outputs, conv.result, made)


def convolution(outputs: tuple[Tensor, ...], tile: int, of: str | None) -> Convolution:
    """Return the convolution among ``outputs`` that tiles of this size apply to.

    Raises ScheduleError ``redeclare.stage``, ``winograd.convolution``, ``winograd.tile`` (sizes not in ``SIZES``).
    """
    found = convolution_of(reduction_of(outputs, of, "winograd"))
    if isinstance(found, str):
        hint = "a convolution of float32 with stride 1, dilation 1 and a square filter, in NCHW or NHWC"
        raise ScheduleError(Problem("winograd.convolution", found, hint=hint))
    size = need_int("tile", tile, error=ScheduleError)
    if size not in SIZES.get(found.r, ()):
        known = "; ".join(f"filters of {r} x {r}: {', '.join(map(str, ms))}" for r, ms in SIZES.items())
        message = f"there are no tiles of {size} x {size} outputs for a filter of {found.r} x {found.r}"
        raise ScheduleError(Problem("winograd.tile", message, hint=f"tile of {known}"))
    return found


@dataclass(frozen=True)
class _Tiles:
    """Tiles of m x m results of a convolution, and the transform matrices."""

    conv: Convolution
    m: int

    @property
    def a(self) -> int:
        """Rows and columns of an input tile: m + r - 1."""
        return self.m + self.conv.r - 1

    @property
    def rows(self) -> int:
        """Rows of tiles per image."""
        return -(-self.conv.p // self.m)

    @property
    def columns(self) -> int:
        """Columns of tiles per image."""
        return -(-self.conv.q // self.m)

    @property
    def many(self) -> int:
        """Number of tiles of all images."""
        return self.conv.n * self.rows * self.columns

    @cached_property
    def constants(self) -> tuple[Tensor, Tensor, Tensor]:
        """Constant tensors ``AT``, ``G`` and ``BT``."""
        named = zip(matrices(self.m, self.conv.r), ("AT", "G", "BT"), strict=True)
        at, g, bt = (constant(matrix, name) for matrix, name in named)
        return at, g, bt

    def pixels(self, many: int) -> Callable[[Expr, Expr, Expr, Expr], Expr]:
        """Return a function (tile, row, column, channel) -> image element, with zeros outside of the image, for
        ``many`` tiles.
        """
        conv, m, rows, columns = self.conv, self.m, self.rows, self.columns
        shape = (-(-many // (rows * columns)), rows * m + conv.r - 1, columns * m + conv.r - 1, conv.c)
        sides = [conv.image.shape[conv.layout.index(v)] for v in "NHW"]
        inside = not any(conv.pad) and all(a <= b for a, b in zip(shape[:3], sides, strict=True))
        padded = compute(shape, lambda n, h, w, c: conv.pixel(n, h, w, c, inside), f"{conv.image.name}_pad")

        def pixel(t: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
            return padded[t // (rows * columns), (t // columns) % rows * m + y, t % columns * m + x, c]

        return pixel

    def result(self, tiles: Tensor) -> Tensor:
        """Return the convolution's result from tensor ``tiles`` (row, column, tile, channel)."""
        conv, m, rows, columns = self.conv, self.m, self.rows, self.columns
        op = conv.result.op
        assert op is not None

        def element(n: Expr, k: Expr, p: Expr, q: Expr) -> Expr:
            return tiles[p % m, q % m, (n * rows + p // m) * columns + q // m, k]

        def nhwc(n: Expr, p: Expr, q: Expr, k: Expr) -> Expr:
            return element(n, k, p, q)

        names = [v.name for v in op.axes]
        return compute(op.extents, element if conv.layout == "NCHW" else nhwc, op.name, axes=names)


def _terms(coefficient: Expr, x: Expr, axis: Var) -> Expr:
    """Sum of products along ``axis`` without terms whose coefficient is 0."""
    return total(coefficient * x, axis=axis, where=not_equal(coefficient, 0))


def _in_panels(of: _Tiles, panel: int) -> Tensor:
    """The convolution with filters in panels of output channels.

    Intermediates: x_pad (n, h, w, c), V (u, v, tile, c), U (k/panel, u, v, c, k%panel), M (u, v, tile, k), and taps
    w_panel (k/panel, t, k%panel) with t = (c, r, s) as stored; for NHWC (k/panel, (r, s), c, k%panel)
    """
    conv, a, m, tiles = of.conv, of.a, of.m, of.many
    c, r, (at, g, bt) = conv.c, conv.r, of.constants
    pixel = of.pixels(tiles)
    ry, rx = reduce_axis(a, "y"), reduce_axis(a, "x")
    half = compute((a, a, tiles, c), lambda u, b, t, c: _terms(bt[u, ry], pixel(t, ry, b, c), ry), "T")
    v = compute((a, a, tiles, c), lambda u, v, t, c: _terms(bt[v, rx], half[u, rx, t, c], rx), "V")
    panels, halves = -(-conv.k // panel), _half_transformed(of, panel)
    gs = reduce_axis(r, "s")
    weights = compute(
        (panels, a, a, c, panel),
        lambda ko, u, v, c, ki: _terms(g[v, gs], halves[ko, u, gs, c, ki], gs),
        "U",
        axes=("ko", "u", "v", "c", "ki"),
    )
    rc, ru, rv = reduce_axis(c, "c"), reduce_axis(a, "u"), reduce_axis(a, "v")
    products = compute(
        (a, a, tiles, panels * panel),
        lambda u, v_, t, k: total(v[u, v_, t, rc] * weights[k // panel, u, v_, rc, k % panel], axis=rc),
        "M",
        axes=("u", "v", "t", "k"),
    )
    back = compute((m, a, tiles, panels * panel), lambda i, b, t, k: _terms(at[i, ru], products[ru, b, t, k], ru), "Z")
    out = compute((m, m, tiles, panels * panel), lambda i, j, t, k: _terms(at[j, rv], back[i, rv, t, k], rv), "Y")
    return of.result(out)


def _half_transformed(of: _Tiles, panel: int) -> Tensor:
    """Filters transformed along columns only, (k/panel, u, s, c, k%panel), from taps in stored order."""
    conv, (_, g, _), panels, gr = of.conv, of.constants, -(-of.conv.k // panel), reduce_axis(of.conv.r, "r")
    c, r, name, nchw = conv.c, conv.r, f"{conv.filter.name}_panel", conv.layout == "NCHW"

    def tap(ko: Expr, ki: Expr, c: Expr, r: Expr, s: Expr) -> Expr:
        return conv.tap(ko * panel + ki, c, r, s, conv.k % panel == 0)

    if nchw:
        stored = compute((panels, c * r * r, panel), lambda ko, t, ki: tap(ko, ki, t // (r * r), t // r % r, t % r),
                         name, axes=("ko", "t", "ki"))  # fmt: skip
    else:
        stored = compute((panels, r * r, c, panel), lambda ko, z, t, ki: tap(ko, ki, t, z // r, z % r), name,
                         axes=("ko", "z", "t", "ki"))  # fmt: skip

    def half(ko: Expr, u: Expr, s: Expr, c: Expr, ki: Expr) -> Expr:
        tap = stored[ko, (c * r + gr) * r + s, ki] if nchw else stored[ko, gr * r + s, c, ki]
        return _terms(g[u, gr], tap, gr)

    return compute((panels, of.a, r, c, panel), half, "W", axes=("ko", "u", "s", "c", "ki"))


def _by_places(of: _Tiles, whole: tuple[int, int]) -> Tensor:
    """The convolution with one matrix product per element z = u * (m + r - 1) + v of a transformed tile.

    Intermediates: U (z, c, k), V (z, tile, c) and M (z, tile, k), for NCHW V (z, c, tile) and M (z, k, tile)
    """
    conv, a, m, nchw = of.conv, of.a, of.m, of.conv.layout == "NCHW"
    c, r, (at, g, bt) = conv.c, conv.r, of.constants
    many, k = (-(-size // by) * by for size, by in zip((of.many, conv.k), whole, strict=True))
    pixel = of.pixels(many)
    gr, gs, ry, rx = (reduce_axis(size, name) for size, name in ((r, "r"), (r, "s"), (a, "y"), (a, "x")))

    def tap(k: Expr, c: Expr, r: Expr, s: Expr) -> Expr:
        return conv.tap(k, c, r, s, conv.k % whole[1] == 0)

    half = compute((a, r, c, k), lambda u, s, c, k: _terms(g[u, gr], tap(k, c, gr, s), gr), "W")
    weights = compute((a * a, c, k), lambda z, c, k: _terms(g[z % a, gs], half[z // a, gs, c, k], gs), "U")
    first = compute((a, a, many, c), lambda u, x, t, c: _terms(bt[u, ry], pixel(t, ry, x, c), ry), "T")

    def place(z: Expr, t: Expr, c: Expr) -> Expr:
        return _terms(bt[z % a, rx], first[z // a, rx, t, c], rx)

    rc, ru, rv = reduce_axis(c, "k"), reduce_axis(a, "u"), reduce_axis(a, "v")
    if nchw:
        v = compute((a * a, c, many), lambda z, c, t: place(z, t, c), "V")
        products = compute((a * a, k, many), lambda z, i, j: total(weights[z, rc, i] * v[z, rc, j], axis=rc), "M")
    else:
        v = compute((a * a, many, c), place, "V")
        products = compute((a * a, many, k), lambda z, i, j: total(v[z, i, rc] * weights[z, rc, j], axis=rc), "M")

    def product(z: Expr, t: Expr, k: Expr) -> Expr:
        value: Expr = products[(z, k, t) if nchw else (z, t, k)]
        return value

    back = compute((m, a, many, k), lambda i, b, t, k: _terms(at[i, ru], product(ru * a + b, t, k), ru), "Z")
    out = compute((m, m, many, k), lambda i, j, t, k: _terms(at[j, rv], back[i, rv, t, k], rv), "Y")
    return of.result(out)
