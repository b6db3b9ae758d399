"""A shared cell that a loop builds up is in a register meanwhile."""

import shutil

import pytest

import tensorir as tir
from tensorir.ir.build import binary, const
from tensorir.ir.text import text
from tensorir.ir.tree import Buffer, If, Kind, Load, Loop, Program, Scope, Store, Var
from tensorir.lower.hold_cells import hold_cells
from tensorir.target import Target


def sums(target="cuda -arch=sm_80", scope="shared", extent=40):
    x = tir.placeholder((3, 64, extent), name="x")
    k = tir.reduce_axis(extent, name="k")
    total = tir.compute((3, 64), lambda b, i: tir.sum(x[b, i, k], axis=k), name="t")
    y = tir.compute((3, 64), lambda b, i: total[b, 63 - i] * 2, name="y")
    s = tir.Schedule(y, target)
    s.bind("y.b", "block.x").bind("y.i", "thread.x").compute_at("t", "y.b")
    s.set_scope("t", scope).bind("t.i", "threads")
    return s


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_loop_adds_up_in_a_register():
    s = sums()
    loop = next(line for line in s.source().split("\n") if "+=" in line)
    assert "t_held[0] += x[" in loop
    assert s.check("emulate")


def test_the_cell_is_read_and_written_once():
    lines = [line.strip() for line in sums().source().split("\n")]
    assert sum(line.startswith("t_held[0] = t[") for line in lines) == 1
    assert sum(line.endswith("= t_held[0];") for line in lines) == 1


def test_a_single_term_needs_no_register():
    assert "_held" not in sums(extent=1).source()


def test_a_cell_for_each_term_stays_in_memory():
    x = tir.placeholder((4, 64), name="x")
    y = tir.compute((4, 64), lambda b, i: x[b, i] * 2, name="y")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    s.bind("y.b", "block.x").stage_in("x", at="y.b", scope="shared")
    assert "_held" not in s.source()


def sums_of_halves(terms=40, vector=8):
    """Sums of 16-bit rows in shared memory, a thread each, which reads vectors into registers."""
    x = tir.placeholder((64, terms), "bfloat16", name="x")
    k = tir.reduce_axis(terms, name="k")
    total = tir.compute((64,), lambda i: tir.sum(x[i, k].astype("float32"), axis=k), name="t")
    y = tir.compute((64,), lambda i: total[63 - i] * 2, name="y")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    block, thread = s.split("y.i", [None, 64])
    s.bind(block, "block.x").bind(thread, "thread.x").compute_at("t", block)
    s.set_scope("t", "shared")
    few = s.split("t.k", [None, 8])
    s.stage_in("x", at=few[0], scope="register", vector=vector)
    s.unroll(few[1]).bind("t.i", "threads")
    return s


def test_registers_that_the_loop_fills_are_its_own():
    s = sums_of_halves()
    assert "t_held[0] += tir_from_bfloat16(x_register[" in s.source()
    assert "*(uint4 *)(x_register) = *(" in s.source(), "a vector, converted where it is used"
    assert s.check() and s.check("emulate")


def test_elements_that_are_read_again_are_converted_once():
    x, w = tir.placeholder((64, 8), "float16", name="x"), tir.placeholder((4, 8), name="w")
    k = tir.reduce_axis(8, name="k")
    y = tir.compute((64, 4), lambda i, j: tir.sum(x[i, k].astype("float32") * w[j, k], axis=k), name="y")
    s = tir.Schedule(y, "cuda -arch=sm_80")
    s.bind("y.i", "thread.x").stage_in("x", at="y.i", scope="register", vector=8)
    assert "float x_register[8];" in s.source() and "converted one by one" in s.source()
    assert s.check("emulate")


def held(cond):
    """What holding does to one cell a thread that a loop of 37 terms adds up where ``cond`` of the thread and the term
    holds.
    """
    t, x = (Buffer(name, (const(64),), "float32", scope) for name, scope in (("t", Scope.SHARED), ("x", Scope.GLOBAL)))
    thread, k = Var("i", "index"), Var("k", "index")
    cell, term = Load(t, (thread,), "float32"), Load(x, (k,), "float32")
    update = Store(t, (thread,), binary("+", cell, term))
    loop = Loop(k, const(37), If(cond(thread, k), update))
    program = Program("f", (x,), (t,), Loop(thread, const(64), loop, Kind.THREAD_X))
    return text(hold_cells(program, Target.parse("cuda -arch=sm_80")).body.body)


def test_who_updates_no_cell_leaves_it_alone():
    lines = [line.strip() for line in held(lambda i, k: binary("<", i, 24)).split("\n")]
    assert lines[0] == "if i < 24:"


def test_a_condition_on_terms_alone_stays_where_it_is():
    found = held(lambda i, k: binary("<", k, 24))
    assert "t_held" in found.split("\n")[0] and "if k < 24" in found


def test_a_cell_whose_terms_differ_between_threads_stays_in_memory():
    assert "t_held" not in held(lambda i, k: binary("<", binary("+", i, k), 24))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_condition_on_the_loop_s_own_registers_stays_inside():
    x, ln = tir.placeholder((64, 40), name="x"), tir.placeholder((64,), "int32", name="ln")
    k = tir.reduce_axis(40, name="k")
    total = tir.compute((64,), lambda i: tir.sum(tir.where(i < ln[i], x[i, k], 0.0), axis=k), name="t")
    s = tir.Schedule(tir.compute((64,), lambda i: total[63 - i] * 2, name="y"), "cuda -arch=sm_80")
    block, thread = s.split("y.i", [None, 64])
    s.bind(block, "block.x").bind(thread, "thread.x").compute_at("t", block)
    s.set_scope("t", "shared").bind("t.i", "thread.x").stage_in("ln", at="t.k", scope="register")
    assert s.check("emulate")
