"""Inlining: stages whose cells cost less to recompute at each read than to store and load."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tensorir.arith.affine import structure
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.rules import terms, window
from tensorir.automatic.rules.product_view import product_view
from tensorir.errors import TensorIRError
from tensorir.ir.tree import Binary, Call, Expr, Load, Select, Unary
from tensorir.ir.visit import find, has
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

CHEAP_OPS = 8
"""Maximum operations of a stage that is recomputed for each of its readers."""
REPEATED_OPS = 32
"""Maximum operations over all places where one cell of a reader reads the stage; bounds chains of stencils."""
LARGEST_OPS = 160
"""Maximum operations of an expression after inlining into its reader, if others were inlined into it before."""


def inlined(s: BaseSchedule, kept: Collection[str]) -> Iterator[tuple[str, str]]:
    """Inline cheap stages in ``s``, except ``kept``, while iterated over; yields (stage, reason) of each one inlined.

    Stages that ``compute_inline`` refuses stay.
    """
    for name in list(s.index.stages):
        graph = Graph(s.program)
        nest = graph.nests[name]
        if name in kept or not (why := worth(graph, nest, s.target)):
            continue
        try:
            with s.because(f"inline: {why}"):
                s.compute_inline(name)
        except TensorIRError:  # read in a way that has no place for an expression: it stays a stage
            continue
        yield name, why


def worth(graph: Graph, nest: Nest, target: Target) -> str:
    """Reason to inline a stage, as text; "" if it should stay."""
    readers = graph.readers(nest)
    if nest.kind != "map" or graph.is_output(nest) or not readers or len(nest.writes) > 1:
        return ""
    why = _reason(nest, readers)
    if why and any(_too_large(nest, r) for r in readers):
        return ""
    if why and any(_again(r, target) or _copies(graph, nest, r, target) for r in readers):
        return ""
    return why


def _again(reader: Nest, target: Target) -> bool:
    """True if a scan or scatter reads its operand again: in parts, or in the threads of a block."""
    return reader.kind == "scatter" or (reader.kind == "scan" and not (target.kind == "cpu" and reader.spatial))


def _reason(nest: Nest, readers: Sequence[Nest]) -> str:
    """Reason, as text, why recomputing the cells of a map is cheaper than storing them; "" if it is not."""
    places = {r: _places(nest, r) for r in readers}
    gathers = any(has(x, Load) for r in readers for y in r.loads if y.buffer in nest.writes for x in y.index)
    if gathers and len(nest.loads) > 1:
        return ""  # each of its loads would become one
    cheap = not nest.calls and nest.operations <= CHEAP_OPS and nest.operations * max(places.values()) <= REPEATED_OPS
    times = max(n * r.size(r.stage.iters) for r, n in places.items()) / max(1, nest.cells)
    if not values(nest):
        return "it only moves what it reads"
    if cheap:
        return f"{nest.operations} operations cost less than a store and a load"
    if len(readers) == 1 and times <= 1:
        return f"{readers[0].name} alone reads it, each cell once"
    return ""


def _places(nest: Nest, reader: Nest) -> int:
    """Number of different index expressions with which ``reader`` loads the stage's result."""
    return len({structure(x) for x in reader.loads if x.buffer in nest.writes})


def _too_large(nest: Nest, reader: Nest) -> bool:
    """True if inlining the stage, which others were inlined into, makes the reader's expression exceed
    ``LARGEST_OPS``.
    """
    grown = nest.operations > CHEAP_OPS
    return grown and nest.operations * _places(nest, reader) + reader.operations > LARGEST_OPS


def _copies(graph: Graph, nest: Nest, reader: Nest, target: Target) -> bool:
    """True if the rule for ``reader`` copies the stage's results anyway (operand of a matrix product, staged image), or
    has lanes along its terms, so that inlining would put a border condition into every lane.
    """
    if reader.empty:
        return False
    if reader.reuses and (target.kind != "cpu" or product_view(reader)):
        return True
    found = [*window.offers(graph, reader, target)]
    lanes = not found and has(nest.stage.body, Select) and next(terms.offers(graph, reader, target), None)
    return bool(lanes) or any(nest.name in p.names for p in found)


def values(nest: Nest) -> int:
    """Operations on values per cell; index arithmetic and padding conditions are not counted."""
    found = find(nest.stage.body, Expr)
    return sum(isinstance(x, Binary | Unary | Call) and x.dtype not in ("index", "bool") for x in found)
