"""assume: facts about arguments, promised by the caller and relied on by the emitted code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.expr.program import gathers
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, Fact, Program
from tensorir.schedule.history import Name, S
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite

MOST_ALIGN = 64
"""Bytes: every runtime aligns its own memory at least so, and ``tir.empty`` host arrays."""


@primitive("Arguments")
def assume(self: S, tensor: Name, align: int | None = None, low: int | None = None, high: int | None = None) -> S:
    """Promise facts about an argument; the emitted code relies on them.

    align: ``address % align == 0``, a power of two up to 64 bytes. Each launch checks it: an unaligned part of a device
           buffer is refused (``launch.alignment``; the buffer itself is taken to be aligned as the runtime's own), a
           host array is worked on in an aligned copy (arrays of ``tir.empty`` need none)
    low, high: ``low <= element < high`` for every element of an index tensor. **Nobody checks it**: it saves the scan
           of all indices at each launch (``launch.index-range``), also in exported loaders, if these bounds imply
           existing elements. With wrong ones a kernel reads anywhere

    There is nothing to say about aliasing: launches refuse overlapping outputs, and pointers are ``restrict``. Facts
    add up: of two about one argument, the stronger holds
    """
    history = self._history
    buffer = history._buffer(tensor)
    given = {"align": align, "low": low, "high": high}
    said = {k: None if v is None else need_int(k, v, error=ScheduleError) for k, v in given.items()}
    history._apply("assume", (buffer,), said, lambda p: _assume(p, history.outputs, buffer, **said))
    return self


def _assume(program: Program, outputs: Sequence[Tensor], buffer: Buffer, align: int | None, low: int | None,
           high: int | None) -> Rewrite:  # fmt: skip
    if align is None and low is None and high is None:
        raise _refuse("assume.nothing", f"nothing is said about {buffer.name}", f"s.assume({buffer.name!r}, align=64)")
    if buffer not in program.params:
        raise _refuse(
            "assume.argument",
            f"{buffer.name} is made by the program itself: facts are about what the caller gives",
            f"one of {', '.join(b.name for b in program.params)}",
        )
    least = DTYPES[buffer.dtype].bits // 8
    if align is not None and not (least <= align <= MOST_ALIGN and align & (align - 1) == 0):
        raise _refuse(
            "assume.align",
            f"align={align} of {buffer.name} is not a power of two from {least} to {MOST_ALIGN} bytes",
            f"s.assume({buffer.name!r}, align=64)",
        )
    if low is not None or high is not None:
        _indexes(outputs, buffer)
    old = next((f for f in program.facts if f.buffer is buffer), Fact(buffer))
    new = Fact(buffer, max(old.align, align or 0), _both(max, old.low, low), _both(min, old.high, high))
    if new.low is not None and new.high is not None and new.low >= new.high:
        raise _refuse(
            "assume.range",
            f"no index is at least {new.low} and below {new.high}: low <= element < high holds of no {buffer.name}",
            "high is one more than the largest index",
        )
    others = tuple(f for f in program.facts if f is not old)
    return Rewrite(program.replace(facts=(*others, new)))


def _both(stronger: Callable[[list[int]], int], *given: int | None) -> int | None:
    known = [x for x in given if x is not None]
    return stronger(known) if known else None


def _indexes(outputs: Sequence[Tensor], buffer: Buffer) -> None:
    """Raise ScheduleError for bounds on an argument not used as an index."""
    found = {t.buffer.name: None for t, *_ in gathers(outputs)}
    if buffer.name not in found:
        raise _refuse(
            "assume.not-an-index",
            f"no tensor is indexed by {buffer.name}: bounds of its elements change nothing",
            f"bounds for {', '.join(found)}" if found else "leave low= and high= out",
        )


def in_range(program: Program, index: Tensor, limit: int) -> bool:
    """True if facts promised by ``assume`` imply ``0 <= element < limit`` for every element of index tensor
    ``index``.
    """
    kind = DTYPES[index.dtype]
    for f in program.facts:
        if f.buffer.origin is index:
            low = kind.low if f.low is None else f.low
            high = kind.high + 1 if f.high is None else f.high
            return low >= 0 and high <= limit
    return False


def _refuse(code: str, message: str, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, hint=hint))
