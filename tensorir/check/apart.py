"""A program in a process of its own: it may crash, spin or take all memory, and only that process ends."""

from __future__ import annotations

import errno
import signal
import subprocess
import time
from collections.abc import Sequence

WALL = 30.0  # seconds that may pass for each of processor time: the machine may be busy with others
BUSY = 5.0  # seconds that a program which was just written may be held by other children that are about to begin


class EndedError(Exception):
    """The program ended before its work. The first argument is the signal that ended it (SIGXCPU when its time was
    over), its exit status or what was missing; more is what it said of that.
    """


def apart(command: Sequence[str], seconds: float, files: Sequence[int] = ()) -> list[str]:
    """The lines that a program says before the last one, which is ``done``.

    seconds: of processor time, for which it is waited;  files: descriptors that it is given
    Raises EndedError.
    """
    try:
        ended = _begun(command, min(WALL * seconds, 1e6), files)
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
    until = time.monotonic() + BUSY
    while True:
        try:
            return subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=wall, pass_fds=files, check=False
            )
        except OSError as error:  # a child of another thread still has the file as it was written
            if error.errno != errno.ETXTBSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
