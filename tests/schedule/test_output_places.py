"""compute_at of outputs: legal where the iterations of a loop share their elements out."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.errors import ScheduleError

CUDA = "cuda -arch=sm_80"


def centred(rows, columns):
    """The largest of each row and the row without it, both outputs."""
    x, k = tir.placeholder((rows, columns), name="x"), tir.reduce_axis(columns, name="k")
    m = tir.compute((rows,), lambda i: tir.max(x[i, k], axis=k), name="m")
    return m, tir.compute((rows, columns), lambda i, j: x[i, j] - m[i], name="y")


@pytest.mark.parametrize("rows", [61, 64, 1])
@pytest.mark.parametrize(("target", "within"), [("c", None), (CUDA, "thread.x")])
def test_an_output_is_written_where_its_rows_are_read(rows, target, within):
    s = tir.Schedule(centred(rows, 10), target)
    _, row = s.share_out("y.i", each=min(16, rows), within=within)
    s.compute_at("m", row)
    assert len(s.emitted().kernels) == 1 and s.check()


def test_what_runs_has_all_outputs():
    x = np.random.default_rng(0).integers(-9, 9, (61, 10)).astype("float32")
    s = tir.Schedule(centred(61, 10), "c")
    s.share_out("y.i", each=16)
    s.compute_at("m", "y.i.1")
    m, y = s.build("c:0")(x)
    assert np.array_equal(m, x.max(1)) and np.array_equal(y, x - x.max(1, keepdims=True))


def test_rows_of_two_fused_axes():
    x, k = tir.placeholder((5, 7, 9), name="x"), tir.reduce_axis(9, name="k")
    m = tir.compute((5, 7), lambda a, b: tir.max(x[a, b, k], axis=k), name="m")
    y = tir.compute((5, 7, 9), lambda a, b, j: x[a, b, j] * m[a, b], name="y")
    s = tir.Schedule((m, y), "c")
    _, row = s.share_out("y.a", "y.b", each=4)
    assert s.compute_at("m", row).check()


def test_an_output_with_two_results():
    x, k = tir.placeholder((13, 9), name="x"), tir.reduce_axis(9, name="k")
    low, high = tir.compute((13,), lambda i: (tir.min(x[i, k], axis=k), tir.max(x[i, k], axis=k)), name="m")
    y = tir.compute((13, 9), lambda i, j: (x[i, j] - low[i]) / (high[i] - low[i]), name="y")
    s = tir.Schedule((low, high, y), "c")
    assert s.compute_at("m", "y.i").check()


@pytest.mark.parametrize(
    ("read", "rows", "loop"),
    [
        (lambda p, i: p[i] + p[i + 1], 61, "y.i"),
        (lambda p, i: p[i], 60, "y.i"),
        (lambda p, i: p[61 - i], 62, "y.i"),
    ],
    ids=["overlap", "not all", "backwards"],
)
def test_other_loops_are_refused(read, rows, loop):
    x = tir.placeholder((62,), name="x")
    p = tir.compute((62,), lambda i: x[i] * 2, name="p")
    s = tir.Schedule((p, tir.compute((rows,), lambda i: read(p, i), name="y")), "c")
    with pytest.raises(ScheduleError) as e:
        s.compute_at("p", loop)
    assert e.value.code == "compute-at.output"
    assert s.check(), "nothing has changed"


def test_a_loop_in_another_that_reads_it_again_is_refused():
    s = tir.Schedule(centred(8, 10), "c")
    s.reorder("y.j", "y.i")
    with pytest.raises(ScheduleError, match=r"y\.i do not provably share them out"):
        s.compute_at("m", "y.i")
