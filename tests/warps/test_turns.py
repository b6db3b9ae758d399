"""Sets of warpgroups that compute tiles alternately (ping-pong): one stores results while another multiplies."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from products import ROWS, declared, given, specialised
from test_roles import Dropped, proved

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.ir.tree import Arrive, Await, InitBarriers, WaitGroup
from tensorir.ir.visit import Rewriter

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def turned(m, n, k, order="nt", turns=2, blocks=1, store=True, **more):
    """Tiles of 64 x 64, each of one warpgroup."""
    return specialised(m, n, k, order, block=(64, 64), blocks=blocks, turns=turns, store=store, **more)


def test_text(golden):
    s = turned(320, 64, 256)
    golden(f"{s.tree()}\n\n{s.source()}", "warps/turns.txt")
    assert tir.Schedule(s.outputs, target=s.target).replay(s.trace).source() == s.source()


def test_schedules_are_proved():
    verdict = turned(320, 72, 200).check()
    assert verdict, verdict
    tiles = {shape.split("c.k=")[1].split()[0] for shape in verdict.shapes}
    assert "256" in tiles, "more slots than buffers"
    assert any("out.i=1 " in shape for shape in verdict.shapes), "fewer tiles than sets"


@emulated
@settings(max_examples=5, deadline=None)
@drawn(
    st.integers(1, 36), st.integers(1, 18), st.integers(1, 34), st.integers(2, 4), st.integers(1, 3),
    st.integers(2, 3), st.sampled_from([1, 2]), st.booleans(), st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_text_multiplies(m, n, k, depth, blocks, turns, cluster, store, eager, seed):
    """As many tiles as there are, an odd number too, or fewer than sets; rings that an iteration fills or does not."""
    m, n, k = 8 * m, 8 * n, 8 * k
    s = turned(m, n, k, depth=depth, blocks=blocks, turns=turns, cluster=cluster, store=store)
    arrays, want = given(m, n, k)
    got = emulate(s.emitted(), arrays, seed=seed, eager=eager)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], want)


class Ordered(Rewriter):
    """What sets tell each other, changed: barriers awaited with the other parity, told to oneself, or twice as many."""

    def __init__(self, fault):
        self.fault = fault

    def on_Await(self, n):
        return n.replace(parity=1 - n.parity) if n.buffer.name == "order" and self.fault == "parity" else n

    def on_Arrive(self, n):
        mine = n.index[0].a.a if n.buffer.name == "order" else None
        return n.replace(index=(mine,)) if mine is not None and self.fault == "to oneself" else n

    def on_InitBarriers(self, n: InitBarriers):
        return n.replace(arrivals=2) if n.buffer.name == "order" and self.fault == "arrivals" else n


PLANTED = {
    "no turn is awaited": Dropped(Await, 0),
    "no turn is passed on": Dropped(Arrive, 1),
    "the last slot of a tile is not released": Dropped(Arrive, 2),
    "products not awaited before the last release": Dropped(WaitGroup, 1),
    "parity": Ordered("parity"),
    "to oneself": Ordered("to oneself"),
    "arrivals": Ordered("arrivals"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_faults_are_found_before_there_is_text(fault):
    """Turns are no courtesy: whoever comes too early takes another set's slots for its own."""
    s = turned(448, 64, 512)
    found = proved(s, PLANTED[fault])
    assert found is not None
    assert found.code in ("barrier.stuck", "barrier.misused", "memory.in-flight", "memory.uninitialised"), found


TEXT = {
    "no turn is awaited": ("tir_barrier_wait(&order[turn]", "if (0) tir_barrier_wait(&order[turn]"),
    "no turn is passed on": ("tir_barrier_arrive(&order[", "if (0) tir_barrier_arrive(&order["),
    "results in one place": ("out_shared + turn * 4096", "out_shared"),
    "a slot of another set is released": ("if (0 < k_0 && lane < 1)", "if (lane < 1)"),
    "results leave while they are overwritten": ("        tir_wait_stores<0>();\n", ""),
}


@emulated
def test_faults_of_the_text_are_found():
    source = turned(320, 64, 200).emitted()
    arrays, want = given(320, 64, 200)
    got = emulate(source, arrays)
    assert not got.problems
    assert np.array_equal(got.outputs[0], want)
    for fault, (old, new) in TEXT.items():
        start = source.text.index('extern "C"')
        text = source.text[:start] + source.text[start:].replace(old, new)
        assert text != source.text, fault
        assert emulate(replace(source, text=text), arrays).problems, fault


def test_turns_are_refused():
    def refused(act):
        with pytest.raises(tir.TensorIRError) as e:
            act()
        return e.value.problems[0].code

    assert refused(lambda: turned(320, 64, 128, blocks=None)) == "pipeline.turns", "no loop over tiles"
    plain = specialised(128, 64, 128)
    assert refused(lambda: plain.fork().undo().pipeline("c.k.0", 2, async_=True, turns=2)) == "pipeline.turns"
    assert refused(lambda: turned(320, 64, 128, turns=3, roles={"load": 40, "compute": 232})) == "pipeline.roles"
    s = turned(512, 64, 128)
    s.split(s.loops("c")[0], [None, 2])
    assert refused(s.source) == "lower.roles"


@emulated
def test_one_tile_of_one_matrix_of_a_batch():
    """Loops of one iteration around the reduction, that of the batch among them: all of it is the first set's."""
    a, b = (tir.placeholder((2, 64, 128), "float16", name=x) for x in "ab")
    r = tir.reduce_axis(128, name="k")
    c = tir.compute(
        (2, 64, 64),
        lambda z, i, j: tir.sum(tir.cast(a[z, i, r], "float32") * tir.cast(b[z, j, r], "float32"), axis=r),
        name="c",
    )
    s = tir.Schedule(tir.compute((2, 64, 64), lambda z, i, j: c[z, i, j] * 2.0, name="out"), "cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 1, 64])
    s.reorder("out.z", bi, wi, i, "out.j")
    _, tile = s.split(s.fuse("out.z", bi), [None, 2])
    s.bind(tile, "block.x").bind(wi, "warpgroup").compute_at("c", wi)
    ko, kk, ki = s.split("c.k", [None, 4, 16])
    s.reorder("c.z", ko, kk, "c.i", "c.j", ki)
    for name in "ab":
        s.stage_in(name, at=ko, scope="shared", layout="z, r, x -> z, x/64, r, x/8%8 ^ r%8, x%8", via="tma")
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt").unroll(kk)
    s.pipeline(ko, 2, roles={"load": 40, "compute": 232}, turns=2)
    arrays = random_arguments(s.outputs, 1)
    got = emulate(s.emitted(), arrays)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], evaluate(s.outputs, arrays)[0])


def test_turns_over_terms_are_refused():
    """Sets of warpgroups would each add up their own terms, and store the same results."""
    s = tir.Schedule(declared(64, 64, 512), target="cuda -arch=sm_90a")
    bi, wi, i = s.split("out.i", [None, 1, 64])
    bj, j = s.split("out.j", [None, 64])
    s.reorder(bi, bj, wi, i, j).bind(s.fuse(bi, bj), "block.x").bind(wi, "warpgroup")
    s.compute_at("c", wi)
    k0, k1, kk, ki = s.split("c.k", [None, 2, 4, 16])
    s.reorder(k0, k1, kk, "c.i", "c.j", ki)
    for name in "ab":
        s.stage_in(name, at=k1, scope="shared", layout=ROWS.format(64, 8), via="tma")
    s.tensorize("c.i", "wgmma.m64n64k16.f16.nt").unroll(kk)
    with pytest.raises(tir.ScheduleError, match="adds up over them"):
        s.pipeline(k1, 2, roles={"load": 40, "compute": 160}, turns=2)
