"""matmul on GPUs: whole waves of tiles as they are, and the rest in parts (stream-K)."""

from __future__ import annotations

import shutil

import pytest
from emulating import beyond, emulated_rightly

import tensorir as tir
from tensorir.engines.gemm_tensor import TensorTile
from tensorir.engines.problems import Gemm

AMPERE, HOPPER = "cuda -arch=sm_80 -units=3", "cuda -arch=sm_90a -units=3"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TILES = {
    "gpu_tile_warp": dict(li=8, ri=4, rj=4, wi=2, wj=4, bk=8, depth=2, in_flight=0, raster=1, atomic=0),
    "gpu_tile_mma": dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=1, raster=1, atomic=0, staged=1),
    "gpu_tile_wgmma": dict(groups=1, pingpong=0, rows=1, bn=64, depth=2, cluster=1, raster=1, resident=1, atomic=0),
}
"""Blocks of 64 x 64."""
TARGETS = {"gpu_tile_mma": AMPERE, "gpu_tile_warp": AMPERE, "gpu_tile_wgmma": HOPPER}
DTYPES = {"gpu_tile_mma": "float16", "gpu_tile_warp": "float32", "gpu_tile_wgmma": "bfloat16"}


def work(template, **changed):
    return tir.ops.matmul(**{"m": 200, "n": 104, "k": 272, "dtype": DTYPES[template], **changed})


def test_rows_of_whole_waves():
    def rows(m, n, units):
        target = tir.Target.parse(f"cuda -arch=sm_80 -units={units}")
        return TensorTile(dict(bm=64, bn=64), Gemm(m=m, n=n, k=64), target).whole_rows

    assert rows(256, 128, 3) == 192, "6 of 8 tiles"
    assert rows(250, 128, 5) == 128, "5 of 8 tiles, of which 4 are whole rows"
    assert rows(256, 128, 4) == 0, "nothing is left"
    assert rows(256, 128, 9) == 0, "not one wave"
    assert rows(64, 1280, 9) == 0, "no whole row of blocks"


CHANGES = (
    {},
    dict(ta=True, tb=True, bias=True, act="relu", m=248, n=72, k=264),
    dict(tb=True, beta=True, alpha=True, m=193, n=120, k=312),
)


@emulated
@pytest.mark.parametrize("changed", CHANGES, ids=str)
@pytest.mark.parametrize("template", TILES)
def test_the_rest_adds_up(template, changed):
    w = work(template, **changed)
    s = beyond(w, {**TILES[template], "splits": 2, "rest": 1}, template, TARGETS[template])
    assert s.source().count("__global__") == 3
    if "alpha" in changed:
        assert s.check("emulate")
    else:
        assert emulated_rightly(w, s)


@pytest.mark.parametrize("template", TILES)
def test_the_rest_is_proved_and_checks_reach_other_shapes_where_whole_blocks_are_left(template):
    """Steps fit rows of whole blocks beyond the rest: other extents are rounded up to them."""
    w = work(template, m=193, n=72, bias=True)
    verdict = beyond(w, {**TILES[template], "splits": 2, "rest": 1}, template, TARGETS[template]).check()
    assert verdict and len(verdict.shapes) >= 3
    assert all("c.i=193" not in x for x in verdict.shapes[1:])


@emulated
def test_results_leave_as_without_a_rest():
    for template, way in (("gpu_tile_mma", "*(uint4 *)(out +"), ("gpu_tile_wgmma", "tir_tma_store(&out_map")):
        s = beyond(work(template), {**TILES[template], "splits": 2, "rest": 1}, template, TARGETS[template])
        assert s.source().count(way) == 1


@pytest.mark.parametrize("template", TILES)
def test_what_is_a_rest(template):
    target = tir.Target.parse(TARGETS[template].replace("units=3", "units=20"))

    def legal(raster=1, splits=8, atomic=0, **shape):
        options = {**dict(m=64 * 23, n=64, k=8192), **shape}
        w = work(template, **options)
        space = w.templates[template].space_for(target)
        config = {**TILES[template], "raster": raster, "splits": splits, "atomic": atomic, "rest": 1}
        return space.index({**space.default, **config}) >= 0

    assert legal()
    assert not legal(splits=1)
    assert not legal(atomic=1)
    assert not legal(m=64 * 20), "one wave"
    assert not legal(m=64 * 19), "less than one wave"
    assert not legal(raster=4), "three rows of blocks are left"
    assert not legal(k=512), "parts of a few terms"
    assert not legal(batch=2)
    assert not legal(m=64 * 35, splits=12), "more parts than run at once"


def test_the_model_expects_the_rest_to_be_worth_it():
    """17 x 8 tiles for 132 multiprocessors: a second wave of four tiles, or a row of eight in parts."""
    target = tir.Target.parse("cuda -arch=sm_90 -units=132")
    w = tir.ops.matmul(m=128 * 17, n=128 * 8, k=8192, dtype="float16")
    space = w.templates["gpu_tile_mma"].space_for(target)
    tiles = {**space.default, "bm": 128, "bn": 128, "wm": 64, "wn": 32, "raster": 1}
    time = TensorTile.expected(Gemm(m=128 * 17, n=128 * 8, k=8192, dtype="float16"), target)
    alone, rest = ({**tiles, "splits": n, "rest": int(n > 1)} for n in (1, 12))
    assert space.index(alone) >= 0
    assert space.index(rest) >= 0
    assert time(rest) < 0.9 * time(alone)


@pytest.mark.parametrize("template", TILES)
def test_all_three_kernels_compile(template):
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    w, arch = work(template), TARGETS[template].split("=")[1].split()[0]
    s = beyond(w, {**TILES[template], "splits": 2, "rest": 1}, template, TARGETS[template])
    cubin = compile_cubin(s.source(), arch)
    assert cubin.data[:4] == b"\x7fELF"
    assert cubin.spills <= 16, "these are no default tiles: ptxas may prefer a fourth block to three registers"
