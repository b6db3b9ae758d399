"""An algorithm that computes something else is found without a device, and blamed: its results are the definition's."""

import faults
import pytest

import tensorir as tir
from tensorir.check import definition
from tensorir.check.equivalence import compare
from tensorir.interp.numbers import Field

pytestmark = pytest.mark.usefixtures("scheduled_again")

FORMS = {"places": dict(tile=4), "panels": dict(tile=4, panel=16), "whole": dict(tile=2, whole=[32, 32])}


def blamed(s):
    """The verdict of a schedule some steps later, and the step that is blamed."""
    last = s.stages()[-1]
    inner = last.axes[-1]
    outer, _ = s.split(inner, [None, 2])
    s.unroll(outer)
    return s.check(), s.blame()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", faults.WINOGRAD)
def test_faults_of_winograd_are_seen_and_blamed(fault, form, monkeypatch):
    layout = ("NCHW", "NHWC")[(list(faults.WINOGRAD).index(fault) + list(FORMS).index(form)) % 2]
    w = faults.convolution(layout=layout)
    faults.WINOGRAD[fault](monkeypatch)
    verdict, step = blamed(tir.Schedule(w.outputs).redeclare("winograd", **FORMS[form]))
    assert not verdict and verdict.problems[0].code == "check.definition"
    assert step.primitive == "redeclare" and step.args == ("winograd",)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("form", FORMS)
def test_winograd_without_a_fault_is_right(form, layout):
    verdict, step = blamed(tir.Schedule(faults.convolution(layout=layout).outputs).redeclare("winograd", **FORMS[form]))
    assert verdict and step is None


@pytest.mark.parametrize("fault", faults.STREAM_K)
def test_faults_of_stream_k_are_seen_and_blamed(fault, monkeypatch):
    w = faults.product()
    assert tir.Schedule(w.outputs).redeclare("stream_k", rest=5).check()
    faults.STREAM_K[fault](monkeypatch)
    verdict, step = blamed(tir.Schedule(w.outputs).redeclare("stream_k", rest=5))
    assert not verdict and step.primitive == "redeclare"


@pytest.mark.parametrize(("name", "options", "make"), [
    ("winograd", {"tile": 2}, faults.convolution), ("stream_k", {"rest": 5}, faults.product),
])  # fmt: skip
def test_an_epilogue_that_is_dropped_is_refused(name, options, make, monkeypatch):
    faults.DROPPED[name](monkeypatch)
    with pytest.raises(tir.ScheduleError) as e:
        tir.Schedule(make().outputs).redeclare(name, **options)
    assert e.value.code == "redeclare.arguments" and len(str(e.value).splitlines()) <= 12


@pytest.mark.parametrize("template", ["cpu_winograd", "gpu_winograd", "gpu_winograd_fused"])
def test_templates_refuse_a_wrong_algorithm(template, monkeypatch):
    w, target = faults.convolution(), "opencl" if template == "cpu_winograd" else "cuda -arch=sm_80"
    assert compare(w.schedule(template=template, target=target), Field(), 1) is None
    faults.WINOGRAD["padding of rows"](monkeypatch)
    with pytest.raises(tir.ScheduleError) as e:
        w.schedule(template=template, target=target)
    assert e.value.code == "template.definition" and template in str(e.value)


def test_steps_after_an_algorithm_are_blamed_as_ever(monkeypatch):
    from tensorir.schedule.primitives import loops

    s = tir.Schedule(faults.product().outputs).redeclare("stream_k", rest=5)
    s.reorder("rest.k", "rest.j")
    assert s.check() and s.blame() is None
    real = loops.substitute
    monkeypatch.setattr(loops, "substitute", lambda body, to: real(body, {v: e + 1 for v, e in to.items()}))
    s.split("head.j", [None, 4])
    s.unroll("head.k")
    assert not s.check() and s.blame() == s.trace[2]


def test_what_is_right_at_the_declared_shape_alone_is_found_at_others():
    A = tir.placeholder((12, 8), name="A")
    C = tir.compute((12, 8), lambda i, j: A[i, j] * 2, name="C")

    @tir.algorithm("of pairs of rows")
    def of_pairs(outputs):
        (a,), rows = outputs[0].op.inputs, outputs[0].shape[0]
        return tir.compute(outputs[0].shape, lambda i, j: tir.where(i < rows // 2 * 2, a[i, j] * 2, 0), name="C")

    s = tir.Schedule(C).redeclare("of pairs of rows")
    assert s.check(shapes=[{"i": 12, "j": 8}])
    s.split("C.i", [None, 4])
    verdict = s.check()
    assert not verdict and verdict.problems[0].code == "check.not-equal"
    assert s.blame().primitive == "redeclare"


def test_classes_of_declarations_are_compared_once(monkeypatch):
    asked = []
    monkeypatch.setattr(definition, "differs", lambda *a, **k: asked.append(k) or "")
    monkeypatch.setattr(definition, "_told", {})
    w = faults.convolution(c=16, k=16)
    space = w.templates["cpu_winograd"].space
    rows = [n for n in range(len(space.legal)) if space.config(n)["m"] == 4][:4]
    for n in rows:
        w.schedule(space.config(n), template="cpu_winograd")
    assert len(rows) == 4 and len(asked) == 1 and asked[0]["most"] is None, "Winograd's algorithm is exact in the field"
