"""Scatters in private cells: of every number of parts, in the order of the domain, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.algorithms import private_scatter
from tensorir.interp.reference import evaluate

AT = {"sum": np.add.at, "prod": np.multiply.at, "min": np.minimum.at, "max": np.maximum.at}


def rows(op="sum", fill=0, dtype="int32", n=50):
    row, V = tir.placeholder((n,), "int32", name="row"), tir.placeholder((n, 8), dtype, name="V")
    return tir.scatter(
        (7, 8), over=(n, 8), index=lambda e, c: (row[e], c), value=lambda e, c: V[e, c], op=op, fill=fill, name="m"
    )


def private(outputs, parts, **options):
    return tir.Schedule(outputs).redeclare("private_scatter", parts=parts, **options)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), st.sampled_from(list(AT)), st.sampled_from([1, 2]), st.integers(0, 99))
def test_every_number_of_parts_gives_the_same_cells(n, parts, op, fill, seed):
    rng = np.random.default_rng(seed)
    r, v = rng.integers(0, 7, n).astype("int32"), rng.integers(-3, 4, (n, 8)).astype("int32")
    want = np.full((7, 8), fill, "int32")
    AT[op](want, r, v)
    np.testing.assert_array_equal(evaluate(private(rows(op, fill, n=n), parts).outputs, [r, v])[0], want)


@pytest.mark.parametrize("parts", [1, 4, 7])
def test_kernels_of_parts(parts):
    s = private(rows("sum", 1), parts)
    s.bind("m_part.part", "block.x")
    s.vectorize("m_part.c")
    assert s.check(), str(s.check())
    for target in ("c", "cuda -arch=sm_80"):
        told = tir.replay(s.definition, s.trace, target=target).check("emulate" if target[:4] == "cuda" else "fast")
        assert told, str(told)
    rng = np.random.default_rng(0)
    r, v = rng.integers(0, 7, 50).astype("int32"), rng.integers(-3, 4, (50, 8)).astype("int32")
    want = np.ones((7, 8), "int32")
    np.add.at(want, r, v)
    np.testing.assert_array_equal(s.build()(r, v), want)
    with pytest.raises(tir.LaunchError):
        s.build()(np.full(50, 7, "int32"), v)


def test_a_fill_that_is_a_tensor():
    start, at = tir.placeholder((9,), "int32", name="start"), tir.placeholder((30,), "int32", name="at")
    B = tir.scatter((9,), over=30, index=lambda t: at[t], value=lambda t: 1, fill=start)
    s = private(B, 4)
    assert s.check(), str(s.check())
    a, b = np.arange(9, dtype="int32"), np.random.default_rng(1).integers(0, 9, 30).astype("int32")
    by_name = {"start": a, "at": b}
    got = s.build()(*[by_name[x.name] for x in s.program.inputs])
    np.testing.assert_array_equal(got, a + np.bincount(b, minlength=9))


def test_floats_have_the_same_bits_in_each_run():
    rng = np.random.default_rng(2)
    r, v = rng.integers(0, 7, 50).astype("int32"), rng.standard_normal((50, 8)).astype("float32")
    s = private(rows(dtype="float32"), 4)
    s.parallel("m_part.part")
    f = s.build()
    want = np.zeros((4, 7, 8), "float32")
    for e in range(50):
        want[e // 13, r[e]] += v[e]
    total = np.zeros((7, 8), "float32")
    for part in want:
        total += part
    np.testing.assert_array_equal(f(r, v), total)
    np.testing.assert_array_equal(f(r, v), total)


def test_the_order_of_terms_stays():
    """Matrices (1 q; 0 1) of 16 bits: x -> p x + q modulo 2**16."""
    after = tir.combiner(
        lambda a, b: ((a >> 16) * (b >> 16) << 16) | ((a & 0xFFFF) * (b >> 16) + (b & 0xFFFF) & 0xFFFF),
        1 << 16, name="affine", commutative=False,
    )  # fmt: skip
    row, v = tir.placeholder((60,), "int32", name="row"), tir.placeholder((60,), "uint32", name="v")
    B = tir.scatter((3,), over=(60,), index=lambda t: (row[t],), value=lambda t: v[t], op=after, fill=5 << 16)
    assert private(B, 7).check()


def test_parts_that_are_cut_wrongly_are_seen(monkeypatch):
    monkeypatch.setattr(private_scatter, "select", lambda cond, a, b: a)
    assert not private(rows(), 4).check()


def test_what_is_refused():
    at = tir.placeholder((6,), "int32", name="at")
    placed = tir.scatter((9,), over=6, index=lambda t: at[t], value=lambda t: at[t], op="set")
    C = tir.compute((6,), lambda i: at[i] + 1, name="C")
    h = [tir.scatter((9,), over=6, index=lambda t: at[t], value=lambda t: 1, name=x) for x in ("g", "h")]
    for outputs in (placed, C, tuple(h)):
        with pytest.raises(tir.ScheduleError) as e:
            private(outputs, 2)
        assert e.value.problems[0].code == "private-scatter.stage"
    assert private(tuple(h), 2, of="h").check()
    with pytest.raises(tir.ScheduleError):
        private(h[0], 0)
