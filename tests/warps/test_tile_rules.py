"""Schedules of warpgroups that look right and are not: refused, or made right, before there is a text."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from products import ROWS, declared, specialised

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field, numpy_dtype
from tensorir.interp.reference import evaluate, random_arguments

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
SWIZZLED = ROWS.format(64, 8)


def product(a, b, rows, cols, terms):
    """The sums of a[i, k] * b[j, k], doubled."""
    k = tir.reduce_axis(terms, name="k")
    c = tir.compute(
        (rows, cols),
        lambda i, j: tir.sum(tir.cast(a[i, k], "float32") * tir.cast(b[j, k], "float32"), axis=k),
        name="c",
    )
    return tir.compute((rows, cols), lambda i, j: c[i, j] * 2.0, name="out")


def around(out):
    """Two warpgroups of 64 x 64 sums, and the loop over 64 terms that tiles are copied in."""
    s = tir.Schedule(out, target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 2, 64])
    bj, j = s.split("out.j", [None, 64])
    s.reorder(bi, bj, wi, i, j).bind(s.fuse(bi, bj), "block.x").bind(wi, "warpgroup").compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    return s, ko


def multiplied(s, ko):
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt")
    return s.pipeline(ko, 3, roles={"load": 40, "compute": 160})


def refusal(code, act):
    with pytest.raises(tir.TensorIRError) as e:
        act()
    assert e.value.problems[0].code == code, e.value
    return str(e.value)


@pytest.mark.parametrize("first", [0, 8])
def test_a_part_of_an_array_is_not_padded_by_what_follows(first):
    """Tiles are 0 behind the array, not behind the part of it that a definition takes."""
    a, b = tir.placeholder((128, 264), "float16", name="a"), tir.placeholder((64, 264), "float16", name="b")

    def staged(terms):
        part_a = tir.compute((128, terms), lambda i, x: a[i, x + first], name="part_a")
        part_b = tir.compute((64, terms), lambda j, x: b[j, x + first], name="part_b")
        s, ko = around(product(part_a, part_b, 128, 64, terms))
        for name in ("part_a", "part_b"):
            s.stage_in(name, at=ko, scope="shared", layout=SWIZZLED, via="tma")
        s.compute_inline("part_a").compute_inline("part_b")
        return multiplied(s, ko)

    refusal("lower.intrinsic", lambda: staged(200).source())
    assert staged(192).source()


@emulated
def test_what_threads_make_of_tiles_is_read_before_they_make_the_next():
    """Tiles of int8 that threads widen: products that read them are waited for in each iteration."""
    a, b = tir.placeholder((128, 256), "float16", name="a"), tir.placeholder((64, 256), "int8", name="b")
    wide = tir.compute((64, 256), lambda j, x: tir.cast(b[j, x], "float16") * 2.0, name="wide")
    s, ko = around(product(a, wide, 128, 64, 256))
    s.compute_at("wide", ko).set_scope("wide", "shared").layout("wide", SWIZZLED)
    s.stage_in("a", at=ko, scope="shared", layout=SWIZZLED, via="tma")
    s.stage_in("b", at=ko, scope="shared", via="tma")
    multiplied(s, ko)
    assert s.check()
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.shape).astype(numpy_dtype(p.dtype)) for p in s.emitted().inputs]
    for eager in (False, True):
        got = emulate(s.emitted(), arrays, eager=eager)
        assert not got.problems, (eager, got.problems)
        assert np.array_equal(got.outputs[0], 4 * arrays[0].astype(np.float32) @ arrays[1].astype(np.float32).T), eager


@emulated
def test_what_no_array_takes_of_a_tile_may_be_anything():
    """What is added has 100 columns, so that the last ones of a tile are not made; nor are they stored."""
    a, b = (tir.placeholder((n, 64), "int8", name=x) for n, x in ((64, "a"), (100, "b")))
    bias, k = tir.placeholder((100,), "int32", name="bias"), tir.reduce_axis(64, name="k")
    c = tir.compute(
        (64, 100), lambda i, j: tir.sum(tir.cast(a[i, k], "int32") * tir.cast(b[j, k], "int32"), axis=k), name="c"
    )
    s = tir.Schedule(tir.compute((64, 100), lambda i, j: c[i, j] + bias[j], name="out"), "cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 1, 64])
    bj, j = s.split("out.j", [None, 8])
    bj, rank = s.split(bj, [None, 4])
    s.bind(rank, "cluster").reorder(bi, bj, rank, wi, i, j)
    s.bind(s.fuse(bi, bj), "block.x").bind(wi, "warpgroup")
    s.stage_out("out", at=wi, scope="shared", via="tma")
    s.compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 32])
    s.reorder(ko, kk, "c.i", "c.j", ki)
    for name in "ab":
        s.stage_in(name, at=ko, scope="shared", layout=ROWS.format(128, 16), via="tma")
    s.tensorize("c.i", "wgmma.m64n8k32.s8.nt").pipeline(ko, 2, roles={"load": 40, "compute": 232})
    assert compare(s, Field(), 1) is None
    arrays, made = random_arguments(s.outputs, 1), "*(int2 *)(out_shared"
    assert s.source().count(made) == 1
    column = "i_0_j_0_0 * 32 + j_0_1 * 8 + lane % 4 * 2"
    for ends, codes in ((128, set()), (100, set()), (98, {"memory.uninitialised"})):
        text = s.source().replace(made, f"if ({column} < {ends}) {made}")
        got = emulate(replace(s.emitted(), text=text), arrays)
        assert {p.code for p in got.problems} == codes, (ends, got.problems)
        assert codes or np.array_equal(got.outputs[0], evaluate(s.outputs, arrays)[0])


def test_copied_rows_are_full_and_follow_each_other():
    def with_layout(layout, terms):
        s = tir.Schedule(declared(128, 64, 256), target="cuda -arch=sm_90a")
        s.split("out.i", [None, 2, 64])
        s.bind("out.i.1", "warpgroup").reorder("out.i.0", "out.i.1", "out.i.2", "out.j").compute_at("c", "out.i.1")
        ko, kk, ki = s.split("c.k", [None, terms // 16, 16])
        s.reorder(ko, kk, "c.i", "c.j", ki)
        for name in "ab":
            s.stage_in(name, at=ko, scope="shared", layout=layout, via="tma")
        return multiplied(s, ko).source()

    assert with_layout(SWIZZLED, 128)
    assert with_layout("r, x -> x/64, r/8, r%8, x/8%8 ^ r%8, x%8", 128), "the same"
    assert "do not" in refusal("lower.tile", lambda: with_layout("r, x -> r/8, x/64, r%8, x/8%8 ^ r%8, x%8", 128))
    assert "32 elements" in refusal("lower.tile", lambda: with_layout(SWIZZLED, 32))


@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (4, 64), (8, 64), (4, 128), (8, 128)])
def test_parts_begin_where_a_permutation_does(rows, columns):
    """A copy permutes by the address: a second slot or panel of fewer than eight rows begins inside a pattern."""
    x = tir.placeholder((64, 256), "bfloat16", name="x")
    k = tir.reduce_axis(256, name="k")
    t = tir.compute((64,), lambda i: tir.sum(tir.cast(x[i, k], "float32"), axis=k), name="t")
    s = tir.Schedule(tir.compute((64,), lambda i: t[i] * 2.0, name="out"), target="cuda -arch=sm_90a")
    block, _, wi, _ = s.split("out.i", [None, 1, 1, rows])
    s.bind(block, "block.x").bind(wi, "warpgroup").compute_at("t", wi)
    ko, _ = s.split("t.k", [None, columns])
    s.reorder(ko, "t.i", "t.k.1")
    s.stage_in("x", at=ko, scope="shared", layout=SWIZZLED, via="tma")
    s.pipeline(ko, 2, roles={"load": 40, "compute": 160})
    if rows < 8:
        assert "multiples of 1024" in refusal("lower.tile", s.source)
    else:
        assert compare(s, Field(), 1) is None


def test_registers_that_a_block_does_not_begin_with():
    """Three warpgroups begin with 168 registers a thread, so 32 and 2 x 240 of 512 would be waited for in vain."""
    told = refusal("pipeline.roles", lambda: specialised(256, 128, 256, roles={"load": 32, "compute": 240}))
    assert "'compute': 232" in told
    assert specialised(256, 128, 256, roles={"load": 24, "compute": 240}).source()
    refusal("pipeline.roles", lambda: specialised(256, 128, 256, roles={"load": 40.0, "compute": 160}))


@pytest.mark.parametrize(("columns", "legal"), [(24, True), (40, False), (48, True), (56, False), (256, True)])
def test_columns_of_integer_products(columns, legal):
    """As ptxas has it: "Illegal matrix shape '.m64n40k32'"."""
    from tensorir.intrin.hopper import wgmma_named

    assert (wgmma_named(f"wgmma.m64n{columns}k32.s8.nt") is not None) == legal
    assert wgmma_named(f"wgmma.m64n{columns}k16.f16.nt") is not None


def test_copied_tiles_begin_at_multiples_of_128_bytes():
    def with_rows_of(dtype):
        a, b = tir.placeholder((8, 256, 64), dtype, name="a"), tir.placeholder((8, 64), dtype, name="b")
        k = tir.reduce_axis(8, name="k")
        c = tir.compute((256, 64), lambda i, j: tir.sum(a[k, i, j] * b[k, j], axis=k), name="c")
        s = tir.Schedule(tir.compute((256, 64), lambda i, j: c[i, j] + 1, name="out"), target="cuda -arch=sm_90a")
        bi, wi, _ = s.split("out.i", [None, 2, 64])
        s.bind(bi, "block.x").bind(wi, "warpgroup").compute_at("c", wi).reorder("c.k", "c.i", "c.j")
        for name in "ab":
            s.stage_in(name, at="c.k", scope="shared", via="tma")
        return s.pipeline("c.k", 3, roles={"load": 40, "compute": 160}).source()

    assert "tir_tma_load(b_shared" in with_rows_of("int16")
    assert "128 bytes" in refusal("lower.tile", lambda: with_rows_of("uint8"))


@emulated
def test_copies_on_their_own_are_fenced_from_products():
    """What cp.async writes is a write of its thread, which products see behind a fence (PTX ISA, async proxy)."""
    s, ko = around(declared(128, 64, 256))
    for name in "ab":
        s.stage_in(name, at=ko, scope="shared", layout=SWIZZLED)
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt").pipeline(ko, 3, async_=True)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.shape).astype(np.float16) for p in s.emitted().inputs]
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], 2 * arrays[0].astype(np.float32) @ arrays[1].astype(np.float32).T)


def test_tiles_have_up_to_five_dimensions():
    a = tir.placeholder((2, 2, 2, 2, 8, 64), "float16", name="a")
    out = tir.compute(a.shape, lambda i, j, k, m, n, x: a[i, j, k, m, n, x] * 2.0, name="out")
    s = tir.Schedule(out, target="cuda -arch=sm_90a")
    refusal("stage-in.tile-copy", lambda: s.stage_in("a", at="out.i", scope="shared", via="tma"))


@emulated
def test_a_block_of_one_thread_orders_what_it_writes_before_the_unit_that_stores_it():
    a = tir.placeholder((40, 64), "float32", name="a")
    s = tir.Schedule(tir.compute((40, 64), lambda i, j: a[i, j] * 2, name="out"), "cuda -arch=sm_90a")
    bi, i = s.split("out.i", [None, 8])
    bj, j = s.split("out.j", [None, 32])
    s.reorder(bi, bj, i, j).bind(bj, "block.x")
    s.stage_out("out", at=bj, scope="shared", via="tma")
    assert compare(s, Field(), 1) is None
    arrays = random_arguments(s.outputs, 1)
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], 2 * arrays[0])
