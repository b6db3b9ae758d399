"""Products on GPUs, by whichever axes a declaration says them: right at awkward extents, emulated, by the engines."""

import numpy as np
import pytest
from gram_sums import gram

import tensorir as tir
from tensorir.automatic.facts import Graph
from tensorir.automatic.rules.matrix_view import matrix_view
from tensorir.automatic.rules.tile_gpu import ENGINES, offers
from tensorir.check.emulate import emulate
from tensorir.engines import blocks
from tensorir.interp.reference import evaluate, random_arguments

LEGAL = 5000
AMPERE, HOPPER = "cuda -arch=sm_80", "cuda -arch=sm_90a"


def product(m, n, k, dtype="float32", apart=0, ta=False, tb=False):
    lead = (apart,) if apart else ()
    a = tir.placeholder(lead + ((k, m) if ta else (m, k)), dtype, name="A")
    b = tir.placeholder(lead + ((n, k) if tb else (k, n)), dtype, name="B")
    wide = {"float32": None, "int8": "int32"}.get(dtype, "float32")
    return tir.nn.matmul(a, b, ta=ta, tb=tb, accumulate=wide, name="P")


def finished(m, n, k, dtype):
    """Bias, residual and activation, and the operands' type again."""
    P = product(m, n, k, dtype)
    v, r = tir.placeholder((n,), dtype, name="v"), tir.placeholder((m, n), dtype, name="R")
    return tir.compute((m, n), lambda i, j: (tir.maximum(P[i, j] + v[j], 0) + r[i, j]).astype(dtype), name="Y")


def distances(m, n, k):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    c = tir.reduce_axis(k, name="c")
    return tir.compute((m, n), lambda i, j: tir.max(tir.abs(A[i, c] - B[c, j]), axis=c), name="D")


def image(n, c, h, w, k, r, dtype="float32", layout="NCHW", **options):
    """A convolution with an activation behind it."""
    first, groups = layout == "NCHW", options.get("groups", 1)
    x = tir.placeholder((n, c, h, w) if first else (n, h, w, c), dtype, name="x")
    f = tir.placeholder((k, c // groups, r, r) if first else (k, r, r, c // groups), dtype, name="w")
    wide = None if dtype == "float32" else "float32"
    y = tir.nn.conv2d(x, f, layout=layout, accumulate=wide, **options)
    return tir.compute(y.shape, lambda *at: tir.maximum(y[at], 0).astype(dtype), name="out")


DEFINITIONS = {
    "primes": ("_warp", product(7, 13, 5)),
    "a tile and one more, turned": ("_warp", product(33, 65, 17, ta=True, tb=True)),
    "many": ("_warp", product(15, 31, 9, apart=3)),
    "finished": ("_warp", finished(13, 19, 6, "float32")),
    "distances": ("_warp", distances(9, 18, 7)),
    "of one matrix with itself": ("_warp", tir.nn.matmul(*[tir.placeholder((17, 17), name="A")] * 2, name="P")),
    "rows of one matrix": ("_warp", gram(19, 7)),
    "columns of one matrix": ("_warp", gram(6, 21, ta=True)),
    "distances of rows": ("_warp", gram(9, 11, value=lambda a, b: (a - b) * (a - b))),
    "of 8 bits, of one matrix": ("_mma", gram(33, 64, "int8")),
    "of 16 bits": ("_mma", finished(31, 40, 33, "float16")),
    "of 16 bits, turned": ("_mma", product(40, 48, 64, "bfloat16", ta=True)),
    "of 8 bits": ("_mma", product(17, 64, 64, "int8", tb=True)),
    "strided taps": ("_warp", image(2, 3, 11, 9, 4, 3, pad=1, stride=2)),
    "dilated taps": ("_warp", image(1, 4, 9, 9, 6, 3, pad=2, dilation=2)),
    "taps, channels last": ("_mma", image(2, 16, 6, 7, 24, 3, "float16", "NHWC", pad=1)),
    "groups": ("", image(1, 8, 6, 6, 16, 3, pad=1, groups=2)),
    "groups of whole tiles": ("_warp", image(1, 8, 6, 6, 64, 3, pad=1, groups=2)),
    "groups, channels last": ("", image(2, 16, 6, 6, 32, 3, "float16", "NHWC", pad=1, groups=2)),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_engine_is_right(name):
    way, y = DEFINITIONS[name]
    found = {n: t for n, t in tir.auto(y, AMPERE).items() if n.startswith("gpu_tile")}
    assert next(iter(found)) == f"gpu_tile{way}"
    for rank, template in enumerate(found.values()):
        s = tir.Schedule(y, AMPERE)
        space = template.space_for(s.target)
        assert 0 < len(space.legal) <= LEGAL
        template.function(s, space.default)
        assert len(s.emitted().kernels) == 1
        assert s.check("fast" if rank else "emulate")
    assert str(tir.replay(y, s.trace, s.target)) == str(s)


@pytest.mark.parametrize("y", [finished(70, 72, 136, "float16"), product(64, 96, 128, "int8", tb=True),
                               image(2, 40, 6, 6, 32, 3, "float16", "NHWC", pad=1)])  # fmt: skip
def test_warpgroups_are_right(y):
    name, template = next(iter(tir.auto(y, HOPPER).items()))
    s = tir.Schedule(y, HOPPER)
    template.function(s, template.space_for(s.target).default)
    assert name == "gpu_tile_wgmma" and template.needs == "sm_90a"
    assert len(s.emitted().kernels) == 1 and "wgmma" in s.source() and s.check("emulate")


RESULTS = {
    "channels last": image(1, 32, 16, 16, 64, 3, "float16", "NHWC", pad=1),
    "channels first": image(1, 32, 16, 16, 64, 3, "bfloat16", pad=1),
    "channels first, pairs": image(2, 32, 6, 6, 64, 3, "float16", pad=1),
    "groups": image(1, 128, 8, 8, 256, 3, "float16", "NHWC", pad=1, groups=2),
    "awkward": image(2, 24, 5, 7, 40, 3, "float16", "NHWC", pad=1),
}


@pytest.mark.parametrize("target", [AMPERE, HOPPER])
@pytest.mark.parametrize("name", RESULTS)
def test_results_of_taps_leave_in_whole_sectors(name, target):
    y = RESULTS[name]
    template, s = tir.auto(y, target)["gpu_tile_mma"], tir.Schedule(y, target)
    config = template.space_for(s.target).default
    template.function(s, config)
    assert config["staged"] and ("stmatrix" in s.source()) == (target == HOPPER)
    assert s.check("emulate" if name == "awkward" else "fast")
    kinds = () if name == "awkward" else ("shared read", "shared write", "global write")
    kinds = kinds[:2] if "pairs" in name else kinds  # rows of 36 pixels begin within sectors
    run = emulate(s.emitted(), arrays := random_arguments(s.outputs, 0))
    assert not run.problems and np.array_equal(run.outputs[0], evaluate(s.outputs, arrays)[0])
    traffic = [t for t in run.traffic if t.what in kinds]
    assert {t.what for t in traffic} == {*kinds} and all(t.units == t.ideal for t in traffic)


@pytest.mark.parametrize("target", [AMPERE, HOPPER])
@pytest.mark.parametrize(("layout", "n"), [("NHWC", 1), ("NHWC", 8), ("NCHW", 8)])
def test_a_residual_is_read_in_whole_sectors(layout, n, target):
    """By way of shared memory; beside parts of a sum, in vectors."""
    shape = (n, 16, 16, 64) if layout == "NHWC" else (n, 64, 16, 16)
    y = image(n, 64, 16, 16, 64, 3, "float16", layout, pad=1)
    z = tir.placeholder(shape, "float16", name="z")
    out = tir.compute(shape, lambda *at: tir.maximum(y[at].astype("float32") + z[at], 0).astype("float16"), name="sum")
    s, ways = tir.Schedule(out, target), tir.auto(out, target)
    tile = "gpu_tile_wgmma" if target == HOPPER and layout == "NHWC" else "gpu_tile_mma"
    assert next(iter(ways)) == ("gpu_tensor" if (layout, n, target) == ("NHWC", 8, AMPERE) else tile)
    ways[tile].function(s, ways[tile].space_for(s.target).default)
    assert ("z_packed_shared" in s.source()) == (n == 8 or target == HOPPER)
    run = emulate(s.emitted(), arrays := random_arguments(s.outputs, 0))
    assert not run.problems and np.array_equal(run.outputs[0], evaluate(s.outputs, arrays)[0])
    assert {t.what for t in run.traffic} >= {"global read", "global write"}
    assert all(t.units == t.ideal for t in run.traffic)


def conflicts(y, target, way):
    """Wavefronts of shared memory beyond the fewest, of a template's default."""
    s = tir.Schedule(y, target)
    template = tir.auto(y, target)[f"gpu_tile_{way}"]
    template.function(s, template.space_for(s.target).default)
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    assert not run.problems
    return sum(t.units - t.ideal for t in run.traffic if t.what.startswith("shared"))


def test_bytes_that_lanes_read_one_by_one_are_in_different_banks():
    assert conflicts(product(128, 128, 128, "int8"), AMPERE, "mma") == 0


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_filters_of_one_tap_are_copied_in_vectors(layout):
    assert conflicts(image(1, 32, 8, 8, 64, 1, layout=layout), AMPERE, "warp") == 0


def test_elements_that_are_copied_by_themselves_are_in_different_banks():
    """Three channels have no vectors."""
    y, target = image(1, 3, 18, 18, 64, 7, layout="NHWC", stride=2), tir.Target.parse(AMPERE)
    template = tir.auto(y, AMPERE)["gpu_tile_warp"]
    config = {**template.space_for(target).default, "bk": 8}
    s = tir.Schedule(y, AMPERE)
    template.function(s, config)
    traffic = emulate(s.emitted(), random_arguments(s.outputs, 0)).traffic
    assert all(t.units == t.ideal for t in traffic if t.what.startswith("shared"))


def test_no_matrix_is_stored_of_what_taps_read():
    s = tir.auto_schedule(DEFINITIONS["taps, channels last"][1], AMPERE)
    assert s.source().count("__global__") == 1 and "mma" in s.source()


@pytest.mark.parametrize("name", ["finished", "strided taps"])
def test_other_configurations_are_right(name):
    y = DEFINITIONS[name][1]
    template = tir.auto(y, AMPERE)["gpu_tile_warp"]
    space = template.space_for(tir.Target.parse(AMPERE))
    for row in range(0, len(space.legal), max(1, len(space.legal) // 4)):
        s = tir.Schedule(y, AMPERE)
        template.function(s, space.config(row))
        assert s.check(), space.config(row)


def test_parts_of_a_reduction_end_where_steps_do():
    y = image(2, 64, 6, 6, 32, 3, "float16", "NHWC", pad=1)
    space = tir.auto(y, HOPPER)["gpu_tile_wgmma"].space_for(tir.Target.parse(HOPPER))
    parts = {space.config(row)["splits"] for row in range(len(space.legal))}
    assert parts <= {1, 3, 9} and "groups" not in space.where, "of 9 steps of 64"


def test_tiles_of_instructions_are_those_of_one_group():
    y = image(1, 16, 6, 6, 64, 3, "float16", pad=1, groups=2)
    assert "gpu_tile_mma" not in tir.auto(y, AMPERE), "32 rows of a group, and 64 of the smallest block"


def test_axes_are_rows_columns_terms_or_apart():
    def view(y):
        nests = Graph(tir.Schedule(y, AMPERE).program).nests.values()
        v = next(v for n in nests if n.reuses and (v := matrix_view(n)))
        return {k: [d.it.var.name + d.said for d in getattr(v, k)] for k in ("apart", "rows", "columns", "terms")}, v

    axes, v = view(image(2, 8, 6, 6, 16, 3, pad=1, groups=2))
    assert axes == {"apart": ["k/8"], "rows": ["k%8"], "columns": ["n", "p", "q"], "terms": ["c", "r", "s"]}
    assert (v.gemm.m, v.gemm.n, v.gemm.k, v.gemm.batch) == (8, 72, 36, 2)
    axes, v = view(image(2, 8, 6, 6, 16, 3, layout="NHWC"))
    assert axes == {"apart": [], "rows": ["n", "p", "q"], "columns": ["k"], "terms": ["r", "s", "c"]}
    assert (v.gemm.ta, v.gemm.tb, v.gemm.in_rows) == (False, True, False)
    assert v.stepped(64).gemm.k == 9 * 64


def test_no_product_is_offered_where_there_is_none():
    A = tir.placeholder((8, 8), name="A")
    c = tir.reduce_axis(8, name="c")
    cube = tir.compute((8, 8), lambda i, j: tir.sum(A[i, c] * A[c, j] * A[j, c], axis=c), name="Y")
    s = tir.Schedule(cube, AMPERE)
    graph = Graph(s.program)
    assert not list(offers(graph, graph.nests["Y"], s.target)), "of three operands"
    assert tir.auto_schedule(cube, AMPERE).check("emulate")
    row = tir.Schedule(product(1, 40, 30), AMPERE)
    graph = Graph(row.program)
    (anchor,) = graph.nests.values()
    assert not list(offers(graph, anchor, row.target)), "one row has no reuse"
    depthwise = tir.auto(image(1, 8, 6, 6, 8, 3, pad=1, groups=8), AMPERE)
    assert not any(name.removeprefix("gpu_") in ENGINES for name in depthwise)


@pytest.mark.parametrize("target", ["opencl -kind=gpu", "cuda -arch=sm_70", "hip"])
def test_other_gpus_have_tiles(target):
    y = finished(13, 19, 6, "float32")
    name, template = next(iter(tir.auto(y, target).items()))
    s = tir.Schedule(y, target)
    template.function(s, template.space_for(s.target).default)
    assert name.startswith("gpu_tile") and s.check()


def test_a_batch_of_one_is_a_product():
    a, b = (tir.placeholder((1, m, n), name=x) for x, m, n in (("a", 128, 64), ("b", 64, 96)))
    k = tir.reduce_axis(64, name="k")
    c = tir.compute((1, 128, 96), lambda z, i, j: tir.sum(a[z, i, k] * b[z, k, j], axis=k), name="c")
    assert next(iter(tir.auto(c, "cuda -arch=sm_80"))).startswith("gpu_tile")
    assert tir.auto_schedule(c, "cuda -arch=sm_80").check()


def test_a_product_of_a_product_is_copied_by_its_rows_and_columns():
    """What one kernel leaves for a tensor copy of the next keeps the dimensions that the copy is told places in."""
    A, B, C = (tir.placeholder(s, "float16", name=n) for n, s in (("A", (31, 31)), ("B", (64, 31)), ("C", (2, 64))))
    first = tir.nn.matmul(A, B, tb=True, name="first")
    s = tir.auto_schedule(tir.nn.matmul(first, C, tb=True, accumulate="float32", name="second"), HOPPER)
    maps = {m.array: m.shape for k in s.emitted().kernels for m in k.maps}
    assert maps == {"first": (31, 64), "C": (2, 64)} and s.emitted().workspace_bytes == 2 * 31 * 64
    assert s.check() and s.check("emulate")


def test_a_start_is_what_is_wanted_or_the_first_that_leaves_room_for_other_blocks():
    knobs, room = {"kb": [64, 48, 32, 16]}, lambda c: c["kb"] * 1024
    assert blocks.start(knobs, {}, room, {"kb": 48}) == {"kb": 48}
    assert blocks.start(knobs, {}, room, {"kb": 64}) == {"kb": 48} == blocks.start(knobs, {}, room)
    assert blocks.start({"kb": [128, 64, 96]}, {}, room) == {"kb": 64}, "the least, where none leaves any"
    assert blocks.start(knobs, {"none": lambda c: False}, room) is None
