"""docs/from-te.md: each line of its table runs, and each name of te's that is not there is answered."""

import importlib
import re
from pathlib import Path

import pytest

import tensorir as tir
from tensorir.errors.habits import remedies

HABITS = remedies()

PAGE = (Path(__file__).parents[1] / "docs/from-te.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if line.startswith("| `")]
ROWS = [tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in LINES]
TE = {
    "tir": "te build lower create_schedule extern comm_reducer thread_axis if_then_else Select const autotvm",
    "schedule": "cache_read cache_write compute_root double_buffer storage_align pragma set_store_predicate "
    "env_threads create_group",
    "executable": "time_evaluator",
    "workload": "apply_history_best",
}
OURS = "split tile fuse reorder bind compute_at compute_inline set_scope vectorize unroll parallel tensorize rfactor"


def schedule(target):
    A, B = tir.placeholder((64, 64), name="A"), tir.placeholder((64, 64), name="B")
    k = tir.reduce_axis(64, name="k")
    P = tir.compute((64, 64), lambda i, k: A[i, k] * 2, name="P")
    C = tir.compute((64, 64), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name="C")
    D = tir.compute((64, 64), lambda i, j: A[i, j] + 1, name="D")
    r = tir.reduce_axis(64, name="r")
    return {"A": A, "B": B, "C": C, "D": D, "r": r, "tir": tir, "s": tir.Schedule(C, target=target),
            "c": A[0, 0] > 0, "a": A[0, 0], "b": A[0, 1]}  # fmt: skip


@pytest.mark.parametrize("code", [c for row in ROWS if len(row) > 1 for c in re.findall(r"^`(.*?)`", row[1])])
def test_what_stands_in_the_table_runs(code):
    if code.startswith("tensorir "):
        return  # a command
    names = schedule("cuda" if "vthread" in code or "pipeline" in code else "opencl")
    exec(code, names)
    if code.startswith("s.") and "(" in code:
        assert names["s"].check()


def test_every_primitive_is_in_the_table_and_answered():
    assert len(ROWS) > 40
    said = " ".join(row[0] for row in ROWS)
    for kind, words in TE.items():
        for name in words.split():
            assert name in HABITS[kind] or name in HABITS.get("folder", {}), name
            assert name in said or name == "te", name
    for name in OURS.split():
        assert hasattr(tir.Schedule, name) and name in said, name
    assert hasattr(tir, "scan") and "`te.scan`" in said


def test_the_page_of_habits_has_every_answer_once_for_its_places(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "docs"))
    page = importlib.import_module("generate").habits()
    sections = page.split("\n## ")[1:]
    titles = [section.splitlines()[0] for section in sections]
    assert len(set(titles)) == len(titles) and "`argmax()`" in page
    rows = {line for line in page.splitlines() if line.startswith("| `")}
    for answers in HABITS.values():
        for name, remedy in answers.items():
            assert "| `{}` | `{}` |".format(name, remedy.replace("|", "\\|")) in rows
