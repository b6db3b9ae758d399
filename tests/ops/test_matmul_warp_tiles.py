"""matmul by warp tiles in threads: the text of any configuration is right, and its accesses cost what bytes need."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulating import beyond
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate

AMPERE, HOPPER = "cuda -arch=sm_80", "cuda -arch=sm_90"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.matmul(**{"m": 128, "n": 128, "k": 64, **changed})


def test_is_the_default_of_float32_on_cuda():
    assert work().template_for(AMPERE) == "gpu_tile_warp"
    assert work(dtype="int32").template_for("cuda -arch=sm_75") == "gpu_tile_warp"
    assert work(dtype="float64").template_for(AMPERE) == "gpu_tile"
    assert work().template_for("opencl -kind=gpu") == "gpu_tile"


SHAPES = (
    {},
    dict(ta=True, tb=True, batch=2, bias=True, act="relu", m=70, n=40, k=50),
    dict(ta=True, m=65, n=131, k=40, dtype="int32"),
    dict(tb=True, alpha=True, beta=True, m=300, n=260, k=20),
    dict(m=1, n=7, k=300),
    dict(m=300, n=8, k=9),
)


@emulated
@pytest.mark.parametrize(
    ("changed", "target"), [*((c, "cuda -arch=sm_75") for c in SHAPES), (SHAPES[1], HOPPER)], ids=str
)
def test_text_is_right(changed, target):
    verdict = work(**changed).schedule(target=target).check("emulate")
    assert verdict, verdict


@emulated
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1, 1), (130, 70, 33), (64, 256, 96), (17, 300, 64)]),
       st.booleans(), st.booleans())  # fmt: skip
def test_any_configuration(seed, shape, ta, tb):
    m, n, k = shape
    w = work(m=m, n=n, k=k, ta=ta, tb=tb)
    space = w.templates["gpu_tile_warp"].space_for(tir.Target.parse(AMPERE))
    config = space.config(seed % len(space.legal))
    assert w.schedule(config, "gpu_tile_warp", AMPERE).check("emulate"), config


def test_a_configuration_is_proved():
    verdict = work(m=70, n=72, k=40).schedule(target=AMPERE).check()
    assert verdict, verdict


@emulated
@pytest.mark.parametrize(("ta", "tb", "target"), [
    (False, False, AMPERE), (True, False, HOPPER), (False, True, AMPERE), (True, True, HOPPER), (False, True, HOPPER),
])  # fmt: skip
def test_large_tiles_cost_what_their_bytes_need(ta, tb, target):
    config = work(m=2048, n=2048).templates["gpu_tile_warp"].space_for(tir.Target.parse(target)).default
    s = beyond(work(m=256, n=256, ta=ta, tb=tb), config, "gpu_tile_warp", target)
    shapes = (64, 256) if ta else (256, 64), (256, 64) if tb else (64, 256)
    got = emulate(s.emitted(), [np.ones(shape, np.float32) for shape in shapes])
    assert not got.problems
    assert np.array_equal(got.outputs[0], np.full((256, 256), 64, np.float32))
    assert {t.what for t in got.traffic} == {"shared read", "shared write", "global read", "global write"}
    for t in got.traffic:
        assert t.units == t.ideal, t
        assert t.width == 16 or t.what == "shared write", t


# --- layouts of warps


def quads(i="i, j -> i/4%8, j/4%4 | i/32, j/16, i%4, j%4"):
    x = tir.placeholder((64, 64), name="x")
    y = tir.compute((64, 64), lambda i, j: x[i, j] * 2, name="y")
    z = tir.compute((64, 64), lambda i, j: y[i, j] + 1, name="z")
    s = tir.Schedule(z, AMPERE)
    w, _ = s.split("z.i", [2, 32])
    s.bind(w, "warp.x").compute_at("y", w).set_scope("y", "warp")
    return s.layout("y", i)


@emulated
def test_elements_run_in_the_lanes_that_hold_them(golden):
    s = quads()
    golden(f"{s.tree()}\n\n{s.source()}", "warps/quads.txt")
    assert s.check()
    assert s.check("emulate")


@pytest.mark.parametrize(
    ("code", "layout"),
    [
        ("layout.lanes", "i, j -> i/4%8 | i/32, j, i%4"),
        ("layout.lanes", "i, j -> i%4, j%4, *4 | i/4, j/4"),
        ("layout.not-bijective", "i, j -> i/4%8, j/4%4 | i/32, i%4, j%4"),
        ("layout.syntax", "i, j -> *, j%32 | i, j/32"),
    ],
)
def test_layouts_that_are_none(code, layout):
    with pytest.raises(tir.ScheduleError) as e:
        quads(layout)
    assert e.value.code == code


def test_lanes_that_share_hold_the_same():
    """Eight lanes hold each row of x: all of them load it, and each uses it for its own columns."""
    x = tir.placeholder((32, 8), name="x")
    c = tir.compute((32, 16), lambda i, j: x[i, 0] * j, name="c")
    d = tir.compute((32, 16), lambda i, j: c[i, j] + x[i, 1], name="d")
    s = tir.Schedule(d, AMPERE)
    w, _ = s.split("d.i", [2, 16])
    s.bind(w, "warp.x").compute_at("c", w).set_scope("c", "warp")
    s.layout("c", "i, j -> i/4%4, j/2%8 | i/16, j/16, i%4, j%2")
    s.stage_in("x", at=w, scope="warp", layout="i, k -> i/4%4, *8 | i/16, k, i%4")
    assert s.check()
    if shutil.which("g++"):
        assert s.check("emulate")


def rows(layout, add_up=""):
    """Elements of a warp's buffer that go to shared memory, or are added up along a row first."""
    x = tir.placeholder((32, 16), name="x")
    if add_up:
        j = tir.reduce_axis(16, "j")
        y = tir.compute((32,), lambda i: tir.sum(x[i, j], axis=j), name="y")
    else:
        y = tir.compute((32, 16), lambda i, j: x[i, j] * 2, name="y")
    s = tir.Schedule(y, AMPERE)
    w, _ = s.split("y.i", [2, 16])
    s.bind(w, "warp.x")
    if add_up:
        s.stage_out("y", at=w, scope="warp", layout=add_up)
    s.stage_in("x", at=w, scope="warp", layout=layout)
    return s


def test_one_of_the_lanes_that_hold_the_same_stores_it():
    s = rows("i, j -> i%8, *4 | i/8, j")
    assert "if (lane % 4 < 1)" in s.source()
    assert s.check()
    if shutil.which("g++"):
        assert s.check("emulate")


def test_lanes_add_up_what_they_hold_themselves():
    s = rows("i, j -> i%8, *4 | i/8, j", add_up="i -> i%8, *4 | i/8")
    assert s.check()
    if shutil.which("g++"):
        assert s.check("emulate")


@pytest.mark.parametrize("sums", ["i -> i%8, *4 | i/8", None])
def test_lanes_do_not_add_up_what_others_hold(sums):
    layout = "i, j -> i%8, j%4 | i/8, j/4" if sums else "i, j -> i%8, *4 | i/8, j"
    s = rows(layout, add_up=sums or "i -> i")
    with pytest.raises(tir.LoweringError) as e:
        s.source()
    assert e.value.code == "lower.fragment"
