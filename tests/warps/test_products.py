"""Instructions that warps run together: what the text computes, lane by lane, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from products import blocked, fragments, given

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.intrin.intrin import INTRINSICS, Intrin, intrinsic, meaning
from tensorir.lower.pipeline import PASSES

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
ORDERS = ("nn", "nt", "tn", "tt")


def run(s, m, n, k, order="nt", dtype="float16"):
    arrays, want = given(m, n, k, order, dtype)
    got = emulate(s.emitted(), arrays)
    return got, np.array_equal(got.outputs[0], want)


@emulated
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", ORDERS)
def test_text_multiplies(order, dtype):
    """The emulator's instructions are written after the manual, not after the tables that the compiler works from."""
    for m, n, k in ((64, 64, 64), (72, 80, 48), (33, 41, 70)):
        s = fragments(blocked(m, n, k, order, dtype), order, dtype)
        got, right = run(s, m, n, k, order, dtype)
        assert not got.problems, got.problems
        assert right, (m, n, k)


@emulated
@pytest.mark.parametrize(("target", "terms"), [("cuda -arch=sm_80", 16), ("cuda -arch=sm_75", 8)])
def test_sums_in_half(target, terms):
    """Named instructions that a schedule may ask for; integers up to 2048 are exact."""
    m, n, k = 72, 41, 70
    s = blocked(m, n, k, "tn", target=target, sums="float16", terms=terms)
    s = fragments(s, "tn", product=f"m16n8k{terms}.f16_f16")
    arrays, want = given(m, n, k, "tn")
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    assert np.abs(want).max() <= 2048
    assert got.outputs[0].dtype == np.float16
    assert np.array_equal(got.outputs[0], want)
    assert s.check()


TILES = (((64, 64, 32), (32, 32)), ((32, 64, 16), (32, 16)), ((64, 32, 64), (16, 32)))


@emulated
@settings(max_examples=8, deadline=None)
@drawn(st.integers(1, 140), st.integers(1, 140), st.integers(1, 90), st.sampled_from(ORDERS), st.data())
def test_any_shape(m, n, k, order, data):
    block, warp = data.draw(
        st.sampled_from([((64, 64, 32), (32, 32)), ((32, 64, 16), (32, 16)), ((64, 32, 64), (16, 32))])
    )
    s = fragments(blocked(m, n, k, order, block=block, warp=warp), order)
    got, right = run(s, m, n, k, order)
    assert not got.problems
    assert right


@pytest.mark.parametrize("order", ["tn"])
def test_schedules_are_proved(order):
    verdict = fragments(blocked(64, 64, 64, order), order).check()
    assert verdict, verdict
    assert len(verdict.shapes) >= 3


def test_text(golden):
    s = fragments(blocked(128, 128, 64))
    golden(f"{s.tree()}\n\n{s.source()}", "warps/product.txt")
    assert tir.Schedule(s.outputs, target=s.target).replay(s.trace).source() == s.source()


@emulated
def test_swizzled_copies_have_no_bank_conflicts():
    s = blocked(128, 128, 64)
    s.layout("a_shared", "r, k -> r, k/8 ^ r/2%4, k%8").layout("b_shared", "r, k -> r, k/8 ^ r/2%4, k%8")
    got, right = run(fragments(s), 128, 128, 64)
    assert right
    assert not got.problems
    shared = [t for t in got.traffic if t.what.startswith("shared")]
    assert {t.width for t in shared} == {16}
    assert all(t.units == t.ideal for t in shared)


@emulated
def test_a_wrong_table_is_a_wrong_result(monkeypatch):
    """Lanes that hold something else than the instruction says: nobody above the text could tell."""
    right = intrinsic("mma.m16n8k16.f16.nt")
    wrong = replace(right, fragments={**right.fragments, "b": "j, k -> j, k/2%4 | k%2, k/8"})
    monkeypatch.setitem(INTRINSICS, wrong.name, wrong)
    s = blocked(64, 64, 32)
    for name in "ab":
        s.stage_in(f"{name}_shared", at="c.k.1", scope="warp")
    s.tensorize("c.i.1", wrong.name)
    assert s.check()
    got, same = run(s, 64, 64, 32)
    assert not got.problems
    assert not same


@emulated
def test_rows_that_are_not_aligned_are_told():
    s = fragments(blocked(64, 64, 32))
    source = s.emitted()
    text = source.text.replace("a_shared_warp + ax0_0 * 8, a_shared + ", "a_shared_warp + ax0_0 * 8, a_shared + 4 + ")
    assert text != source.text
    arrays, _ = given(64, 64, 32)
    assert "memory.misaligned" in {p.code for p in emulate(replace(source, text=text), arrays).problems}


@emulated
@pytest.mark.parametrize(
    ("words", "other"),
    [
        ("tir_mma_m16n8k16_f16(c + ", "tir_mma_m16n8k16_f16(c + 30 + "),
        ("tir_ldmatrix_x4(a_shared_warp + ", "tir_ldmatrix_x4(a_shared_warp + 16 + "),
    ],
)
def test_registers_that_are_none_are_told(words, other):
    source = fragments(blocked(64, 64, 32)).emitted()
    assert words in source.text
    arrays, _ = given(64, 64, 32)
    got = emulate(replace(source, text=source.text.replace(words, other)), arrays)
    assert "memory.out-of-bounds" in {p.code for p in got.problems}


def test_epilogues_go_through_other_buffers_of_the_warp():
    """A stage between the sums and the result keeps its elements where the sums are."""
    a, b = tir.placeholder((32, 16), "float16", name="a"), tir.placeholder((32, 16), "float16", name="b")
    v = tir.placeholder((32,), name="v")
    r = tir.reduce_axis(16, name="k")
    c = tir.compute(
        (32, 32),
        lambda i, j: tir.sum(tir.cast(a[i, r], "float32") * tir.cast(b[j, r], "float32"), axis=r),
        name="c",
    )
    d = tir.compute((32, 32), lambda i, j: c[i, j] + v[j], name="d")
    out = tir.compute((32, 32), lambda i, j: tir.maximum(d[i, j], 0), name="out")
    for inside in (False, True):  # d in an array of the warp, or a scalar of each lane
        s = tir.Schedule(out, target="cuda -arch=sm_80")
        w, i = s.split("out.i", [2, 16])
        s.reorder(w, i, "out.j").bind(w, "warp.x")
        s.compute_at("d", "out.j" if inside else w)
        s.compute_at("c", w)
        j0, j1 = s.split("c.j", [None, 8])
        s.reorder(j0, "c.i", j1, "c.k")
        for name in "ab":
            s.stage_in(name, at=w, scope="warp")
        s.tensorize("c.i", "mma.m16n8k16.f16.nt")
        assert s.check()
        if shutil.which("g++"):
            assert s.check("emulate")


# --- refusals


def refused(call, *args, **kw):
    with pytest.raises(tir.TensorIRError) as e:
        call(*args, **kw)
    return e.value.code


def test_warps_are_for_cuda():
    s = tir.Schedule(tir.compute((64,), lambda i: 1.0, name="c"), target="opencl")
    assert refused(s.bind, "c.i", "warp.x") == "bind.warp"


def test_threads_or_warps():
    s = tir.Schedule(tir.compute((4, 8), lambda i, j: 1.0, name="c"), target="cuda")
    s.bind("c.i", "warp.x")
    assert refused(s.bind, "c.j", "thread.x") == "bind.warp-or-thread"
    s.undo()
    s.bind("c.j", "thread.x")
    assert refused(s.bind, "c.i", "warp.y") == "bind.warp-or-thread"


def test_warps_are_32_threads():
    s = tir.Schedule(tir.compute((64,), lambda i: 1.0, name="c"), target="cuda")
    assert refused(s.bind, "c.i", "warp.x") == "bind.device-limit"


def test_a_warp_without_fragments_stores_once():
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: i + 10.0 * j, name="c"), target="cuda")
    s.bind("c.i", "warp.x")
    assert "if (lane < 1)" in s.source()
    assert s.check()


def test_an_instruction_of_warps_needs_one():
    s = blocked(64, 64, 32)
    t = tir.Schedule(s.outputs[0], target="cuda")
    t.split("c.i", [None, 16])
    t.split("c.j", [None, 8])
    t.split("c.k", [None, 16])
    t.reorder("c.i.0", "c.j.0", "c.k.0", "c.i.1", "c.j.1", "c.k.1")
    assert refused(t.tensorize, "c.i.1", "mma.m16n8k16.f16.nt") == "tensorize.warp"


def test_operands_are_where_the_instruction_looks():
    assert refused(blocked(64, 64, 32).tensorize, "c.i.1", "mma.m16n8k16.f16.nt") == "tensorize.scope"
    s = blocked(64, 64, 32).set_scope("c", "shared")
    for name in "ab":
        s.stage_in(f"{name}_shared", at="c.k.1", scope="warp")
    assert refused(s.tensorize, "c.i.1", "mma.m16n8k16.f16.nt") == "tensorize.scope"


def test_needs_tensor_cores_of_their_type():
    s = blocked(64, 64, 32, target="cuda -arch=sm_75")
    for name in "ab":
        s.stage_in(f"{name}_shared", at="c.k.1", scope="warp")
    assert refused(s.tensorize, "c.i.1", "mma.m16n8k16.f16.nt") == "tensorize.needs"


def test_elements_are_touched_in_whole_parts():
    s = blocked(64, 64, 32)
    s.split("out.i.2", [None, 3])
    assert refused(fragments(s).source) == "lower.fragment"


def test_fragments_need_their_rows_together():
    s = blocked(64, 64, 32)
    s.layout("a_shared", "r, k -> k/4, r, k%4")
    assert refused(fragments(s).source) == "lower.fragment"


def test_two_instructions_that_disagree(monkeypatch):
    load = intrinsic("ldmatrix.f16.b.t")
    other = replace(load, fragments={"d": "j, k -> j%8, k/2%4 | k/8, j/8, k%2"})
    monkeypatch.setitem(INTRINSICS, load.name, other)
    assert refused(fragments(blocked(64, 64, 32)).source) == "lower.fragment"


@pytest.mark.parametrize("change", [
    {"fragments": {"x": "n -> n | n%1"}},
    {"fragments": {"x": "n -> n"}},
    {"fragments": {"x": "n -> n%4 | n/4", "y": "n -> n%32 | n/32"}},
    {"fragments": {"x": "n -> n%32 | n/32"}},
    {"fragments": {"z": "n -> n%32 | n/32"}},
    {"fragments": {"x": "n -> n%32 ^ n/32%2 | n/32", "y": "n -> n%32 | n/32"}},
    {"fragments": {"x": "n -> n%32 | n/32", "y": "n -> n%32 | n/32"}, "addresses": {"x": "n -> n/2 | n%2"}},
    {"addresses": {"x": "n -> n/2 | n%2"}},
])  # fmt: skip
def test_fragments_are_checked_when_declared(change):
    x = tir.placeholder((64,), name="x")
    y = tir.compute((64,), lambda n: x[n], name="y")
    assert refused(lambda: Intrin("my.copy", meaning(y), {"cuda": ";"}, "none", **change)) == "intrin.fragment"


def test_a_part_of_a_warp_is_a_fault(monkeypatch):
    """What no schedule can say, a pass that is wrong could: the interpreter and the emulator tell."""
    from tensorir.ir.build import binary
    from tensorir.ir.tree import If, IntrinCall, Kind, Stage
    from tensorir.ir.visit import find
    from tensorir.ir.visit import replace as replaced
    from tensorir.lower import pipeline
    from tensorir.lower.form import each_nest, lowering

    @lowering
    def half(program, target):
        def kernel(nest):
            lane = next(x.var for x in find(nest, type(nest)) if x.kind is Kind.THREAD_X)
            calls = [x for x in find(nest, Stage) if isinstance(x.body, IntrinCall) and x.name == "c"]
            return replaced(nest, {x: If(binary("<", lane, 16), x) for x in calls})

        return each_nest(program, kernel)

    half.__wrapped__.__name__ = half.__name__ = "half"
    at = [p.__name__ for p in PASSES].index("spread_warps")
    monkeypatch.setattr(pipeline, "PASSES", [*PASSES[: at + 1], half, *PASSES[at + 1 :]])
    s = fragments(blocked(32, 64, 16, block=(32, 64, 16), warp=(32, 64)))
    verdict = s.check()
    assert "warp.divergent" in {p.code for p in verdict.problems}
    if shutil.which("g++"):
        assert not s.check("emulate")


@pytest.mark.parametrize(
    "move",
    [
        lambda s: s.set_scope("c", "shared"),
        lambda s: s.set_scope("c", "global"),
        lambda s: s.set_scope("a_shared_warp", "shared"),
        lambda s: s.stage_out("c", at="out.j.1", scope="shared"),
    ],
)
def test_operands_stay_where_the_instruction_looks(move):
    assert refused(move, fragments(blocked(64, 64, 32))) == "tensorize.last"


def test_sums_in_memory_are_not_made_of_what_lanes_hold():
    x = tir.placeholder((64, 64), name="x")
    k = tir.reduce_axis(64, "k")
    s = tir.Schedule(tir.compute((64,), lambda i: tir.sum(x[i, k], axis=k), name="y"), "cuda")
    w, _ = s.split("y.i", [None, 32])
    s.bind(w, "warp.x").stage_in("x", at=w, scope="warp", layout="i, k -> i%8, *4 | i/8, k")
    assert refused(s.source) == "lower.fragment"
    assert refused(s.stage_out, "y", w, "warp", "i -> i%8, *4 | i%3, i/8") == "layout.not-bijective"
    s.stage_out("y", at=w, scope="warp", layout="i -> i%8, *4 | i/8")
    assert s.check()


def test_a_bar_without_a_warp():
    with pytest.raises(tir.ScheduleError, match="set_scope"):
        blocked(64, 64, 32).layout("a_shared", "i, k -> i%8, k%4 | i/8, k/4")


@pytest.mark.parametrize("target", ["opencl", "cuda"])
def test_registers_of_no_warp(target):
    x = tir.placeholder((8,), name="x")
    y = tir.compute((8,), lambda i: x[i] * 2, name="y")
    s = tir.Schedule(tir.compute((8,), lambda i: y[i] + 1, name="z"), target)
    s.compute_at("y", "z.i").set_scope("y", "warp")
    assert refused(s.source) == "lower.fragment"
