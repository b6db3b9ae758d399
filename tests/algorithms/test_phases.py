"""Phases: sums over an image with zeros between its pixels, without the terms of these zeros."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.algorithms.phases import spread_of
from tensorir.errors import ScheduleError
from tensorir.expr.program import computes_of
from tensorir.interp.reference import evaluate


def transposed(n, c, p, q, k, r, **how):
    x, w = tir.placeholder((n, c, p, q), name="x"), tir.placeholder((c, k, r, r), name="w")
    return tir.nn.conv_transpose2d(x, w, name="y", **how)


def gradient(layout, stride, h=9):
    p = (h + 2 - 3) // stride + 1
    dy, w = ((2, 5, p, p), (5, 3, 3, 3)) if layout == "NCHW" else ((2, p, p, 5), (5, 3, 3, 3))
    dy, w = tir.placeholder(dy, name="dy"), tir.placeholder(w, name="w")
    return tir.nn.conv2d_backward_data(dy, w, (h, h), stride=stride, pad=1, layout=layout)


def filtered(n, taps, by, start=0, turned=False):
    """A signal with ``by`` - 1 zeros after each sample, through a filter."""
    x, h = tir.placeholder((n,), name="x"), tir.placeholder((taps,), name="h")
    k = tir.reduce_axis(taps, name="k")
    place = (lambda i: i + k - start) if turned else (lambda i: i - k + start)
    term = lambda i: tir.where(place(i) % by == 0, x.get(place(i) // by, fill=0), 0) * h[k]  # noqa: E731
    return tir.compute((n * by,), lambda i: tir.sum(term(i), axis=k), name="y")


def in_numpy(n, taps, by, start, turned, x, h):
    spread = np.zeros(n * by)
    spread[::by] = x
    places = [[i + k - start if turned else i - k + start for k in range(taps)] for i in range(n * by)]
    return np.array([sum(spread[p] * h[k] for k, p in enumerate(row) if 0 <= p < n * by) for row in places])


FOUR = ("0_0", "0_1", "1_0", "1_1")
CASES = {
    "as many terms": (transposed(1, 4, 5, 5, 6, 4, stride=2, pad=1), {"y_x", "y_phase", "y"}),
    "nothing beyond the ends": (transposed(1, 3, 4, 4, 2, 2, stride=2), {"y_phase", "y"}),
    "3 x 3": (transposed(2, 4, 5, 4, 3, 3, stride=2, pad=1), {*(f"y_phase_{n}" for n in FOUR), "y"}),
    "phases without terms": (transposed(1, 3, 4, 4, 2, 1, stride=2), {"y_phase_0_0", "y"}),
    "dilated": (transposed(1, 3, 4, 4, 2, 3, stride=3, dilation=2), None),
    "dilated by the stride": (transposed(1, 3, 4, 4, 2, 3, stride=2, dilation=2), None),
    "groups": (transposed(1, 4, 4, 4, 3, 3, stride=2, groups=2), None),
    "gradient": (gradient("NCHW", 2), None),
    "gradient NHWC": (gradient("NHWC", 2, 8), None),
}  # fmt: skip


@pytest.mark.parametrize("target", ["c", "cuda -arch=sm_80"])
@pytest.mark.parametrize("name", CASES)
def test_a_schedule_in_phases_is_right(name, target):
    y, stages = CASES[name]
    s = tir.Schedule(y, target).redeclare("phases")
    assert stages in (None, set(s.index.stages)) and s.check()
    made = [op for op in computes_of(s.outputs) if "_phase" in op.name]
    assert made and not [op.name for op in made if spread_of(op)]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 7), st.integers(1, 7), st.integers(2, 4), st.integers(-3, 3), st.booleans(), st.integers(0, 1 << 30)
)
def test_an_interpolating_filter_in_phases_is_right(n, taps, by, start, turned, seed):
    y = filtered(n, taps, by, start, turned)
    s = tir.Schedule(y, "c").redeclare("phases")
    rng = np.random.default_rng(seed)
    x, h = (rng.integers(-9, 10, size).astype("float32") for size in (n, taps))
    (got,) = evaluate(s.outputs, (x, h))
    np.testing.assert_array_equal(got, in_numpy(n, taps, by, start, turned, x, h))


def spread(n, size, taps, term):
    """A sum of ``term(x, place)`` at the even places ``i - k + taps - 1``."""
    x, w, k = tir.placeholder((n,), name="x"), tir.placeholder((taps,), name="w"), tir.reduce_axis(taps, name="k")
    place = lambda i: i - k + taps - 1  # noqa: E731
    value = lambda i: tir.where(place(i) % 2 == 0, term(x, place(i) // 2), 0) * w[k]  # noqa: E731
    return tir.compute((size,), lambda i: tir.sum(value(i), axis=k), name="y")


@pytest.mark.parametrize("y", [
    spread(6, 10, 3, lambda x, i: x.get(i - 1, fill=1) * x.get(i - 2, fill=3)),
    spread(6, 9, 3, lambda x, i: x[i]),
    spread(6, 9, 4, lambda x, i: x.get(i - tir.cast(x[0], "int32"), fill=0)),
    spread(3, 1, 3, lambda x, i: x[i]),
], ids=["borders differ", "phases of several sizes", "data say where", "one result"])  # fmt: skip
def test_phases_read_what_the_sum_reads(y):
    s = tir.Schedule(y, "c").redeclare("phases")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 9, t.shape).astype("float32") for t in y.op.inputs)
    np.testing.assert_array_equal(evaluate(s.outputs, (x, w)), evaluate((y,), (x, w)))


def test_fewer_terms_are_left():
    spread = spread_of(transposed(1, 4, 6, 6, 5, 3, stride=2, pad=1).op)
    assert (spread.terms, round(spread.share * spread.terms), spread.stages, spread.even) == (36, 9, 4, False)
    assert spread_of(filtered(8, 8, 4).op).even and not spread_of(filtered(8, 7, 4).op).even


def test_what_has_no_phases():
    x, w, k = tir.placeholder((10,), name="x"), tir.placeholder((4,), name="w"), tir.reduce_axis(4, name="k")
    read = lambda i, other: tir.where((i - k) % 2 == 0, x.get((i - k) // 2, fill=0), other)  # noqa: E731
    added = tir.compute((20,), lambda i: tir.sum(read(i, 0) + w[k], axis=k), name="added")
    other = tir.compute((20,), lambda i: tir.sum(read(i, 1) * w[k], axis=k), name="other")
    largest = tir.compute((20,), lambda i: tir.max(read(i, 0) * w[k], axis=k), name="largest")
    along = tir.compute((20,), lambda i: tir.sum(tir.where(k % 2 == 0, x[k], 0) * w[k], axis=k), name="along")
    never = tir.compute((20,), lambda i: tir.sum(tir.where((i - k) % 2 == 2, x[k], 0) * w[k], axis=k), name="never")
    odd = tir.compute((20,), lambda i: tir.sum(tir.where((2 * i - 2 * k) % 4 == 1, x[k], 0) * w[k], axis=k), name="odd")
    many = filtered(4, 3, 17)
    for y in (added, other, largest, along, never, odd, many):
        assert spread_of(y.op) is None
        with pytest.raises(ScheduleError) as e:
            tir.Schedule(y).redeclare("phases")
        assert e.value.code == "phases.stage"
    two = tir.compute((32,), lambda i: filtered(8, 3, 4)[i] + filtered(16, 3, 2)[i], name="two")
    with pytest.raises(ScheduleError, match="of='y'"):
        tir.Schedule(two).redeclare("phases")


@pytest.mark.parametrize(("target", "device"), [("c -units=2", "c:0"), ("opencl -units=2", "opencl:pocl")])
@pytest.mark.parametrize("how", [dict(r=4, stride=2, pad=1), dict(r=3, stride=2, pad=1)])
def test_transposed_convolutions_are_in_phases_by_default(how, target, device):
    y = transposed(1, 64, 14, 14, 48, **how)
    s = tir.auto_schedule(y, target)
    assert "s.redeclare('phases', of='y')" in str(s.trace)
    assert tir.replay(y, s.trace, s.target.text).source() == s.source()
    rng = np.random.default_rng(0)
    x, w = rng.integers(-3, 4, (1, 64, 14, 14)), rng.integers(-3, 4, (64, 48, how["r"], how["r"]))
    spread = np.zeros((1, 64, 27, 27), int)
    spread[:, :, ::2, ::2] = x
    r = how["r"]
    spread = np.pad(spread, [(0, 0), (0, 0), (r - 2, r - 2), (r - 2, r - 2)])
    windows = np.lib.stride_tricks.sliding_window_view(spread, (r, r), (2, 3))
    want = np.einsum("nchwrs,ckrs->nkhw", windows, w[:, :, ::-1, ::-1])
    np.testing.assert_array_equal(s.build(device)(x.astype("float32"), w.astype("float32")), want)


def test_small_ones_and_halves_on_gpus_have_none_by_default():
    x, w = tir.placeholder((1, 64, 28, 28), "float16", name="x"), tir.placeholder((64, 32, 4, 4), "float16", name="w")
    halves = tir.nn.conv_transpose2d(x, w, stride=2, pad=1)
    for y, target in ((transposed(1, 2, 4, 4, 2, 3, stride=2), "c"), (halves, "cuda -arch=sm_80")):
        assert "phases" not in str(tir.auto_schedule(y, target).trace)


def test_phases_use_all_cores():
    s = tir.auto_schedule(transposed(1, 64, 28, 28, 128, 3, stride=2, pad=1), "c -vector_bytes=64 -units=16")
    blocks = {k.stages[0].stage.name: k.blocks for k in s.expected._model.kernels}
    assert all(n >= 8 for name, n in blocks.items() if name.startswith("y_phase")) and len(blocks) >= 6


def test_zeros_within_one_expression_stay_by_default():
    big = filtered(1 << 15, 64, 4)
    assert spread_of(big.op).share == 0.25 and not spread_of(big.op).apart
    assert "phases" not in str(tir.auto_schedule(big, "c -units=2").trace)


def test_a_copy_is_not_much_larger_than_its_array():
    x, w, k = tir.placeholder((64, 4), name="x"), tir.placeholder((4,), name="w"), tir.reduce_axis(4, name="k")
    far = lambda c, i: tir.where((i - k) % 2 == 0, x.get(c, (i - k) * 10000, fill=0), 0) * w[k]  # noqa: E731
    s = tir.Schedule(tir.compute((64, 8), lambda c, i: tir.sum(far(c, i), axis=k), name="y"), "c").redeclare("phases")
    assert "y_x" not in s.index.stages and s.check()
