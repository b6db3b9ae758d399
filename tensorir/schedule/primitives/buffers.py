"""Where and how a buffer is kept: set_scope, layout."""

from __future__ import annotations

from collections.abc import Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.tree import Buffer, Layout, Program, Scope
from tensorir.ir.visit import swap_buffers
from tensorir.schedule.rewrite import Rewrite, with_body

SCOPES = {s.value: s for s in (Scope.GLOBAL, Scope.SHARED, Scope.REGISTER, Scope.AUTO)}


def set_scope(program: Program, buffer: Buffer, scope: str) -> Rewrite:
    """Keep an intermediate buffer in "shared", "register" or "global" memory ("auto": the narrowest that works)."""
    if scope not in SCOPES:
        raise ScheduleError(Problem("scope.unknown", f"there is no scope {scope}", hint=f"one of {', '.join(SCOPES)}"))
    _own(program, buffer, "set-scope")
    new = buffer.replace(scope=SCOPES[scope])
    return Rewrite(with_body(program, swap_buffers(program.body, {buffer: new})))


def layout(program: Program, buffer: Buffer, pad: int = 0, order: Sequence[int] | None = None) -> Rewrite:
    """Store an intermediate buffer with ``pad`` spare elements per row and its dimensions in another order.

    order: permutation of the dimensions, outermost first; ``pad`` applies to the innermost of that order
    """
    _own(program, buffer, "layout")
    new = buffer.replace(layout=layout_of(len(buffer.shape), pad, order))
    return Rewrite(with_body(program, swap_buffers(program.body, {buffer: new})))


def layout_of(rank: int, pad: int, order: Sequence[int] | None) -> Layout | None:
    """The Layout for the arguments of ``stage_in`` and ``layout``; None for plain row-major."""
    dims = tuple(range(rank)) if order is None else tuple(order)
    if sorted(dims) != list(range(rank)):
        raise ScheduleError(Problem("layout.order", f"order={list(dims)} is not a permutation of the {rank} dimensions",
                                    hint=f"order={list(range(rank))}"))  # fmt: skip
    if isinstance(pad, bool) or not isinstance(pad, int) or pad < 0:
        raise ScheduleError(Problem("layout.pad", f"pad={pad!r} must be an int >= 0"))
    if not rank or (pad == 0 and dims == tuple(range(rank))):
        return None
    return Layout(dims, tuple(pad if d == dims[-1] else 0 for d in range(rank)))


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
