"""Temporary folders go with their process, however it ends; standard streams that are closed stay nobody's."""

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tensorir.runtime import scratch
from tensorir.runtime.scratch import LOCK, Scratch, tidy

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder for temporary files of the test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def left(place):
    return sorted(p.name for p in place.glob("tensorir-*"))


def test_it_goes_when_it_is_closed_or_forgotten(place):
    with Scratch("one") as folder:
        (folder / "x").write_text("x")
        assert left(place) == [folder.name] and folder.name.startswith("tensorir-one-")
    assert not left(place)
    made = Scratch()
    assert left(place)
    del made
    gc.collect()
    assert not left(place)


def killed(how: str) -> None:
    """A process that makes a folder and ends without a chance to remove it."""
    code = f"import os, signal\nfrom tensorir.runtime.scratch import Scratch\nkept = Scratch()\n{how}"
    subprocess.run([sys.executable, "-c", code], check=False)


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"])
def test_what_a_killed_process_leaves_goes_with_the_next(place, how):
    killed(how)
    assert len(left(place)) == 1
    with Scratch() as mine:
        (place / "tensorir-cache-0").mkdir()  # no lock: another kind of folder
        tidy()
        assert left(place) == sorted([mine.name, "tensorir-cache-0"])


def test_folders_of_living_processes_stay(place):
    """Also where the process that made one lives in a container, where its number means another one here."""
    code = "from tensorir.runtime.scratch import Scratch\nkept = Scratch()\nprint(kept.path, flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        folder = Path(other.stdout.readline().strip())
        tidy()
        assert (folder / LOCK).exists()
        other.communicate("\n")
    assert not left(place)


def test_a_forked_child_leaves_its_parents_folder_and_none_of_its_own(place):
    def child():
        made.close()
        assert made.path.exists()
        kept.append(Scratch())

    made, kept = Scratch(), []
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join()
    assert forked.exitcode == 0 and left(place) == [made.path.name]
    made.close()
    if (pid := os.fork()) == 0:
        kept.append(Scratch())
        os._exit(0)
    os.waitpid(pid, 0)
    tidy()
    assert not left(place)


WAITS = """
import sys
from tensorir.cli import main

def wait(*_, **__):
    print("ready", flush=True)
    return int(input())

main.cli.main = wait
main.main([])
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("ignored", [False, True])
def test_the_command_line_ends_by_signals_that_are_not_ignored(name, ignored):
    number = getattr(signal, name)
    before = (lambda: signal.signal(number, signal.SIG_IGN)) if ignored else None  # as nohup does
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", WAITS], **pipes, text=True, preexec_fn=before) as run:  # noqa: PLW1509
        assert run.stdout.readline() == "ready\n"
        run.send_signal(number)
        _, err = run.communicate("7\n" if ignored else None, timeout=20)
    assert (run.returncode, err) == ((7, "") if ignored else (130, "tensorir: interrupted\n"))


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
def test_text_runs_in_another_process_where_streams_are_closed(place, closed):
    """A pipe to the process would get the number of one of its standard streams."""
    code = f"""
import os
for fd in {closed}:
    os.close(fd)
import numpy as np
import tensorir as tir
A = tir.placeholder((8,), name="A")
s = tir.Schedule(tir.compute((8,), lambda i: A[i] + 1, name="C"), target="c")
got = s.with_source(s.source() + "// {closed}").build()(np.zeros(8, "float32"))
with open({str(place / "result")!r}, "w") as file:
    print(got.sum(), file=file)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (place / "result").read_text() == "8.0\n"


def test_a_folder_that_another_process_tidies_before_it_is_locked_is_made_again(place, monkeypatch):
    locked, gone = scratch._locked, []

    def late(folder):
        lock = locked(folder)
        if not gone:
            gone.append(folder)
            shutil.rmtree(folder)
        return lock

    monkeypatch.setattr(scratch, "_locked", late)
    with Scratch() as made:
        assert made.is_dir() and str(made) not in gone and left(place) == [made.name]
