"""Scans in vector lanes: what they compute for every combiner, direction and width, and that a wrong step is seen."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.ir.visit import substitute
from tensorir.lower import scan_lanes

pytestmark = pytest.mark.usefixtures("unoptimised")
WAYS = list(itertools.product((False, True), (False, True)))
AFTER = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)
LATEST = tir.combiner(
    lambda a, b: tuple(tir.where(tir.equal(b[1], 0), x, y) for x, y in zip(a, b, strict=True)), (0, 0),
    name="latest", commutative=False,
)  # fmt: skip
"""Of pairs (value, whether there is one) the last that has one."""


def in_lanes(outputs, lanes=8, axis="S.i", target="opencl"):
    s = tir.Schedule(outputs, target=target)
    s.vectorize(s.split(axis, [None, lanes])[1])
    return s


def affine(n=64, **ways):
    P, Q = (tir.placeholder((n,), "uint32", name=x) for x in "PQ")
    return tir.scan((P, Q), op=AFTER, **ways)


def composed(p, q, exclusive, reverse):
    a, b, out = 1, 0, []
    for x, y in list(zip(p.tolist(), q.tolist(), strict=True))[:: -1 if reverse else 1]:
        before = a, b
        a, b = a * x % 2**32, (b * x + y) % 2**32
        out.append(before if exclusive else (a, b))
    return np.array(out[:: -1 if reverse else 1], "uint32")


@pytest.mark.parametrize("target", ["opencl", "c"])
@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_a_combiner_that_does_not_commute(target, exclusive, reverse):
    s = in_lanes(affine(exclusive=exclusive, reverse=reverse), 16, target=target)
    assert s.check(), str(s.check())
    p, q = np.random.default_rng(0).integers(0, 2**32, (2, 64), dtype=np.uint64).astype("uint32")
    got = s.build()(p, q)
    assert ".s" in s.build().source or "shufflevector" in s.build().source
    np.testing.assert_array_equal(np.stack(got, 1), composed(p, q, exclusive, reverse))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 70), st.sampled_from([2, 4, 8, 16]), *2 * [st.booleans()],
       st.sampled_from(["sum", "prod", "min", "max"]), st.sampled_from(["int32", "float32"]))  # fmt: skip
def test_every_width_and_length(n, lanes, exclusive, reverse, op, dtype):
    S = tir.scan(tir.placeholder((2, n), dtype, name="A"), op=op, exclusive=exclusive, reverse=reverse)
    verdict = in_lanes(S, lanes, "S.j").check()
    assert verdict, str(verdict)


def test_a_remainder_is_combined_one_by_one():
    s = tir.Schedule(tir.scan(tir.placeholder((37,), "int32", name="A")))
    s.vectorize(s.split("S.i", [None, 8], tail="peel")[1])
    a = np.arange(37, dtype="int32")
    assert s.check(), str(s.check())
    np.testing.assert_array_equal(s.build()(a), np.cumsum(a, dtype="int32"))
    assert "int8 S_carry_lanes" in s.build().source


def test_conditions_in_a_combiner():
    K, V = (tir.placeholder((32,), "int32", name=x) for x in "KV")
    s = in_lanes(tir.scan((V, K), op=LATEST))
    assert s.check(), str(s.check())
    rng = np.random.default_rng(1)
    k, v, want, last = rng.integers(0, 2, 32).astype("int32"), rng.integers(-9, 9, 32).astype("int32"), [], 0
    for x, here in zip(v, k, strict=True):
        last = x if here else last
        want.append(last)
    by_name = {"K": k, "V": v}
    np.testing.assert_array_equal(s.build()(*[by_name[x.name] for x in s.program.inputs])[0], want)


def test_a_state_that_nobody_reads():
    s = in_lanes(affine()[1])
    assert s.check(), str(s.check())
    assert "not in vectors" not in s.build().source
    p, q = np.random.default_rng(3).integers(0, 2**32, (2, 64), dtype=np.uint64).astype("uint32")
    np.testing.assert_array_equal(s.build()(p, q), composed(p, q, False, False)[:, 1])


def test_rows_and_places_before_the_scan():
    A = tir.placeholder((6, 32), name="A")
    B = tir.compute((6, 32), lambda i, j: A[i, j] * 2 + j, name="B")
    for reverse in (False, True):
        s = tir.Schedule(tir.scan(B, reverse=reverse)).compute_inline("B").parallel("S.i")
        s.vectorize(s.split("S.j", [None, 8])[1])
        assert s.check(), str(s.check())


def test_floats_have_the_same_bits_in_each_run():
    a = np.random.default_rng(2).standard_normal(4096).astype("float32")
    f = in_lanes(tir.scan(tir.placeholder((4096,), name="A")), 16).build()
    got, exact = f(a), np.cumsum(a, dtype="float64")
    assert np.all(np.abs(got - exact) <= (4096 / 16 + 5) * 2.0**-24 * np.cumsum(np.abs(a), dtype="float64"))
    np.testing.assert_array_equal(f(a), got)


def test_what_has_no_lanes_is_combined_one_by_one():
    s = tir.Schedule(tir.scan(tir.placeholder((64,), "float16", name="A"), op="max"))
    s.vectorize(s.split("S.i", [None, 8])[1])
    assert s.check(), str(s.check())
    assert "not in vectors: lanes of a scan" in s.build().source
    s = in_lanes(affine(), 4, target="cuda -arch=sm_80")
    assert s.check("emulate"), str(s.check("emulate"))


def total(n=64, lanes=8, target="opencl"):
    """The last of ``affine``'s states, reduced in lanes."""
    P, Q = (tir.placeholder((3, n), "uint32", name=x) for x in "PQ")
    k = tir.reduce_axis(n, name="k")
    s = tir.Schedule(tir.compute((3,), lambda i: AFTER((P[i, k], Q[i, k]), axis=k), name="T"), target=target)
    s.vectorize(s.split("T.k", [None, lanes])[1])
    return s


@pytest.mark.parametrize("target", ["opencl", "c"])
@pytest.mark.parametrize(("n", "lanes"), [(64, 16), (64, 2), (37, 8), (5, 8)])
def test_a_reduction_that_does_not_commute(n, lanes, target):
    s = total(n, lanes, target)
    assert s.check(), str(s.check())
    p, q = np.random.default_rng(n).integers(0, 2**32, (2, 3, n), dtype=np.uint64).astype("uint32")
    want = [composed(x, y, False, False)[-1] for x, y in zip(p, q, strict=True)]
    np.testing.assert_array_equal(np.stack(s.build()(p, q), 1), want)
    assert n < lanes or "T_0_lanes" in s.build().source
    told = total(n, lanes, "cuda -arch=sm_80").check("emulate")
    assert told, str(told)


@pytest.mark.parametrize("planted", ["step", "last", "order"])
def test_a_wrong_step_of_a_reduction_is_seen(planted, monkeypatch):
    step, shuffle = scan_lanes.InLanes._step, scan_lanes.InLanes._shuffle

    def turned(self):
        both = dict(zip((*self.olds, *self.news), (*self.news, *self.olds), strict=True))
        return tuple(substitute(s.value, both) for s in self.updates)

    assert total().check()
    if planted == "step":
        monkeypatch.setattr(scan_lanes.InLanes, "_step", lambda self, n: step(self, n) if n != 2 else [])
    elif planted == "last":
        monkeypatch.setattr(scan_lanes.InLanes, "_shuffle", lambda self, a, b, picks:
                            shuffle(self, a, b, (0,) if len(picks) == 1 else picks))  # fmt: skip
    else:
        monkeypatch.setattr(scan_lanes.LaneScan, "joined", property(turned))
    assert not total().check()


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "float64"])
def test_lanes_of_two_vectors_are_chosen_by_integers_of_their_width(dtype):
    s = in_lanes(tir.scan(tir.placeholder((48,), dtype, name="A"), op="max"), 16)
    a = np.random.default_rng(4).integers(-99, 99, 48).astype(dtype)
    np.testing.assert_array_equal(s.build()(a), np.maximum.accumulate(a))
    whole = {"int8": "char", "int16": "short"}.get(dtype, "long")
    assert f"({whole}16)(0, -1, -1" in s.build().source


@pytest.mark.parametrize("planted", ["step", "last", "turned"])
def test_a_wrong_step_is_seen(planted, monkeypatch):
    outputs = affine(reverse=planted == "turned")
    assert in_lanes(outputs).check()
    if planted == "step":
        made = scan_lanes.InLanes._step
        monkeypatch.setattr(scan_lanes.InLanes, "_step", lambda self, step: made(self, step) if step != 2 else [])
    elif planted == "last":
        shuffle = scan_lanes.InLanes._shuffle
        monkeypatch.setattr(scan_lanes.InLanes, "_shuffle", lambda self, a, b, picks:
                            shuffle(self, a, b, (0,) if len(picks) == 1 else picks))  # fmt: skip
    else:
        monkeypatch.setattr("tensorir.lower.lane_orders.Permuted.loaded", lambda self, e: e)
    assert not in_lanes(outputs).check()
