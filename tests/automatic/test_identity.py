"""Nothing of the package compares expressions or tensors by ==, != or in: these build comparisons."""

import sys

import pytest
from written import WRITTEN

import tensorir as tir
from tensorir.errors import ours
from tensorir.expr.program import as_outputs
from tensorir.ir.operators import Operators

SAMPLE = ("phases", "life", "rotary", "sparse_rows", "shuffled", "truths", "blended", "message_passing")
"""Dims, scalars, gathers, scatters, conditions, several results, extents of data."""


@pytest.fixture
def strict(monkeypatch):
    """What the package compares raises, one object with itself too; comparisons of these tests are built."""
    real = Operators._compared

    def compared(self, name, o):
        frame = sys._getframe(2)  # of what compares; Python's own containers have none
        if ours(frame):
            raise AssertionError(f"{name} of {self!r} and {o!r} in {frame.f_code.co_filename}:{frame.f_lineno}")
        return real(self, name, o)

    monkeypatch.setattr(Operators, "_compared", compared)


def test_the_package_is_seen_comparing(strict):
    A, B = tir.placeholder((4,), name="A"), tir.placeholder((4,), name="B")
    inside = {"__name__": "tensorir.inside", "A": A, "B": B}
    for asks in ("(A,) == (B,)", "A in [B]", "[B, A].index(A)", "A[0] != B[0]"):
        with pytest.raises(AssertionError, match="A"):
            eval(asks, inside)
    assert (A == B).dtype == "bool"


@pytest.mark.parametrize("target", ["c", "cuda -arch=sm_80"])
@pytest.mark.parametrize("name", SAMPLE)
def test_expressions_are_not_compared(name, target, strict):
    s = tir.auto_schedule(as_outputs(WRITTEN[name]()), target=target)
    assert s.check()
    assert s.source() and str(s) and str(s.trace) and s._repr_html_()
    assert repr(s.outputs)
    s.blame()
    tir.replay(s.definition, s.trace, target=target)
