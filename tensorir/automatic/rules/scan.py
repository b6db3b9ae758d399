"""Rule for scans (prefix sums): blocks have scans that do not wait for each other, or tiles of a long one.

======================  =======================================  =======================================
lanes have              on cores                                 on multiprocessors
======================  =======================================  =======================================
scans                   ``ScanLanesPart``, of columns            ``ThreadsPart``
elements of a scan      ``ScanLanesPart``, of rows               ``BlockScanPart``, in one tile of runs
elements of its tiles   ``TiledPart``                            ``BlockScanPart``, in tiles of runs
======================  =======================================  =======================================
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.levels import levels_of
from tensorir.automatic.part import Part
from tensorir.automatic.rules.narrow import expected_s
from tensorir.automatic.rules.scan_lanes import ScanLanesPart, ThreadsPart
from tensorir.automatic.rules.scan_tiles import BlockScanPart, TiledPart
from tensorir.target import Target


def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for a scan that have legal configurations, the one of less modelled time first."""
    if anchor.kind == "scan":
        parts = _by_threads(graph, anchor, target) if levels_of(target).threaded else _by_cores(graph, anchor, target)
        yield from sorted((p for p in parts if next(p.legal(), None)), key=expected_s)


def _by_threads(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for threads: several for a scan of constant extents, and one for each of several scans."""
    if anchor.constant:
        yield BlockScanPart(graph, anchor, target, reason=f"{anchor.cells} scans, each by threads side by side")
    if anchor.spatial:
        yield ThreadsPart(graph, anchor, target, reason=_apart(anchor))


def _by_cores(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
    """Yield parts for cores: tiles if the scan is single and, but for maps before it, the whole definition; lanes."""
    before = [n.name for n in graph.producers(anchor) if n.kind == "map" and not graph.is_output(n)]
    if not anchor.spatial and anchor.constant and {anchor.name, *before} == set(graph.nests):
        tiles = f"{anchor.size(anchor.stage.iters)} elements one after another, in tiles side by side"
        yield TiledPart(graph, anchor, target, before, tiles)
    yield ScanLanesPart(graph, anchor, target, reason=_apart(anchor))


def _apart(anchor: Nest) -> str:
    return f"{anchor.cells} scans that do not wait for each other"
