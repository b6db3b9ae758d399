"""Online softmax ("rolling"): running maximum, sum of weights and weighted sums in one pass over the keys
(attention).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Config, Part
from tensorir.errors import ScheduleError
from tensorir.ir.tree import Update
from tensorir.ir.visit import find
from tensorir.machine import machine_of
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

ROWS = 32
"""Queries per block on a GPU, one per thread."""
SCALAR_CYCLES = 2.1
"""Cycles of a multiply-add with its loads, outside of vectors."""


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for attention: O / l with O = sum of weights * values, l = sum of weights, weights = f(scores, m), m
    = max of scores, and scores that are reductions.
    """
    if anchor.kind != "map":
        return
    for sums in graph.producers(anchor):
        for weights in _of(graph.producers(sums), "map") if _reduces_once(sums) else ():
            largest = [m for m in graph.producers(weights) if _reduces_once(m) and _combines(m, "max")]
            totals = [t for t in graph.readers(weights) if t is not sums and _reduces_once(t) and _combines(t, "sum")]
            if len(largest) == len(totals) == 1:
                scores = _scores(graph, weights, largest[0])
                if scores:
                    yield RollingPart(graph, anchor, target, sums, weights, largest[0], totals[0], scores)


def _of(nests: Sequence[Nest], kind: str) -> list[Nest]:
    return [n for n in nests if n.kind == kind]


def _reduces_once(nest: Nest) -> bool:
    return nest.kind == "reduce" and len(nest.reduced) == 1


def _combines(nest: Nest, name: str) -> bool:
    return any(u.combiner.name == name for u in find(nest.stage.body, Update))


def _scores(graph: Graph, weights: Nest, largest: Nest) -> tuple[Nest, ...]:
    """Stages that compute the scores, the one read by maximum and weights first; () if the scores are no reduction."""
    both = [n for n in graph.producers(weights) if n in graph.producers(largest)]
    if len(both) != 1:
        return ()
    if both[0].kind == "reduce":
        return (both[0],)
    sums = _of(graph.producers(both[0]), "reduce")
    return (both[0], sums[0]) if both[0].kind == "map" and len(sums) == 1 else ()


class RollingPart(Part):
    """Attention with one query per block (CPU) or thread (GPU), in one pass over tiles of keys."""

    rule = "rolling"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, sums: Nest, weights: Nest, largest: Nest,
                 total: Nest, scores: tuple[Nest, ...]) -> None:  # fmt: skip
        self.sums, self.weights, self.largest, self.total, self.scores = sums, weights, largest, total, scores
        names = [n.name for n in (sums, weights, largest, total, *scores)]
        reason = (
            f"{largest.name}, {total.name} and {sums.name} go through {sums.axes[-1]} together: no scores in memory"
        )
        super().__init__(graph, anchor, target, names, reason)
        self.scalar = type(self) is RollingPart and target.kind == "cpu" and anchor.constant

    @classmethod
    def tiled(cls, graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
        """Yield parts of this class for the same stages, if it suits them."""
        for p in offers(graph, anchor, target):
            if isinstance(p, RollingPart):
                part = cls(graph, anchor, target, p.sums, p.weights, p.largest, p.total, p.scores)
                if part.suits():
                    yield part

    def suits(self) -> bool:
        """True if this class can schedule the stages."""
        return True

    @cached_property
    def count(self) -> int:
        """Queries per head."""
        return self.largest.size(self.largest.spatial[-1:])

    @cached_property
    def length(self) -> int:
        """Keys per head."""
        return self.sums.size(self.sums.reduced)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"keys": [32, 16, 64, 128]}

    def where(self) -> Mapping[str, Predicate]:
        return self._limits()

    def _limits(self) -> Mapping[str, Predicate]:
        """Constraints of the subclass, by name."""
        return {}

    def expected(self) -> Callable[[Config], float] | None:
        """One query per block of a CPU, no vectors: each query waits for its multiply-adds one by one."""
        if self.target.kind == "gpu":
            return None
        machine, queries, terms = machine_of(self.target), self.largest.cells, self.scores[-1].reduced
        depth = self.scores[-1].size(terms) + self.sums.size(self.sums.spatial[-1:])
        cycles = queries * self.length * depth * SCALAR_CYCLES
        return lambda c: cycles / (machine.clock * min(machine.cores, queries))

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        sums, rows = self.sums, len(self.largest.spatial)
        lead, columns = sums.axes[:rows], sums.axes[rows:-1]
        piece, key = s.split(sums.axes[-1], [None, config["keys"]])
        s.reorder(*lead, piece, key, *columns)
        s.rolling(self.largest.name, into=(self.total.name, sums.name), at=piece)
        for nest in self.scores:
            s.compute_at(nest.name, piece)
        s.reverse_compute_at(self.anchor.name, lead[-1])
        inner = lead[-1]
        if self.target.kind == "gpu":
            inner, thread = s.split(inner, [None, ROWS])
            s.bind(thread, "thread.x")
        s.bind(inner, "block.x")
        if rows > 1:
            outer = lead[0]
            for loop in lead[1:-1]:
                outer = s.fuse(outer, loop)
            s.bind(outer, "block.y")
        skip_masked(s, piece)


def own_loops(s: BaseSchedule, stage: str) -> list[str]:
    """Names of a stage's loops, except those of the stage it is computed at."""
    return [str(x) for x in s.loops(stage) if str(x).startswith(f"{stage}.")]


def skip_masked(s: BaseSchedule, piece: str) -> None:
    """Skip tiles of keys that a mask excludes completely; no step if there is no such mask."""
    try:
        with s.because("mask: no query of the block sees a key of these pieces"):
            s.skip(piece)
    except ScheduleError as e:
        if e.code not in ("skip.identity", "skip.condition"):
            raise
