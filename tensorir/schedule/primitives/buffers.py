"""set_scope, layout: the memory and the storage order of intermediate tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.habits import meant
from tensorir.errors.needs import need_ints, need_text, plain_int
from tensorir.ir.layout import COLLECTIVES, permuted
from tensorir.ir.layout_text import parse_layout
from tensorir.ir.tree import Buffer, Layout, Program, Scope
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, with_buffers

SCOPES = {s.value: s for s in (Scope.GLOBAL, Scope.SHARED, Scope.WARP, Scope.REGISTER, Scope.AUTO)}


def need_map(layout: object) -> str | None:
    """Return ``layout`` if it is an index map string, None if it is None; else raise."""
    return None if layout is None else need_text("layout", layout, ScheduleError)


@primitive("Copies and memory", moves=True)
def set_scope(self: S, tensor: Name, scope: str) -> S:
    """Keep an intermediate tensor in "shared", "register" or "global" memory ("auto": the narrowest that works).

    "warp" is the registers of a warp: one copy for its 32 threads, each of which holds the elements that the
    instructions on it assign to it. Raises ScheduleError: ``set-scope.own-buffer`` for inputs, outputs and constants,
    ``scope.unknown``, and other codes of ``scope`` where a reader could not see the memory.
    """
    buffer = self._history._buffer(tensor)
    need_text("scope", scope, ScheduleError)
    self._history._apply("set_scope", (buffer, scope), {}, lambda p: Rewrite(scoped(p, buffer, scope)))
    return self


def scoped(program: Program, buffer: Buffer, scope: str) -> Program:
    """``program`` with ``buffer`` moved to memory ``scope``; raises ScheduleError for an unknown scope, or for inputs
    and outputs.
    """
    if scope not in SCOPES:
        raise ScheduleError(Problem("scope.unknown", f"there is no scope {scope}", hint=meant("scope", scope, SCOPES)))
    _own(program, buffer, "set-scope")
    new = buffer.replace(scope=SCOPES[scope])
    return with_buffers(program, {buffer: new})


@primitive("Copies and memory")
def layout(self: S, tensor: Name, layout: str | None = None, pad: int = 0, order: Sequence[int] | None = None) -> S:
    """Store an intermediate tensor by an index map, with ``pad`` spare elements per row.

    layout: the buffer's dimensions under names of your own, an arrow, and the storage dimensions, outermost first:
            "c, h, w -> h, w, c" is another order, "k, j -> j/16, k, j%16" panels of 16 columns, "o, c -> o/16, c/4,
            c%4, o%16" blocks of both. Each dimension is there whole or in pieces that cover it exactly once:
            "i/12, i/4%3, i%4". What a block does not divide is rounded up with spare cells. ``^`` xors pieces of 2, 4,
            8 … values, that stand elsewhere, onto a storage dimension: "k, j -> k, j/4 ^ k%8, j%4" spreads what the
            threads of a warp access over the banks of shared memory
    order:  a permutation of the dimensions, outermost first, instead of a layout
    pad:    applies to the innermost storage dimension

    In the registers of a warp the pieces before a ``|`` number the lane that holds an element, those after it its
    place there: "i, j -> i/4%8, j/4%4 | i/32, j/16, i%4, j%4" gives each lane quads of four by four; ``*4`` stands for
    four lanes that all hold it. What is computed from such buffers runs in the lanes that hold them.

    The blocks of a shared or register buffer start where its box starts. Raises ScheduleError: ``layout.syntax``,
    ``layout.rank``, ``layout.not-bijective``, ``layout.twice``, ``layout.order``, ``layout.pad``,
    ``layout.own-buffer``, ``layout.fold``, ``layout.lanes``.
    """
    buffer = self._history._buffer(tensor)
    order = None if order is None else need_ints("order", order, ScheduleError)
    args = (buffer,) if need_map(layout) is None else (buffer, layout)
    options = {"pad": pad, "order": order}
    self._history._apply("layout", args, options, lambda p: _layout(p, buffer, layout, pad, order))
    return self


def _layout(
    program: Program, buffer: Buffer, layout: str | None = None, pad: int = 0, order: Sequence[int] | None = None
) -> Rewrite:
    _own(program, buffer, "layout")
    new = buffer.replace(layout=layout_of(buffer, layout, pad, order))
    return Rewrite(with_buffers(program, {buffer: new}))


def layout_of(
    buffer: Buffer, layout: str | None, pad: int = 0, order: Sequence[int] | None = None, scope: Scope | None = None
) -> Layout | None:
    """Return the Layout that the arguments of ``layout`` describe; None for plain row-major.

    scope: the buffer's future scope, if it changes
    """
    rank = len(buffer.shape)
    dims = tuple(range(rank)) if order is None else tuple(order)
    if sorted(dims) != list(range(rank)):
        raise ScheduleError(Problem("layout.order", f"order={list(dims)} is not a permutation of the {rank} dimensions",
                                    hint=f"order={list(range(rank))}"))  # fmt: skip
    pad = plain_int(pad)
    if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
        raise ScheduleError(Problem("layout.pad", f"pad={pad!r} must be an int >= 0"))
    if layout is None:
        new = permuted(dims, pad)
    elif order is not None:
        raise ScheduleError(
            Problem("layout.twice", f"layout={layout!r} and order={list(dims)} both say the order", hint="layout alone")
        )
    else:
        fragment = (scope or buffer.scope) is Scope.WARP and "|" in layout
        if "|" in layout and not fragment:
            message = (
                f"layout={layout!r}: a | distributes elements to the lanes of a warp, and {buffer.name} is not in the "
            )
            hint = f"s.set_scope({buffer.name!r}, 'warp') first"
            raise ScheduleError(Problem("layout.syntax", f"{message}registers of one", hint=hint))
        new = parse_layout(layout, rank, buffer.name, fragment).replace(pad=pad)
        lanes = math.prod(extent for _, _, extent in new.pieces[: new.lanes])
        if fragment and lanes not in COLLECTIVES:
            warp, group = COLLECTIVES
            told = f"{lanes or 'any number of'} lanes, and a warp has {warp}, a warpgroup {group}"
            message = f"layout={layout!r} numbers {told}"
            raise ScheduleError(Problem("layout.lanes", message, hint="'i, j -> i/4%8, j/4%4 | i/32, j/16, i%4, j%4'"))
    plain = not rank or (pad == 0 and not new.folds and new.pieces == permuted(range(rank)).pieces)
    return None if plain else new


def _own(program: Program, buffer: Buffer, what: str) -> None:
    if buffer.data is not None:
        raise ScheduleError(
            Problem(
                f"{what}.own-buffer",
                f"{buffer.name} is a constant: its contents are laid out already",
                hint=f"s.stage_in({buffer.name!r}, at=…, scope=…)",
            )
        )
    if buffer in program.params:
        raise ScheduleError(
            Problem(
                f"{what}.own-buffer",
                f"{buffer.name} is a parameter: its place and layout are the caller's",
                hint=f"s.stage_in({buffer.name!r}, at=…, scope=…) or s.stage_out",
            )
        )
