"""Places that data give: which are proved, which a launch checks and in which part of their tensor, and the others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.runtime.arguments import check_gather

X = tir.placeholder((3, 5), name="X")
W = tir.placeholder((11,), name="W")
J = tir.placeholder((9,), "int32", name="J")
V = tir.placeholder((9, 11), name="V")
N = tir.dim("n", high=100)
D = tir.placeholder((N,), name="D")


def of(index, source=W):
    """Elements of ``source`` at the index of each place."""
    return tir.compute((9,), lambda i: source[index(i)], name="Y")


def value(f, dtype=None):
    return tir.compute((9,), f, name="B")


def over(n, f):
    k = tir.reduce_axis(n, name="k")
    return value(lambda i: f(i, k))


FIRST = over(11, lambda i, k: tir.argmax(V[i, k], axis=k))
PROVED = {
    "remainder": lambda i: J[i] % 11,
    "quotient": lambda i: J[i] % 110 // 10,
    "clamped": lambda i: tir.minimum(tir.maximum(J[i] + 3, 0), 10),
    "clip": lambda i: np.clip(J[i], 0, 10),
    "selected": lambda i: tir.where(J[i] < 0, 0, tir.where(J[i] > 10, 10, J[i])),
    "sums": lambda i: J[i] % 5 + J[(i + 1) % 9] % 7,
    "cast": lambda i: tir.cast(tir.cast(J[i], "int64") % 11, "uint8"),
    "bits": lambda i: J[i] & 7,
    "truth": lambda i: tir.cast(J[i] > 3, "int32") * 10,
    "argmax": lambda i: FIRST[i],
    "argmin": lambda i, b=over(11, lambda i, k: tir.argmin(V[i, k], axis=k)): b[i],
    "computed": lambda i, b=value(lambda i: J[i] % 4 + 7): b[i],
    "computed of computed": lambda i, b=value(lambda i: 10 - FIRST[i]): b[i],
    "largest": lambda i, b=over(9, lambda i, k: tir.max(J[k] % 11, axis=k)): b[i],
    "counted": lambda i, b=over(10, lambda i, k: tir.sum(tir.cast(V[i, k] > 0, "int32"), axis=k)): b[i],
    "constants": lambda i, c=tir.constant(np.array([1, 2, 10, 0, 4, 5, 6, 7, 8], "int32")): c[i],
}
NOT_PROVED = {
    "one more": lambda i: J[i] % 12,
    "may wrap": lambda i: (J[i] % 11) * 2**30 // 2**30,
    "nothing is largest": lambda i, b=over(11, lambda i, k: tir.argmax(V[i, k], axis=k, where=V[i, k] > 0)): b[i],
    "no terms": lambda i, b=over(9, lambda i, k: tir.max(J[k], axis=k)): b[i] % 12,
    "one too many": lambda i, b=over(11, lambda i, k: tir.sum(tir.cast(V[i, k] > 0, "int32"), axis=k)): b[i],
}


@pytest.mark.parametrize("name", PROVED)
def test_ranges_of_computed_indices_are_used(name):
    s = tir.Schedule(of(PROVED[name]))
    assert s.emitted().gathers == () and s.check(), s.check()


@pytest.mark.parametrize("name", NOT_PROVED)
def test_what_may_leave_the_range_is_refused(name):
    with pytest.raises(tir.DeclarationError) as caught:
        of(NOT_PROVED[name])
    assert caught.value.code == "declare.gather-index"


@pytest.mark.parametrize(
    "index",
    [
        lambda i: J[i] % N,
        lambda i: tir.minimum(tir.maximum(J[i], 0), N - 1),
        lambda i: tir.maximum(tir.minimum(J[i], N - 1), 0),
    ],
)
def test_ranges_end_at_dims(index):
    s = tir.Schedule(of(index, D))
    assert s.emitted().gathers == () and s.check()


def test_what_a_condition_says_of_data_is_used():
    inside = value(lambda i: tir.where((J[i] >= 0) & (J[i] < 8), W[J[i] + 3], -1.0))
    outside = value(lambda i: tir.where((J[i] < 0) | (J[i] >= 11), -1.0, W[J[i]]))
    w, j = np.arange(11, dtype="float32"), np.array([-3, 0, 7, 8, 10, 11, 2**31 - 1, -(2**31), 5], "int32")
    for y, most, more in ((inside, 8, 3), (outside, 11, 0)):
        s = tir.Schedule(y)
        assert s.emitted().gathers == () and s.check()
        want = [w[n + more] if 0 <= n < most else -1 for n in j.tolist()]
        assert np.array_equal(s.build()(w, j), want)
        assert tir.auto_schedule(y, "cuda -arch=sm_80").check("emulate")


@pytest.mark.parametrize("target", ["opencl", "c"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_each_column_has_its_own_range(target, dtype):
    index = tir.placeholder((4, 2), dtype, name="I")
    s = tir.auto_schedule(tir.compute((4,), lambda a: X[index[a, 0], index[a, 1]], name="Y"), target)
    x, i = np.arange(15, dtype="float32").reshape(3, 5), np.array([[0, 4], [2, 0], [1, 3], [2, 4]], dtype)
    f = s.build()
    assert np.array_equal(f(x, i), x[i[:, 0], i[:, 1]]) and s.check()
    for place, wrong, said in (((1, 0), 3, r"I\[:, 0\]: expected indices from 0 to 2"), ((3, 1), 5, r"I\[:, 1\]")):
        bad = i.copy()
        bad[place] = wrong
        with pytest.raises(tir.LaunchError, match=said + rf".*got {wrong} at \({place[0]}, {place[1]}\)") as caught:
            f(x, bad)
        assert caught.value.code == "launch.index-range"
        with pytest.raises(tir.LaunchError):
            f.bind(x, bad)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_launch_refuses_what_is_read_and_nothing_else(data):
    """Random slices of a table of indices: an element out of range is refused where it is read."""
    rows, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    places = [(data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3)), n) for n in (3, 5)]
    columns = max(step * (count - 1) + start for step, start, _ in places) + data.draw(st.integers(1, 3))
    index = tir.placeholder((rows, columns), "int32", name="I")
    y = tir.compute((rows, count), lambda a, j: X[tuple(index[a, s * j + o] for s, o, _ in places)], name="Y")
    gathers = tir.Schedule(y).emitted().gathers
    values = np.zeros((rows, columns), "int32")
    at = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    values[at] = data.draw(st.sampled_from([-1, 2, 3, 4, 5]))
    legal = all(0 <= values[a, s * j + o] < n for a in range(rows) for j in range(count) for s, o, n in places)
    problems = [p for g in gathers if (p := check_gather(g, values))]
    assert legal is not bool(problems)
    assert all(f"got {values[at]} at {at}" in p.message for p in problems)


def test_conditions_on_axes_narrow_the_part():
    index = tir.placeholder((4, 6), "int32", name="I")
    y = tir.compute((4, 6), lambda a, j: tir.where(j < 2, X[index[a, j], 0], 0.0), name="Y")
    (found,) = tir.Schedule(y).emitted().gathers
    assert found.part == ((), (0, 2, 1)) and found.shown == "I[:, 0:2]"


def test_terms_go_to_places_of_columns():
    at, v = tir.placeholder((6, 2), "int64", name="at"), tir.placeholder((6,), name="v")
    b = tir.scatter((3, 5), over=(6,), index=lambda t: (at[t, 0], at[t, 1]), value=lambda t: v[t], op="set")
    s = tir.Schedule(b)
    assert s.check()
    places = np.array([[0, 4], [2, 0], [1, 3], [2, 4], [0, 0], [1, 1]])
    values, want = np.arange(1, 7, dtype="float32"), np.zeros((3, 5), "float32")
    want[places[:, 0], places[:, 1]] = values
    f = s.build()
    assert np.array_equal(f(places, values), want)
    for wrong, code in (((3, 4), "launch.index-range"), ((0, 4), "launch.duplicate-cell")):
        bad = places.copy()
        bad[5] = wrong
        with pytest.raises(tir.LaunchError) as caught:
            f(bad, values)
        assert caught.value.code == code


@pytest.mark.parametrize("target", ["opencl", "c"])
def test_indices_of_64_bits_go_where_32_were_declared(target):
    index = tir.placeholder((4,), "int32", name="I")
    f = tir.Schedule(tir.compute((4,), lambda a: W[index[a]] * 2, name="Y"), target).build()
    w, i = np.arange(11, dtype="float32"), np.array([3, 0, 10, 7])
    assert np.array_equal(f(w, i), w[i] * 2) and np.array_equal(f(w, i[::-1]), w[i[::-1]] * 2)
    for wrong, said in ((2**32, r"expected indices of int32, got 4294967296 at \(2,\)"), (11, r"got 11 at \(2,\)")):
        bad = i.copy()
        bad[2] = wrong
        with pytest.raises(tir.LaunchError, match=said) as caught:
            f(w, bad)
        assert caught.value.code == "launch.index-range"
    launch = f.bind(w, i)
    i[0] = 9
    launch.refresh()
    launch()
    assert np.array_equal(launch.wait(), w[i] * 2)
    i[0] = 2**32
    with pytest.raises(tir.LaunchError, match="expected indices of int32"):
        launch.refresh()
    with pytest.raises(tir.LaunchError, match="expected dtype float32"):
        f(w.astype("int64"), i)


def test_other_integers_are_what_was_declared():
    x = tir.placeholder((4,), "int32", name="x")
    f = tir.Schedule(tir.compute((4,), lambda a: x[a] + 1, name="Y")).build()
    with pytest.raises(tir.LaunchError, match="expected dtype int32, got int64"):
        f(np.arange(4))
