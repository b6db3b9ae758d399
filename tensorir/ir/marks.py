"""Marks on loops (partition, pipelining, unroll factor, …): requests carried out by lowering, with transfer rules.

    for i in 12:  # partition at 4   --split by 4-->   for i.0 in 3:  # partition at 1
                                                         for i.1 in 4:

``reorder`` keeps a mark on its loop. On ``split`` and ``fuse`` a mark moves to one of the new loops by its own rules;
if it cannot, the primitive is refused (``schedule/marks.py``). ``MARK.of(loop)`` returns the loop's mark of this class,
or one without effect; ``loop.marked(MARK(…))`` returns the loop with the mark set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from tensorir.ir.build import as_int
from tensorir.ir.dims import dims_in
from tensorir.ir.node import node
from tensorir.ir.tree import Expr, Kind, Loop, LoopMark

Show = Callable[[Expr], str]


class UnplacedError(Exception):
    """No resulting loop can take the mark."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop


class RuledMark(LoopMark):
    """A loop mark with rules for split and fuse; by default the marked loop must stay whole.

    maker: primitive that makes it;  NOTHING: value without effect
    """

    __slots__ = ()
    maker: ClassVar[str] = ""
    NOTHING: ClassVar[Any]

    @classmethod
    def of(cls, loop: Loop) -> Self:
        """The loop's mark of this class, or NOTHING."""
        for m in loop.marks:
            if type(m) is cls:
                return m
        return cls.NOTHING  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(getattr(self, self.FIELDS[0]) != getattr(self.NOTHING, self.FIELDS[0]))

    def text(self, show: Show) -> str:
        """Text of the mark; ``show`` prints expressions."""
        raise NotImplementedError

    def count(self, loop: Loop) -> int:
        """Number of this mark's parts (conditions, cuts, …) that have an effect on ``loop``; 0 for a mark without
        effect.
        """
        return 0

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        """The loops ``new`` that replace ``loop``, outermost first, with the mark transferred. Raises UnplacedError.

        even: all tiles of the outermost loop have equal size
        """
        if self.count(loop):
            raise UnplacedError(loop)
        return new

    @classmethod
    def fuse(cls, loops: Sequence[Loop], fused: Loop) -> Loop:
        """Loop ``fused``, replacing ``loops``, with their marks transferred. Raises UnplacedError."""
        for x in loops:
            if cls.of(x).count(x):
                raise UnplacedError(x)
        return fused


@node
class UnrollBy(RuledMark):
    """Partial unroll factor for the device compiler; without effect on loops not emitted as loops.

    ``split`` moves it to the last new loop of several iterations; ``fuse`` to the fused loop, from the last of its
    loops of several iterations, and is refused if another one has it. Both are refused if the iterations of that loop
    are no multiple of the factor.
    """

    factor: int = 0

    maker = "annotate"

    def count(self, loop: Loop) -> int:
        return int(self.factor > 0 and loop.kind is Kind.SERIAL)

    def text(self, show: Show) -> str:
        return f"unroll by {self.factor}"

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        last = several(new)[-1]
        if as_int(last.extent) % self.factor:
            raise UnplacedError(loop)
        return [x.marked(self) if x is last else x for x in new]

    @classmethod
    def fuse(cls, loops: Sequence[Loop], fused: Loop) -> Loop:
        last = several(loops)[-1]
        for x in loops:
            if (by := cls.of(x).factor) and (x is not last or as_int(x.extent) % by):
                raise UnplacedError(x)
        return fused.marked(cls.of(last))


@node
class Partition(RuledMark):
    """Iterations at which lowering cuts a loop, duplicating the body: ints, or one ``n // c`` of a dim.

    Transferred to the first loop with several iterations, if cuts fall on whole ones.
    """

    at: tuple[Any, ...] = ()

    maker = "partition"

    def count(self, loop: Loop) -> int:
        return len(self.at)

    def text(self, show: Show) -> str:
        return f"partition at {', '.join(str(p) if isinstance(p, int) else show(p) for p in self.at)}"

    def split(self, loop: Loop, new: list[Loop], even: bool) -> list[Loop]:
        first, *inner = several(new)
        inside = math.prod(as_int(x.extent) for x in inner)
        if dims_in(*self.at) or not even or any(p % inside for p in self.at):
            raise UnplacedError(loop)
        at = Partition(tuple(sorted({*Partition.of(first).at, *(p // inside for p in self.at)})))
        return [x.marked(at) if x is first else x for x in new]

    @classmethod
    def fuse(cls, loops: Sequence[Loop], fused: Loop) -> Loop:
        first, *inner = several(loops)
        for x in loops:
            if (at := cls.of(x).at) and (x is not first or dims_in(*at)):
                raise UnplacedError(x)
        inside = math.prod(as_int(x.extent) for x in inner)
        return fused.marked(cls(tuple(p * inside for p in cls.of(first).at)))


@node
class Versions(RuledMark):
    """Conditions for each of which lowering duplicates the body: for true and for false."""

    where: tuple[Expr, ...] = ()

    maker = "specialize"

    def count(self, loop: Loop) -> int:
        return len(self.where)

    def text(self, show: Show) -> str:
        return ", ".join(f"specialized where {show(c)}" for c in self.where)


@node
class Skipped(RuledMark):
    """Conditions under all of which an iteration runs, () for always; otherwise all its terms are identities."""

    unless: tuple[Expr, ...] = ()

    maker = "skip"

    def count(self, loop: Loop) -> int:
        return len(self.unless)

    def text(self, show: Show) -> str:
        return ", ".join(f"skipped unless {show(c)}" for c in self.unless)


@node
class Pipelined(RuledMark):
    """Copies into shared memory that run ahead, of a loop with one body.

    depth: number of pipeline stages; 1: no copy runs ahead
    later: copies that are asynchronous (cp.async, TMA), without passing through registers
    roles: (registers per copying thread, registers per computing thread), if separate warpgroups copy
    turns: number of sets of computing warpgroups, which alternate on iterations of the enclosing loop (ping-pong)
    """

    depth: int = 1
    later: bool = False
    roles: tuple[int, ...] = ()
    turns: int = 1

    maker = "pipeline"

    def count(self, loop: Loop) -> int:
        alone = not Partition.of(loop).at and not Versions.of(loop).where
        return int(self.depth > 1 and loop.kind is Kind.SERIAL and alone)

    def text(self, show: Show) -> str:
        said = [f"pipeline depth={self.depth}{' async' * self.later}"]
        said += ["roles(load={}, compute={})".format(*self.roles)] if self.roles else []
        return ", ".join([*said, f"pingpong={self.turns}"] if self.turns > 1 else said)


@node
class Remark(RuledMark):
    """Reason why lowering deviates from the schedule at a loop; printed in place of its Partition mark."""

    why: str = ""

    def text(self, show: Show) -> str:
        return self.why


MARKS: tuple[type[RuledMark], ...] = (Partition, UnrollBy, Versions, Skipped, Pipelined, Remark)
"""All sorts of marks, in the order in which primitives are refused for their sake."""
_TEXT: tuple[type[RuledMark], ...] = (UnrollBy, Partition, *MARKS[2:])  # it says first how a loop runs
for _rank, _sort in enumerate(_TEXT):
    _sort.RANK, _sort.NOTHING = _rank, _sort()


def marks_of(loop: Loop) -> list[RuledMark]:
    """Marks of a loop in printing order."""
    return [m for m in loop.marks if isinstance(m, RuledMark)]


def several(loops: Sequence[Loop]) -> Sequence[Loop]:
    """Loops with more than one iteration; all if there are none."""
    return [x for x in loops if as_int(x.extent) > 1] or loops
