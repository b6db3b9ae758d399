"""Winograd's algorithm for convolutions of any declaration, where a workload allows for its rounding."""

import pytest

import tensorir as tir
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field

AMPERE = "cuda -arch=sm_80"
WINOGRAD = ["gpu_winograd", "gpu_winograd_fused"]
NAMES = {AMPERE: WINOGRAD, "opencl -registers=16 -vector_bytes=32": ["cpu_winograd"]}


def given(name, *shape):
    return tir.placeholder(shape, "float32", name=name)


def windows(image, taps, name="sums"):
    """A convolution in names of its own, which reads zeros beyond the image."""
    c, dy, dx = (tir.reduce_axis(n, name=v) for n, v in zip(taps.shape[1:], ("ch", "dy", "dx"), strict=True))

    def cell(m, f, i, j):
        return tir.sum(image.get(m, c, i + dy - 1, j + dx - 1, fill=0) * taps[f, c, dy, dx], axis=(c, dy, dx))

    n, _, h, w = image.shape
    return tir.compute((n, taps.shape[0], h, w), cell, name=name)


IMAGE, TAPS = given("image", 2, 9, 5, 7), given("taps", 10, 9, 3, 3)


def after_and_before():
    y = windows(tir.nn.relu(IMAGE, name="early"), TAPS)
    return tir.nn.relu(tir.compute(y.shape, lambda *i: y[i] * 2 + 1, name="scaled"), name="end")


def computed_taps():
    w = tir.compute(TAPS.shape, lambda *i: tir.exp(TAPS[i]), name="weights")
    return tir.nn.relu(tir.nn.conv2d(IMAGE, w, pad=1), name="end")


def two_layers():
    first = tir.nn.relu(tir.nn.conv2d(IMAGE, given("first", 16, 9, 1, 1)), name="between")
    return tir.nn.conv2d(first, given("second", 12, 16, 3, 3), pad=1, name="v")


DECLARED = {
    "names of its own": lambda: windows(IMAGE, TAPS),
    "stages around it": after_and_before,
    "filters that are computed": computed_taps,
    "another layer": two_layers,
}


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("case", DECLARED)
def test_convolutions_are_found(case, target):
    out = DECLARED[case]()
    made = tir.auto(out, target, max_error=1e-4)
    assert [n for n in made if made[n].approximate] == NAMES[target]
    for name in NAMES[target]:
        s = tir.Schedule(out, target)
        made[name].function(s, made[name].space_for(s.target).default)
        assert s.trace[0].primitive == "redeclare" and s.allowed_error <= 1e-4
        assert compare(s, Field(), 1) is None


@pytest.mark.parametrize("target", NAMES)
def test_nothing_rounds_otherwise_unasked(target):
    out = windows(IMAGE, TAPS)
    assert not any(t.approximate for t in tir.auto(out, target).values())
    assert not any(t.approximate for t in tir.auto(out, target, max_error=1e-6).values())
    assert "redeclare" not in str(tir.auto_schedule(out, target).trace)


def test_a_workload_says_what_it_allows():
    assert not set(WINOGRAD) & set(tir.Workload("mine", windows(IMAGE, TAPS)).templates)
    work = tir.Workload("mine", windows(IMAGE, TAPS), max_error=2e-5)
    assert {*WINOGRAD, "cpu_winograd"} <= set(work.templates) and work.template_for(AMPERE) == "gpu_tile_warp"
    space = work.templates["gpu_winograd"].space_for(tir.Target.parse(AMPERE))
    assert space.values[space.names.index("m")] == (2,)
    assert work.allowed_error("gpu_winograd") == 2e-5


TAKEN = {
    "V": windows(given("V", 2, 9, 5, 7), TAPS),
    "V_packed": windows(IMAGE, TAPS, name="V_packed"),
    "image_pad": windows(IMAGE, given("image_pad", 10, 9, 3, 3)),
    "taps_panel": windows(given("taps_panel", 2, 9, 5, 7), TAPS),
}


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("name", TAKEN)
def test_arrays_that_are_called_as_stages_of_the_algorithm_are_left_alone(name, target):
    assert not any(t.approximate for t in tir.auto(TAKEN[name], target, max_error=1e-4).values())


def test_max_error_is_a_number():
    with pytest.raises(tir.TensorIRError) as e:
        tir.auto(windows(IMAGE, TAPS), AMPERE, max_error="little")
    assert "max_error" in str(e.value)


CHOICES = {
    "where": lambda y: tir.where(y > 0, 1.0, 0.0),
    "comparison": lambda y: tir.cast(y > 0, "float32"),
    "whole numbers": lambda y: tir.floor(y) + 1,
    "integers": lambda y: tir.cast(y, "int32"),
    "remainder": lambda y: y % 2.0,
}


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("choice", CHOICES)
def test_no_choice_is_made_by_what_is_rounded(choice, target):
    x, w = tir.placeholder((1, 8, 8, 8), name="x"), tir.placeholder((8, 8, 3, 3), name="w")
    y = tir.nn.conv2d(x, w, pad=1)
    chosen = tir.compute(y.shape, lambda *i: CHOICES[choice](y[i]), name="chosen")
    assert NAMES[target][0] not in tir.auto(chosen, target, max_error=1e-3)


@pytest.mark.parametrize("target", NAMES)
def test_what_goes_on_smoothly_may_be_rounded_before(target):
    x, w = tir.placeholder((1, 8, 8, 8), name="x"), tir.placeholder((8, 8, 3, 3), name="w")
    y = tir.nn.conv2d(x, w, pad=1)
    smooth = tir.compute(y.shape, lambda *i: tir.cast(tir.maximum(y[i], 0.0) * 2.0, "float16"), name="smooth")
    assert NAMES[target][0] in tir.auto(smooth, target, max_error=1e-3)
