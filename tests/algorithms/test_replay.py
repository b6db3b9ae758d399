"""Traces of templates that redeclare are schedules of the definition: they replay on the workload's outputs."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.ir.structure import identical

AMPERE, HOPPER = "cuda -arch=sm_80 -units=3", "cuda -arch=sm_90a -units=3"
SHAPES = {
    "tiles and one": dict(n=2, h=9, w=5, c=9, k=10, bias=True, pad=1),
    "no padding": dict(h=6, w=11, c=12, k=36, bias=True, act="relu", residual=True),
    "prepacked": dict(h=8, w=8, c=16, k=17, pad=2, prepack=True),
    "5 x 5": dict(h=9, w=9, c=8, k=8, r=5, s=5, pad=2),
    "products on tensor cores": dict(h=8, w=8, c=16, k=16, pad=1, precision="3xtf32"),
}
TEMPLATES = {"cpu_winograd": "opencl", "gpu_winograd": AMPERE, "gpu_winograd_fused": AMPERE}


def replays(w, s, text=True):
    """The trace as it is, from JSON, and as Python; ``text``: to the same source, of trees that are printed alike."""
    fresh = tir.Schedule(w.outputs, target=s.target)
    exec(str(s.trace), {"s": fresh})
    for again in (fresh, *(tir.replay(w.outputs, trace, target=s.target) for trace in (s.trace, s.trace.to_json()))):
        assert again.tree() == s.tree() and again.definition == s.definition
        assert not identical(s.definition, again.outputs)
    assert not text or _without_reasons(fresh.source()) == _without_reasons(s.source())


def _without_reasons(source):
    """A text whose steps do not say why: these are comments in Python, which ``exec`` does not keep."""
    return [line for line in source.splitlines() if not line.startswith("// # ")]


@pytest.mark.parametrize("name", SHAPES)
def test_winograd_replays_on_the_definition(name):
    layout = ("NCHW", "NHWC")[list(SHAPES).index(name) % 2]
    w, done = tir.ops.conv2d(**{"layout": layout, **SHAPES[name]}), 0
    for template in TEMPLATES.keys() & set(w.templates):
        target = tir.Target.parse(TEMPLATES[template])
        space = w.templates[template].space_for(target)
        start = space.default
        for config in (start, space.config(len(space.legal) - 1)):
            s = w.schedule(config, template=template, target=target)
            assert [x.primitive for x in s.trace].index("redeclare") == 0
            assert s.definition == w.outputs
            replays(w, s, text=config is start)
            done += 1
    assert done >= 2


TILES = {
    "gpu_tile_warp": dict(li=8, ri=4, rj=4, wi=2, wj=4, bk=8, depth=2, in_flight=0, raster=1, atomic=0),
    "gpu_tile_mma": dict(bm=64, bn=64, wm=32, wn=32, bk=32, depth=2, in_flight=1, raster=1, atomic=0, staged=1),
    "gpu_tile_wgmma": dict(groups=1, pingpong=0, rows=1, bn=64, depth=2, cluster=1, raster=1, resident=1, atomic=0),
}
"""Blocks of 64 x 64."""
DTYPES = {"gpu_tile_mma": "float16", "gpu_tile_warp": "float32", "gpu_tile_wgmma": "bfloat16"}
EPILOGUES = (dict(m=193), dict(m=200, bias=True, act="relu", ta=True), dict(m=248, tb=True, beta=True, alpha=True))


@pytest.mark.parametrize("changed", EPILOGUES, ids=str)
@pytest.mark.parametrize("template", TILES)
def test_stream_k_replays_on_the_definition(template, changed):
    w = tir.ops.matmul(**{"n": 104, "k": 272, "dtype": DTYPES[template], **changed})
    target = tir.Target.parse(HOPPER if template == "gpu_tile_wgmma" else AMPERE)
    chosen = w.templates[template]
    config = chosen.space_for(target).canonical({**TILES[template], "splits": 2, "rest": 1})
    s = chosen.function(tir.Schedule(w.outputs, target), config)
    assert str(next(iter(s.trace))).startswith(f"s.redeclare('stream_k', rest={changed['m'] - 192})")
    replays(w, s)


def test_a_replayed_trace_computes_the_definition():
    w = tir.ops.conv2d(c=16, h=14, w=14, k=16, pad=1, bias=True, act="relu")
    target = tir.Target.parse("opencl -units=2")
    space = w.templates["cpu_winograd"].space_for(target)
    s = tir.replay(w.outputs, w.schedule({**space.default, "m": 4}, "cpu_winograd", target).trace)
    arrays = [np.random.default_rng(n).standard_normal(a.shape).astype("float32") for n, a in enumerate(w.inputs)]
    want = w.reference(*arrays)
    off = np.abs(s.build()(*arrays) - want).max() / np.abs(want).max()
    assert off <= s.allowed_error == 5e-5


@pytest.mark.parametrize("tile", [2, 4, 6])
def test_devices_are_held_to_the_definition_within_the_bound(tile):
    w = tir.ops.conv2d(c=64, h=14, w=14, k=32, pad=1, bias=True)
    s = tir.Schedule(w.outputs).redeclare("winograd", tile=tile)
    verdict = s.check("device")
    assert verdict and verdict.max_error <= s.allowed_error and "out.p=14" in verdict.shapes[0]
    part = s._part()
    assert part.outputs == w.outputs and part.max_error == s.allowed_error == s.build().max_error
