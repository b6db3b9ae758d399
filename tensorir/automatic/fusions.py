"""Fusion advisor: for each pair of stages, legal ways to compute both in one kernel, bytes saved, modelled speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from tensorir.automatic.counts import Counts, counts_of
from tensorir.automatic.facts import (
    Apart,
    Graph,
    Nest,
    Pair,
    bytes_of,
    needed_elsewhere,
    pairs_of,
    vector_lanes,
    widest_bits,
)
from tensorir.automatic.part import Config, Part
from tensorir.automatic.plan import Refusal
from tensorir.automatic.rules import RULES
from tensorir.automatic.rules.row_chain import chain_of
from tensorir.automatic.rules.rows_along import AlongPart
from tensorir.errors import Problem, ScheduleError, TensorIRError, refuse
from tensorir.errors.handles import Value
from tensorir.errors.needs import need_choice, need_int, need_slice
from tensorir.errors.shown import Shown
from tensorir.expr.program import as_outputs
from tensorir.expr.reread import Reread
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Axis, Binary, Buffer, Const, Expr, Iter, Select, Stage, Store, Var
from tensorir.ir.visit import find, uses, writes
from tensorir.lower.pipeline import lower
from tensorir.machine import CPU
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.ratio import Ratio

S = TypeVar("S", bound=BaseSchedule)

MODELLED_GAIN = 1.15
"""Least modelled speed-up of a recommended fusion; some pairs with a smaller modelled gain became slower."""
MEASURED_GAIN = 1.02
"""Least measured speed-up of a recommended fusion, if it was measured."""


@dataclass(frozen=True, repr=False)
class Fusion(Value, Shown, Generic[S]):
    """Result of the advisor for one pair of stages: one kernel for both, compared with separate kernels.

    kind:     "vertical" (the second stage reads the first one's result) or "horizontal";  first, second: stage names
    ways:     modelled seconds of each legal way, by the name of the primitive or rule
    refused:  error of each illegal way, by name
    untaken:  lines on parts that rules offered for the legal ways but whose start failed
    before, after: counts of the pair's separate kernels and of the fused one; ``after`` is None if no way is legal
    measured: seconds before / seconds after on a device, with its interval; None if not measured
    """

    kind: str
    first: str
    second: str
    ways: Mapping[str, float]
    refused: Mapping[str, Problem]
    before: Counts
    after: Counts | None
    measured: Ratio | None = None
    untaken: tuple[str, ...] = ()
    _made: Callable[[str, str], S] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Fusion of {self.first} and {self.second}: {self.verdict}>"

    @property
    def legal(self) -> bool:
        """True if at least one way is legal."""
        return self.after is not None

    @property
    def way(self) -> str:
        """Name of the legal way with the least modelled seconds, the first of equals; "" if none is legal."""
        return min(self.ways, key=lambda name: round(self.ways[name], 12), default="")

    @property
    def problem(self) -> Problem | None:
        """Error of the last way refused; None if the fusion is legal, or no way was tried."""
        return None if self.legal else next(reversed([*self.refused.values()]), None)

    @property
    def code(self) -> str:
        """Error code of ``problem``; "" without one."""
        return self.problem.code if self.problem else ""

    @property
    def saved_bytes(self) -> int:
        """Bytes of memory traffic saved, each array counted once per kernel; negative if the fused kernel moves more, 0
        if the fusion is illegal.
        """
        return self.before.nbytes - self.after.nbytes if self.after else 0

    @property
    def gain(self) -> float:
        """Modelled speed-up, seconds before / seconds after; 0 if the fusion is illegal."""
        return self.before.seconds / self.after.seconds if self.after else 0.0

    @property
    def saved_s(self) -> float:
        """Modelled seconds saved; 0 if the fusion is illegal."""
        return self.before.seconds - self.after.seconds if self.after else 0.0

    @property
    def launch_bound(self) -> bool:
        """True if more than half of the saved time is launch overhead: larger arrays gain less, and so do launches in a
        queue.
        """
        if self.after is None or self.saved_s <= 0:
            return False
        return self.before.launch_s - self.after.launch_s > 0.5 * self.saved_s

    @property
    def recommended(self) -> bool:
        """True if the fusion is worth doing: a measured speed-up of at least ``MEASURED_GAIN`` whose interval excludes
        slowdowns; if not measured, a modelled one of ``MODELLED_GAIN`` that saves more than the
        noise of a launch. False if illegal.
        """
        if self.measured is not None:
            return self.measured.value >= MEASURED_GAIN and self.measured.low >= 1.0
        return self.gain >= MODELLED_GAIN and self.saved_s >= CPU.noise_s

    @property
    def verdict(self) -> str:
        """The advice in a few words: the way to take, or the reason against the fusion."""
        if self.problem:
            return f"[{self.problem.code}] {self.problem.message.splitlines()[0]}"
        if not self.legal:
            return "no way is known"
        if not self.recommended:
            return "saves a launch: measure it" if self.launch_bound else "leave them apart"
        return f"{self.way}: gains a launch, at this size" if self.launch_bound else self.way

    def json(self) -> dict[str, Any]:
        """JSON data: stages, kind, legality, way, code and reason, {way: seconds}, bytes, modelled seconds and gain,
        measured [low, ratio, high] or None, recommended, untaken. ``refused`` is left out but for the last error.
        """
        told: dict[str, Any] = {
            "first": self.first,
            "second": self.second,
            "kind": self.kind,
            "legal": self.legal,
            "way": self.way,
        }
        told |= {"code": self.code, "reason": self.problem.message if self.problem else "", "ways": dict(self.ways)}
        told |= {"saved_bytes": self.saved_bytes, "before_s": self.before.seconds, "gain": self.gain}
        told |= {"after_s": self.after.seconds if self.after else None, "launch_bound": self.launch_bound}
        measured = self.measured and [self.measured.low, self.measured.value, self.measured.high]
        return told | {"measured": measured, "recommended": self.recommended, "untaken": list(self.untaken)}

    def schedule(self, way: str = "") -> S:
        """Schedule of all outputs with this pair fused and every other stage in a separate kernel, to continue from.

        way: one of ``ways``, by default the fastest
        Raises ScheduleError: the error with which the way, or the last one tried, was refused; ``argument.value``.
        """
        return self._schedule("whole", way)

    def pair(self, fused: bool = True, way: str = "") -> S:
        """Schedule of the two stages alone, with all they read as inputs: the program that is modelled and measured.

        fused: False for separate kernels;  way: as of ``schedule``, with its errors
        """
        return self._schedule("alone", way) if fused else self._made_by("alone", "")

    def _schedule(self, which: str, way: str) -> S:
        name = way or self.way
        problem = self.refused.get(name, self.problem)
        if name not in self.ways and problem:
            raise ScheduleError(problem)
        need_choice("way", name, [*self.ways], ScheduleError)
        return self._made_by(which, name)

    def _made_by(self, which: str, name: str) -> S:
        assert self._made is not None
        return self._made(which, name)


class Fusions(Value, Sequence[Fusion[S]], Shown):
    """Sequence of the Fusions of a graph's pairs (``pairs_of``): legal ones by modelled seconds saved, then others."""

    def __init__(self, rows: Sequence[Fusion[S]], target: Target) -> None:
        order = sorted(rows, key=lambda r: (not r.legal, -r.saved_s))
        self.rows, self.target = tuple(order), target

    @overload
    def __getitem__(self, at: int) -> Fusion[S]: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Fusion[S], ...]: ...

    def __getitem__(self, at: int | slice) -> Fusion[S] | tuple[Fusion[S], ...]:
        if not isinstance(at, slice):
            return self.rows[need_int("at", at, -len(self), len(self) - 1)]
        return tuple(self.rows[n] for n in need_slice(at, len(self), ScheduleError))

    def __iter__(self) -> Iterator[Fusion[S]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        worth = sum(r.recommended for r in self.rows)
        return f"<Fusions: {len(self)} pairs, {sum(r.legal for r in self.rows)} legal, {worth} recommended>"

    def __str__(self) -> str:
        lines = [HEADER, *(cells(r) for r in self.rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(HEADER))]
        return "\n".join("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in lines)


HEADER = ("first", "second", "kind", "saved", "before", "after", "gain", "measured", "advice")
"""Column titles of the printed table."""


def cells(r: Fusion[S]) -> tuple[str, ...]:
    """One row of the printed table as text."""
    if r.after is None:
        return r.first, r.second, r.kind, "", microseconds(r.before.seconds), "", "", "", r.verdict
    measured = f"{r.measured.value:.2f} [{r.measured.low:.2f}, {r.measured.high:.2f}]" if r.measured else ""
    times = microseconds(r.before.seconds), microseconds(r.after.seconds)
    return r.first, r.second, r.kind, kibibytes(r.saved_bytes), *times, f"{r.gain:.2f}", measured, r.verdict


def microseconds(s: float) -> str:
    """A modelled time in seconds -> text in us or ms."""
    return f"{1e6 * s:.3g} us" if s < 1e-3 else f"{1e3 * s:.3g} ms"


def kibibytes(n: int) -> str:
    """A number of bytes -> text in B, KiB or MiB."""
    return f"{n} B" if abs(n) < 1024 else f"{n / 1024:.3g} KiB" if abs(n) < 1 << 20 else f"{n / (1 << 20):.3g} MiB"


def fusions_of(outputs: Sequence[Tensor], target: Target, make: Callable[[Sequence[Tensor], Target], S]) -> Fusions[S]:
    """Fusion advice, modelled and not measured, for each candidate pair of stages of ``outputs`` (``pairs_of``).

    make: function (outputs, target) -> schedule, for ``Fusion.schedule`` and ``Fusion.pair``
    """
    outputs = as_outputs(outputs)
    whole = BaseSchedule(outputs, target)
    return Fusions([fusion_of(whole, pair, make) for pair in pairs_of(Graph(whole.program))], target)


def fusion_of(whole: BaseSchedule, pair: Pair, make: Callable[[Sequence[Tensor], Target], S]) -> Fusion[S]:
    """Fusion advice for one pair. Each way is scheduled in the whole graph to prove it legal, and on the pair alone to
    count its kernels.
    """
    target, alone = whole.target, cut_out(Graph(whole.program), pair)
    before = counts_of(finished(BaseSchedule(alone, target), ()).program, target)
    refused: dict[str, Problem] = {}
    legal: list[tuple[Counts, Way]] = []
    untaken: list[Refusal] = []
    for way in ways(whole, pair):
        offered: list[Refusal] = []
        try:
            way.begun(whole.fork())
            s = BaseSchedule(alone, target)
            program = finished(s, way.begun(s, offered), offered).program
            lower(program, target)
        except TensorIRError as e:
            refused[way.name] = e.problems[0]
        else:
            legal.append((counts_of(program, target), way))
            untaken += offered
    legal.sort(key=lambda found: found[0].seconds)

    def made(which: str, name: str) -> S:
        s = make(whole.definition if which == "whole" else alone, target)
        way = next((w for _, w in legal if w.name == name), None)
        finished(s, way.begun(s) if way else ())
        return s

    named = {way.name: counts.seconds for counts, way in reversed(legal)}
    after = legal[0][0] if legal else None
    refused = {name: problem for name, problem in refused.items() if name not in named}
    told = tuple(dict.fromkeys(map(str, untaken)))
    return Fusion(*(pair.kind, pair.first, pair.second), named, refused, before, after, untaken=told, _made=made)


def cut_out(graph: Graph, pair: Pair) -> tuple[Tensor, ...]:
    """Outputs of a definition with only the two stages of a pair, under their own names; other stages' results become
    placeholders.

    The first stage's results are outputs too if other stages need them.
    """
    swap: dict[Buffer, Buffer] = {}
    made: dict[str, tuple[Tensor, ...]] = {}
    for name in pair.names:
        op = _compute_of(graph, name)
        for t in op.inputs:
            if t.buffer not in swap and t.op is not None:
                swap[t.buffer] = Tensor(_label(graph, t), t.shape, t.dtype).buffer
        mine = Compute(name, op.axes, op.extents, tuple(map(Reread(swap), op.bodies)))
        mine.outputs = made[name] = tuple(Tensor(_label(graph, t), t.shape, t.dtype, op=mine) for t in op.outputs)
        swap |= {old.buffer: new.buffer for old, new in zip(op.outputs, mine.outputs, strict=True)}
    kept = pair.kind == "horizontal" or needed_elsewhere(graph, pair)
    return (*(made[pair.first] if kept else ()), *made[pair.second])


def _compute_of(graph: Graph, name: str) -> Compute:
    origin = next(b.origin for b in graph.nests[name].writes if b.origin is not None)  # a scan's state has none
    assert origin.op is not None
    return origin.op  # type: ignore[no-any-return]


def _label(graph: Graph, t: Tensor) -> str:
    """Name of tensor ``t``'s array in the program."""
    return next((b.name for b in graph.writers if b.origin is t), t.name)


# --- ways to fuse a pair


def _nothing(s: BaseSchedule) -> None:
    """Make no step: all stages stay as declared."""


def _no_parts(s: BaseSchedule) -> Iterator[Part]:
    return iter(())


@dataclass(frozen=True)
class Way:
    """One way to fuse a pair of stages.

    name:  the primitive, or the rule whose part contains both stages;  reason: text for the trace
    begin: first steps, on an unscheduled program
    parts: parts that contain both stages; none if ``begin`` merged the pair into one stage
    """

    name: str
    reason: str
    begin: Callable[[BaseSchedule], None] = field(default=_nothing, repr=False)
    parts: Callable[[BaseSchedule], Iterator[Part]] = field(default=_no_parts, repr=False)

    def begun(self, s: BaseSchedule, untaken: list[Refusal] | None = None) -> tuple[Part, ...]:
        """Make the first steps in ``s``; return the part that contains both stages, as a tuple, or () if the way has
        none.

        ``finished`` makes the remaining steps; the part is tried on a fork. Raises the error of a primitive that
        refuses.
        untaken: receives a Refusal for each part whose start failed before another was taken
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
    """Schedule the parts ``given`` in ``s``, then each other stage by a separate part; return ``s``.

    untaken: receives a Refusal for each part tried for another stage that failed
    """
    taken, begun = frozenset().union(*(p.names for p in given)), s.fork()
    graph = Apart(s.program)
    own = []
    for nest in reversed(graph.nests.values()):
        if nest.name not in taken:
            own.append(alone(begun, graph, nest, untaken))
            taken |= own[-1].names
    return started(s, [*given, *own])


def alone(begun: BaseSchedule, graph: Graph, nest: Nest, untaken: list[Refusal] | None = None) -> Part:
    """First part by any rule that schedules the stage ``nest`` in a separate kernel and can be lowered.

    untaken: receives a Refusal for each part that failed before
    Raises ScheduleError ``automatic.no-rule`` if there is none.
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
    """Candidate ways to fuse a pair in an unscheduled program; they may still prove illegal when tried."""
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
        if second.axes:
            yield Way("compute_at", why, parts=_near(pair))
    yield Way("fuse_with", why, parts=_together(pair))


def _inline(pair: Pair, kept: bool) -> Callable[[BaseSchedule], None]:
    """Steps that inline the producer into the second stage; a clone of it if it has other readers."""

    def begin(s: BaseSchedule) -> None:
        s.compute_inline(s.clone(pair.first, for_=pair.second).name if kept else pair.first)

    return begin


def slices(first: Nest, second: Nest) -> tuple[tuple[int, int], ...]:
    """Joints of a concatenation ``second`` that reads ``first``: (axis number, index) of each; () for other stages."""
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
    """Steps that store the producer's cells directly at their offset in the concatenation; other pieces become separate
    kernels.
    """

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
    """Yield parts with exactly both stages of the pair, as offered by the rules; with ``name``, only parts of this
    name.
    """

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
    """Parts that put both stages into shared outer loops: each stage as scheduled alone, or both by one part."""

    def parts(s: BaseSchedule) -> Iterator[Part]:
        graph = Apart(s.program)
        nests = [graph.nests[n] for n in pair.names]
        own = OwnPart(Graph(s.program), pair, s.target, [alone(s, graph, n) for n in nests])
        both = TogetherPart(Graph(s.program), pair, s.target)
        yield from (both, own) if pair.kind == "vertical" and any(n.reduced for n in nests) else (own, both)

    return parts


# --- a pair of stages as a part


CELLS = 1 << 14
"""Maximum iterations (cells times terms) of one block on a CPU."""
BLOCKS = 16
"""Least number of blocks on a CPU, to balance the load of its cores."""
THREADS = 128
"""Threads of a block of a GPU."""
ROWS_OF_A_BLOCK = 32
"""Maximum rows of a block whose adjacent rows read the same rows of the producer (a stencil)."""

NEAR_BYTES = {"cpu": CPU.caches[1].nbytes // 4, "gpu": 1 << 9}
"""Bytes of the producer's cells that a CPU core, or a GPU thread, may hold in local memory."""


def _divisor(n: int, most_of_it: int) -> int:
    """Largest divisor of ``n`` that is at most ``most_of_it``; ``most_of_it`` itself if that divisor is less than half
    of it.
    """
    limit = max(1, most_of_it)
    found = next(d for d in range(limit, 0, -1) if n % d == 0)
    return found if 2 * found > limit else limit


class PairPart(Part):
    """Base of parts that schedule both stages of a pair in one nest."""

    def __init__(self, graph: Graph, pair: Pair, target: Target) -> None:
        reason = f"{pair.first} and {pair.second} in one kernel"
        super().__init__(graph, graph.nests[pair.second], target, pair.names, reason)
        self.pair, self.first = pair, graph.nests[pair.first]

    def _lanes(self, *nests: Nest) -> int:
        """Lanes of a vector of the widest element type that ``nests`` read or write; at most 16."""
        return min(16, vector_lanes(self.target, widest_bits(nests)))

    def _reduced(self, s: BaseSchedule, n: Nest, at: str | None = None) -> bool:
        """Vectorize a row reduction of stage ``n`` on a CPU as the rule for rows does, and return True; False, with no
        step made, for other stages.

        at: the loop that contains the stage, or the loop of its reader to compute it at. Loops of its cells are made
        anew.
        """
        graph = Apart(s.program)
        chain = chain_of(graph, graph.nests[n.name]) if not self.levels.threaded and n.constant else None
        if chain is None or not chain.rows or not AlongPart.suits(chain, self.target):
            return False
        part = AlongPart(graph, self.target, chain)
        part.reduced(s, chain.anchor, part.start() or {}, at)
        return True

    def _rows(self, rows: int) -> int:
        """Rows per block, if there are ``rows`` rows in all: on a CPU a divisor of them if one is near the limit, on a
        GPU at most as many as threads.
        """
        if self.levels.threaded:
            return min(THREADS, rows)
        terms = max(n.size(n.stage.iters) for n in (self.first, self.anchor)) // max(1, rows)
        return _divisor(rows, min(CELLS // max(1, terms), rows // BLOCKS))

    def _shared_out(self, s: BaseSchedule, cells: Sequence[str], rows: int) -> tuple[str, ...]:
        return s.share_out(*cells, each=rows, within="thread.x" if self.levels.threaded else None)

    def _vectors(self, s: BaseSchedule, n: Nest, loop: str) -> None:
        """Vectorize loop ``loop`` of cells on a CPU, with reduction loops outside of the vector; no step on a GPU or if
        it has fewer iterations than lanes.
        """
        lanes, extent = self._lanes(n), most(s.index.loops[loop].extent)
        if not self.levels.threaded and extent >= lanes:
            shifts = n.kind == "map" and n.constant  # the last vector begins earlier: some cells are made again
            s.register_tile(loop, sizes=[lanes], lanes=lanes, tail="shift" if shifts and extent % lanes else "guard")


class NearPart(PairPart):
    """Pair with the producer computed at a loop of the consumer: each iteration computes the cells it reads."""

    rule = "compute_at"

    @property
    def lead(self) -> tuple[Iter, ...]:
        """Leading spatial axes of the consumer whose iterations read disjoint cells of the producer."""
        loads = [x for x in self.anchor.loads if x.buffer in self.first.writes]
        own = self.anchor.spatial if self.anchor.reduced else self.anchor.spatial[:-1]
        found = []
        for n, it in enumerate(own):
            if not all(len(x.index) > n and x.index[n] is it.var for x in loads):
                break
            found.append(it)
        return tuple(found)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        a, b, lead = self.first, self.anchor, self.lead
        cells = [b.loops[it.var] for it in b.spatial]
        if not cells:
            s.compute_at(a.name, b.axes[0])
            return
        s.reorder(*cells, *(b.loops[it.var] for it in b.reduced))
        rows = self._reduced(s, b)
        if rows:
            cells = [str(x) for x in s.loops(b.name)[: len(cells)]]
        high = self._rows(b.size(lead)) if lead or self.levels.threaded else self._high()
        block, row = self._shared_out(s, cells[: len(lead) or 1], high)
        at = row if lead or self.levels.threaded else block
        own = self._reduced(s, a, at)
        if not own:
            s.compute_at(a.name, at)
        self._room(s, at)
        if not own and a.spatial:
            self._vectors(s, a, a.loops[a.spatial[-1].var])
        if not rows and cells[len(lead) or 1 :]:
            self._vectors(s, b, cells[-1])

    def _high(self) -> int:
        """Rows of a block on a CPU if adjacent rows of the consumer read common rows of the producer."""
        rows, line = self.anchor.size(self.anchor.spatial[:1]), sum(map(bytes_of, self.first.writes))
        line //= max(1, self.first.size(self.first.spatial[:1]))
        return _divisor(rows, min(ROWS_OF_A_BLOCK, rows // 4, NEAR_BYTES["cpu"] // 2 // max(1, line)))

    def _room(self, s: BaseSchedule, at: str) -> None:
        """Raise ScheduleError ``fusions.room`` if an iteration of loop ``at`` holds more bytes of the producer than
        ``NEAR_BYTES``.
        """
        stage = s.index.stages[self.first.name]
        inside = s.index.between(s.index.loops[at], stage)
        cells = math.prod(most(x.extent) for x in inside if any(uses(w, {x.var}) for w in self._places(stage)))
        nbytes = sum(cells * DTYPES[b.dtype].bits // 8 for b in writes(stage.body))
        if nbytes > NEAR_BYTES[self.target.kind]:
            most_near = NEAR_BYTES[self.target.kind]
            message = f"an iteration of {at} reads {nbytes:,} bytes of {self.first.name}, and {most_near:,} stay near"
            raise refuse(ScheduleError, "fusions.room", message, hint="leave it a kernel of its own")

    @staticmethod
    def _places(stage: Stage) -> list[Expr]:
        return [bind for it, bind in zip(stage.iters, stage.binds, strict=True) if it.axis is Axis.SPATIAL]


class TogetherPart(PairPart):
    """Pair in shared outer loops: each iteration runs the first stage's body, then the second one's."""

    rule = "fuse_with"

    @property
    def shared(self) -> int:
        """Number of leading spatial axes with equal extents in both stages."""
        sizes = [[n.size([it]) for it in n.spatial] for n in (self.first, self.anchor)]
        return next((n for n, (x, y) in enumerate(zip(*sizes, strict=False)) if x != y), min(map(len, sizes)))

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        count, nests = self.shared, (self.first, self.anchor)
        flat = all(len(n.spatial) == count and n.kind == "map" for n in nests)
        for n in nests if count else ():
            cells = [n.loops[it.var] for it in n.spatial]
            s.reorder(*cells, *(n.loops[it.var] for it in n.reduced))
            if flat:
                self._flat(s, cells)
            else:
                self._nested(s, n, cells, count)
        s.fuse_with(*self.pair.names)

    def _flat(self, s: BaseSchedule, cells: Sequence[str]) -> None:
        """Distribute the cells of one loop over blocks, then vectors on a CPU or threads on a GPU."""
        lanes = self._lanes(self.first, self.anchor) if not self.levels.threaded else 1
        _, cell = self._shared_out(s, cells, lanes * (self._rows(self.first.cells) // lanes or 1))
        if not self.levels.threaded:
            s.register_tile(cell, sizes=[lanes], lanes=lanes)

    def _nested(self, s: BaseSchedule, n: Nest, cells: Sequence[str], count: int) -> None:
        """Distribute the ``count`` shared loops over blocks, and vectorize inside on a CPU."""
        reduced = count == len(cells) and self._reduced(s, n)
        if reduced:
            cells = [str(x) for x in s.loops(n.name)[:count]]
        rows = math.prod(n.size([it]) for it in n.spatial[:count])
        self._shared_out(s, cells[:count], self._rows(rows))
        if not reduced and cells[count:]:
            self._vectors(s, n, cells[-1])


class OwnPart(PairPart):
    """Pair with each stage scheduled as if alone, in shared outer loops, both with the first one's configuration if it
    fits.
    """

    rule = "fuse_with"

    def __init__(self, graph: Graph, pair: Pair, target: Target, own: Sequence[Part]) -> None:
        super().__init__(graph, pair, target)
        self.own = own

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        first, *_ = configs = [p.space.default for p in self.own]
        for part, c in zip(self.own, configs, strict=True):
            part.schedule(s, first if c.keys() == first.keys() else c)
        s.fuse_with(*self.pair.names)


def started(s: BaseSchedule, parts: Sequence[Part]) -> BaseSchedule:
    """Schedule ``parts`` in ``s``, each with its default configuration; return ``s``."""
    for part in parts:
        part.steps(s, part.space.default)
    return s
