"""conv2d on tensor cores: NHWC, stride 1; the text of any configuration is right."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate

AMPERE = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.conv2d(**{"n": 1, "c": 32, "h": 8, "w": 20, "k": 64, "r": 3, "s": 3, "pad": 1, "layout": "NHWC",
                             "dtype": "float16", **changed})  # fmt: skip


def test_is_the_default_where_it_fits():
    assert work().template_for(AMPERE) == "gpu_tensor"
    assert work().template_for("cuda -arch=sm_75") == "gpu_tile"
    for other in (dict(stride=2), dict(groups=2), dict(layout="NCHW"), dict(dtype="float32")):
        assert "gpu_tensor" not in work(**other).templates


SHAPES = (
    {},
    dict(n=2, c=24, h=7, w=7, k=40, r=1, s=1, pad=0, bias=True, act="relu"),
    dict(c=5, h=9, w=11, k=6, r=5, s=3, pad=2, dilation=2, residual=True),
    dict(c=64, h=14, w=14, k=72),
)


@emulated
@pytest.mark.parametrize(
    ("changed", "dtype"),
    [*((c, "float16") for c in SHAPES), (SHAPES[1], "bfloat16"), (SHAPES[2], "int8")],
    ids=str,
)
def test_text_is_right(changed, dtype):
    w = work(dtype=dtype, **changed)
    assert w.template_for(AMPERE) == "gpu_tensor"
    verdict = w.schedule(target=AMPERE).check("emulate")
    assert verdict, verdict


@emulated
@settings(max_examples=3, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([{}, dict(h=5, w=33, k=24), dict(r=1, s=1, pad=0, c=96)]))
def test_any_configuration(seed, changed):
    w = work(**changed)
    space = w.templates["gpu_tensor"].space_for(tir.Target.parse(AMPERE))
    config = space.config(seed % len(space.legal))
    assert w.schedule(config, "gpu_tensor", AMPERE).check("emulate"), config


@emulated
def test_accesses_cost_what_their_bytes_need():
    """Sixteen pixels from anywhere in a row of the image meet no bank conflict; nothing is read element by element."""
    w = work(h=16, w=20, c=64)  # the last tile of a row sticks out
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-2, 3, shape).astype(np.float16) for shape in ((1, 16, 20, 64), (64, 3, 3, 64))]
    got = emulate(w.schedule(target=AMPERE).emitted(), arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], w.reference(*arrays))
    shared = [t for t in got.traffic if t.what.startswith("shared")]
    assert all(t.width == 16 and t.units == t.ideal for t in shared), shared
    assert all(t.width == 16 for t in got.traffic if t.what == "global read")
