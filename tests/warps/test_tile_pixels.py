"""Tiles whose rows are pixels of images in one line, found by dividing their number: copies go through the images."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import given as drawn
from hypothesis import strategies as st
from products import ROWS

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare, compare_module
from tensorir.interp.numbers import Field
from tensorir.ir.text import text
from tensorir.ir.visit import Rewriter
from tensorir.lower.kernel import module_of
from tensorir.lower.pipeline import PASSES

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
IMAGE = dict(n=3, h=9, w=11, p=7, q=5, stride=1, step_w=2, first_h=-1, first_w=-2, taps_h=3, taps_w=2, apart=1)


def scheduled(rows=128, cluster=1, at=None, **given):
    """Products of 128 bytes of channels of the pixels under each tap with 64 filters; two warpgroups of 64 x 64 sums.

    at: image, row and column of a pixel, where these are other than in an image gone through row by row
    """
    g = {**IMAGE, **given}
    x = tir.placeholder((g["n"], g["h"], g["w"], 64), "float16", name="x")
    b = tir.placeholder((g["taps_h"], g["taps_w"], 64 * cluster, 64), "float16", name="b")
    count = g.get("count", g["n"] * g["p"] * g["q"])

    def place(i, r, s):
        n, row, column = i // (g["p"] * g["q"]), i // g["q"] % g["p"], i % g["q"]
        return n, row * g["stride"] + r * g["apart"] + g["first_h"], column * g["step_w"] + s + g["first_w"]

    part = tir.compute(
        (g["taps_h"], g["taps_w"], count, 64), lambda r, s, i, k: x.get(*(at or place)(i, r, s), k, fill=0), name="part"
    )
    r, s_, k = (tir.reduce_axis(n, name=v) for n, v in ((g["taps_h"], "r"), (g["taps_w"], "s"), (64, "k")))
    c = tir.compute(
        (count, 64 * cluster),
        lambda i, j: tir.sum(
            tir.cast(part[r, s_, i, k], "float32") * tir.cast(b[r, s_, j, k], "float32"), axis=(r, s_, k)
        ),
        name="c",
    )
    s = tir.Schedule(tir.compute(c.shape, lambda i, j: c[i, j] * 2.0, name="out"), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, rows // 64, 64])
    rank, j = s.split("out.j", [cluster, 64])
    s.reorder(bi, rank, wi, i, j).bind(bi, "block.x").bind(wi, "warpgroup")
    if cluster > 1:
        s.bind(rank, "cluster")
    s.compute_at("c", wi)
    kk, ki = s.split("c.k", [4, 16])
    s.reorder("c.r", "c.s", kk, "c.i", "c.j", ki)
    step = s.fuse("c.r", "c.s", name="step")
    for name in ("part", "b"):
        s.stage_in(
            name, at=step, scope="shared", layout=f"u, v, {ROWS.format(64, 8).replace('->', '-> u, v,')}", via="tma"
        )
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt").pipeline(step, 2, roles={"load": 40, "compute": 152})
    return s.compute_inline("part")


def ran(s, **given):
    """What the text makes of small integers, and what it should."""
    source, g = s.emitted(), {**IMAGE, **given}
    rng = np.random.default_rng(0)
    x, b = (rng.integers(-3, 4, p.shape).astype(np.float16) for p in source.inputs)
    return emulate(source, [x, b]), 2 * expected(x.astype(np.float32), b.astype(np.float32), g)


def expected(x, b, g):
    """Pixel by pixel."""
    n, p, q = g["n"], g["p"], g["q"]
    out = np.zeros((n * p * q, b.shape[2]), np.float32)
    for i, (image, row, column) in enumerate(np.ndindex(n, p, q)):
        for r, s in np.ndindex(*b.shape[:2]):
            h, w = row * g["stride"] + r * g["apart"] + g["first_h"], column * g["step_w"] + s + g["first_w"]
            if 0 <= h < g["h"] and 0 <= w < g["w"]:
                out[i] += b[r, s] @ x[image, h, w]
    return out


GEOMETRIES = {
    "as they are": {},
    "half a tile": dict(rows=64),
    "taps far apart": dict(apart=2, h=12, first_h=-3),
    "taps that run backwards": dict(apart=-2, first_h=4),
    "a border on one side": dict(first_h=0, first_w=-4, w=8),
    "rows of two steps, columns of one": dict(stride=2, step_w=1, h=20, first_w=0),
    "columns that are a power of 2": dict(q=8, p=4, w=18, h=7),
    "images of a power of 2": dict(q=16, p=16, n=2, w=33, h=16),
    "one row": dict(p=1, h=2, n=20),
    "one column": dict(q=1, w=3, n=9),
    "one image": dict(n=1, p=20, h=21),
    "for two blocks": dict(cluster=2),
}


@emulated
@pytest.mark.parametrize("name", GEOMETRIES)
def test_pixels_in_one_line(name):
    """Each pixel of a tile comes from where it lies, those beyond the border as zeros."""
    given = dict(GEOMETRIES[name])
    how = {v: given.pop(v) for v in ("rows", "cluster") if v in given}
    s = scheduled(**how, **given)
    kind = "tir_tma_im2col_multicast(part_shared" if "cluster" in how else "tir_tma_im2col(part_shared"
    assert kind in s.source()
    got, want = ran(s, **given)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], want)


def test_schedules_are_proved():
    for given in (dict(rows=64), dict(apart=-2, first_h=4), dict(n=1, p=20, h=21), dict(cluster=2)):
        assert compare(scheduled(**given), Field(), 1) is None, given


@settings(max_examples=8, deadline=None)
@drawn(
    st.integers(1, 4), st.integers(1, 12), st.integers(1, 12), st.integers(1, 8), st.integers(1, 8), st.integers(-4, 2),
    st.integers(-4, 2), st.integers(1, 3), st.integers(1, 3), st.integers(-3, 3), st.sampled_from([64, 128, 192]),
)  # fmt: skip
def test_any_image(n, p, q, stride, step_w, first_h, first_w, taps_h, taps_w, apart, rows):
    """What the interpreter copies is what was declared, whatever the index became on the way."""
    h, w = p * stride + 3, q * step_w + 1
    down = any(0 <= row * stride + r * apart + first_h < h for row in range(p) for r in range(taps_h))
    assume(down and any(0 <= column * step_w + c + first_w < w for column in range(q) for c in range(taps_w)))  # else 0
    s = scheduled(rows, n=n, p=p, q=q, stride=stride, step_w=step_w, first_h=first_h, first_w=first_w, taps_h=taps_h,
                  taps_w=taps_w, apart=apart, h=h, w=w)  # fmt: skip
    assert compare(s, Field(), 1) is None


class Moved(Rewriter):
    """Other pixels."""

    def __init__(self, **changes):
        self.changes = changes

    def on_Pixels(self, n):
        return n.replace(**self.changes)


@pytest.mark.parametrize(("changes", "code"), [
    ({}, None), (dict(steps=(2, 1)), "check.not-equal"), (dict(lower=(-2, -1)), "check.not-equal"),
    (dict(shape=(5, 7)), "check.not-equal"),
])  # fmt: skip
def test_the_interpreter_goes_by_the_call(changes, code):
    s = scheduled()
    program = s.program
    for pass_ in PASSES:
        program = pass_(program, s.target)
        if pass_.__name__ == "form_instructions":
            told = text(program)
            assert "x[0 +128, 0 +64] of images of 7 from -1 + c.step // 2, 5 by 2 from -2 + c.step % 2" in told
            program = program.replace(body=Moved(**changes)(program.body))
    problem = compare_module(module_of(program), s.outputs, Field(), 1)
    assert (problem and problem.code) == code


@emulated
@pytest.mark.parametrize(
    "change", [dict(lower=(-2, -1)), dict(upper=(1, 0)), dict(steps=(1, 1, 1, 1)), dict(steps=(1, 2, 1, 1))]
)
def test_other_maps_are_found(change):
    source = scheduled().emitted()
    (kernel,) = source.kernels
    maps = tuple(replace(m, **change) if m.lower else m for m in kernel.maps)
    assert maps != kernel.maps
    s = scheduled()
    s.emitted = lambda: replace(source, kernels=(replace(kernel, maps=maps),))
    got, want = ran(s)
    assert got.problems or not np.array_equal(got.outputs[0], want)


def stored(order="npq", columns=64, tile="64x64"):
    """Rows of a matrix that leave to an image (n, p, q, k), its pixels walked in some order."""
    size = dict(n=3, p=7, q=5)
    a = tir.placeholder((105, columns), "float16", name="a")

    def row(*at):
        number = 0
        for v in order:
            number = number * size[v] + at["npq".index(v)]
        return a[number, at[-1]]

    s = tir.Schedule(tir.compute((3, 7, 5, columns), row, name="b", axes=[*"npqk"]), target="cuda -arch=sm_90a")
    s.reorder(*(f"b.{v}" for v in order), "b.k")
    block, i = s.split(s.fuse(*(f"b.{v}" for v in order), name="pixel"), [None, 64])
    s.bind(block, "block.x").stage_in("a", at=block, scope="shared")
    return s.tensorize(i, f"tma.store.float16.{tile}")


def test_rows_leave_to_images():
    """An image whose pixels follow each other is a matrix to a tile, of which the last one is clipped."""
    s = stored()
    (b,) = s.emitted().kernels[0].maps
    assert (b.shape, b.box, b.lower) == ((105, 64), (64, 64), ())
    assert compare(s, Field(), 1) is None


@pytest.mark.parametrize(("given", "code", "words"), [
    (dict(order="nqp"), "tensorize.same-meaning", "the rows of d are not rows of b that follow each other"),
    (dict(columns=60, tile="64x56"), "tensorize.same-meaning", "runs over 64 x 56 iterations"),
    (dict(columns=60, tile="64x60"), "tensorize.unknown", "there is no instruction"),
    (dict(columns=12, tile="64x12"), "tensorize.unknown", "there is no instruction"),
])  # fmt: skip
def test_rows_that_do_not_leave(given, code, words):
    with pytest.raises(tir.ScheduleError) as e:
        stored(**given)
    assert e.value.problems[0].code == code
    assert words in e.value.problems[0].message


def test_what_no_copy_brings(golden):
    """Pixels in another order, too far apart, or too far from the image."""
    told = []
    for name, given in {
        "steps of 9": dict(stride=9, h=70),
        "taps 256 rows apart": dict(apart=128, h=300),
        "a border of 129 rows": dict(first_h=-129, h=300),
        "ends 128 columns behind": dict(first_w=130, w=20),
        "columns before rows": dict(at=lambda i, r, s: (i // 35, i % 7, i // 7 % 5)),
        "backwards": dict(at=lambda i, r, s: (0, (104 - i) // 5, (104 - i) % 5)),
        "every second one": dict(at=lambda i, r, s: (2 * i // 35, 2 * i // 5 % 7, 2 * i % 5), n=7),
    }.items():
        with pytest.raises(tir.ScheduleError) as e:
            scheduled(**given)
        problem = e.value.problems[0]
        told.append(f"{name}: [{problem.code}] {problem.message}\n  try: {problem.hint}")
    golden("\n".join(told), "warps/tile_pixels.txt")


@pytest.mark.parametrize(("h", "first"), [(7, -1), (7, 0), (8, -1), (5, -2)])
def test_pixels_that_are_summed_end_with_the_image(h, first):
    """Pixels behind those of a single image are the next image's, which is none: not what follows this one's border."""
    x, y = (tir.placeholder((1, h, 7, 64), "float16", name=v) for v in "xy")
    parts = [
        tir.compute(
            (7 * h, 64),
            lambda i, c, v=v: v.get(i // (7 * h), i // 7 % h + first, i % 7, c, fill=0),
            name=f"of_{v.name}",
        )
        for v in (x, y)
    ]
    a, b = parts
    k = tir.reduce_axis(7 * h, name="k")
    c = tir.compute(
        (64, 64), lambda i, j: tir.sum(tir.cast(a[k, i], "float32") * tir.cast(b[k, j], "float32"), axis=k), name="c"
    )
    s = tir.Schedule(tir.compute((64, 64), lambda i, j: c[i, j] * 2.0, name="out"), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 1, 64])
    s.reorder(bi, wi, i, "out.j").bind(bi, "block.x").bind(wi, "warpgroup")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    for part in parts:
        s.stage_in(part, at=ko, scope="shared", layout=ROWS.format(64, 8), via="tma")
    s.tensorize("c.i", "wgmma.m64n64k16.f16.tn").pipeline(ko, 2, roles={"load": 40, "compute": 160})
    for part in parts:
        s.compute_inline(part)
    assert compare(s, Field(), 1) is None
