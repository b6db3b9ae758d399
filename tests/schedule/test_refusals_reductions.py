"""What decompose_reduction and rfactor refuse."""

import pytest
from refusal_cases import Refusals, assert_refused, changed, plain, relu

import tensorir as tir
from tensorir.ir.tree import Stage, Var
from tensorir.ir.visit import find

REFUSALS = Refusals()
once = REFUSALS.once


def total(n):
    A, k = tir.placeholder((n,), name="A"), tir.reduce_axis(n, name="k")
    return tir.sum(A[k], axis=k)


# --- reductions ------------------------------------------------------------------------------------------------------

once("decompose.no-reduction", "does not reduce", lambda s: s.decompose_reduction("D", "D.i"), relu)
once("decompose.encloses", "not a loop around", lambda s: s.decompose_reduction("C", "D.i"), relu)
once(
    "decompose.encloses",
    "drives the reduction already",
    lambda s: s.decompose_reduction("C", "C.j"),
    before=lambda s: s.reorder("C.k", "C.j"),
)


@REFUSALS.case("decompose.repeats", "D.j runs the reduction")
def a_product_for_every_column():
    A, B = tir.placeholder((8, 8), name="A"), tir.placeholder((8, 8), name="B")
    k, n = tir.reduce_axis(8, name="k"), tir.reduce_axis(8, name="l")
    C = tir.compute((8, 8), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: tir.sum(C[i, n] * B[n, j], axis=n), name="D"))
    s.compute_at("C", "D.j")
    yield s
    s.decompose_reduction("C", "D.i")


once("rfactor.one-update", "not a single reduction", lambda s: s.rfactor("D", "D.i"), relu)
once("rfactor.reduce-loop", "does not drive", lambda s: s.rfactor("C", "C.i"))
once(
    "rfactor.own-nest",
    "other stages",
    lambda s: s.rfactor("C", "C.k"),
    before=lambda s: s.stage_in("A", "C.k", "register"),
)


@REFUSALS.case("rfactor.tail", "cannot be said")
def crooked_reduction():
    s = plain()
    stage = find(s.program, Stage)[0]
    changed(s, stage, stage.replace(guards=(stage.binds[2] + Var("q", "index") < 9,)))
    yield s
    s.rfactor("C", "C.k")


once("reduce-in-lanes.lanes", "lanes=6", lambda s: s.reduce_in_lanes("C", "C.k", 6))
once("reduce-in-lanes.lanes", "joined=3", lambda s: s.reduce_in_lanes("C", "C.k", 8, joined=3))
once(
    "reduce-in-lanes.one-cell",
    "one cell",
    lambda s: s.reduce_in_lanes("N", "N.k", 4),
    lambda: tir.Schedule(tir.compute((), lambda: total(16), name="N")),
)
once("rfactor.reduce-loop", "does not drive", lambda s: s.reduce_in_lanes("C", "C.i", 4))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
