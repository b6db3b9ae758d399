"""Notes on a schedule: loops without vectors, cores without blocks, chains of kernels, each with a step against it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorir.automatic.counts import Counted, Counts, KernelCounts, counted, kernels_of
from tensorir.automatic.facts import Graph, pairs_of, vector_lanes
from tensorir.automatic.fusions import Fusion, fusion_of
from tensorir.errors import TensorIRError
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.marks import Remark
from tensorir.ir.tree import Axis, Buffer, Kind, Loop, Stmt
from tensorir.ir.visit import reads, writes
from tensorir.lower.lowered import lowered
from tensorir.machine import Machine
from tensorir.schedule.primitives.reduction import has_axis_of
from tensorir.schedule.registry import PRIMITIVES
from tensorir.schedule.schedule import BaseSchedule
from tensorir.schedule.trace import Step

NOTED_SHARE = 0.2
"""Least share of the modelled time for a note: of what vectors, all cores or one kernel would save."""
SAVED_SHARE = 0.5
"""Least share of a loss that a step saves in the model, to be named as the step against it."""
MOST_STAGES = 24
"""Stages of a schedule whose changes are tried: each is lowered."""
MOST_JOINED = 2
"""Pairs of kernels that steps are tried on, those with the most time between them: planning a pair takes 0.1 s."""


class Scalar(NamedTuple):
    """A vector loop that lowering runs one by one: the fraction of its iterations, and the reason."""

    share: float
    why: str


@dataclass(frozen=True)
class Modelled:
    """The modelled kernels of a schedule, without those that run once for many launches.

    scalar: vector loops that lowering runs one by one, by name
    """

    s: BaseSchedule
    scalar: Mapping[str, Scalar]
    kernels: Sequence[KernelCounts]
    machine: Machine

    @classmethod
    def of(cls, s: BaseSchedule, machine: Machine) -> Modelled:
        """The model of a schedule on a machine. Raises LoweringError and CompileError if it cannot be lowered."""
        scalar = _one_by_one(s)
        kernels = kernels_of(s.program, s.target, machine, {name: x.share for name, x in scalar.items()})
        return cls(s, scalar, [k for k in kernels if not all(c.once for c in k.stages)], machine)

    @functools.cached_property
    def counts(self) -> Counts:
        """Counts of all kernels together."""
        return counted(self.kernels, self.machine)

    def saved(self, k: KernelCounts, cycles: float | None = None, moved: float | None = None, blocks: int = 0) -> float:
        """Seconds saved if kernel ``k`` had these counts in place of its own."""
        other = replace(
            k,
            cycles=k.cycles if cycles is None else cycles,
            moved=k.moved if moved is None else moved,
            blocks=blocks or k.blocks,
        )
        now, then = (x.worked(self.machine) + x.launched(self.machine) for x in (k, other))
        return now - then


def _one_by_one(s: BaseSchedule) -> dict[str, Scalar]:
    """Vector loops of a schedule that run one by one when lowered, by name."""
    times, why = dict[str, float](), dict[str, str]()

    def count(n: Stmt, outside: float) -> None:
        if isinstance(n, Loop):
            outside *= most(n.extent)
            if (said := Remark.of(n).why).startswith("not in vectors"):
                times[n.var.name], why[n.var.name] = times.get(n.var.name, 0.0) + outside, said
        for child in n.children():
            if isinstance(child, Stmt):
                count(child, outside)

    for kernel in lowered(s).kernels:
        count(kernel.body, math.prod(most(x.extent) for x in kernel.axes))
    found, index = dict[str, Scalar](), s.index
    for name in times:
        if name in index.loops:  # loops of initial values are made by lowering
            loop = index.loops[name]
            whole = math.prod(most(x.extent) for x in (*index.above(loop), loop))
            found[name] = Scalar(min(1.0, times[name] / whole), why[name])
    return found


class Change(NamedTuple):
    """A way to change a schedule: what is done to it, and its text; without one, that of the steps made."""

    make: Callable[[BaseSchedule], object]
    said: str = ""


@dataclass(frozen=True)
class _Note:
    """What takes time in a schedule: modelled seconds, a fact in words, ways against it, and words if none helps."""

    lost_s: float
    fact: str
    changes: Callable[[], Iterator[Change]]
    otherwise: str


def facts_of(m: Modelled) -> tuple[str, ...]:
    """Facts that ``notes_of`` gives, without steps, which take longer to try."""
    return tuple(dict.fromkeys(n.fact for n in _found(m)))


def notes_of(m: Modelled) -> tuple[str, ...]:
    """Notes on what takes ``NOTED_SHARE`` of the modelled time or more, the most first: a fact, and the step against
    it, one that was tried: it is legal, and saves ``SAVED_SHARE`` of that in the model.
    """
    return tuple(dict.fromkeys(f"{n.fact}; {_step(m, n)}" for n in _found(m)))


def _found(m: Modelled) -> list[_Note]:
    least = max(NOTED_SHARE * m.counts.seconds, m.machine.wake_s)  # less than cores wait for each other
    found = [n for n in (*_scalar(m), *_idle(m), *_chains(m)) if n.lost_s >= least]
    return sorted(found, key=lambda n: -n.lost_s)


def _step(m: Modelled, n: _Note) -> str:
    """Text of the first change that saves enough of a note's seconds; its other words if there is none, or if each try
    would take long.
    """
    for change in n.changes() if len(m.s.index.stages) <= MOST_STAGES else ():
        try:
            other = m.s.fork()
            change.make(other)
            saved = m.counts.seconds - Modelled.of(other, m.machine).counts.seconds
        except TensorIRError:
            continue
        if saved >= SAVED_SHARE * n.lost_s:
            return change.said or "; ".join(map(str, other.trace[len(m.s.trace) :]))
    return n.otherwise


# --- loops without vectors


def _scalar(m: Modelled) -> Iterator[_Note]:
    """Notes on stages whose vector loops run one by one, and on those of CPUs without a vector loop."""
    for k, c in ((kernel, c) for kernel in m.kernels for c in kernel.stages if c.times > 1):
        lanes = vector_lanes(c.target, max([8, *(DTYPES[b.dtype].bits for b in writes(c.stage.body))]))
        if c.lanes is not None and c.scalar:
            name, least = c.lanes.var.name, c.in_vectors
            fact = f"{c.stage.name}: loop {name} is {m.scalar[name].why}"
            changes = functools.partial(_tails, m.s, name)
        elif c.lanes is None and c.target.kind == "cpu":
            least, fact = c.cycles / lanes, f"{c.stage.name}: computed cell by cell"
            changes = functools.partial(_vectors, m.s, c, lanes)
        else:
            continue
        lost_s = m.saved(k, cycles=k.cycles - c.cycles + min(c.cycles, max(least, c.waits)))
        yield _Note(lost_s, fact, changes, "none of its loops has vectors")


def _tails(s: BaseSchedule, loop: str) -> Iterator[Change]:
    """The step that made a loop, with another tail, and the later steps again."""
    steps = s.trace
    made = [n for n, x in enumerate(steps) if loop in x.out or any(loop.startswith(f"{name}.") for name in x.out)]
    taken = [n for n in made if "tail" in PRIMITIVES[steps[n].primitive].defaults]
    for at in reversed(taken):
        for tail in ("shift", "pad"):
            first = replace(steps[at], options=(*(o for o in steps[at].options if o[0] != "tail"), ("tail", tail)))

            yield Change(functools.partial(_again, at=at, first=first), f"{first} in place of {steps[at]}")


def _again(s: BaseSchedule, at: int, first: Step) -> None:
    """Make step ``first`` in place of step number ``at``, and those after it again."""
    later = s.trace[at + 1 :]
    s.undo(len(later) + 1)
    for step in (first, *later):
        getattr(s, step.primitive)(*step.args, **dict(step.options))


def _vectors(s: BaseSchedule, c: Counted, lanes: int) -> Iterator[Change]:
    """Tiles of vectors along each loop over cells of a stage, the last first."""
    for x in reversed(_free(s, c, Axis.SPATIAL)):
        tails = ("guard",) if most(x.extent) % lanes == 0 else ("guard", "shift")
        for tail in tails if most(x.extent) >= lanes else ():
            yield _step_of("register_tile", x.var.name, sizes=[lanes], lanes=lanes, tail=tail)


def _step_of(primitive: str, *args: object, **options: object) -> Change:
    def make(s: BaseSchedule) -> object:
        return getattr(s, primitive)(*args, **options)

    return Change(make)


def _free(s: BaseSchedule, c: Counted, axis: Axis) -> list[Loop]:
    """Plain loops around a stage along axes of one kind, outermost first."""
    stage = s.index.stages[c.stage.name]
    others = {Axis.SPATIAL, Axis.REDUCE, Axis.ORDERED} - {axis}
    plain = (x for x in s.index.above(stage) if x.kind is Kind.SERIAL and most(x.extent) > 1)
    return [x for x in plain if not any(has_axis_of(x, stage, a) for a in others)]


# --- cores without blocks


def _idle(m: Modelled) -> Iterator[_Note]:
    """Notes on kernels with blocks for less than half of the cores."""
    cores, none = m.machine.cores, "no loop of it is left to share out, smaller tiles might be"
    for k in m.kernels:
        if 2 * k.blocks < cores:
            c = k.stages[0]
            fact = f"{c.stage.name}: {k.blocks} block{'s' * (k.blocks != 1)} for {cores} cores"
            yield _Note(m.saved(k, blocks=cores), fact, functools.partial(_shares, m.s, c, cores), none)


def _shares(s: BaseSchedule, c: Counted, cores: int) -> Iterator[Change]:
    """Ways to share out a stage: its outermost loops over cells, or parts of its sum."""
    used = {x.kind for x in c.loops}
    to = next((f"block.{axis}" for axis in "xyz" if Kind(f"block.{axis}") not in used), None)
    if to is None:
        return
    to_ = {} if to == "block.x" else {"to": to}
    cells = [x.var.name for x in _free(s, c, Axis.SPATIAL)]
    for n in range(1, len(cells) + 1):
        yield _step_of("share_out", *cells[:n], **to_)
    for x in _free(s, c, Axis.REDUCE)[:1]:
        yield Change(functools.partial(_split_sum, name=c.stage.name, loop=x, parts=cores, to=to))


def _split_sum(s: BaseSchedule, name: str, loop: Loop, parts: int, to: str) -> None:
    """Share out parts of a sum, which a second kernel adds up."""
    part = loop.var.name if most(loop.extent) < 2 * parts else s.split(loop.var.name, [parts, None])[0]
    rf, own = s.rfactor(name, part), part.partition(".")[2]
    s.share_out(next(x for x in s.loops(rf) if x.endswith(f".{own}")), to=to)


# --- chains of kernels


class _Between(NamedTuple):
    """Two kernels, arrays that the second reads from the first, and modelled seconds of its launch and of them."""

    lost_s: float
    first: KernelCounts
    second: KernelCounts
    arrays: frozenset[Buffer]


def _chains(m: Modelled) -> Iterator[_Note]:
    """A note on kernels that read what others wrote."""
    pairs = sorted(_between(m), key=lambda p: -p.lost_s)
    if pairs:
        lost_s, worst = sum(p.lost_s for p in pairs), pairs[0]
        share, arrays = lost_s / m.counts.seconds, ", ".join(sorted(b.name for b in worst.arrays))
        fact = f"{len(m.kernels)} kernels with {share:.0%} of the time between them, most for {arrays}"
        changes = functools.partial(_joins, m.s, pairs[:MOST_JOINED])
        yield _Note(lost_s, fact, changes, "tir.fusions(outputs) has the reason for each pair of stages")


def _between(m: Modelled) -> Iterator[_Between]:
    made = {b: k for k in m.kernels for c in k.stages for b in writes(c.stage.body)}
    for k in m.kernels:
        read = {b for c in k.stages for b in reads(c.stage.body) if made.get(b, k) is not k}
        for first in {id(made[b]): made[b] for b in read}.values():
            arrays = frozenset(b for b in read if made[b] is first)
            lost_s = k.launched(m.machine) / len(read) * len(arrays) + m.saved(k, moved=k.moved - _moved(k, arrays))
            if not arrays & {*m.s.program.outputs}:
                lost_s += m.saved(first, moved=first.moved - _moved(first, arrays))
            yield _Between(lost_s, first, k, arrays)


def _moved(k: KernelCounts, arrays: frozenset[Buffer]) -> float:
    """Bytes of traffic of a kernel for some arrays."""
    moved = dict[Buffer, float]()
    for c in k.stages:
        for b, _, more in c.touched():
            moved[b] = max(moved.get(b, 0.0), more)
    return sum(moved.get(b, 0.0) for b in arrays)


def _joins(s: BaseSchedule, pairs: Sequence[_Between]) -> Iterator[Change]:
    """Ways to put two of the kernels into one: a step on them, or a schedule of the fusion advisor."""
    for p in pairs:
        yield from _joining_steps(s, p)
    whole = BaseSchedule(s.definition, s.target)
    graph = Graph(whole.program)
    for p in pairs:
        names = {b.name for b in p.arrays}
        for pair in pairs_of(graph):
            if pair.kind == "vertical" and any(b.name in names for b in graph.nests[pair.first].writes):
                row = fusion_of(whole, pair, BaseSchedule)
                if row.legal:
                    said = f"tir.fusions(outputs) has {pair.first} and {pair.second} in one kernel, by {row.way}"
                    yield Change(functools.partial(_taken, row=row), said)


def _taken(s: BaseSchedule, row: Fusion[BaseSchedule]) -> None:
    s._follow(row.schedule())


def _joining_steps(s: BaseSchedule, p: _Between) -> Iterator[Change]:
    """Steps that put two kernels into one."""
    makers = [c.stage.name for c in p.first.stages if p.arrays & {*writes(c.stage.body)}]
    readers = [c for c in p.second.stages if p.arrays & {*reads(c.stage.body)}]
    yield _step_of("compute_inline", makers[0])
    yield _step_of("fuse_with", makers[0], readers[0].stage.name)
    for x in readers[0].loops:
        if x.kind is Kind.SERIAL or x.kind.level == "block":
            yield _step_of("compute_at", makers[0], x.var.name)
