"""Virtual threads: threads to whoever schedules, which are interleaved in a real one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.numbers import Numbers
from tensorir.interp.run import run
from tensorir.ir.tree import Alloc, Kind, Loop, Scope
from tensorir.ir.visit import find
from tensorir.lower.pipeline import lower

emulated = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)


def product(m, n, k, virtual=(2, 2), threads=(8, 8), tile=(4, 4), step=8, pipelined=False, target="cuda -arch=sm_80"):
    """C = A B in threads: ``virtual`` x ``threads`` tiles a block, both operands staged; the docs show the same."""
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    r = tir.reduce_axis(k, name="k")
    s = tir.Schedule(tir.compute((m, n), lambda i, j: tir.sum(A[i, r] * B[r, j], axis=r), name="C"), target)
    out = s.stage_out("C", at="root", scope="register").name
    bi, vi, ti, i = s.split(f"{out}.i", [None, virtual[0], threads[0], tile[0]])
    bj, vj, tj, j = s.split(f"{out}.j", [None, virtual[1], threads[1], tile[1]])
    s.reorder(bi, bj, vi, vj, ti, tj, i, j)
    s.bind(bi, "block.y").bind(bj, "block.x").bind(ti, "thread.y").bind(tj, "thread.x")
    s.bind(vi, "vthread").bind(vj, "vthread")
    s.compute_at("C", tj)
    ko, ki = s.split("C.k", [None, step])
    s.reorder(ko, ki, "C.i", "C.j")
    s.stage_in(A, at=ko, scope="shared", layout="i, k -> k, i")
    s.stage_in(B, at=ko, scope="shared")
    for name, d in (("A_shared", 0), ("B_shared", 1)):
        copy = s.stage_in(name, at=ki, scope="register").name
        axes = [f"{copy}.ax{1 - d}", f"{copy}.ax{d}"]
        s.reorder(*axes)
        if tile[d] == 4:
            s.vectorize(axes[1])
    s.unroll(ki).unroll("C.i").unroll("C.j")
    return s.pipeline(ko, 2) if pipelined else s


def operands(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n))]


def test_text(golden):
    s = product(64, 64, 16)
    golden(f"{s.tree()}\n\n{s.source()}", "schedule/vthreads.txt")
    assert tir.Schedule(s.outputs, target=s.target).replay(s.trace).source() == s.source()


@emulated
def test_tiles_that_lie_apart_meet_no_bank_conflicts():
    """Four rows and columns here and there, rather than eight in a row: the same sums, from the same threads."""
    wide = {}
    for virtual, tile in (((2, 2), (4, 4)), ((1, 1), (8, 8))):
        s = product(70, 44, 19, virtual, tile=tile)
        a, b = operands(70, 44, 19)
        got = emulate(s.emitted(), [a, b])
        assert not got.problems, got.problems
        assert np.array_equal(got.outputs[0], a @ b)
        read = [t for t in got.traffic if t.what == "shared read"]
        wide[virtual] = sum(t.units for t in read) / sum(t.ideal for t in read)
    assert wide == {(2, 2): 1.0, (1, 1): pytest.approx(2.0, abs=1.0)}
    assert wide[1, 1] > 1


@settings(max_examples=12, deadline=None)
@given(*(st.integers(1, 40) for _ in "mnk"), *(st.sampled_from([(1, 3), (2, 2), (3, 1), (4, 2)]) for _ in range(2)),
       st.sampled_from([(4, 4), (2, 3), (1, 4)]), st.booleans(), st.integers(0, 10**6))  # fmt: skip
def test_any_product(m, n, k, virtual, threads, tile, pipelined, seed):
    """The interpreter, which finds races, against NumPy."""
    s = product(m, n, k, virtual, threads, tile, step=4, pipelined=pipelined)
    module = lower(s.program, s.target)
    a, b = operands(m, n, k, seed)
    got = run(module, {"A": a, "B": b}, Numbers())
    assert np.array_equal(np.reshape(got["C"], (m, n)), a @ b)


def test_only_what_differs_is_copied():
    """Columns of A are read once for both halves of a row of tiles; copies are no larger than one thread's own."""
    module = lower(product(64, 64, 16).program, product(64, 64, 16).target)
    registers = {a.buffer.name: a.buffer.dims for a in find(module.kernels[0].body, Alloc)
                 if a.buffer.scope is Scope.REGISTER}  # fmt: skip
    assert {name: int(np.prod(dims)) for name, dims in registers.items()} == {
        "C_register": 64, "A_shared_register": 8, "B_shared_register": 8,
    }  # fmt: skip
    assert module.kernels[0].block == (8, 8, 1)
    assert not find(module.kernels[0].body, Loop, lambda x: x.kind is Kind.VTHREAD)


def doubled(n, target="opencl"):
    X = tir.placeholder((n,), name="X")
    Y = tir.compute((n,), lambda i: X[i] * 2, name="Y")
    return tir.Schedule(tir.compute((n,), lambda i: Y[i] + Y[i] * Y[i], name="Z"), target)


def proved(s):
    verdict = s.check()
    assert verdict, verdict


def test_what_is_made_inside_is_one_threads():
    s = doubled(50)
    b, t, v, _ = s.split("Z.i", [None, 4, 2, 3])
    proved(s.bind(b, "block.x").bind(t, "thread.x").bind(v, "vthread").compute_at("Y", v))
    assert "float Y[6]" in s.source()


def test_what_is_made_outside_is_shared():
    s = doubled(50)
    b, v, t, _ = s.split("Z.i", [None, 2, 4, 3])
    s.bind(b, "block.x").bind(v, "vthread").bind(t, "thread.x").compute_at("Y", b)
    outer, inner = s.split("Y.i", [None, 4])
    proved(s.bind(outer, "vthread").bind(inner, "thread.x"))  # six of one, two of the other
    assert "__local float Y[24]" in s.source()
    assert s.source().count("barrier(") == 1


def test_a_kernel_of_virtual_threads_alone():
    """What stands in the loop, one statement after another, stays one kernel."""
    s = doubled(7)
    v, _ = s.split("Z.i", [None, 3])
    s.bind(v, "vthread").compute_at("Y", v)
    s.stage_out("Z", at=v, scope="register")
    proved(s)
    assert len(lower(s.program, s.target).kernels) == 1


def test_states_of_several_values():
    """One of them is in registers, the other in the result."""
    A = tir.placeholder((37, 29), name="A")
    k = tir.reduce_axis(29, name="k")
    s = tir.Schedule(tir.compute((37,), lambda i: tir.argmax(A[i, k], axis=k), name="M"))
    b, v, t = s.split("M.i", [None, 3, 4])
    proved(s.bind(b, "block.x").bind(v, "vthread").bind(t, "thread.x"))


@pytest.mark.parametrize("where", ["vthread", "inside"])
def test_two_versions_of_a_body(where):
    s = doubled(40)
    s.compute_inline("Y")
    b, v, t, i = s.split("Z.i", [None, 2, 4, 3])
    s.bind(b, "block.x").bind(v, "vthread").bind(t, "thread.x")
    proved(s.specialize(v if where == "vthread" else i, f"{b} < 1"))


def test_what_cannot_go_in_step():
    made = product(64, 64, 16)
    made.layout("C_register", "i, j -> j, i")

    def versions(where):
        s = doubled(40)
        s.compute_inline("Y")
        v, i = s.split("Z.i", [None, 4])
        return s.bind(v, "vthread").specialize((v, i)[where], f"{v} < 2")

    for s, key in ((made, "C_register has a layout"), (versions(0), "versions of its body"),
                   (versions(1), "versions of Z.i.1")):  # fmt: skip
        with pytest.raises(tir.LoweringError) as caught:
            s.source()
        assert caught.value.code == "lower.vthread"
        assert key in str(caught.value) and caught.value.problems[0].hint
        assert not s.check()


def test_versions_that_differ_between_virtual_threads_are_refused():
    a = tir.placeholder((4,), name="A")
    c = tir.compute((4,), lambda j: a[j] * 2, name="C")
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: c[j] + i, name="D"), "cuda")
    s.bind("D.i", "vthread").compute_at("C", "D.i").specialize("C.j", "D.i < 3")
    with pytest.raises(tir.LoweringError, match=r"lower\.vthread"):
        s.source()
