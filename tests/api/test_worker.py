"""What a template may do to the process that measures, without those after it paying for it."""

import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from tensorir.api.candidate import raised
from tensorir.api.worker_state import LeftRunning, undisturbed


def test_everything_is_put_back(tmp_path, request):
    def state():
        mask = os.umask(0o077)
        os.umask(mask)
        timers = [signal.getitimer(t) for t in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]
        limits = [resource.getrlimit(n) for n in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)]
        python = [sys.getrecursionlimit(), np.geterr(), sys.stdout, sys.gettrace(), sys.getprofile()]
        return [mask, timers, limits, os.getcwd(), dict(os.environ), *python]

    sys.setprofile(lambda *_: None)  # of one who measures us
    request.addfinalizer(lambda: sys.setprofile(None))
    before = state()
    with pytest.raises(KeyboardInterrupt), undisturbed():
        sys.setprofile(None)
        sys.settrace(lambda *_: None)
        (gone := tmp_path / "gone").mkdir()
        os.chdir(gone)
        gone.rmdir()
        os.environ["LEFT"] = "1"
        del os.environ["PATH"]
        sys.setrecursionlimit(700)
        np.seterr(all="raise")
        os.umask(0o777)
        signal.setitimer(signal.ITIMER_PROF, 1000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        sys.stdout = None
        raise KeyboardInterrupt
    assert state() == before


def test_what_is_left_running_is_named():
    over = threading.Event()
    with pytest.raises(LeftRunning, match="thread slow"), undisturbed():
        threading.Thread(target=over.wait, name="slow").start()
    over.set()
    with undisturbed():  # what has ended is not there any more
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the system does not say")
def test_processes_too():
    with pytest.raises(LeftRunning, match=r"process \d+ still running"), undisturbed():
        left = subprocess.Popen(["sleep", "1000"])
    left.kill()
    left.wait()
    with undisturbed():  # nobody has asked for it, but it has ended
        over = subprocess.Popen(["true"])
        os.waitid(os.P_PID, over.pid, os.WEXITED | os.WNOWAIT)
    over.wait()


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="the system does not say")
def test_idle_helpers_of_libraries_are_not_left_running():
    """multiprocessing starts a process that tracks resources, or one that forks, and leaves it; tqdm a thread."""
    code = """
import multiprocessing, sys, time
from multiprocessing import shared_memory
from tensorir.api.worker_state import undisturbed
with undisturbed():
    block = shared_memory.SharedMemory(create=True, size=64)
    block.close()
    block.unlink()
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=print, args=("ran",))
    process.start()
    process.join()
    time.sleep(0.3)  # until they sleep
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "ran" in done.stdout, done.stderr
    with pytest.raises(LeftRunning), undisturbed():
        left = subprocess.Popen(["sh", "-c", "while :; do :; done", "multiprocessing.resource_tracker"])
    left.kill()
    left.wait()


def test_a_monitor_that_sleeps_is_no_thread_left_running():
    over = threading.Event()
    monitor = type("Monitor", (threading.Thread,), {"__module__": "tqdm._monitor"})
    with undisturbed():
        monitor(target=over.wait, daemon=True).start()
    with pytest.raises(LeftRunning), undisturbed():
        monitor(target=over.wait).start()
    over.set()


def test_a_copy_of_the_process_ends():
    """Else both would answer the supervisor."""
    with undisturbed():
        pid = os.fork()
        if pid:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_exceptions_without_a_text_have_words():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert raised(Mute()).told["message"] == "Mute, whose text is not to be had (ValueError)"
