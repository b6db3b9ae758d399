"""Where a condition may hold in a box: what is said of the loops around it never leaves out a place where it holds."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.arith.affine import Arith
from tensorir.arith.point import evaluate
from tensorir.ir.build import binary, const
from tensorir.ir.text import show
from tensorir.ir.tree import Const, Load, Var
from tensorir.ir.visit import find, uses
from tensorir.schedule.primitives.skip import Reach

I, J, A, B = (Var(n, "index") for n in "ijab")
TILES, ROWS, KEYS = 4, 3, 5


def reach(legal=lambda e: True, ranges=None):
    around = {I: (0, TILES - 1), J: (0, TILES - 1)}
    box = {A: (0, ROWS - 1), B: (0, KEYS - 1)}
    return Reach(Arith({**around, **box}), ranges or box, legal)


ROW, KEY = binary("+", binary("*", I, ROWS), A), binary("+", binary("*", J, KEYS), B)


@pytest.mark.parametrize(
    ("cond", "said"),
    [
        (KEY <= ROW, "j * 5 <= i * 3 + 2"),
        (KEY < ROW, "j * 5 < i * 3 + 2"),
        (binary("<", binary("-", ROW, KEY), 4), "i * 3 < j * 5 + 8"),
        (binary("==", ROW, KEY), "i * 3 <= j * 5 + 4 and j * 5 <= i * 3 + 2"),
        (binary("==", binary("//", ROW, 6), binary("//", KEY, 6)), None),
        (binary("or", KEY < ROW, I < 1), None),
        (binary("!=", ROW, KEY), "True"),
        (binary("<", binary("*", ROW, KEY), 7), "True"),
        (I < J, "i < j"),
    ],
)
def test_what_is_said_of_a_tile(cond, said):
    found = reach()
    got = found.of(cond)
    if said is not None:
        assert show(got) == said
    assert not uses(got, {A, B})
    assert bool(found.lost) == (said == "True")


def sums():
    parts = st.tuples(*[st.integers(-3, 3)] * 4, st.integers(-9, 9))

    def form(p):
        out = const(p[-1])
        for c, v in zip(p, (I, J, A, B), strict=False):
            out = binary("+", out, binary("*", v, c))
        return out

    plain = parts.map(form)
    positive = plain.map(lambda x: binary("max", x, 0))
    return st.one_of(
        plain,
        st.builds(lambda x, n: binary("//", x, n), positive, st.integers(2, 7)),
        st.builds(lambda x, n: binary("%", binary("+", x, 99), n), plain, st.integers(2, 7)),
        st.builds(binary, st.sampled_from(("min", "max")), plain, plain),
    )


COMPARED = st.tuples(st.sampled_from(("<", "<=", "==", "!=")), sums(), sums()).map(lambda x: binary(*x))
CONDITIONS = st.recursive(
    COMPARED, lambda c: st.tuples(st.sampled_from(("and", "or")), c, c).map(lambda x: binary(*x)), max_leaves=3
)


@given(CONDITIONS)
@settings(max_examples=150, deadline=None)
def test_a_tile_that_is_left_out_has_no_place_where_the_condition_holds(cond):
    got = reach().of(cond)
    for i, j in itertools.product(range(TILES), repeat=2):
        if not evaluate(got, {I: i, J: j}):
            for a, b in itertools.product(range(ROWS), range(KEYS)):
                assert not evaluate(cond, {I: i, J: j, A: a, B: b}), show(got)


@given(st.integers(-3, 3), st.integers(-9, 9), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_of_one_comparison_nothing_is_run_needlessly(c, by, i, j):
    """Bounds of a sum are reached: the tile is said to have a place exactly where it has one."""
    cond = binary("<=", binary("*", KEY, c), binary("+", ROW, by))
    places = itertools.product(range(ROWS), range(KEYS))
    some = any(evaluate(cond, {I: i, J: j, A: a, B: b}) for a, b in places)
    assert bool(evaluate(reach().of(cond), {I: i, J: j})) == some


def test_data_that_are_the_same_for_a_tile_are_compared_with_its_first_place():
    ends = tir.placeholder((4,), "int32", name="ends")
    X = tir.compute((4, 20), lambda i, j: tir.where(j < ends[i], 1.0, 0.0), name="X")
    cond = X.op.bodies[0].cond
    (load,) = find(cond, Load)
    row, key = load.index[0], next(v for v in find(cond, Var) if v is not load.index[0])
    ranges = {row: (0, 3), key: (0, 4), J: (0, 3)}
    found = Reach(Arith(ranges), {key: (0, 4)}, lambda e: True)
    assert show(found.of(cond)) == f"0 < ends[{row.name}]"
    refused = Reach(Arith(ranges), {key: (0, 4)}, lambda e: not find(e, Load))
    assert isinstance(refused.of(cond), Const) and refused.lost
