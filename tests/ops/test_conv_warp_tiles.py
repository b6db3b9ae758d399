"""conv2d in threads by warp tiles: the text of any configuration is right, and touches memory as planned."""

from __future__ import annotations

import shutil

import pytest
from emulating import any_configuration_is_right, emulated_rightly, small_integers
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate

TARGET = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.conv2d(**{"n": 1, "c": 16, "h": 8, "w": 12, "k": 32, "r": 3, "s": 3, "pad": 1, **changed})


def test_is_the_default_in_threads():
    for fits in ({}, dict(stride=2), dict(dilation=2), dict(layout="NHWC"), dict(groups=2), dict(dtype="int32")):
        assert work(**fits).template_for("cuda -arch=sm_70") == "gpu_tile_warp"
    assert work(precision="tf32").template_for(TARGET) == "gpu_tensor"
    for other in (dict(groups=16), dict(dtype="float64")):
        assert "gpu_tile_warp" not in work(**other).templates


SHAPES = (
    {},
    dict(n=2, c=8, h=9, w=7, k=8, bias=True, act="relu"),
    dict(n=2, c=24, h=7, w=7, k=40, r=1, s=1, pad=0, residual=True),
    dict(c=3, h=17, w=19, k=20, r=5, s=4, pad=2, stride=2),
    dict(c=40, h=7, w=8, k=33, r=1, s=3, pad=0, dilation=2),
    dict(n=2, c=24, h=6, w=6, k=64, s=2, groups=2, stride=2, prepack=True),
    dict(n=3, c=12, h=1, w=1, k=48, r=1, s=1, pad=0, groups=3),
)


@emulated
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_text_is_right(shape, layout):
    w = work(layout=layout, **shape)
    assert emulated_rightly(w, w.schedule(template="gpu_tile_warp", target=TARGET))


@emulated
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_in_parts(layout):
    """The reduction in parts, of which the last is shorter; channels that are no whole steps."""
    w = work(n=2, c=44, h=5, w=6, layout=layout, bias=True)
    config = {
        **w.templates["gpu_tile_warp"].space_for(tir.Target.parse(TARGET)).default,
        "splits": 3,
        "bk": 8,
    }
    s = w.schedule(config, template="gpu_tile_warp", target=TARGET)
    assert s.emitted().text.count("__global__") == 2
    assert emulated_rightly(w, s)


@emulated
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_any_configuration(data):
    shape = data.draw(st.sampled_from(SHAPES))
    w = work(layout=data.draw(st.sampled_from(["NCHW", "NHWC"])), **shape)
    assert any_configuration_is_right(data, w, "gpu_tile_warp", TARGET)


@emulated
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_no_access_costs_more_than_it_must(layout):
    w = work(n=2, c=32, h=16, w=16, k=64, layout=layout)
    source = w.schedule(template="gpu_tile_warp", target="cuda -arch=sm_90").emitted()
    got = emulate(source, small_integers(source))
    assert not got.problems
    assert {t.what for t in got.traffic} == {"shared read", "shared write", "global read", "global write"}
    for t in got.traffic:
        beside = t.what == "global read" and t.width == 4  # of neighbours: rows begin within sectors
        assert t.units <= t.ideal * (1.6 if beside else 1), t


def test_check_skips_extents_that_the_declaration_divides_by():
    """Its columns divide by the result's extents; on others that the check would try, its tiles do not fit."""
    assert work(n=2, c=8, h=5, w=5, k=16).schedule(template="gpu_tile_warp", target=TARGET).check()


@pytest.mark.parametrize("shape", [dict(c=1, k=1), dict(c=5, k=1), dict(c=1, k=1, h=1, w=1, r=1, s=1, pad=0)], ids=str)
def test_sums_that_are_no_products_of_matrices_are_streamed(shape):
    w = work(**shape)
    assert w.schedule(template=w.template_for(TARGET), target=TARGET).check()
