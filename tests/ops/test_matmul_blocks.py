"""matmul on GPUs: the order in which its blocks are walked, and reductions in parts."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulating import beyond
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate

AMPERE, HOPPER = "cuda -arch=sm_80", "cuda -arch=sm_90a"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TILES = {
    "gpu_tile_mma": dict(
        bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=1, raster=1, splits=1, atomic=0, rest=0, staged=0
    ),
    "gpu_tile_warp": dict(
        li=8, ri=4, rj=4, wi=2, wj=2, bk=8, depth=2, in_flight=0, raster=1, splits=1, atomic=0, rest=0
    ),
    "gpu_tile_wgmma": dict(
        groups=1, pingpong=0, rows=1, bn=64, depth=2, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0
    ),
}
TARGETS = {"gpu_tile_mma": AMPERE, "gpu_tile_warp": AMPERE, "gpu_tile_wgmma": HOPPER}
DTYPES = {"gpu_tile_mma": "float16", "gpu_tile_warp": "float32", "gpu_tile_wgmma": "bfloat16"}


def work(template, **changed):
    return tir.ops.matmul(**{"m": 256, "n": 160, "k": 40, "dtype": DTYPES[template], **changed})


@emulated
@pytest.mark.parametrize("changed", [{}, dict(batch=2, ta=True, bias=True, act="relu", m=250)], ids=str)
@pytest.mark.parametrize("template", ["gpu_tile_mma", "gpu_tile_warp"])
def test_bands_cover_the_result(template, changed):
    s = beyond(work(template, **changed), {**TILES[template], "raster": 2}, template, AMPERE)
    assert "const int tile = blockIdx.x;" in s.source()
    assert s.check("emulate")


def test_bands_are_proved():
    s = beyond(work("gpu_tile_mma", m=300, n=130), {**TILES["gpu_tile_mma"], "raster": 4}, "gpu_tile_mma", AMPERE)
    assert s.check()


@pytest.mark.parametrize("template", ["gpu_tile_mma", "gpu_tile_warp"])
def test_bands_are_for_more_blocks_than_run_at_once(template):
    def default(**shape):
        return work(template, **shape).templates[template].space_for(tir.Target.parse(AMPERE)).default["raster"]

    assert default(m=512, n=512) == 1
    assert default(m=4096, n=4096) == 8
    rows = {"gpu_tile_mma": 256, "gpu_tile_warp": 128}[template]
    assert default(m=rows * 20, n=8192) == 4
    assert default(m=rows * 31, n=8192) == 1  # a band that is left over would be blocks with nothing to do


# --- the reduction in parts


def product(w, text, seed=0):
    """What the emulator makes of small integers, what went wrong there, and the exact result."""
    given = w.random_inputs(seed)
    rng = np.random.default_rng(seed)
    given = [rng.integers(-2, 3, np.shape(x)).astype(x.dtype) if np.ndim(x) else x for x in given]
    got = emulate(text, given)
    return got.outputs[0], got.problems, w.reference(*given)


CHANGES = (
    {},
    dict(ta=True, tb=True, bias=True, act="relu", m=72, n=40, k=328),
    dict(m=65, n=33, k=300),
    dict(batch=2, tb=True, beta=True, m=40, n=72, k=264),
)


@emulated
@pytest.mark.parametrize("splits", [3])
@pytest.mark.parametrize("changed", CHANGES, ids=str)
@pytest.mark.parametrize("template", TILES)
def test_parts_add_up(template, changed, splits):
    if template == "gpu_tile_wgmma" and changed.get("m") == 65:
        changed = {**changed, "m": 65, "n": 40, "k": 304}  # rows of tensor maps are whole pieces of 16 bytes
    w = work(template, **{"m": 64, "n": 64, "k": 512, **changed})
    s = beyond(w, {**TILES[template], "splits": splits}, template, TARGETS[template])
    text = s.emitted()
    assert text.text.count("__global__") == 2
    got, problems, exact = product(w, text)
    assert not problems
    assert np.array_equal(got.astype(np.float64), exact.astype(np.float64))


@emulated
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(list(TILES)), st.integers(1, 90), st.integers(1, 90), st.integers(129, 600),
       st.sampled_from([2, 3, 4]))  # fmt: skip
def test_any_shape_in_parts(template, m, n, k, splits):
    if template == "gpu_tile_wgmma":
        n, k = -(-n // 8) * 8, -(-k // 8) * 8
    w = work(template, m=m, n=n, k=k)
    s = beyond(w, {**TILES[template], "splits": splits}, template, TARGETS[template])
    got, problems, exact = product(w, s.emitted())
    assert not problems
    assert np.array_equal(got.astype(np.float64), exact.astype(np.float64)), (template, m, n, k, splits)


SUMS = {
    "gpu_tile_mma": (dict(dtype="float32", precision="tf32"), dict(dtype="int8", tb=True)),
    "gpu_tile_warp": (dict(dtype="float32"), dict(dtype="int32", ta=True)),
    "gpu_tile_wgmma": (dict(dtype="float32", precision="tf32", tb=True),),
}


@emulated
@pytest.mark.parametrize(("template", "kind"), [(t, kind) for t, kinds in SUMS.items() for kind in kinds], ids=str)
def test_parts_add_to_the_result(template, kind):
    bk = {"gpu_tile_mma": 16 if kind["dtype"] == "float32" else 64, "gpu_tile_warp": 8}.get(template)
    config = {**TILES[template], **({"bk": bk} if bk else {}), "atomic": 1}
    first = kind == SUMS[template][0]
    w = tir.ops.matmul(**(dict(m=72, n=40, k=400, batch=2) if first else dict(m=37, n=64, k=272)), **kind)
    s = beyond(w, {**config, "splits": 3 if first else 2}, template, TARGETS[template])
    assert "atomicAdd(" in s.source()
    got, problems, exact = product(w, s.emitted())
    assert not problems
    assert np.array_equal(got.astype(np.float64), exact.astype(np.float64))
    assert not first or s.check()


@pytest.mark.parametrize("template", TILES)
def test_blocks_add_to_plain_sums_only(template):
    def legal(**changed):
        w = tir.ops.matmul(**{"m": 256, "n": 256, "k": 8192, **SUMS[template][0], **changed})
        space = w.templates[template].space_for(tir.Target.parse(TARGETS[template]))
        assert space.default["atomic"] == 0, "the order of such sums is not the same twice"
        return space.index({**space.default, "splits": 4, "atomic": 1}) >= 0

    assert legal()
    assert not legal(bias=True)
    assert not legal(alpha=True)
    if template != "gpu_tile_warp":
        assert not legal(dtype="float16", precision="fp32")


@pytest.mark.parametrize("template", TILES)
def test_parts_are_proved(template):
    w = work(template, m=72, n=72, k=400, bias=True)
    assert beyond(w, {**TILES[template], "splits": 3}, template, TARGETS[template]).check()


@pytest.mark.parametrize("template", TILES)
def test_parts_are_for_few_tiles_and_long_reductions(template):
    def default(**shape):
        return work(template, **shape).templates[template].space_for(tir.Target.parse(TARGETS[template])).default

    assert 6 <= default(m=512, n=512, k=16384)["splits"] <= 32
    assert default(m=4096, n=4096, k=4096)["splits"] == 1, "tiles fill the device"
    assert default(m=512, n=512, k=128)["splits"] == 1, "nothing to deal out"


@pytest.mark.parametrize("atomic", [0, 1])
@pytest.mark.parametrize("template", TILES)
def test_both_kernels_compile(template, atomic):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    w = tir.ops.matmul(m=512, n=512, k=16384, **SUMS[template][0]) if atomic else work(template, m=512, n=512, k=16384)
    config = w.templates[template].space_for(tir.Target.parse(TARGETS[template])).default
    assert config["splits"] > 1
    s = w.schedule({**config, "atomic": atomic}, template, TARGETS[template])
    cubin = compile_cubin(s.source(), TARGETS[template].split("=")[1])
    assert cubin.data[:4] == b"\x7fELF"
    assert cubin.spills == 0


def test_text_of_parts(golden):
    s = work("gpu_tile_warp", m=64, n=32, k=300).schedule(
        {**TILES["gpu_tile_warp"], "splits": 2}, "gpu_tile_warp", AMPERE
    )
    golden(f"{s.tree()}\n\n{s.source()}", "warps/parts.txt")


@pytest.mark.parametrize("shape", [dict(m=10_000_001, n=64, k=64, tb=True), dict(m=16, n=16, k=16, batch=70_000)])
def test_more_blocks_than_an_axis_of_the_grid_has_are_a_line(shape):
    grid = tir.ops.matmul(**shape).schedule(target="cuda -arch=sm_80").emitted().kernels[-1].grid
    assert grid[0] > 65_535 and grid[1:] == (1, 1)
