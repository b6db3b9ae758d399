"""Schedules from the declaration alone: what every one of them keeps, whichever rules made it."""

import numpy as np
import pytest
from covering import spread_over
from drawing import drawn

import tensorir as tir
from tensorir.api.origin import from_file
from tensorir.automatic import fusions, plan
from tensorir.automatic.facts import Graph
from tensorir.automatic.part import Part
from tensorir.automatic.plan import length_of
from tensorir.cli import main
from tensorir.lower.pipeline import lower
from tensorir.runtime import host
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

TARGETS = ("opencl", "c", "opencl -kind=gpu", "cuda -arch=sm_80", "cuda -arch=sm_90a")


def chain(m, n, k):
    """A product, the largest of each row, and a tail."""
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    c, j = tir.reduce_axis(k, name="c"), tir.reduce_axis(n, name="j")
    P = tir.compute((m, n), lambda i, j: tir.sum(A[i, c] * B[c, j], axis=c), name="P")
    T = tir.compute((m,), lambda i: tir.max(P[i, j], axis=j), name="T")
    return tir.compute((m, n), lambda i, j: tir.maximum(P[i, j] - T[i], -5.0) * 2.0, name="Y")


def compared():
    """Operands of eight bits that are compared as they are, though what is taken of them has 32."""
    A, B = tir.placeholder((2, 5), "uint8", name="A"), tir.placeholder((5, 32), "uint8", name="B")
    k = tir.reduce_axis(5, name="k")
    return tir.compute((2, 32), lambda i, j: tir.max(tir.where(A[i, k] <= B[k, j], 1, 0), axis=k), name="C")


def cells():
    A = tir.placeholder((32, 16), name="A")
    return tir.compute((32, 16), lambda i, j: A[i, j] + 1, name="C")


@pytest.mark.parametrize(("make", "target"), [(compared, "c"), (cells, "opencl -kind=gpu"),
                                              (cells, "opencl -kind=gpu -max_threads=100")])  # fmt: skip
def test_what_is_called_legal_can_be_scheduled(make, target):
    C = make()
    for template in tir.auto(C, target).values():
        for config in spread_over(template.space_for(tir.Target.parse(target)), 9):
            s = tir.Schedule(C, target)
            template.function(s, config)
            assert s.source()


@pytest.mark.parametrize("target", TARGETS)
def test_a_chain_is_right_on_every_target(target):
    s = tir.auto_schedule(chain(7, 13, 5), target)
    assert s.check()
    if "cuda" in target:
        assert s.check("emulate")


def test_what_runs_is_the_declaration():
    a, b = (
        np.random.default_rng(n).integers(-3, 4, shape).astype("float32") for n, shape in enumerate([(9, 6), (6, 11)])
    )
    p = a @ b
    assert np.array_equal(
        tir.auto_schedule(chain(9, 11, 6)).build()(a, b), np.maximum(p - p.max(1, keepdims=True), -5) * 2
    )


def test_every_step_has_its_rule_and_reason_and_the_text_replays():
    y = chain(8, 16, 4)
    s = tir.auto_schedule(y)
    assert all(": " in step.why for step in s.trace)
    replayed = tir.Schedule(y, s.target)
    exec(str(s.trace), {"s": replayed})
    assert replayed.tree() == s.tree()
    lines = str(s.trace).splitlines()
    whys = [step.why for step in s.trace]
    assert [line[2:] for line in lines if line.startswith("# ")] == [w for w, b in zip(whys, ["", *whys]) if w != b]
    text = s.source()
    assert text.count("\n".join(f"// {line}" for line in lines)) == 1 == text.count(f"// {lines[1]}\n")
    for trace in (s.trace, s.trace.to_json()):
        again = tir.replay(y, trace, s.target)
        assert again.source() == text and [step.why for step in again.trace] == whys
    page = s.trace._repr_html_()
    assert page.count(lines[0][2:20]) == 1 and page.count(__file__.rpartition("/")[2]) == 1


def test_what_is_cheap_is_inlined_and_an_output_is_not():
    A = tir.placeholder((8, 8), name="A")
    twice = tir.compute((8, 8), lambda i, j: A[i, j] * 2, name="twice")
    more = tir.compute((8, 8), lambda i, j: twice[i, j] + 1, name="more")
    assert [x.name for x in tir.auto_schedule(more).stages()] == ["more"]
    assert [x.name for x in tir.auto_schedule((more, twice)).stages()] == ["twice", "more"]


def test_what_is_dear_and_read_twice_is_kept():
    A = tir.placeholder((8,), name="A")
    e = tir.compute((8,), lambda i: tir.exp(A[i]), name="e")
    y = tir.compute((8, 8), lambda i, j: e[i] + e[j], name="y")
    assert next(x.name for x in tir.auto_schedule(y).stages()) == "e"


def test_templates_are_named_by_kind_and_a_workload_has_them_all():
    y = chain(8, 16, 4)
    work = tir.Workload("chain", y)
    for target in ("opencl", "cuda -arch=sm_80"):
        kind = "gpu" if "cuda" in target else "cpu"
        made = tir.auto(y, target)
        assert made and all(name.startswith(f"{kind}_") and t.kinds == (kind,) for name, t in made.items())
        assert set(made) <= set(work.templates)


@pytest.mark.parametrize("target", TARGETS)
def test_a_schedule_is_the_default_of_the_first_template(target):
    y = chain(7, 13, 5)
    s = tir.auto_schedule(y, target)
    template, other = next(iter(tir.auto(y, s.target).values())), tir.Schedule(y, s.target)
    template.function(other, template.space_for(s.target).default)
    assert other.tree() == s.tree() and str(other.trace) == str(s.trace)


def test_a_template_that_no_rule_makes_for_a_target_is_refused():
    y = chain(8, 16, 4)
    with pytest.raises(tir.ScheduleError) as caught:
        next(iter(tir.auto(y).values())).function(tir.Schedule(y, "cuda"), {})
    assert caught.value.code == "template.target"


def test_the_start_of_a_part_is_scheduled_once(monkeypatch):
    """Counts, by which starts are compared, take the kernels that were made to see whether a start works."""
    made, steps = [], Part.steps
    monkeypatch.setattr(Part, "steps", lambda self, s, c: (made.append(self), steps(self, s, c)))
    assert plan.default_plan([chain(64, 512, 64)], Target.parse("c -units=2")).parts
    assert len(made) == len({*made}) > 1


def test_facts():
    graph = Graph(BaseSchedule(chain(3, 4, 5)).program)
    kinds = {name: n.kind for name, n in graph.nests.items()}
    assert kinds == {"P": "reduce", "T": "reduce", "Y": "map"}
    P, T, Y = graph.nests.values()
    assert P.reuses and not T.reuses
    assert {n.name for n in graph.readers(P)} == {"T", "Y"}
    assert (P.cells, P.size(P.reduced), Y.work) == (12, 5, 12 * Y.operations)


def test_a_function_of_a_file_may_return_tensors(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import tensorir as tir\n\n\ndef one():\n    return tir.placeholder((4,), name='A') + 1\n\n\n"
        "def two():\n    A = tir.placeholder((4,), name='A')\n    return A + 1, A * 2\n"
    )
    for name, outputs in (("one", 1), ("two", 2)):
        work = from_file(str(tmp_path / "mine.py"), name, {})
        assert (work.name, len(work.outputs), next(iter(work.templates))[:4]) == (name, outputs, "cpu_")


class _Unfit(Part):
    """A part whose start is refused."""

    rule = "unfit"

    def schedule(self, s, config):
        s.split(s.loops(self.anchor.name)[0], [None, 7], tail="exact")


def _doubled(n=16):
    X = tir.placeholder((n,), name="X")
    return tir.compute((n,), lambda i: X[i] * 2.0, name="Y")


def test_what_was_not_taken_is_told_with_its_reason(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(plan, "RULES", (lambda g, a, t: iter((_Unfit(g, a, t),)), *plan.RULES))
    (refusal,) = plan.default_plan((_doubled(),), Target.parse("opencl")).refused
    assert refusal.part.name == "unfit" and refusal.problem.code.startswith("split.")
    assert str(refusal).startswith(f"cpu_unfit was not taken for Y: [{refusal.problem.code}] ")
    mine = tmp_path / "doubled.py"
    mine.write_text(
        "import tensorir as tir\n\n\ndef doubled():\n    X = tir.placeholder((16,), name='X')\n"
        "    return tir.compute((16,), lambda i: X[i] * 2.0, name='Y')\n"
    )
    for extra in ((), ("--json",)):
        main.run(["show", f"{mine}:doubled", "--target", "opencl", "--why-schedule", *extra])
        said = capsys.readouterr().out
        assert f"cpu_unfit was not taken for Y: [{refusal.problem.code}]" in said
    monkeypatch.undo()
    assert not plan.default_plan((_doubled(),), Target.parse("opencl")).refused


def test_where_no_rule_schedules_a_stage_the_error_says_why():
    huge = (1 << 40, 1 << 30)
    X = tir.placeholder(huge, name="X")
    for target in ("opencl", "cuda -arch=sm_80"):
        for make in (tir.auto, tir.auto_schedule):
            with pytest.raises(tir.ScheduleError) as caught:
                make(tir.compute(huge, lambda i, j: X[i, j] + 1.0, name="Y"), target)
            assert caught.value.code == "automatic.no-rule" and "_stream was not taken for Y: [" in str(caught.value)


def test_a_stage_that_no_rule_takes_alone_is_refused_by_a_code(monkeypatch):
    s = tir.Schedule(_doubled(), "opencl")
    graph = fusions.Graph(s.program)
    monkeypatch.setattr(fusions, "RULES", ())
    with pytest.raises(tir.ScheduleError) as caught:
        fusions.alone(s, graph, graph.nests["Y"])
    assert caught.value.code == "automatic.no-rule"


def test_lanes_of_any_core_are_a_power_of_two():
    x, on = tir.placeholder((12, 129), name="x"), Target.parse("opencl -vector_bytes=48")
    for y in (tir.nn.softmax(x, 1), tir.nn.cumsum(x, 1), tir.nn.relu(x)):
        values = next(iter(tir.auto(y, on).values())).space_for(on)
        lanes = dict(zip(values.names, values.values, strict=True))["lanes"]
        assert all(n & (n - 1) == 0 for n in lanes)


@pytest.mark.parametrize("wide", [False, True])
def test_templates_for_plain_opencl_are_those_of_this_processor(monkeypatch, wide):
    """The width of vectors decides which rule takes a stage; each template has a space here, the first one as well."""
    monkeypatch.setattr(host, "has_avx512", lambda: wide)
    outputs = drawn(10779).outputs
    assert all(t.space.default for t in tir.auto(outputs).values())
    narrow = "opencl -registers=16 -vector_bytes=32"
    assert tir.Workload("drawn", outputs).template_for(narrow) == next(iter(tir.auto(outputs, narrow)))


def test_a_kernel_is_as_long_as_its_loops_are_unrolled():
    x = tir.placeholder((64,), name="x")
    length = {}
    for times in (4, 8, 16):
        s = tir.Schedule(tir.compute((64,), lambda i: x[i] * 2 + 1, name="y"), "c")
        s.unroll(s.split("y.i", [None, times])[1])
        length[times] = length_of([k.body for k in lower(s.program, s.target).kernels])
    assert length[16] - length[8] == 2 * (length[8] - length[4]) > 0
