"""What declarations mean on the device where C and NumPy could part ways, and what must never go unchecked."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments


def run(t, *arrays):
    return tir.Schedule(t).build()(*arrays)


INT8 = np.arange(-128, 128).astype("int8")


def test_comparisons_of_data_see_the_type_wrap_around():
    x = tir.placeholder((256,), "int8", name="X")
    got = run(tir.compute((256,), lambda i: tir.where(x[i] - 1 <= 126, 1, 0)), INT8)
    assert np.array_equal(got, (INT8 - np.int8(1) <= 126).astype("int32"))
    u = tir.placeholder((4,), "uint32", name="U")
    values = np.array([0, 5, 7, 9], "uint32")
    assert np.array_equal(run(tir.compute((4,), lambda i: tir.where(u[i] - 1 < u[i], 1, 0)), values), [0, 1, 1, 1])


def test_narrow_integers_wrap():
    x = tir.placeholder((256,), "int8", name="X")
    assert np.array_equal(run(tir.compute((256,), lambda i: tir.cast(-x[i], "int32")), INT8), (-INT8).astype("int32"))
    got = run(tir.compute((256,), lambda i: tir.cast(tir.abs(x[i]), "int32")), INT8)
    assert np.array_equal(got, np.abs(INT8).astype("int32"))


def test_casts_of_axes_are_kept():
    got = run(tir.compute((300,), lambda i: tir.where(tir.cast(i, "int8") < 0, 1, 0)))
    assert np.array_equal(got, (np.arange(300).astype("int8") < 0).astype("int32"))


def test_gather_indices_are_checked_whatever_their_name_and_width():
    b, at = tir.placeholder((4, 3), name="B"), tir.placeholder((5,), "int32", name="at")
    bad = np.array([0, 30000, 1, 2, 0], "int32")
    wide = tir.compute((5, 3), lambda i, j: b[tir.cast(at[i], "int64"), j])
    with pytest.raises(tir.LaunchError) as caught:
        run(wide, np.ones((4, 3), "float32"), bad)
    assert caught.value.code == "launch.index-range"
    v = tir.placeholder((4,), name="V")
    first, second = (tir.placeholder((5,), "int32", name="ix") for _ in range(2))
    both = tir.compute((5,), lambda i: v[first[i]] + v[second[i]])
    with pytest.raises(tir.LaunchError):
        run(both, np.ones(4, "float32"), np.zeros(5, "int32"), bad)


def test_an_index_computed_from_data_is_clamped_or_refused():
    b, at = tir.placeholder((4, 3), name="B"), tir.placeholder((5,), "int32", name="at")
    with pytest.raises(tir.DeclarationError, match="clamp") as caught:
        tir.compute((5, 3), lambda i, j: b[at[i] + 1, j])
    assert caught.value.code == "declare.gather-index"
    safe = tir.compute((5, 3), lambda i, j: b[tir.minimum(tir.maximum(at[i] + 1, 0), 3), j])
    data, index = np.arange(12, dtype="float32").reshape(4, 3), np.array([0, 3, 1, -9, 30000], "int32")
    assert np.array_equal(run(safe, data, index), data[np.clip(index + 1, 0, 3)])


def test_the_field_has_negative_numbers():
    x = tir.placeholder((1000,), name="X")
    relu = tir.compute((1000,), lambda i: tir.maximum(x[i], 0))
    arrays = random_arguments((relu,), 0, Field())
    assert not np.array_equal(evaluate((relu,), arrays, Field())[0], arrays[0])


def test_a_reduction_by_each_thread_needs_no_barrier():
    a, b = tir.placeholder((16, 16), name="A"), tir.placeholder((16, 16), name="B")
    k = tir.reduce_axis(16, name="k")
    s = tir.Schedule(tir.compute((16, 16), lambda i, j: tir.sum(a[i, k] * b[k, j], axis=k), name="C"))
    s.bind("C.i", "thread.y")
    assert "barrier" not in s.source()
    assert s.check()


def test_edited_text_keeps_its_launch():
    a = tir.placeholder((64,), name="A")
    s = tir.Schedule(tir.compute((64,), lambda i: a[i] * 2, name="C"))
    edited = s.bind("C.i", "block.x").with_source(s.source())
    for change in (edited.undo, lambda: edited.split("C.i", [None, 4])):
        with pytest.raises(tir.ScheduleError) as caught:
            change()
        assert caught.value.code == "with-source.frozen"
