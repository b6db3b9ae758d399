"""Tiles whose rows are the pixels of images in one line: which copies of whole tiles bring them.

The index that numbers the pixels of all results, (n * P + p) * Q + q, is divided again where an image is read or a
result is written: image, row and column are what is left. Two kinds of copies know such tiles. Where all pixels of an
array follow each other, its leading dimensions are one, and the tile is one of a matrix. Where they do not (a border,
a stride), the copy goes through the image itself: the im2col mode of a tensor map.

Nothing is recognised by its looks, since simplification writes the same index in many ways. What is proved is that row
and column, less what they share with all pixels of the tile, are digits of one number that counts the tile's pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.ir.tree import Buffer, Pixels, Region, Var
from tensorir.ir.visit import find, uses

IMAGE_DIMS = 4
"""Of an array (n, h, w, c) that is gone through pixel by pixel."""
MOST_PIXELS = 1024
"""Of a tile (CUDA driver API, cuTensorMapEncodeIm2col, as all that follows)."""
MOST_CHANNELS = 256
CORNERS = range(-128, 128)
"""Where the pixels of such an image may begin, and how far from its last one they may end, in rows and columns."""
MOST_OFFSET = 255
"""Rows or columns from there to the pixels that are read (PTX ISA: 8 bits for each of two dimensions)."""
MOST_PIXEL_STEP = 8


class NoPixels(Exception):  # an answer, not an error
    """Why an array is not read pixel by pixel; a sentence."""


class TooFar(NoPixels):
    """Which limit of a copy keeps it from reading these pixels."""


def in_one(forms: Sequence[Linear], dims: Sequence[int], row: Var, arith: Arith) -> tuple[Linear, int] | None:
    """The first pixel of a tile, and how many there are, where the dimensions ``dims`` are one to it; else None.

    forms: the index in each of them;  row: the variable that counts the tile's pixels
    """
    number = Linear({}, 0)
    for d, (form, n) in enumerate(zip(forms, dims, strict=True)):
        low, high = arith.range_of(form)
        outer = math.prod(dims[:d]) > 1 or any(f.terms or f.constant for f in forms[:d])
        if outer and (low < 0 or high >= n):  # what is beyond this row is not the next one
            return None
        number = arith.linear((number.times(n).plus(form)).expr())
    first = _first(number, row)
    return None if first is None else (first, math.prod(dims))


def through_image(tile: Sequence[int], buffer: Buffer, forms: Sequence[Linear], row: Var, above: Sequence[Var],
                  arith: Arith) -> Region:  # fmt: skip
    """The tile of (pixels, channels) that a copy gathers from an image (n, h, w, c).

    forms: the indices of the image;  row: the variable that counts the tile's pixels
    above: the variables of the loops around, the outermost first; channels start where ``forms[-1]`` says
    Raises NoPixels.
    """
    if len(forms) != IMAGE_DIMS:
        raise NoPixels(f"{buffer.name} has {len(forms)} dimensions, and pixels of (n, h, w, c) can be gone through")
    tried: set[frozenset[Var] | None] = set()
    why: NoPixels | None = None
    moving = {v for form in forms for t in form.terms if uses(t, {row}) for v in above if uses(t, {v})}
    for count in range(1, len(above) + 2):  # the innermost loops are those over taps, or a loop counts both
        taps = frozenset(above[len(above) - count :]) - moving if count <= len(above) else None
        if taps not in tried:
            tried.add(taps)
            try:
                return _walk(tile, buffer, forms, row, taps, arith)
            except NoPixels as e:
                why = e if why is None or (isinstance(e, TooFar) and not isinstance(why, TooFar)) else why
    raise why or NoPixels(f"no loop is around the copy of {buffer.name}")


@dataclass(frozen=True)
class _Side:
    """The index of rows or of columns: ``step * digit + least + offset``, where ``offset`` is 0 or more and the same
    for all pixels of a tile.
    """

    step: int
    digit: Linear
    count: int
    least: int
    offset: Linear


def _walk(tile: Sequence[int], buffer: Buffer, forms: Sequence[Linear], row: Var, taps: frozenset[Var] | None,
          arith: Arith) -> Region:  # fmt: skip
    """As ``through_image``, where what moves with ``taps`` alone is the same for all pixels of a tile; without ``taps``
    all terms are that do not move with ``row``.
    """
    image, high, wide = forms[0], *(_side(form, buffer, row, taps, arith) for form in forms[1:3])
    count = high.count
    if (
        buffer.dims[0] == 1 and not image.terms and image.constant == 0
    ):  # rows that begin past the end are 0 as those of a second image
        count = max(1, min(count, (buffer.dims[1] - 1 - high.least) // high.step + 1))
    number = arith.linear(image.times(count).plus(high.digit).times(wide.count).plus(wide.digit).expr())
    first = _first(number, row)
    if first is None:
        raise NoPixels(f"the pixels of a tile do not follow each other in {buffer.name}: (n, h, w) of pixel i would be "
                       f"i // (P * Q), i // Q % P and i % Q, times a stride, plus a tap")  # fmt: skip
    offset = (high.offset.expr(), wide.offset.expr())
    made = Pixels((count, wide.count), (high.step, wide.step), (high.least, wide.least), offset)
    _need_limits(tile, buffer, made, [high.offset, wide.offset], arith)
    return Region(buffer, (first.expr(), forms[-1].expr()), (tile[0], tile[1]), pixels=made)


def _side(form: Linear, buffer: Buffer, row: Var, taps: frozenset[Var] | None, arith: Arith) -> _Side:
    still = {t: k for t, k in form.terms.items() if (uses(t, set(taps)) if taps is not None else not uses(t, {row}))}
    if taps is not None and any(not taps.issuperset(find(t, Var)) for t in still):
        raise NoPixels(f"the rows and columns of {buffer.name} do not split into those of pixels and of taps")
    own = {t: k for t, k in form.terms.items() if t not in still}
    step = math.gcd(*(k for t, k in own.items() if uses(t, {row}))) or 1
    if any(k % step for k in own.values()):
        raise NoPixels(f"the pixels of a tile are {step} rows or columns of {buffer.name} apart, and the first one may "
                       "be between")  # fmt: skip
    digit = Linear({t: k // step for t, k in own.items()}, 0)
    low, high = arith.range_of(digit)
    least, most = arith.range_of(Linear(still, form.constant))
    if low < 0 or math.inf in (high, most) or least == -math.inf:
        raise NoPixels(f"nothing tells how many rows and columns of {buffer.name} there are")
    return _Side(step, digit, int(high) + 1, int(least), Linear(still, form.constant - int(least)))


def _need_limits(tile: Sequence[int], buffer: Buffer, p: Pixels, offset: Sequence[Linear], arith: Arith) -> None:
    """Raise TooFar for what no tensor map has, or no instruction."""
    count, channels = tile
    if count > MOST_PIXELS or channels > MOST_CHANNELS:
        raise TooFar(f"a tile of {count} pixels by {channels} channels; a copy has up to {MOST_PIXELS} by "
                       f"{MOST_CHANNELS}")  # fmt: skip
    for side, step, low, high, form in zip(("rows", "columns"), p.steps, p.lower, p.upper(buffer.dims[1:3]), offset,
                                           strict=True):  # fmt: skip
        if not 1 <= step <= MOST_PIXEL_STEP:
            raise TooFar(f"pixels are {step} {side} of {buffer.name} apart; a copy has steps of 1 to "
                           f"{MOST_PIXEL_STEP}")  # fmt: skip
        if low not in CORNERS or high not in CORNERS:
            raise TooFar(f"pixels begin at {side[:-1]} {low} of {buffer.name} and end {high} {side} after its last "
                         f"one, taps aside; a copy has {CORNERS[0]} to {CORNERS[-1]} for both")  # fmt: skip
        if (most := arith.range_of(form)[1]) > MOST_OFFSET:
            raise TooFar(f"taps are up to {int(most)} {side} of {buffer.name} apart; a copy has up to {MOST_OFFSET}")


def _first(number: Linear, row: Var) -> Linear | None:
    """``number`` of the first pixel, where that of the next one is one more; else None."""
    found = number.along(row)
    return found[1] if found is not None and found[0] == 1 else None
