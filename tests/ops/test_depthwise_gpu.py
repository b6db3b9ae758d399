"""Depthwise convolution on GPUs: the text of any configuration is right, and reads whole sectors."""

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


def work(c=12, **changed):
    return tir.ops.conv2d(**{"n": 1, "c": c, "h": 9, "w": 11, "k": c, "r": 3, "s": 3, "pad": 1, "groups": c, **changed})


def test_is_the_default_where_each_channel_has_a_filter():
    for fits in ({}, dict(layout="NHWC"), dict(dtype="float16"), dict(stride=2, dilation=2)):
        for target in ("cuda", "opencl -kind=gpu"):
            assert work(**fits).template_for(target) == "gpu_tile_windows"
    for other in (dict(k=24), dict(r=1, s=1, pad=0), dict(groups=1), dict(r=8, s=8, pad=4)):
        assert "gpu_tile_windows" not in work(**other).templates


SHAPES = (
    {},
    dict(n=2, stride=2, bias=True, act="relu"),
    dict(c=24, h=10, w=10, r=5, s=5, pad=2, dtype="float16"),
    dict(c=7, h=7, w=7, s=2, dilation=2, pad=0),
    dict(c=8, h=2, w=1, residual=True),
    dict(c=16, h=7, w=7, dtype="int8", prepack=True),
)


@emulated
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_text_is_right(shape, layout):
    w = work(layout=layout, **shape)
    s = w.schedule(template="gpu_tile_windows", target=TARGET)
    assert shape or s.check()
    assert emulated_rightly(w, s)


@emulated
@settings(max_examples=3, deadline=None)
@given(st.data())
def test_any_configuration(data):
    shape = data.draw(st.sampled_from(SHAPES))
    w = work(layout=data.draw(st.sampled_from(["NCHW", "NHWC"])), **shape)
    assert any_configuration_is_right(data, w, "gpu_tile_windows", TARGET)


@emulated
def test_channels_side_by_side_are_read_in_whole_sectors():
    source = work(c=64, h=14, w=14, layout="NHWC").schedule(target=TARGET).emitted()
    got = emulate(source, small_integers(source))
    main = next(n for n, line in enumerate(source.text.splitlines()) if line.startswith("y_kernel"))
    counted = [t for t in got.traffic if t.line > main]
    assert {t.what for t in counted} == {"global read", "global write"}
    for t in counted:
        assert t.width >= 8 and t.units == t.ideal, t
