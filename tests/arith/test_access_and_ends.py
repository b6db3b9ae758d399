"""Moves of indices with an axis and ends of conditions, against evaluation at every point."""

import pytest
from test_arith_fuzz import Expressions

import tensorir as tir
from tensorir.arith.access import (
    alike,
    along_last,
    comparison,
    dims_along,
    even,
    first_step,
    grouped,
    groups,
    slope,
    spaced,
)
from tensorir.arith.affine import Arith
from tensorir.arith.ends import End, constant_end, data_end, dim_end, first, last, of_data
from tensorir.arith.point import evaluate
from tensorir.ir.build import binary, const
from tensorir.ir.tree import Binary, Buffer, Const, Load, Scope, Var
from tensorir.ir.visit import Rewriter

SEEDS = range(80)
CELLS = Buffer("cells", (const(1 << 20),), "float32", Scope.GLOBAL)
TABLE = Buffer("table", (const(64), const(64)), "float32", Scope.GLOBAL)


def moved(point, var, by=1):
    return {**point, var: point[var] + by}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_even_index_is_its_step_and_the_rest(seed):
    e = Expressions(seed)
    x, index, arith = e.vars[0], e.index(), Arith(e.ranges)
    if (found := even(index, x, arith)) is None:
        return
    step, rest = found
    for at in e.points():
        assert evaluate(index, at) == step * at[x] + evaluate(rest.expr(), at)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_comparison_moves_as_the_difference_of_its_sides(seed):
    e = Expressions(seed)
    x, cond = e.vars[0], binary("<", e.index(2), e.index(2))
    if not isinstance(cond, Binary) or (found := comparison(cond, x, Arith(e.ranges))) is None:
        return
    for at in e.points():
        assert evaluate(cond.a, at) - evaluate(cond.b, at) == found[0] * at[x] + evaluate(found[1].expr(), at)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slope_is_the_growth_between_neighbours(seed):
    """What is kept within constants is taken as it is: such indices are left to the borders' own tests."""
    e = Expressions(seed)
    x, index = e.vars[0], e.index()
    if "min" in str(index) or "max" in str(index) or (step := slope(index, x)) is None:
        return
    for at in e.points():
        assert evaluate(index, moved(at, x)) - evaluate(index, at) == step


def test_a_slope_looks_through_limits_at_borders():
    i, j = Var("i", "index"), Var("j", "index")
    kept = binary("min", binary("max", i * 2 + j - 1, const(0)), const(31))
    assert (slope(kept, i), slope(kept, j), slope(i // 4, i), slope(const(3), i)) == (2, 1, None, 0)
    assert (slope(j - i * 2, i), slope(j * 3 - (i - j), j)) == (-2, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbours_that_read_alike(seed):
    """Quotients of the axis alone: each group of so many iterations reads one place."""
    e = Expressions(seed)
    x, y, z = e.vars
    size, other = e.rng.choice((2, 3, 4)), e.rng.choice((2, 3, 4))
    index = (e.rng.choice((x // size, x // size + y, x, y)), e.rng.choice((z, x // size, x // other, y)))
    load = Load(TABLE, index, "float32")
    count = alike(load, x)
    places = {n: tuple(evaluate(i, {x: n, y: 1, z: 2}) for i in index) for n in range(24)}
    assert dims_along(load, x) == [d for d in (0, 1) if len({p[d] for p in places.values()}) > 1]
    assert along_last(load, x) == (dims_along(load, x) == [1])
    if count == 0:
        assert len({*places.values()}) == 1
    for n in range(24) if count > 1 else ():
        assert places[n] == places[n // count * count]
    if count > 1:
        assert grouped([load], x) == count and len({*places.values()}) == 24 // count


def test_loads_that_are_as_far_apart():
    i, arith = Var("i", "index"), Arith({})
    loads = [Load(CELLS, (i * 3 + 5 * n + 1,), "float32") for n in range(4)]
    step, start = spaced(loads, arith)
    assert step == 5 and evaluate(start.expr(), {i: 2}) == 7
    assert spaced([*loads[:3], Load(CELLS, (i * 3 + 17,), "float32")], arith) is None
    assert spaced([loads[0], Load(CELLS, (i * 4 + 6,), "float32")], arith) is None


def test_the_first_step_in_elements_of_the_array():
    i, j = Var("i", "index"), Var("j", "index")
    assert first_step((8, 10), (i, j), i) == first_step((8, 10), (i + 3, j + 1), i) == 10
    assert first_step((8, 10), (i, j * 2), j) == 2
    assert first_step((8, 10), (i // 4, i % 4 + j), i) == 1
    data = Load(Buffer("at", (const(8),), "int32", Scope.GLOBAL), (i,), "int32")
    assert first_step((8, 10), (data, j), i) is None and first_step((8, 10), (data, j), j) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_loads_cover_no_more_places_than_their_boxes(seed):
    """The places that loads of a group read over whole ranges, against the box that the group says."""
    e = Expressions(seed)
    i, r = Var("i", "index"), Var("r", "index")
    step, taps, length = e.rng.choice((1, 2, 3)), e.rng.choice((1, 2, 4)), e.rng.choice((2, 5, 8))
    apart = e.rng.choice((0, 1, 2))
    loads = [Load(CELLS, (i * step + r + n * apart,), "float32") for n in range(3)]
    (group,) = groups(loads, Arith({i: (0, length - 1), r: (0, taps - 1)}))
    read = {evaluate(x.index[0], {i: a, r: b}) for x in loads for a in range(length) for b in range(taps)}
    (box,) = group.box({i: length, r: taps})
    assert len(read) <= box <= max(read) - min(read) + 1


# --- ends


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_end_is_the_condition(seed):
    e = Expressions(seed, count=1)
    (x,) = e.vars
    cond = e.condition(1)
    if (end := constant_end(cond, x, Arith(e.ranges))) is not None:
        for at in e.points():
            assert bool(evaluate(cond, at)) == (at[x] < end)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dim_ends_a_variable_no_earlier_than_the_condition(seed):
    e = Expressions(seed, count=2)
    x, y = e.vars
    e.ranges = {x: (0, 7), y: e.ranges[y]}
    dim = tir.dim("n", low=1, high=40)
    step, more, constant = e.rng.choice((1, 2, 3, 8)), e.rng.choice((0, 1, 2)), e.rng.randrange(-5, 6)
    op = e.rng.choice(("<", "<="))
    cond = binary(op, x * step + y * more + constant, dim)
    end = dim_end(cond, x, Arith(e.ranges))
    assert end is not None
    for at in e.points():
        for n in (1, 2, 7, 16, 40):
            holds = bool(evaluate(cond, {**at, dim: n}))
            before = at[x] < evaluate(end.at, {**at, dim: n})
            assert before or not holds
            assert before == holds or not end.exact


class _With(Rewriter):
    """Loads of data as a number."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def on_Load(self, n):
        return Const(self.number, n.dtype)


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint8", "int64"])
@pytest.mark.parametrize("seed", range(40))
def test_data_end_a_variable_where_the_condition_does(seed, dtype):
    e = Expressions(seed, count=2)
    x, y = e.vars
    e.ranges = {v: (max(0, a), max(0, b)) for v, (a, b) in e.ranges.items()}
    load = Load(Buffer("ends", (const(8),), dtype, Scope.GLOBAL), (y,), dtype)
    step, constant = e.rng.choice((1, 2, 4)), e.rng.choice((0, 0, 3))
    cond = binary("<", tir.cast(x * step + constant, "int64" if dtype == "int64" else "int32"), load)
    assert of_data(cond) and of_data(cond, x) and not of_data(cond, Var("other", "index"))
    if (end := data_end(cond, x, Arith(e.ranges))) is None:
        return
    for number in (0, 1, 5, 9, 100):
        for at in e.points():
            holds = evaluate(_With(number)(cond), at)
            assert bool(holds) == (at[x] < evaluate(_With(number)(end), at))


def test_the_first_and_the_last_of_several_ends():
    n = tir.dim("n", low=1, high=40)
    less, same, more = End(n - 3), End(n + 0), End(n + 5)
    arith = Arith({})
    assert first([more, less, same], arith) is less and first([], arith) is None
    assert last([less, more, same], arith).at is more.at
    assert last([less, None], arith) is None
    m = tir.dim("m", low=1, high=40)
    assert last([End(n), End(m)], arith) is None
    third, half = End(n // 3), End(n // 2)
    longest = last([third, half], arith)
    assert longest is None or longest.at is half.at
    assert last([half, End((n + 1) // 2)], arith).at is not half.at
