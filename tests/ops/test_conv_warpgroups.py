"""conv2d, and its gradients, by warpgroups: products that rules see, whose pixels in one line copies find in the image
(the im2col mode of tensor maps).
"""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from emulating import any_configuration_is_right, emulated_rightly, small_integers
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field
from tensorir.ops import conv2d

HOPPER = "cuda -arch=sm_90a -units=3"
WGMMA = "gpu_tile_wgmma"
BY_WARPS = ("gpu_tensor", "gpu_tile_mma")
"""Products of ``mma.sync``: those of which the model expects more come first."""
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TILES = dict(groups=2, pingpong=0, rows=1, bn=64, depth=3, cluster=1, raster=1, resident=1, splits=1)
"""Of many tiles and a short ring, whether or not a search would try them."""
OWN = {"groups, stride 2": 96, "groups of pixels alone": 32}
"""Channels of a group, where these are no multiple of 64."""


def work(c=64, k=64, **given):
    return conv2d(
        **{**dict(n=1, h=11, w=18, r=3, s=3, pad=1, dtype="bfloat16", layout="NHWC"), **given, "c": c, "k": k}
    )


def tiled(made, **given):
    s, template = tir.Schedule(made.outputs, HOPPER), made.templates[WGMMA]
    return template.function(s, {**template.space_for(s.target).default, **TILES, **given})


@functools.cache
def in_steps(n):
    """The source of a convolution of n images in steps of 2, inputs of small integers, and the exact result."""
    made = work(n=n, h=13, w=9, r=3, s=2, stride=2, pad=1)
    source = tiled(made, depth=2).emitted()
    return source, (arrays := small_integers(source)), made.reference(*arrays)


CASES = {
    "1x1": dict(r=1, s=1, pad=0),
    "3x3": dict(h=12),
    "many images, few pixels": dict(n=3, h=7, w=7),
    "wide filter, channels of no whole tile": dict(r=5, s=3, pad=2, c=72, k=72),
    "epilogue": dict(bias=True, act="relu", residual=True),
    "halves": dict(dtype="float16", dilation=2, pad=2),
    "bytes": dict(dtype="int8", c=80, k=80),
    "taller than wide": dict(r=3, s=1, pad=0, c=128),
    "3x3, stride 2": dict(stride=2, h=23, w=37),
    "1x1, stride 2": dict(r=1, s=1, pad=0, stride=2, h=14, w=14, c=128),
    "7x7, stride 2": dict(r=7, s=7, pad=3, stride=2, h=19, w=30, c=40),
    "stride 3, dilated": dict(stride=3, dilation=2, pad=2, h=26, w=31, c=72),
    "stride beyond the filter": dict(r=2, s=2, pad=1, stride=5, h=33, w=44, dtype="float16"),
    "bytes, stride 2": dict(dtype="int8", c=80, k=80, stride=2, h=20),
    "the longest step": dict(stride=8, h=50, w=130, n=2),
    "groups": dict(groups=2, c=128, k=128, n=2, bias=True, residual=True),
    "groups, stride 2": dict(groups=3, c=192, k=288, stride=2, h=20, dtype="float16"),
    "groups of pixels alone": dict(groups=2, c=256, k=64, r=1, s=1, pad=0, dtype="int8"),
    "tf32": dict(dtype="float32", precision="tf32", c=40, n=2, h=7, w=9),
    "tf32, stride 2": dict(dtype="float32", precision="tf32", c=64, n=2, h=17, w=9, stride=2, bias=True),
    "8-bit floats": dict(dtype="float8_e4m3", c=160, k=80, bias=True, residual=True),
    "8-bit floats, stride 2": dict(dtype="float8_e5m2", c=80, stride=2, h=20),
}


@emulated
@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_convolution(case):
    made = work(**CASES[case])
    assert made.template_for(HOPPER) == WGMMA
    s = tiled(made, groups=1 + len(case) % 2, bn=OWN.get(case, 64))
    one_by_one = CASES[case].get("r") == 1 and "stride" not in CASES[case]
    assert ("tir_tma_im2col(" in s.source()) != one_by_one, "pixels of 1x1 filters are rows of a matrix"
    assert emulated_rightly(made, s, seed=len(case), eager=len(case) % 3 == 0)


@emulated
@settings(max_examples=6, deadline=None)
@drawn(
    st.integers(1, 4), st.integers(1, 16), st.integers(1, 20), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4),
    st.integers(0, 3), st.integers(1, 3), st.integers(4, 9), st.integers(1, 9), st.integers(1, 3), st.integers(1, 3),
    st.sampled_from(["bfloat16", "bfloat16", "int8", "float8_e4m3"]), st.data(),
)  # fmt: skip
def test_any_shape(n, h, w, r, s, stride, pad, dilation, c, k, groups, parts, dtype, data):
    """As far as there is a result; a tile may be of many images, and an image of many tiles."""
    h, w = (max(x, (taps - 1) * dilation + 1 - 2 * pad) for x, taps in ((h, r), (w, s)))
    step = 8 if dtype == "bfloat16" else 16
    channels = dict(c=step * c, k=step * k) if parts == 1 else dict(c=8 * step * parts, k=64 * parts, groups=parts)
    made = work(n=n, h=h, w=w, r=r, s=s, stride=stride, pad=pad, dilation=dilation, dtype=dtype, **channels)
    assume(WGMMA in made.templates)  # not where all that is read lies before the image
    if groups == 3:
        assert any_configuration_is_right(data, made, WGMMA, HOPPER)
    else:
        assert emulated_rightly(made, tiled(made, groups=groups), n)


@pytest.mark.parametrize("given", [
    dict(h=9, w=9, n=2, r=2, s=3, stride=2, dilation=2, pad=2),
    dict(h=5, w=6, c=128, r=1, s=1, pad=0, n=3),
    dict(groups=2, c=128, k=128, h=4, w=5, n=2),
    dict(h=16, w=16, r=1, s=2, c=64, dtype="float32", precision="tf32"),
])  # fmt: skip
def test_schedules_are_proved(given):
    assert compare(tiled(work(**given), depth=2), Field(), 1) is None


def test_copies_and_maps():
    """One copy a step: the first pixel from the tile's number, the tap as an offset; results are rows of a matrix."""
    source = tiled(work(n=5, h=14, w=9, r=3, s=2, stride=2, dilation=2, pad=1, c=128)).emitted()
    x, y = ({m.array: m for m in source.kernels[0].maps}[name] for name in ("x", "out"))
    assert (x.shape, x.box, x.steps, x.swizzle) == ((5, 14, 9, 128), (128, 64), (1, 2, 2, 1), 128)
    assert (x.lower, x.upper) == ((-1, -1), (-1 + 2 * 6 - 14, -1 + 2 * 5 - 9))
    assert (y.shape, y.box, y.steps, y.lower) == ((5 * 6 * 5, 64), (64, 64), (), ())
    assert source.text.count("tir_tma_im2col(") == 2, "its definition, and one copy"
    assert source.text.count(", 24576);") == 1, "bytes that are awaited: 128 pixels and 64 filters of 128 each"
    assert "tma.im2col.bfloat16.128x64" in source.instructions


def test_a_single_image_ends_where_it_ends():
    """A tile is longer than the image: what lies behind it needs no corner."""
    (x,) = [m for m in tiled(work(h=7, w=1, s=1, pad=1), groups=3).emitted().kernels[0].maps if m.array == "x"]
    assert max(x.upper) <= 1


@emulated
@pytest.mark.parametrize("change", [
    dict(lower=(0, -1)), dict(lower=(-1, 0), upper=(-2, 0)), dict(upper=(-2, 0)), dict(upper=(-1, -2)),
    dict(steps=(1, 1, 2, 1)), dict(steps=(1, 2, 1, 1)), dict(steps=()), dict(box=(64, 64)), dict(shape=(3, 9, 13, 64)),
])  # fmt: skip
def test_other_maps_are_found(change):
    """Corners swapped, moved or left out, steps dropped; 3 x 2 taps, so that rows and columns differ."""
    source, arrays, want = in_steps(3)
    (kernel,) = source.kernels
    maps = tuple(replace(m, **change) if m.lower else m for m in kernel.maps)
    assert maps != kernel.maps
    got = emulate(replace(source, kernels=(replace(kernel, maps=maps),)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], want.astype(got.outputs[0].dtype))


@emulated
def test_maps_of_another_kind_are_told():
    """Of boxes where the text copies pixels; of pixels that no driver would encode."""
    source = tiled(work(n=3, h=9, w=9), depth=2).emitted()
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
    [("k_0 % 2, k_0 / 2);", "0, k_0 / 2);"), ("k_0 % 2, k_0 / 2);", "k_0 / 2, k_0 % 2);"),
     ("k_0 % 2, k_0 / 2);", "k_0 % 2, k_0 / 2 + 300);"), (" - 1, ", ", "), (" * 2 - 1", " - 1")],
)  # fmt: skip
def test_other_texts_are_found(before, behind):
    """Offsets left out, swapped or out of range; the first row where there is none."""
    source, arrays, want = in_steps(7)
    copy = next(line for line in source.text.splitlines() if line.strip().startswith("tir_tma_im2col("))
    changed = copy.replace(before, behind)
    assert changed != copy, copy
    got = emulate(replace(source, text=source.text.replace(copy, changed)), arrays)
    assert got.problems or not np.array_equal(got.outputs[0], want.astype(got.outputs[0].dtype))
    if "300" in behind:
        assert "tma.pixels" in {p.code for p in got.problems}


def test_what_no_copy_goes_through_is_left_to_others():
    """Borders and taps that are too far away; borders of which alone all results are made."""
    for given in (dict(pad=129, h=20, w=20), dict(dilation=128, pad=0, h=300, w=300), dict(r=1, s=1, stride=8, h=6),
                  dict(stride=9), dict(layout="NCHW"), dict(groups=2), dict(c=12), dict(dtype="float32")):  # fmt: skip
        made = work(**given)
        assert WGMMA not in made.templates and made.template_for(HOPPER) != WGMMA, given


def test_most_of_a_tile_is_of_the_declaration():
    """Channels that fill less than half of a row of 128 bytes are multiplied by mma.sync."""
    assert work(c=32).template_for(HOPPER) == WGMMA and work(c=24).template_for(HOPPER) in BY_WARPS


def test_it_starts_with_tiles_for_the_whole_device():
    """Few pixels: smaller tiles or parts, so that few multiprocessors are idle; many: large ones."""
    device = "cuda -arch=sm_90a -units=132"
    few, many = work(n=16, h=14, w=14, c=512, k=512, stride=2), work(n=64, h=112, w=112, c=128, k=256, stride=2)
    default = many.templates[WGMMA].space_for(tir.Target.parse(device)).default
    assert default["groups"] * default["rows"] * default["bn"] >= 256
    assert 100 < few.schedule(target=device).emitted().kernels[0].grid[0] <= 132


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
    """Those with a stride, of whose terms most would be zeros, and what tensor copies do not bring."""
    for given in (dict(stride=2), dict(layout="NCHW"), dict(dtype="int8"), dict(c=12), dict(k=12), dict(groups=2)):
        shape = {**dict(n=1, c=64, h=11, w=12, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="bfloat16"), **given}
        assert tir.ops.conv2d_backward_data(**shape).template_for(HOPPER) != WGMMA, given


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    target = "cuda -arch=sm_90a"
    shapes = (
        dict(n=16, h=14, w=14, c=256, k=256), dict(h=56, w=56, n=4, c=128, k=128, stride=2, dtype="float8_e4m3"),
        dict(h=14, w=14, dtype="float32", precision="tf32", bias=True, residual=True),
    )  # fmt: skip
    made = [work(**given).schedule(target=target) for given in shapes]
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
