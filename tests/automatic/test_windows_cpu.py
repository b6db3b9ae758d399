"""Register tiles of cells that share what they read: right at awkward extents, borders and data-dependent places."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.arith.access import grouped
from tensorir.automatic.facts import Graph
from tensorir.automatic.plan import plans
from tensorir.automatic.rules.window_reads import Reads, borders
from tensorir.automatic.rules.window_walk import balanced, parted, shifted

CPUS = ("opencl -registers=16 -vector_bytes=32 -units=2", "c -registers=32 -vector_bytes=64 -units=2")
NAME = "cpu_tile_registers"


def conv(n, c, h, w, k, r, dtype="float32", **options):
    layout, groups = options.get("layout", "NCHW"), options.get("groups", 1)
    x, f = ((n, c, h, w), (k, c // groups, r, r)) if layout == "NCHW" else ((n, h, w, c), (k, r, r, c // groups))
    wide = "float32" if dtype == "float16" else None
    return tir.nn.conv2d(
        tir.placeholder(x, dtype, name="x"), tir.placeholder(f, dtype, name="w"), accumulate=wide, **options
    )


def blur(h, w):
    """Halide's: both passes, clamped at the borders."""
    A = tir.placeholder((h, w), name="A")

    def at(i, j):
        return A[tir.minimum(tir.maximum(i, 0), h - 1), tir.minimum(tir.maximum(j, 0), w - 1)]

    x = tir.compute((h, w), lambda i, j: (at(i, j - 1) + at(i, j) + at(i, j + 1)) / 3, name="bx")
    return tir.compute((h - 2, w), lambda i, j: (x[i, j] + x[i + 1, j] + x[i + 2, j]) / 3, name="by")


def smoothed(h, w, r=3):
    A, f = tir.placeholder((h, w), name="A"), tir.placeholder((r, r), name="f")
    a, b = tir.reduce_axis(r, name="a"), tir.reduce_axis(r, name="b")
    half = r // 2
    return tir.compute(
        (h, w), lambda i, j: tir.sum(A.get(i + a - half, j + b - half, fill=0) * f[a, b], axis=(a, b)), name="S"
    )


def bilateral(h, w):
    A = tir.placeholder((h + 4, w + 4), name="A")
    a, b, c, d = (tir.reduce_axis(5, name=x) for x in "abcd")

    def weight(i, j, a, b):
        return tir.exp(-tir.abs(A[i + a, j + b] - A[i + 2, j + 2]))

    N = tir.compute((h, w), lambda i, j: tir.sum(weight(i, j, a, b) * A[i + a, j + b], axis=(a, b)), name="N")
    D = tir.compute((h, w), lambda i, j: tir.sum(weight(i, j, c, d), axis=(c, d)), name="D")
    return tir.compute((h, w), lambda i, j: N[i, j] / D[i, j], name="Y")


def masked(c, h, w, k):
    """A convolution whose taps each pixel weighs by itself, by a mask that is learned."""
    x, f = tir.placeholder((c, h, w), name="x"), tir.placeholder((k, c, 3, 3), name="f")
    m = tir.placeholder((3, 3, h - 2, w - 2), name="m")
    t = [tir.reduce_axis(e, name=v) for e, v in ((c, "c"), (3, "r"), (3, "s"))]
    return tir.compute(
        (k, h - 2, w - 2),
        lambda o, p, q: tir.sum(x[t[0], p + t[1], q + t[2]] * f[(o, *t)] * m[t[1], t[2], p, q], axis=tuple(t)),
        name="Y",
    )


def signal(n, taps=7):
    A, f = tir.placeholder((n,), name="A"), tir.placeholder((taps,), name="f")
    a = tir.reduce_axis(taps, name="a")
    return tir.compute((n,), lambda i: tir.sum(A.get(i + a - taps // 2, fill=0) * f[a], axis=a), name="S")


def with_epilogue():
    y = conv(1, 6, 9, 13, 6, 3, groups=6, pad=1)
    b = tir.placeholder((6,), name="b")
    return tir.compute(y.shape, lambda n, k, p, q: tir.maximum(y[n, k, p, q] + b[k], 0), name="Z")


DEFINITIONS = {
    "planes": conv(1, 3, 11, 17, 3, 3, groups=3, pad=1),
    "planes of few pixels": conv(2, 5, 7, 7, 5, 3, groups=5, pad=1),
    "large taps": conv(1, 2, 13, 19, 2, 7, groups=2, pad=3),
    "strided planes": conv(1, 3, 23, 21, 3, 3, groups=3, pad=1, stride=2),
    "dilated planes": conv(1, 3, 15, 21, 3, 3, groups=3, pad=2, dilation=2),
    "channels last": conv(1, 18, 9, 11, 18, 3, groups=18, pad=1, layout="NHWC"),
    "strided channels last": conv(1, 16, 11, 9, 16, 3, groups=16, pad=1, stride=2, layout="NHWC"),
    "several of a channel": conv(1, 3, 9, 17, 6, 3, groups=3, pad=1),
    "groups": conv(1, 8, 9, 17, 12, 3, groups=4, pad=1),
    "groups of prime width": conv(1, 10, 6, 19, 15, 3, groups=5),
    "16 bits": conv(1, 3, 9, 17, 3, 3, dtype="float16", groups=3, pad=1),
    "16 bits, channels last": conv(2, 18, 8, 9, 18, 3, dtype="float16", groups=18, pad=1, stride=2, layout="NHWC"),
    "16 bits without padding": conv(1, 4, 9, 19, 8, 3, dtype="float16", groups=4, dilation=2),
    "several of a channel, channels last": conv(1, 6, 7, 9, 18, 3, groups=6, pad=1, layout="NHWC"),
    "groups, channels last": conv(1, 6, 7, 9, 16, 3, groups=2, pad=1, layout="NHWC"),
    "groups of 16 bits": conv(1, 8, 6, 9, 12, 3, dtype="float16", groups=4, pad=2),
    "blur": blur(37, 50),
    "smoothed": smoothed(19, 45),
    "smoothed by 5": smoothed(8, 16, 5),
    "bilateral": bilateral(9, 18),
    "mask": masked(3, 10, 19, 5),
    "signal": signal(1000),
    "short signal": signal(9),
    "epilogue": with_epilogue(),
}  # fmt: skip


@pytest.mark.parametrize("target", CPUS)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_cells_are_right_at_the_start_and_elsewhere(name, target):
    """Elsewhere is at a third of a space on one target, which starts as well, at its end on the other."""
    y = DEFINITIONS[name]
    found = tir.auto(y, target)
    assert NAME in found, list(found)
    template = found[NAME]
    space = template.space_for(tir.Target.parse(target))
    assert 0 < len(space.legal) <= 5000
    count = len(space.legal)
    for config in (space.default, space.config(count // 3)) if target == CPUS[0] else (space.config(count - 1),):
        s = tir.Schedule(y, target)
        template.function(s, config)
        assert s.check(), config
    assert str(tir.replay(y, s.trace, s.target)) == str(s) and s.source()


def nest_of(y, name):
    s = tir.Schedule(y, CPUS[0])
    if "x_pad" in s.index.stages:
        s.compute_inline("x_pad")
    return Graph(s.program).nests[name]


def test_loads_that_neighbours_share_count_once():
    y = nest_of(conv(1, 3, 11, 17, 3, 3, groups=3, pad=1), "y")
    _, k, p, q = (it.var for it in y.spatial)
    reads, taps = Reads(y), {it.var: 3 for it in y.reduced if it.extent.value == 3}
    image, filters = reads.groups
    assert (image.places({**taps, p: 4}), filters.places({**taps, p: 4})) == (18, 9), "4 rows and 3 taps read 6 rows"
    assert reads.shares(p) and not reads.shares(k)
    assert (image.step(q), image.step(p), filters.step(q)) == (1, 17, 0)


def test_loads_of_a_stencil_are_one_group():
    by = nest_of(blur(37, 50), "by")
    assert Reads(by).groups[0].places({}) == 3


def test_tiles_at_borders_are_those_whose_conditions_are_open():
    y = nest_of(conv(1, 3, 11, 64, 3, 3, groups=3, pad=1), "y")
    q = y.spatial[3]
    assert borders([(y, q)], shifted(64, 16)) == (1, 3)
    assert borders([(y, q)], shifted(64, 32)) == (2, 2), "both are at a border"
    assert borders([(y, y.spatial[1])], [(0, 1), (1, 2)]) is None, "channels have no conditions"
    assert (balanced(10, 4), shifted(10, 4)) == ([(0, 4), (4, 7), (7, 10)], [(0, 4), (4, 8), (6, 10)])


def walk_of(y, **sizes):
    (plan, *_) = plans((y,), tir.Target.parse(CPUS[0])).values()
    return plan.main._walk({**plan.space().default, **sizes})


def test_blocks_are_whole_tiles_and_do_not_overlap():
    planes = conv(1, 256, 28, 28, 256, 3, groups=256, pad=1)
    shares = walk_of(planes, rows=4, lanes=8, vectors=1, block=8192).shares
    assert [(x.blocks, x.each) for x in shares] == [(1, 1), (32, 8), (1, 7), (1, 4)], "25 would not divide 256"
    lines = conv(1, 32, 112, 112, 32, 3, groups=32, pad=1, layout="NHWC")
    shares = walk_of(lines, rows=2, several=4, vectors=1, block=32768).shares
    assert shares[1] == (28, 1), "each knows whether it is at a border"
    assert [parted(256, 25), parted(23, 4), parted(7, 7)] == [8, 6, 1]


def test_short_rows_have_the_longest_vectors_that_fit():
    (plan, *_) = plans((conv(1, 64, 7, 7, 64, 3, groups=64, pad=1),), tir.Target.parse(CPUS[0])).values()
    assert plan.space().default["lanes"] == 4


def test_iterations_of_a_group_stay_together():
    y = nest_of(conv(1, 8, 9, 17, 12, 3, groups=4, pad=1), "y")
    assert grouped(y.loads, y.spatial[1].var) == 3
    (plan, *_) = plans((conv(1, 8, 9, 17, 12, 3, groups=4, pad=1),), tir.Target.parse(CPUS[0])).values()
    assert all(c["several"] in (1, 3) for c in map(plan.space().config, range(len(plan.space().legal))))


def test_inner_tiles_have_no_conditions():
    s = tir.auto_schedule(conv(1, 32, 56, 112, 32, 3, groups=32, pad=1), CPUS[0])
    assert "partition" in str(s.trace)
    loops = [x[: x.index("*(__global float")] for x in s.source().split("for (long out_q_0")[1:]]
    assert loops and not any("?" in x for x in loops), "of the parts at the top, in the middle and at the bottom"


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_narrow_floats_are_padded_and_widened_once(layout):
    """In block memory: the sums read what has their type, without conditions."""
    y = conv(1, 32, 14, 30, 32, 3, dtype="float16", groups=32, pad=1, layout=layout)
    s = tir.auto_schedule(y, CPUS[0])
    assert "reindex('x_pad'" in str(s.trace) and "dtype='float32'" in str(s.trace)
    sums = [line for line in s.source().splitlines() if "+=" in line]
    assert len(s.emitted().kernels) == 1 and all("x_pad" in line and "?" not in line for line in sums) and sums
    assert "x_pad" not in str(tir.auto_schedule(conv(1, 32, 14, 30, 32, 3, groups=32, layout=layout), CPUS[0]).trace)


def test_blocks_widen_nothing_twice_where_channels_are_enough():
    for layout, channels in (("NCHW", 1), ("NHWC", 3)):
        shares = walk_of(conv(1, 128, 28, 28, 128, 3, dtype="float16", groups=128, pad=1, layout=layout)).shares
        assert shares[channels].blocks > 1 and sum(x.blocks for x in shares) == shares[channels].blocks + 3


def test_packed_filters_are_read_in_vectors():
    """Lanes of filters lie apart as declared: gathered, they would be worth tiles too large for the registers."""
    plan = plans([conv(1, 128, 56, 56, 128, 3, layout="NHWC", groups=128, pad=1)], tir.Target.parse(CPUS[1]))[NAME]
    reads, sizes = plan.main.reads[0], {}
    lane = reads.nest.spatial[plan.main.lane].var
    (filters,) = plan.main.packed
    assert reads.cycles(lane, 16, 1, sizes) - reads.cycles(lane, 16, 1, sizes, [filters]) == 11.0
    start = plan.space().default
    assert start["rows"] * start["several"] == 8


def test_gradients_by_channel_pack_their_filters():
    """The channel of a filter is that of the image and one of the group, of which there is one."""
    dy, w = tir.placeholder((1, 9, 11, 18), name="dy"), tir.placeholder((18, 3, 3, 1), name="w")
    dx = tir.nn.conv2d_backward_data(dy, w, (9, 11), pad=1, groups=18, layout="NHWC")
    plan = plans([dx], tir.Target.parse(CPUS[0]))[NAME]
    assert [g.load.buffer.name for g in plan.main.packed] == ["w"]
    assert tir.auto_schedule(dx, CPUS[0]).check()


def test_operands_may_be_packed_by_a_kernel():
    y = conv(1, 18, 9, 11, 18, 3, groups=18, pad=1, layout="NHWC")
    template = tir.auto(y, CPUS[0])[NAME]
    s = tir.Schedule(y, CPUS[0])
    template.function(s, {**template.space_for(s.target).default, "pack": 1})
    assert s.check() and len(s.emitted().kernels) == 2


def test_products_and_cells_that_share_nothing_are_left_to_other_rules():
    A, v = tir.placeholder((40, 50), name="A"), tir.placeholder((50,), name="v")
    k = tir.reduce_axis(40, name="k")
    for y in (
        tir.compute((40, 50), lambda i, j: A[i, j] + v[j], name="Y"),
        tir.compute((50,), lambda j: tir.sum(A[k, j], axis=k), name="Y"),
    ):
        assert NAME not in tir.auto(y, CPUS[0])


def test_what_runs_is_the_convolution():
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, shape).astype("float32") for shape in ((1, 5, 14, 30), (5, 1, 3, 3)))
    around, y = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), np.zeros_like(x)
    for r in range(3):
        for t in range(3):
            y += around[:, :, r : r + 14, t : t + 30] * w[None, :, 0, r, t, None, None]
    assert np.array_equal(tir.auto_schedule(conv(1, 5, 14, 30, 5, 3, groups=5, pad=1)).build()(x, w), y)


def test_stencils_of_stencils_do_not_grow_without_end():
    y = tir.placeholder((20, 64), name="A")
    for n in range(4):
        y = tir.compute(
            y.shape, lambda i, j, y=y: y.get(i - 1, j, fill=0) + y[i, j] * 2 + y.get(i + 1, j, fill=0), name=f"s{n}"
        )
    s = tir.auto_schedule(y, CPUS[0])
    assert s.check() and len(s.stages()) >= 3
    A = tir.placeholder((20, 66), name="A")
    x = tir.compute((20, 64), lambda i, j: A[i, j] + A[i, j + 1] + A[i, j + 2], name="x")
    z = tir.compute((18, 64), lambda i, j: x[i, j] + x[i + 1, j] + x[i + 2, j], name="z")
    assert len(tir.auto_schedule(z, CPUS[0]).stages()) == 1, "a few cheap operations are repeated"


def test_steps_between_taps_may_be_data():
    X, D = tir.placeholder((26, 54), name="X"), tir.placeholder((20,), "int32", name="D")
    f, r, t = tir.placeholder((3, 3), name="f"), tir.reduce_axis(3, name="r"), tir.reduce_axis(3, name="t")

    def cell(i, j):
        step = tir.minimum(tir.maximum(D[i], 1), 3)
        return tir.sum(X[i + r * step, j + t * step] * f[r, t], axis=(r, t))

    y = tir.compute((20, 48), cell, name="Y")
    s = tir.auto_schedule(y)
    assert next(iter(tir.auto(y))) == NAME and s.check()
    rng = np.random.default_rng(0)
    x, w, d = rng.integers(-3, 4, (26, 54)), rng.integers(-3, 4, (3, 3)), rng.integers(1, 4, 20)
    i, j = np.arange(20)[:, None], np.arange(48)
    want = sum(x[i + a * d[:, None], j + b * d[:, None]] * w[a, b] for a in range(3) for b in range(3))
    given = {"X": x.astype("float32"), "f": w.astype("float32"), "D": d.astype("int32")}
    assert np.array_equal(s.build()(**given), want)
