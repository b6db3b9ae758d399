"""Warpgroups with roles: what the schedule says, what it becomes, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from products import ROWS, declared, given, specialised

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.check.equivalence import compare_module
from tensorir.interp.numbers import Field
from tensorir.ir.tree import Arrive, Await, If, Seq, WaitGroup
from tensorir.ir.visit import Rewriter
from tensorir.lower.kernel import module_of
from tensorir.lower.pipeline import PASSES

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
ORDERS = ("nn", "nt", "tn", "tt")


@pytest.mark.parametrize("order", ORDERS)
def test_schedules_are_proved(order):
    verdict = specialised(136, 72, 264, order).check()
    assert verdict, verdict
    assert any("c.k=256" in shape for shape in verdict.shapes), "more tiles than buffers"


@pytest.mark.parametrize("order", ["nt", "nn"])
def test_clusters_are_proved(order):
    verdict = specialised(264, 72, 264, order, blocks=1, cluster=2).check()
    assert verdict, verdict
    text = specialised(512, 128, 256, order, cluster=2).source()
    assert "__cluster_dims__(2, 1, 1)" in text
    assert text.count("tir_tma_multicast(") == 2, "its definition, and the one call for b"


def test_text(golden):
    s = specialised(256, 128, 256)
    golden(f"{s.tree()}\n\n{s.source()}", "warps/roles.txt")
    assert tir.Schedule(s.outputs, target=s.target).replay(s.trace).source() == s.source()


@settings(max_examples=6, deadline=None)
@drawn(
    st.integers(1, 200), st.integers(1, 20), st.integers(1, 40), st.sampled_from(ORDERS), st.integers(2, 4),
    st.sampled_from([None, 1, 2, 3]), st.booleans(),
)  # fmt: skip
def test_any_shape(m, n, k, order, depth, blocks, store):
    """Resident blocks go on in the ring where their last tile ended."""
    m, n, k = 8 * -(-m // 8), 8 * n, 8 * k
    s = specialised(m, n, k, order, depth=depth, blocks=blocks, store=store)
    assert proved(s) is None


@emulated
@settings(max_examples=8, deadline=None)
@drawn(
    st.integers(1, 200), st.integers(1, 20), st.integers(1, 40), st.sampled_from(ORDERS), st.integers(2, 4),
    st.sampled_from([None, 1, 2, 3]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_text_multiplies(m, n, k, order, depth, blocks, store, eager):
    """The emulator's instructions are written after the manual, not after the tables that the compiler works from."""
    m, n, k = 8 * -(-m // 8), 8 * n, 8 * k
    s = specialised(m, n, k, order, depth=depth, blocks=blocks, store=store)
    arrays, want = given(m, n, k, order, "float16")
    got = emulate(s.emitted(), arrays, eager=eager)
    assert not got.problems, got.problems
    assert np.array_equal(got.outputs[0], want)


@emulated
@pytest.mark.parametrize(
    "fault", ["  tir_wait_stores<0>();", "  tir_async_fence();", "  tir_sync_some(1, 256);", "  tir_commit_stores();"]
)
def test_stores_are_watched(fault):
    """Without what orders tiles that leave, the numbers may be right by luck; the emulator tells."""
    arrays, _ = given(256, 128, 192, "nt", "float16")
    source = specialised(256, 128, 192, blocks=1, store=True).emitted()
    text = source.text.replace(fault, "", 1)
    assert text != source.text
    assert not emulate(source, arrays).problems
    assert emulate(replace(source, text=text), arrays).problems


def proved(s, broken=lambda body: body):
    """The first thing wrong with a schedule, one of whose passes may be followed by a change."""
    program = s.program
    for p in PASSES:
        program = p(program, s.target)
        if p.__name__ == "split_roles":
            program = program.replace(body=broken(program.body))
    return compare_module(module_of(program), s.outputs, Field(), 1)


class Dropped(Rewriter):
    """Without the n-th statement of a class."""

    def __init__(self, cls, which=0):
        self.cls, self.left = cls, which

    def __call__(self, n):
        if isinstance(n, self.cls):
            self.left -= 1
            if self.left == -1:
                return Seq(())
        return super().__call__(n)


class Parity(Rewriter):
    """Barriers awaited with the other parity."""

    def __init__(self, name):
        self.name = name

    def on_Await(self, n):
        return n.replace(parity=1 - n.parity) if n.buffer.name == self.name else n


class Arrivals(Rewriter):
    """Barriers that expect another number of arrivals."""

    def __init__(self, name, change):
        self.name, self.change = name, change

    def on_InitBarriers(self, n):
        return n.replace(arrivals=n.arrivals + self.change) if n.buffer.name == self.name else n


class Bytes(Rewriter):
    """Half of the bytes announced."""

    def on_Arrive(self, n):
        return n.replace(bytes=n.bytes // 2)


class Early(Rewriter):
    """A buffer given back before its own products have read it: the one of this iteration."""

    def on_If(self, n):
        if not isinstance(n.then, Arrive) or n.cond.op != "and":
            return self.children(n)
        count = n.cond.a.b
        return If(n.cond.b, n.then.replace(index=(count % 3,)))


PLANTED = {
    "full is not awaited": (Dropped(Await, 0), "memory.uninitialised"),
    "empty is not awaited": (Dropped(Await, 1), "barrier.misused"),
    "no release": (Dropped(Arrive, 0), "barrier.stuck"),
    "nothing announced": (Dropped(Arrive, 2), "barrier.stuck"),
    "products not awaited in the loop": (Dropped(WaitGroup, 0), "memory.in-flight"),
    "products not awaited behind it": (Dropped(WaitGroup, 1), "memory.in-flight"),
    "parity of full": (Parity("full"), "memory.uninitialised"),
    "parity of empty": (Parity("empty"), "barrier.stuck"),
    "one arrival too many": (Arrivals("empty", 1), "barrier.stuck"),
    "one arrival too few": (Arrivals("empty", -1), "barrier.stuck"),
    "half of the bytes": (Bytes(), "barrier.stuck"),
    "released too early": (Early(), "memory.in-flight"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_faults_are_found_before_there_is_text(fault):
    broken, code = PLANTED[fault]
    found = proved(specialised(128, 64, 512), broken)
    assert found is not None
    assert found.code == code, found


def test_the_last_slot_of_a_tile_is_free_before_its_results_leave():
    """Else a ring of depth 3 acts as one of 2 at the beginning of every further tile of results."""
    s = specialised(512, 128, 192, blocks=2, depth=3, store=True)
    assert proved(s) is None
    found = proved(s, Dropped(Arrive, 1))  # the one behind the loop over k
    assert found is not None and found.code == "barrier.stuck"
    text = s.source()
    behind = text[text.index("tir_wgmma_wait<0>();") :]
    assert behind.index("tir_barrier_arrive(&empty[") < behind.index("tir_tma_store(")


def test_roles_and_tiles_are_refused():
    def refused(code, act):
        with pytest.raises(tir.TensorIRError) as e:
            act()
        assert e.value.problems[0].code == code, e.value
        return str(e.value)

    assert "40 and" not in refused("pipeline.roles", lambda: specialised(128, 64, 128, roles={"load": 40}))
    refused("pipeline.roles", lambda: specialised(128, 64, 128, roles={"load": 40, "compute": 233}))
    told = refused(
        "pipeline.roles", lambda: specialised(192, 64, 128, block=(192, 64), roles={"load": 40, "compute": 240})
    )
    assert "'compute': 152" in told
    refused("pipeline.depth", lambda: specialised(128, 64, 128, depth=9))
    refused("stage-in.tile-copy", lambda: specialised(128, 64, 129))
    plain = tir.Schedule(declared(128, 64, 128), target="cuda -arch=sm_90a")
    refused("bind.cluster", lambda: plain.bind(plain.split("out.j", [None, 3])[1], "cluster"))
    refused("stage-out.via", lambda: plain.stage_out("out", at="out.i", scope="shared", via="dma"))
    refused("stage-out.tile-copy", lambda: plain.stage_out("out", at="out.i", scope="register", via="tma"))
    refused("stage-in.via", lambda: plain.stage_in("a", at="c.k", via="dma"))
    refused("pipeline.roles", lambda: plain.pipeline("c.k", 2, roles={"load": 40, "compute": 160}))
    old = tir.Schedule(declared(128, 64, 128), target="cuda -arch=sm_80")
    refused("stage-in.tile-copy", lambda: old.stage_in("a", at="c.k", via="tma"))
    refused("bind.cluster", lambda: old.bind(old.split("out.j", [None, 2])[1], "cluster"))
    refused("pipeline.roles", lambda: old.pipeline("c.k", 2, roles={"load": 40, "compute": 160}))


def test_tiles_that_nobody_awaits_are_refused():
    s = tir.Schedule(declared(128, 64, 128), target="cuda -arch=sm_90a")
    s.stage_in("a", at="c.i", scope="shared", layout=ROWS.format(64, 8), via="tma")
    with pytest.raises(tir.LoweringError) as e:
        s.source()
    assert e.value.problems[0].code == "lower.roles"


def test_operands_of_descriptors_lie_in_swizzled_rows():
    s = specialised(128, 64, 128)
    steps = [step for step in s.trace if step.primitive != "stage_in"]
    assert len(steps) < len(s.trace)
    text = s.trace.to_json().replace(ROWS.format(64, 8), "r, x -> r, x")
    with pytest.raises(tir.LoweringError) as e:
        tir.Schedule(s.outputs, target=s.target).replay(text).source()
    assert e.value.problems[0].code == "lower.tile"
