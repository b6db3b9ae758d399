"""annotate: hints on loops for the device compiler, from a closed set of keys."""

from __future__ import annotations

from typing import Any

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_text, plain_int, shown
from tensorir.ir.build import as_int
from tensorir.ir.marks import UnrollBy
from tensorir.ir.tree import Loop, Program
from tensorir.schedule.analysis import caret, need_serial
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, swap

KEYS = {"unroll": "a power of two: the factor by which the device compiler shall unroll the loop"}


@primitive("Loops")
def annotate(self: S, axis: Name, key: str, value: object) -> S:
    """Give the device compiler a hint about a loop; meaning and legality do not change.

    "unroll": a power of two, the factor by which it shall unroll the loop; at most the loop's iterations are kept
    Raises ScheduleError: ``annotate.known-key``, ``annotate.value``, ``annotate.serial``.
    """
    loop = self._loop(axis)
    need_text("key", key, ScheduleError)
    self._history._apply("annotate", (loop, key, value), {}, lambda p: _annotate(p, loop, key, value))
    return self


def _annotate(program: Program, loop: Loop, key: str, value: Any) -> Rewrite:
    if key not in KEYS:
        raise ScheduleError(Problem("annotate.known-key", f"there is no annotation {key!r}", at=caret(loop),
                                    hint=f"one of {', '.join(KEYS)}"))  # fmt: skip
    need_serial(loop, "annotate")
    value = plain_int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
        raise ScheduleError(Problem("annotate.value", f"unroll={shown(value)} is not a power of two", at=caret(loop)))
    extent = as_int(loop.extent)
    return Rewrite(swap(program, loop, loop.marked(UnrollBy(min(value, extent)))))
