"""Tiles of every so many-th element of an array: one copy brings them as if they were neighbours."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from products import ROWS

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare_module
from tensorir.interp.numbers import Field
from tensorir.ir.text import text
from tensorir.ir.visit import Rewriter
from tensorir.lower.kernel import module_of
from tensorir.lower.pipeline import PASSES

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
TERMS = 128


def scheduled(step, rows=128, cluster=1, beside=1, columns=128):
    """A product of every so many-th row of a, from the second on; two warpgroups of 64 x 64 sums.

    rows: of a block;  beside: columns of a from one that is multiplied to the next
    """
    first = 1 if step > 0 else -127 * step
    a = tir.placeholder((128 * abs(step) + 1, TERMS * beside), "float16", name="a")
    b = tir.placeholder((columns, TERMS), "float16", name="b")
    part = tir.compute((128, TERMS), lambda i, x: a[i * step + first, x * beside], name="part")
    k = tir.reduce_axis(TERMS, name="k")
    c = tir.compute(
        (128, columns),
        lambda i, j: tir.sum(tir.cast(part[i, k], "float32") * tir.cast(b[j, k], "float32"), axis=k),
        name="c",
    )
    s = tir.Schedule(tir.compute(c.shape, lambda i, j: c[i, j] * 2.0, name="out"), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, rows // 64, 64])
    bj, rank, j = s.split("out.j", [None, cluster, 64])
    s.reorder(bi, bj, rank, wi, i, j).bind(s.fuse(bi, bj), "block.x").bind(wi, "warpgroup")
    if cluster > 1:
        s.bind(rank, "cluster")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    for name in ("part", "b"):
        s.stage_in(name, at=ko, scope="shared", layout=ROWS.format(64, 8), via="tma")
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt").pipeline(ko, 2, roles={"load": 40, "compute": 160})
    return s.compute_inline("part")


def ran(source, step):
    """What the text makes of small integers, and what it should."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, p.shape).astype(np.float16) for p in source.inputs)
    return emulate(source, [x, y]), 2 * x[1::step].astype(np.float32) @ y.astype(np.float32).T


@emulated
@pytest.mark.parametrize(("step", "rows", "cluster"), [(2, 128, 1), (3, 64, 1), (2, 128, 2), (4, 64, 2)])
def test_every_so_many_th_row(step, rows, cluster):
    """Blocks of a cluster each bring a part of the tile, for all."""
    s = scheduled(step, rows, cluster)
    source = s.emitted()
    (a_map,) = [m for m in source.kernels[0].maps if m.array == "a"]
    assert (a_map.box, a_map.steps) == ((rows // cluster * step, 64), (step, 1))
    assert ("tir_tma_multicast(part_shared" in source.text) == (cluster > 1)
    verdict = s.check()
    assert verdict, verdict
    got, want = ran(source, step)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], want)


def test_other_maps_are_as_they_were():
    maps = scheduled(1).emitted().kernels[0].maps
    assert {m.steps for m in maps} == {()}


@emulated
@pytest.mark.parametrize(("box", "steps"), [(128, ()), (128, (1, 1)), (256, (1, 1)), (256, (3, 1)), (254, (2, 1))])
def test_maps_of_another_step_are_found(box, steps):
    source = scheduled(2).emitted()
    (kernel,) = source.kernels
    maps = tuple(replace(m, box=(box, 64), steps=steps) if m.steps else m for m in kernel.maps)
    got, want = ran(replace(source, kernels=(replace(kernel, maps=maps),)), 2)
    assert got.problems or not np.array_equal(got.outputs[0], want)


class Stepped(Rewriter):
    """Tiles of another step."""

    def __init__(self, steps):
        self.steps = steps

    def on_Region(self, n):
        return n.replace(steps=self.steps) if n.steps else self.children(n)


@pytest.mark.parametrize(("steps", "code"), [((2, 1), None), ((1, 1), "check.not-equal"), ((3, 1), "check.not-equal")])
def test_the_interpreter_goes_by_the_call(steps, code):
    s = scheduled(2)
    program = s.program
    for p in PASSES:
        program = p(program, s.target)
        if p.__name__ == "form_instructions":
            assert "a[1 +128 by 2, c.k.0 * 64 +64]" in text(program)
            program = program.replace(body=Stepped(steps)(program.body))
    problem = compare_module(module_of(program), s.outputs, Field(), 1)
    assert (problem and problem.code) == code


def test_what_no_copy_brings(golden):
    """Steps that maps do not have, rows that run the other way, columns with gaps, tiles beyond a box."""
    told = []
    for given in (dict(step=9, rows=64), dict(step=-1), dict(step=1, beside=2), dict(step=3)):
        with pytest.raises(tir.ScheduleError) as e:
            scheduled(**given)
        assert e.value.problems[0].code == "tensorize.last"
        told.append(f"{given}: {e.value.problems[0].message}\n  try: {e.value.problems[0].hint}")
    golden("\n".join(told), "warps/tile_steps.txt")


def test_arrays_of_six_dimensions():
    """A definition may have more as long as it is inlined; an array may not."""
    a = tir.placeholder((256, 64), "float16", name="a")
    six = tir.compute((2, 1, 1, 1, 128, 64), lambda o, p, q, r, i, x: a[2 * i + o, x], name="six")
    out = tir.compute((2, 128, 64), lambda o, i, x: six[o, 0, 0, 0, i, x] * 2.0, name="out")
    s = tir.Schedule(out, target="cuda -arch=sm_90a")
    s.bind("six.i", "block.x")
    s.stage_in("six", at="out.o", scope="shared", via="tma")
    with pytest.raises(tir.LoweringError) as e:
        s.source()
    assert e.value.problems[0].code == "lower.intrinsic"
    assert "six has 6 dimensions, and arrays of tiles have up to 5" in str(e.value)
