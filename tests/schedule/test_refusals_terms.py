"""What keep_term refuses."""

import pytest
from refusal_cases import Refusals, assert_refused, matmul
from test_keep_term import spread

import tensorir as tir

REFUSALS = Refusals()
once = REFUSALS.once


def large():
    return tir.Schedule(matmul(20, 20, 20)[2])


once("keep-term.axis", "C.i walks no reduce axis", lambda s: s.keep_term("C.i", "0"), spread)
once("keep-term.axis", "a part of an axis", lambda s: s.keep_term("C.k.0", "0"), spread,
     lambda s: s.split("C.k", [3, 1]))  # fmt: skip
once("keep-term.axis", "C.i walks 2 axes", lambda s: s.keep_term("C.i", "0"), spread,
     lambda s: s.compute_at("P", "C.i"))  # fmt: skip
once("keep-term.serial", "unrolled", lambda s: s.keep_term("C.k", "0"), spread, lambda s: s.unroll("C.k"))
once("keep-term.value", "3 is no value of C.k in 3", lambda s: s.keep_term("C.k", "3"), spread)
once("keep-term.value", "says C.k by itself", lambda s: s.keep_term("C.k", "C.k"), spread)
once(
    "keep-term.value",
    "cases",
    lambda s: s.keep_term("C.k", "(C.i + C.j) % 20"),
    lambda: tir.Schedule(matmul(20, 20, 20)[2]),
)
once("keep-term.counts", "k = 1, i = 0 a term is A[0] * B[1]", lambda s: s.keep_term("C.k", "C.i % 3"),
     lambda: spread(1))  # fmt: skip
once("keep-term.counts", "1.0 * B", lambda s: s.keep_term("C.k", "(3 - C.i % 3) % 3"), lambda: spread(0, 1))
once("keep-term.counts", "not proved", lambda s: s.keep_term("C.k", "(3 - C.i % 3) % 3"), lambda: spread(0, 0, tir.max))
once("specialize.unknown-name", "C.q", lambda s: s.keep_term("C.k", "C.q"), spread)


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
