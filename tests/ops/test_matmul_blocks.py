"""matmul on GPUs: the order in which its blocks are walked."""

from __future__ import annotations

import shutil

import pytest

import tensorir as tir
from tensorir.ops.gemm_blocks import EARLIER

AMPERE, HOPPER = "cuda -arch=sm_80", "cuda -arch=sm_90a"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TILES = {
    "gpu_tensor": dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=1),
    "gpu_warp": dict(li=8, ri=4, rj=4, wi=2, wj=2, bk=8, depth=2, in_flight=0),
}
DTYPES = {"gpu_tensor": "float16", "gpu_warp": "float32", "gpu_hopper": "bfloat16"}


def work(template, **changed):
    return tir.ops.matmul(**{"m": 256, "n": 160, "k": 40, "dtype": DTYPES[template], **changed})


@emulated
@pytest.mark.parametrize("changed", [{}, dict(batch=2, ta=True, bias=True, act="relu", m=250)], ids=str)
@pytest.mark.parametrize("template", TILES)
def test_bands_cover_the_result(template, changed):
    s = work(template, **changed).schedule({**TILES[template], "raster": 2}, template, AMPERE)
    assert "const int tile = blockIdx.x;" in s.source()
    assert s.check("emulate")


def test_bands_are_proved():
    s = work("gpu_tensor", m=300, n=130).schedule({**TILES["gpu_tensor"], "raster": 4}, "gpu_tensor", AMPERE)
    assert s.check()


@pytest.mark.parametrize("template", TILES)
def test_bands_are_for_more_blocks_than_run_at_once(template):
    def default(**shape):
        return work(template, **shape).templates[template].space_for(tir.Target.parse(AMPERE)).default["raster"]

    assert default(m=512, n=512) == 1
    assert default(m=4096, n=4096) == 8
    rows = {"gpu_tensor": 256, "gpu_warp": 128}[template]
    assert default(m=rows * 20, n=8192) == 4
    assert default(m=rows * 31, n=8192) == 1  # a band that is left over would be blocks with nothing to do


@pytest.mark.parametrize("template", TILES)
def test_configurations_from_before_mean_what_they_meant(template):
    w, target = work(template, m=512, n=512), tir.Target.parse(AMPERE)
    space = w.templates[template].space_for(target)
    earlier = {n: v for n, v in space.default.items() if n not in EARLIER}
    assert space.canonical(earlier) == {**earlier, **EARLIER}
    assert space.index(earlier) >= 0
    texts = {w.schedule(c, template, AMPERE).source() for c in (earlier, {**earlier, **EARLIER})}
    assert len(texts) == 1
