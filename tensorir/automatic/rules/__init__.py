"""Rules of automatic scheduling, one file each; ``RULES`` lists them by priority."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from tensorir.automatic.facts import Graph, Nest
from tensorir.automatic.part import Part
from tensorir.automatic.rules import (
    open_grid,
    overlap,
    rolling,
    rows,
    scan,
    scatter,
    split_sum,
    stream,
    terms,
    tile_cpu,
    tile_gpu,
    transpose,
    window,
    winograd_cpu,
    winograd_gpu,
)
from tensorir.target import Target

Rule = Callable[[Graph, Nest, Target], Iterator[Part]]
"""Signature of a rule: (graph, anchor stage, target) -> parts with ``anchor`` as their last stage, most promising
first.
"""


def busy(rule: Rule) -> Rule:
    """The rule ``rule`` restricted to stages with at least one iteration."""

    @functools.wraps(rule)
    def offers(graph: Graph, anchor: Nest, target: Target) -> Iterator[Part]:
        return iter(()) if anchor.empty else rule(graph, anchor, target)

    return offers


RULES_BEFORE_INLINING: tuple[Rule, ...] = tuple(map(busy, (rolling.offers, overlap.offers)))
"""Rules that claim stages before any stage is inlined."""
RULES: tuple[Rule, ...] = (
    *map(busy, (
        scan.offers,
        scatter.offers,
        split_sum.offers,
        rows.offers,
        split_sum.others,
        split_sum.dots,
        tile_cpu.offers,
        tile_gpu.offers,
        stream.chains,
        window.offers,
        transpose.offers,
        split_sum.shared,
        terms.offers,
        tile_cpu.gathered,
        winograd_cpu.offers,
        winograd_gpu.offers,
    )),
    busy(open_grid.offers),
    stream.offers,  # schedules every stage
    busy(window.few),
)  # fmt: skip
"""Rules for the remaining stages by priority."""
