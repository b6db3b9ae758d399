"""conv2d by warpgroups over all pixels in one line: copies that go through images (the im2col mode of tensor maps)."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from emulating import emulated_rightly, small_integers
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from test_conv_warpgroups import CASES, HOPPER, work

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.engines.problems import Conv
from tensorir.interp.numbers import Field
from tensorir.ops.conv_hopper import PixelTile, gone_through

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
LINE = dict(groups=2, wide=8, bk=64, depth=3, resident=1, pixels="im2col")
OWN = {"groups, stride 2": 96, "groups of pixels alone": 32}
"""Channels of a group, where these are no multiple of 64."""


def lined(made, **given):
    return made.schedule({**LINE, **given}, "gpu_hopper", HOPPER)


@emulated
@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_convolution(case):
    made = work(**CASES[case])
    s = lined(made, groups=1 + len(case) % 2, bk=OWN.get(case, 64))
    one_by_one = CASES[case].get("r") == 1 and "stride" not in CASES[case]
    assert ("tir_tma_im2col(" in s.source()) != one_by_one, "pixels of 1x1 filters are rows of a matrix"
    assert emulated_rightly(made, s, seed=len(case), eager=len(case) % 3 == 0)


@emulated
@settings(max_examples=10, deadline=None)
@drawn(
    st.integers(1, 4), st.integers(1, 16), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4),
    st.integers(0, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9), st.integers(1, 3), st.integers(2, 4),
    st.sampled_from(["bfloat16", "bfloat16", "int8", "float8_e4m3"]), st.integers(0, 3),
)  # fmt: skip
def test_any_shape(n, h, w, r, s, stride, pad, dilation, c, k, groups, depth, dtype, seed):
    """As far as there is a result; a tile may be of many images, and an image of many tiles."""
    h, w = (max(x, (taps - 1) * dilation + 1 - 2 * pad) for x, taps in ((h, r), (w, s)))
    step = 8 if dtype == "bfloat16" else 16
    made = work(n=n, h=h, w=w, r=r, s=s, stride=stride, pad=pad, dilation=dilation, c=step * c, k=step * k, dtype=dtype)
    space = made.templates["gpu_hopper"].space_for(tir.Target.parse(HOPPER))
    assume(any("im2col" in values for values in space.values))  # not where all that is read lies before the image
    assert emulated_rightly(made, lined(made, groups=groups, depth=depth), seed)


@pytest.mark.parametrize("given", [
    dict(h=9, w=9, n=2, r=2, s=3, stride=2, dilation=2, pad=2),
    dict(h=5, w=6, c=128, r=1, s=1, pad=0, n=3),
    dict(groups=2, c=128, k=128, h=4, w=5, n=2),
    dict(h=16, w=16, r=1, s=2, c=64, dtype="float32", precision="tf32"),
])  # fmt: skip
def test_schedules_are_proved(given):
    assert compare(lined(work(**given), depth=2), Field(), 1) is None


def test_copies_and_maps():
    """One copy a step: the first pixel from the tile's number, the tap as an offset; results are rows of a matrix."""
    source = lined(work(n=5, h=14, w=9, r=3, s=2, stride=2, dilation=2, pad=1, c=128)).emitted()
    x, y = ({m.array: m for m in source.kernels[0].maps}[name] for name in ("x", "out"))
    assert (x.shape, x.box, x.steps, x.swizzle) == ((5, 14, 9, 128), (128, 64), (1, 2, 2, 1), 128)
    assert (x.lower, x.upper) == ((-1, -1), (-1 + 2 * 6 - 14, -1 + 2 * 5 - 9))
    assert (y.shape, y.box, y.steps, y.lower) == ((5 * 6 * 5, 64), (64, 64), (), ())
    assert source.text.count("tir_tma_im2col(") == 2, "its definition, and one copy"
    assert source.text.count(", 24576);") == 1, "bytes that are awaited: 128 pixels and 64 filters of 128 each"
    assert "tma.im2col.bfloat16.128x64" in source.instructions


def test_a_single_image_ends_where_it_ends():
    """A tile is longer than the image: what lies behind it needs no corner."""
    (x,) = [m for m in lined(work(h=7, w=1, s=1, pad=1), groups=3).emitted().kernels[0].maps if m.array == "x"]
    assert max(x.upper) <= 1


@emulated
@pytest.mark.parametrize("change", [
    dict(lower=(0, -1)), dict(lower=(-1, 0), upper=(-2, 0)), dict(upper=(-2, 0)), dict(upper=(-1, -2)),
    dict(steps=(1, 1, 2, 1)), dict(steps=(1, 2, 1, 1)), dict(steps=()), dict(box=(64, 64)), dict(shape=(3, 9, 13, 64)),
])  # fmt: skip
def test_other_maps_are_found(change):
    """Corners swapped, moved or left out, steps dropped; 3 x 2 taps, so that rows and columns differ."""
    made = work(n=3, h=13, w=9, r=3, s=2, stride=2, pad=1)
    source = lined(made, depth=2).emitted()
    arrays = small_integers(source)
    (kernel,) = source.kernels
    maps = tuple(replace(m, **change) if m.lower else m for m in kernel.maps)
    assert maps != kernel.maps
    got = emulate(replace(source, kernels=(replace(kernel, maps=maps),)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], made.reference(*arrays).astype(got.outputs[0].dtype))


@emulated
def test_maps_of_another_kind_are_told():
    """Of boxes where the text copies pixels; of pixels that no driver would encode."""
    source = lined(work(n=3, h=9, w=9), depth=2).emitted()
    (kernel,) = source.kernels

    def told(**change):
        maps = tuple(replace(m, **change) if m.lower else m for m in kernel.maps)
        return emulate(replace(source, kernels=(replace(kernel, maps=maps),)), small_integers(source)).problems

    assert "tma.map" in {p.code for p in told(lower=(), upper=(), steps=(), box=(1, 1, 128, 64))}
    for wrong in (dict(lower=(-129, 0)), dict(upper=(0,)), dict(box=(1025, 64)), dict(box=(128, 264), swizzle=0)):
        with pytest.raises(tir.TensorIRError) as e:
            told(**wrong)
        assert e.value.problems[0].code == "emulate.map", wrong


@emulated
@pytest.mark.parametrize(
    ("before", "behind"),
    [("step % 2, step / 2);", "0, step / 2);"), ("step % 2, step / 2);", "step / 2, step % 2);"),
     ("step % 2, step / 2);", "step % 2, step / 2 + 300);"), (" - 1, ", ", "), (" * 2 - 1", " - 1")],
)  # fmt: skip
def test_other_texts_are_found(before, behind):
    """Offsets left out, swapped or out of range; the first row where there is none."""
    made = work(n=7, h=13, w=9, r=3, s=2, stride=2, pad=1)
    source = lined(made, depth=2).emitted()
    copy = next(line for line in source.text.splitlines() if line.strip().startswith("tir_tma_im2col("))
    changed = copy.replace(before, behind)
    assert changed != copy, copy
    arrays = small_integers(source)
    got = emulate(replace(source, text=source.text.replace(copy, changed)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], made.reference(*arrays).astype(got.outputs[0].dtype))
    if "300" in behind:
        assert "tma.pixels" in {p.code for p in got.problems}


def test_what_no_copy_goes_through_is_left_to_boxes():
    """Borders and taps that are too far away; borders of which alone all results are made."""
    target = tir.Target.parse(HOPPER)
    for given in (dict(pad=129, h=20, w=20), dict(dilation=128, pad=0, h=300, w=300), dict(r=1, s=1, stride=8, h=6)):
        space = work(**given).templates["gpu_hopper"].space_for(target)
        assert {space.config(row)["pixels"] for row in range(len(space.legal))} == {"box"}, given


def test_few_pixels_begin_in_one_line():
    """Images that fill boxes stay in boxes; those of 7x7 and 14x14 do not."""
    device = tir.Target.parse("cuda -arch=sm_90a -units=132")
    for given, pixels in (
        (dict(n=16, h=14, w=14, c=256, k=256), "im2col"),
        (dict(n=16, h=7, w=7, c=512, k=512), "im2col"),
        (dict(n=16, h=64, w=64, c=64, k=64), "box"),
    ):
        made = work(**given)
        space = made.templates["gpu_hopper"].space_for(device)
        assert space.default["pixels"] == pixels, given
        assert space.index(space.default) >= 0


def test_tiles_are_counted():
    made = Conv(n=3, c=64, h=7, w=7, k=192, r=3, s=3, p=7, q=7, pad=1)
    tile = PixelTile(dict(groups=2, bk=64, pixels="im2col"), made, tir.Target.parse("cuda -arch=sm_90a"))
    assert tile.tiles == 2 * 3
    assert gone_through(made)


GRADIENTS = {
    "3x3": {},
    "1x1": dict(r=1, s=1, pad=0),
    "no border, 3x2": dict(r=3, s=2, pad=0, n=2),
    "a border wider than the filter": dict(pad=3, h=5),
    "dilated": dict(dilation=2, pad=2),
    "groups": dict(groups=2, c=128, k=128),
    "halves, channels of no whole tile": dict(dtype="float16", c=72, k=136, n=3, h=7, w=7),
}


@emulated
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_images(name):
    """The filter is read as it lies, along the image's channels."""
    given = {**dict(n=1, c=64, h=11, w=12, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="bfloat16"), **GRADIENTS[name]}
    made = tir.ops.conv2d_backward_data(**given)
    s = made.schedule(target=HOPPER)
    assert re.search(r"tir_wgmma_m64n\d+k16_b?f16_nn\(", s.source()), "the default template"
    assert ("tir_tma_im2col(" in s.source()) == (name != "1x1")
    assert emulated_rightly(made, s, seed=len(name))


def test_gradients_are_proved():
    made = tir.ops.conv2d_backward_data(n=2, c=72, h=6, w=7, k=64, r=3, s=2, pad=1, layout="NHWC", dtype="bfloat16")
    assert compare(made.schedule(target=HOPPER), Field(), 1) is None


def test_other_gradients_are_left_to_others():
    for given in (dict(stride=2), dict(layout="NCHW"), dict(dtype="int8"), dict(c=12), dict(k=12), dict(groups=2)):
        shape = {**dict(n=1, c=64, h=11, w=12, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="bfloat16"), **given}
        assert "gpu_hopper" not in tir.ops.conv2d_backward_data(**shape).templates, given


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    target = "cuda -arch=sm_90a"
    shapes = (
        dict(n=16, h=14, w=14, c=256, k=256), dict(h=56, w=56, n=4, c=128, k=128, stride=2, dtype="float8_e4m3"),
        dict(h=14, w=14, dtype="float32", precision="tf32", bias=True, residual=True),
    )  # fmt: skip
    made = [work(**given).schedule({**LINE, "depth": 4}, "gpu_hopper", target) for given in shapes]
    made.append(tir.ops.conv2d_backward_data(n=16, c=256, h=14, w=14, k=256, pad=1, layout="NHWC", dtype="bfloat16")
                .schedule(target=target))  # fmt: skip
    for s in made:
        cubin = compile_cubin(s.source(), "sm_90a")
        assert cubin.spills == 0
        assert "C75" not in cubin.log
    try:
        found = sass_opcodes(cubin)
    except tir.TensorIRError:
        return  # no disassembler is installed
    assert found["UTMALDG.4D.IM2COL"] == 1
    assert found["UTMASTG.2D"] == 2, "128 channels of results"
