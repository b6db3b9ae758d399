"""Bugs that fuzzing has found."""

import math

import pytest

import tensorir as tir
from tensorir.arith.affine import UNKNOWN, Arith, same
from tensorir.arith.box import side_of
from tensorir.arith.conditions import negate
from tensorir.ir.build import binary, cast, const
from tensorir.ir.tree import Broadcast, Buffer, Load, Ramp, Scope, Var


def test_the_opposite_of_unequal_is_equal():
    """``i + 1 != 0`` used to be folded to False: its opposite was taken to be ``<`` or ``>``."""
    x = Var("x", "index")
    assert negate(binary("!=", x, const(0))).op == "=="
    assert negate(binary("==", x, const(0))).op == "or"
    arith = Arith({x: (1, 8)})
    assert arith.proves(binary("!=", x, const(0)))
    assert not arith.disproves(binary("!=", x, const(0)))
    assert arith.disproves(binary("==", x, const(0)))


def test_a_quotient_among_other_terms():
    """Rows of a tile that lie behind the last pixel belong to no image, however their number was divided."""
    t, g, i = (Var(name, "index") for name in "tgi")
    arith = Arith({t: (0, 9), g: (0, 2), i: (0, 63)})
    number = t * 192 + g * 64 + i
    for rows in (2, 6, 49, 64, 320, 196):
        behind = arith.child(assume=[binary("<=", const(2 * rows), number)])
        image = arith.simplify(number // rows)
        assert behind.proves(binary("<=", const(2), image)), rows
        assert not behind.proves(binary("<=", const(3), image)), rows
        before = arith.child(assume=[binary("<", number, const(2 * rows))])
        assert before.proves(binary("<", image, const(2))), rows
        assert not before.proves(binary("<", image, const(1))), rows


def test_quotients_that_lost_different_terms_are_one_number_again():
    """The number of a pixel in terms of lanes: its image says nothing of the last bits, its row of some."""
    t, g, warp, own, lane = (Var(name, "index") for name in ("t", "g", "w", "o", "l"))
    arith = Arith({t: (0, 5), g: (0, 2), warp: (0, 3), own: (0, 1), lane: (0, 7)})
    number = t * 192 + g * 64 + warp * 16 + own * 8 + lane
    for rows, columns in ((14, 24), (7, 12), (14, 14), (6, 40)):
        image, row, column = (
            arith.simplify(x) for x in (number // (rows * columns), number // columns % rows, number % columns)
        )
        assert arith.linear((image * rows + row) * columns + column).same(arith.linear(number)), (rows, columns)


def test_vectors_of_different_lanes_are_different():
    """Both used to have the structure of their only child."""
    x = Var("x", "index")
    assert same(Ramp(x, 4, "index"), Ramp(x, 4, "index"))
    assert not same(Ramp(x, 4, "index"), Ramp(x, 8, "index"))
    assert not same(Ramp(x, 4, "index"), x)
    assert not same(Broadcast(x, 4, "index"), Broadcast(x, 8, "index"))


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_unequal_in_a_program(shift):
    X = tir.placeholder((9,), name="X")
    s = tir.Schedule(tir.compute((8,), lambda i: tir.where(tir.not_equal(i + shift, 0), X[i], -1), name="Y"))
    assert s.check()
    s = tir.Schedule(tir.compute((8,), lambda i: tir.where(tir.equal(i + shift, 0), X[i], -1), name="Y"))
    assert s.check()


def test_a_fact_about_several_variables_bounds_their_sum():
    tile, pixel = Var("tile", "index"), Var("pixel", "index")
    arith = Arith({tile: (0, 3), pixel: (0, 12)})
    place = tile * 12 + binary("min", tile, 1) + pixel  # tiles of 13, 12, 12 and 12
    assert arith.bounds(arith.linear(place)) == (0, 49)
    longer = binary("min", tile + 1, 1) - binary("min", tile, 1)
    arith.assume(pixel - longer < 12)
    assert arith.bounds(arith.linear(place)) == (0, 48)
    assert side_of(place, arith, {tile: (0, 3), pixel: (0, 12)}).extent == 49
    assert arith.range(place) == (0, 49), "where facts may not be used any more"


@pytest.mark.parametrize(("rows", "columns", "parts"), [(28, 28, 2), (7, 8, 2), (7, 7, 1), (112, 112, 2), (7, 6, 4)])
def test_digits_make_their_number_again(rows, columns, parts):
    """A number, in parts, taken to image, row and column and put together: divisions are written in several ways."""
    block, part, within = (Var(n, "index") for n in ("block", "part", "within"))
    size = 32 // parts
    arith = Arith({block: (0, 15 * rows * columns // 32), part: (0, parts - 1), within: (0, size - 1)})
    number = (block * parts + part) * size + within
    image, row, column = number // (rows * columns), number // columns % rows, number % columns
    assert arith.linear((image * rows + row) * columns + column).same(arith.linear(number))
    assert not arith.linear((image * rows + row) * columns + 2 * column).same(arith.linear(number))


def test_forms_follow_what_is_known():
    """They are remembered, but no longer than what they were found from is all that is known."""
    x = Var("x", "index")
    eighth = binary("//", x, const(8))
    arith = Arith({x: (0, 100)})
    assert arith.linear(eighth).terms
    assert not arith.child(assume=[binary("<", x, const(8))]).linear(eighth).terms
    assert not arith.child({x: (0, 7)}).linear(eighth).terms
    assert arith.linear(eighth).terms
    child = arith.child()
    arith.ranges[x] = (8, 15)  # a child shares the ranges
    assert arith.linear(eighth).constant == child.linear(eighth).constant == 1
    arith.assume(binary("<", const(8), x))
    assert arith.linear(binary("//", x, const(9))).constant == 1
    assert child.linear(binary("//", x, const(9))).terms


def test_what_an_assumption_is_about_is_found_anew_and_all_else_is_kept():
    x, y = Var("x", "index"), Var("y", "index")
    arith = Arith({x: (0, 100), y: (0, 100)})
    apart, both = binary("//", y, const(8)), binary("//", x + y, const(8))
    assert arith.linear(apart).terms and arith.linear(both).terms
    child = arith.child(assume=[binary("<=", x, const(0)), binary("<", y, const(8))])
    assert not child.linear(apart).terms and not child.linear(both).terms
    assert arith.linear(apart).terms and arith.linear(both).terms, "a child's facts are its own"
    first, second = (arith.child(assume=[c]) for c in (binary("<", y, const(8)), binary("<=", const(96), y)))
    assert first.linear(apart).constant == 0 and second.linear(apart).constant == 12


def test_variables_that_had_no_range_are_found_anew_when_they_have_one():
    x = Var("x", "index")
    arith = Arith()
    eighth = binary("//", x, const(8))
    assert arith.linear(eighth).terms and arith.range(eighth) == (-math.inf, math.inf)
    arith.ranges[x] = (0, 7)
    assert not arith.linear(eighth).terms


def test_what_is_known_of_data_is_found_anew_with_a_condition_on_it():
    data, i = Buffer("data", (const(8),), "int32", Scope.GLOBAL), Var("i", "index")
    load = Load(data, (i,), "int32")
    arith = Arith({i: (0, 7)})
    eighth = binary("//", cast(load, "index"), const(8))
    assert arith.range(eighth)[1] > 0
    near = arith.child(assume=[binary("<=", const(0, "int32"), load), binary("<", load, const(8, "int32"))])
    assert near.range(eighth) == (0, 0) and arith.range(eighth)[1] > 0


@pytest.mark.parametrize("change", [
    lambda r, x: r.setdefault(x, (0, 1)), lambda r, x: r.update({x: (0, 1)}), lambda r, x: r.pop(x),
    lambda r, x: r.__delitem__(x), lambda r, x: r.__ior__({x: (0, 1)}), lambda r, x: r.clear(),
])  # fmt: skip
def test_ranges_change_by_assignment_alone(change):
    x = Var("x", "index")
    with pytest.raises(TypeError, match="ranges"):
        change(Arith({x: (0, 7)}).ranges, x)


def test_a_fact_helps_as_often_as_a_term_of_it_is_asked():
    """Whole vectors of a last block that is not whole: 625 of 16 lanes are 10,000 cells in rows of 100."""
    b, t, lane = (Var(name, "index") for name in "btl")
    arith = Arith({b: (0, 9), t: (0, 63), lane: (0, 15)})
    known = arith.child(assume=[binary("<", b * 64 + t, const(625))])
    cell = (b * 64 + t) * 16 + lane
    assert known.proves(binary("<", cell, const(10000)))
    assert known.proves(binary("<", cell // 100, const(100)))
    assert not known.proves(binary("<", cell, const(9999)))
    assert not arith.proves(binary("<", cell, const(10000)))


def test_facts_that_bound_each_other_end_a_proof():
    a, b, c = (Var(x, "index", bounds=(1, 1000)) for x in "abc")
    for k in (1, 2):
        facts = [binary("<=", a, binary("*", b, const(k, "index"))), binary("<=", b, binary("*", a, const(k, "index")))]
        assert not Arith(assume=facts).proves(binary("<=", binary("+", a, c), const(5, "index")))


def test_blocks_that_are_moved_back_begin_at_whole_rows():
    """What a block of 14 rows of 55 pixels reads is found although its start is a minimum: 15 rows were taken."""
    block, pixel = Var("block", "index"), Var("pixel", "index")
    arith = Arith({block: (0, 3), pixel: (0, 769)})
    start = binary("min", block * 770, const(2255))
    assert same(arith.simplify(start // 55), binary("min", block * 14, const(41)))
    assert side_of((start + pixel) // 55, arith, {pixel: (0, 769)}).extent == 14


def test_equal_sums_have_equal_atoms_however_they_were_written():
    """Sums that begin with what is subtracted were remembered in another order than they are written in."""
    i, j, a = (Var(name, "index") for name in "ija")
    arith = Arith({i: (0, 7), j: (0, 1), a: (0, 31)})
    written = arith.simplify(32 - j * 32 + a)
    again = a - j * 32 + 32
    assert written is not again and same(written, again)
    assert same(arith.simplify((i * 64 + written) // 7 - (i * 64 + again) // 7), const(0))


def test_bits_that_change_nothing_leave_a_sum():
    """``(j + 4) ^ 0`` was taken for something that no rule resolves, and has no bounds."""
    i, j = (Var(name, "index") for name in "ij")
    arith = Arith({i: (0, 31), j: (0, 7)})
    e = binary("^", j + 4, i // 32)
    assert arith.range(arith.simplify(e)) == (4, 11)
    assert arith.linear(e).terms == {j: 1}


def test_a_divisor_without_values_says_nothing():
    """Where assumptions contradict each other the divisor had bounds (1, 0), and was divided by."""
    n, d = (Var(name, "index") for name in "nd")
    arith = Arith({n: (0, 31), d: (1, 7)}, assume=[binary("<=", d, const(0, "index"))])
    assert arith.range(d) == (1, 0)
    assert arith.range(n // d) == arith.range(n % d) == UNKNOWN
