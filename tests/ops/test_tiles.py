"""Tiles: configurations with typed knobs, the rules that legal ones keep, and the spaces made of them."""

from dataclasses import replace
from typing import ClassVar

import pytest

import tensorir as tir
from tensorir.automatic.rules.tile_gpu import ENGINES
from tensorir.engines.problems import Conv, Gemm
from tensorir.engines.tiles import Knob, Tile

TARGET = tir.Target.parse("cuda -arch=sm_80")
SMALL = Gemm(m=8, n=8, k=8)


class Rows(Tile[Gemm]):
    """Rows of a block; threads by which they are shared."""

    rows, threads = Knob(4, 8, 16), Knob(1, 2, 32)
    order = Knob("row", "column")
    asked: ClassVar[list[int]] = []

    @property
    def sides(self):
        yield self.rows, 4, self.p.m

    @property
    def operand_bytes(self):
        return self.p.element_bytes * self.rows

    def shared_out(self):
        self.asked.append(self.rows)
        return self.rows % self.threads == 0

    rules: ClassVar[dict] = {"sensible": Tile.sensible, "shared": Tile.shared, "shared out": shared_out}


def space_of_rows():
    return tir.Space(where=Rows.where(SMALL, TARGET), default=Rows.start(SMALL, TARGET), **Rows.knobs(SMALL, TARGET))


def test_knobs_are_what_the_configuration_says():
    tile = Rows({"rows": 8, "threads": 2, "order": "column"}, SMALL, TARGET)
    assert (tile.rows, tile.threads, tile.order) == (8, 2, "column")
    other = tile.but(rows=4)
    assert (other.rows, other.threads, tile.rows) == (4, 2, 8)
    assert tile.but(replace(SMALL, m=3)).p.m == 3
    with pytest.raises(KeyError):
        _ = Rows({"rows": 8}, SMALL, TARGET).threads
    with pytest.raises(AttributeError):
        _ = tile.columns


def test_the_space_has_the_knobs_in_order_and_the_rules():
    space = space_of_rows()
    assert space.names == ("rows", "threads", "order")
    legal = [space.config(n) for n in range(len(space.legal))]
    assert {c["rows"] for c in legal} == {4, 8}, "16 rows are twice as many as there are"
    assert {c["threads"] for c in legal} == {1, 2}
    assert legal == [t.config for t in Rows.among(Rows.knobs(SMALL, TARGET), SMALL, TARGET)]


def test_a_rule_reads_no_more_than_it_asks_for():
    """Else it would be judged for every combination of all knobs, not only of those that it reads."""
    Rows.asked.clear()
    assert len(space_of_rows().legal) == 8
    assert len(Rows.asked) < 2 * len(Rows.rows.values) * len(Rows.threads.values), "not once for each order as well"


def test_results_are_asked_about_where_operands_fit():
    class Two(Rows):
        @property
        def result_bytes(self):
            return 0 if self.order == "row" else 1 << 30

    def fits(**config):
        return Two(config, SMALL, TARGET).shared()

    assert fits(rows=8, order="row")
    assert not fits(rows=8, order="column")
    assert not fits(rows=1 << 20), "whatever the order is"


@pytest.mark.parametrize(
    ("given", "engines"),
    [
        (dict(dtype="float32"), ["tile_warp", "tile"]),
        (dict(dtype="float64"), ["tile"]),
        (dict(dtype="float16"), ["tile_wgmma", "tile_mma", "tile"]),
        (dict(dtype="float16", n=12), ["tile_mma", "tile"]),
        (dict(precision="tf32"), ["tile_mma", "tile"]),
        (dict(precision="tf32", tb=True), ["tile_wgmma", "tile_mma", "tile"]),
        (dict(dtype="bfloat16", align=16, groups=2), ["tile_mma", "tile"]),
    ],
    ids=str,
)
def test_engines_say_what_they_compute(given, engines):
    p = Gemm(**{**dict(m=64, n=64, k=64), **given})
    assert [name for name, engine in ENGINES.items() if engine.needs(p) is not None] == engines


@pytest.mark.parametrize(
    ("dtype", "lanes", "sums", "room"),
    [("float32", 8, 4, 1), ("float16", 8, 4, 1), ("int8", 8, 4, 2), ("float64", 4, 8, 1)],
)
def test_what_follows_from_types(dtype, lanes, sums, room):
    p = Gemm(m=8, n=8, k=8, dtype=dtype).on(tir.Target.parse("c -registers=16 -vector_bytes=32"))
    assert (p.registers, p.vector_lanes, p.sum_bytes, p.product_room) == (16, lanes, sums, room)


def test_a_convolution_counts_channels_of_a_group():
    p = Conv(n=2, c=8, h=6, w=6, k=16, r=3, s=3, p=4, q=4, groups=4)
    assert (p.cg, p.kg, p.taps, p.flops) == (2, 4, 9, 2 * 2 * 16 * 16 * 2 * 9)
