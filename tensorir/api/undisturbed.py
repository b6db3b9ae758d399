"""What a user's function may do to the measuring process: what is put back, so that others do not pay for it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

IDLE_PROCESSES = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""In their command lines: helpers of multiprocessing that outlive what it was used for, and sleep until the end."""
IDLE_THREADS = ("tqdm.",)
"""Modules whose threads look every few seconds whether there is something to do."""


class LeftRunning(Exception):  # an outcome of a measurement, not a failure of the program
    """Threads or processes that the function started are still there: what is timed from now on would be theirs too.

    Not those that libraries start once and that sleep from then on.
    """


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run a template: the folder, the environment, limits, timers and the like are afterwards what they were before.

    A copy of this process that comes back from the template (``os.fork``) ends here: both would answer the supervisor.
    Raises LeftRunning.
    """
    owner, before, threads, children = os.getpid(), _state(), set(threading.enumerate()), _children()
    try:
        yield
    finally:
        if os.getpid() != owner:
            os._exit(1)
        _put_back(before)
        mine = [f"thread {t.name}" for t in threading.enumerate() if t not in threads and not _idle_thread(t)]
        left = sorted(_children() - children)
        mine += [f"process {pid}" for pid in left if _runs(pid) and not _idle_process(pid)]
        if mine:
            raise LeftRunning(f"{', '.join(mine[:3])}{' and others' if len(mine) > 3 else ''} still running")


def _state() -> dict[str, Any]:
    mask = os.umask(0o077)
    os.umask(mask)
    return {
        "umask": mask,
        "folder": _folder(),
        "environment": dict(os.environ),
        "limits": _limits(),
        "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "streams": (sys.stdout, sys.stderr),
        "watchers": (sys.gettrace(), sys.getprofile()),
        "depth": sys.getrecursionlimit(),
        "errors": np.geterr(),
        "timers": {t: signal.getitimer(t) for t in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)},
    }


def _put_back(before: dict[str, Any]) -> None:
    trace, profile = before["watchers"]
    sys.settrace(trace)
    sys.setprofile(profile)
    sys.setrecursionlimit(before["depth"])
    sys.stdout, sys.stderr = before["streams"]
    np.seterr(**before["errors"])
    os.umask(before["umask"])
    for timer, values in before["timers"].items():
        signal.setitimer(timer, *values)
    if dict(os.environ) != before["environment"]:
        os.environ.clear()
        os.environ.update(before["environment"])
    if before["folder"] is not None and _folder() != before["folder"]:
        with contextlib.suppress(OSError):
            os.chdir(before["folder"])
    if before["cores"] is not None and os.sched_getaffinity(0) != before["cores"]:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before["cores"])
    for limit, values in _limits().items():
        if values != before["limits"][limit]:
            _set_limit(limit, before["limits"][limit])


def _folder() -> str | None:
    with contextlib.suppress(OSError):  # it was removed
        return os.getcwd()
    return None


def _limits() -> dict[int, tuple[int, int]]:
    try:
        import resource  # here, because some systems lack it
    except ImportError:
        return {}
    names = ("FSIZE", "NOFILE", "CPU", "AS", "DATA", "STACK", "NPROC")
    found = [getattr(resource, f"RLIMIT_{name}", None) for name in names]
    return {limit: resource.getrlimit(limit) for limit in found if limit is not None}


def _set_limit(limit: int, values: tuple[int, int]) -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):  # what was lowered for good
        resource.setrlimit(limit, values)


def _children() -> set[int]:
    """Processes that this one started and has not heard the end of; none where the system does not say."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):  # a thread that has just ended
            found.update(int(pid) for pid in path.read_text(encoding="ascii").split())
    return found


def _idle_thread(thread: threading.Thread) -> bool:
    return thread.daemon and type(thread).__module__.startswith(IDLE_THREADS)


def _idle_process(pid: int) -> bool:
    """Whether a child is one of the helpers, and sleeps."""
    with contextlib.suppress(OSError, IndexError):
        if any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in IDLE_PROCESSES):
            return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"S"
    return False


def _runs(pid: int) -> bool:
    """Whether a child has not ended, without taking its end from whom it is for."""
    with contextlib.suppress(OSError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    return False
