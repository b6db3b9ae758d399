"""Epilogues of scans: what becomes of their elements as they are stored, also where a reader has other indices."""

import itertools

import numpy as np
import pytest

import tensorir as tir
from tensorir.schedule.primitives import scan_epilogue

AFFINE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)
WAYS = list(itertools.product((False, True), (False, True)))


@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
@pytest.mark.parametrize("n", [96, 100, 7])
def test_tiles_that_begin_with_their_offset(n, exclusive, reverse):
    A = tir.placeholder((2, n), "int32", name="A")
    s = tir.Schedule(tir.scan(A, exclusive=exclusive, reverse=reverse, name="S"))
    s.redeclare("tiled_scan", tile=16).reverse_compute_inline("S")
    s.bind("S_local.t", "block.x")
    s.vectorize(s.split("S_local.u", [None, 8])[1])
    assert s.check(), str(s.check())
    assert "S_local[" not in s.build().source
    a = np.random.default_rng(0).integers(-9, 9, (2, n)).astype("int32")
    b = a[:, ::-1] if reverse else a
    want = np.cumsum(b, axis=1) - (b if exclusive else 0)
    np.testing.assert_array_equal(s.build()(a), want[:, ::-1] if reverse else want)


def test_states_of_several_values():
    P, Q = (tir.placeholder((50,), "uint32", name=x) for x in "PQ")
    s = tir.Schedule(tir.scan((P, Q), op=AFFINE, name="S")).redeclare("tiled_scan", tile=8)
    s.reverse_compute_inline("S")
    assert s.check(), str(s.check())
    assert tir.replay(s.definition, s.trace).check()


def test_an_elementwise_reader():
    A = tir.placeholder((3, 40), name="A")
    S = tir.scan(A, name="S")
    s = tir.Schedule(tir.compute((3, 40), lambda i, j: S[i, j] * 2 + A[i, j], name="C"))
    s.reverse_compute_inline("C")
    s.vectorize(s.split("S.j", [None, 8])[1])
    assert s.check(), str(s.check())


def test_what_is_refused():
    A = tir.placeholder((3, 40), name="A")
    S = tir.scan(A, name="S")
    turned = tir.compute((3, 40), lambda i, j: S[i, 39 - j], name="C")
    part = tir.compute((3, 20), lambda i, j: S[i, j], name="C")
    digits = tir.compute((120,), lambda i: S[i // 40, (i + 1) % 40], name="C")
    for reader in (turned, part, digits):
        with pytest.raises(tir.ScheduleError) as e:
            tir.Schedule(reader).reverse_compute_inline("C")
        assert e.value.problems[0].code == "reverse-inline.elementwise"
    C = tir.compute((3, 40), lambda i, j: S[i, j] + 1, name="C")
    with pytest.raises(tir.ScheduleError) as e:
        tir.Schedule((S, C)).reverse_compute_inline("C")
    assert e.value.problems[0].code == "reverse-inline.other-readers"
    several = tir.compute((3, 40), lambda i, j: S[i, j] + S[i, 0], name="C")
    with pytest.raises(tir.ScheduleError):
        tir.Schedule(several).reverse_compute_inline("C")


def test_a_wrong_place_is_seen(monkeypatch):
    places = scan_epilogue._places

    def other(stage, index, stored, buffer):
        at, guards = places(stage, index, stored, buffer)
        return {v: (e + 1) % 96 for v, e in at.items()}, guards

    S = tir.scan(tir.placeholder((96,), "int32", name="A"), name="S")
    monkeypatch.setattr(scan_epilogue, "_places", other)
    s = tir.Schedule(S).redeclare("tiled_scan", tile=16)
    s.reverse_compute_inline("S")
    assert not s.check()
