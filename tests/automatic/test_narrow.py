"""Products of one row or one column: their rows, and tiles beside them, each once and each right."""

import pytest

import tensorir as tir
from tensorir.automatic.facts import Graph, Wishes
from tensorir.automatic.rules import RULES, rows

CPU, GPU = "opencl -kind=cpu -units=2", "cuda -arch=sm_80"


def product(m, n, k, tb=False):
    a = tir.placeholder((m, k), name="a")
    return tir.nn.matmul(a, tir.placeholder((n, k) if tb else (k, n), name="b"), tb=tb, name="c")


def offered(out, target, constants=()):
    s = tir.Schedule([out], target)
    graph = Graph(s.program, Wishes(constants=constants))
    anchor = [*graph.nests.values()][-1]
    return [part.name for part in rows.offers(graph, anchor, s.target)]


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("shape", [(1, 36, 20), (36, 1, 20), (1, 36, 20, True)], ids=str)
def test_tiles_are_offered_beside_rows_and_each_way_is_right(shape, target):
    ways = tir.auto(product(*shape), target)
    assert any("tile" in name for name in ways)
    for name, template in ways.items():
        s = tir.Schedule([product(*shape)], target)
        template.function(s, template.space_for(s.target).default)
        assert s.check(), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("target", [CPU, GPU, "opencl -kind=gpu"])
def test_rows_of_several_axes_have_one_column(target, dtype):
    x, w = (tir.placeholder(shape, dtype, name=n) for n, shape in (("x", (2, 16, 8)), ("w", (1, 8))))
    for name, template in tir.auto(tir.nn.linear(x, w, name="y"), target).items():
        s = tir.Schedule(tir.nn.linear(x, w, name="y"), target)
        template.function(s, template.space_for(s.target).default)
        assert s.check(), name


def test_the_way_that_is_expected_to_take_least_is_first():
    assert offered(product(1, 64, 4096, tb=True), CPU)[0] == "rows"
    assert offered(product(1, 4096, 4096, tb=True), CPU)[0] == "tile_dot"


def test_what_is_packed_ahead_is_read_in_tiles():
    assert "tile" in offered(product(1, 3072, 768, tb=True), CPU, ("b",))[0]


def test_no_way_is_offered_twice():
    s = tir.Schedule([product(1, 96, 40, tb=True)], CPU)
    graph = Graph(s.program)
    found = [p.name for rule in RULES for p in rule(graph, graph.nests["c"], s.target)]
    assert found.count("rows") == 1


@pytest.mark.parametrize("target", [CPU, GPU])
def test_rows_that_are_no_product_have_no_tiles(target):
    x = tir.placeholder((96, 40), name="x")
    k = tir.reduce_axis(40, name="k")
    sums = tir.compute((96,), lambda i: tir.sum(x[i, k] * x[i, k], axis=k), name="y")
    assert not any("tile" in name for name in offered(sums, target))


@pytest.mark.parametrize("target", ["opencl -kind=gpu -max_threads=32", "c -registers=2 -vector_bytes=16"])
def test_a_way_without_a_legal_configuration_is_passed_over(target):
    for shape in ((1, 4096, 4096), (4096, 1, 30, True)):
        assert tir.auto_schedule(product(*shape), target).trace
