"""Pairs of stages that are candidates for fusion, and each pair as a separate definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorir.automatic.facts import Graph, Nest
from tensorir.errors.shown import Shown
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.tree import Buffer, PadLoad
from tensorir.ir.visit import Rewriter, swap_buffers

MOST_PAIRS = 400
"""Maximum number of horizontal pairs of a graph."""


@dataclass(frozen=True, repr=False)
class Pair(Shown):
    """Two stages of a graph, ``first`` before ``second``.

    kind: "vertical" (the second reads the first one's result) or "horizontal" (independent of each other)
    """

    kind: str
    first: str
    second: str

    def __repr__(self) -> str:
        return f"<{self.kind} pair {self.first}, {self.second}>"

    @property
    def names(self) -> tuple[str, str]:
        """Names of both stages: (first, second)."""
        return self.first, self.second


class Apart(Graph):
    """A graph that hides all edges between stages, except inside a scatter, so that a rule claims each stage alone."""

    def readers(self, nest: Nest) -> list[Nest]:
        return [n for n in super().readers(nest) if set(n.writes) & set(nest.writes)]

    def producers(self, nest: Nest) -> list[Nest]:
        made = set(nest.writes)
        return [n for b in made for n in self.writers[b] if n is not nest]

    def is_output(self, nest: Nest) -> bool:
        return True


def pairs_of(graph: Graph) -> Iterator[Pair]:
    """Candidate pairs: each producer with each of its consumers, then independent stages that read a common array or
    have equally many cells.
    """
    made = [n for n in graph.nests.values() if n.kind == "scatter"]
    fills = [n for n in graph.nests.values() if any(n is not x and set(n.writes) <= set(x.writes) for x in made)]
    nests = [n for n in graph.nests.values() if n not in fills]  # a scatter has two stages
    needed = {n.name: _needed(graph, n) for n in nests}
    for n in nests:
        for p in dict.fromkeys(graph.producers(n)):
            if p in nests:
                yield Pair("vertical", p.name, n.name)
    found = 0
    for at, b in enumerate(nests):
        for a in nests[:at]:
            if a.name not in needed[b.name] and found < MOST_PAIRS and (shared_inputs(a, b) or a.cells == b.cells):
                found += 1
                yield Pair("horizontal", a.name, b.name)


def _needed(graph: Graph, nest: Nest) -> set[str]:
    """Names of all stages that ``nest`` depends on, directly or not."""
    found: set[str] = set()
    queue = [nest]
    while queue:
        for p in graph.producers(queue.pop()):
            if p.name not in found:
                found.add(p.name)
                queue.append(p)
    return found


def shared_inputs(a: Nest, b: Nest) -> tuple[Buffer, ...]:
    """Arrays that both stages read."""
    return tuple(x for x in a.reads if x in b.reads)


def needed_elsewhere(graph: Graph, pair: Pair) -> bool:
    """True if the first stage's result is an output or has readers other than the second stage."""
    first = graph.nests[pair.first]
    return graph.is_output(first) or any(r.name != pair.second for r in graph.readers(first))


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
        bodies = tuple(_SwapPads(swap)(swap_buffers(b, swap)) for b in op.bodies)
        mine = Compute(name, op.axes, op.extents, bodies)
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


class _SwapPads(Rewriter):
    """Rewriter that replaces buffers in padded loads (``PadLoad``, which occurs in declarations only)."""

    def __init__(self, swap: dict[Buffer, Buffer]) -> None:
        self.swap = swap

    def on_PadLoad(self, n: PadLoad) -> PadLoad:
        n = self.children(n)
        new = self.swap.get(n.buffer)
        return n.replace(buffer=new) if new else n
