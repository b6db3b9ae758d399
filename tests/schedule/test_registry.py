"""What primitives register is what schedules, stages, traces, the reference and the catalogue of errors have."""

import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.errors.catalogue import phases
from tensorir.schedule.registry import MARKS, PRIMITIVES, SECTIONS
from tensorir.schedule.schedule import BaseSchedule, StageRef

DOCS = Path(__file__).parents[2] / "docs"
OTHERS = {"at", "because", "diff", "fork", "loops", "replay", "stages", "tree", "undo"}
"""Methods that look at a schedule, or choose a version of it."""


def methods(kind):
    return {n for n, _ in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")}


def taken(name):
    """The parameters of a primitive by name."""
    return [p for p in PRIMITIVES[name].signature.parameters if p != "self"]


def test_methods_of_schedules_are_the_registered_primitives():
    assert methods(BaseSchedule) - OTHERS == PRIMITIVES.keys()


def test_stages_have_the_primitives_on_axes_and_stages():
    """Those on tensors alone are the schedule's: a stage may read and write several."""
    named = {n: [x for x, p in PRIMITIVES[n].signature.parameters.items() if "Name" in str(p.annotation)]
             for n in PRIMITIVES}  # fmt: skip
    wanted = {n for n in PRIMITIVES if set(named[n]) - {"tensor"}}
    assert methods(StageRef) - {"axis"} == wanted
    for name in wanted:
        own = [p for p in inspect.signature(getattr(StageRef, name)).parameters if p != "self"]
        assert own == [p for p in taken(name) if p != "stage"], name


def test_the_reference_has_every_primitive_in_its_section(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    page = importlib.import_module("generate").primitives()
    sys.modules.pop("generate")
    titles = re.split(r"^## ", page, flags=re.M)[1:]
    found = {part.split("\n")[0]: set(re.findall(r"^\| `(\w+)\(", part, re.M)) for part in titles}
    assert {s: names for s, names in found.items() if names} == {
        s: {p.name for p in PRIMITIVES.values() if p.section == s} for s in SECTIONS
    }
    for p in PRIMITIVES.values():
        assert all(f"[{code}](" in page for code in p.refusals())


def test_every_primitive_refuses_with_explained_codes_of_its_own():
    assert [p.name for p in PRIMITIVES.values() if not p.refusals()] == []
    assert {p.word for p in PRIMITIVES.values()} <= set(phases())
    words = [p.word for p in PRIMITIVES.values()]
    assert len(set(words)) == len(words)


def test_marks_are_of_primitives():
    assert MARKS.keys() <= PRIMITIVES.keys()
    assert all(PRIMITIVES[n].refusals() for n in MARKS)


def test_steps_are_of_primitives_and_compositions_are_none():
    A = tir.placeholder((8, 8), name="A")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: A[i, j], name="C"))
    s["C"].tile("i", "j", factors=[2, 4])
    assert [x.primitive for x in s.trace] == ["split", "split", "reorder"]
    with pytest.raises(tir.ScheduleError) as e:
        s.replay('[["tile", ["C.i"], {"factors": [2]}]]')
    assert e.value.code == "trace.unknown-primitive"


def test_a_step_says_no_more_than_was_asked():
    """Options that have their defaults are left out, whatever way they were given."""
    A = tir.placeholder((8, 8), name="A")
    s = tir.Schedule(tir.compute((8, 8), lambda i, j: A[i, j], name="C"))
    s.split("C.i", [None, 4], "guard", names=None)
    s["C"].split("j", [None, 4], tail="exact")
    s.stage_in(A, "C.j.0", "register", cooperative=True, pad=0)
    assert str(s.trace).split("\n") == [
        "s.split('C.i', [None, 4])", "s.split('C.j', [None, 4], tail='exact')", "s.stage_in('A', 'C.j.0', 'register')"
    ]  # fmt: skip
