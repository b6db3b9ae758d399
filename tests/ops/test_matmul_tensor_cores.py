"""matmul on tensor cores: the text of any configuration multiplies any shape."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir

AMPERE = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.matmul(**{"m": 128, "n": 128, "k": 64, "dtype": "float16", **changed})


def test_is_the_default_where_there_are_tensor_cores():
    assert work().template_for(AMPERE) == "gpu_tensor"
    assert work().template_for("cuda -arch=sm_75") == "gpu_tile"
    assert work(dtype="float32").template_for(AMPERE) == "gpu_tile"
    with pytest.raises(tir.ScheduleError) as e:
        work().schedule(template="gpu_tensor", target="cuda -arch=sm_75")
    assert e.value.code == "template.target"
    assert "sm_80 or later" in str(e.value)


@emulated
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(ta=True, tb=True, batch=2, bias=True, act="relu", m=70, n=40, k=50),
        dict(ta=True, m=65, n=131, k=40),
        dict(tb=True, alpha=True, beta=True, m=64, n=96),
    ],
    ids=str,
)
def test_text_is_right(changed, dtype):
    verdict = work(dtype=dtype, **changed).schedule(target=AMPERE).check("emulate")
    assert verdict, verdict


@emulated
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(1, 1, 1), (130, 70, 33), (64, 256, 96), (17, 300, 64)]), st.booleans())
def test_any_configuration(seed, shape, turned):
    m, n, k = shape
    w = work(m=m, n=n, k=k, ta=turned, tb=not turned)
    space = w.templates["gpu_tensor"].space_for(tir.Target.parse(AMPERE))
    config = space.config(seed % len(space.legal))
    s = w.schedule(config, "gpu_tensor", AMPERE)
    assert s.check("emulate"), config


def test_configurations_are_proved():
    verdict = work(m=70, n=72, k=40, dtype="bfloat16").schedule(target=AMPERE).check()
    assert verdict, verdict


@emulated
def test_default_reads_shared_memory_without_conflicts():
    """The counts that docs/cuda.md shows: whole wavefronts, whole sectors but for the halves of results."""
    import numpy as np

    from tensorir.check.emulate import emulate

    for ta, tb in ((False, False), (True, False), (False, True), (True, True)):
        w = work(m=512, n=512, k=64, ta=ta, tb=tb)
        given = [
            np.ones((64, 512) if ta else (512, 64), np.float16),
            np.ones((512, 64) if tb else (64, 512), np.float16),
        ]
        got = emulate(w.schedule(target=AMPERE).emitted(), given)
        assert not got.problems
        assert np.array_equal(got.outputs[0], np.full((512, 512), 64, np.float16))
        for t in got.traffic:
            if t.what != "global write":
                assert t.width == 16, t
                assert t.units == t.ideal, t
