"""What compute_at, compute_inline and their reverses refuse."""

import pytest
from refusal_cases import (
    Refusals,
    assert_refused,
    changed,
    diamond,
    elementwise,
    neighbours,
    relu,
    written_by_two,
)

import tensorir as tir
from tensorir.ir.tree import Stage
from tensorir.ir.visit import find

REFUSALS = Refusals()
once = REFUSALS.once

# --- compute_at and its relatives ------------------------------------------------------------------------------------

once("compute-at.self", "loop of C itself", lambda s: s.compute_at("C", "C.i"))
once(
    "compute-at.self",
    "D.i",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.compute_at("C", "D.j"),
)
once("compute-at.output", "output", lambda s: s.compute_at("P", "N.i"), neighbours)
once("compute-at.not-read", "nothing inside", lambda s: s.compute_at("P", "D.i"), relu)
once(
    "compute-at.scheduled",
    "already (C.i.1)",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.split("C.i", [2, 4]),
)
once("compute-at.scheduled", "C.i", lambda s: s.compute_at("C", "D.i"), relu, lambda s: s.unroll("C.i"))
once("compute-at.room", "vectorized", lambda s: s.compute_at("C", "D.j"), relu, lambda s: s.vectorize("D.j"))
once(
    "compute-at.nest-shared",
    "other stages",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.compute_at("P", "C.i"),
)
once(
    "compute-at.several-writers",
    "several stages",
    lambda s: s.compute_at("C", "D.i"),
    relu,
    lambda s: s.decompose_reduction("C", "C.i"),
)
once("reverse-compute-at.self", "itself", lambda s: s.reverse_compute_at("D", "D.i"), relu)
once("reverse-compute-at.not-written", "nothing inside", lambda s: s.reverse_compute_at("D", "P.i"), relu)
once("reverse-compute-at.reduction", "reduces", lambda s: s.reverse_compute_at("C", "P.i"), relu)
once("reverse-compute-at.partial-reduction", "not complete", lambda s: s.reverse_compute_at("D", "C.k"), relu)
once(
    "reverse-compute-at.scheduled",
    "D.i",
    lambda s: s.reverse_compute_at("D", "C.j"),
    relu,
    lambda s: s.split("D.i", [2, 4]),
)
once(
    "reverse-compute-at.room",
    "distributed to",
    lambda s: s.reverse_compute_at("D", "P_shared.ax0"),
    relu,
    lambda s: s.stage_in("P", "C.i", "shared"),
)
once(
    "reverse-compute-at.nest-shared",
    "other stages",
    lambda s: s.reverse_compute_at("Z", "Q.i"),
    diamond,
    lambda s: s.stage_in("P", "Z.i", "register"),
)
once(
    "reverse-compute-at.scattered",
    "whole tile",
    lambda s: s.reverse_compute_at("D", "C.i.1"),
    relu,
    lambda s: (s.split("C.i", [2, 4]), s.reorder("C.i.1", "C.i.0")),
)
once(
    "reverse-compute-at.not-elementwise",
    "computed index",
    lambda s: s.reverse_compute_at("Q", "P.i"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[7 - i, j])[1],
)
once(
    "reverse-compute-at.not-elementwise",
    "several tiles",
    lambda s: s.reverse_compute_at("Q", "P.i"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j] + X[j, i])[1],
)
once("inline.output", "output", lambda s: s.compute_inline("D"), relu)
once("inline.pure", "reduces", lambda s: s.compute_inline("C"), relu)
once("inline.index", "several joined", lambda s: s.compute_inline("P"), relu,
     lambda s: s.reindex("P", "i, r -> r, i", writes="z = (r, i)"))  # fmt: skip
once("inline.scheduled", "P.i", lambda s: s.compute_inline("P"), relu, lambda s: s.split("P.i", [2, 4]))
once(
    "inline.nest-shared",
    "other stages",
    lambda s: s.compute_inline("P"),
    relu,
    lambda s: s.stage_in("A", "P.i", "register"),
)
once("inline.several-writers", "several stages", lambda s: s.compute_inline("P"), written_by_two)
once("reverse-inline.pure", "reduces", lambda s: s.reverse_compute_inline("C"), relu)
once("reverse-inline.producer", "no plain stage", lambda s: s.reverse_compute_inline("D"), relu)
once(
    "reverse-inline.scheduled",
    "Q.i",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1],
    lambda s: s.split("Q.i", [2, 4]),
)
once(
    "reverse-inline.elementwise",
    "element by element",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, 7 - j])[1],
)
once(
    "reverse-inline.nest-shared",
    "other stages",
    lambda s: s.reverse_compute_inline("Q"),
    lambda: elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1],
    lambda s: s.stage_in("P", "Q.i", "register"),
)


@REFUSALS.case("reverse-inline.other-readers", "used elsewhere")
def two_readers():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: P[i] * 2, name="Q")
    s = tir.Schedule((Q, tir.compute((8,), lambda i: P[i] - 1, name="R")))
    yield s
    s.reverse_compute_inline("Q")


@REFUSALS.case("reverse-inline.elementwise", "only a part")
def smaller_reader():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    s = tir.Schedule(tir.compute((7,), lambda i: P[i] * 2, name="Q"))
    yield s
    s.reverse_compute_inline("Q")


once("reverse-compute-at.made-later", "Q", lambda s: s.reverse_compute_at("Z", "P.i"), diamond)
once("reverse-inline.made-later", "Q", lambda s: s.reverse_compute_inline("Z"), diamond)


@REFUSALS.case("reverse-compute-at.whole-axis", "axis j of Q")
def reader_with_an_axis_more():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    s = tir.Schedule(tir.compute((8, 4), lambda i, j: P[i] * j, name="Q"))
    yield s
    s.reverse_compute_at("Q", "P.i")


def crooked(make=lambda: elementwise(lambda X, i, j: X[i, j] + 1, lambda X, i, j: X[i, j] * 2)[1]):
    """P runs where i + 2 * j < 9: no primitive makes such a tail."""
    s = make()
    stage = find(s.program, Stage)[0]
    return changed(s, stage, stage.replace(guards=(stage.binds[0] + stage.binds[1] * 2 < 9,)))


once("reverse-compute-at.guard", "tail of P", lambda s: s.reverse_compute_at("Q", "P.i"), crooked)
once("stage-out.guard", "tail of P", lambda s: s.stage_out("P", "P.i"), crooked)


@REFUSALS.case("stage-in.guard", "tail of P")
def copy_of_a_crooked_tail():
    s = elementwise(lambda X, i, j: X[i, j] + 1, lambda X, i, j: X[i, j] * 2)[1]
    s.compute_at("P", "Q.i")
    stage = find(s.program, Stage)[0]
    changed(s, stage, stage.replace(guards=(stage.binds[0] + stage.binds[1] * 3 < 9,)))
    yield s
    s.stage_in("P", "Q.j", "register")


@REFUSALS.case("compute-at.other-readers", "reads P outside")
def producer_of_two():
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: P[i] * 2, name="Q")
    s = tir.Schedule((Q, tir.compute((8,), lambda i: P[i] - 1, name="R")))
    yield s
    s.compute_at("P", "Q.i")


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
