"""Scans in three stages: of every tile size, in every direction, in order, and within the bound of rounding."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.algorithms.registry import find_algorithm
from tensorir.interp.reference import evaluate

WAYS = list(itertools.product((False, True), (False, True)))
AFTER = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)


def tiled(outputs, tile, **options):
    return tir.Schedule(outputs).redeclare("tiled_scan", tile=tile, **options)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3), st.integers(0, 2), st.integers(1, 14), *2 * [st.booleans()]
)
def test_every_tile_gives_the_same_elements(shape, axis, tile, exclusive, reverse):
    P, Q = (tir.placeholder(shape, "uint32", name=x) for x in "PQ")
    S = tir.scan((P, Q), axis=axis % len(shape), op=AFTER, exclusive=exclusive, reverse=reverse)
    arrays = np.random.default_rng(tile).integers(0, 2**32, (2, *shape), dtype=np.uint64).astype("uint32")
    for got, want in zip(evaluate(tiled(S, tile).outputs, arrays), evaluate(S, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("exclusive", "reverse"), WAYS)
def test_kernels_of_a_tiled_scan(exclusive, reverse):
    P, Q = (tir.placeholder((3, 29), "uint32", name=x) for x in "PQ")
    s = tiled(tir.scan((P, Q), op=AFTER, exclusive=exclusive, reverse=reverse), 8)
    s.bind("S_local.t", "block.x")
    s.bind("S_local.i", "thread.x")
    assert s.check(), str(s.check())
    told = tir.replay(s.definition, s.trace, target="cuda -arch=sm_80").check("emulate")
    assert told, str(told)


def test_floats_are_within_the_bound_and_the_same_each_time():
    n = 4099
    A = tir.placeholder((n,), name="A")
    s = tiled(tir.scan(A), 64)
    s.bind("S_local.t", "block.x")
    s.parallel("S.i")
    a = np.random.default_rng(0).standard_normal(n).astype("float32")
    f = s.build()
    got, exact = f(a), np.cumsum(a, dtype=np.float64)
    steps = 64 + -(-n // 64) + 1  # additions on the way to an element
    assert np.all(np.abs(got - exact) <= steps * 2.0**-24 * np.cumsum(np.abs(a), dtype=np.float64))
    np.testing.assert_array_equal(f(a), got)


def test_one_scan_of_several():
    A = tir.placeholder((2, 9), "int32", name="A")
    S = tir.scan(tir.scan(A, axis=0, name="T"), axis=1)
    assert tiled(S, 4, of="T").check()
    assert {"T_total", "T_local", "T_offset", "S"} <= {x.name for x in _stages(tiled(S, 4, of="T"))}
    with pytest.raises(tir.ScheduleError) as e:
        tiled(S, 4)
    assert e.value.problems[0].code == "tiled-scan.stage"
    with pytest.raises(tir.ScheduleError):
        tiled(S, 0, of="T")


def _stages(s):
    from tensorir.ir.tree import Stage
    from tensorir.ir.visit import find

    return find(s.program.body, Stage)


def test_offsets_that_are_combined_on_the_wrong_side_are_seen(monkeypatch):
    P, Q = (tir.placeholder((97,), "uint32", name=x) for x in "PQ")
    S = tir.scan((P, Q), op=AFTER)
    find_algorithm("tiled_scan")
    from tensorir.algorithms import tiled_scan

    def turned(self):
        c = self.op.bodies[0].combiner
        other = c.replace(old=c.new, new=c.old)
        local, offset = self._local(13), self._offset(13, self._total(13))
        tile, within = self.part.at // 8, self.part.at % 8
        both = dict(zip((*other.old, *other.new), (*(t[tile] for t in offset), *(t[tile, within] for t in local)),
                        strict=True))  # fmt: skip
        made = [tiled_scan.substitute(r, both) for r in other.result]
        return tiled_scan._compute("S", self.op.axes, self.op.extents, made, ["S_0", "S_1"])

    assert tiled(S, 8).check()
    monkeypatch.setattr(tiled_scan._Tiled, "result", turned)
    assert not tiled(S, 8).check()


@pytest.mark.parametrize("planted", [None, "offset", "order"])
def test_long_scans_are_checked_over_several_tiles(planted, monkeypatch):
    """Of more elements than are interpreted: some of three tiles, so that what comes before has an order too."""
    P, Q = (tir.placeholder((1 << 20,), "uint32", name=x) for x in "PQ")
    s = tiled(tir.scan((P, Q), op=AFTER), 256)
    s.vectorize(s.split("S_local.u", [None, 8])[1])
    made = s.trace
    find_algorithm("tiled_scan")
    from tensorir.algorithms import tiled_scan

    if planted:
        offset = tiled_scan._Tiled._offset

        def wrong(self, tiles, totals):
            if planted == "offset":  # of the first tile alone
                return offset(self, min(tiles, 2), totals) if tiles < 3 else totals
            c = self.op.bodies[0].combiner
            body = self.body.replace(combiner=c.replace(old=c.new, new=c.old))
            self.__dict__["body"] = body
            return offset(self, tiles, totals)

        monkeypatch.setattr(tiled_scan._Tiled, "_offset", wrong)
    told = tir.replay(s.definition, made).check()
    assert bool(told) is (planted is None), str(told)
    assert "513" in str(told) or planted
