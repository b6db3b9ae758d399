"""register_tile: compute a tile of outputs in registers, rows unrolled and the last axis vectorized."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int, need_ints, need_text
from tensorir.ir.build import as_int
from tensorir.ir.tree import Loop, Stage
from tensorir.ir.visit import find
from tensorir.schedule.analysis import caret
from tensorir.schedule.history import AxisRef, H, History, Name, Scheduled
from tensorir.schedule.primitives.annotate import annotate
from tensorir.schedule.primitives.loops import TAILS, TILED, reorder, split, unroll, vectorize
from tensorir.schedule.registry import primitive


@primitive("Loops")
def register_tile(self: Scheduled[H], *axes: Name, sizes: Sequence[int] | None = None, lanes: int = 1,
                  tail: str | Sequence[str] = "guard", terms: int = 1) -> tuple[AxisRef, ...]:  # fmt: skip
    """Split ``axes`` into register tiles: loops over tiles outside, tile rows unrolled, the last axis vectorized.

    Returns the loops over tiles, in the order of ``axes``.

    ``s.register_tile("C.i", "C.j", sizes=[6, 32], lanes=16)``, where C adds up over k::

        for i in m: for j in n: for k in r: C[i, j]
        ->
        for i0 in m/6: for j0 in n/32: for k in r:
          for i1 in 6:  # unroll
            for j1 in 2:  # unroll
              for j2 in 16:  # vectorize
                C[i0*6 + i1, j0*32 + j1*16 + j2]

    sizes: cells of a tile along each axis; without them the whole loops are one tile
    lanes: of a vector, a divisor of the last size; 1 for no vectors
    tail:  of the split of each axis, as ``split`` has them, or one for all
    terms: unroll factor of the innermost loop around a tile, a hint to the compiler

    Composed of ``split``, ``reorder``, ``unroll``, ``vectorize``, ``annotate``; raises their errors.
    """
    loops = [self._loop(a) for a in axes]
    if not loops:
        raise ScheduleError(Problem("register-tile.axes", "there are no loops to make tiles of",
                                    hint='s.register_tile("C.i", "C.j", sizes=[4, 16], lanes=8)'))  # fmt: skip
    wide = need_int("lanes", lanes, error=ScheduleError)
    given = None if sizes is None else need_ints("sizes", sizes, ScheduleError)
    several = tail if isinstance(tail, list | tuple) else [tail] * len(loops)
    tails = [need_text("tail", x, ScheduleError) for x in several]
    for what, values in (("sizes", given), ("tail", tails)):
        if values is not None and len(values) != len(loops):
            message = f"{len(loops)} axes need {len(loops)} {what}, got {len(values)}"
            raise _refuse("register-tile.count", message, loops[0], f"{what} for {_said(loops)}")
    if bad := [t for t in tails if t not in TAILS]:
        raise _refuse("register-tile.tail", f"there is no tail {bad[0]!r}", loops[0], f"one of {', '.join(TAILS)}")
    if wide < 1 or (given is not None and given[-1] % wide):
        last = f"the {given[-1]} cells" if given is not None else "the cells"
        message = f"{last} of a tile along {loops[-1].var.name} are no whole vectors of {wide} lanes"
        near = max(1, wide) * max(1, round((given or [1])[-1] / max(1, wide)))
        raise _refuse("register-tile.lanes", message, loops[-1], f"{near} cells in lanes of {max(1, wide)}")
    hint = need_int("terms", terms, low=1, error=ScheduleError)
    names = [x.var.name for x in loops]

    def act(s: History[H]) -> list[str]:
        if hint > 1 and given is None:
            _need_around(s, names)
        outside, inside = _made(s, names, given, wide, tails)
        if hint > 1:
            above = _above(s, inside[0])
            annotate(s, above[above.index(inside[0]) - 1], "unroll", hint)
        return outside

    options = {"sizes": given, "lanes": wide, "tail": tail, "terms": hint}
    return tuple(map(AxisRef, self._history._compose("register_tile", loops, options, act)))


def _made(
    s: History[H], axes: Sequence[str], sizes: Sequence[int] | None, lanes: int, tails: Sequence[str]
) -> tuple[list[str], list[str]]:
    outside: list[str] = []
    inside: list[str] = []
    for n, axis in enumerate(axes):
        wide = lanes if n == len(axes) - 1 else 1
        if sizes is None:
            whole = wide == 1 or as_int(s.index.loops[axis].extent) == wide
            inside += [axis] if whole else split(s, axis, [None, wide], tail=tails[n])
            continue
        tile, *parts = _tiles(s, axis, sizes[n], wide, tails[n])
        outside.append(tile)
        inside += parts
    _ordered(s, outside, inside)
    if lanes > 1:
        vectorize(s, inside[-1])
    for loop in reversed(inside if lanes == 1 else inside[:-1]):  # from the inside, so that copies are counted
        unroll(s, loop)
    return outside, inside


def _tiles(s: History[H], axis: str, size: int, lanes: int, tail: str) -> list[str]:
    """Names of the loops after splitting ``axis`` by ``size``: [over tiles, over vectors if several, over lanes]."""
    parts = [size] if lanes == 1 or size == lanes else [size // lanes, lanes]
    if tail in TILED and len(parts) > 1:
        tile, one = split(s, axis, [None, size], tail=tail)
        return [tile, *split(s, one, parts)]
    return list(map(str, split(s, axis, [None, *parts], tail=tail)))


def _ordered(s: History[H], outside: Sequence[str], inside: Sequence[str]) -> None:
    """Reorder loops: those ``inside`` a tile innermost, loops over tiles ``outside`` in the given order, others in
    place.
    """
    above = _above(s, inside[-1])
    nest = above[min(above.index(x) for x in (*outside, *inside) if x in above) :]
    tiles = iter([x for x in outside if x in nest])
    order = [next(tiles) if x in outside else x for x in nest if x not in inside]
    if [*order, *inside] != nest:
        reorder(s, *order, *inside)


def _need_around(s: History[H], axes: Sequence[str]) -> None:
    """Raise ScheduleError for ``terms`` if the tile leaves no enclosing loop."""
    if set(_above(s, axes[0])) <= {*axes}:
        message = f"there is no loop around a tile of {' and '.join(axes)}, whose iterations could be written out"
        raise _refuse("register-tile.terms", message, s.index.loops[axes[0]], "no terms=")


def _above(s: History[H], loop: str) -> list[str]:
    """Names of the loops around a tile's stage."""
    index = s.index
    return [x.var.name for x in index.above(find(index.loops[loop], Stage)[0])]


def _said(loops: Sequence[Loop]) -> str:
    return " and ".join(x.var.name for x in loops)


def _refuse(code: str, message: str, loop: Loop, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
