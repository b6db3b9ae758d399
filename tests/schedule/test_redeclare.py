"""redeclare: another algorithm as a step of the trace; the definition stays what is compared with."""

import json

import numpy as np
import pytest
from refusal_cases import plain

import tensorir as tir
from tensorir.algorithms import registry
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.ir.structure import identical


@tir.algorithm("test: nothing", error=lambda outputs, parts, **others: parts * 1e-3)
def nothing(outputs, parts=2, whole=None):
    return list(outputs)


@tir.algorithm("test: by thirds", exact=False, error=1e-3)
def by_thirds(outputs, off=1.0):
    """C * 3 * 0.3333333: not that in the field, and nearly that in floats."""
    y = outputs[0]
    return tir.compute(y.shape, lambda *i: y[i] * 3.0 * 0.3333333 * off, name="third")


@pytest.mark.parametrize("given", [dict(error="x"), dict(error=-1.0), dict(exact=1)])
def test_registrations_are_refused(given):
    with pytest.raises(tir.DeclarationError):
        tir.algorithm("test: refused", **given)
    with pytest.raises(tir.DeclarationError) as e:
        tir.algorithm("test: refused", exact=False)
    assert e.value.code == "algorithm.error"
    with pytest.raises(tir.DeclarationError) as e:
        tir.algorithm("stream_k")(nothing)
    assert e.value.code == "algorithm.taken" and registry.find_algorithm("stream_k").function.__name__ == "stream_k"


def test_it_is_a_step_like_any_other():
    s = plain()
    C, before = s.definition, str(s)
    assert s.redeclare("stream_k", rest=np.int64(4)) is s
    assert str(s.trace) == "s.redeclare('stream_k', rest=4)"
    assert json.loads(s.trace.to_json()) == [["redeclare", ["stream_k"], {"rest": 4}]]
    assert s.definition == C and not identical(C, s.outputs) and [x.name for x in s.stages()] == ["head", "rest", "C"]
    other = s.fork()
    s.split("head.i", [None, 4])
    assert str(s.at(0)) == before and s.at(0).outputs == C and s.at(1).outputs == s.outputs
    assert other.undo().outputs == C and str(other) == before and not other.trace
    assert "split" in str(s.trace) and s.check()


def test_algorithms_are_undone_when_a_later_step_is_refused():
    s = plain().redeclare("stream_k", rest=4)
    made = s.outputs
    with pytest.raises(tir.ScheduleError):
        s.redeclare("stream_k", rest=16, of="rest")
    assert s.outputs == made and len(s.trace) == 1


def test_parameters_are_what_json_gives_back():
    s = plain().redeclare("test: nothing", parts=3, whole=(1, (2, None)))
    assert s.trace[0].options == (("parts", 3), ("whole", [1, [2, None]]))
    assert s.outputs == s.definition and s.allowed_error == pytest.approx(3e-3)
    assert str(tir.replay(s.definition, s.trace.to_json()).trace) == str(s.trace)


def test_a_name_that_is_registered_again_stands_for_the_new_function():
    for count in (1, 2):
        tir.algorithm("test: again")(lambda outputs, count=count: outputs)
        assert registry.find_algorithm("test: again").signature.parameters["count"].default == count


def test_what_approximates_is_compared_within_its_bound():
    s = plain().redeclare("test: by thirds")
    s.split("third.i0", [None, 3])
    verdict = s.check()
    assert verdict and "within 0.001 of the largest" in str(verdict)
    assert s.blame() is None
    s = plain().redeclare("test: by thirds", off=1.01)
    s.split("third.i0", [None, 3])
    assert not s.check() and s.blame().primitive == "redeclare"


def test_exported_folders_are_compared_with_the_definition():
    s = plain().redeclare("test: by thirds")
    part = s._part()
    assert part.outputs == s.definition and part.max_error == 1e-3
    arrays = random_arguments(s.definition, 1)
    want = evaluate(s.definition, arrays)[0]
    assert np.abs(evaluate(s.outputs, arrays)[0] - want).max() <= 1e-3 * np.abs(want).max()
