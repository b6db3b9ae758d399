"""Runs a program that may crash, hang or exhaust memory in a subprocess, with arrays in shared memory."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Self

import numpy as np

WALL_PER_CPU_SECOND = 30.0  # seconds that may pass for each of processor time: the machine may be busy with others
BUSY_FILE_S = 5.0  # seconds that a program which was just written may be held by other children that are about to begin


class EndedError(Exception):
    """Raised if a program ended prematurely. args[0]: the signal (SIGXCPU for its time limit), exit status or missing
    file; further args: details printed by the program.
    """


def run_isolated(command: Sequence[str], seconds: float, files: Sequence[int] = ()) -> list[str]:
    """Run ``command``; return its output lines without the last, ``done``.

    seconds: processor time that it may take;  files: file descriptors that it inherits
    Raises EndedError.
    """
    try:
        ended = _begun(command, min(WALL_PER_CPU_SECOND * seconds, 1e6), files)
    except subprocess.TimeoutExpired:
        raise EndedError(signal.SIGXCPU.name) from None
    lines = ended.stdout.decode("utf-8", "replace").splitlines()
    if lines and lines[-1] == "done":
        return lines[:-1]
    if lines and lines[-1].startswith("ended|"):
        raise EndedError(*lines[-1].split("|")[1:])
    code = ended.returncode
    raise EndedError(signal.Signals(-code).name if code < 0 else f"exit status {code}")


def _begun(command: Sequence[str], wall: float, files: Sequence[int]) -> subprocess.CompletedProcess[bytes]:
    until = time.monotonic() + BUSY_FILE_S
    while True:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=wall, pass_fds=files, check=False
            )
        except OSError as error:  # a child of another thread still has the file as it was written
            if error.errno != errno.ETXTBSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


POISON_BYTE = 0xFF
"""Every byte of what a kernel has yet to write: NaN, -1."""
RED_ZONE = 4096
"""Bytes on each side of an array that belong to nobody."""


class SharedArrays:
    """Named arrays in one shared-memory file. Arrays and the gaps between them are first filled with poison bytes; each
    starts ``align`` bytes past a multiple of 256.

    file: the file's descriptor;  size: its bytes;  place: offset of each array in it;  arrays: flat NumPy views by name
    """

    def __init__(self, wanted: Mapping[str, tuple[np.dtype, int, int]]) -> None:
        self.place, self.size = dict[str, int](), 0
        for name, (kind, count, align) in wanted.items():
            self.place[name] = self.size + RED_ZONE + align % 256
            self.size += -(-(kind.itemsize * count + 2 * RED_ZONE + 512) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._open = _nameless()
        self.file = self._open.fileno()
        os.truncate(self.file, self.size)
        raw = np.frombuffer(mmap.mmap(self.file, self.size), np.uint8)
        raw[...] = POISON_BYTE
        self.arrays = {
            name: raw[self.place[name] :][: kind.itemsize * count].view(kind)
            for name, (kind, count, _) in wanted.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()  # the arrays stay as long as someone has them


def _nameless() -> IO[bytes]:
    """An anonymous file: in memory if the system has ``memfd_create``, else a temporary file on disk."""
    try:
        return os.fdopen(os.memfd_create("tensorir"), "r+b", buffering=0)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()
