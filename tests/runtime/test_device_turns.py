"""Turns on a device: one process at a time, in order, and an owner that dies leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tensorir.runtime import turns
from tensorir.runtime.turns import DeviceTurns

pytest.importorskip("fcntl")
OWNER = """
import sys, time
from tensorir.runtime.turns import DeviceTurns
mine = DeviceTurns("cpu", "matmul of another")
with mine.turn(lambda: print("waits", flush=True)):
    print("owns", flush=True)
    sys.stdin.readline()
if len(sys.argv) > 1:
    with mine.turn(lambda: print("waits again", flush=True)):
        print("owns again", flush=True)
print(mine.waited(), flush=True)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "tensorir"


@pytest.fixture
def other():
    started = []

    def start(*arguments):
        command = [sys.executable, "-c", OWNER, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def release(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_who_comes_second_waits_and_knows_for_whom(other, place):
    first = other()
    assert first.stdout.readline() == "owns\n"
    mine, told = DeviceTurns("cpu", "mine"), []

    def waiting():
        told.append(True)
        threading.Timer(0.05, release, [first]).start()

    with mine.turn(waiting):
        assert json.loads((place / "cpu.turn").read_text())["workload"] == "mine"
    (waited,) = mine.waited()
    assert told == [True] and waited["workload"] == "matmul of another" and waited["seconds"] > 0
    assert waited["pid"] == os.getpid(), "that of the tuning, not of its worker"
    assert mine.waited() == []


def test_one_that_asks_again_at_once_is_not_first(other):
    """It waits behind us, although it never sleeps between two turns."""
    process = other("again")
    assert process.stdout.readline() == "owns\n"
    order = []
    with DeviceTurns("cpu", "mine").turn(lambda: release(process)):
        order.append("mine")
        assert process.stdout.readline() == "waits again\n"
    assert process.stdout.readline() == "owns again\n" and order == ["mine"]
    assert "mine" in process.stdout.readline()


def test_an_owner_that_is_killed_frees_its_turn(other):
    process = other()
    assert process.stdout.readline() == "owns\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    mine = DeviceTurns("cpu", "mine")
    with mine.turn(lambda: None):
        pass
    assert mine.waited() == []


def test_one_that_is_told_to_goes_on(other):
    process = other()
    assert process.stdout.readline() == "owns\n"
    mine, told = DeviceTurns("cpu", "mine", wait=False), []
    with mine.turn(lambda: told.append(True)):
        pass
    (met,) = mine.waited()
    assert told == [] and met["workload"] == "matmul of another" and met["seconds"] == 0.0
    release(process)
    process.wait()
    with mine.turn(lambda: None):
        assert tried() == "busy"


def tried():
    command = [sys.executable, "-c", TRY]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


TRY = """
from tensorir.runtime.turns import DeviceTurns
mine = DeviceTurns("cpu", "x", wait=False)
with mine.turn(lambda: None):
    pass
print("busy" if mine.waited() else "free")
"""


def test_other_devices_have_turns_of_their_own_and_a_process_does_not_wait_for_itself(place):
    a, b, gpu = DeviceTurns("cpu", "a"), DeviceTurns("cpu", "b"), DeviceTurns("gpu 0:1", "")
    with a.turn(pytest.fail), b.turn(pytest.fail), gpu.turn(pytest.fail):
        assert {p.name for p in place.iterdir()} == {"cpu.turn", "cpu.queue", "gpu_0_1.turn", "gpu_0_1.queue"}
        assert tried() == "busy"
    assert tried() == "free"
    with pytest.raises(ZeroDivisionError), DeviceTurns("cpu", "a").turn(pytest.fail):
        raise ZeroDivisionError
    assert tried() == "free"


def test_where_no_lock_can_be_nobody_waits(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "file"))
    with DeviceTurns("cpu", "a").turn(pytest.fail):
        assert not turns.directory().exists()


def test_nonsense_in_the_file_is_nobody(place, other):
    process = other()
    assert process.stdout.readline() == "owns\n"
    (place / "cpu.turn").write_text('{"pid": "x"')
    mine = DeviceTurns("cpu", "mine")
    with mine.turn(lambda: release(process)):
        pass
    assert mine.waited()[0]["pid"] == 0
