"""Windows: register tiles of cells that read common elements and are no matrix products.

Depthwise and grouped convolutions, pooling, stencils, sums of three operands: ``CoreWindows`` on CPUs,
``ThreadWindows`` on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Part
from tensorir.automatic.rules.product_view import product_view
from tensorir.automatic.rules.stream import windows
from tensorir.automatic.rules.window_cpu import CoreWindows
from tensorir.automatic.rules.window_gpu import ThreadWindows
from tensorir.ir.dims import dims_in, most
from tensorir.ir.structure import structure
from tensorir.ir.tree import Select
from tensorir.ir.visit import find
from tensorir.machine import machine_of
from tensorir.target import Target


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield a part for cells that read common elements, with the sums that only they read."""
    yield from _tiles(graph, anchor, target, few_reads=False)


def few(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield the part for a map of few reads on a CPU, after the stream that is usually faster."""
    yield from _tiles(graph, anchor, target, few_reads=True)


def _tiles(graph: Graph, anchor: Nest, target: Target, few_reads: bool) -> Iterator[Part]:
    gpu = target.kind == "gpu"
    if (gpu and not anchor.constant) or len(anchor.writes) != 1:
        return
    names = (anchor.name,) if anchor.kind == "reduce" else windows(graph, anchor, again=True)
    sums = [graph.nests[name] for name in names]
    reads = len({structure(x) for x in anchor.loads})
    if few_reads != (not gpu and not sums and reads <= machine_of(target).prices.window.few_reads):
        return
    shapes = {tuple(most(it.extent) for it in n.spatial) for n in (anchor, *sums)}
    if len(shapes) > 1 or any(n.reuses if gpu else product_view(n) for n in sums):  # cores tile products in groups
        return
    if any(dims_in(x.cond) for n in (anchor, *sums) for x in find(n.stage.body, Select)):
        return  # no loop is cut where a border at a dim begins
    part = (ThreadWindows if gpu else CoreWindows)(graph, anchor, target, sums)
    if part.suits:
        yield part
