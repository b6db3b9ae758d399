"""The tuning log that is committed: what a fresh clone shows of it, and that git ignores what users add."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tensorir as tir

ROOT = Path(__file__).parents[1]
LOG = ROOT / "tuning_logs"
NAME = "example.jsonl"
AGAIN = "python tools/example_log.py makes the committed log anew"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with the committed files of the log, and no others."""
    for path in LOG.glob(f"*/{NAME}"):
        folder = tmp_path / "tuning_logs" / path.parent.name
        folder.mkdir(parents=True)
        (folder / NAME).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(*words):
    wide = {**os.environ, "COLUMNS": "300"}
    command = [sys.executable, "-m", "tensorir", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=wide)


def test_it_is_small():
    assert sum(p.stat().st_size for p in LOG.glob(f"*/{NAME}")) < 200_000


def test_it_is_shown(clone):
    lines = shell("log", "ls").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["workload", "conv2d", "matmul"]
    assert len(shell("log", "best").stdout.splitlines()) == 2
    assert shell("report", "--no-peaks", "-o", "report.html").returncode == 0
    assert "conv2d" in (clone / "report.html").read_text(encoding="utf-8")


def test_its_sources_are_made_again(clone):
    done = shell("log", "verify")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{AGAIN}"
    assert "stale        none" in done.stdout and "other_versions 0" in done.stdout, f"{done.stdout}\n{AGAIN}"


def test_it_is_loaded_or_the_difference_is_named(clone):
    """The kernel on a device like that of the log; on others the error tells what differs."""
    work = tir.ops.matmul(m=512, n=512, k=512)
    try:
        kernel = work.load()
    except tir.NotTuned as error:
        assert error.code == "load.not-tuned" and "512" in str(error)
    else:
        a, b = work.random_inputs(seed=1)
        assert abs(kernel(a, b) - a @ b).max() < 1e-3


@pytest.mark.parametrize("path", ["conv2d-918eb790/20260101T000000-host-1.jsonl", "records.index", "new/records.index"])
def test_git_ignores_what_is_added(path):
    done = subprocess.run(["git", "check-ignore", "-q", f"tuning_logs/{path}"], cwd=ROOT, check=False)
    if done.returncode == 128:
        pytest.skip("this is no clone of the repository")
    assert done.returncode == 0


def test_git_keeps_the_committed_files():
    done = subprocess.run(
        ["git", "check-ignore", f"tuning_logs/x/{NAME}", "tuning_logs/README.md"], cwd=ROOT, check=False
    )
    if done.returncode == 128:
        pytest.skip("this is no clone of the repository")
    assert done.returncode == 1
