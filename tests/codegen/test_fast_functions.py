"""Functions of float32 on GPUs: fast ones with a stated bound, precise ones on request, and checks that know which."""

import sys
from pathlib import Path

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.rounding import rounding_of
from tensorir.interp.ulps import CUDA_ULPS, FAST_ULPS, LIBRARY_ULPS, LOOSE_ULPS, ulps_of
from tensorir.target import Target

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from vector_math import EXACT, ulps

CUDA, PRECISE = "cuda -arch=sm_80", "cuda -arch=sm_80 -precise_math=1"
SPECIAL = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        1.1754944e-38,
        -1e-30,
        1.0,
        -1.0,
        0.5,
        2.0,
        88.0,
        -87.3,
        -103.0,
        -200.0,
        np.inf,
        -np.inf,
        np.nan,
    ],
    np.float32,
)


def arguments(name, size=4096):
    """Of all sizes for which results are finite and, of sines, no multiples of pi are hard to tell."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(size).astype(np.float32) * 10.0 ** rng.integers(-6, 2, size).astype(np.float32)
    x[: len(SPECIAL)] = SPECIAL
    return np.abs(x) if name in ("log", "log2", "rsqrt") else np.where(np.abs(x) > 88, np.float32(-1.5), x)


def schedule(name, target, size=4096):
    X = tir.placeholder((size,), name="X")
    s = tir.Schedule(tir.compute((size,), lambda i: getattr(tir, name)(X[i]), name="Y"), target=target)
    block, thread = s.split("Y.i", [None, 256])
    return s.bind(block, "block.x").bind(thread, "thread.x")


def bound(name, x, target):
    if name in FAST_ULPS and target == CUDA:
        a, b = FAST_ULPS[name]
        return a + np.floor(b * np.nan_to_num(np.abs(x), posinf=0.0))
    return CUDA_ULPS[name]


def test_exp_is_the_fast_one_and_the_precise_one_on_request():
    assert "__expf(X[" in schedule("exp", CUDA).source()
    for target in (PRECISE, "hip"):
        text = schedule("exp", target).source()
        assert "expf(X[" in text
        assert "__expf" not in text
    X = tir.placeholder((8,), "float64", name="X")
    assert "__expf" not in tir.Schedule(tir.compute((8,), lambda i: tir.exp(X[i])), target=CUDA).source()


@pytest.mark.parametrize("target", [CUDA, PRECISE])
@pytest.mark.parametrize("name", list(CUDA_ULPS))
def test_emulated_values_are_within_the_bounds(name, target):
    x = arguments(name)
    done = emulate(schedule(name, target).emitted(), [x])
    assert not done.problems
    with np.errstate(all="ignore"):
        errors = ulps(np.asarray(done.outputs[0]), np.asarray(EXACT[name](x.astype(np.float64))))
    assert np.all(errors <= bound(name, x, target))


def test_bounds_that_checks_use_cover_what_is_printed():
    x = np.linspace(-100, 88, 1000)
    for name in CUDA_ULPS:
        for target in (CUDA, PRECISE):
            assert np.all(bound(name, x, target) <= ulps_of(name, x, Target.parse(target)))
    assert ulps_of("erf", x, Target.parse("opencl -kind=gpu")) == LOOSE_ULPS["erf"] > LIBRARY_ULPS


def test_how_far_results_may_be_off_follows_the_target():
    X = tir.placeholder((4,), name="X")
    Y = tir.compute((4,), lambda i: tir.exp(X[i]), name="Y")
    x = np.array([0.0, -1.0, -40.0, -60.0], np.float32)
    fast, precise = (rounding_of((Y,), [x], Target.parse(t))[0] for t in (CUDA, PRECISE))
    assert np.array_equal(fast[:2], precise[:2])
    assert np.all(fast[2:] > 5 * precise[2:])
    assert np.all(fast < 1e-4 * np.exp(x.astype(np.float64)))


@pytest.mark.parametrize("target", [CUDA, PRECISE])
def test_kernels_with_functions_are_right(target):
    X, k = tir.placeholder((4, 64), name="X"), tir.reduce_axis(64, name="k")
    m = tir.compute((4,), lambda i: tir.max(X[i, k], axis=k), name="m")
    j = tir.reduce_axis(64, name="j")
    d = tir.compute((4,), lambda i: tir.sum(tir.exp(X[i, j] - m[i]), axis=j), name="d")
    s = tir.Schedule(tir.compute((4, 64), lambda i, c: tir.exp(X[i, c] - m[i]) / d[i], name="Y"), target=target)
    told = s.check("emulate")
    assert told, str(told)
