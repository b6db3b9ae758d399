"""Ways to compute a pair of stages in one kernel, by ordinary primitives, which prove what is legal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.pair_parts import NearPart, OwnPart, TogetherPart, started
from tensorir.automatic.pairs import Apart, Pair, needed_elsewhere
from tensorir.automatic.part import Part
from tensorir.automatic.plan import Refusal
from tensorir.automatic.rules import RULES
from tensorir.errors import ScheduleError, TensorIRError, refuse
from tensorir.ir.tree import Binary, Const, Select, Store, Var
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower
from tensorir.schedule.schedule import BaseSchedule


def _nothing(s: BaseSchedule) -> None:
    """Leave all stages as they are declared."""


def _no_parts(s: BaseSchedule) -> Iterator[Part]:
    return iter(())


@dataclass(frozen=True)
class Way:
    """A way to fuse a pair.

    name:  what does it: a primitive, or the rule whose part has both stages;  reason: what the trace says of it
    begin: the steps on stages that nothing has scheduled yet
    parts: offers of parts that have both stages; where there are none, ``begin`` has made one stage of them
    """

    name: str
    reason: str
    begin: Callable[[BaseSchedule], None] = field(default=_nothing, repr=False)
    parts: Callable[[BaseSchedule], Iterator[Part]] = field(default=_no_parts, repr=False)

    def begun(self, s: BaseSchedule, untaken: list[Refusal] | None = None) -> tuple[Part, ...]:
        """Make the first steps, and return the part that has both stages, if any; raises what a primitive refuses.

        What is left to do is ``finished``; the part's own steps are tried on a fork.

        untaken: parts that were refused before another one was taken are added to it
        """
        with s.because(f"{self.name}: {self.reason}"):
            self.begin(s)
        refused: list[tuple[Part, TensorIRError]] = []
        for part in self.parts(s):
            try:
                started(s.fork(), (part,))
            except TensorIRError as e:
                refused.append((part, e))
            else:
                if untaken is not None:
                    untaken += [Refusal.of(*r) for r in refused]
                return (part,)
        if refused:
            raise refused[0][1]
        return ()


def finished(s: BaseSchedule, given: Sequence[Part], untaken: list[Refusal] | None = None) -> BaseSchedule:
    """Schedule the parts that are given, and every other stage by a part of its own; ``untaken``: see ``alone``."""
    taken, begun = frozenset().union(*(p.names for p in given)), s.fork()
    graph = Apart(s.program)
    own = []
    for nest in reversed(graph.nests.values()):
        if nest.name not in taken:
            own.append(alone(begun, graph, nest, untaken))
            taken |= own[-1].names
    return started(s, [*given, *own])


def alone(begun: BaseSchedule, graph: Graph, nest: Nest, untaken: list[Refusal] | None = None) -> Part:
    """The part of the first rule that schedules a stage alone; those that were refused before are added to
    ``untaken``.
    """
    refused: list[Refusal] = []
    for part in (part for rule in RULES for part in rule(graph, nest, begun.target)):
        try:
            lower(started(begun.fork(), (part,)).program, begun.target)
        except TensorIRError as e:
            refused.append(Refusal.of(part, e))
            continue
        if untaken is not None:
            untaken += refused
        return part
    why = "".join(f"; {r}" for r in refused[-1:])
    message = f"no rule schedules {nest.name} on {begun.target.text}{why}"
    raise refuse(ScheduleError, "automatic.no-rule", message, hint="a schedule by hand, or smaller extents")


def ways(s: BaseSchedule, pair: Pair) -> Iterator[Way]:
    """The ways to fuse a pair of a schedule as it is declared; whether one is legal shows when it is tried."""
    graph, why = Graph(s.program), f"{pair.first} and {pair.second} in one kernel"
    if pair.kind == "vertical":
        first, second = (graph.nests[n] for n in pair.names)
        kept = needed_elsewhere(graph, pair)
        yield Way("compute_inline", why, _inline(pair, kept))
        if not kept:
            for name in sorted({p.name for p in _joint(pair)(s)}):
                yield Way(name, why, parts=_joint(pair, name))
            if points := slices(first, second):
                yield Way("reverse_compute_inline", why, _stored(pair, points))
        yield Way("compute_at", why, parts=_near(pair))
    yield Way("fuse_with", why, parts=_together(pair))


def _inline(pair: Pair, kept: bool) -> Callable[[BaseSchedule], None]:
    """The producer's expression where it is read; of a clone, if something else needs what it makes."""

    def begin(s: BaseSchedule) -> None:
        s.compute_inline(s.clone(pair.first, for_=pair.second).name if kept else pair.first)

    return begin


def slices(first: Nest, second: Nest) -> tuple[tuple[int, int], ...]:
    """The joints of a concatenation that reads a stage: (number of the axis, place) of each; else nothing."""
    found = dict[tuple[int, int], None]()
    for x in find(second.stage.body, Select) if second.kind == "map" and second.constant else ():
        c = x.cond
        if isinstance(c, Binary) and c.op == "<" and isinstance(c.a, Var) and isinstance(c.b, Const):
            for n, it in enumerate(second.spatial):
                if it.var is c.a and 0 < int(c.b.value) < second.size([it]):
                    found[n, int(c.b.value)] = None
    one_axis = len({axis for axis, _ in found}) == 1
    return tuple(sorted(found)) if one_axis and isinstance(second.stage.body, Store) and first.kind == "map" else ()


def _stored(pair: Pair, points: Sequence[tuple[int, int]]) -> Callable[[BaseSchedule], None]:
    """The producer's cells stored where the concatenation has them; its other pieces are kernels of their own."""

    def begin(s: BaseSchedule) -> None:
        pieces, done = [pair.second], 0
        for axis, at in points:
            pieces.append(s.cut(s.loops(pieces[-1])[axis], at - done).name)
            done = at
        made = set(Graph(s.program).nests[pair.first].writes)
        for name in pieces:
            if made & set(Graph(s.program).nests[name].reads):
                s.reverse_compute_inline(name)

    return begin


def _joint(pair: Pair, name: str = "") -> Callable[[BaseSchedule], Iterator[Part]]:
    """The parts that rules offer for both stages of a pair together."""

    def parts(s: BaseSchedule) -> Iterator[Part]:
        graph = Graph(s.program)
        for rule in RULES:
            for part in rule(graph, graph.nests[pair.second], s.target):
                if part.names == set(pair.names) and name in ("", part.name):
                    yield part

    return parts


def _near(pair: Pair) -> Callable[[BaseSchedule], Iterator[Part]]:
    return lambda s: iter((NearPart(Graph(s.program), pair, s.target),))


def _together(pair: Pair) -> Callable[[BaseSchedule], Iterator[Part]]:
    """The parts that the stages have alone, in the loops that they share; where these are not alike, one for both."""

    def parts(s: BaseSchedule) -> Iterator[Part]:
        graph = Apart(s.program)
        nests = [graph.nests[n] for n in pair.names]
        own = OwnPart(Graph(s.program), pair, s.target, [alone(s, graph, n) for n in nests])
        both = TogetherPart(Graph(s.program), pair, s.target)
        yield from (both, own) if pair.kind == "vertical" and any(n.reduced for n in nests) else (own, both)

    return parts
