"""Maps over the same cells as one stage, so that what they read stays within one kernel."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.errors import ScheduleError


def largest(n, length, count, places=True):
    """The ``count`` largest of each row, by rounds of argmax: values, and their places."""
    x = y = tir.placeholder((n, length), name="x")
    values, at = [], []
    for t in range(count):
        r = tir.reduce_axis(length, name="r")
        at.append(tir.compute((n,), lambda i, y=y, r=r: tir.argmax(y[i, r], axis=r), name=f"at{t}"))
        values.append(tir.compute((n,), lambda i, p=at[t]: x[i, p[i]], name=f"top{t}"))
        y = tir.compute((n, length), lambda i, j, y=y, p=at[t]: tir.where(p[i] == j, -99.0, y[i, j]), name=f"y{t}")
    return (*values, *at) if places else tuple(values)


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize(
    "target", ["c -units=2", "opencl -registers=32 -vector_bytes=64 -units=2", "cuda -arch=sm_90a"]
)
def test_the_largest_of_rows_are_one_kernel(target, places):
    s = tir.auto_schedule(largest(96, 20, 3, places), target)
    assert "s.redeclare('horizontal', of=['top0', 'top1', 'top2'])" in str(s.trace)
    assert len(s.emitted().kernels) == 1
    assert s.check()


@pytest.mark.parametrize("device", ["c:0", "opencl:pocl"])
def test_they_have_the_values_of_numpy(device):
    outputs = largest(300, 40, 4)
    x = np.stack([np.random.default_rng(n).permutation(40) for n in range(300)]).astype("float32")
    got = tir.auto_schedule(outputs, device.partition(":")[0]).build(device)(x)
    order = np.argsort(-x, 1)[:, :4]
    np.testing.assert_array_equal(np.stack(got[4:], 1), order)
    np.testing.assert_array_equal(np.stack(got[:4], 1), np.take_along_axis(x, order, 1))


def test_names_types_and_axes_stay():
    x = tir.placeholder((6, 5), "int8", name="x")
    m = tir.compute((6, 5), lambda i, j: x[i, j] + 1, name="m")
    a = tir.compute((6, 5), lambda i, j: tir.cast(m[i, j], "float32") * 0.5, name="a")
    b = tir.compute((6, 5), lambda p, q: (m[p, 4 - q], x[p, q]), name="b")
    s = tir.Schedule((a, *b), "c").redeclare("horizontal", of=["a", "b"])
    assert [(t.name, t.dtype) for t in s.outputs] == [("a", "float32"), *((t.name, "int8") for t in b)]
    assert len({t.op for t in s.outputs}) == 1 and s.check()


def test_others_keep_their_stages():
    x = tir.placeholder((6, 5), name="x")
    a, b = (tir.compute((6, 5), lambda i, j, k=k: x[i, j] * k, name=n) for n, k in (("a", 2.0), ("b", 3.0)))
    assert "horizontal" not in str(tir.auto_schedule((a, b), "c").trace)  # nothing is kept from a kernel
    r = tir.reduce_axis(5, name="r")
    c = tir.compute((6,), lambda i: tir.sum(a[i, r], axis=r), name="c")
    for outputs, names in [((a, b, c), ["a", "b"]), ((b, c), ["b", "c"]), ((a, b), ["a"]), ((a, b), ["a", "z"])]:
        with pytest.raises(ScheduleError) as e:
            tir.Schedule(outputs, "c").redeclare("horizontal", of=names)
        assert e.value.code == "horizontal.stages"


@pytest.mark.parametrize("target", ["c -units=2", "opencl -units=2"])
def test_maps_with_tables_stay_apart(target):
    n = 2048
    x, r = tir.placeholder((n, n), name="x"), tir.reduce_axis(n, name="r")
    top = tir.compute((n,), lambda i: tir.max(x[i, r], axis=r), name="top")
    wave = lambda k: tir.floor(tir.sin(tir.cast(k, "float32") * 0.3) * 4.0) * 2.0 + tir.exp(tir.cast(k % 7, "float32"))  # noqa: E731
    a = tir.compute((n, n), lambda i, j: (x[i, j] - top[i]) * wave(i) * wave(j), name="a")
    b = tir.compute((n, n), lambda i, j: (x[i, j] + top[i]) * wave(i) * wave(j), name="b")
    c = tir.compute((n,), lambda i: top[i] * 2.0, name="c")
    trace = str(tir.auto_schedule((a, b, c), target).trace)
    assert "s.redeclare('tables', of='a')" in trace and "s.redeclare('tables', of='b')" in trace
    assert "horizontal" not in trace
