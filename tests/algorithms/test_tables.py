"""Tables: what depends on few axes of a stage alone is computed once for each of their values."""

import numpy as np
import pytest
from covering import spread_over

import tensorir as tir
from tensorir.algorithms.tables import entries_of
from tensorir.errors import ScheduleError


def cubic(t):
    t = tir.abs(t)
    near, far = ((1.25 * t) - 2.25) * t * t + 1.0, ((t - 5.0) * t + 8.0) * t * -0.75 + 3.0
    return tir.where(t <= 1.0, near, tir.where(t < 2.0, far, 0.0))


def resize(h, w, H, W, c=3):
    """Bicubic resize of ``c`` images, as PyTorch defines it."""
    x = tir.placeholder((c, h, w), name="x")
    u, v = tir.reduce_axis(4, name="u"), tir.reduce_axis(4, name="v")

    def side(i, tap, n, N):
        at = (tir.cast(i, "float32") + 0.5) * (n / N) - 0.5
        first = tir.floor(at)
        place = tir.minimum(tir.maximum(tir.cast(first, "int32") - 1 + tap, 0), n - 1)
        return place, cubic(at - first + 1.0 - tir.cast(tap, "float32"))

    def cell(ch, i, j):
        (row, a), (column, b) = side(i, u, h, H), side(j, v, w, W)
        return tir.sum(x[ch, row, column] * a * b, axis=[u, v])

    return tir.compute((c, H, W), cell, name="y")


def resized(x, H, W):
    def side(n, N):
        at = (np.arange(N, dtype="float32") + np.float32(0.5)) * np.float32(n / N) - np.float32(0.5)
        first, m = np.floor(at), np.zeros((N, n), "float32")
        for tap in range(4):
            t = np.abs(at - first + 1 - tap)
            near, far = (1.25 * t - 2.25) * t * t + 1, ((t - 5) * t + 8) * t * -0.75 + 3
            weight = np.where(t <= 1, near, np.where(t < 2, far, 0))
            np.add.at(m, (np.arange(N), np.clip(first.astype(int) - 1 + tap, 0, n - 1)), weight)
        return m

    return side(x.shape[1], H) @ x @ side(x.shape[2], W).T


def damped(rows, columns):
    x = tir.placeholder((rows, columns), name="x")
    return tir.compute((rows, columns), lambda i, j: x[i, j] * tir.exp(j * -0.125), name="y")


@pytest.mark.parametrize("target", ["c", "opencl", "cuda -arch=sm_80", "cuda -arch=sm_90a"])
@pytest.mark.parametrize("made", [lambda: resize(7, 9, 14, 19), lambda: resize(5, 5, 1, 8), lambda: damped(13, 31)])
def test_a_schedule_with_tables_is_right(made, target):
    s = tir.Schedule(made(), target).redeclare("tables")
    assert len(s.index.stages) > 1 and s.check()


def test_axes_and_reads_of_entries():
    found = [
        (tuple(v.name for v in e.axes), e.value.dtype, e.reads) for e in entries_of(resize(8, 9, 16, 18).op).values()
    ]
    rows, columns = 3 * 18 * 4, 3 * 16 * 4
    assert sorted(found) == sorted(
        [(("u", "i"), "int32", rows), (("u", "i"), "float32", rows), (("v", "j"), "int32", columns),
         (("v", "j"), "float32", columns)]
    )  # fmt: skip


def test_what_has_no_tables():
    x = tir.placeholder((16, 16), name="x")
    cheap = tir.compute((16, 16), lambda i, j: x[i, j] * (j * 2 + 1), name="cheap")
    both = tir.compute((16, 16), lambda i, j: x[i, j] * tir.exp((i + j) * -0.1), name="both")
    few = tir.compute((4, 16), lambda i, j: x[i, j] * tir.exp(j * -0.1), name="few")
    loaded = tir.compute((16, 16), lambda i, j: x[i, j] * tir.exp(x[0, j]), name="loaded")
    half = tir.compute((16, 16), lambda i, j: x[i, j] * tir.exp(tir.cast(j, "float16")), name="half")
    for y in (cheap, both, few, loaded):
        assert not entries_of(y.op), y.name
        with pytest.raises(ScheduleError) as e:
            tir.Schedule(y).redeclare("tables")
        assert e.value.code == "tables.stage"
    assert all(e.value.dtype != "float16" for e in entries_of(half.op).values())


def test_of_names_one_of_several_stages():
    x = tir.placeholder((16, 16), name="x")
    y = tir.compute((16, 16), lambda i, j: x[i, j] * tir.exp(j * -0.1), name="y")
    z = tir.compute((16, 16), lambda i, j: y[i, j] * tir.exp(i * -0.1), name="z")
    with pytest.raises(ScheduleError) as e:
        tir.Schedule(z).redeclare("tables")
    assert e.value.code == "tables.stage"
    s = tir.Schedule(z).redeclare("tables", of="y").redeclare("tables", of="z")
    assert set(s.index.stages) == {"y_table0", "y", "z_table0", "z"} and s.check()


@pytest.mark.parametrize(("target", "device"), [("c", "c:0"), ("opencl", "opencl:pocl")])
def test_large_resizes_have_them_by_default(target, device):
    y = resize(64, 80, 512, 640)
    s = tir.auto_schedule(y, target)
    assert "s.redeclare('tables', of='y')" in str(s.trace)
    again = tir.replay(y, s.trace, s.target.text)
    assert again.source() == s.source()
    x = np.random.default_rng(0).integers(-9, 9, (3, 64, 80)).astype("float32")
    np.testing.assert_allclose(s.build(device)(x), resized(x, 512, 640), rtol=1e-4, atol=1e-4)


def test_small_ones_and_those_of_gpus_have_none_by_default():
    for y, target in ((resize(4, 4, 6, 6), "c"), (resize(64, 80, 512, 640), "cuda -arch=sm_80")):
        assert "tables" not in str(tir.auto_schedule(y, target).trace)


def test_configurations_of_a_template_have_them_too():
    y = resize(32, 40, 256, 320)
    name, template = next(iter(tir.auto(y, "c").items()))
    for config in spread_over(template.space_for(tir.Schedule(y, "c").target), 2):
        s = tir.Schedule(y, "c")
        template.function(s, config)
        assert "tables" in str(s.trace) and s.check(), name


def test_stages_of_one_name_stay_without_tables():
    x, u = tir.placeholder((300, 300), name="x"), tir.reduce_axis(4, name="u")
    weight = lambda j: tir.exp(tir.cast(j % 7 + u, "float32") * 0.25) + tir.exp(tir.cast(j % 5 - u, "float32") * 0.5)  # noqa: E731
    parts = [
        tir.compute((296, 296), lambda i, j, o=o: tir.sum(x[i + u, j + o] * weight(j), axis=u), name="w")
        for o in (0, 1)
    ]
    s = tir.auto_schedule(tir.compute((296, 296), lambda i, j: parts[0][i, j] - parts[1][i, j], name="y"), "c -units=2")
    assert "tables" not in str(s.trace)
