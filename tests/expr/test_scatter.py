"""Scatters: NumPy's ufunc.at, in the order of the domain, with indices that launches check, and what is refused."""

import itertools

import numpy as np
import pytest
from both_targets import checked
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.check.definition import differs, key_of
from tensorir.check.resize import resize
from tensorir.interp.reference import evaluate
from tensorir.lower import expand_updates

AT = {"sum": np.add.at, "prod": np.multiply.at, "min": np.minimum.at, "max": np.maximum.at}


def histogram(n=500, bins=10):
    ids = tir.placeholder((n,), "int32", name="ids")
    return tir.scatter((bins,), over=(n,), index=lambda t: (ids[t],), value=lambda t: 1, name="h")


def rows(op="sum", fill=0, dtype="float32"):
    """Rows of V, combined by where they go."""
    row, V = tir.placeholder((50,), "int32", name="row"), tir.placeholder((50, 8), dtype, name="V")
    return tir.scatter(
        (7, 8), over=(50, 8), index=lambda e, c: (row[e], c), value=lambda e, c: V[e, c], op=op, fill=fill, name="m"
    )


def test_a_histogram():
    f = checked(histogram()).build()
    a = np.random.default_rng(0).integers(0, 10, 500).astype("int32")
    np.testing.assert_array_equal(f(a), np.bincount(a, minlength=10))
    assert f(a).dtype == np.int32


@pytest.mark.parametrize("op", AT)
def test_it_is_numpys(op):
    rng = np.random.default_rng(1)
    row, v = rng.integers(0, 7, 50).astype("int32"), rng.integers(-3, 4, (50, 8)).astype("int32")
    want = np.full((7, 8), 2, "int32")
    AT[op](want, row, v)
    np.testing.assert_array_equal(checked(rows(op, 2, "int32")).build()(row, v), want)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 30), st.sampled_from(list(AT)), st.integers(0, 99))
def test_what_the_definition_means(n, m, terms, op, seed):
    rng = np.random.default_rng(seed)
    i, j, v = (tir.placeholder((terms,), "int32", name=x) for x in "ijv")
    start = tir.placeholder((n, m), "int32", name="start")
    B = tir.scatter((n, m), over=terms, index=lambda t: (i[t], j[t]), value=lambda t: v[t], op=op, fill=start)
    a, b = rng.integers(0, n, terms).astype("int32"), rng.integers(0, m, terms).astype("int32")
    x, want = rng.integers(-3, 4, terms).astype("int32"), rng.integers(-3, 4, (n, m)).astype("int32")
    (got,) = evaluate((B,), [a, b, x, want])
    AT[op](want, (a, b), x)
    np.testing.assert_array_equal(got, want)


def test_floats_are_combined_in_the_order_of_the_domain():
    rng = np.random.default_rng(2)
    row, v = rng.integers(0, 7, 50).astype("int32"), rng.standard_normal((50, 8)).astype("float32")
    want = np.zeros((7, 8), "float32")
    for r, x in zip(row, v, strict=True):
        want[r] += x
    for steps in ([], [lambda s: (s.reorder("m.c", "m.e"), s.parallel("m.c"))], [lambda s: s.vectorize("m.c")]):
        np.testing.assert_array_equal(checked(rows(), *steps).build()(row, v), want)


def placed():
    base, at = tir.placeholder((9,), name="base"), tir.placeholder((4,), "int32", name="at")
    new = tir.placeholder((4,), name="new")
    return tir.scatter((9,), over=(4,), index=lambda t: (at[t],), value=lambda t: new[t], op="set", fill=base, name="y")


def test_set_takes_places_that_differ():
    f = checked(placed()).build()
    base, new = np.arange(9, dtype="float32"), np.array([50, 60, 70, 80], "float32")
    for at in ([3, 1, 8, 0], [0, 1, 2, 3]):  # the second call is a quick one
        want = base.copy()
        want[at] = new
        np.testing.assert_array_equal(f(base, np.array(at, "int32"), new), want)


def test_what_a_launch_refuses_writes_nothing():
    out = np.full(9, -1, "float32")
    base, new = np.arange(9, dtype="float32"), np.ones(4, "float32")
    f = tir.Schedule(placed()).build()
    for at, code in (([1, 2, 1, 3], "launch.duplicate-cell"), ([1, 2, 9, 3], "launch.index-range")):
        for _ in range(2):
            with pytest.raises(tir.LaunchError) as e:
                f(base, np.array(at, "int32"), new, out=out)
            assert e.value.problems[0].code == code
    assert (out == -1).all()
    with pytest.raises(tir.LaunchError, match="0 to 9"):
        tir.Schedule(histogram()).build()(np.full(500, 10, "int32"))
    with pytest.raises(tir.LaunchError, match=r"\[0\] and \[2\] both go to cell \[1\]"):
        f(base, np.array([1, 2, 1, 3], "int32"), new)


def test_set_of_places_in_two_dimensions():
    i, v = tir.placeholder((3, 2), "int32", name="i"), tir.placeholder((3, 2), "int32", name="v")
    B = tir.scatter((5, 2), over=(3, 2), index=lambda t, c: (i[t, c], c), value=lambda t, c: v[t, c], op="set", fill=7)
    f, x = checked(B).build(), np.arange(6, dtype="int32").reshape(3, 2)
    np.testing.assert_array_equal(f(np.array([[0, 0], [1, 4], [2, 2]], "int32"), x)[:, 1], [1, 7, 5, 7, 3])
    with pytest.raises(tir.LaunchError, match=r"terms \[0, 1\] and \[2, 1\] both go to cell \[0, 1\]"):
        f(np.array([[0, 0], [1, 4], [2, 0]], "int32"), x)


def test_terms_of_a_combiner_that_does_not_commute(monkeypatch):
    """Matrices of one row, (1 q; 0 1) with q of 16 bits and p of the others: x -> p x + q modulo 2**16."""
    after = tir.combiner(
        lambda a, b: ((a >> 16) * (b >> 16) << 16) | ((a & 0xFFFF) * (b >> 16) + (b & 0xFFFF) & 0xFFFF),
        1 << 16, name="affine", commutative=False,
    )  # fmt: skip
    row, v = tir.placeholder((60,), "int32", name="row"), tir.placeholder((60,), "uint32", name="v")
    B = tir.scatter((3,), over=(60,), index=lambda t: (row[t],), value=lambda t: v[t], op=after, fill=1 << 16)
    rng = np.random.default_rng(3)
    at, x = rng.integers(0, 3, 60).astype("int32"), rng.integers(0, 2**32, 60, dtype=np.uint64).astype("uint32")
    want = [1 << 16] * 3
    for r, b in zip(at.tolist(), x.tolist(), strict=True):
        a = want[r]
        want[r] = ((a >> 16) * (b >> 16) << 16 | ((a & 0xFFFF) * (b >> 16) + (b & 0xFFFF) & 0xFFFF)) & 0xFFFFFFFF
    np.testing.assert_array_equal(checked(B).build()(at, x), np.array(want, "uint32"))

    class Turned(expand_updates._Expand):
        def on_Update(self, n):
            c = n.combiner
            return super().on_Update(n.replace(combiner=c.replace(old=c.new, new=c.old)))

    monkeypatch.setattr(expand_updates, "_Expand", Turned)
    assert not tir.Schedule(B).check()


def test_schedules_of_a_scatter():
    def cells(s):
        s.reorder("m.c", "m.e")
        s.bind("m.c", "thread.x")
        s.bind("m.init.i", "block.x")

    for step in (
        cells,
        lambda s: s.vectorize("m.c"),
        lambda s: s.split("m.e", [None, 8]),
        lambda s: s.cut("m.c", 3),
        lambda s: (s.atomic("m"), s.bind("m.e", "block.x")),
    ):
        checked(rows(), step)
    h = histogram(40)
    checked(tir.compute((10,), lambda i: h[i] * 2, name="C"))
    V = tir.compute((50,), lambda i: tir.placeholder((50,), "int32", name="A")[i] + 1, name="V")
    B = tir.scatter((5,), over=(50,), index=lambda t: (t % 5,), value=lambda t: V[t])
    checked(B, lambda s: s.compute_inline("V"))
    checked(B, lambda s: s.compute_at("V", "B.t"))


def test_what_a_schedule_of_a_scatter_refuses():
    h = histogram(40)
    C = tir.compute((10,), lambda i: h[i] * 2, name="C")
    for code, act in {
        "bind.ordered": lambda s: s.bind("h.t", "thread.x"),
        "parallel.independent": lambda s: s.parallel("h.t"),
        "vectorize.reduction": lambda s: s.vectorize("h.t"),
        "reorder.ordered": lambda s: s.reorder(*reversed(s.split("h.t", [None, 8]))),
        "split.shift-store": lambda s: s.split("h.t", [None, 16], tail="shift"),
        "inline.pure": lambda s: s.compute_inline("h"),
        "compute-at.several-writers": lambda s: s.compute_at("h", "C.i"),
        "stage-out.several-writers": lambda s: s.stage_out("h"),
        "cut.spatial": lambda s: s.cut("h.t", 3),
        "rfactor.one-update": lambda s: s.rfactor("h", "h.t"),
    }.items():
        with pytest.raises(tir.ScheduleError) as e:
            act(tir.Schedule(C))
        assert e.value.problems[0].code == code
    with pytest.raises(tir.ScheduleError, match="adds nothing up"):
        tir.Schedule(rows("max")).atomic("m")


def test_scatters_that_mean_different_things_differ():
    at, v = tir.placeholder((6,), "int32", name="at"), tir.placeholder((6,), "int32", name="v")
    made = [
        tir.scatter((5,), over=6, index=lambda t, k=k: (at[k(t)],), value=lambda t: v[t], op=op, fill=fill)
        for k in (lambda t: t, lambda t: 5 - t) for op in ("sum", "max") for fill in (0, 3)
    ]  # fmt: skip
    for one, other in itertools.combinations(made, 2):
        assert key_of((one,)) != key_of((other,))
        assert differs((one,), (other,))
    assert not differs(
        (made[0],), (tir.scatter((5,), over=6, index=lambda s: (at[s],), value=lambda s: v[s], name="z"),)
    )


def test_a_scatter_on_other_extents():
    h = histogram()
    (made,) = resize((h,), {h.op.axes[0]: 4, h.op.bodies[0].axes[0]: 6})
    np.testing.assert_array_equal(evaluate((made,), [np.array([0, 3, 3, 1, 3, 0], "int32")])[0], [2, 1, 0, 3])


def test_what_a_scatter_says():
    assert histogram().definition == "h[i] = scatter(sum, 1 at [ids[t]], axis=t, fill=0)"
    B = tir.scatter((), over=3, index=lambda t: (), value=lambda t: tir.cast(t, "float32"), fill=1)
    assert checked(B).build()() == 4.0
    nothing = tir.scatter((4,), over=0, index=lambda t: (t,), value=lambda t: 1, fill=5)
    np.testing.assert_array_equal(tir.Schedule(nothing).build()(), [5, 5, 5, 5])


def test_what_a_declaration_refuses():
    ids, base = tir.placeholder((500,), "int32", name="ids"), tir.placeholder((9,), name="base")
    k = tir.reduce_axis(500, name="k")

    def scatter(shape=(9,), over=(5,), index=lambda t: (t,), value=lambda t: 1, **options):
        return tir.scatter(shape, over, index, value, **options)

    for code, declare in {
        "scatter.out-of-range": lambda: scatter(index=lambda t: (t + 5,)),
        "scatter.computed": lambda: scatter(index=lambda t: (ids[t] // 2,)),
        "declare.out-of-range": lambda: scatter(over=501, index=lambda t: (ids[t],)),
        "scatter.index": lambda: scatter(index=lambda t: (t, t)),
        "scatter.unique": lambda: scatter(index=lambda t: (2 * t,), op="set"),
        "scatter.operator": lambda: scatter(op="add"),
        "scatter.fill": lambda: scatter(fill=base),
        "scatter.reduction": lambda: scatter(value=lambda t: tir.sum(ids[k], axis=k)),
        "declare.lambda-arity": lambda: scatter(value=lambda t, u: 1),
    }.items():
        with pytest.raises(tir.DeclarationError) as e:
            declare()
        assert e.value.problems[0].code == code
    with pytest.raises(tir.DeclarationError, match="9 when t = 4"):
        scatter(index=lambda t: (t + 5,))
    with pytest.raises(tir.DeclarationError, match="float32"):
        scatter(index=lambda t: (1.5,))


def test_the_cell_that_is_met_twice_is_told_whole():
    at, x = tir.placeholder((4,), "int32", name="at"), tir.placeholder((4,), name="x")
    B = tir.scatter((9, 3), over=(4,), index=lambda t: (at[t], 2), value=lambda t: x[t], op="set", name="B")
    f = tir.Schedule(B).build()
    with pytest.raises(tir.LaunchError, match=r"terms \[0\] and \[3\] both go to cell \[5, 2\]"):
        f(np.array([5, 1, 2, 5], "int32"), np.ones(4, "float32"))
    assert f(np.array([5, 1, 2, 0], "int32"), np.ones(4, "float32"))[:, 2].sum() == 4
