"""The CPU algorithms of conv2d: each computes the convolution, whatever its shape, layout and configuration."""

import itertools
import random

import numpy as np
import pytest

import tensorir as tir
from tensorir import nn
from tensorir.algorithms import winograd
from tensorir.automatic.plan import plans
from tensorir.check.equivalence import compare
from tensorir.expr.compute import placeholder
from tensorir.interp.numbers import Field
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.ir.structure import identical
from tensorir.tune.template import suiting

pytestmark = pytest.mark.usefixtures("unoptimised")

CPU = "opencl -registers=16 -vector_bytes=32 -units=2"
WIDE = "opencl -registers=32 -vector_bytes=64 -units=2"
LAYOUTS = ("NCHW", "NHWC")
SHAPES = {
    "3x3": dict(c=9, h=7, w=9, k=19, pad=1),
    "3x3 no pad": dict(c=8, h=6, w=5, k=16),
    "3x3 stride 2": dict(c=5, h=9, w=8, k=17, pad=1, stride=2),
    "5x5": dict(c=8, h=8, w=8, k=16, r=5, s=5, pad=2),
    "dilated": dict(c=3, h=9, w=9, k=18, pad=2, dilation=2),
    "1x1": dict(c=10, h=5, w=7, k=33, r=1, s=1),
    "1x1 stride 2": dict(c=8, h=7, w=6, k=16, r=1, s=1, stride=2),
    "batch": dict(n=2, c=8, h=5, w=6, k=16, pad=1),
    "stem": dict(c=3, h=15, w=15, k=16, r=7, s=7, pad=3, stride=2),
}
CASES = [(name, layout) for name in SHAPES for layout in LAYOUTS]


def of_processors(work):
    """Those of GPUs, which take longer to make, are not asked for."""
    return [name for name, _ in suiting(work.templates, tir.Target.parse(CPU))]


def templates(work):
    return [n for n in of_processors(work) if n in ("cpu_tile_column", "cpu_tile_turned", "cpu_winograd")]


def pick(space, seed):
    return space.config(random.Random(seed).randrange(len(space.legal)))


def same_in_the_field(a, b):
    """Whether two declarations of the same inputs agree exactly, over the field of 2^31 - 1."""
    arrays = random_arguments((a,), 3, Field())
    return np.array_equal(evaluate((a,), arrays, Field())[0], evaluate((b,), arrays, Field())[0])


@pytest.mark.parametrize(("name", "layout", "prepack"), [(*case, n % 4 in (0, 3)) for n, case in enumerate(CASES)])
def test_any_configuration_equals_its_declaration(name, layout, prepack):
    work = tir.ops.conv2d(layout=layout, prepack=prepack, bias=True, act="relu", **SHAPES[name])
    for template in templates(work):
        target = WIDE if prepack else CPU
        space = work.templates[template].space_for(tir.Target.parse(target))
        config = pick(space, (name, layout, template, prepack).__repr__())
        s = work.schedule(config, template=template, target=target)
        assert compare(s, Field(), 1) is None, (template, config)


@pytest.mark.parametrize(("name", "layout"), [(name, LAYOUTS[n % 2]) for n, name in enumerate(SHAPES)])
def test_each_template_schedules_the_declared_convolution(name, layout):
    work = tir.ops.conv2d(layout=layout, bias=True, **SHAPES[name])
    for template in templates(work):
        s = work.schedule(template=template, target=CPU)
        assert s.definition == work.outputs and identical(s.outputs, s.definition) is (template != "cpu_winograd")
        again = tir.replay(work.outputs, s.trace.to_json(), target=CPU)
        assert again.tree() == s.tree()


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_winograd_declares_the_convolution(name, layout):
    p = {"n": 1, "r": 3, "s": 3, "stride": 1, "pad": 0, "dilation": 1, **SHAPES[name], "layout": layout}
    nchw = layout == "NCHW"
    x = placeholder((p["n"], p["c"], p["h"], p["w"]) if nchw else (p["n"], p["h"], p["w"], p["c"]), name="x")
    w = placeholder((p["k"], p["c"], p["r"], p["s"]) if nchw else (p["k"], p["r"], p["s"], p["c"]), name="w")
    want = nn.conv2d(x, w, stride=p["stride"], pad=p["pad"], dilation=p["dilation"], layout=layout)
    for m in winograd.SIZES.get(p["r"], ()) if p["stride"] == p["dilation"] == 1 else ():
        assert same_in_the_field(want, tir.Schedule(want).redeclare("winograd", tile=m, panel=16).outputs[0])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "uint8", "int32"])
def test_other_types_take_the_same_algorithms(dtype):
    for layout, target, name in (("NCHW", CPU, "3x3"), ("NHWC", WIDE, "1x1"), ("NHWC", CPU, "stem")):
        work = tir.ops.conv2d(layout=layout, dtype=dtype, prepack=True, **SHAPES[name])
        arrays = random_arguments(work.outputs, 3)
        want = work.reference(*arrays)
        for template in templates(work):
            got = np.asarray(work.schedule(template=template, target=target).build("opencl:pocl")(*arrays))
            assert got.dtype == want.dtype
            assert np.array_equal(got.astype("float64"), want.astype("float64")), (layout, name, template)


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5)])
def test_the_transforms_make_a_convolution(m, r):
    at, g, bt = (np.array(v, object) for v in winograd.matrices(m, r))
    rng = random.Random(m * 10 + r)
    taps = np.array([rng.randrange(-9, 10) for _ in range(r)], object)
    data = np.array([rng.randrange(-9, 10) for _ in range(m + r - 1)], object)
    assert list(at @ ((g @ taps) * (bt @ data))) == [sum(taps * data[i : i + r]) for i in range(m)]


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5)])
def test_the_stated_error_bound_holds(m, r):
    c, size, k = 256, 12, 16
    work = tir.ops.conv2d(c=c, h=size, w=size, k=k, r=r, s=r, pad=r // 2, max_error=1.0)
    space = work.templates["cpu_winograd"].space_for(tir.Target.parse(CPU))
    config = next(v for v in map(space.config, range(len(space.legal))) if (v["m"], v["tb"]) == (m, 1))
    s = work.schedule(config, "cpu_winograd", CPU)
    rng = np.random.default_rng(m)
    x, w = (rng.standard_normal(a.shape).astype(np.float32) for a in work.inputs)
    want = work.reference(x.astype(np.float64), w.astype(np.float64)).astype(np.float64)
    error = np.abs(np.asarray(s.build()(x, w)) - want).max() / np.abs(want).max()
    assert error <= winograd.error_bound(m, r)
    assert error >= winograd.error_bound(m, r) / 100, "the bound says more than is known"


@pytest.mark.parametrize(("layout", "image"), [("NCHW", "block"), ("NHWC", "block"), ("NCHW", "kernel")])
@pytest.mark.parametrize("shape", [(24, 9, 9, 40), (16, 5, 4, 16), (12, 7, 70, 33), (8, 6, 250, 17), (8, 4, 244, 16)])
def test_panels_of_tiles_are_rows_or_parts_of_them(shape, layout, image):
    """Tiles a row: 3, 1, 18, 63 in parts of 9, and 61."""
    c, h, w, k = shape
    work = tir.ops.conv2d(n=2, c=c, h=h, w=w, k=k, pad=1, layout=layout)
    space = work.templates["cpu_winograd"].space_for(tir.Target.parse(WIDE))
    found = [v for v in map(space.config, range(len(space.legal))) if (v["m"], v["image"]) == (4, image)]
    s = work.schedule(found[len(found) // 2], "cpu_winograd", WIDE)
    arrays = work.random_inputs(0)
    want = work.reference(*arrays)
    assert np.abs(np.asarray(s.build()(*arrays)) - want).max() <= 5e-5 * np.abs(want).max()


def test_max_error_decides_which_tiles_are_admissible():
    for error, tiles in ((1e-4, [4, 2]), (1e-5, [2]), (1e-2, [4, 2, 6])):
        assert winograd.allowed_tiles(3, error) == tiles
    assert "cpu_winograd" not in tir.ops.conv2d(pad=1, max_error=0).templates
    assert "cpu_winograd" in tir.ops.conv2d(pad=1).templates


@pytest.mark.parametrize("algorithm", ["cpu_tile_column", "cpu_winograd"])
@pytest.mark.parametrize(("layout", "target"), [("NCHW", CPU), ("NHWC", WIDE)])
def test_bias_residual_and_activation_join_the_kernel(layout, algorithm, target):
    work = tir.ops.conv2d(c=8, h=9, w=9, k=16, pad=1, layout=layout, bias=True, residual=True, act="relu", prepack=True)
    assert [a.name for a in work.inputs] == ["x", "w", "b", "residual"]
    s = work.schedule(template=algorithm, target=target)
    f = s.build()
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(a.shape).astype(np.float32) for a in work.inputs]
    np.testing.assert_allclose(np.asarray(f(*arrays)), work.reference(*arrays), rtol=1e-3, atol=1e-3)
    apart = work.templates[algorithm].space_for(s.target).default.get("image", "kernel") == "kernel"  # padded by one
    assert sum(not k.once for k in s.emitted().kernels) == 1 + apart


def test_convolutions_by_rules_keep_a_padded_image_and_packed_filters_at_most():
    for r, layout in itertools.product((1, 3), LAYOUTS):
        work = tir.ops.conv2d(c=16, h=14, w=14, k=32, r=r, s=r, pad=r // 2, layout=layout)
        s = work.schedule(template=next(n for n in work.templates if n in tir.auto(work.outputs)), target=CPU)
        source = s.emitted()
        assert len(source.kernels) <= 1 + 2 * (r > 1)
        assert source.workspace_bytes <= (4 * 16 * 16 * 16 + 4 * 16 * 32 * 9 if r > 1 else 0)
        assert s.check()


def test_what_is_legal_fits_in_the_memory_of_a_block():
    work = tir.ops.conv2d(c=5, h=9, w=11, k=7, pad=1)
    for size in (3072, 16384):
        small = tir.Target.parse(f"c -registers=16 -vector_bytes=32 -shared_bytes={size} -shared_optin_bytes={size}")
        part = plans(work.outputs, small)["cpu_tile_image"].main
        for config in itertools.islice(part.legal(), 0, None, 97):
            assert work.schedule({**config}, "cpu_tile_image", small).emitted().kernels[-1].shared_bytes <= size


@pytest.mark.parametrize("options", [
    dict(c=3, h=23, w=19, k=20, r=5, s=3, stride=2, pad=2, layout="NHWC"),
    dict(c=3, h=23, w=19, k=20, r=5, s=3, stride=2, pad=2, layout="NCHW", dtype="float16"),
    dict(n=2, c=17, h=12, w=9, k=33, r=3, s=3, pad=1, layout="NHWC", bias=True, act="relu"),
    dict(n=3, c=2, h=9, w=30, k=16, r=3, s=2, dilation=2, pad=3, layout="NCHW", dtype="int8"),
])  # fmt: skip
def test_blocks_keep_what_their_rows_read_of_a_padded_image(options):
    work = tir.ops.conv2d(**options)
    (part,) = plans(work.outputs, tir.Target.parse(CPU))["cpu_tile_image"].parts
    rows = [n for n in part.every["rows"] if next(part.legal(rows=n), None)]
    assert len(rows) > 1
    for n in rows:
        config = min(part.legal(rows=n), key=part.expected())
        s = work.schedule(config, "cpu_tile_image", CPU)
        assert s.emitted().kernels[-1].shared_bytes <= part.engine(config, part.p, s.target).block_bytes
        assert compare(s, Field(), 1) is None
    assert s.check()


@pytest.mark.parametrize("template", ["cpu_tile_column", "cpu_winograd", "cpu_tile_turned", "cpu_tile_image"])
@pytest.mark.parametrize("target", [CPU, WIDE])
def test_the_trace_replays_to_the_same_source(template, target):
    r = 1 if template == "cpu_tile_column" else 3
    work = tir.ops.conv2d(c=16, h=13, w=13, k=32, r=r, s=r, pad=r // 2, prepack=True)
    s = work.schedule(template=template, target=target)
    assert tir.replay(work.outputs, s.trace.to_json(), target=target).source() == s.source()


@pytest.mark.parametrize("template", ["cpu_tile_turned", "cpu_winograd"])
def test_checks_vary_the_shape(template):
    work = tir.ops.conv2d(c=12, h=10, w=11, k=24, pad=1, prepack=True)
    verdict = work.schedule(template=template, target=CPU).check()
    assert verdict
    assert len(verdict.shapes) >= 3


@pytest.mark.parametrize("limits", [*(f"-vector_bytes={n}" for n in (4, 48)), "-registers=4"])
def test_any_core_has_a_space(limits):
    target = f"opencl {limits}"
    works = [
        tir.ops.conv2d(layout=layout, **SHAPES[name]) for layout, name in zip(LAYOUTS, ("3x3", "1x1"), strict=True)
    ]
    works.append(tir.ops.conv2d(c=8, h=9, w=9, k=8, groups=8, pad=1, layout="NHWC"))
    works.append(tir.ops.conv2d(c=4, h=9, w=9, k=8, groups=4, pad=1, dtype="int8"))
    works.append(tir.ops.conv2d(c=8, h=9, w=9, k=24, groups=2, pad=1))
    works.append(tir.ops.matmul(m=9, n=20, k=7))
    for work in works:
        for template in of_processors(work):
            s = work.schedule(template=template, target=target)
            assert compare(s, Field(), 1) is None, (work.title, template)


@pytest.mark.parametrize(("k", "h", "tile", "pack"), [
    (16, 8, 8, "block"), (13, 8, 8, "kernel"), (16, 13, 14, "kernel"), (24, 5, 4, "block"), (37, 27, 6, "block"),
    (37, 27, 6, "kernel"),
])  # fmt: skip
def test_results_of_channels_in_lanes_leave_by_pixels(k, h, tile, pack):
    """Elements of windows are read where they are stored, and panels of filters are packed."""
    work = tir.ops.conv2d(n=2, c=5, h=h, w=h, k=k, pad=1)
    for target in (CPU, WIDE):
        space = work.templates["cpu_tile_turned"].space_for(tir.Target.parse(target))
        config = {**space.default, "tile": tile, "vectors": 1, "panels": 1, "rows": 0, "pack": pack}
        s = work.templates["cpu_tile_turned"].function(tir.Schedule(work.outputs, target), config)
        assert "tir_transpose_" in s.source(), "no element of the result is stored alone"
        assert compare(s, Field(), 1) is None
    assert s.check()


def test_windows_by_channels_are_an_alternative_where_pixels_follow_each_other():
    for options in (dict(layout="NHWC"), dict(layout="NCHW", r=1, s=1)):
        assert "cpu_tile_turned" not in of_processors(tir.ops.conv2d(c=16, h=14, w=14, k=32, **options))
    assert "cpu_tile_turned" in of_processors(tir.ops.conv2d(c=16, h=14, w=14, k=32))
    assert "cpu_tile_turned" in of_processors(tir.ops.conv2d(c=16, h=14, w=14, k=32, r=1, s=1, prepack=True))
    assert "cpu_tile_turned" in of_processors(tir.ops.conv2d_backward_data(c=16, h=14, w=14, k=32))


def test_a_convolution_begins_with_what_the_models_expect_to_be_faster_on_a_target():
    work = tir.ops.conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
    assert work.template_for(WIDE) == "cpu_tile_image"
    names = [n for n in of_processors(work) if "_tile" in n]
    spaces = {n: work.templates[n].space_for(tir.Target.parse(WIDE)) for n in names}
    expected = {n: s.expected_s(s.default) for n, s in spaces.items()}
    assert len(names) == 4 and min(expected, key=expected.get) == work.template_for(WIDE)


def test_constant_filters_are_packed_once_where_lanes_are_along_them():
    for options, name, packed in (
        (dict(layout="NHWC"), "cpu_tile_column", 1), (dict(layout="NCHW"), "cpu_tile_turned", 1),
        (dict(layout="NCHW", r=1, s=1), "cpu_tile_turned", 1), (dict(layout="NCHW", r=1, s=1), "cpu_tile_column", 0),
    ):  # fmt: skip
        work = tir.ops.conv2d(c=16, h=14, w=14, k=32, prepack=True, **options)
        kernels = work.schedule(template=name, target=CPU).emitted().kernels
        assert [k.once for k in kernels] == packed * [True] + [False]
    work = tir.ops.conv2d(c=16, h=14, w=14, k=32, pad=1, prepack=True)
    assert work.template_for(CPU) == "cpu_winograd"
    assert "prepack=1" in work.title
    assert "prepack" not in tir.ops.conv2d(c=16, h=14, w=14, k=32, pad=1).title
