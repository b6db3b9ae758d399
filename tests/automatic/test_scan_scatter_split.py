"""The rules for scans, scatters, sums of few cells, and transposes on GPUs."""

import pytest
from covering import some_of_each, spread_over

import tensorir as tir
from tensorir.automatic.plan import plans
from tensorir.target import Target

CPU, GPU = "opencl", "cuda -arch=sm_80"
WIDE = "opencl -registers=32 -vector_bytes=64"


def default_rule(outputs, target):
    return next(iter(plans((outputs,), Target.parse(target)).values())).main.rule


def steps(outputs, target):
    return str(tir.auto_schedule(outputs, target).trace)


@pytest.mark.parametrize("target", [CPU, GPU])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("way", [{}, {"exclusive": True}, {"reverse": True}, {"op": "max"}])
def test_scans_of_every_axis_are_right(axis, way, target):
    A = tir.placeholder((3, 37, 18), name="A")
    s = tir.auto_schedule(tir.scan(A, axis=axis, name="S", **way), target)
    assert s.check()
    assert ".vectorize(" in str(s.trace) or target == GPU


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "way"),
    [
        ((37, 45), 1, "float32", {"reverse": True}),
        ((3, 37, 18), 1, "float32", {}),
        ((5, 33, 24), 2, "float16", {"exclusive": True}),
    ],
)
def test_scans_in_threads_ask_for_several_elements_at_once(shape, axis, dtype, way):
    y = tir.scan(tir.placeholder(shape, dtype, name="A"), axis=axis, name="S", **way)
    template = tir.auto(y, GPU)["gpu_scan"]
    space = template.space_for(Target.parse(GPU))
    every = [space.config(row) for row in range(len(space.legal))]
    assert space.default["items"] > 1
    assert any(c["shared"] for c in every) == (axis == len(shape) - 1), "rows are read apart by neighbouring threads"
    for config in every[:: max(1, len(every) // 4)] + every[-1:]:
        s = tir.Schedule(y, GPU)
        template.function(s, config)
        assert s.check("fast"), config


def test_a_scan_of_few_rows_has_few_multiprocessors_in_the_model():
    times = []
    for rows in (64, 6400):  # two blocks, and some for each multiprocessor
        S = tir.scan(tir.placeholder((rows, 4096), name="A"), axis=1, name="S")
        plan = plans((S,), Target.parse("cuda -arch=sm_80"))["gpu_scan"]
        times.append(plan.main.expected()({"threads": 32, "items": 16, "shared": 1}))
    assert times[1] < 20 * times[0]


def test_scans_of_a_dim_are_shared_out_to_threads():
    n = tir.dim("n", low=1, high=40)
    s = tir.auto_schedule(tir.scan(tir.placeholder((n, 7), name="A"), axis=0, name="S"), GPU)
    assert "thread.x" in str(s.trace)
    assert s.check("fast")


@pytest.mark.parametrize("target", [CPU, GPU])
def test_a_long_scan_alone_goes_by_tiles(target):
    A = tir.placeholder((1 << 17,), name="A")
    D = tir.compute((1 << 17,), lambda i: A[i] * 2, name="D")
    for made in (tir.scan(A, name="S"), tir.scan(D, name="S"), tir.scan(A, reverse=True, exclusive=True, name="S")):
        s = tir.auto_schedule(made, target)
        assert "tiled_scan" in str(s.trace)
        assert s.check()


@pytest.mark.parametrize("target", [CPU, GPU])
def test_arrays_that_are_called_as_a_scans_tiles_are_in_nobodys_way(target):
    A, B = (tir.placeholder((1 << 17,), name=name) for name in ("S_total", "S_local"))
    D = tir.compute((1 << 17,), lambda i: A[i] + B[i], name="D")
    assert "tiled_scan" in steps(tir.scan(D, name="S"), target)


@pytest.mark.parametrize(("shape", "axis", "blocks"), [((8, 100_000), 1, 8), ((1000, 1000), 0, 8)])
def test_few_scans_leave_few_cores_idle(shape, axis, blocks):
    s = tir.auto_schedule(tir.scan(tir.placeholder(shape, name="A"), axis=axis, name="S"), "opencl -units=16")
    assert f"blocks ({blocks}, 1, 1)" in s.source()


@pytest.mark.parametrize(("length", "tiled"), [(1 << 14, False), (1 << 17, True)])
def test_tiles_are_for_scans_that_take_longer_than_their_kernels(length, tiled):
    S = tir.scan(tir.placeholder((length,), name="A"), name="S")
    assert (default_rule(S, "opencl -units=16") == "tiled_scan") == tiled
    assert {"cpu_scan", "cpu_tiled_scan"} <= {*tir.auto(S, "opencl -units=16")}


def test_a_long_scan_that_is_not_alone_is_not_declared_again():
    A = tir.placeholder((1 << 14,), name="A")
    S = tir.scan(A, name="S")
    s = tir.auto_schedule((S, tir.compute((1 << 14,), lambda i: S[i] * 3 + tir.exp(A[i]), name="Y")), CPU)
    assert "redeclare" not in str(s.trace)
    assert s.check()


def histogram(bins, terms, fill=0):
    X = tir.placeholder((terms,), "uint8", name="X")
    return tir.scatter(
        (bins,), over=(terms,), index=lambda t: (tir.minimum(X[t], bins - 1),), value=lambda t: 1, fill=fill, name="Y"
    )


@pytest.mark.parametrize("target", [CPU, GPU])
def test_a_scatter_alone_has_private_copies_and_adds_nothing_atomically(target):
    for fill in (0, tir.placeholder((100,), "int32", name="H")):
        s = tir.auto_schedule(histogram(100, 1 << 14, fill), target)
        assert "private_scatter" in str(s.trace)
        assert "atomic" not in s.source()
        assert s.check()


@pytest.mark.parametrize("target", [CPU, GPU])
def test_a_scatter_of_few_terms_has_none(target):
    s = tir.auto_schedule(histogram(200, 300), target)
    assert "private_scatter" not in str(s.trace)
    assert s.check()


def rows_to_columns(width, dtype="float32", op="sum", images=1, rows=7, terms=19, apart=False):
    """Rows of terms that go to rows of cells, of each image; ``apart``: each column to a row of its own."""
    V = tir.placeholder((images, terms, width), dtype, name="V")
    R = tir.placeholder((images, terms, width) if apart else (images, terms), "int32", name="R")

    def place(n, e, c):
        return n, tir.minimum(tir.maximum(R[(n, e, c) if apart else (n, e)], 0), rows - 1), c

    return tir.scatter((images, rows, width), over=V.shape, index=place, value=lambda n, e, c: V[n, e, c], op=op,
                       name="Y")  # fmt: skip


SORTS = [{}, {"images": 3}, {"dtype": "uint8", "op": "max"}, {"apart": True}]


@pytest.mark.parametrize(("width", "more"), some_of_each([2, 5, 64, 67], SORTS))
def test_terms_go_to_whole_columns_in_order(width, more):
    y = rows_to_columns(width, **more)
    template = tir.auto(y, CPU)["cpu_scatter"]
    space = template.space_for(Target.parse(CPU))
    for config in spread_over(space, 6):
        s = tir.Schedule(y, CPU)
        template.function(s, config)
        assert s.check(), config
        assert ("vectorize('Y.c" in str(s.trace)) == (config["lanes"] > 1)
    assert more.get("apart") is None or not any(space.config(row)["lanes"] > 1 for row in range(len(space.legal)))


def test_wide_rows_of_a_scatter_are_shared_out():
    template = tir.auto(rows_to_columns(2000, terms=8), CPU)["cpu_scatter"]
    space = template.space_for(Target.parse(CPU))
    assert len(space.values[space.names.index("block")]) > 2
    for config in spread_over(space, 8):
        s = tir.Schedule(rows_to_columns(2000, terms=8), CPU)
        template.function(s, config)
        assert ("s.share_out('Y.n', 'Y.c.0')" in str(s.trace)) == (config["block"] < 2000)
        assert s.check(), config


def test_columns_of_a_scatter_may_be_a_dim():
    n, m = tir.dim("n", 1, 50), tir.dim("m", 1, 40)
    V, R = tir.placeholder((m, n), name="V"), tir.placeholder((m,), "int32", name="R")
    y = tir.scatter((9, n), over=(m, n), index=lambda e, c: (tir.minimum(tir.maximum(R[e], 0), 8), c),
                    value=lambda e, c: V[e, c], name="Y")  # fmt: skip
    s = tir.auto_schedule(y, CPU)
    assert "scatter" in str(s.trace)
    assert s.check()


def test_counts_of_parts_are_right():
    for target in (CPU, GPU):
        template = tir.auto(histogram(20, 1 << 14), target)[f"{Target.parse(target).kind}_private_scatter"]
        space = template.space_for(Target.parse(target))
        for config in spread_over(space, 8):
            s = tir.Schedule(histogram(20, 1 << 14), target)
            template.function(s, config)
            assert s.check(), config


def few(shape, kept, op=tir.sum):
    A = tir.placeholder(shape, name="A")
    over = {k: tir.reduce_axis(n, name=f"r{k}") for k, n in enumerate(shape) if k not in kept}

    def cell(*i):
        at = {**over, **dict(zip(kept, i, strict=True))}
        return op(A[tuple(at[k] for k in range(len(shape)))], axis=tuple(over.values()))

    names = ", ".join(("i", "j")[: len(kept)])  # axes need names
    called = eval(f"lambda {names}: cell({names})", {"cell": cell})
    return tir.compute(tuple(shape[k] for k in kept), called, name="Y")


FEW = [((1 << 14,), ()), ((3, 1 << 17), (0,)), ((1 << 17, 2), (1,)), ((1, 600_011), (0,)), ((512, 3, 256), (1,))]


@pytest.mark.parametrize("op", [tir.sum, tir.max])
@pytest.mark.parametrize(("shape", "kept"), FEW)
def test_terms_of_few_cells_are_shared_out(shape, kept, op):
    for target in (f"{WIDE} -units=16", GPU):
        s = tir.auto_schedule(few(shape, kept, op), target)
        assert "rfactor" in str(s.trace) or "reduce_across" in str(s.trace)
        assert s.check()
    assert tir.auto_schedule(few((3, 1 << 13), (0,), op), GPU).check("emulate")


@pytest.mark.parametrize(("m", "n", "k"), [(7, 2, 1 << 19), (2, 3, 800_011)])
def test_products_of_few_cells_read_memory_once(m, n, k):
    a, b, r = tir.placeholder((m, k), name="a"), tir.placeholder((n, k), name="b"), tir.reduce_axis(k, name="k")
    y = tir.compute((m, n), lambda i, j: tir.sum(a[i, r] * b[j, r], axis=r), name="y")
    s = tir.auto_schedule(y, CPU)
    assert "s.rfactor('y'" in str(s.trace) and str(s.trace).endswith("s.share_out('y.rf.rf')")
    assert s.check()


def pairs(n, m, cells=1, sums="differences"):
    """Sums over all pairs of two rows' elements, or of each with all others; or a bilinear form."""
    x, y, a = (
        tir.placeholder((cells, n), name="x"),
        tir.placeholder((cells, m), name="y"),
        tir.placeholder((n, m), name="a"),
    )
    i, j = tir.reduce_axis(n, name="i"), tir.reduce_axis(m, name="j")
    of = {
        "differences": lambda c: tir.abs(x[c, i] - y[c, j]),
        "of one row": lambda c: tir.abs(x[c, i] - x[c, j]),
        "bilinear": lambda c: x[c, i] * a[i, j] * y[c, j],
    }[sums]
    return tir.compute((cells,), lambda c: (tir.max if sums == "of one row" else tir.sum)(of(c), axis=(i, j)), name="E")


PAIRS = [
    (128, 96, 1, "differences"), (64, 128, 3, "bilinear"), (96, 96, 2, "of one row"), (101, 97, 1, "differences"),
    (17, 33, 300, "bilinear"),
]  # fmt: skip


@pytest.mark.parametrize("of", PAIRS, ids=str)
def test_sums_over_pairs_are_shared_out_on_gpus(of):
    y = pairs(*of)
    name, template = next(iter(tir.auto(y, GPU).items()))
    assert name == "gpu_split_sum"
    for config in spread_over(template.space_for(Target.parse(GPU)), 4):
        s = tir.Schedule(y, GPU)
        template.function(s, config)
        assert s.check() and s.check("emulate"), config
        first, *rest = s.emitted().kernels
        assert first.block[0] == config["threads"] and first.grid[0] == config["parts"] * of[2]
        assert len(rest) == (config["parts"] > 1), "cells of which there are many have a block each"


@pytest.mark.parametrize("of", [x for x in PAIRS if x[0] % 16 == x[1] % 16 == 0], ids=str)
def test_sums_over_pairs_are_shared_out_to_cores_in_vectors(of):
    y = pairs(*of)
    template = tir.auto(y, CPU)["cpu_split_sum"]
    space = template.space_for(Target.parse(CPU))
    assert space.default["lanes"] > 1
    for config in spread_over(space, 4):
        s = tir.Schedule(y, CPU)
        template.function(s, config)
        assert s.check(), config


def test_pairs_that_are_no_whole_vectors_stay_in_lanes_of_one_core():
    assert "cpu_split_sum" not in tir.auto(pairs(101, 97), CPU)
    assert next(iter(tir.auto(pairs(101, 97), CPU))) == "cpu_terms"


@pytest.mark.parametrize("target", [CPU, GPU])
def test_products_of_long_sums_stay_tiles(target):
    a, b = tir.placeholder((4, 8192), name="a"), tir.placeholder((4, 8192), name="b")
    found = next(iter(tir.auto(tir.nn.matmul(a, b, tb=True), target)))
    assert found.split("_", 1)[1].startswith("tile")


def test_partial_results_are_in_vector_lanes():
    assert "float16 *)(Y_rf_rf" in tir.auto_schedule(few((1 << 14,), ()), WIDE).source()


@pytest.mark.parametrize("shape", [(37, 67), (64, 64), (33, 31), (16, 100)])
def test_a_transpose_on_a_gpu_goes_through_shared_memory(shape):
    h, w = shape
    A = tir.placeholder((h, w), name="A")
    B = tir.compute((w, h), lambda i, j: A[j, i] * 2, name="B")
    s = tir.auto_schedule(B, GPU)
    assert "A_shared[1056]" in s.source()  # 32 rows of 33: columns are in different banks
    assert s.check()
    assert s.check("emulate")


def test_a_small_transpose_is_streamed():
    A = tir.placeholder((5, 7), name="A")
    assert default_rule(tir.compute((7, 5), lambda i, j: A[j, i], name="B"), GPU) == "stream"


def test_bins_that_bytes_count_are_dealt_no_index_that_a_byte_cannot_hold():
    X = tir.placeholder((1 << 10,), "uint8", name="X")
    made = tir.scatter((256,), over=(1 << 10,), index=lambda t: (X[t],), value=lambda t: 1, name="Y")
    s = tir.Schedule(made, CPU)
    s.bind(s.split("Y.init.i", [None, 256])[0], "block.x")  # checked with 257 bins
    assert s.check()


@pytest.mark.parametrize(("shape", "way"), [((64, 8192), "gpu_rows"), ((2, 1 << 18), "gpu_split_sum")])
def test_a_gpu_starts_another_kernel_only_for_terms_that_keep_a_multiprocessor_longer(shape, way):
    x, k = tir.placeholder(shape, name="x"), tir.reduce_axis(shape[1], "k")
    y = tir.compute(shape[:1], lambda i: tir.sum(x[i, k], axis=k), name="y")
    assert next(iter(tir.auto(y, GPU))) == way
    assert len(tir.auto_schedule(y, GPU).emitted().kernels) == (1 if way == "gpu_rows" else 2)


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_80"])
def test_a_scatter_to_one_number_is_scheduled(target):
    v = tir.placeholder((400,), "int32", name="v")
    assert tir.auto_schedule(tir.scatter((), (400,), lambda e: (), lambda e: v[e], name="y"), target).check()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("back", [False, True])
def test_maps_before_scans_of_cores_are_inlined(axis, back):
    a = tir.placeholder((5, 21, 37), name="a")
    after = tir.combiner(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (1, 0), name="affine", commutative=False)
    first = lambda i: tir.equal(i[axis], a.shape[axis] - 1 if back else 0)  # noqa: E731
    keep = tir.compute(a.shape, lambda *i: tir.where(first(i), 0, 2), name="keep")
    more = tir.compute(a.shape, lambda *i: tir.where(first(i), a[i], a[i] - 1), name="more")
    y = tir.scan((tir.compute(a.shape, lambda *i: tir.cast(keep[i], "float32"), name="f"), more), axis=axis, op=after,
                 reverse=back, name="y")[1]  # fmt: skip
    s = tir.auto_schedule(y, f"{WIDE} -units=2")
    assert len(s.emitted().kernels) == 1 and s.check()
    assert len(tir.auto_schedule(y, GPU).emitted().kernels) > 1  # threads read each element again
