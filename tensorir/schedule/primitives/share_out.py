"""share_out: fuse loops, split them into blocks and bind those to cores or thread blocks, in one step."""

from __future__ import annotations

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int, need_text
from tensorir.ir.tree import Kind
from tensorir.schedule.history import AxisRef, H, History, Name, Scheduled
from tensorir.schedule.primitives.binding import bind
from tensorir.schedule.primitives.loops import fuse, reorder, split
from tensorir.schedule.registry import primitive


@primitive("Loops", moves=True)
def share_out(self: Scheduled[H], *axes: Name, each: int | None = None, to: str = "block.x",
              within: str | None = None, tail: str = "guard") -> tuple[AxisRef, ...]:  # fmt: skip
    """Share out nested loops as one: blocks of ``each`` iterations go to the block axis ``to``, outside of the other
    loops of the nest, and what is within a block stays a loop. Returns the loop over blocks and that one.

    ``s.share_out("C.i", "C.j", each=64)``::

        for i in 10: for j in 100: C[i, j]
        ->
        for b in 16:  # block.x
          for c in 64: if b*64 + c < 1000: C[(b*64 + c)/100, (b*64 + c)%100]

    each:   iterations of a block; without it one, and only the loop over blocks is returned
    within: a thread axis for the iterations of a block, such as "thread.x"
    tail:   of the split, as ``split`` has them

    It is ``fuse``, ``split``, ``reorder`` and ``bind``, which refuse what they would alone.
    """
    history, loops = self._history, [self._loop(a) for a in axes]
    need_text("to", to, ScheduleError)
    if not loops:
        raise _refuse("share-out.axes", "there are no loops to share out", 's.share_out("C.i", each=16)')
    if within is not None:
        need_text("within", within, ScheduleError)
        if each is None:
            message = f"a block has one iteration, and none to go to {within}"
            raise _refuse("share-out.within", message, f"each=256, within={within!r}")
    each = None if each is None else need_int("each", each, error=ScheduleError)
    names = [x.var.name for x in loops]
    options = {"each": each, "to": to, "within": within, "tail": need_text("tail", tail, ScheduleError)}

    def act(s: History[H]) -> list[str]:
        loop = str(fuse(s, *names)) if len(names) > 1 else names[0]
        made = [loop] if each is None else [str(x) for x in split(s, loop, [None, each], tail=tail)]
        if around := _around(s, made[0]):
            reorder(s, made[0], *around)
        bind(s, made[0], to)
        if within is not None:
            bind(s, made[1], within)
        return made

    return tuple(map(AxisRef, history._compose("share_out", loops, options, act)))


def _around(s: History[H], block: str) -> list[str]:
    """Names of unbound loops that contain only ``block``, outermost first."""
    index = s.index
    loop = index.loops[block]
    found: list[str] = []
    for outer in reversed(index.above(loop)):
        if outer.kind is not Kind.SERIAL or outer.body is not loop:
            break
        found.insert(0, outer.var.name)
        loop = outer
    return found


def _refuse(code: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, hint=hint))
