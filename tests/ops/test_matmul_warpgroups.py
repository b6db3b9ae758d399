"""matmul by warpgroups: what the default and other configurations compute, and where the template is no choice."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from emulating import beyond, emulated_rightly, small_integers
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.codec import decode, encode
from tensorir.codegen.instructions import rounded_tiles
from tensorir.codegen.source import Source
from tensorir.ir.build import const
from tensorir.ir.tree import Load, Store
from tensorir.ir.visit import sequence
from tensorir.lower.pipeline import lower
from tensorir.ops import matmul

HOPPER = "cuda -arch=sm_90a -units=4"
TILES = dict(groups=2, pingpong=0, rows=1, bn=64, depth=3, cluster=1, raster=1, resident=1, splits=1, atomic=0, rest=0)
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def work(**given):
    return matmul(**{**dict(m=136, n=136, k=200, dtype="bfloat16", tb=True), **given})


CASES = {
    "bf16 nt": dict(m=137),
    "fp16 nn": dict(dtype="float16", tb=False),
    "fp16 tt": dict(dtype="float16", ta=True),
    "epilogue": dict(bias=True, act="relu", beta=True),
    "batch": dict(batch=3, m=72, n=72),
    "int8": dict(dtype="int8", k=208),
    "e4m3": dict(dtype="float8_e4m3", m=137, n=72, k=208, alpha=True, bias=True),
    "e5m2": dict(dtype="float8_e5m2", m=72, n=140, k=144, batch=2),
    "tf32": dict(dtype="float32", precision="tf32"),
    "skinny": dict(m=16, n=264),
}


@emulated
@pytest.mark.parametrize("case", CASES)
def test_default_multiplies(case):
    w = work(**CASES[case])
    s = w.schedule(target=HOPPER)
    assert "tir_wgmma_m64" in s.source(), "the default template"
    halves = w.outputs[0].dtype in ("float16", "bfloat16") and w.outputs[0].shape[-1] % 8 == 0
    assert ("tir_stmatrix_x4(" in s.source()) == halves, "how results leave"
    assert emulated_rightly(w, s)


TURNS = {
    "two": dict(pingpong=1),
    "three, odd tiles, an epilogue": dict(pingpong=1, groups=3),
    "of two products each, in clusters": dict(pingpong=1, rows=2, cluster=2),
    "a third matrix": dict(pingpong=1),
    "a third matrix, two panels": dict(pingpong=1, bn=128, depth=2),
}


@emulated
@pytest.mark.parametrize("case", TURNS)
def test_warpgroups_take_turns(case):
    beta, finished = "third" in case, "epilogue" in case
    w = work(m=600, n=136, k=136, bias=finished, act="relu" if finished else None, beta=beta)
    s = w.schedule(TILES | TURNS[case], "gpu_tile_wgmma", HOPPER)
    assert "tir_barrier_wait(&order[turn]" in s.source()
    assert emulated_rightly(w, s, seed=2, eager=True)


@emulated
@pytest.mark.parametrize("bn", [256, 192, 128, 64])
@pytest.mark.parametrize("turned", [False, True])
def test_a_third_matrix_is_read_in_whole_sectors(bn, turned):
    """In panels of columns, so that shared memory has room for it next to results."""
    w = work(m=256, n=384, k=64, ta=turned, beta=True, alpha=True)
    s = w.schedule(TILES | dict(bn=bn, depth=2), "gpu_tile_wgmma", "cuda -arch=sm_90a")
    source = s.emitted()
    kept = (2 if bn == 64 else 1) * 2 * 128 * bn
    assert source.kernels[0].shared_bytes < 2 * 128 * (128 + bn) + kept + 1024
    arrays = small_integers(source)
    run = emulate(source, arrays)
    assert not run.problems and np.array_equal(run.outputs[0], w.reference(*arrays).astype(run.outputs[0].dtype))
    assert {t.what for t in run.traffic} >= {"shared read", "shared write", "global read", "global write"}
    assert all(t.units == t.ideal for t in run.traffic)


def test_turns_need_tiles():
    target = tir.Target.parse(HOPPER)
    space = work(m=600).templates["gpu_tile_wgmma"].space_for(target)
    config = {**space.default, **TILES}
    assert space.index({**config, "pingpong": 1}) >= 0
    assert space.index({**config, "pingpong": 1, "resident": 0}) < 0
    assert space.index({**config, "pingpong": 1, "groups": 1}) < 0
    deep = work(m=512, n=256, k=584)
    space = deep.templates["gpu_tile_wgmma"].space_for(target)
    for row in range(0, len(space.legal), 7):
        config = space.config(row)
        assert not (config["pingpong"] and config["splits"] > 1), "parts of a sum are no tiles"
    few = work(m=64, n=64).templates["gpu_tile_wgmma"].space_for(target)
    assert few.index({**few.default, "groups": 2, "pingpong": 1}) < 0, "less than a tile for each block"


@emulated
@settings(max_examples=6, deadline=None)
@drawn(
    st.integers(1, 600), st.integers(1, 24), st.integers(8, 40), st.integers(1, 2), st.integers(1, 2),
    st.integers(2, 4), st.sampled_from([1, 2]), st.booleans(), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_any_shape(m, n, k, groups, rows, depth, cluster, resident, seed, eager):
    w = work(m=m, n=8 * n, k=8 * k)
    config = TILES | dict(groups=groups, rows=rows, depth=depth, cluster=cluster, resident=int(resident))
    assert emulated_rightly(w, beyond(w, config, "gpu_tile_wgmma", HOPPER), seed, eager)


@emulated
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("tir_meet_cluster();", "__syncthreads();"),
        ("tir_barrier_arrive_at(", "if (0) tir_barrier_arrive_at("),
        (", 3, ", ", 1, "),  # blocks that a tile is for
        ("int left = 0; left < 3", "int left = 0; left < 2"),  # slots whose last arrivals are awaited
    ],
)
def test_clusters_are_watched(before, behind):
    from dataclasses import replace

    w = work(m=256, n=64, k=512)
    source = w.schedule(TILES | dict(groups=1, cluster=2), "gpu_tile_wgmma", HOPPER).emitted()
    arrays = small_integers(source)
    assert not emulate(source, arrays).problems
    body = source.text.index('extern "C"')
    text = source.text[:body] + source.text[body:].replace(before, behind)
    assert text != source.text
    assert emulate(replace(source, text=text), arrays).problems


@pytest.mark.parametrize(
    ("options", "kind"),
    [(dict(precision="tf32"), "tfloat32"), (dict(dtype="bfloat16"), "bfloat16"), (dict(dtype="int8"), "int8")],
)
def test_copies_round_what_products_would_cut_off(options, kind):
    source = matmul(m=128, n=128, k=128, tb=True, **options).schedule(None, "gpu_tile_wgmma", HOPPER).emitted()
    maps = {m.array: m.dtype for k in source.kernels for m in k.maps}
    assert (maps.pop("a"), maps.pop("b")) == (kind, kind)
    assert set(maps.values()) <= {"bfloat16"}, "results are not rounded on their way out"


def test_launches_say_how_large_clusters_are():
    w = matmul(m=256, n=128, k=128, dtype="bfloat16", tb=True)
    config = w.templates["gpu_tile_wgmma"].space_for(tir.Target.parse(HOPPER)).default
    for n in (1, 2):
        source = w.schedule({**config, "cluster": n}, "gpu_tile_wgmma", HOPPER).emitted()
        assert [k.cluster for k in source.kernels] == [n] and source.kernels[0].grid[0] % n == 0
        assert decode(Source, encode(source)).kernels == source.kernels


def test_what_threads_read_as_well_is_not_rounded():
    s = matmul(m=128, n=128, k=128, tb=True, precision="tf32").schedule(None, "gpu_tile_wgmma", HOPPER)
    body = lower(s.program, s.target).kernels[0].body
    tiles = {b.name: b for b in rounded_tiles(body)}
    assert set(tiles) == {"a_shared", "b_shared"}
    zero = const(0, "index")
    look = Store(tiles["a_shared"], (zero,), Load(tiles["b_shared"], (zero,), "float32"))
    assert {b.name for b in rounded_tiles(sequence([body, look]))} == {"a_shared"}


def test_what_does_not_fit_is_left_to_others():
    for given in (
        dict(k=201),
        dict(dtype="float32"),
        dict(dtype="int8", tb=False),
        dict(dtype="float8_e4m3", tb=False),
        dict(tb=False, n=132),
    ):
        assert "gpu_tile_wgmma" not in work(**given).templates, given
    assert "tir_wgmma" not in work().schedule(target="cuda -arch=sm_100").source(), "only sm_90a has them"


def test_products_of_three_warpgroups_have_the_registers_that_threads_have_at_launch():
    """128 for each of 512 threads: ptxas refuses wider ones (C7602), which the tests that compile would not meet."""
    space = work(m=4096, n=4096, k=4096).templates["gpu_tile_wgmma"].space_for(tir.Target.parse("cuda -arch=sm_90a"))
    space = space.pin(cluster=1, raster=1, resident=1, rest=0, splits=1)
    configs = [space.config(row) for row in range(len(space.legal))]
    assert {g: max(c["bn"] for c in configs if c["groups"] == g) for g in (2, 3)} == {2: 256, 3: 192}


def test_compiles():
    pytest.importorskip("cupy", reason="the extra 'cuda' is not installed: NVRTC cannot be loaded")
    from tensorir.runtime.cuda import compile_cubin

    large = dict(m=4096, n=4096, k=4096)
    turns = dict(
        groups=2, rows=2, bn=128, depth=4, cluster=1, raster=8, resident=1, splits=1, atomic=0, rest=0, pingpong=1
    )
    for given, config in (
        (large, None),
        ({**large, "tb": False}, None),
        (large, turns),
        (large, {**turns, "groups": 3, "rows": 1, "bn": 192, "depth": 2, "raster": 1, "pingpong": 0}),
        (dict(dtype="int8", k=208), None),
        ({**large, "dtype": "float8_e4m3"}, None),
        (dict(dtype="float8_e5m2", k=208), None),
    ):
        cubin = compile_cubin(work(**given).schedule(config, target="cuda -arch=sm_90a").source(), "sm_90a")
        assert cubin.spills == 0
        assert "C75" not in cubin.log
