"""The supervisor: whatever a candidate does in the worker, the parent gets a status and stays alive."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tensorir.tune import child, process
from tensorir.tune.process import Worker, WorkerError, any_runs, scrubbed_environment

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATH = [str(HERE), str(ROOT), *sys.path]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="process groups, /proc and parent-death signals are Linux's"
)


@pytest.fixture(autouse=True)
def _own_kernels(tmp_path, monkeypatch):
    """What an abort says must not depend on this machine's cache of kernels."""
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "kernels"))


@pytest.fixture
def worker():
    with Worker("worker_zoo", ("one", "two words"), path=PATH) as made:
        yield made


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pid: int, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def group(pid: int) -> list[int]:
    """Every live process of the group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def test_answers_in_one_process(worker, monkeypatch):
    value = {"text": "é\n", "list": [1, 2.5, None, True]}
    first = worker.request({"do": "echo", "value": value}, 30)
    assert first["echo"] == value and first["argv"] == ["one", "two words"]
    pid = worker.pid
    assert worker.request({"do": "echo"}, 30)["status"] == "ok" and worker.pid == pid and worker.starts == 1


def test_environment_is_scrubbed(monkeypatch):
    for name in ("LD_PRELOAD_X", "NVCC_PREPEND_FLAGS", "AWS_SECRET_ACCESS_KEY", "PYTHONSTARTUP", "PYTHONPATH"):
        monkeypatch.setenv(name, "evil")
    monkeypatch.setenv("POCL_DEBUG", "0")
    with Worker("worker_zoo", path=PATH, environment={"MINE": "1"}) as worker:
        env = worker.request({"do": "echo"}, 30)["env"]
    assert env["POCL_DEBUG"] == "0" and env["MINE"] == "1" and "PATH" in env
    assert (
        not {"LD_PRELOAD_X", "NVCC_PREPEND_FLAGS", "AWS_SECRET_ACCESS_KEY", "PYTHONSTARTUP", "PYTHONPATH"} & env.keys()
    )


@pytest.mark.parametrize("said", [None, "20"])
def test_threads_of_numpy_soon_sleep_unless_the_user_says(said, monkeypatch):
    """They would spin beside what is timed."""
    monkeypatch.delenv("OPENBLAS_THREAD_TIMEOUT", raising=False)
    if said:
        monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", said)
    assert int(scrubbed_environment()["OPENBLAS_THREAD_TIMEOUT"]) == int(said or 16)
    assert scrubbed_environment({"OPENBLAS_THREAD_TIMEOUT": "5"})["OPENBLAS_THREAD_TIMEOUT"] == "5"


def test_modules_of_the_callers_path_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "with: colon é"
    folder.mkdir()
    (folder / "mine.py").write_text("from tensorir.tune.process import serve\nserve(lambda m, p: {'here': __file__})\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(ROOT))
    with Worker("mine") as worker:
        assert worker.request({}, 30)["here"] == str(folder / "mine.py")


@pytest.mark.parametrize(("do", "ended"), [("abort", "SIGABRT"), ("segv", "SIGSEGV")])
def test_crash_names_the_signal_and_the_next_request_works(worker, do, ended):
    reply = worker.request({"do": do, "phase": "run"}, 30)
    assert reply["status"] == "crashed" and reply["detail"]["signal"] == ended and reply["detail"]["phase"] == "run"
    assert "worker_zoo.py" in reply["detail"]["output"], "the Python line behind a native crash"
    assert worker.request({"do": "echo", "value": 5}, 30)["echo"] == 5 and worker.starts == 2


def test_last_words_reach_the_detail(worker):
    assert "last words" in worker.request({"do": "abort"}, 30)["detail"]["output"]


def test_a_full_disk_is_not_the_candidates_fault(worker):
    """LLVM aborts when it cannot write a file; the trial is measured again when there is room."""
    reply = worker.request(
        {"do": "abort", "words": "LLVM ERROR: IO failure on output stream: No space left on device"}, 30
    )
    assert reply["status"] == "internal_error" and reply["detail"]["message"].endswith("No space left on device")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("content", [b"", b"\x7fELF and no more", b"nonsense" * 100])
def test_a_damaged_cache_is_not_the_candidates_fault(worker, tmp_path, monkeypatch, named, content):
    """PoCL aborts where it cannot load its own machine code: what to delete is said, and the next one is measured."""
    kernel = tmp_path / "k cache/AB/CD/a_kernel/1-1-1/a_kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_bytes(content)
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / ("elsewhere" if named else "k cache")))
    words = f"dlopen(\"{kernel}\") failed with 'invalid ELF header'." if named else "Aborted"
    reply = worker.request({"do": "abort", "words": words}, 30)
    assert reply["status"] == "internal_error"
    assert reply["detail"]["message"] == f"PoCL's cache is damaged: rm -r '{tmp_path}/k cache'"
    assert worker.request({"do": "echo", "value": 5}, 30)["echo"] == 5


def test_exit_code(worker):
    reply = worker.request({"do": "exit"}, 30)
    assert reply["status"] == "crashed" and reply["detail"]["exit"] == 3


@pytest.mark.parametrize(
    ("phase", "status"),
    [("compile", "compile_timeout"), ("run", "run_timeout"), ("schedule", "run_timeout"), ("check", "run_timeout")],
)
def test_hang_is_reported_by_phase(worker, phase, status):
    worker.request({"do": "echo"}, 30)
    pid = worker.pid
    reply = worker.request({"do": "stubborn" if phase == "run" else "sleep", "phase": phase}, 0.3)
    assert reply["status"] == status and reply["detail"]["phase"] == phase and reply["detail"]["limit_s"] == 0.3
    assert gone(pid) and not group(pid)


def test_phase_limit_is_its_own(worker):
    reply = worker.request({"do": "sleep", "phase": "compile"}, 60, limits={"compile": 0.2, "run": 40})
    assert reply["status"] == "compile_timeout" and reply["detail"]["limit_s"] == 0.2


def test_cancelled_when_the_budget_ends(worker):
    worker.request({"do": "echo"}, 30)
    assert worker.request({"do": "sleep"}, 60, cancel_after=0.2)["status"] == "cancelled"
    assert worker.request({"do": "sleep"}, 60, cancel_after=0.0)["status"] == "cancelled", "start-up counts"
    assert worker.request({"do": "echo"}, 30)["status"] == "ok"


def test_cancelled_from_another_thread(worker):
    worker.request({"do": "echo"}, 30)
    threading.Timer(0.3, worker.kill).start()
    assert worker.request({"do": "sleep"}, 60)["status"] == "cancelled"
    with Worker("worker_zoo", ("late",), path=PATH) as starting:
        threading.Timer(0.3, starting.kill).start()
        assert starting.request({"do": "sleep"}, 60)["status"] == "cancelled"


def test_flood_of_output_does_no_harm(worker):
    assert worker.request({"do": "flood"}, 60)["status"] == "ok"
    assert worker.output.endswith("the end") and len(worker.output) <= process.TAIL_BYTES
    assert "\x1b" not in worker.output and "\x00" not in worker.output
    assert worker.request({"do": "flood-forever"}, 0.5)["status"] == "run_timeout"


def test_exceptions_are_replies(worker):
    reply = worker.request({"do": "raise"}, 30)
    assert reply["status"] == "internal_error" and reply["detail"]["message"] == "KeyError: 'not here'"
    assert "worker_zoo.py" in reply["detail"]["traceback"]
    for do in ("sys.exit", "object", "big"):
        assert worker.request({"do": do}, 30)["status"] == "internal_error"
    assert worker.request({"do": "memory"}, 30)["status"] == "resource_limit"
    assert worker.request({"do": "nan"}, 30) == {"max_err": "nan", "shape": [1, 2]}
    assert worker.starts == 1


@pytest.mark.parametrize("do", ["close", "garbage"])
def test_broken_protocol_is_survived(worker, do):
    reply = worker.request({"do": do}, 3)
    assert reply["status"] in ("crashed", "internal_error"), reply
    assert worker.request({"do": "echo"}, 30)["status"] == "ok"


def test_large_request_passes(worker):
    text = "y" * (4 << 20)
    assert worker.request({"do": "echo", "value": text}, 30)["echo"] == text
    with pytest.raises(ValueError, match="protocol"):
        worker.request({"do": "echo", "value": "y" * (17 << 20)}, 30)


def test_idle_death_is_nobodys_crash(worker):
    worker.request({"do": "echo"}, 30)
    os.kill(worker.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert worker.request({"do": "echo"}, 30)["status"] == "ok" and worker.starts == 2


def test_thread_that_started_it_may_end():
    worker = Worker("worker_zoo", path=PATH)
    thread = threading.Thread(target=worker.request, args=({"do": "echo"}, 30))
    thread.start()
    thread.join()
    assert worker.request({"do": "echo"}, 30)["status"] == "ok"
    pid = worker.pid
    worker.close()
    assert not alive(pid) and not group(pid) and worker.pid is None


def test_start_failure_is_an_error_with_the_reason():
    with Worker("worker_zoo", ("broken",), path=PATH) as worker, pytest.raises(WorkerError) as caught:
        worker.request({"do": "echo"}, 30)
    assert caught.value.code == "worker.start" and "no such driver" in str(caught.value)
    with (
        Worker("worker_zoo", ("late",), path=PATH, start_timeout=0.5) as worker,
        pytest.raises(WorkerError, match="not ready"),
    ):
        worker.request({"do": "echo"}, 30)


def test_one_that_was_started_early_is_claimed_once(monkeypatch):
    monkeypatch.setattr(sys, "path", PATH)
    process.start_early("worker_zoo")
    with process.claimed("worker_zoo") as first, process.claimed("worker_zoo") as second:
        early = first.pid
        assert first.starts == 1 and alive(early) and second.pid is None
        assert first.request({"do": "echo", "value": 1}, 30)["echo"] == 1 and first.pid == early


def test_whoever_comes_late_to_one_that_was_started_early_finds_it_ready():
    with Worker("worker_zoo", path=PATH, start_timeout=1e-3) as worker:
        worker.start()
        select.select([worker._child._from], [], [])
        time.sleep(2e-3)
        assert worker.request({"do": "echo", "value": 1}, 30)["echo"] == 1


def test_memory_limit():
    with Worker("worker_zoo", path=PATH, memory_limit=1 << 30) as worker:
        assert worker.request({"do": "memory"}, 30)["status"] == "resource_limit"


def test_memory_can_be_bounded_later(worker):
    reply = worker.request({"do": "bounded"}, 30)
    assert reply["status"] == "resource_limit" and reply["detail"]["limit"] == "host memory"
    assert worker.request({"do": "echo"}, 30)["status"] == "ok" and worker.starts == 1


def test_fork_is_refused(worker):
    pid = os.fork()
    if pid == 0:
        try:
            worker.request({"do": "echo"}, 5)
        except WorkerError as error:
            os._exit(0 if error.code == "worker.forked" else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


PARENT = """
import json, sys, threading
sys.path[:] = json.loads(sys.argv[1])
from tensorir.tune.process import Worker
worker = Worker("worker_zoo", environment={"MARK": "x"})
def go():
    worker.request({"do": "echo"}, 60)
    print(worker.pid, flush=True)
    try:
        worker.request({"do": sys.argv[2]}, 600)
    except KeyboardInterrupt:
        print("interrupted", worker.pid, flush=True)
if sys.argv[3] == "thread":
    thread = threading.Thread(target=go); thread.start(); thread.join()
else:
    go()
"""


def parent(do: str, how: str = "main", script: str = PARENT) -> tuple[subprocess.Popen, int]:
    run = subprocess.Popen([sys.executable, "-c", script, json.dumps(PATH), do, how], stdout=subprocess.PIPE, text=True)
    return run, int(run.stdout.readline())


@pytest.mark.parametrize(("do", "how"), [("sleep", "main"), ("stubborn", "thread"), ("grandchild", "main")])
def test_killed_parent_leaves_nothing(do, how):
    run, pid = parent(do, how)
    wanted = 3 if do == "grandchild" else 2  # worker, guardian, the compiler it started
    end = time.monotonic() + 10
    while len(group(pid)) < wanted and time.monotonic() < end:
        time.sleep(0.02)
    members = group(pid)
    assert len(members) >= wanted
    run.kill()
    run.wait()
    assert all(gone(member, 5) for member in members)
    run.stdout.close()


def test_what_left_the_group_ends_with_the_worker(worker):
    pid = worker.request({"do": "escape"}, 20)["pid"]
    assert os.getsid(pid) == pid and alive(pid)
    worker.close()
    assert gone(pid, 1)


def test_what_is_in_the_group_is_not_looked_at(monkeypatch):
    """The environment of a process that hangs in a driver may never be read to its end."""
    seen = []
    monkeypatch.setattr(child, "_environment", lambda pid: seen.append(pid) or b"")
    run = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        child.end_marked("some", run.pid)
        child.end_marked("some", -1)
    finally:
        run.communicate()
    assert seen.count(run.pid) == (1 if os.path.exists("/proc/self/environ") else 0)


def test_and_with_the_parent():
    run, pid = parent("sleep", script=PARENT.replace("worker.pid", "worker.request({'do': 'escape'}, 60)['pid']", 1))
    assert alive(pid)
    run.kill()
    run.wait()
    run.stdout.close()
    assert gone(pid, 5)


def test_a_group_of_ended_processes_is_not_waited_for():
    """Those that nobody asks for stay in it, as a guardian does in a container whose first process does not."""
    run = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True)
    assert any_runs(run.pid)
    run.kill()
    os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(run.pid, 0)  # is still there
    assert not any_runs(run.pid)
    run.communicate()


def test_interrupt_kills_the_group_and_passes_on():
    run, pid = parent("stubborn")
    time.sleep(0.2)
    begin = time.monotonic()
    run.send_signal(signal.SIGINT)
    assert run.stdout.readline() == "interrupted None\n"
    assert gone(pid, 5) and time.monotonic() - begin < 5
    assert run.wait(10) == 0
    run.stdout.close()


def test_parent_that_just_ends_leaves_nothing():
    code = PARENT.replace('worker.request({"do": sys.argv[2]}, 600)', "pass")
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(PATH), "echo", "main"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pid = int(run.stdout)
    assert run.returncode == 0 and gone(pid, 5) and not group(pid)
