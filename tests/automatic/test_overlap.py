"""Chains of stencils in one kernel on CPUs."""

import numpy as np
import pytest

import tensorir as tir

TARGETS = ("c -registers=16 -vector_bytes=32 -units=2", "opencl -registers=32 -vector_bytes=64 -units=2")


def corners(h, w):
    """Harris' corners of an image."""
    a = tir.placeholder((3, h + 4, w + 4), name="a")
    g = tir.compute((h + 4, w + 4), lambda i, j: 0.25 * a[0, i, j] + 0.5 * a[1, i, j] + 0.25 * a[2, i, j], name="g")

    def slope(i, j, di, dj):
        at = lambda s, t: g[i + 1 + s * di + t * dj, j + 1 + s * dj + t * di]  # noqa: E731
        return sum((2 - abs(t)) * (at(1, t) - at(-1, t)) for t in (-1, 0, 1))

    dy = tir.compute((h + 2, w + 2), lambda i, j: slope(i, j, 1, 0), name="dy")
    dx = tir.compute((h + 2, w + 2), lambda i, j: slope(i, j, 0, 1), name="dx")

    def summed(p, q, name):
        square = tir.compute((h + 2, w + 2), lambda i, j: p[i, j] * q[i, j], name=name)
        around = lambda i, j: sum(square[i + s, j + t] for s in range(3) for t in range(3))  # noqa: E731
        return tir.compute((h, w), around, name=f"s{name}")

    xx, yy, xy = summed(dx, dx, "xx"), summed(dy, dy, "yy"), summed(dx, dy, "xy")
    return tir.compute((h, w), lambda i, j: xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j], name="y")


def corners_of(a):
    g = 0.25 * a[0] + 0.5 * a[1] + 0.25 * a[2]
    h, w = g.shape[0] - 2, g.shape[1] - 2
    at = lambda s, t: g[1 + s : 1 + s + h, 1 + t : 1 + t + w]  # noqa: E731
    dy = sum((2 - abs(t)) * (at(1, t) - at(-1, t)) for t in (-1, 0, 1))
    dx = sum((2 - abs(t)) * (at(t, 1) - at(t, -1)) for t in (-1, 0, 1))
    around = lambda p: sum(p[s : s + h - 2, t : t + w - 2] for s in range(3) for t in range(3))  # noqa: E731
    return around(dx * dx) * around(dy * dy) - around(dx * dy) ** 2


def smoothed(c, h, w, rounds):
    """Several rounds of 3 x 3 taps with clamped borders, in each of ``c`` planes."""
    y = tir.placeholder((c, h + 2 * rounds, w + 2 * rounds), "uint16", name="x")
    for n in range(rounds):
        shape = (c, y.shape[1] - 2, y.shape[2] - 2)
        taps = lambda k, i, j, y=y: sum((s + t + 1) * y[k, i + s, j + t] for s in range(3) for t in range(3))  # noqa: E731
        y = tir.compute(shape, taps, name=f"y{n}")
    return y


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(70, 300), (33, 129)])
def test_corners_are_one_kernel(shape, target):
    s = tir.auto_schedule(corners(768, 1280), target)
    assert len(s.emitted().kernels) == 1 and "s.compute_at('dx'" in str(s.trace)
    s = tir.auto_schedule(corners(*shape), target)
    a = np.random.default_rng(0).integers(0, 8, (3, shape[0] + 4, shape[1] + 4)).astype("float32") * 4
    got = s.build("c:0" if target[0] == "c" else "opencl:pocl")(a)
    np.testing.assert_allclose(got, corners_of(a.astype("float64")), rtol=1e-5, atol=1e-2)


def test_they_are_proved():
    assert tir.auto_schedule(corners(40, 96), TARGETS[0]).check()


def test_integers_are_exact_and_planes_are_blocks():
    y = smoothed(2, 200, 500, 3)
    s = tir.auto_schedule(y, TARGETS[0])
    assert len(s.emitted().kernels) == 1 and s.emitted().kernels[0].grid[1] == 2
    x = np.random.default_rng(0).integers(0, 65536, (2, 206, 506)).astype("uint16")
    want = x
    for _ in range(3):
        h, w = want.shape[1] - 2, want.shape[2] - 2
        want = sum(np.uint16(s + t + 1) * want[:, s : s + h, t : t + w] for s in range(3) for t in range(3))
    assert np.array_equal(s.build("c:0")(x), want)


def test_cheap_stages_are_inlined_and_rows_of_others_stay():
    a = tir.placeholder((200, 300), name="a")
    x = tir.compute((200, 298), lambda i, j: a[i, j] + a[i, j + 1] + a[i, j + 2], name="x")
    blur = tir.compute((198, 298), lambda i, j: x[i, j] + x[i + 1, j] + x[i + 2, j], name="y")
    assert "overlap" not in str(tir.auto_schedule(blur, TARGETS[0]).trace)
    turned = tir.compute((298, 200), lambda i, j: tir.exp(x[j, i]), name="y")
    assert "overlap" not in str(tir.auto_schedule(turned, TARGETS[0]).trace)


def test_outputs_along_the_way_are_stored():
    y = smoothed(1, 100, 300, 2)
    first = next(t for t in y.op.inputs)
    s = tir.auto_schedule([y, first], TARGETS[0])
    x = np.random.default_rng(0).integers(0, 9, (1, 104, 304)).astype("uint16")
    h, w = 102, 302
    want = sum((s + t + 1) * x[:, s : s + h, t : t + w] for s in range(3) for t in range(3))
    assert np.array_equal(s.build("c:0")(x)[1], want)


def test_configurations_are_right():
    from covering import spread_over

    y = corners(40, 96)
    template = tir.auto(y, TARGETS[0])["cpu_overlap"]
    for config in spread_over(template.space_for(tir.Schedule(y, TARGETS[0]).target), 3):
        s = tir.Schedule(y, TARGETS[0])
        template.function(s, config)
        assert s.check(), config
