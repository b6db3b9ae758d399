"""Scans: NumPy's, recurrences, orders of combining that count, schedules, and what is refused."""

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

AFFINE = {"result": lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), "identity": (1, 0), "name": "affine"}
"""Maps x -> p x + q, the first one applied first."""
WAYS = list(itertools.product((False, True), (False, True)))
NUMPY = {"sum": np.cumsum, "prod": np.cumprod, "max": np.maximum.accumulate, "min": np.minimum.accumulate}


def wanted(a, op, axis, exclusive, reverse, identity):
    """NumPy's scan."""
    b = np.flip(a, axis) if reverse else a
    made = NUMPY[op](b, axis=axis, **({"dtype": a.dtype} if op in ("sum", "prod") else {}))
    if exclusive:
        first = np.full_like(np.take(made, [0], axis), identity)
        made = np.concatenate([first, np.delete(made, -1, axis)], axis)
    return np.flip(made, axis) if reverse else made


@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
@pytest.mark.parametrize(("shape", "axis"), [((1,), 0), ((97,), -1), ((5, 7), 0), ((5, 7), 1), ((3, 4, 5), 1)])
def test_a_scan_is_numpys(shape, axis, exclusive, reverse):
    rng = np.random.default_rng(0)
    A = tir.placeholder(shape, "int32", name="A")
    a = rng.integers(-9, 9, shape).astype("int32")
    for op, identity in (("sum", 0), ("prod", 1), ("max", np.iinfo("int32").min), ("min", np.iinfo("int32").max)):
        S = tir.scan(A, axis=axis, op=op, exclusive=exclusive, reverse=reverse)
        want = wanted(a, op, axis, exclusive, reverse, identity)
        np.testing.assert_array_equal(evaluate((S,), [a])[0], want)
        s = tir.Schedule(S)
        assert s.check(), str(s.check())
        np.testing.assert_array_equal(s.build()(a), want)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 2), *2 * [st.booleans()], st.integers(0, 99))
def test_what_the_definition_means(shape, axis, exclusive, reverse, seed):
    axis %= len(shape)
    A = tir.placeholder(shape, "int32", name="A")
    a = np.random.default_rng(seed).integers(-99, 99, shape).astype("int32")
    S = tir.scan(A, axis=axis, exclusive=exclusive, reverse=reverse)
    np.testing.assert_array_equal(evaluate((S,), [a])[0], wanted(a, "sum", axis, exclusive, reverse, 0))


def test_floats_are_combined_in_order():
    """To the last bit those of NumPy's serial sum, where the axis is not split among threads."""
    A = tir.placeholder((3, 1000), name="A")
    a = np.random.default_rng(1).standard_normal((3, 1000)).astype("float32")
    s = checked(tir.scan(A, axis=1), lambda s: s.bind("S.i", "block.x"))
    np.testing.assert_array_equal(s.build()(a), np.cumsum(a, axis=1, dtype="float32"))


def affine_maps(commutative=False):
    P, Q = (tir.placeholder((97,), "uint32", name=x) for x in "PQ")
    return P, Q, tir.combiner(**AFFINE, commutative=commutative)


@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_a_combiner_that_does_not_commute(exclusive, reverse):
    P, Q, after = affine_maps()
    outputs = tir.scan((P, Q), axis=0, op=after, exclusive=exclusive, reverse=reverse)
    p, q = np.random.default_rng(2).integers(0, 2**32, (2, 97), dtype=np.uint64).astype("uint32")
    got = checked(outputs).build()(p, q)
    a, b, want = 1, 0, []
    for x, y in list(zip(p.tolist(), q.tolist(), strict=True))[:: -1 if reverse else 1]:
        before = a, b
        a, b = a * x % 2**32, (b * x + y) % 2**32
        want.append(before if exclusive else (a, b))
    np.testing.assert_array_equal(np.stack(got, 1), np.array(want[:: -1 if reverse else 1], "uint32"))


def test_an_exponential_moving_average():
    X, decay = tir.placeholder((4, 50), name="X"), 0.75
    D = tir.compute((4, 50), lambda i, t: X[i, t] * 0 + decay, name="D")
    E = tir.compute((4, 50), lambda i, t: X[i, t] * (1 - decay), name="E")
    _, average = tir.scan((D, E), axis=1, op=tir.combiner(**AFFINE, commutative=False), name="ema")
    s = checked(average, lambda s: s.compute_inline("D"), lambda s: s.compute_inline("E"))
    x = np.random.default_rng(3).standard_normal((4, 50)).astype("float32")
    want, state = np.empty_like(x), np.zeros(4, "float32")
    for t in range(50):
        state = decay * state + (1 - decay) * x[:, t]
        want[:, t] = state
    np.testing.assert_allclose(s.build()(x), want, rtol=1e-5, atol=1e-6)


class Turned(expand_updates._Expand):
    """Lowering that joins states the other way round."""

    def on_Update(self, n):
        c = n.combiner
        return super().on_Update(n.replace(combiner=c.replace(old=c.new, new=c.old)))


@pytest.mark.parametrize("declare", ["scan", "reduction"])
def test_a_mutated_order_of_combining_is_seen(declare, monkeypatch):
    P, Q, after = affine_maps()
    k = tir.reduce_axis(97, name="k")
    outputs = tir.scan((P, Q), op=after)
    if declare == "reduction":
        outputs = tir.compute((1,), lambda i: after((P[k], Q[k]), axis=k), name="S")
    monkeypatch.setattr(expand_updates, "_Expand", Turned)
    assert not tir.Schedule(outputs).check()
    monkeypatch.undo()
    assert tir.Schedule(outputs).check()


def test_schedules_of_a_scan():
    A = tir.placeholder((6, 33, 12), name="A")

    def vectors(s):
        s.reorder("S.j", "S.k")
        ko, ki = s.split("S.k", [None, 4])
        s.reorder(ko, "S.j")
        s.vectorize(ki)
        s.parallel("S.i")

    def copied(s):
        jo, _ = s.split("S.j", [None, 8])
        s.stage_in("A", at=jo, scope="register")

    steps = [
        vectors,
        copied,
        lambda s: s.reorder("S.j", "S.i"),
        lambda s: s.split("S.j", [None, 8], tail="peel"),
        lambda s: s.split("S.j", [None, 8], tail="balanced"),
        lambda s: s.decompose_reduction("S", "S.j"),
        lambda s: s.fuse("S.i", "S.k"),
        lambda s: s.reindex("S", "i, k -> a = (k, i)"),
        lambda s: (s.bind("S.i", "block.x"), s.bind("S.k", "thread.x")),
    ]
    for n, step in enumerate(steps):  # each in one way and, of the first, in all
        for exclusive, reverse in WAYS if n == 0 else WAYS[n % 4 :][:1]:
            checked(tir.scan(A, axis=1, exclusive=exclusive, reverse=reverse), step)
    s = tir.Schedule(tir.scan(A, axis=1))
    vectors(s)
    assert "float4 S_carry" in s.build().source


def test_a_scan_in_the_loops_of_its_reader_runs_its_axis_in_full():
    A = tir.placeholder((3, 17), name="A")
    S = tir.scan(A, axis=1, reverse=True)
    C = tir.compute((3, 17), lambda i, j: S[i, j] + S[i, 16 - j], name="C")
    for loop in ("C.i", "C.j"):
        checked(C, lambda s, at=loop: s.compute_at("S", at))


def test_what_a_schedule_of_a_scan_refuses():
    A = tir.placeholder((6, 33), name="A")
    refused = {
        "bind.ordered": lambda s: s.bind("S.j", "block.x"),
        "parallel.independent": lambda s: s.parallel("S.j"),
        "vectorize.lanes": lambda s: s.vectorize("S.j"),
        "rfactor.one-update": lambda s: s.rfactor("S", "S.j"),
        "reindex.axes": lambda s: s.reindex("S", "i, j -> j, i"),
        "cut.spatial": lambda s: s.cut("S.j", 3),
        "split.shift-store": lambda s: s.split("S.j", [None, 8], tail="shift"),
        "stage-out.one-buffer": lambda s: s.stage_out("S"),
    }
    for code, act in refused.items():
        with pytest.raises(tir.ScheduleError) as e:
            act(tir.Schedule(tir.scan(A, axis=1)))
        assert e.value.problems[0].code == code


# --- reductions whose combiner does not commute -----------------------------------------------------------------------


def composed():
    P, Q = (tir.placeholder((5, 24), "uint32", name=x) for x in "PQ")
    k, after = tir.reduce_axis(24, name="k"), tir.combiner(**AFFINE, commutative=False)
    return tir.compute((5,), lambda i: after((P[i, k], Q[i, k]), axis=k), name="M")


def test_what_keeps_the_order_of_terms_is_taken():
    def outer_parts(s):
        ko, _ = s.split("M.k", [None, 5])
        s.rfactor("M", ko)

    for step in (
        outer_parts,
        lambda s: s.reorder("M.k", "M.i"),
        lambda s: s.split("M.k", [None, 7], tail="balanced"),
        lambda s: s.rfactor("M", "M.k"),
        lambda s: s.reindex("M", "i | k -> i, a = k/4, b = k%4"),
    ):
        checked(composed(), step)


def test_what_reorders_terms_is_refused():
    def split(s):
        return s.split("M.k", [None, 4])

    for code, act in {
        "rfactor.order": lambda s: s.rfactor("M", split(s)[1]),
        "reorder.ordered": lambda s: s.reorder(*reversed(split(s))),
        "reindex.order": lambda s: s.reindex("M", "i | k -> i, a = k%4, b = k/4"),
        "bind.reduction-has-one-owner": lambda s: s.bind("M.k", "thread.x"),
        "cut.spatial": lambda s: s.cut("M.k", 3),
    }.items():
        with pytest.raises(tir.ScheduleError) as e:
            act(tir.Schedule(composed()))
        assert e.value.problems[0].code == code
    with pytest.raises(tir.ScheduleError, match="another order"):
        tir.Schedule(composed()).reindex("M", "i | -k -> i, k")


def test_a_commutative_combiner_may_be_reordered():
    k, A = tir.reduce_axis(24, name="k"), tir.placeholder((5, 24), "int32", name="A")
    xor = tir.combiner(lambda a, b: a ^ b, 0, name="xor")

    def parts(s):
        _, ki = s.split("M.k", [None, 4])
        s.rfactor("M", ki)

    checked(tir.compute((5,), lambda i: xor(A[i, k], axis=k), name="M"), parts)


# --- declarations -----------------------------------------------------------------------------------------------------


def test_what_a_scan_says():
    A = tir.placeholder((3, 5), "int16", name="A")
    S = tir.scan(A, reverse=True)
    assert (S.name, S.shape, S.dtype) == ("S", (3, 5), "int16")
    assert S.definition == "S[i, j] = scan(sum, A[i, j], axis=j, reverse)"
    assert [t.name for t in tir.scan((A, A), op=tir.combiner(**AFFINE), name="T")] == ["T_0", "T_1"]


def test_scans_that_mean_different_things_differ():
    A = tir.placeholder((3, 3), "int32", name="A")
    made = [tir.scan(A, axis=axis, op=op, exclusive=ex, reverse=rev)
            for axis in (0, 1) for op in ("sum", "max") for ex, rev in WAYS]  # fmt: skip
    for one, other in itertools.combinations(made, 2):
        assert key_of((one,)) != key_of((other,))
        assert differs((one,), (other,))
    assert not differs((made[0],), (tir.scan(A, axis=0, name="other"),))


def test_a_scan_on_other_extents():
    A = tir.placeholder((4, 9), name="A")
    S = tir.scan(A, axis=0)
    C = tir.compute((4, 9), lambda i, j: S[i, j] * 2, name="C")
    (made,) = resize((C,), dict(zip(C.op.axes, (7, 2), strict=True)))
    a = np.arange(14, dtype="float32").reshape(7, 2)
    np.testing.assert_array_equal(evaluate((made,), [a])[0], 2 * np.cumsum(a, axis=0))
    (made,) = resize((S,), {S.op.axes[0]: 2})
    assert made.shape == (2, 9)
    np.testing.assert_array_equal(evaluate((made,), [np.ones((2, 9))])[0][:, 0], [1, 2])


def test_a_scan_of_nothing():
    assert tir.Schedule(tir.scan(tir.placeholder((0,), name="A"))).build()(np.zeros(0, "float32")).shape == (0,)


def test_what_a_declaration_refuses():
    A, B = tir.placeholder((3, 5), name="A"), tir.placeholder((5, 3), name="B")
    affine = tir.combiner(**AFFINE)
    for code, declare in {
        "scan.axis": lambda: tir.scan(A, axis=2),
        "scan.operator": lambda: tir.scan(A, op="xor"),
        "scan.tensors": lambda: tir.scan((A, B), op=affine),
        "reduce.identity": lambda: tir.scan(A, op=affine),
        "reduce.bool": lambda: tir.scan(tir.placeholder((3,), "bool", name="C")),
        "argument.type": lambda: tir.scan(A, exclusive=1),
    }.items():
        with pytest.raises(tir.DeclarationError) as e:
            declare()
        assert e.value.problems[0].code == code
    for declare in (
        lambda: tir.scan(A, axis=-3),
        lambda: tir.scan(tir.placeholder((), name="C")),
        lambda: tir.scan((A, A), op="sum"),
        lambda: tir.scan(A[0, 0]),
        lambda: tir.scan(()),
        lambda: tir.scan(A, op=tir.combiner(lambda a, b: a + b, None)),
        lambda: tir.scan(A, op=tir.sum),
        lambda: tir.combiner(lambda a, b: a, 0, commutative="no"),
        lambda: tir.scan(A, name=""),
    ):
        with pytest.raises(tir.DeclarationError):
            declare()
