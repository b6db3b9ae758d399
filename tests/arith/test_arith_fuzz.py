"""Simplification, linear forms, ranges, proofs and boxes against evaluation at every point."""

import itertools
import operator
import random

import pytest

from tensorir.arith.affine import Arith, same, structure, within_bits
from tensorir.arith.box import side_of, union
from tensorir.arith.conditions import conjunction, conjuncts, contrary, negate
from tensorir.arith.point import evaluate
from tensorir.ir.build import as_expr, binary, cast, const, select, unary
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Buffer, Const, Load, Scope, Var


class Expressions:
    """Random index expressions over a few variables of small range."""

    def __init__(self, seed, count=3):
        self.rng = random.Random(seed)
        self.vars = [Var(n, "index") for n in "xyz"[:count]]
        self.ranges = {}
        for v in self.vars:
            low = self.rng.choice((0, 0, 0, -3, 2))
            self.ranges[v] = (low, low + self.rng.choice((0, 1, 3, 5, 7)))

    def points(self):
        sides = [range(int(a), int(b) + 1) for a, b in self.ranges.values()]
        for point in itertools.product(*sides):
            yield dict(zip(self.vars, point, strict=True))

    def index(self, depth=3):
        r = self.rng
        if depth == 0 or r.random() < 0.2:
            return r.choice([*self.vars, const(r.randrange(-6, 13))])
        kind = r.choice("++-*//%%mMns")
        a = self.index(depth - 1)
        match kind:
            case "+":
                return a + self.index(depth - 1)
            case "-":
                return a - self.index(depth - 1)
            case "*":
                return a * (r.randrange(-4, 9) if r.random() < 0.8 else self.index(depth - 1))
            case "/":
                return a // r.choice((1, 2, 3, 4, 6, 8))
            case "%":
                return a % r.choice((1, 2, 3, 4, 6, 8))
            case "m":
                return binary("min", a, self.index(depth - 1))
            case "M":
                return binary("max", a, self.index(depth - 1))
            case "n":
                return unary("-", a)
        return select(self.condition(1), a, self.index(depth - 1))

    def condition(self, depth=2):
        r = self.rng
        if depth == 0 or r.random() < 0.5:
            return binary(r.choice(("<", "<=", "==", "!=")), self.index(2), self.index(1))
        if r.random() < 0.2:
            return unary("not", self.condition(depth - 1))
        return binary(r.choice(("and", "or")), self.condition(depth - 1), self.condition(depth - 1))


def holds(e, i, seed):
    """Simplified, as a linear form, and within its range, ``i`` has the values that it has."""
    arith = Arith(e.ranges)
    simple, linear = arith.simplify(i), arith.linear(i).expr()
    low, high = arith.range(i)
    for env in e.points():
        value = evaluate(i, env)
        assert evaluate(simple, env) == value, seed
        assert evaluate(linear, env) == value, seed
        assert low <= value <= high, seed
    again = arith.simplify(simple)
    for env in e.points():
        assert evaluate(again, env) == evaluate(i, env), seed


class Bits(Expressions):
    """The same with operators on bits, of indices and of integers that wrap around."""

    def index(self, depth=3):
        r = self.rng
        if depth == 0 or r.random() < 0.4:
            return super().index(depth)
        a, b = self.index(depth - 1), self.index(depth - 1)
        if r.random() < 0.3:
            b = const(r.choice((-8, -4, -1, 0, 1, 3, 5, 7, 8, 15)))
        f = r.choice((operator.and_, operator.or_, operator.xor))
        what = r.choice("bbb~<>s")
        if what == "b":
            return f(a, b)
        if what == "~":
            return ~a
        if what in "<>":
            n = r.randrange(4)
            return a << n if what == "<" else a >> n
        t = r.choice(("int8", "uint8", "int16", "int32", "uint32"))
        x, y = cast(a, t), cast(b, t)
        e = binary(r.choice(["&", "|", "^", "<<", ">>", "+", "-", "*"]), x, y)
        return cast(~e if r.random() < 0.2 else e, "index")


@pytest.mark.parametrize("block", range(6))
def test_bits(block):
    for seed in range(90_000 + block * 100, 90_000 + block * 100 + 100):
        e = Bits(seed)
        holds(e, e.index(), seed)


class Narrow(Expressions):
    """Arithmetic of narrow integers that nearly always wraps around."""

    def index(self, depth=2):
        if depth == 0:
            return super().index(0)
        r, t = self.rng, self.rng.choice(("int8", "uint8", "int16", "uint16"))
        sides = []
        for _ in range(2):
            x = cast(self.index(depth - 1) * r.choice((1, 3, 17, 100, 1000)) + r.choice((0, -5, 90, 250)), t)
            sides.append(select(super().index(0) < 3, x, const(r.choice((100, 127, 3)), t)) if r.random() < 0.3 else x)
        e = binary(r.choice(["+", "-", "*", "&", "|", "^", "<<", ">>", "min", "max"]), *sides)
        return cast(unary(r.choice("-~"), e) if r.random() < 0.3 else e, "index")


@pytest.mark.parametrize("block", range(6))
def test_narrow_integers_that_wrap_around(block):
    for seed in range(50_000 + block * 100, 50_000 + block * 100 + 100):
        e = Narrow(seed)
        holds(e, e.index(), seed)


def test_remainders_by_data_are_added():
    b = Load(Buffer("B", (const(4),), "int32", Scope.GLOBAL), (const(0),), "int32")
    x = Var("x", "index")
    arith = Arith({x: (0, 3)})
    assert same(arith.linear(x % b + x // b).expr(), x % b + x // b)


@pytest.mark.parametrize("op", ["&", "|", "^", "<<", ">>"])
def test_ranges_of_bits_hold_every_pair(op):
    ends = (-9, -8, -5, -1, 0, 1, 3, 4, 7, 8, 13)
    boxes = [(a, b) for a in ends for b in ends if a <= b <= a + 9]
    for t in ("int8", "uint8", "int32"):
        low = DTYPES[t].low
        for a, b in itertools.product(boxes, boxes):
            if min(a[0], b[0]) < low:
                continue
            least, most = within_bits(op, a, b, t)
            for x in range(a[0], a[1] + 1):
                for y in range(b[0], b[1] + 1):
                    value = evaluate(Binary(op, Const(x, t), Const(y, t), t), {})
                    assert least <= value <= most, (t, a, b, x, y)


@pytest.mark.parametrize("block", range(6))
def test_index_arithmetic(block):
    for seed in range(block * 100, block * 100 + 100):
        e = Expressions(seed)
        holds(e, e.index(), seed)


@pytest.mark.parametrize("block", range(6))
def test_conditions(block):
    for seed in range(block * 100, block * 100 + 100):
        e = Expressions(10_000 + seed)
        c, given = e.condition(), e.condition(1)
        plain, knowing = Arith(e.ranges), Arith(e.ranges, [given])
        simple, less = plain.simplify(c), knowing.simplify(c)
        opposite = negate(c)
        parts = conjunction(conjuncts(c))
        always, never = plain.proves(c), plain.disproves(c)
        always_then, never_then = knowing.proves(c), knowing.disproves(c)
        for env in e.points():
            truth = bool(evaluate(c, env))
            assert bool(evaluate(simple, env)) == truth, seed
            assert bool(evaluate(parts, env)) == truth, seed
            assert bool(evaluate(contrary(c), env)) != truth, seed
            if opposite is not None:
                assert bool(evaluate(opposite, env)) != truth, seed
            assert truth or not always, seed
            assert not (truth and never), seed
            if evaluate(given, env):
                assert bool(evaluate(less, env)) == truth, seed
                assert truth or not always_then, seed
                assert not (truth and never_then), seed


@pytest.mark.parametrize("block", range(6))
def test_boxes(block):
    """While some variables move, the index stays inside the box that starts where the others stand."""
    for seed in range(block * 100, block * 100 + 100):
        e = Expressions(50_000 + seed)
        arith = Arith(e.ranges)
        moving = {v: e.ranges[v] for v in e.vars if e.rng.random() < 0.5}
        indices = [e.index(2) for _ in range(2)]
        sides = [side_of(i, arith, moving) for i in indices]
        joined = union(sides)
        for env in e.points():
            for i, s in zip(indices, sides, strict=True):
                for box in (s, joined):
                    if box is not None:
                        first = evaluate(box.first.expr(), env)
                        assert first <= evaluate(i, env) < first + box.extent, seed


@pytest.mark.parametrize("seed", range(120))
def test_multiples(seed):
    e = Expressions(70_000 + seed)
    arith = Arith(e.ranges)
    i, n = e.index(2), e.rng.choice((2, 3, 4))
    if arith.is_multiple(i, n):
        assert all(evaluate(i, env) % n == 0 for env in e.points())


def test_known_forms():
    x, y = Var("x", "index"), Var("y", "index")
    arith = Arith({x: (0, 15), y: (0, 3)})
    assert same(arith.simplify((x * 4 + y) // 4), x)
    assert same(arith.simplify((x * 4 + y) % 4), y)
    assert same(arith.simplify(x // 4 * 4 + x % 4), x)
    assert same(arith.simplify((x * 8 + y) % 4), y)
    assert same(arith.simplify((x * 4 + y) // 8), arith.simplify(x // 2))
    assert isinstance(arith.simplify(binary("<", x, as_expr(16))), Const)
    assert structure(x + y) != structure(y + x)
    assert arith.proves(binary("<=", x % 4, const(3)))
    assert not arith.proves(binary("<", x, const(15)))
    assert Arith({x: (0, 15)}, [binary("<", x, const(9))]).proves(binary("<", x // 3, const(3)))


def test_what_conditions_tell_of_variables():
    x, y = Var("x", "index"), Var("y", "index")
    ranges = {x: (0, 7), y: (0, 3)}
    below = binary("<", x * 4 + y, const(9))
    assert not Arith(ranges, [binary("<", x, const(3))]).proves(below)
    assert Arith(ranges, [binary("<", x, const(2))]).proves(below)  # not from x - 1 <= 0 taken once
    assert Arith(ranges, [binary("==", x, const(1))]).proves(below)
    assert Arith(ranges, [binary("!=", x, const(0))]).proves(binary("<=", const(1), x))
    assert Arith(ranges, [binary("!=", x, const(7))]).proves(binary("<", x, const(7)))
    assert not Arith(ranges, [binary("!=", x, const(3))]).proves(binary("<", x, const(7)))
    either = binary("or", binary("<", x, const(2)), binary("<", const(9), x))
    assert Arith(ranges, [either]).proves(below)
    edge = binary("or", binary("<", x, const(2)), binary("<", const(5), x))
    assert Arith(ranges, [edge]).simplify(contrary(edge)).value is False
    plain = Arith(ranges)
    plain.child(assume=[binary("<", x, const(2))])
    assert not plain.proves(below)  # a child keeps what it knows to itself


def test_conditions_on_data_are_known_word_for_word():
    i = Var("i", "index")
    mask, flag = (Buffer(n, (const(9),), d, Scope.GLOBAL) for n, d in (("mask", "int32"), ("flag", "bool")))
    zero = binary("==", Load(mask, (i,), "int32"), const(0, "int32"))
    arith = Arith({i: (0, 8)}, [binary("and", zero, Load(flag, (i + 0,), "bool"))])
    assert arith.proves(zero)
    assert arith.simplify(contrary(zero)).value is False
    assert arith.simplify(Load(flag, (i,), "bool")).value is True
    assert arith.simplify(unary("not", Load(flag, (i,), "bool"))).value is False
    other = binary("==", Load(mask, (i - 1,), "int32"), const(0, "int32"))
    assert not arith.proves(other)
    assert not isinstance(arith.simplify(other), Const)
