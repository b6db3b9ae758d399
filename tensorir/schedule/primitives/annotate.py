"""annotate: hints from a closed set of keys."""

from __future__ import annotations

from typing import Any

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import plain_int, shown
from tensorir.ir.build import as_int
from tensorir.ir.tree import Loop, Program
from tensorir.schedule.analysis import caret, need_serial
from tensorir.schedule.rewrite import Rewrite, swap

KEYS = {"unroll": "a power of two: the factor by which the device compiler shall unroll the loop"}


def annotate(program: Program, loop: Loop, key: str, value: Any) -> Rewrite:
    """Give the device compiler a hint about a loop; meaning and legality do not change."""
    if key not in KEYS:
        raise ScheduleError(Problem("annotate.known-key", f"there is no annotation {key!r}", at=caret(loop),
                                    hint=f"one of {', '.join(KEYS)}"))  # fmt: skip
    need_serial(loop, "annotate")
    value = plain_int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
        raise ScheduleError(Problem("annotate.value", f"unroll={shown(value)} is not a power of two", at=caret(loop)))
    extent = as_int(loop.extent)
    return Rewrite(swap(program, loop, loop.replace(hint=min(value, extent))))
