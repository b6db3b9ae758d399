"""Loops around several statements run at once only where that gives the results, and the faults, of one iteration after
another.
"""

import functools
import itertools
import random

import numpy as np
import pytest
import run as mutants
from hypothesis import given, settings
from hypothesis import strategies as st
from mutated_programs import CPU, PROGRAMS
from mutations import after_barriers, final_form
from test_planted_faults import R, S, X, Y, load, store

import tensorir as tir
from tensorir.errors import LoweringError
from tensorir.interp import lift
from tensorir.interp.distinct_cells import DistinctCells
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import random_arguments
from tensorir.interp.run import iterations, run
from tensorir.ir.build import as_expr, binary, const
from tensorir.ir.tree import Alloc, Buffer, If, Kind, Let, Load, Loop, Program, Ramp, Scope, Select, Seq, Store, Var
from tensorir.ir.visit import find
from tensorir.lower import pipeline
from tensorir.lower.kernel import module_of

I, J, Q, N = (Var(name, "index") for name in "ijqn")
WIDE = Buffer("w", (as_expr(1 << 12),), "float32", Scope.GLOBAL)


def outcome(module, arrays, numbers=None):
    """All results, or the code of the fault."""
    try:
        return run(module, arrays, numbers or Field())
    except Fault as f:
        return f.problem.code


def in_order(module, arrays, numbers=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lift, "AT_ONCE", 0)
        return outcome(module, arrays, numbers)


def assert_alike(module, outputs, numbers=None):
    names = [b.name for b in module.inputs]
    arrays = dict(zip(names, random_arguments(outputs, 1, numbers or Field()), strict=True))
    want, got = in_order(module, arrays, numbers), outcome(module, arrays, numbers)
    assert isinstance(want, str) == isinstance(got, str), (want, got)
    if isinstance(want, dict):
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
    return want


def convolution(template, **knobs):
    w = tir.ops.conv2d(n=2, c=9, h=9, w=11, k=17, r=3, s=3, pad=1)
    space = w.templates[template].space_for(tir.Target.parse(CPU)).pin(**knobs)
    return w.schedule(space.config(len(space.legal) // 2), template, CPU)


SMALL = {name: make for name, make in PROGRAMS.items() if not name.startswith("te ")}
SMALL |= {
    "across": lambda: convolution("cpu_tile_turned", pack="block"),
    "across, packed ahead": lambda: convolution("cpu_tile_turned", pack="kernel"),
    "windows in columns": lambda: convolution("cpu_tile_column", pack="block"),
    "winograd": lambda: convolution("cpu_winograd", m=2),
}


@functools.cache
def form_of(name):
    return mutants.form_of(SMALL[name]())


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("numbers", [Field, Numbers])
def test_programs_compute_the_same(name, numbers):
    form = form_of(name)
    if any(x.dtype not in ("float32", "float64", "int32") for x in form.late.inputs):
        pytest.skip("whole numbers may round in narrow types, in another order than one after another")
    assert_alike(module_of(form.late), form.outputs, numbers())


@pytest.mark.parametrize("name", SMALL)
def test_wrong_programs_are_as_wrong(name):
    form = form_of(name)
    changes = [*after_barriers(form.early), *final_form(form.late)]
    seen = set()
    for m in random.Random(name).sample(changes, min(len(changes), 6)):
        try:
            program = mutants.finished(form, m.make(), m.early)
            pipeline.verify(program)
        except LoweringError:
            continue
        seen.add(isinstance(assert_alike(module_of(program), form.outputs), str))
    assert seen


# --- which loops


def distinct(loop, *outside, alone=True):
    body = loop
    for v, n in outside:
        body = Loop(v, const(n), body)
    return DistinctCells((), body, alone)(loop)


def put(index, value=1.0, b=WIDE):
    return Store(b, (as_expr(index),), value if hasattr(value, "dtype") else const(value, "float32"))


def get(index, b=WIDE):
    return Load(b, (as_expr(index),), "float32")


LEGAL = {
    "rows": Loop(I, const(4), Loop(J, const(5), put(I * 5 + J))),
    "columns": Loop(I, const(5), Loop(J, const(4), put(I + J * 5))),
    "last column guarded": Loop(I, const(3), Loop(J, const(2), Loop(Q, const(4), If(
        binary("<", I * 2 + J, const(5)), put(I * 2 + J + Q * 5))))),
    "vectors": Loop(I, const(3), put(Ramp(I * 8, 8, "index"))),
    "sums of what it wrote": Loop(I, const(3), Seq((put(I * 2), put(I * 2 + 1, get(I * 2))))),
    "moved by a loop outside": Loop(I, const(3), Loop(J, const(2), put(N * 7 + I * 2 + J))),
    "a name for a place": Loop(I, const(3), Let(J, I * 4, Seq((put(J), put(J + 3))))),
    "two halves": Loop(I, const(4), Seq((put(I * 3), put(I * 3 + 25)))),
    "backwards": Loop(I, const(4), Loop(J, const(3), put(const(40) - I * 3 + J))),
    "reads others": Loop(I, const(4), put(I, get(const(3) - I, X))),
}  # fmt: skip
ILLEGAL = {
    "one cell": Loop(I, const(4), put(0)),
    "overlap": Loop(I, const(4), Loop(J, const(3), put(I * 2 + J))),
    "reads what the last one wrote": Loop(I, const(4), put(I + 1, get(I))),
    "halves that meet": Loop(I, const(4), Seq((put(I * 3), put(I * 3 + 9)))),
    "reads what all write": Loop(I, const(4), put(I, get(0))),
    "guard too weak": Loop(I, const(3), Loop(J, const(2), Loop(Q, const(4), If(
        binary("<", I * 2 + J, const(6)), put(I * 2 + J + Q * 5))))),
    "wraps around": Loop(I, const(8), put(I % 4)),
    "shifted last tile": Loop(I, const(3), Loop(J, const(4), put(binary("min", I * 4, const(6)) + J))),
    "vectors that overlap": Loop(I, const(3), put(Ramp(I * 4, 8, "index"))),
    "place from memory": Loop(I, const(3), put(I + get(I, X))),
    "asks for what the last one wrote": Loop(I, const(3), If(binary("<", get(0), const(1.0, "float32")), put(I))),
    "a name that is moved": Loop(I, const(3), Let(J, I // 2, put(J))),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_iterations_of_these_touch_distinct_cells(name):
    assert distinct(LEGAL[name], (N, 3))


@pytest.mark.parametrize("name", ILLEGAL)
def test_iterations_of_these_do_not(name):
    assert not distinct(ILLEGAL[name], (N, 3))


def test_own_memory_is_that_of_one_thread_or_of_a_block_of_one():
    registers = Loop(I, const(2), Alloc(R, store(R, 0, load(X, I))))
    shared = Loop(I, const(2), Alloc(S, store(S, 0, load(X, I))))
    assert distinct(registers, alone=False)
    assert distinct(shared, alone=True)
    assert not distinct(shared, alone=False)


def test_iterations_have_memory_of_their_own():
    fill, move = Seq((store(R, 0, load(X, I)), store(R, 1, load(X, I + 4)))), store(Y, I, load(R, 0))
    body = Loop(I, const(4), Alloc(R, Seq((fill, move, store(Y, I + 4, load(R, 1))))))
    module = module_of(Program("p", (X,), (Y,), Loop(N, const(1), body, Kind.BLOCK_X)))
    assert iterations(module) == 4
    np.testing.assert_array_equal(run(module, {"X": np.arange(8)}, Field())["Y"], np.arange(8))


def test_an_iteration_does_not_see_the_memory_of_the_last_one():
    first = If(binary("==", I, const(0)), Seq((store(R, 0, load(X, I)), store(R, 1, load(X, I)))))
    body = Loop(I, const(4), Alloc(R, Seq((first, store(Y, I, load(R, 0)), store(Y, I + 4, load(R, 1))))))
    module = module_of(Program("p", (X,), (Y,), Loop(N, const(1), body, Kind.BLOCK_X)))
    assert outcome(module, {"X": np.arange(8)}) == in_order(module, {"X": np.arange(8)}) == "memory.uninitialised"


COEFFICIENTS = st.integers(-9, 9) | st.sampled_from([12, 15, 16, 24, 30])


@st.composite
def nests(draw):
    """A loop of up to five iterations around two others and a guard, which writes and reads one array."""
    extents = {v: draw(st.integers(1, 5)) for v in (I, J, Q)}

    def index(scale):
        form = I * scale[0] + J * scale[1] + Q * scale[2] + draw(st.integers(0, 3)) + 400
        return form if draw(st.integers(0, 5)) else form + draw(st.sampled_from([J // 2, Q % 2, I % 3, N * 3]))

    scale = [draw(COEFFICIENTS) for _ in range(3)]
    other = scale if draw(st.booleans()) else [draw(COEFFICIENTS) for _ in range(3)]
    at = index(scale)
    at = Ramp(at, draw(st.integers(1, 4)), "index") if draw(st.booleans()) else at
    body = Store(WIDE, (at,), get(index(other)) if draw(st.booleans()) else const(1.0, "float32"))
    guard = I * draw(st.integers(0, 3)) + J * draw(st.integers(-2, 3)) + Q * draw(st.integers(0, 2))
    if draw(st.booleans()):
        body = If(binary("<", guard, const(draw(st.integers(1, 12)))), body)
    return Loop(I, const(extents[I]), Loop(J, const(extents[J]), Loop(Q, const(extents[Q]), body)))


def cells(loop):
    """For each iteration of the outermost loop the cells that it writes, and those that it touches, one by one."""
    found = []
    inner = [loop.body, loop.body.body]
    body = inner[-1].body
    for i in range(int(loop.extent.value)):
        wrote, touched = set(), set()
        for j, q in itertools.product(*(range(int(x.extent.value)) for x in inner)):
            env = {I: i, J: j, Q: q, N: 2}
            s = body
            if isinstance(s, If):
                if not value(s.cond, env):
                    continue
                s = s.then
            for access in (s, *find(s.value, Load)):
                at = access.index[0]
                first, width = (value(at.base, env), at.lanes) if isinstance(at, Ramp) else (value(at, env), 1)
                touched |= {*range(first, first + width)}
                wrote |= {*range(first, first + width)} if access is s else set()
        found.append((wrote, touched))
    return found


def value(e, env):
    if isinstance(e, Var):
        return env[e]
    if not hasattr(e, "op"):
        return int(e.value)
    a, b = value(e.a, env), value(e.b, env)
    return {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "//": int.__floordiv__, "%": int.__mod__,
            "<": int.__lt__}[e.op](a, b)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(nests())
def test_what_is_called_distinct_is(loop):
    if distinct(loop, (N, 3)):
        found = cells(loop)
        for (wrote, _), (_, touched) in itertools.permutations(found, 2):
            assert not wrote & touched


def test_many_nests_are_called_distinct():
    """The property above is no empty one."""
    told = []

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(nests())
    def draw(loop):
        told.append(distinct(loop, (N, 3)) and int(loop.extent.value) > 1)

    draw()
    assert sum(told) > 15


# --- guards inside nests around one store


@pytest.mark.parametrize("bound", [0, 1, 3, 7, 12])
@pytest.mark.parametrize("outer", [True, False])
def test_guarded_sums_touch_only_cells_with_terms(bound, outer):
    """Cells of which no term is asked for stay as they are, unwritten ones too."""
    b = Buffer("r", (as_expr(4),), "float32", Scope.REGISTER)
    cond = binary("<", J * 3 + Q if outer else J + Q, const(bound))
    add = Store(b, (as_expr(J),), binary("+", Load(b, (as_expr(J),), "float32"), load(X, Q)))
    total = Loop(Q, const(3), Loop(J, const(4), If(cond, add)))
    for begin in (4, 3):
        fill = Loop(J, const(begin), Store(b, (as_expr(J),), load(X, J)))
        out = Loop(J, const(begin), Store(Y, (as_expr(J),), Load(b, (as_expr(J),), "float32")))
        rest = Loop(J, const(8 - begin), Store(Y, (J + begin,), load(X, J)))
        body = Alloc(b, Seq((fill, total, out, rest)))
        module = module_of(Program("p", (X,), (Y,), Loop(N, const(1), body, Kind.BLOCK_X)))
        want, got = (f(module, {"X": np.arange(1, 9)}) for f in (in_order, outcome))
        assert isinstance(want, str) == isinstance(got, str)
        assert want == got if isinstance(want, str) else (want["Y"] == got["Y"]).all()


def test_a_guard_keeps_what_it_guards_from_being_read():
    cond = binary("<", J, const(8))
    module = module_of(Program("p", (X,), (Y,), Loop(N, const(1), Loop(J, const(12), If(
        cond, store(Y, J, Select(cond, load(X, J), const(0.0, "float32"), "float32")))), Kind.BLOCK_X)))  # fmt: skip
    assert iterations(module) == 1
    np.testing.assert_array_equal(run(module, {"X": np.arange(8)}, Field())["Y"], np.arange(8))
