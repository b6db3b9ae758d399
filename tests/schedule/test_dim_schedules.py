"""Schedules of extents known at launch: each primitive on a dim is right for every value, or refuses."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.equivalence import compare_module
from tensorir.check.resize import dim_values, module_at
from tensorir.expr.reread import with_dims
from tensorir.interp.numbers import Field
from tensorir.ir.visit import substitute
from tensorir.lower.pipeline import lower


def product(high=60, columns=17):
    n = tir.dim("n", low=1, high=high)
    A, B = tir.placeholder((n, 24), name="A"), tir.placeholder((24, columns), name="B")
    k = tir.reduce_axis(24, name="k")
    return tir.compute((n, columns), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")


def column_sums():
    n, m = tir.dim("n", low=1, high=50), tir.dim("m", low=2, high=20)
    X, k = tir.placeholder((m, n), name="X"), tir.reduce_axis(n, name="k")
    return tir.compute((m,), lambda i: tir.sum(X[i, k], axis=k), name="S")


def softmax(rows, columns):
    X, k, q = tir.placeholder((rows, columns), name="X"), tir.reduce_axis(columns, "k"), tir.reduce_axis(columns, "q")
    m = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="m")
    d = tir.compute((rows,), lambda i: tir.sum(tir.exp(X[i, q] - m[i]), axis=q), name="d")
    return tir.compute((rows, columns), lambda i, j: tir.exp(X[i, j] - m[i]) / d[i], name="Y")


def good(s):
    verdict = s.check()
    assert verdict, str(verdict)
    assert len(verdict.shapes) >= 3
    return s


@pytest.mark.parametrize("tail", ["guard", "peel", "balanced", "shift"])
@pytest.mark.parametrize("high", [60, 64])
def test_split_with_every_tail(tail, high):
    n = tir.dim("n", low=1, high=high)
    X = tir.placeholder((n,), name="X")
    s = tir.Schedule(tir.compute((n,), lambda i: X[i] * 2, name="Y"))
    io, ii = s.split("Y.i", [None, 8], tail=tail)
    s.vectorize(ii)
    s.bind(io, "block.x")
    f = good(s).build()
    for extent in (1, 7, 8, 9, high - 1, high):
        x = np.arange(extent, dtype=np.float32)
        assert np.array_equal(f(x), 2 * x), extent


def test_the_grid_is_as_long_as_the_extent_asks_for():
    s = tir.Schedule(product())
    io, _ = s.split("C.i", [None, 8])
    s.bind(io, "block.x")
    (launch,) = s.emitted().kernels
    assert launch.grid == ("(n + 7) // 8", 1, 1)
    assert s.emitted().at({"n": 17}).kernels[0].grid == (3, 1, 1)


def test_whole_tiles_of_a_peeled_split_have_no_condition():
    s = tir.Schedule(product(columns=16))
    io, ii = s.split("C.i", [None, 4], tail="peel")
    s.reorder(io, "C.j", "C.k", ii)
    s.unroll(ii)
    s.bind(io, "block.x")
    text = good(s).source()
    assert "i_0 * 4 + 4 <= n" in text
    assert "< n" not in text  # each shorter tile has a body of its own as well
    assert "init_i_1 < 3" in text


@pytest.mark.parametrize("wide", [True, False], ids=["a halo", "as wide as its reader"])
def test_a_producer_with_a_halo_in_a_peeled_tile(wide):
    """Its cells beyond the last one of the tile are read too."""
    n = tir.dim("n", low=1, high=40)
    X, k = tir.placeholder((n + 2 if wide else n,), name="X"), tir.reduce_axis(3, name="k")
    P = tir.compute(X.shape, lambda i: X[i] * 2, name="P")
    Y = tir.compute((n,), lambda i: tir.sum(P[i + k] if wide else P.get(i + k - 1, fill=0), axis=k), name="Y")
    s = tir.Schedule(Y)
    s.compute_at("P", "Y", s.split("Y.i", [None, 4], tail="peel")[0])
    f = good(s).build()
    for extent in (1, 2, 3, 4, 5, 6, 7, 8, 39, 40):
        x = np.arange(extent + 2 * wide, dtype="float32")
        p = 2 * (x if wide else np.pad(x, 1))
        np.testing.assert_array_equal(f(x), p[:-2] + p[1:-1] + p[2:])


def test_loops_end_where_the_dim_does():
    text = tir.Schedule(column_sums()).source()
    assert "i < m;" in text
    assert "k < n;" in text
    assert "50" not in text.split("{", 1)[1]


def test_a_register_tile_with_staged_operands():
    s = tir.Schedule(product())
    io, ii = s.split("C.i", [None, 4], tail="peel")
    jo, ji = s.split("C.j", [None, 8])
    s.reorder(io, jo, "C.k", ii, ji)
    s.stage_out("C", jo)
    s.stage_in("A", io, scope="register")
    s.vectorize(ji)
    s.bind(io, "block.x")
    good(s)
    assert s.check("device")


def test_blocks_of_threads_with_shared_tiles():
    s = tir.Schedule(product(), target="cuda -arch=sm_80")
    io, ii = s.split("C.i", [None, 8])
    jo, ji = s.split("C.j", [None, 8])
    ko, _ = s.split("C.k", [None, 6])
    s.reorder(io, jo, ii, ji, ko, "C.k.1")
    for axis, kind in ((io, "block.y"), (jo, "block.x"), (ii, "thread.y"), (ji, "thread.x")):
        s.bind(axis, kind)
    s.stage_in("A", ko, scope="shared")
    s.stage_in("B", ko, scope="shared")
    good(s)
    verdict = s.check("emulate")
    assert verdict, str(verdict)


def test_an_operand_packed_at_the_root():
    s = tir.Schedule(product())
    s.split("C.i", [None, 4])
    s.stage_in("A", "root", scope="global", layout="i, k -> i/4, k, i%4")
    good(s)
    assert s.check("device")


@pytest.mark.parametrize("inner", [True, False])
def test_rfactor(inner):
    s = tir.Schedule(column_sums())
    ko, ki = s.split("S.k", [None, 8])
    s.rfactor("S", ki if inner else ko)
    good(s)
    assert s.check("device")


def test_rfactor_of_the_whole_axis():
    s = tir.Schedule(column_sums())
    s.rfactor("S", "S.k")
    good(s)
    assert s.check("device")


def test_a_gathered_row_staged_where_its_index_ends_at_a_dim():
    n, m = tir.dim("n", low=1, high=9), tir.dim("m", low=2, high=20)
    at, B = tir.placeholder((n,), "int32", name="at"), tir.placeholder((m, 5), name="B")
    s = tir.Schedule(tir.compute((n, 5), lambda i, j: B[at[i], j] * 2, name="G"))
    s.stage_in("B", "G.i", scope="register")
    good(s)
    assert s.check("device")


@pytest.mark.parametrize("order", [("D.i", "D.j")])
def test_fuse(order):
    n, m = tir.dim("n", low=1, high=30), tir.dim("m", low=2, high=20)
    X = tir.placeholder((m, n), name="X")
    s = tir.Schedule(tir.compute((m, n), lambda i, j: X[i, j] + 1, name="D"))
    outer, inner = s.split(s.fuse(*order), [None, 16])
    s.bind(outer, "block.x")
    s.vectorize(inner)
    good(s)
    assert s.check("device")


@pytest.mark.parametrize("shape", ["rows", "columns", "both"])
def test_softmax_in_one_kernel(shape):
    n, m = tir.dim("n", low=1, high=30), tir.dim("m", low=1, high=20)
    rows, columns = {"rows": (n, 12), "columns": (6, n), "both": (n, m)}[shape]
    s = tir.Schedule(softmax(rows, columns))
    s.compute_at("d", "Y", "i")
    s.compute_at("m", "Y", "i")
    s.bind("Y.i", "block.x")
    good(s)
    assert s.check("device")
    if shape != "columns":
        assert s.emitted().kernels[0].grid[0] == "n"


def test_softmax_with_intermediate_arrays():
    n = tir.dim("n", low=1, high=30)
    s = good(tir.Schedule(softmax(n, 12)))
    assert {p.shape for p in s.emitted().params if p.role == "workspace"} == {("n",)}
    assert s.check("device")


def test_conv2d_with_a_dim_for_its_batch():
    n = tir.dim("n", low=1, high=9)
    x, w = tir.placeholder((n, 3, 6, 6), name="x"), tir.placeholder((4, 3, 3, 3), name="w")
    s = tir.Schedule(tir.nn.conv2d(x, w, pad=1))
    s.compute_inline("x_pad")
    s.bind("y.n", "block.x")
    good(s)
    assert s.check("device")


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_along_a_dim(reverse):
    n, m = tir.dim("n", low=1, high=30), tir.dim("m", low=1, high=20)
    X = tir.placeholder((m, n), name="X")
    s = good(tir.Schedule(tir.scan(X, axis=1, op="sum", reverse=reverse)))
    assert s.check("device")


def test_scatter_over_a_dim(rng=np.random.default_rng(0)):
    n = tir.dim("n", low=1, high=30)
    at, v = tir.placeholder((n,), "int32", name="at"), tir.placeholder((n,), name="v")
    h = tir.scatter((n,), over=(n,), index=lambda t: (at[t],), value=lambda t: v[t], op="sum", fill=0, name="h")
    f = good(tir.Schedule(h)).build()
    p, x = rng.permutation(7).astype("int32"), np.arange(7, dtype=np.float32)
    want = np.zeros(7, np.float32)
    want[p] = x
    assert np.array_equal(f(p, x), want)
    with pytest.raises(tir.LaunchError, match="0 to 6"):
        f(p + 1, x)


def test_rows_whose_lengths_data_give():
    n = tir.dim("n", low=1, high=40)
    P, D = tir.placeholder((n + 1,), "int32", name="P"), tir.placeholder((64,), name="D")

    def row(i):
        k = tir.reduce_axis(P[i + 1] - P[i], most=8, name="k")
        return tir.sum(D[P[i] + k], axis=k)

    s = tir.Schedule(tir.compute((n,), row, name="R"))
    io, _ = s.split("R.i", [None, 4], tail="peel")
    s.bind(io, "block.x")
    good(s)
    assert s.check("device")
    p, d = np.array([0, 3, 3, 8, 10, 18], "int32"), np.arange(64, dtype=np.float32)
    want = [d[a:b].sum() for a, b in itertools.pairwise(p)]
    assert np.array_equal(s.build()(p, d), want)
    with pytest.raises(tir.LaunchError):
        s.build()(p[::-1].copy(), d)


def test_attention_by_rolling():
    n = tir.dim("n", low=1, high=40)
    Q, K, V = (tir.placeholder((n, 8), name=x) for x in "QKV")
    c, j, q, r = tir.reduce_axis(8, name="c"), *(tir.reduce_axis(n, name="j") for _ in range(3))
    S = tir.compute((n, n), lambda i, j: tir.sum(Q[i, c] * K[j, c], axis=c), name="S")
    m = tir.compute((n,), lambda i: tir.max(S[i, j], axis=j), name="m")
    el = tir.compute((n,), lambda i: tir.sum(tir.exp(S[i, q] - m[i]), axis=q), name="l")
    O = tir.compute((n, 8), lambda i, e: tir.sum(tir.exp(S[i, r] - m[i]) * V[r, e], axis=r), name="O")
    s = tir.Schedule(tir.compute((n, 8), lambda i, e: O[i, e] / el[i], name="Y"))
    ko, _ = s.split("O.j", [None, 16])
    s.rolling("m", into=("l", "O"), at=ko)
    good(s)
    assert s.check("device")


@pytest.mark.parametrize("target", ["opencl", "cuda -arch=sm_80"])
def test_a_sum_over_a_dim_across_threads(target):
    n = tir.dim("n", low=1, high=100)
    X, k = tir.placeholder((5, n), name="X"), tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((5,), lambda i: tir.sum(X[i, k], axis=k), name="S"), target=target)
    s.bind("S.i", "block.x")
    _, inner = s.split("S.k", [None, 32])
    s.reorder(inner, "S.k.0")
    s.reduce_across(inner, "thread.x")
    good(s)
    assert s.check("device" if target == "opencl" else "emulate")


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.split("C.i", [None, 8], tail="exact"),
        lambda s: s.reindex("C", "i, j | k -> a = (i, j), t = k"),
        lambda s: s.redeclare("stream_k", rest=1),
        lambda s: s.cut("C.i", -4),
    ],
    ids=["exact", "reindex", "redeclare", "cut"],
)
def test_steps_that_need_a_constant_refuse(step):
    s = tir.Schedule(product())
    with pytest.raises(tir.ScheduleError) as caught:
        step(s)
    assert caught.value.problems[0].code == "dim.constant"
    assert "an int in place of n" in caught.value.problems[0].hint
    assert not s.trace


def test_a_wrong_kernel_is_seen():
    """A condition that lets one iteration too few run is wrong where the extent needs it."""
    s = tir.Schedule(product())
    module, dims = lower(s.program, s.target), dim_values(s.began_with, {})
    outputs = with_dims(s.began_with, dims)
    (n,) = dims
    assert compare_module(module_at(module, dims), outputs, Field(), 0) is None
    (kernel,) = module.kernels
    early = replace(kernel, body=substitute(kernel.body, {n: n - 1}))
    problem = compare_module(module_at(replace(module, kernels=(early,)), dims), outputs, Field(), 0)
    assert problem is not None
    assert problem.code in ("memory.unwritten", "check.not-equal")


def test_a_dim_that_no_argument_tells():
    n = tir.dim("n", low=1, high=9)
    with pytest.raises(tir.LoweringError) as caught:
        tir.Schedule(tir.compute((n,), lambda i: i * 2.0, name="Y")).source()
    assert caught.value.problems[0].code == "dim.untold"


def test_traces_replay_for_another_language():
    C = product()
    s = tir.Schedule(C)
    io, _ = s.split("C.i", [None, 8])
    s.bind(io, "block.x")
    verdict = tir.replay(C, s.trace.to_json(), target="cuda -arch=sm_80").check("emulate")
    assert verdict, str(verdict)
    assert tir.replay(C, s.trace.to_json(), target="c").source()


@pytest.mark.parametrize("target", ["c", "opencl"])
def test_loops_in_a_block_end_where_the_dim_does(target):
    n = tir.dim("n", low=1, high=1 << 20)
    x = tir.placeholder((n,), name="x")
    s = tir.auto_schedule(tir.compute((n,), lambda i: x[i] * 2 + 1, name="y"), f"{target} -units=2")
    loops = [line for line in s.source().splitlines() if "for (" in line]
    assert "i_0_1 < i_0_1_end;" in loops[0]
    f = s.build(f"{target}:0" if target == "c" else "opencl")
    for count in (1, 7, 16, 33, 65535, 65537, 1 << 20):
        a = np.arange(count, dtype="float32")
        np.testing.assert_array_equal(f(a), a * 2 + 1)


def test_threads_that_share_a_copy_go_through_all_of_its_pieces():
    n = tir.dim("n", low=1, high=2048)
    x = tir.placeholder((n,), name="x")
    s = tir.Schedule(tir.compute((n,), lambda i: x[i] * 2 + 1, name="y"), "opencl")
    block, thread, each = s.split("y.i", [None, 8, 32])
    s.bind(block, "block.x").bind(thread, "thread.x")
    s.stage_in("x", at=each, scope="shared")
    loops = [line for line in s.source().splitlines() if "for (" in line]
    assert loops and not any("_end" in line for line in loops)
    good(s)
