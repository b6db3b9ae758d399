"""What skip refuses."""

import online
import pytest
from refusal_cases import Refusals, assert_refused, plain

import tensorir as tir

REFUSALS = Refusals()
case, once = REFUSALS.case, REFUSALS.once
N = 16


def summed(term, target="opencl", into=tir.sum):
    """Sums C of terms of A and B, initialised before the loop C.k."""
    A, B = (tir.placeholder((N, N), name=x) for x in "AB")
    k = tir.reduce_axis(N, name="k")
    s = tir.Schedule(tir.compute((N,), lambda i: into(term(A, B, i, k), axis=k), name="C"), target)
    return s.decompose_reduction("C", "C.k").schedule


def causal(target="opencl"):
    return summed(lambda A, B, i, k: tir.where(k <= i, A[i, k], 0), target)


once("skip.serial", "unrolled", lambda s: s.skip("C.k"), causal, lambda s: s.unroll("C.k"))
once("skip.reduce-loop", "C.i drives no reduction", lambda s: s.skip("C.i"), causal)
once("skip.init", "s.decompose_reduction('C', 'C.k') first", lambda s: s.skip("C.k"), plain)
once("skip.identity", "no mask chooses it", lambda s: s.skip("C.k"),
     lambda: summed(lambda A, B, i, k: A[i, k]))  # fmt: skip
once("skip.identity", "where k <= i fails, it is 1", lambda s: s.skip("C.k"),
     lambda: summed(lambda A, B, i, k: tir.where(k <= i, A[i, k], 1)))  # fmt: skip
once("skip.identity", "the identity of max", lambda s: s.skip("C.k"),
     lambda: summed(lambda A, B, i, k: tir.where(k <= i, A[i, k], 0), into=tir.max))  # fmt: skip
once("skip.identity", "the term tanh(where(", lambda s: s.skip("C.k"),
     lambda: summed(lambda A, B, i, k: tir.tanh(tir.where(k <= i, A[i, k], -online.INF))))  # fmt: skip
once("skip.condition", "its sides have no bounds", lambda s: s.skip("C.k.0"),
     lambda: summed(lambda A, B, i, k: tir.where(tir.cast(i * k, "int32") < 9, A[i, k], 0)),
     lambda s: s.split("C.k", [None, 4]))  # fmt: skip
once("skip.condition", "i * k: its bounds are those in all tiles", lambda s: s.skip("C.k.0"),
     lambda: summed(lambda A, B, i, k: tir.where(i * k < 9, A[i, k], 0)),
     lambda s: s.split("C.k", [None, 4]))  # fmt: skip
once("skip.condition", "no comparison of whole numbers", lambda s: s.skip("C.k.0"),
     lambda: summed(lambda A, B, i, k: tir.where(B[i, k] > 0, A[i, k], 0)),
     lambda s: s.split("C.k", [None, 4]))  # fmt: skip
once("skip.condition", "no comparison of whole numbers", lambda s: s.skip("C.k.0"),
     lambda: summed(lambda A, B, i, k: tir.where(tir.not_equal(i, k), A[i, k], 0)),
     lambda s: s.split("C.k", [None, 4]))  # fmt: skip


@case("skip.condition", "it reads what the kernel computes")
def a_mask_that_the_kernel_computes():
    A, k, r = tir.placeholder((N, N), name="A"), tir.reduce_axis(N, name="k"), tir.reduce_axis(N, name="r")
    m = tir.compute((N,), lambda i: tir.max(A[i, r], axis=r), name="m")
    term = lambda i: tir.where(m[i] > 0, A[i, k], 0)  # noqa: E731
    s = tir.Schedule(tir.compute((N,), lambda i: tir.sum(term(i), axis=k), name="C"))
    s.decompose_reduction("C", "C.k")
    yield s
    s.skip("C.k")


@case("skip.pipeline", "s.skip without s.pipeline")
def copies_that_run_ahead():
    s = causal("cuda")
    s.bind("C.i", "block.x").stage_in("A", "C.k", "shared")
    s.pipeline("C.k")
    yield s
    s.skip("C.k")


@case("pipeline.parts", "C.k skips iterations")
def copies_of_iterations_that_are_skipped():
    s = causal("cuda")
    s.bind("C.i", "block.x").stage_in("A", "C.k", "shared")
    s.skip("C.k")
    yield s
    s.pipeline("C.k")


@case("skip.identity", "may be infinite as well")
def a_maximum_that_a_mask_may_leave_without_a_value():
    """Where a row has no finite score, exp(-inf - -inf) is NaN, which the sum has then."""
    s = tir.Schedule(online.attention(N, 4, online.VARIANTS["causal"]))
    s.compute_inline("P")
    s.compute_inline("T")
    s.decompose_reduction("l", "l.j")
    yield s
    s.skip("l.j")


@case("skip.result", "E stores A[i, j] + 1.0")
def another_result():
    A, k = tir.placeholder((N, N), name="A"), tir.reduce_axis(N, name="k")
    C = tir.compute((N,), lambda i: tir.sum(tir.where(k <= i, A[i, k], 0), axis=k), name="C")
    s = tir.Schedule((C, tir.compute((N, N), lambda j, i: A[i, j] + 1, name="E")))
    s.reorder("C.k", "C.i").decompose_reduction("C", "C.k")
    s.fuse_with("C", "E")
    yield s
    s.skip("C.k")


once("skip.lost", "C.k is no plain loop then", lambda s: s.unroll("C.k"), causal, lambda s: s.skip("C.k"))
once("skip.lost", "the mark of C.k", lambda s: s.split("C.k", [None, 4]), causal, lambda s: s.skip("C.k"))


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_skip_refuses(code, key, act):
    assert_refused(code, key, act)


W = tir.where
CHANGED_BY_A_MASK = {
    "a fraction as an integer": (lambda a, i, k: tir.cast(W(k <= i, a, 0.5), "int32") * 2 - 1, tir.sum),
    "a constant between two floats": (lambda a, i, k: W(k <= i, a, 16777217.0) - 16777216.0, tir.prod),
    "a division by 0": (lambda a, i, k: W(k <= i, a, 0) * (1.0 / (a - a)), tir.sum),
    "a logarithm of 0": (lambda a, i, k: W(k <= i, a, 0) * tir.log(a - a), tir.sum),
    "a root of less than 0": (lambda a, i, k: W(k <= i, a, 0) * tir.sqrt(-1.0 - a * a), tir.sum),
}
"""Terms that are no identity where their mask fails, though they look so."""


@pytest.mark.parametrize("kind", CHANGED_BY_A_MASK)
def test_terms_that_a_mask_does_not_make_the_identity(kind):
    term, combined = CHANGED_BY_A_MASK[kind]
    a, k = tir.placeholder((17, 17), name="a"), tir.reduce_axis(17, name="k")
    s = tir.Schedule(tir.compute((17,), lambda i: combined(term(a[i, k], i, k), axis=k), name="y"), "opencl")
    block, _ = s.split("y.i", [None, 4])
    piece, _ = s.split("y.k", [None, 4])
    s.reorder(block, piece, "y.i.1")
    s.decompose_reduction("y", piece)
    with pytest.raises(tir.ScheduleError) as caught:
        s.skip(piece)
    assert caught.value.code == "skip.identity"
