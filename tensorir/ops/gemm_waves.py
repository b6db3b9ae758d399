"""Whole waves of tiles as they are, and what is left of the last wave in parts of its reduction (stream-K).

A device of ``units`` multiprocessors makes so many tiles at a time; the last wave leaves most of them idle where few
tiles are left. Osama et al. ("Stream-K", PPoPP 2023) deal iterations instead of tiles out to blocks for what is left.
Here whole rows of blocks are left, each tile is distributed in equal parts, and a kernel of its own adds these up, so
that no block waits for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorir.ops.blocks import extent_of
from tensorir.ops.common import Config, last_stage
from tensorir.ops.gemm_blocks import (
    Sums,
    add_up,
    in_groups,
    in_parts,
    multiprocessors,
    partial_sums,
    sums_of,
)
from tensorir.ops.problems import Gemm
from tensorir.tune.gpu_model import Product, Tiles, seconds

if TYPE_CHECKING:
    from tensorir.schedule.schedule import Schedule
    from tensorir.target import Target
    from tensorir.tune.gpu_devices import Gpu

Block = tuple[int, int]
"""Rows and columns of the result that a block, or a cluster, makes at a time."""


def whole_rows(p: Gemm, block: Block, target: Target) -> int:
    """Rows of the result that whole waves make; 0 where there is no such wave, or nothing left."""
    rows, columns = -(-p.m // block[0]), -(-p.n // block[1])
    units = multiprocessors(target)
    whole = rows * columns // units * units // columns
    return whole * block[0] if whole < rows else 0


def rests(p: Gemm) -> list[int]:
    """The knob ``rest``: 0, and 1 where only what whole waves leave is in parts."""
    return [0] if p.batch > 1 or in_groups(p) else [0, 1]


def dealt_out(c: Config, p: Gemm, block: Block, step: int, target: Target) -> bool:
    """Whether reductions, or with ``rest`` those of what is left, are in parts as ``in_parts`` wants them."""
    if not c["rest"]:
        return in_parts(c, p, step, -(-p.m // block[0]) * -(-p.n // block[1]), target)
    first = whole_rows(p, block, target)
    if not first or c["splits"] == 1 or c["atomic"]:
        return False
    tall = [-(-n // block[0]) for n in (first, p.m - first)]
    if any(n % c["raster"] for n in tall):
        return False  # bands with blocks that have nothing to do
    return in_parts(c, p, step, tall[1] * -(-p.n // block[1]), target)


def in_two(s: Schedule, c: Config, p: Gemm, block: Block) -> Schedule:
    """The schedule ``s`` of a product, its last rows declared apart where ``c`` asks for it and whole waves
    leave some.
    """
    first = whole_rows(p, block, s.target) if c["rest"] else 0
    return s.redeclare("stream_k", rest=p.m - first) if first else s


def each_sums(
    s: Schedule, c: Config, p: Gemm, step: int, scope: str = "register"
) -> Iterator[tuple[Sums, Config, Gemm]]:
    """What a template schedules, with the configuration and the shape that it has: one product, or two (``in_two``).

    Those of the first have no parts; partial sums of the other are added up in a third kernel.
    """
    if "head" not in s.index.stages:
        yield sums_of(s, c, p, step, scope), c, p
        return
    out = last_stage(s, "c")
    first, second = (extent_of(s, f"{name}.i") for name in ("head", "rest"))
    tail = s.cut(f"{out}.i", -second).name
    yield Sums("head", out, "head", [], [], ""), {**c, "splits": 1}, replace(p, m=first)
    stage = partial_sums(s, c, p, step, "rest")
    add_up(s, p, [], tail, "rest")
    apart, buffer = s.stage_out(stage, at="root", scope="warp").name, "rest_rf_warp"
    yield Sums(stage, apart, buffer, [f"{apart}.rf"], [f"{stage}.rf"], "rf, "), c, replace(p, m=second)


def expected_time(
    p: Gemm, product: Product, tiles: Callable[[Config], Tiles], block: Callable[[Config], Block],
    gpu: Gpu | None, target: Target,
) -> Callable[[Config], float] | None:  # fmt: skip
    """What ``Space.expecting`` asks for: two products where the rest is computed apart; None for an unknown device."""
    if gpu is None:
        return None
    known = gpu

    def time(c: Config) -> float:
        first = whole_rows(p, block(c), target) if c["rest"] else 0
        if not first:
            return seconds(product, tiles(c), known)
        head, rest = replace(product, m=first), replace(product, m=product.m - first)
        return seconds(head, tiles({**c, "splits": 1}), known) + seconds(rest, tiles(c), known)

    return time
