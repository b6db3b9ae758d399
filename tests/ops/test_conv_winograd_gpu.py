"""Winograd convolutions on GPUs: any configuration's text is right, and its accesses cost what their bytes need."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

import tensorir as tir
from tensorir.algorithms import winograd
from tensorir.automatic.rules.winograd_gpu import WinogradTile
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.engines.problems import Conv
from tensorir.interp.numbers import Field
from tensorir.interp.reference import random_arguments

AMPERE = "cuda -arch=sm_80"
LAYOUTS = ("NHWC", "NCHW")
WHOLE = {2: 4, 4: 576}
"""What filters are multiples of so that transformed ones are whole numbers: G has 1/2, or 1/24 and 1/4."""
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**changed):
    return tir.ops.conv2d(**{"c": 8, "h": 8, "w": 8, "k": 8, "pad": 1, **changed})


def space(w, template="gpu_winograd", target=AMPERE):
    return w.templates[template].space_for(tir.Target.parse(target))


def drawn(w, m, seed, template="gpu_winograd"):
    """A configuration with tiles of m x m outputs."""
    found = space(w, template)
    rows = [n for n in range(len(found.legal)) if found.config(n).get("m", 2) == m]
    return found.config(random.Random(seed).choice(rows))


def run(w, config, seed=0, template="gpu_winograd"):
    """The emulator's run of the text, and whether the result is exact."""
    s = w.schedule(config, template, AMPERE)
    arrays = random_arguments(s.outputs, seed)
    arrays[1] = arrays[1] * np.float32(WHOLE[config.get("m", 2)])
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    return got, bool(np.array_equal(got.outputs[0], w.reference(*arrays)))


SHAPES = {
    "one row": dict(h=1, w=3),
    "tiles and one": dict(n=2, h=9, w=5, c=9, k=10, bias=True),
    "tiles less one": dict(n=3, h=7, w=3, c=17, k=12, act="relu", residual=True),
    "no padding": dict(h=6, w=11, c=12, k=36, pad=0, bias=True, act="relu"),
    "wide padding": dict(h=4, w=5, c=16, k=17, pad=2, prepack=True),
}


CASES = [(name, LAYOUTS[n % 2], (2, 4)[n // 2 % 2]) for n, name in enumerate(SHAPES)]


@emulated
@pytest.mark.parametrize(("name", "layout", "m"), CASES)
def test_text_is_right(name, layout, m):
    w = work(layout=layout, **SHAPES[name])
    assert run(w, drawn(w, m, name))[1]


@emulated
@pytest.mark.parametrize(("name", "other", "_"), CASES)
def test_text_of_one_kernel_is_right(name, other, _):
    layout, template = LAYOUTS[other == LAYOUTS[0]], "gpu_winograd_fused"
    w = work(layout=layout, **SHAPES[name])
    assert len(w.schedule(template=template, target=AMPERE).emitted().kernels) == 2
    assert run(w, drawn(w, 2, name, template), template=template)[1]


@emulated
def test_products_on_tensor_cores():
    w = work(layout="NCHW", c=20, k=24, h=9, bias=True, precision="3xtf32")
    assert run(w, drawn(w, 4, 1))[1]


@pytest.mark.parametrize(
    ("layout", "m", "template"),
    [("NHWC", 4, "gpu_winograd"), ("NCHW", 2, "gpu_winograd"), ("NCHW", 2, "gpu_winograd_fused")],
)
def test_equals_its_declaration(layout, m, template):
    w = work(n=2, c=9, k=10, h=5, w=7, layout=layout, bias=True, act="relu")
    assert compare(w.schedule(drawn(w, m, 0, template), template, AMPERE), Field(), 1) is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "whole"), [(2, (1, 1)), (4, (1, 1)), (2, (32, 64))])
def test_the_declaration_is_the_convolution(layout, m, whole):
    from tensorir.interp.reference import evaluate

    w = work(n=2, c=5, k=4, h=5, w=7, layout=layout)
    arrays = random_arguments(w.outputs, 3, Field())
    s = tir.Schedule(w.outputs).redeclare("winograd", tile=m, whole=whole)
    got = evaluate(s.outputs, arrays, Field())[0]
    assert np.array_equal(got, evaluate(w.outputs, arrays, Field())[0])


@emulated
@pytest.mark.parametrize("m", [2, 4])
def test_the_stated_error_bound_holds(m):
    w = work(c=64, h=4, layout="NHWC")
    s = w.schedule(drawn(w, m, 0), "gpu_winograd", AMPERE)
    rng = np.random.default_rng(m)
    arrays = [rng.standard_normal(a.shape).astype(np.float32) for a in w.inputs]
    want = w.reference(*(a.astype(np.float64) for a in arrays)).astype(np.float64)
    error = np.abs(emulate(s.emitted(), arrays).outputs[0] - want).max() / np.abs(want).max()
    assert winograd.error_bound(m, 3) / 100 <= error <= winograd.error_bound(m, 3)


@emulated
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("template", ["gpu_winograd", "gpu_winograd_fused"])
def test_accesses_cost_what_their_bytes_need(layout, template):
    """But for the filter's kernel, which turns it, and pixels along rows with padding, of which tiles take every other.

    Of the fused kernel that is what shared memory costs, for it reads pixels of NCHW as they come.
    """
    w = work(c=32, k=64, h=4, w=64, layout=layout)
    config = space(w, template).default
    if template == "gpu_winograd":
        config |= {"m": 2, **({"tw": 32, "th": 1} if layout == "NCHW" else {"tw": 4})}
    got, exact = run(w, config, template=template)
    assert exact
    text = w.schedule(config, template, AMPERE).emitted().text.splitlines()
    starts = {n + 1: line[0] for n, line in enumerate(text) if line[1:].startswith("_kernel")}
    for t in got.traffic:
        kernel = starts[max(n for n in starts if n <= t.line)]
        rows_with_padding = (kernel == "V" and layout == "NCHW") or (kernel == "V" and t.what == "global read")
        as_they_come = template == "gpu_winograd_fused" and layout == "NCHW" and t.what == "global read"
        if kernel != "U" and not as_they_come:
            assert t.units <= (1.6 if rows_with_padding else 1) * t.ideal, t


def test_never_the_default():
    assert work().template_for(AMPERE) == "gpu_tile_warp"
    assert work(precision="3xtf32").template_for(AMPERE) == "gpu_tensor"


@pytest.mark.parametrize(
    "changed", [dict(r=5, s=5), dict(s=1), dict(stride=2), dict(dilation=2), dict(groups=2, c=16), dict(c=4),
                dict(dtype="float16"), dict(max_error=1e-7), dict(precision="tf32")], ids=str,
)  # fmt: skip
def test_where_it_does_not_apply_there_is_no_such_template(changed):
    found = work(**changed).templates
    assert "gpu_winograd" not in found and "gpu_winograd_fused" not in found


def test_max_error_leaves_out_tiles():
    assert space(work(max_error=1e-5)).values[0] == (2,)
    assert work().allowed_error("gpu_winograd") == 1e-4


def test_weights_are_transformed_once_where_prepacked():
    for prepack in (False, True):
        s = work(prepack=prepack).schedule(template="gpu_winograd", target=AMPERE)
        assert [k.name[0] for k in s.emitted().kernels if k.once] == ["U"] * prepack


@pytest.mark.parametrize(("layout", "extent"), [(LAYOUTS[n % 2], extent) for n, extent in enumerate([1, 7, 37, 149])])
def test_any_image_has_a_space(layout, extent):
    found = space(work(layout=layout, h=extent, w=150 - extent, c=9))
    assert found.index(found.default) >= 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_image_of_any_size_has_a_start(layout):
    """60 x 60 tiles, of 240 x 240 pixels, had parts of 20, 30 or 60 rows and columns alone: too many for a block."""
    target = tir.Target.parse(AMPERE)
    for n in range(4, 800, 4):
        shape = Conv(n=1, c=8, h=n, w=n, p=n, q=n, k=8, r=3, s=3, pad=1, layout=layout)
        found = WinogradTile.start(shape, target)
        assert found is not None and found["th"] * found["tw"] <= 256, n
    assert {"gpu_winograd", "gpu_tile_warp"} <= {*work(h=240, w=240, layout=layout).templates}
