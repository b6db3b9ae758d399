"""Facts of a definition that rules decide by: stages and pairs of them, axes, reads and writes, reuse of elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from tensorir.arith.access import alike, dims_along
from tensorir.arith.affine import Arith
from tensorir.errors.shown import Shown
from tensorir.ir.dims import dims_in, most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import (
    Axis,
    Binary,
    Buffer,
    Call,
    Cast,
    Expr,
    Iter,
    Load,
    Program,
    Select,
    Stage,
    Unary,
    Update,
    Var,
)
from tensorir.ir.visit import find, reads, writes
from tensorir.schedule.analysis import index_of, is_scan
from tensorir.target import Target


class Nest(Shown):
    """A stage with its loops, before it is scheduled; ``axes`` are the loops' names, in the order of ``stage.iters``.

    kind: "map" (each cell is an expression), "reduce", "scan" or "scatter"
    """

    def __init__(self, stage: Stage, axes: Sequence[str]) -> None:
        self.stage, self.axes = stage, tuple(axes)
        updates = find(stage.body, Update)
        self.kind = "map"
        if is_scan(stage):
            self.kind = "scan"
        elif updates:
            self.kind = "reduce" if stage.init is not None else "scatter"

    def __repr__(self) -> str:
        return f"<Nest {self.name}: {self.kind} over {', '.join(self.axes)}>"

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name

    @cached_property
    def loops(self) -> dict[Var, str]:
        """Variable of each axis -> name of its loop."""
        return {it.var: axis for it, axis in zip(self.stage.iters, self.axes, strict=True)}

    def sort(self, *kinds: Axis) -> tuple[Iter, ...]:
        """Axes of the given kinds (spatial, reduce, ordered), in order of declaration."""
        return tuple(it for it in self.stage.iters if it.axis in kinds)

    @cached_property
    def spatial(self) -> tuple[Iter, ...]:
        """Spatial axes: each iteration writes a cell of its own."""
        return self.sort(Axis.SPATIAL)

    def walked(self, spatial: Sequence[Iter]) -> Nest:
        """A copy of the nest with its spatial axes in another order."""
        other = copy(self)
        other.__dict__["spatial"] = tuple(spatial)
        return other

    @cached_property
    def reduced(self) -> tuple[Iter, ...]:
        """Reduction axes: the terms along them are combined."""
        return self.sort(Axis.REDUCE)

    @property
    def constant(self) -> bool:
        """True if all extents are constants."""
        return not dims_in(*(it.extent for it in self.stage.iters))

    @cached_property
    def places(self) -> tuple[tuple[Buffer, tuple[Expr, ...]], ...]:
        """(array, indices) of each load, with the indices simplified."""
        simple = Arith({it.var: (0, most(it.extent) - 1) for it in self.stage.iters}).simplify
        return tuple((x.buffer, tuple(map(simple, x.index))) for x in self.loads)

    @cached_property
    def empty(self) -> bool:
        """True if it has no iterations: no cells, or a reduction without terms."""
        return not self.size(self.stage.iters)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Loads in the body, for one cell or one term of a reduction."""
        return tuple(find(self.stage.body, Load))

    def converts(self, buffer: Buffer, dtype: str) -> bool:
        """True if each load of ``buffer`` in the body is cast to ``dtype`` at once."""
        casts = {x.a for x in find(self.stage.body, Cast) if x.dtype == dtype}
        return all(x in casts for x in self.loads if x.buffer is buffer)

    @cached_property
    def reads(self) -> tuple[Buffer, ...]:
        """Arrays that the stage reads, each once, except those it writes."""
        return tuple(b for b in reads(self.stage.body) if b not in self.writes)

    @cached_property
    def writes(self) -> tuple[Buffer, ...]:
        """Arrays that the stage writes."""
        return tuple(writes(self.stage.body))

    @cached_property
    def operations(self) -> int:
        """Operations in the body per cell or term, index arithmetic included; at least 1."""
        return len(find(self.stage.body, (Binary, Unary, Select, Call))) or 1

    @cached_property
    def values(self) -> int:
        """Operations on values in the body per cell or term; index arithmetic and function calls are not counted."""
        found = (x for x in find(self.stage.body, Expr) if isinstance(x, Binary | Unary | Select))
        return sum(x.dtype not in ("index", "bool") for x in found)

    @cached_property
    def calls(self) -> int:
        """Calls of functions such as ``exp`` in the body per cell or term."""
        return len(find(self.stage.body, Call))

    def size(self, axes: Iterable[Iter]) -> int:
        """Product of the extents of ``axes``; a symbolic extent counts as its maximum."""
        return math.prod(most(it.extent) for it in axes)

    @property
    def cells(self) -> int:
        """Number of cells that the stage writes: the product of its spatial extents, symbolic ones at their maximum."""
        return self.size(self.spatial)

    @property
    def work(self) -> int:
        """Operations of all iterations."""
        return self.size(self.stage.iters) * self.operations

    @property
    def moved(self) -> int:
        """Bytes of the arrays that it reads and writes, each array once."""
        return sum(bytes_of(b) for b in (*self.reads, *self.writes))

    def along(self, load: Load) -> tuple[Iter, ...]:
        """Axes that the index of ``load`` depends on."""
        return tuple(it for it in self.stage.iters if dims_along(load, it.var))

    def again(self, load: Load) -> int:
        """Reuse count of each element of ``load``: the product of the extents of axes its index does not depend on; of
        an axis shared by groups, the group's size.
        """
        return math.prod(
            n if (n := alike(load, it.var)) > 1 else 1 if n else most(it.extent) for it in self.stage.iters
        )

    @property
    def reuses(self) -> bool:
        """True if the stage is a reduction that reads two operands, each reused along axes that only the other one
        depends on, as in a matrix product.
        """
        alone = {x: tuple(alike(x, it.var) for it in self.stage.iters) for x in self.loads if self.again(x) > 1}
        return self.kind == "reduce" and len({*alone.values()}) > 1


def widest_bits(nests: Iterable[Nest]) -> int:
    """Bits of the widest element type that ``nests`` read or write; at least 8."""
    return max(8, *(DTYPES[b.dtype].bits for n in nests for b in (*n.writes, *n.reads)))


def vector_lanes(target: Target, bits: int) -> int:
    """Lanes of ``bits`` bits in a vector register of a target, rounded down to a power of two; of 16 bytes at least."""
    return 1 << ((8 * max(16, target.vector_bytes) // bits).bit_length() - 1)


def bytes_of(b: Buffer) -> int:
    """Bytes of an array; a symbolic extent counts as its maximum."""
    return math.prod(most(n) for n in b.shape) * max(1, DTYPES[b.dtype].bits // 8)


# The graphs of one schedule differ in few stages, and what is known of a stage does not depend on the others.
_nest = functools.lru_cache(maxsize=1024)(Nest)


@dataclass(frozen=True)
class Wishes:
    """Options of a workload that its definition does not contain.

    precision: of float32 products on GPUs: "fp32", "tf32" or "3xtf32"
    constants: names of inputs that never change: they are packed once for all launches
    any_order: True if float sums may be combined in any order on GPUs, so that two runs differ in the last bits
    max_error: bound of the error relative to the largest result for approximate algorithms; 0 excludes them
    """

    precision: str = "fp32"
    constants: tuple[str, ...] = ()
    any_order: bool = False
    max_error: float = 0.0


NO_WISHES = Wishes()


class Graph(Shown):
    """The dataflow graph of a program whose stages are unscheduled or inlined: stages, writers and readers of each
    array.
    """

    def __init__(self, program: Program, wishes: Wishes = NO_WISHES) -> None:
        index = index_of(program)
        self.program, self.wishes = program, wishes
        self.nests = {
            name: _nest(stage, tuple([x.var.name for x in index.above(stage)])) for name, stage in index.stages.items()
        }
        self.writers: dict[Buffer, list[Nest]] = {}
        self._users: dict[Buffer, list[Nest]] = {}
        for n in self.nests.values():
            for b in n.writes:
                self.writers.setdefault(b, []).append(n)
            for b in (*n.reads, *n.writes):
                self._users.setdefault(b, []).append(n)

    def __repr__(self) -> str:
        return f"<Graph of {', '.join(self.nests)}>"

    def readers(self, nest: Nest) -> list[Nest]:
        """Stages that read the arrays ``nest`` writes; of a scatter, also stages that complete them."""
        users = [n for b in nest.writes for n in self._users[b] if n is not nest]
        return list(dict.fromkeys(users)) if len(nest.writes) < 2 else [n for n in self.nests.values() if n in users]

    def producers(self, nest: Nest) -> list[Nest]:
        """Other stages that write arrays ``nest`` reads, once per array, except stages without iterations."""
        return [n for b in nest.reads for n in self.writers.get(b, ()) if n is not nest and not n.empty]

    def is_output(self, nest: Nest) -> bool:
        """True if ``nest`` writes an output of the program."""
        return any(b in self.program.outputs for b in nest.writes)


# --- pairs of stages

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
    """Candidate pairs: each producer with each of its consumers, then up to ``MOST_PAIRS`` pairs of independent stages
    that read a common array or have equally many cells. Initializations of scatters are left out.
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
