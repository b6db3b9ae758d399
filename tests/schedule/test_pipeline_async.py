"""pipeline(…, async_=True): asynchronous copies, several iterations ahead."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from test_pipeline import numbers, tiled

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.ir.tree import Barrier, CommitGroup, Seq, Stage, Store, WaitGroup
from tensorir.ir.visit import Rewriter, find
from tensorir.lower import pipeline as passes
from tensorir.lower.form import lowering

CUDA = "cuda -arch=sm_80"
emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def ahead(depth: int = 3, vector: int | None = 4, **shape: int) -> tir.Schedule:
    return tiled(**{"k": 48, **shape}, target=CUDA, vector=vector).pipeline("C.k.0", depth, async_=True)


@emulated
@pytest.mark.parametrize("depth", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("m", "n", "k", "vector"), [(20, 24, 48, 4), (8, 12, 16, 4), (13, 7, 37, None), (16, 12, 8, 4)]
)
def test_the_text_is_right(m, n, k, vector, depth):
    """More buffers than iterations, tails, and copies of which some are too small to be on their own."""
    s = ahead(depth, vector, m=m, n=n, k=k)
    arrays = numbers(s)
    done = emulate(s.emitted(), arrays)
    assert not done.problems
    assert np.array_equal(done.outputs[0], arrays[0] @ arrays[1])
    assert s.check()


def test_one_barrier_an_iteration_and_a_wait_before_it():
    text = ahead(3).source()
    assert text.count("__syncthreads()") == 1
    loop = text[text.index("for (int k_0 = 0; k_0 < 6") :]
    words = ("tir_wait_copies<1>();", "__syncthreads();", "tir_copy_async_16(", "tir_commit_copies();", "C[")
    places = [loop.index(w) for w in words]
    assert places == sorted(places)
    assert "_next" not in text, "nothing passes through registers"
    assert text.count("tir_commit_copies();") == 2


def test_tails_are_filled_with_zeros_on_the_way():
    text = ahead(3, None, k=44).source()
    assert re.search(r"tir_copy_async_4\(A_shared.*, .*, .* < 44\)|tir_copy_async_4\(.*\? ", text) or "< 44" in text
    assert ahead(3, None, k=44).check()


def test_what_is_too_small_is_copied_by_the_threads():
    a, b = tir.placeholder((8, 32), "int8", name="A"), tir.placeholder((32, 8), "int8", name="B")
    kk = tir.reduce_axis(32, "k")
    wide = lambda x: tir.cast(x, "int32")  # noqa: E731
    c = tir.compute((8, 8), lambda i, j: tir.sum(wide(a[i, kk]) * wide(b[kk, j]), axis=kk), "C")
    s = tir.Schedule(c, CUDA)
    s.bind("C.i", "thread.y").bind("C.j", "thread.x")
    ko, _ = s.split("C.k", [None, 8])
    s.stage_in("A", at=ko, scope="shared", vector=8)
    s.stage_in("B", at=ko, scope="shared")
    s.pipeline(ko, 3, async_=True)
    text = s.source()
    assert "tir_copy_async_8(A_shared" in text
    assert "tir_copy_async_8(B_shared" not in text
    assert s.check()
    if shutil.which("g++"):
        assert s.check("emulate")


def test_the_tree_says_so_and_the_trace_replays():
    s = ahead(4)
    assert "for C.k.0 in 6:  # pipeline depth=4 async" in str(s)
    assert tir.replay(s.outputs, s.trace.to_json(), target=CUDA).source() == s.source()
    assert s.emitted().kernels[0].shared_bytes == 4 * tiled(k=48, target=CUDA).emitted().kernels[0].shared_bytes


@emulated
def test_more_than_48_kilobytes_come_at_launch():
    config = dict(bm=256, bn=128, wm=64, wn=64, bk=32, depth=4, in_flight=1, raster=1, splits=1, atomic=0, rest=0)
    s = tir.ops.matmul(m=256, n=128, k=128, dtype="float16").schedule({**config, "staged": 0}, "gpu_tile_mma", CUDA)
    source = s.emitted()
    assert source.kernels[0].shared_bytes == 4 * 2 * 32 * (256 + 128)
    assert "TIR_SHARED(tir_shared, 98304);" in source.text
    assert "__shared__ __half" not in source.text
    assert s.check("emulate")


@pytest.mark.parametrize(
    ("code", "target", "arguments"),
    [
        ("pipeline.async", "opencl -kind=gpu", dict(depth=3, async_=True)),
        ("pipeline.async", "cuda -arch=sm_75", dict(depth=2, async_=True)),
        ("pipeline.depth", CUDA, dict(depth=9, async_=True)),
        ("pipeline.depth", CUDA, dict(depth=1, async_=True)),
        ("pipeline.depth", CUDA, dict(depth=3)),
        ("argument.type", CUDA, dict(async_=1)),
    ],
)
def test_refusals(code, target, arguments):
    with pytest.raises(tir.TensorIRError) as e:
        tiled(target=target).pipeline("C.k.0", **arguments)
    assert e.value.code == code


# --- what a pass could leave out: each is told by the interpreter, and by the emulator from the text ----------------


class _Without(Rewriter):
    """Leaves out, or changes, what the pass made."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def on_WaitGroup(self, n: WaitGroup) -> WaitGroup:
        return n.replace(pending=n.pending + {"no wait": 99, "one group too many": 1}.get(self.fault, 0))

    def on_CommitGroup(self, n: CommitGroup) -> object:
        return Seq(()) if self.fault == "no commit" else n

    def on_Barrier(self, n: Barrier) -> object:
        return Seq(()) if self.fault == "no barrier" else n


class _Slots(Rewriter):
    """All copies inside the loop go to the slot that is being read."""

    def on_Store(self, n: Store) -> Store:
        from tensorir.ir.tree import Binary

        slot = n.index[0]
        if n.later and isinstance(slot, Binary) and slot.op == "%":
            assert isinstance(slot.a, Binary)
            return n.replace(index=(slot.a.a % slot.b, *n.index[1:]))
        return n


class _Twice(Rewriter):
    """Everything is copied twice: the second copy meets the first, which is still under way."""

    def on_Stage(self, n: Stage) -> object:
        return Seq((n, n)) if find(n.body, Store, lambda x: x.later) else n


FAULTS: dict[str, Rewriter] = {
    **{name: _Without(name) for name in ("no wait", "one group too many", "no commit", "no barrier")},
    "the slot that is read": _Slots(),
}


MANY = [dict(i=20, j=24, k=48)]
"""Six iterations: with one, there is no pipeline, and barriers are those of insert_barriers."""


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_what_a_pass_could_get_wrong_is_told(fault, monkeypatch):
    @lowering
    def broken(program, target):
        return FAULTS[fault](program) if fault in FAULTS else program

    broken.__name__ = "broken"
    names = [p.__name__ for p in passes.PASSES]
    at = names.index("insert_barriers")  # which would mend a missing barrier
    kept = [p for p in passes.PASSES if p.__name__ != "insert_barriers"]
    monkeypatch.setattr(passes, "PASSES", [*kept[:at], broken, *kept[at:]])
    s = ahead(3)
    assert bool(s.check(shapes=MANY)) == (fault == "none")
    if shutil.which("g++"):
        assert bool(s.check("emulate", shapes=MANY)) == (fault == "none"), fault


def test_two_copies_to_one_place(monkeypatch):
    @lowering
    def broken(program, target):
        return _Twice()(program)

    broken.__name__ = "broken"
    at = [p.__name__ for p in passes.PASSES].index("insert_barriers") + 1
    s = ahead(3)
    assert s.check(shapes=MANY)
    monkeypatch.setattr(passes, "PASSES", [*passes.PASSES[:at], broken, *passes.PASSES[at:]])
    assert {p.code for p in s.check(shapes=MANY).problems} == {"memory.in-flight"}
    if shutil.which("g++"):
        assert "memory.in-flight" in {p.code for p in s.check("emulate", shapes=MANY).problems}


def without(words: str) -> Callable[[str], str]:
    return lambda text: text.replace(words, ";", 1) if words in text else pytest.fail(words)


EDITS = {
    "memory.in-flight": without("tir_wait_copies<1>();"),
    "race.shared": without("__syncthreads();"),
    "memory.misaligned": lambda t: t.replace("tir_copy_async_16(A_shared + ", "tir_copy_async_16(1 + A_shared + ", 1),
    "memory.out-of-bounds": lambda t: t.replace("tir_copy_async_16(A_shared + ", "tir_copy_async_16((float *)A + ", 1),
}


@emulated
@pytest.mark.parametrize("code", EDITS)
def test_edited_text_is_told_with_its_line(code):
    s = ahead(3)
    source = s.emitted()
    text = EDITS[code](source.text)
    assert text != source.text
    done = emulate(replace(source, text=text), numbers(s))
    told = [p for p in done.problems if p.code == code]
    assert told, done.problems
    if shutil.which("addr2line"):
        assert re.search(r"line \d+ of the text", told[0].message)


def test_the_pass_makes_groups():
    from tensorir.lower.pipeline import forms

    s = ahead(3)
    after = dict(forms(s.program, s.target))["pipeline_loops"]
    assert [w.pending for w in find(after.body, WaitGroup)] == [1]
    assert len(find(after.body, CommitGroup)) == 2
    assert any(x.later for x in find(after.body, Store))
