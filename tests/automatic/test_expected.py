"""What a schedule says of its own time."""

import math

import pytest

import tensorir as tir

TARGET = "opencl -registers=32 -vector_bytes=64 -units=16"


def placeholder(*shape, name="x", dtype="float32"):
    return tir.placeholder(shape, dtype, name=name)


def product(m, n, k):
    return tir.nn.matmul(placeholder(m, k, name="a"), placeholder(k, n, name="b"), name="c")


@pytest.mark.parametrize(("made", "limit"), [
    (lambda: product(512, 512, 512), "multiply-adds"),
    (lambda: tir.compute((4096, 4096), lambda i, j: X[i, j] + 1.0, name="y"), "memory"),
    (lambda: tir.compute((512, 512), lambda i, j: tir.exp(tir.exp(tir.exp(X[i, j]))), name="y"), "arithmetic"),
    (lambda: tir.compute((8,), lambda i: X[0, i] + 1.0, name="y"), "launch"),
], ids=["product", "map", "functions", "few"])  # fmt: skip
def test_the_limit_that_binds(made, limit):
    e = tir.auto_schedule(made(), TARGET).expected
    assert (e.limit, e.notes, e.kernels) == (limit, (), 1) and 0 < e.seconds < 0.1
    assert str(e).splitlines() == [
        f"expected {e.seconds * 1e6:.3g} us in 1 kernel, bound by {limit} (modelled, not measured)"
    ]


X = placeholder(4096, 4096, name="X")


def test_a_schedule_without_steps_says_what_is_idle_and_which_step_would_help():
    s = tir.Schedule(product(256, 256, 256), TARGET)
    e = s.expected
    assert e.limit == "idle cores"
    assert e.notes == (
        "c: 1 block for 16 cores; s.share_out more of its axes, or s.rfactor a long sum",
        "c: computed cell by cell; s.vectorize one of its axes",
    )
    s.share_out("c.i")
    assert "block" not in " ".join(s.expected.notes) and s.expected.seconds < e.seconds / 8


def test_sums_that_wait_for_each_other():
    x, k = placeholder(64, 1 << 16), tir.reduce_axis(1 << 16, name="k")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.sum(x[i, k], axis=k), name="y"), TARGET)
    s.share_out("y.i")
    assert s.expected.limit == "dependent sums"


def test_loops_that_stayed_scalar_have_their_reason():
    x = placeholder(1 << 20, dtype="int64")
    (note,) = tir.auto_schedule(tir.compute((1 << 20,), lambda i: x[i] // 3, name="y"), TARGET).expected.notes
    assert note.startswith("y_kernel: loop y.") and "not in vectors: integers are divided one by one" in note


def test_many_launches_are_named():
    x = placeholder(4, 4)
    k = [tir.reduce_axis(4, name=f"k{i}") for i in range(4)]
    for n in range(4):
        x = tir.compute((4, 4), lambda i, j, x=x, n=n: tir.sum(x[i, k[n]] * x[k[n], j], axis=k[n]), name=f"p{n}")
    e = tir.auto_schedule(x, TARGET).expected
    assert e.limit == "launch" and e.kernels > 1 and "tir.fusions" in e.notes[-1]


def test_a_gpu_and_symbolic_extents_have_a_time_too():
    n = tir.dim("n", high=1 << 12)
    a = tir.placeholder((n, 64), name="a")
    for target in ("cuda -arch=sm_90a", "opencl -units=4"):
        e = tir.auto_schedule(tir.compute((n, 64), lambda i, j: a[i, j] * 2.0, name="y"), target).expected
        assert math.isfinite(e.seconds) and e.seconds > 0


def test_what_runs_once_for_all_is_not_in_the_time_of_a_call():
    work = [tir.ops.matmul(m=64, n=512, k=512, prepack=p) for p in (False, True)]
    every, packed = (w.schedule(template="cpu_tile_column", target=TARGET).expected for w in work)
    assert packed.kernels == 1 and packed.seconds <= every.seconds


def test_a_cell_that_data_choose():
    x, at = placeholder(8, 8), tir.placeholder((2,), "int32", name="at")
    y = tir.compute(
        (), lambda: x[tir.minimum(tir.maximum(at[0], 0), 7), tir.minimum(tir.maximum(at[1], 0), 7)], name="y"
    )
    for s in (tir.Schedule(y, "c"), tir.auto_schedule(y, "c -units=2"), tir.auto_schedule(y, "cuda")):
        assert s.expected.limit == "launch"


def test_a_gpu_multiplies_in_many_threads():
    e = tir.ops.matmul(m=2048, n=2048, k=2048).schedule(target="cuda -arch=sm_80").expected
    assert 0.2e-3 < e.seconds < 5e-3, "19.5 TFLOP/s at most"
