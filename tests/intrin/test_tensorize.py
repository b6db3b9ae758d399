"""tensorize: what it refuses, what it leaves alone, and that the program still computes the same."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.intrin.intrin import Intrin, meaning, register
from tensorir.ir.tree import Kind, Loop
from tensorir.ir.visit import find

pytestmark = pytest.mark.usefixtures("unoptimised")


def matmul(m=12, n=16, k=8, target="opencl", transposed=False, dtype="float32"):
    a = tir.placeholder((m, k), dtype, name="A")
    b = tir.placeholder((n, k) if transposed else (k, n), dtype, name="B")
    kk = tir.reduce_axis(k, name="k")
    c = tir.compute((m, n), lambda i, j: tir.sum(a[i, kk] * (b[j, kk] if transposed else b[kk, j]), axis=kk), name="C")
    return c, tir.Schedule(c, target)


def rows(lanes=8, **shape):
    """A matmul whose innermost loop is a row of ``lanes`` elements."""
    c, s = matmul(**shape)
    outer, inner = s[c].split("j", [None, lanes])
    s[c].reorder("i", outer, "k", inner)
    return c, s


def code(call, *args):
    with pytest.raises(tir.ScheduleError) as e:
        call(*args)
    return e.value.code, str(e.value)


def right(c, s, device):
    rng = np.random.default_rng(0)
    given = [rng.integers(-4, 5, t.shape).astype(t.dtype) for t in sorted(c.op.inputs, key=lambda t: t.order)]
    want = tir.Schedule(c, "opencl").build(device)(*given)
    return bool(s.check()) and np.array_equal(s.build(device)(*given), want)


# --- right programs


def test_rows(device, golden):
    c, s = rows()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    golden("\n\n".join([s.tree(), s.source(), s.source("opencl -kind=gpu"), s.source("cuda")]), "intrin/rows.txt")
    assert right(c, s, device)


def test_the_nest_may_hold_the_reduction(device):
    c, s = matmul(transposed=True)
    _, inner = s[c].split("k", [None, 4])
    s.tensorize(inner, "opencl.dot.f32x4")
    assert "C[i * 16 + j] = 0.0f;" in s.source()
    assert right(c, s, device)


def test_operands_of_products_in_either_order(device):
    a, b = tir.placeholder((4, 8), name="A"), tir.placeholder((4,), name="B")
    t = tir.reduce_axis(4, name="t")
    c = tir.compute((8,), lambda j: tir.sum(a[t, j] * b[t], axis=t), name="C")
    s = tir.Schedule(c)
    s[c].reorder("t", "j")
    s.tensorize("C.j", "opencl.fma.f32x8")
    assert right(c, s, device)


def test_in_registers_with_shared_copies_and_threads(device):
    c, s = matmul(32, 32, 16)
    bi, ti, ii = s[c].split("i", [None, 2, 2])
    bj, tj, ji = s[c].split("j", [None, 2, 8])
    ko, ki = s[c].split("k", [None, 4])
    s[c].reorder(bi, bj, ti, tj, ko, ki, ii, ji)
    s.bind(bi, "block.y").bind(bj, "block.x").bind(ti, "thread.y").bind(tj, "thread.x")
    s.stage_out(c, at=tj, scope="register")
    s.tensorize(ji, "opencl.fma.f32x8")
    a, b = sorted(c.op.inputs, key=lambda t: t.order)
    s.stage_in(a, at=ko, scope="shared")  # staging still sees what the instruction reads
    s.stage_in(b, at=ko, scope="shared", vector=4, pad=4)
    source = s.source()
    assert source.count("barrier(") == 2
    assert "*(float8 *)(C_register + i_2 * 8) += A_shared[" in source
    assert "* *(__local float8u *)(B_shared + " in source
    assert right(c, s, device)


def test_a_copy_that_other_threads_read_gets_a_barrier(device, table):
    a = tir.placeholder((8, 8), name="A")
    p = tir.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="P")
    q = tir.compute((8, 8), lambda i, j: p[j, i] * 2.0, name="Q")
    x = tir.placeholder((8,), name="x")
    y = tir.compute((8,), lambda n: x[n] + 1.0, name="y")
    register(Intrin("my.inc", meaning(y), {"opencl": "vstore8(vload8(0, {x}) + 1.0f, 0, {y});"}, "none"))
    s = tir.Schedule(q)
    one, _ = s[q].split("i", [None, 8])
    s.compute_at(p, q, one)
    s.bind("Q.i.1", "thread.x")
    s.bind("P.i", "thread.x")
    s.set_scope(p, "shared")
    s.tensorize("P.j", "my.inc")
    assert s.source().count("barrier(") == 1
    assert bool(s.check())


def test_a_tail_outside_the_nest_guards_the_whole_call(device):
    c, s = rows(m=13)
    s[c].split("i", [None, 4])
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    assert "if (" in s.source()
    assert right(c, s, device)


def test_inputs_stay_const_and_the_output_does_not():
    _, s = rows()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    assert "__global const float *restrict A" in s.source()
    assert "__global float *restrict C" in s.source()


def test_trace_replays():
    c, s = rows()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    again = tir.Schedule(c).replay(s.trace.to_json())
    assert again.source() == s.source()


def test_other_languages_get_the_loops():
    _, s = rows()
    plain = s.source("cuda").splitlines()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    assert [x for x in s.source("cuda").splitlines() if "tensorize" not in x] == plain


def test_initialisation_is_no_instruction():
    c, s = rows()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    s.decompose_reduction(c, "k")
    kinds = [x.kind for x in find(s.program.body, Loop)]
    assert kinds.count(Kind.INTRIN) == 1


# --- refusals


def test_unknown():
    _, s = rows()
    got, text = code(s.tensorize, "C.j.1", "opencl.fma.f32x9")
    assert got == "tensorize.unknown"
    assert "opencl.fma.f32x8" in text


def test_unregistered(table):
    _, s = rows()
    x = tir.placeholder((8,), name="x")
    made = Intrin("my.copy", meaning(tir.compute((8,), lambda n: x[n], name="y")), {"opencl": ";"}, "none")
    assert code(s.tensorize, "C.j.1", made)[0] == "tensorize.unknown"


def test_one_stage():
    c, s = matmul()
    s.stage_in(c.op.inputs[0], at="C.i", scope="register")
    assert code(s.tensorize, "C.i", "opencl.fma.f32x8")[0] == "tensorize.one-stage"


def test_serial():
    _, s = rows()
    s.unroll("C.j.1")
    assert code(s.tensorize, "C.j.1", "opencl.fma.f32x8")[0] == "tensorize.serial"


def test_tail():
    _, s = rows(n=20)
    got, text = code(s.tensorize, "C.j.1", "opencl.fma.f32x8")
    assert got == "tensorize.tail"
    assert "the tail C.j.0 * 8 + C.j.1 < 20 of C cuts through C.j.1" in text


def test_dialect():
    _, s = rows(target="cuda")
    assert code(s.tensorize, "C.j.1", "opencl.fma.f32x8")[0] == "tensorize.dialect"


def test_needs(table):
    x = tir.placeholder((8,), name="x")
    y = tir.compute((8,), lambda n: x[n], name="y")
    register(Intrin("my.copy", meaning(y), {"cuda": ";", "opencl": ";"}, "none", needs=("sm_90",)))
    a = tir.placeholder((4, 8), name="A")
    b = tir.compute((4, 8), lambda i, j: a[i, j], name="B")
    assert code(tir.Schedule(b, "cuda").tensorize, "B.j", "my.copy")[0] == "tensorize.needs"
    assert tir.Schedule(b, "cuda -arch=sm_90").tensorize("B.j", "my.copy")


@pytest.mark.parametrize(
    ("lanes", "axis", "name", "says"),
    [
        (
            4,
            "C.j.1",
            "opencl.fma.f32x8",
            "opencl.fma.f32x8 runs over 8 iterations, the nest C.j.1 runs over 4 iterations",
        ),
        (
            8,
            "C.j.1",
            "opencl.add.f32x8",
            "opencl.add.f32x8 overwrites its output, the stage combines with its output by sum",
        ),
        (
            8,
            "C.j.1",
            "opencl.dot.f32x4",
            "opencl.dot.f32x4 runs over 4 iterations, the nest C.j.1 runs over 8 iterations",
        ),
    ],
)
def test_same_meaning(lanes, axis, name, says):
    _, s = rows(lanes)
    got, text = code(s.tensorize, axis, name)
    assert got == "tensorize.same-meaning"
    assert says in text
    assert f"{name} computes" in text


def test_same_meaning_says_which_dimension_does_not_move():
    c, s = matmul()
    _, inner = s[c].split("k", [None, 8])
    got, text = code(s.tensorize, inner, "opencl.fma.f32x8")
    assert got == "tensorize.same-meaning"
    assert "dimension 1 of C does not move with C.k.1 as c does" in text


def test_same_meaning_needs_neighbours():
    c, s = matmul()
    _, inner = s[c].split("k", [None, 4])
    assert "dimension 0 of B does not move with C.k.1 as b does" in code(s.tensorize, inner, "opencl.dot.f32x4")[1]


def test_same_meaning_needs_the_element_type():
    _, s = rows(dtype="int32")
    assert "is float32, C is int32" in code(s.tensorize, "C.j.1", "opencl.fma.f32x8")[1]


def test_same_meaning_compares_values():
    a = tir.placeholder((4, 8), name="A")
    b = tir.compute((4, 8), lambda i, j: a[i, j] * a[i, j] + 1.0, name="B")
    assert "the stage has A[B.i, B.j] * A[B.i, B.j]" in code(tir.Schedule(b).tensorize, "B.j", "opencl.add.f32x8")[1]


def test_layout_afterwards_must_keep_the_elements_together():
    a = tir.placeholder((8, 8), name="A")
    p = tir.compute((8, 8), lambda i, j: a[i, j], name="P")
    q = tir.compute((8, 8), lambda i, j: p[i, j] + 1.0, name="Q")
    s = tir.Schedule(q)
    s.tensorize("P.j", "opencl.copy.f32x8")
    before = s.tree()
    got, text = code(s.layout, "P", "i, j -> j, i")
    assert got == "tensorize.last"
    assert "layout before tensorize" in text
    assert s.tree() == before


@pytest.mark.parametrize("held", [("P",), ("Q",), ("R",), ("Q", "R"), ("P", "Q", "R")])
def test_of_several_changed_kernels_the_one_with_the_instruction_is_named(held):
    """All three kernels have P, whose layout changes: the first one that an instruction performs cannot follow."""
    a = tir.placeholder((8, 8), name="A")
    p = tir.compute((8, 8), lambda i, j: a[i, j], name="P")
    q = tir.compute((8, 8), lambda i, j: p[i, j], name="Q")
    r = tir.compute((8, 8), lambda i, j: p[i, j], name="R")
    s = tir.Schedule([q, r])
    for name in held:
        s.tensorize(f"{name}.j", "opencl.copy.f32x8")
    before = s.tree()
    got, text = code(s.layout, "P", "i, j -> j, i")
    assert got == "tensorize.last" and f"{held[0]} would no longer be opencl.copy.f32x8" in text
    assert s.tree() == before
    s.split("P.i", [None, 4])  # which no instruction minds
    assert s.check()


def test_inlining_into_the_nest_is_refused():
    a = tir.placeholder((8, 8), name="A")
    p = tir.compute((8, 8), lambda i, j: a[i, j] + 1.0, name="P")
    q = tir.compute((8, 8), lambda i, j: p[i, j], name="Q")
    s = tir.Schedule(q)
    s.tensorize("Q.j", "opencl.copy.f32x8")
    assert code(s.compute_inline, p)[0] == "tensorize.last"


def test_loops_of_an_instruction_are_gone():
    c, s = rows()
    s.tensorize("C.j.1", "opencl.fma.f32x8")
    got, text = code(s.unroll, "C.j.1")
    assert got == "loop.gone"
    assert "opencl.fma.f32x8 performs it by step 3" in text
    assert "C.j.1" not in s.loops(c)
