"""Temporary folders, locked by their process and removed later by others if it is killed.

A process id in the name would not suffice: ids are reused, and containers that share a folder have equal ones.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
import tempfile
import weakref
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and nothing tidied
    fcntl = None  # type: ignore[assignment]

WORKER_VARIABLE = "TENSORIR_WORKER"
"""Environment variable of processes that measure: a mark of their worker, by which all its descendants are found and
killed, whatever process group they are in."""
PREFIX = "tensorir-"
LOCK = ".scratch"
"""File in each folder, locked exclusively (flock) by the process that made the folder."""

_tidied: set[str] = set()
"""Folders for temporary files that this process has looked through."""


class Scratch:
    """A new folder for temporary files, removed by ``close``, with the object, or at the process's end.

    A forked child shares the folder and never removes it. Folders of killed processes are removed by ``tidy`` when the
    next Scratch is created.
    """

    def __init__(self, name: str = "") -> None:
        parent = tempfile.gettempdir()
        if parent not in _tidied:
            _tidied.add(parent)
            tidy(parent)
        while True:
            folder = tempfile.mkdtemp(prefix=f"{PREFIX}{name}-" if name else PREFIX)
            lock = _locked(folder)
            if lock is None or os.path.exists(folder):
                break
            os.close(lock)  # tidied by another process between its making and its lock
        self.path = Path(folder)
        self._lock = -1 if lock is None else lock
        self._end = weakref.finalize(self, _remove, folder, self._lock)
        _live.add(self)
        forking = sys.modules.get("multiprocessing")
        if (util := getattr(forking, "util", None)) is not None:  # its children end without other finalizers
            util.Finalize(self, self._end, exitpriority=0)

    def close(self) -> None:
        """Remove the folder; idempotent."""
        self._end()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _leave(self) -> None:
        """Forget the folder in a forked child; it belongs to the parent."""
        if self._end.detach() is not None and self._lock >= 0:
            with contextlib.suppress(OSError):
                os.close(self._lock)


_live: weakref.WeakSet[Scratch] = weakref.WeakSet()


def _leave_all() -> None:
    for scratch in list(_live):
        scratch._leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)


def tidy(parent: str | None = None) -> None:
    """Remove this user's Scratch folders in ``parent``, by default the folder for temporary files, whose processes are
    gone (their locks are free). No effect on systems without ``fcntl``.
    """
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(parent or tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and _ours(entry):
                _tidy_one(entry.path)


def _tidy_one(folder: str) -> None:
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # no lock: another kind of folder, or one that is just being made
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its process lives, or the file system knows no locks
        pass
    finally:
        os.close(lock)


def _ours(entry: os.DirEntry[str]) -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()


def _locked(folder: str) -> int | None:
    """File descriptor that holds the folder's lock; None if unsupported."""
    if fcntl is None:
        return None
    with contextlib.suppress(OSError):
        lock = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            return lock
        os.close(lock)
        with contextlib.suppress(OSError):  # unlocked, it would be taken for one that was left behind
            os.unlink(os.path.join(folder, LOCK))
    return None


def _remove(folder: str, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock >= 0:
        with contextlib.suppress(OSError):
            os.close(lock)
