"""The process group of a worker: ended as a whole, and waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from tensorir.tune.child import end_marked


def destroy(process: subprocess.Popen[bytes], fds: tuple[int, ...], mark: str) -> None:
    """Kill the group, then reap: the other order could hit a group that got the same number later."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    end_marked(mark, process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a process stuck in a driver call cannot be waited for
        process.wait(2.0)
        _group_gone(process.pid)
    close_all(*fds)


def _group_gone(pgid: int, seconds: float = 0.5) -> None:
    """Wait until the killed helpers of the group have left as well: the kernel takes a moment on a busy machine."""
    end = time.monotonic() + seconds
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < end:
            os.killpg(pgid, 0)
            if not any_runs(pgid):
                return
            time.sleep(0.002)


def any_runs(pgid: int) -> bool:
    """Whether a process of the group has not ended; True where the system does not say.

    One that ended counts in its group until its parent has asked for it. The guardian's is the system's first process,
    and that of a container may take its time, or never ask.
    """
    stats = list(Path("/proc").glob("[0-9]*/stat"))
    for stat in stats:
        with contextlib.suppress(OSError):  # it has just gone
            state, _, group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(group) == pgid and state not in "ZX":
                return True
    return not stats


def close_all(*fds: int) -> None:
    """Close descriptors, whether or not they are open."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when ``pid`` ends, where the system has them."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    return None
