"""What redeclare refuses."""

import pytest
from refusal_cases import Refusals, assert_refused, relu

import tensorir as tir

REFUSALS = Refusals()
once = REFUSALS.once


@tir.algorithm("test: other shape")
def other_shape(outputs):
    A, B = outputs[0].op.inputs
    return tir.compute((4, 4), lambda i, j: A[i, j] + B[i, j], name="C")


@tir.algorithm("test: other type")
def other_type(outputs):
    return tir.compute(outputs[0].shape, lambda *i: tir.cast(outputs[0][i], "float64"), name="C")


@tir.algorithm("test: one argument")
def one_argument(outputs):
    A, _ = outputs[0].op.inputs
    return tir.compute(outputs[0].shape, lambda i, j: A[i, j] * 2, name="C")


@tir.algorithm("test: raises")
def raises(outputs):
    return outputs[1]


once("trace.algorithm", "winogard", lambda s: s.redeclare("winogard"))
once("trace.algorithm", "nobody made", lambda s: s.replay('[["redeclare", ["nobody made"], {}]]'))
once("trace.malformed", "redeclare", lambda s: s.replay('[["redeclare", [], {}]]'))
once("trace.malformed", "redeclare", lambda s: s.replay('[["redeclare", ["stream_k", 4], {}]]'))
once("argument.type", "algorithm", lambda s: s.redeclare(3))
once("redeclare.parameters", "rest", lambda s: s.redeclare("stream_k"))
once("redeclare.parameters", "rows", lambda s: s.redeclare("stream_k", rest=4, rows=3))
once("redeclare.parameters", "JSON", lambda s: s.redeclare("stream_k", rest={1, 2}))
once("redeclare.parameters", "JSON", lambda s: s.redeclare("stream_k", rest=float("nan")))
once(
    "redeclare.outputs", "float32[4, 4], the definition is float32[16, 16]", lambda s: s.redeclare("test: other shape")
)
once("redeclare.outputs", "float64[16, 16]", lambda s: s.redeclare("test: other type"))
once("redeclare.arguments", "from A, the definition from A, B", lambda s: s.redeclare("test: one argument"))
once("redeclare.raised", "IndexError", lambda s: s.redeclare("test: raises"))
once("redeclare.stage", "one reduction; none", lambda s: s.redeclare("stream_k", rest=4),
     lambda: tir.Schedule(tir.compute((4,), lambda i: i, name="C")))  # fmt: skip
once("redeclare.stage", "'D' is not among C", lambda s: s.redeclare("stream_k", rest=4, of="D"), relu)
once("redeclare.scheduled", "2 steps have scheduled C already, the first s.split('C.i', ",
     lambda s: s.redeclare("stream_k", rest=4),
     before=lambda s: (s.split("C.i", [None, 4]), s.unroll("C.k")))  # fmt: skip
once("redeclare.scheduled", "1 step has scheduled", lambda s: s.redeclare("stream_k", rest=2, of="head"),
     before=lambda s: (s.redeclare("stream_k", rest=4), s.unroll("head.k")))  # fmt: skip
for rest in (0, 16, -1):
    once("stream-k.rows", f"{rest} of 16 rows of C", lambda s, rest=rest: s.redeclare("stream_k", rest=rest))
once("loop.gone", "replaced by algorithm stream_k by step 1", lambda s: s.unroll("C.k"),
     before=lambda s: s.redeclare("stream_k", rest=4))  # fmt: skip


@pytest.mark.parametrize(("code", "key", "act"), REFUSALS)
def test_refused(code, key, act):
    assert_refused(code, key, act)
