"""Whose turn it is to time on the device, as people are told: at once, and also where the tuning never had one."""

import os

import pytest

import tensorir as tir
from tensorir.runtime.turns import DeviceTurns


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_tuning_that_never_has_the_turn_says_whose_it_was(place, tmp_path):
    pytest.importorskip("pyopencl")
    work = tir.ops.matmul(8, 8, 8)
    with (
        DeviceTurns("cpu", "a long one").turn(lambda: None),
        pytest.warns(match="a long one on this device too: waiting for it"),
    ):
        result = work.tune("opencl", trials=1, budget="4s", log=str(tmp_path / "log"))
    assert result.status == "not_tried"
    (other,) = result.machine.waits
    assert other["pid"] == os.getppid() and other["workload"] == "a long one" and other["seconds"] > 0
    assert f"waited for process {other['pid']} (a long one" in result.machine.words()
