"""Conditions that all iterations of an unrolled loop share are tested once, around the loop."""

import numpy as np
import pytest

import tensorir as tir

CPU = "opencl -registers=32 -vector_bytes=64 -units=2"


def window(combine, other, inside, size=40):
    x, u, v = (
        tir.placeholder((size + 6, size + 6), name="x"),
        tir.reduce_axis(7, name="u"),
        tir.reduce_axis(7, name="v"),
    )
    value = lambda i, j: tir.where(inside(i, u, v), x[i + u, j + v], other)  # noqa: E731
    return tir.compute((size, size), lambda i, j: combine(value(i, j), axis=[u, v]), name="y")


def disc(_, u, v):
    return (u - 3) * (u - 3) + (v - 3) * (v - 3) <= 9


CASES = {  # number of conditions, of choices in the text
    "terms left out": (window(tir.sum, 0.0, disc), 1, 0),
    "both sides": (window(tir.max, -1e30, disc), 2, 0),
    "extreme": (window(tir.max, -float("inf"), disc), 1, 0),
    "by iteration": (window(tir.sum, 0.0, lambda i, u, v: (i + u) % 3 < 2), 0, 1),
}


@pytest.mark.parametrize("target", [CPU, CPU.replace("opencl", "c")])
@pytest.mark.parametrize("name", CASES)
def test_a_condition_on_other_loops_is_around_an_unrolled_one(name, target):
    y, conditions, choices = CASES[name]
    s = tir.Schedule(y, target)
    s.stage_out("y", "root", "register")
    i, j = s.split("y.out.i", [None, 4])[-1], s.split("y.out.j", [None, 8])
    s.reorder(j[0], i, j[1])
    s.unroll(i).vectorize(j[1]).compute_at("y", j[0])
    s.reorder("y.u", "y.v", "y.i", "y.j").unroll("y.i").vectorize("y.j")
    text = "".join(line for line in s.source().splitlines(True) if "y_register" in line or "if (" in line)
    assert (text.count("if ("), text.count(" ? ")) == (conditions, choices) and s.check(), text


@pytest.mark.parametrize(("target", "device"), [(CPU, "opencl:pocl"), (CPU.replace("opencl", "c"), "c:0")])
def test_a_condition_of_each_lane_stays_a_choice(target, device):
    x = tir.placeholder((15, 66), name="x")
    first = lambda i, j: x[i, j] + 2 * x[i + 1, j] + x[i + 1, j + 1] + x[i + 2, j] + x[i, j + 2]  # noqa: E731
    a = tir.compute((13, 64), first, name="a")
    cross = [(0, -1, 1), (-1, 0, 1), (1, 0, 2), (0, 1, 1)]
    y = tir.compute((13, 64), lambda i, j: sum(n * a.get(i + p, j + q, fill=1) for p, q, n in cross), name="y")
    s = tir.auto_schedule(y, target)
    v = np.random.default_rng(0).integers(0, 9, (15, 66)).astype("float32")
    b = np.pad(v[:-2, :-2] + 2 * v[1:-1, :-2] + v[1:-1, 1:-1] + v[2:, :-2] + v[:-2, 2:], 1, constant_values=1)
    want = sum(n * b[1 + p : 14 + p, 1 + q : 65 + q] for p, q, n in cross)
    assert "compute_at" in str(s.trace) and np.array_equal(s.build(device)(v), want)
