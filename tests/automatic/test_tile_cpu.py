"""Products on CPUs, by whichever axes a declaration says them: right at awkward extents, and by the product engines."""

import numpy as np
import pytest
from gram_sums import gram

import tensorir as tir
from tensorir.automatic.facts import Graph
from tensorir.automatic.rules.product_view import product_view
from tensorir.automatic.rules.products import spread
from tensorir.automatic.rules.tile_cpu import offers

CPUS = ("opencl -registers=16 -vector_bytes=32", "c -registers=32 -vector_bytes=64")
MOST = 5000


def product(m, n, k, dtype="float32", wide=None, apart=0, ta=False, tb=False):
    lead = (apart,) if apart else ()
    A = tir.placeholder(lead + ((k, m) if ta else (m, k)), dtype, name="A")
    B = tir.placeholder(lead + ((n, k) if tb else (k, n)), dtype, name="B")
    c = tir.reduce_axis(k, name="c")

    def term(*at):
        *z, i, j = at
        a, b = A[(*z, c, i) if ta else (*z, i, c)], B[(*z, j, c) if tb else (*z, c, j)]
        return tir.sum(a.astype(wide) * b.astype(wide) if wide else a * b, axis=c)

    return tir.compute((*lead, m, n), term, name="P")


def distances(m, n, k):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    c = tir.reduce_axis(k, name="c")
    return tir.compute((m, n), lambda i, j: tir.max(tir.abs(A[i, c] - B[c, j]), axis=c), name="D")


def apart(m, n, k, tb=False):
    """Squared distances, and the same with weights: both operands are read twice at each place."""
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((n, k) if tb else (k, n), name="B")
    c = tir.reduce_axis(k, name="c")

    def term(i, j):
        a, b = A[i, c], B[j, c] if tb else B[c, j]
        return (a - b) * (a - b) + 1.0

    return tir.compute((m, n), lambda i, j: tir.sum(term(i, j), axis=c), name="D")


def with_epilogue(m, n, k):
    P = product(m, n, k)
    v, R = tir.placeholder((n,), name="v"), tir.placeholder((m, n), name="R")
    return tir.compute((m, n), lambda i, j: tir.maximum(P[i, j] + v[j], 0.0) + R[i, j], name="Y")


def image(n, c, h, w, k, r, **options):
    x, f = tir.placeholder((n, c, h, w), name="x"), tir.placeholder((k, c, r, r), name="w")
    return tir.nn.conv2d(x, f, **options)


def pixels_last(n, c, h, k, r):
    """Channels last, of the image and of the filter."""
    x, f = tir.placeholder((n, h, h, c), name="x"), tir.placeholder((k, r, r, c), name="w")
    o = h - r + 1
    t = [tir.reduce_axis(e, name=x) for e, x in ((r, "r"), (r, "s"), (c, "c"))]
    return tir.compute(
        (n, o, o, k),
        lambda b, p, q, j: tir.sum(x[b, p + t[0], q + t[1], t[2]] * f[j, t[0], t[1], t[2]], axis=tuple(t)),
        name="y",
    )


def line(n, c, w, k, r):
    x, f = tir.placeholder((n, c, w), name="x"), tir.placeholder((k, c, r), name="w")
    t = [tir.reduce_axis(c, name="c"), tir.reduce_axis(r, name="r")]
    return tir.compute(
        (n, k, w - r + 1), lambda b, j, p: tir.sum(x[b, t[0], p + t[1]] * f[j, t[0], t[1]], axis=tuple(t)), name="y"
    )


DEFINITIONS = {
    "primes": product(7, 13, 5),
    "a tile and one more": product(7, 17, 9),
    "a tile less one": product(5, 15, 8),
    "one term": product(6, 16, 1),
    "two rows": product(2, 50, 3),
    "two columns": product(50, 2, 3),
    "turned": product(9, 11, 6, ta=True, tb=True),
    "many": product(5, 9, 4, apart=3),
    "of 16 bits": product(9, 17, 11, "float16", "float32"),
    "of 16 bits in 16": product(9, 17, 11, "float16"),
    "of 8 bits": product(9, 17, 11, "int8", "int32"),
    "distances": distances(9, 18, 7),
    "squared distances": apart(9, 18, 7),
    "squared distances of rows": apart(9, 35, 19, tb=True),
    "of one matrix with itself": tir.nn.matmul(*[tir.placeholder((13, 13), name="A")] * 2, name="P"),
    "rows of one matrix": gram(9, 17),
    "columns of one matrix": gram(19, 7, ta=True),
    "rows of one matrix of 8 bits": gram(5, 21, "int8"),
    "distances of rows of one": gram(11, 6, value=lambda a, b: (a - b) * (a - b)),
    "long columns": product(9, 37, 21, tb=True),
    "epilogue": with_epilogue(13, 19, 6),
    "pixels": image(2, 5, 5, 7, 6, 1),
    "taps": image(1, 5, 9, 11, 7, 3, pad=1),
    "strided taps": image(2, 3, 11, 9, 4, 3, pad=1, stride=2),
    "channels last": pixels_last(2, 5, 6, 7, 3),
    "many channels last": pixels_last(1, 17, 5, 9, 3),
    "a line": line(2, 3, 37, 5, 4),
}


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_engine_is_right_at_its_start_and_elsewhere(name, target):
    """Elsewhere is in the middle of a space on one target, which starts as well, at its end on the other."""
    y = DEFINITIONS[name]
    found = {n: t for n, t in tir.auto(y, target).items() if n.startswith("cpu_tile")}
    assert found, "no engine takes it"
    for template in found.values():
        s = tir.Schedule(y, target)
        space = template.space_for(s.target)
        assert 0 < len(space.legal) <= 2 * MOST
        elsewhere = len(space.legal) // 2 if target == CPUS[0] else len(space.legal) - 1
        start = [space.default] if target == CPUS[0] else []
        for config in (*start, space.config(elsewhere)):
            s = tir.Schedule(y, target)
            template.function(s, config)
            assert s.check(), config
        assert str(tir.replay(y, s.trace, s.target)) == str(s) and s.source()


def test_what_runs_is_the_convolution():
    x, w = (
        np.random.default_rng(n).integers(-3, 4, shape).astype("float32")
        for n, shape in enumerate([(1, 5, 9, 11), (7, 5, 3, 3)])
    )
    y = np.zeros((1, 7, 9, 11), "float32")
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    for r in range(3):
        for s in range(3):
            y += np.einsum("nchw,kc->nkhw", around[:, :, r : r + 9, s : s + 11], w[:, :, r, s])
    assert np.array_equal(tir.auto_schedule(DEFINITIONS["taps"]).build()(x, w), y)


def test_sums_that_others_read_as_well_are_kept():
    P = product(7, 13, 5)
    twice = tir.compute((7, 13), lambda i, j: P[i, j] * 2, name="twice")
    assert tir.auto_schedule((twice, P), CPUS[0]).check()
    j = tir.reduce_axis(13, name="j")
    largest = tir.compute((7,), lambda i: tir.max(P[i, j], axis=j), name="largest")
    below = tir.compute((7, 13), lambda i, j: P[i, j] - largest[i], name="below")
    s = tir.auto_schedule(below, CPUS[0])
    assert s.check() and "tile" in str(s.trace)


def test_axes_are_rows_columns_terms_or_apart():
    def view(y):
        nests = Graph(tir.Schedule(y, CPUS[0]).program).nests.values()
        return next(v for n in nests if n.reuses and (v := product_view(n)))

    v = view(image(2, 5, 40, 40, 6, 3))
    assert (v.rows, v.columns, v.apart, v.terms) == (("k",), ("q",), ("n", "p"), ("c", "r", "s"))
    assert (v.product.a, v.product.b, list(v.product.a_outer), len(v.product.b_outer)) == ("w", "x", [], 2)
    assert view(image(1, 5, 40, 40, 6, 1)).columns == ("p", "q"), "pixels in a row, and rows one after another"
    v = view(pixels_last(2, 5, 6, 7, 3))
    assert (v.columns, v.gemm.tb, v.gemm.ta) == (("j",), True, False)


def test_columns_next_to_each_other_are_counted():
    def run(y):
        nests = Graph(tir.Schedule(y, CPUS[0]).program).nests.values()
        return next(v.gemm.run for n in nests if n.reuses and (v := product_view(n)))

    assert run(image(1, 5, 28, 28, 6, 3)) == 26, "taps: a row of pixels"
    assert run(image(1, 5, 14, 14, 6, 1)) == run(product(4, 8, 9)) == 0, "all"


def test_no_product_is_offered_where_there_is_none():
    A = tir.placeholder((8, 8), name="A")
    c = tir.reduce_axis(8, name="c")
    cube = tir.compute((8, 8), lambda i, j: tir.sum(A[i, c] * A[c, j] * A[j, c], axis=c), name="Y")
    s = tir.Schedule(cube, CPUS[0])
    graph = Graph(s.program)
    assert not list(offers(graph, graph.nests["Y"], s.target)), "of three operands"
    assert tir.auto_schedule(cube, CPUS[0]).check()
    graph = Graph(tir.Schedule(product(4, 4, 4), "cuda").program)
    assert not list(offers(graph, graph.nests["P"], tir.Target.parse("cuda")))


def test_an_operand_that_is_read_at_two_places_makes_no_product():
    A, B = tir.placeholder((9, 8), name="A"), tir.placeholder((8, 7), name="B")
    c = tir.reduce_axis(8, name="c")
    y = tir.compute((8, 7), lambda i, j: tir.sum((A[i, c] - A[i + 1, c]) * B[c, j], axis=c), name="Y")
    assert product_view(Graph(tir.Schedule(y, CPUS[0]).program).nests["Y"]) is None
    assert tir.auto_schedule(y, CPUS[0]).check()


def test_panels_of_long_columns_are_read_in_vectors_along_them():
    s = tir.auto_schedule(product(40, 64, 96, tb=True), CPUS[0])
    assert s.check() and "s.vectorize('B_packed.k')" in str(s.trace) and "(B + " in s.source()
    assert "B_packed.out" not in str(tir.auto_schedule(product(40, 64, 96), CPUS[0])), "rows are vectors as they are"


def test_terms_of_a_tap_have_a_loop_of_their_own():
    def steps(y):
        return "s.split('y.k', [None, 64])" in str(tir.auto_schedule(y, CPUS[0]).trace)

    assert steps(pixels_last(1, 64, 16, 32, 3))
    assert not steps(pixels_last(1, 64, 16, 32, 1)), "all terms are"


def test_few_values_are_spread_over_all():
    assert spread([1, 2, 3, 4, 5, 6, 7], 4, 3) == [4, 1, 5]
    assert spread([1, 2], 2, 5) == [2, 1]
