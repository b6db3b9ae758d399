"""Matches a loop nest against an instruction's definition and finds the operand tiles.

Both are normalized: a set of loops around one statement, with indices linear in the loops. They match if some pairing
of the loops makes the statements equal, with a tile of any buffer for each operand. A tile spans the last dimensions of
its buffer and must move with the paired loops exactly as the operand does; the remainder of each index, free of those
loops, is the tile's first element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Interval, Linear, same
from tensorir.arith.conditions import conjuncts
from tensorir.intrin.declare import MOST_DIMS, Intrin
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import scattered, written
from tensorir.ir.node import Node
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Cast,
    Combiner,
    Const,
    Expr,
    Load,
    Loop,
    Pixels,
    Region,
    Scope,
    Select,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from tensorir.ir.visit import find, substitute, uses

MOST_SPAN = 256
"""Elements of an array among which a tile is, along each dimension."""
MOST_STEP = 8
"""Elements of an array from one that a tile has to the next, in each dimension but the last."""
PIECE_BYTES = 16
"""Of which rows of such an array are multiples."""

COMMUTES = ("+", "*", "&", "|", "^", "and", "or", "==", "!=")


class NoMatch(Exception):  # an answer, not an error: it says why
    """Raised if a nest does not match an instruction; its text is the reason, a sentence."""


def match(above: Sequence[Loop], loop: Loop, stage: Stage, intrin: Intrin) -> tuple[Region, ...]:
    """Regions of the instruction's operands, in their order, on which nest ``loop`` around ``stage`` does what
    ``intrin`` does.

    above: the loops around ``loop``

    Guards and the init of the stage are not compared: callers do that. Raises NoMatch.
    """
    nest = _nest(loop, stage)
    for it, bind in zip(stage.iters, stage.binds, strict=True):
        if it.axis is Axis.ORDERED and uses(bind, {x.var for x in nest}):
            raise NoMatch(f"{it.var.name} of {stage.name} is an ordered axis: its iterations cannot run at once")
    arith = Arith({x.var: _range(x) for x in (*above, *nest)})
    have = substitute(stage.body, dict(zip((it.var for it in stage.iters), stage.binds, strict=True)))
    wanted, want = intrin.loops, intrin.statement
    why: NoMatch | None = None
    for chosen in _pairings(wanted, [x for x in nest if as_int(x.extent) != 1]):
        try:
            loops = dict(zip((x.var for x in wanted), chosen, strict=True))
            tiles = _Unify(arith, loops, intrin, [x.var for x in above]).statement(want, have)
        except NoMatch as e:
            why = why or e  # the pairing in program order is the one that people have in mind
        else:
            return tuple(tiles[b] for b in intrin.operands)
    if why is not None:
        raise why
    raise NoMatch(f"{intrin.name} {_runs(wanted)}, the nest {loop.var.name} {_runs(nest)}")


def _nest(loop: Loop, stage: Stage) -> list[Loop]:
    """The loops from ``loop`` to ``stage``, outermost first; raises NoMatch if there are other statements between
    them.
    """
    out: list[Loop] = []
    at: Stmt = loop
    while isinstance(at, Loop):
        if not isinstance(at.extent, Const):
            raise NoMatch(f"the extent of {at.var.name} is not constant")
        out.append(at)
        at = at.body
    if at is not stage:
        raise NoMatch(f"{out[-1].var.name} holds more than {stage.name}")
    return out


def _range(x: Loop) -> Interval:
    return (0, as_int(x.extent) - 1) if isinstance(x.extent, Const) else (0, float("inf"))


def _runs(loops: Sequence[Loop]) -> str:
    extents = " x ".join(str(as_int(x.extent)) for x in loops)
    return f"runs over {extents} iterations" if loops else "has no loops"


def _pairings(wanted: Sequence[Loop], nest: Sequence[Loop]) -> Iterator[tuple[Var, ...]]:
    """Yield assignments with equal extents: per loop of ``wanted``, in order, the variable of a loop of ``nest``."""
    extents = [as_int(x.extent) for x in wanted]
    if sorted(extents) != sorted(as_int(x.extent) for x in nest):
        return
    for chosen in itertools.permutations(nest):
        if [as_int(x.extent) for x in chosen] == extents:
            yield tuple(x.var for x in chosen)


class _Unify:
    """Comparison of an instruction's statement with a stage's, which records each operand's region in ``tiles``."""

    def __init__(self, arith: Arith, loops: dict[Var, Var], intrin: Intrin, above: Sequence[Var]) -> None:
        self.arith, self.intrin, self.above = arith, intrin, above
        self.loops: dict[Var, Expr] = dict(loops)
        self.inner = tuple(loops.values())
        self.tiles: dict[Buffer, Region] = {}

    def statement(self, want: Store | Update, have: Stmt) -> dict[Buffer, Region]:
        match want, have:
            case Store(), Store():
                self.access(want.buffer, want.index, have.buffer, have.index)
                self.value(want.value, have.value)
            case Update(), Update() if len(have.buffers) == 1:
                self.access(want.buffers[0], want.index, have.buffers[0], have.index)
                if not same_combiner(want.combiner, have.combiner):
                    raise NoMatch(f"{self.intrin.name} {_verb(want)}, the stage {_verb(have)}")
                self.value(want.values[0], have.values[0])
            case _:
                raise NoMatch(f"{self.intrin.name} {_verb(want)}, the stage {_verb(have)}")
        self._apart()
        return self.tiles

    def value(self, want: Expr, have: Expr) -> None:
        """Match the expressions ``want`` of the instruction and ``have`` of the stage, commutative operands in either
        order. Raises NoMatch.
        """
        if isinstance(want, Binary) and isinstance(have, Binary) and want.op == have.op and want.op in COMMUTES:
            known = dict(self.tiles)
            try:
                self.both((want.a, want.b), (have.a, have.b))
            except NoMatch:
                first, self.tiles = self.tiles, known
                try:
                    self.both((want.a, want.b), (have.b, have.a))
                except NoMatch:
                    self.tiles = first
                else:
                    return
                raise
            return
        if isinstance(have, Select) and self.intrin.maps and (inside := padded(have)) is not None:
            have = inside  # what a tile has beyond its array is 0 anyway
        if isinstance(want, Load) and isinstance(have, Load):
            self.access(want.buffer, want.index, have.buffer, have.index)
        elif want.dtype == have.dtype == "index":
            target = self.arith.linear(substitute(want, self.loops))
            if not self.arith.linear(have).same(target):
                raise self._differs(want, have)
        elif _head(want) == _head(have):
            self.both(tuple(_kids(want)), tuple(_kids(have)))
        else:
            raise self._differs(want, have)

    def both(self, want: tuple[Expr, ...], have: tuple[Expr, ...]) -> None:
        if len(want) != len(have):
            raise self._differs(want[0], have[0])
        for w, h in zip(want, have, strict=True):
            self.value(w, h)

    def access(self, tile: Buffer, want: tuple[Expr, ...], buffer: Buffer, have: tuple[Expr, ...]) -> None:
        """Match ``buffer[have]`` with ``tile[want]`` and record the region of the operand ``tile``. Raises NoMatch."""
        if tile.name in self.intrin.maps:
            self._box(tile, want, buffer, have)
            return
        lead = len(have) - len(want)
        if tile.dtype != buffer.dtype:
            raise NoMatch(f"{tile.name} of {self.intrin.name} is {tile.dtype}, {buffer.name} is {buffer.dtype}")
        if lead < 0:
            raise NoMatch(f"{buffer.name} has {len(have)} dimensions, {tile.name} has {len(want)}")
        extents = (1,) * lead + tile.dims
        if buffer.layout is not None and tile in self.intrin.held:
            raise NoMatch(f"{buffer.name} is stored as {written(buffer.layout)}, not as {self.intrin.name} holds it")
        finds = tile in self.intrin.addressed or tile.name in self.intrin.descriptors or self.intrin.maps
        near = (1,) * len(extents) if finds else extents  # lanes, or the instruction, find the rest themselves
        if buffer.layout is not None and (d := scattered(buffer.layout, near)) is not None:
            raise NoMatch(
                f"{buffer.name} is stored as {written(buffer.layout)}, so the elements of {tile.name} along dimension "
                f"{d} are not neighbours"
            )
        first: list[Expr] = []
        for d, i in enumerate(have):
            target = self.arith.linear(substitute(want[d - lead], self.loops)) if d >= lead else Linear({}, 0)
            rest = self.arith.linear(i).plus(target, -1)
            for v in self.inner:
                if any(uses(t, {v}) for t in rest.terms):
                    raise NoMatch(f"dimension {d} of {buffer.name} does not move with {v.name} as {tile.name} does")
            first.append(rest.expr())
        old = self.tiles.setdefault(tile, Region(buffer, tuple(first), extents))
        if old.buffer is not buffer or not all(map(same, old.first, first)):
            raise NoMatch(f"{tile.name} would stand for two tiles, of {old.buffer.name} and {buffer.name}")

    def _box(self, tile: Buffer, want: tuple[Expr, ...], buffer: Buffer, have: tuple[Expr, ...]) -> None:
        """Match ``buffer[have]`` with ``tile[want]`` and record the region of the operand ``tile``, one copied by TMA,
        whose dimensions may be any dimensions of the array, in order. Raises NoMatch.
        """
        if tile.dtype != buffer.dtype:
            raise NoMatch(f"{tile.name} of {self.intrin.name} is {tile.dtype}, {buffer.name} is {buffer.dtype}")
        row = as_int(buffer.shape[-1]) * DTYPES[buffer.dtype].bits // 8
        if buffer.scope is Scope.GLOBAL and len(have) > 1 and row % PIECE_BYTES:
            raise NoMatch(f"{buffer.name} has rows of {row} bytes, no multiple of {PIECE_BYTES}")
        inner = set(self.inner)
        forms = [self.arith.linear(i) for i in have]
        moving = [d for d, form in enumerate(forms) if any(uses(t, inner) for t in form.terms)]
        spans = [d for d, n in enumerate(tile.dims) if n > 1]
        if any(t not in inner and uses(t, inner) for form in forms for t in form.terms) and len(tile.dims) == 2:
            self.tiles.setdefault(tile, self._pixels(tile, want, buffer, forms))
            return
        if len(moving) != len(spans):
            raise NoMatch(f"{len(moving)} dimensions of {buffer.name} move with the tile, which has {len(spans)}")
        if len(have) > MOST_DIMS and buffer.scope is Scope.GLOBAL:  # before, it may yet be inlined
            raise NoMatch(f"{buffer.name} has {len(have)} dimensions, and arrays of tiles have up to {MOST_DIMS}")
        first = [self.arith.simplify(form.expr()) for form in forms]
        extents, steps = [1] * len(have), [1] * len(have)
        for d, k in zip(moving, spans, strict=True):
            target = self.arith.linear(substitute(want[k], self.loops))
            steps[d] = self._step(tile, tile.dims[k], buffer, d, [forms[d].terms.get(t, 0) for t in target.terms])
            rest = forms[d].plus(target, -steps[d])
            if any(uses(t, inner) for t in rest.terms):
                raise NoMatch(f"dimension {d} of {buffer.name} does not move as {tile.name} does")
            extents[d], first[d] = tile.dims[k], rest.expr()
        moved = tuple(steps) if any(n > 1 for n in steps) else ()
        self.tiles.setdefault(tile, Region(buffer, tuple(first), tuple(extents), steps=moved))

    def _pixels(self, tile: Buffer, want: tuple[Expr, ...], buffer: Buffer, forms: list[Linear]) -> Region:
        """Region of an operand whose rows are image pixels, from indices with quotients of a pixel number. Raises
        NoMatch.
        """
        row, column = (self.arith.linear(substitute(i, self.loops)) for i in want)
        dims = tuple(as_int(n) for n in buffer.shape)
        channel = forms[-1].plus(column, -1)
        (pixel,) = row.terms
        if not isinstance(pixel, Var) or any(uses(t, set(self.inner)) for t in channel.terms):
            raise NoMatch(f"dimension {len(dims) - 1} of {buffer.name} does not move as {tile.name} does")
        if (one := in_one(forms[:-1], dims[:-1], pixel, self.arith)) is not None:
            first, count = one
            return Region(buffer, (first.expr(), channel.expr()), tile.dims, shape=(count, dims[-1]))
        if self.intrin.stores:
            raise NoMatch(f"the rows of {tile.name} are not rows of {buffer.name} that follow each other")
        try:
            return through_image(tile.dims, buffer, [*forms[:-1], channel], pixel, self.above, self.arith)
        except NoPixels as e:
            raise NoMatch(str(e)) from None

    def _step(self, tile: Buffer, count: int, buffer: Buffer, d: int, found: Sequence[int]) -> int:
        """Distance in the array between neighbours of the tile along dimension ``d``; raises NoMatch beyond the limits
        of tensor maps (CUDA driver API, cuTensorMapEncodeTiled: elementStrides, boxDim).

        count: elements of the tile along the dimension;  found: coefficients of the tile's variable in the index
        """
        step = found[0] if found else 1
        if step in (0, 1):
            return 1
        if not 1 <= step <= (1 if d == len(buffer.shape) - 1 else MOST_STEP):
            raise NoMatch(f"dimension {d} of {buffer.name} moves by {step} where {tile.name} moves by 1; a tile has "
                          f"steps of 1 to {MOST_STEP}, in the last dimension of 1")  # fmt: skip
        if count * step > MOST_SPAN:
            raise NoMatch(f"{count} elements, each {step} after the one before, span {count * step} of dimension {d} "
                          f"of {buffer.name}, and tiles span up to {MOST_SPAN}")  # fmt: skip
        return step

    def _apart(self) -> None:
        """Raise NoMatch if the output is also an input, as instructions read before they write."""
        made = self.tiles[self.intrin.outputs[0]].buffer
        for b in self.intrin.operands:
            if b not in self.intrin.outputs and b in self.tiles and self.tiles[b].buffer is made:
                raise NoMatch(f"{made.name} would be both the input {b.name} and the output of {self.intrin.name}")

    def _differs(self, want: Expr, have: Expr) -> NoMatch:
        return NoMatch(f"where {self.intrin.name} has {show(want)}, the stage has {show(have)}")


def padded(e: Expr) -> Load | None:
    """The load of ``cond ? load : 0`` if ``cond`` only bounds its indices to the array; None for other expressions."""
    conds: list[Expr] = []
    while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        conds += conjuncts(e.cond)
        e = e.a
    if not isinstance(e, Load):
        return None
    arith = Arith()
    bounds = [c for i, n in zip(e.index, e.buffer.shape, strict=True) for x in (i, _read(i))
              for c in (binary("<=", const(0), x), binary("<", x, n))]  # fmt: skip
    return e if all(any(same_bound(arith, c, b) for b in bounds) for c in conds) else None


def _read(index: Expr) -> Expr:
    """The loaded value of an ``index`` that is an integer conversion of one; else ``index`` itself."""
    if isinstance(index, Cast) and isinstance(index.a, Load | Select) and DTYPES[index.a.dtype].bits <= 32:
        return index.a
    return index


def same_bound(arith: Arith, a: Expr, b: Expr) -> bool:
    """True if conditions ``a`` and ``b`` are identical, or provably equivalent."""
    if same(a, b):
        return True
    return isinstance(a, Binary) and isinstance(b, Binary) and arith.child(assume=[a]).proves(b) and arith.child(
        assume=[b]
    ).proves(a)  # fmt: skip


def _head(e: Expr) -> tuple[object, ...]:
    """A node's class and the values of its fields that are no children, for comparisons."""
    fixed = {name for name, _ in e.CHILDREN}
    return (type(e), *(getattr(e, f) for f in e.FIELDS if f not in fixed))


def _kids(e: Node) -> Iterator[Expr]:
    return (c for c in e.children() if isinstance(c, Expr))


def same_combiner(a: Combiner, b: Combiner) -> bool:
    """True if two combiners are equal up to variable names."""
    if len(a.result) != len(b.result) or any(x.dtype != y.dtype for x, y in zip(a.result, b.result, strict=True)):
        return False
    rename: dict[Var, Expr] = dict(zip((*b.old, *b.new), (*a.old, *a.new), strict=True))
    return all(same(x, substitute(y, rename)) for x, y in zip(a.result, b.result, strict=True))


def _verb(s: Stmt) -> str:
    if isinstance(s, Store):
        return "overwrites its output"
    if isinstance(s, Update) and len(s.buffers) == 1:
        return f"combines with its output by {s.combiner.name}"
    names = sorted({type(x).__name__ for x in find(s, Stmt)})
    return f"does more than one thing ({', '.join(names)})"


# --- pixels of an image


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
    """Raised if an array is not read pixel by pixel; its text is the reason, a sentence."""


class TooFar(NoPixels):
    """Raised if pixels exceed a limit of im2col copies."""


def in_one(forms: Sequence[Linear], dims: Sequence[int], row: Var, arith: Arith) -> tuple[Linear, int] | None:
    """(index of the first pixel, number of pixels in the array) if the dimensions ``dims`` form one contiguous index
    that increases by 1 from row to row of a tile; else None.

    forms: index per dimension;  row: variable over the tile's rows
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
    """Region of an im2col copy: a tile of (pixels, channels) gathered from an image (n, h, w, c).

    forms: image indices, ``forms[-1]`` that of the first channel;  row: variable over the tile's pixels
    above: enclosing loop variables, outermost first
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
    """Row or column index of a pixel, ``step * digit + least + offset``, with ``offset`` >= 0 common to all pixels of a
    tile and ``digit`` one of ``count`` values.
    """

    step: int
    digit: Linear
    count: int
    least: int
    offset: Linear


def _walk(tile: Sequence[int], buffer: Buffer, forms: Sequence[Linear], row: Var, taps: frozenset[Var] | None,
          arith: Arith) -> Region:  # fmt: skip
    """Region of an im2col copy, given the variables that make up the offset common to a tile's pixels.

    forms: image indices;  row: variable over the tile's pixels;  taps: variables of the offset; None: all except
           ``row``
    Raises NoPixels.
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
    """Raise TooFar for an im2col copy beyond the limits of tensor maps or the instruction."""
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
    """``number`` without ``row`` if it increases by 1 with ``row``; else None."""
    found = number.along(row)
    return found[1] if found is not None and found[0] == 1 else None
