"""Exclusive turns for timing on a device, one process at a time, by file locks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensorir.runtime.cache import default_directory

MOST_NAME = 200
NOBODY = {"pid": 0, "workload": ""}
HELD_S = 0.5  # after which a section that is not done gives others a turn
_held: set[str] = set()  # by this process, which excludes others and not itself


def directory() -> Path:
    """Folder of the lock files: ``$XDG_RUNTIME_DIR/tensorir``, or ``turns`` in the cache directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime) and os.access(runtime, os.W_OK):
        return Path(runtime, "tensorir")
    return default_directory() / "turns"


class DeviceTurns:
    """File lock by which one process at a time, of this user and machine, times kernels on a device.

    device:   what is timed; all processors count as one device
    workload: name shown to waiting processes
    wait:     False: start at once, even during another process's turn

    >>> with turns.turn(lambda: say("waiting")):
    ...     time_it()
    """

    def __init__(self, device: str, workload: str, wait: bool = True) -> None:
        self._name = re.sub(r"[^A-Za-z0-9_.-]+", "_", device)[:MOST_NAME]
        self._workload, self._wait = workload, wait
        self._waits: dict[int, dict[str, Any]] = {}

    @contextlib.contextmanager
    def turn(self, waiting: Callable[[], object]) -> Iterator[None]:
        """Context manager: wait for the turn and hold it; ``waiting`` is called once, before the wait, if another
        process has it.

        It starts at once without ``wait``, inside another turn of this process, and without a writable folder or file
        locks.
        """
        if self._name in _held:
            yield
            return
        with contextlib.ExitStack() as locks:
            with contextlib.suppress(OSError, ImportError):
                self._take(locks, waiting)
            _held.add(self._name)
            try:
                yield
            finally:
                _held.discard(self._name)

    def holder(self) -> dict[str, object]:
        """Present or last holder: ``{"pid", "workload"}``, the id of the tuning process; pid 0 if unknown."""
        with contextlib.suppress(OSError), _opened(directory() / f"{self._name}.turn") as turn:
            return _owner(turn)
        return dict(NOBODY)

    def waited(self) -> list[dict[str, object]]:
        """``{"pid", "workload", "seconds"}`` of each process whose turn this one waited for since the last call; 0
        seconds for turns that it started next to.
        """
        found, self._waits = list(self._waits.values()), {}
        return found

    def _take(self, locks: contextlib.ExitStack, waiting: Callable[[], object]) -> None:
        """Acquire the device's file lock; closing ``locks`` releases it.

        Waiting processes hold a second lock, the queue. All must acquire it first, so a process that releases its turn
        and at once asks for another cannot overtake them.
        """
        import fcntl

        folder = directory()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        turn = locks.enter_context(_opened(folder / f"{self._name}.turn"))
        with _opened(folder / f"{self._name}.queue") as queue:
            try:
                for lock in (queue, turn):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self._wait:
                    self._note(_owner(turn), 0.0)
                    return
                began = time.monotonic()
                waiting()
                fcntl.flock(queue, fcntl.LOCK_EX)  # whoever was in it has the turn now and has said so
                owner = _owner(turn)
                fcntl.flock(turn, fcntl.LOCK_EX)
                self._note(owner, time.monotonic() - began)
            mine = json.dumps({"pid": os.getppid(), "worker": os.getpid(), "workload": self._workload[:500]})
            os.pwrite(turn, mine.encode("ascii"), 0)
            os.ftruncate(turn, len(mine))

    def _note(self, owner: dict[str, Any], seconds: float) -> None:
        noted = self._waits.setdefault(owner["pid"], {**owner, "seconds": 0.0})
        noted["seconds"] += seconds


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path, flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)  # and with it the lock


def _owner(turn: int) -> dict[str, Any]:
    """``{"pid", "workload"}`` of the process that a lock file records; pid 0 if none."""
    try:
        found = json.loads(os.pread(turn, 4096, 0))
        return {"pid": int(found["pid"]), "workload": str(found["workload"])}
    except (ValueError, KeyError, TypeError, OSError):
        return dict(NOBODY)
