"""The parent of the GPU benchmark's measuring process: what it does when that one ends or hangs."""

import json
import sys
import time
from pathlib import Path

import pytest
from versus_gpu import supervise
from versus_gpu.results import Progress, Results

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
CHILD = """
import sys, time, os
sys.path.insert(0, {folder!r})
from pathlib import Path
from versus_gpu.results import Progress, Results
results = Results.load(Path({out!r}))
progress = Progress(results.path)
if not results.document["crashes"]:
    progress.says("a", {{"bm": 64}}, "comparing")
    {fate}
results.add({{"name": "a"}})
sys.exit(0)
"""


@pytest.mark.parametrize(("fate", "why"), [("os.abort()", "status -6"), ("time.sleep(60)", "nothing moved")])
def test_a_child_that_ends_or_hangs_is_followed_by_another(tmp_path, fate, why):
    results = Results(tmp_path / "r.json")
    results.save()
    text = CHILD.format(folder=str(FOLDER), out=str(results.path), fate=fate)
    assert supervise.supervise([sys.executable, "-c", text], results, time.time() + 60, patience_s=1.5) == 0
    found = json.loads(results.path.read_text())
    assert [r["name"] for r in found["rows"]] == ["a"]
    assert found["crashes"][0]["config"] == {"bm": 64}
    assert why in found["crashes"][0]["reason"]
    assert Progress(results.path).read() is None


def test_a_kernel_that_hangs_is_not_given_the_time_of_a_compilation(tmp_path, monkeypatch):
    monkeypatch.setitem(supervise.PATIENCE, "comparing", 0.6)
    results = Results(tmp_path / "r.json")
    results.save()
    text = CHILD.format(folder=str(FOLDER), out=str(results.path), fate="time.sleep(60)")
    started = time.time()
    assert supervise.supervise([sys.executable, "-c", text], results, time.time() + 60, patience_s=50.0) == 0
    assert time.time() - started < 40
    assert "nothing moved for 0.6 s, comparing" in json.loads(results.path.read_text())["crashes"][0]["reason"]


def test_a_child_that_never_begins_is_not_started_for_ever(tmp_path):
    results = Results(tmp_path / "r.json")
    assert supervise.supervise([sys.executable, "-c", "import os; os.abort()"], results, time.time() + 60) == 1


def test_a_row_that_is_not_done_in_time_is_ended(tmp_path, monkeypatch, capsys):
    """It is no crash: the next run makes it."""
    monkeypatch.setattr(supervise, "LATE_S", 0.3)
    results = Results(tmp_path / "r.json")
    results.save()
    text = CHILD.format(folder=str(FOLDER), out=str(results.path), fate="time.sleep(60)")
    assert supervise.supervise([sys.executable, "-c", text], results, time.time()) == 1
    assert json.loads(results.path.read_text())["crashes"] == []
    assert "out of time" in capsys.readouterr().out


def test_a_library_that_ends_the_process_is_named(tmp_path):
    results = Results(tmp_path / "r.json")
    results.save()
    text = CHILD.format(folder=str(FOLDER), out=str(results.path), fate="os.abort()")
    text = text.replace('{"bm": 64}, "comparing"', 'None, "library", "cublas"')
    assert supervise.supervise([sys.executable, "-c", text], results, time.time() + 60) == 0
    (crash,) = json.loads(results.path.read_text())["crashes"]
    assert (crash["peer"], crash["config"]) == ("cublas", None)
