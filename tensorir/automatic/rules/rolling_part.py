"""Online softmax ("rolling"): running maximum, sum of weights and weighted sums in one pass over the keys
(attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorir.automatic.facts import Graph, Nest, bytes_of, vector_lanes
from tensorir.automatic.levels import choices
from tensorir.automatic.part import Config, Part, parts_of
from tensorir.engines.blocks import joint
from tensorir.errors import ScheduleError
from tensorir.ir.structure import identical
from tensorir.ir.tree import Const, Update
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.legal import Predicate

ROWS = 32
"""Queries per block of threads."""
THREADS = 128
"""Most threads of a block that combines parts of the keys, one per column."""


def attentions(graph: Graph, anchor: Nest) -> Iterator[Stages]:
    """Stages of each attention whose weighted sums are read by map ``anchor``: O / l with O = sum of weights * values,
    l = sum of weights, weights = f(scores, m), m = max of scores, and scores that are reductions, or elementwise
    functions of some.
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
                    yield Stages(sums, weights, largest[0], totals[0], scores)


def only_ratio(graph: Graph, anchor: Nest, found: Stages) -> bool:
    """True if ``anchor`` alone reads total and weighted sums, and weights and scores are no outputs; without minus
    infinity in the scores others may read or be the results.

    Where all scores of a query are minus infinity, the total and the sums are 0 in one pass, and NaN as declared: their
    ratio is NaN in both.
    """
    if any(graph.is_output(n) for n in (found.weights, *found.scores)):
        return False
    masked = any(x.value == -math.inf for n in found.scores for x in find(n.stage.body, Const))
    return not masked or not (_alongside(graph, anchor, found) or any(map(graph.is_output, (found.total, found.sums))))


def _of(nests: Sequence[Nest], kind: str) -> list[Nest]:
    return [n for n in nests if n.kind == kind]


def _reduces_once(nest: Nest) -> bool:
    return nest.kind == "reduce" and len(nest.reduced) == 1


def _combines(nest: Nest, name: str) -> bool:
    return any(u.combiner.name == name for u in find(nest.stage.body, Update))


def _scores(graph: Graph, weights: Nest, largest: Nest) -> tuple[Nest, ...]:
    """Stages that compute the scores, readers before what they read; () if there is no reduction among them."""
    both = [n for n in graph.producers(weights) if n in graph.producers(largest)]
    found = _cellwise(graph, both[0]) if len(both) == 1 else []
    return tuple(n for n in reversed(graph.nests.values()) if n in found)


def _cellwise(graph: Graph, score: Nest) -> list[Nest]:
    """Stage ``score`` with the reductions and maps read by it cell for cell; maps that read no reduction so, such as a
    bias, are left out, and all if ``score`` is one.
    """
    if score.kind == "reduce":
        return [score]
    own = tuple(it.var for it in score.spatial)
    read = [n for n in graph.producers(score) if score.kind == "map" and len(n.spatial) == len(own)]
    at = {b: [x.index for x in score.loads if x.buffer is b] for n in read for b in n.writes}
    near = [n for n in dict.fromkeys(read) if all(identical(i, own) for b in n.writes for i in at[b])]
    found = [n for one in near for n in _cellwise(graph, one)]
    return [score, *found] if found else []


def _alongside(graph: Graph, anchor: Nest, found: Stages) -> tuple[Nest, ...]:
    """Other maps that read the maximum or the total, such as the logarithm of what a softmax divides by."""
    own = (anchor, found.sums, found.weights, found.total)
    readers = [n for x in (found.largest, found.total) for n in graph.readers(x) if n not in own]
    return tuple(n for n in dict.fromkeys(readers) if n.kind == "map" and len(n.spatial) == len(found.largest.spatial))


@dataclass(frozen=True, eq=False)
class Stages:
    """Stages of an attention: ``sums`` of ``weights`` times values, ``total`` of the weights, ``largest`` score, and
    ``scores``, readers before what they read.
    """

    sums: Nest
    weights: Nest
    largest: Nest
    total: Nest
    scores: tuple[Nest, ...]


class RollingPart(Part):
    """Attention with one query per lane, in one pass over tiles of keys; cores have no vectors of queries."""

    rule = "rolling"

    def __init__(self, graph: Graph, anchor: Nest, target: Target, found: Stages) -> None:
        self.found, self.scores = found, found.scores
        sums, weights, largest, total = found.sums, found.weights, found.largest, found.total
        self.sums, self.weights, self.largest, self.total = sums, weights, largest, total
        self.products = tuple(n for n in self.scores if n.kind == "reduce")
        self.maps = tuple(n for n in self.scores if n.kind != "reduce")
        self.alongside = _alongside(graph, anchor, found)
        self.stored = frozenset(n.name for n in self.alongside)
        names = [n.name for n in (sums, weights, largest, total, *self.scores, *self.alongside)]
        reason = (
            f"{largest.name}, {total.name} and {sums.name} go through {sums.axes[-1]} together: no scores in memory"
        )
        super().__init__(graph, anchor, target, names, reason)
        self.scalar = type(self) is RollingPart and not self.levels.threaded and anchor.constant

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

    @cached_property
    def depth(self) -> int:
        """Multiply-adds for a query and a key: terms of the products of its score, and columns of the result."""
        return sum(n.size(n.reduced) for n in self.products) + self.sums.size(self.sums.spatial[-1:])

    def _combining_s(self, c: Config) -> float:
        """Modelled seconds of the kernel that combines ``parts``, with the traffic of their results, and until cores
        have started on both kernels; 0.0 for one part.
        """
        machine, moved = self.levels.machine, 3.0 * parts_of(c) * bytes_of(self.sums.writes[0])
        starts = machine.launch_s + 2 * machine.wake_s
        return (starts + moved / (machine.rate(moved) * machine.cores)) * (parts_of(c) > 1)

    def knobs(self) -> Mapping[str, Sequence[object]]:
        return {"keys": [32, 16, 64, 128]}

    def where(self) -> Mapping[str, Predicate]:
        return self._limits()

    def _limits(self) -> Mapping[str, Predicate]:
        """Constraints by name."""
        return {"parts": lambda c: parts_of(c) == 1 or parts_of(c) * c["keys"] < 2 * self.length}

    @cached_property
    def heads(self) -> int:
        """Number of heads, over all batches."""
        return self.largest.cells // self.count

    def _in_parts(self, blocks: int) -> Mapping[str, Sequence[object]]:
        """The knob ``parts`` of the keys, where ``blocks`` of queries are fewer than cores; none where they are not."""
        return choices(parts=self.levels.parts(blocks, self.length))

    def expected(self) -> Callable[[Config], float] | None:
        """Each query waits for its multiply-adds one by one."""
        machine, blocks = self.levels.machine, self.heads * -(-self.count // (self._each or 1))
        cycles = self.length * self.depth * self.levels.waiting * -(-blocks // machine.cores)
        return lambda c: cycles / machine.clock

    @property
    def _each(self) -> int | None:
        """Queries per block, one per lane; None for one that a core walks alone."""
        return ROWS if self.levels.threaded else None

    def declare(self, s: BaseSchedule, config: Config) -> None:
        if parts_of(config) > 1:
            s.redeclare("split_softmax", parts=parts_of(config), of=self.sums.name)

    def schedule(self, s: BaseSchedule, config: Config) -> None:
        if parts_of(config) == 1:
            self.roll(s, config)
            return
        graph = Graph(s.program, self.graph.wishes)
        anchor = graph.nests[f"{self.sums.name}_parts"]
        type(self)(graph, anchor, self.target, next(attentions(graph, anchor))).roll(s, config)
        with s.because(f"rolling: {parts_of(config)} parts of {self.sums.axes[-1]} are rescaled and added in order"):
            self._combine(s)

    def _combine(self, s: BaseSchedule) -> None:
        """Schedule the kernel that adds the parts: a block per query, its columns in vectors or threads."""
        *cells, column = own_loops(s, self.anchor.name)
        m, l, o = self.largest.name, self.total.name, self.sums.name
        s.share_out(*cells)
        for n in self.alongside:
            s.share_out(*own_loops(s, n.name))
            s.fuse_with(n.name, self.anchor.name)
        block = str(s.loops(self.anchor.name)[0])
        threads, lanes = min(THREADS, self.sums.size(self.sums.spatial[-1:])), vector_lanes(self.target, self.bits)
        at = self.levels.spread(s, column, {"threads": threads, "lanes": 1 if self.levels.threaded else lanes})
        s.compute_at(o, at, scope="register")
        *_, column, part = own_loops(s, o)
        if not self.levels.threaded:
            s.reorder(part, column).vectorize(column)
        for name in (l, f"{m}_scale", m):
            s.compute_at(name, block)

    def roll(self, s: BaseSchedule, config: Config) -> None:
        """Schedule one pass over the keys."""
        sums, rows = self.sums, len(self.largest.spatial)
        lead, columns = sums.axes[:rows], sums.axes[rows:-1]
        piece, key = s.split(sums.axes[-1], [None, config["keys"]])
        s.reorder(*lead, piece, key, *columns)
        self._rolled(s, lead[-1], piece)
        if rows > 1:
            s.bind(joint(s, lead[:-1]), "block.y")
        self.levels.share_out(s, lead[-1:], self._each)
        skip_masked(s, piece)

    def _rolled(self, s: BaseSchedule, block: str, piece: str, inlined: Sequence[Nest] = ()) -> None:
        """Apply ``rolling`` to maximum and sums at loop ``piece`` over tiles of keys, compute the scores there, and the
        results in ``block`` after the last tile; ``inlined``: scores that are computed where they are read.
        """
        s.rolling(self.largest.name, into=(self.total.name, self.sums.name), at=piece)
        for n in self.scores:
            if n in inlined:
                s.compute_inline(n.name)
            else:
                s.compute_at(n.name, piece)
        for n in (self.anchor, *self.alongside):
            s.reverse_compute_at(n.name, block)

    @staticmethod
    def _share_out(s: BaseSchedule, heads: Sequence[str], block: str) -> None:
        """Bind blocks of queries, and heads, to the grid."""
        s.bind(block, "block.x")
        if heads:
            s.share_out(*heads, to="block.y")


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
