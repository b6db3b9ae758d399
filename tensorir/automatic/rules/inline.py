"""Inline: what costs less to compute where it is read than to write and read again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tensorir.arith.affine import structure
from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.rules import register_tile, terms, window_gpu
from tensorir.automatic.rules.product_view import product_view
from tensorir.errors import TensorIRError
from tensorir.ir.tree import Binary, Call, Expr, Select, Unary
from tensorir.ir.visit import find
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

CHEAP_OPS = 8
"""Operations that may be repeated for each reader."""
REPEATED_OPS = 32
"""Operations of what a cell reads at several places: stencils of stencils would grow without end."""
LARGEST_OPS = 160
"""Operations of an expression that others were put into, with its reader: what only moves elements grows as well."""


def inlined(s: BaseSchedule, kept: Collection[str]) -> Iterator[tuple[str, str]]:
    """Inline what is worth it in ``s``, but for the stages ``kept``; gives each stage, and why."""
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
    """Why a stage is computed where it is read; "" where it is not."""
    readers = graph.readers(nest)
    if nest.kind != "map" or graph.is_output(nest) or not readers or len(nest.writes) > 1:
        return ""
    why = _reason(nest, readers)
    if why and any(_too_large(nest, r) for r in readers):
        return ""
    if why and any(r.kind in ("scan", "scatter") or _copies(graph, nest, r, target) for r in readers):
        return ""  # the rules for those copy what they read again
    return why


def _reason(nest: Nest, readers: Sequence[Nest]) -> str:
    """Why it costs less to compute a map where it is read; "" where it does not."""
    places = {r: _places(nest, r) for r in readers}
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
    """At how many places a stage reads what another one makes."""
    return len({structure(x) for x in reader.loads if x.buffer in nest.writes})


def _too_large(nest: Nest, reader: Nest) -> bool:
    """True when a map that others have been put into would make an expression that grows without end."""
    grown = nest.operations > CHEAP_OPS
    return grown and nest.operations * _places(nest, reader) + reader.operations > LARGEST_OPS


def _copies(graph: Graph, nest: Nest, reader: Nest, target: Target) -> bool:
    """True when the rule that takes a reader copies a stage's results: for products of matrices, or as an image; or has
    lanes for its terms, each of which would ask for itself whether it is before a border.
    """
    if reader.empty:
        return False
    if reader.reuses and (target.kind != "cpu" or product_view(reader)):
        return True
    found = [*register_tile.offers(graph, reader, target), *window_gpu.offers(graph, reader, target)]
    lanes = not found and find(nest.stage.body, Select) and next(terms.offers(graph, reader, target), None)
    return bool(lanes) or any(nest.name in p.names for p in found)


def values(nest: Nest) -> int:
    """Operations of a cell on what it reads: those on places, and the conditions of padding, are none."""
    found = find(nest.stage.body, Expr)
    return sum(isinstance(x, Binary | Unary | Call) and x.dtype not in ("index", "bool") for x in found)
