"""A piece of work in a fork of this process: it may crash, hang or take all memory, and only the fork ends."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from tensorir.runtime.memory import bound_memory

WALL = 30.0  # seconds that may pass for each of processor time: the machine may be busy with others


class EndedError(Exception):
    """The fork ended before its work; the text is the signal that ended it (SIGXCPU when its time was over), or the
    exception that the work raised.
    """


def apart(work: Callable[[int], Any], seconds: float, nbytes: int) -> Any:
    """What ``work(pipe)`` returns, as JSON data; or what it wrote to ``pipe`` before it ended the process itself.

    seconds: of processor time, after which the fork gets SIGXCPU;  nbytes: that it may have beyond what it has
    Raises EndedError.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():  # threads of others are missing in the fork, which calls none of them
        warnings.simplefilter("ignore")
        pid = os.fork()
    if not pid:
        _work(work, write, seconds, nbytes)
    os.close(write)
    ended: list[int] = []
    try:
        said = _all_of(read, time.monotonic() + WALL * seconds)
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # what has said all, or is not waited for any longer
        with contextlib.suppress(ChildProcessError):
            ended.append(os.waitpid(pid, 0)[1])
    if said is None:
        raise EndedError(signal.SIGXCPU.name)
    with contextlib.suppress(ValueError):
        return json.loads(said)
    killed = bool(ended) and os.WIFSIGNALED(ended[0])
    raise EndedError(signal.Signals(os.WTERMSIG(ended[0])).name if killed else said.decode("utf-8", "replace"))


def _work(work: Callable[[int], Any], pipe: int, seconds: float, nbytes: int) -> None:
    """The fork; it does not return."""
    try:
        gc.disable()  # it would touch, and so copy, all memory
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = int(used + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))
        bound_memory(nbytes)
        try:
            said = json.dumps(work(pipe))
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        left = memoryview(said.encode("utf-8", "replace"))
        while left:
            left = left[os.write(pipe, left) :]
    finally:
        os._exit(0)


def _all_of(pipe: int, until: float) -> bytes | None:
    """What is written to the pipe until its other end is closed; None when it is not by then."""
    found = bytearray()
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poller.poll(min(left, 3600.0) * 1000):
            piece = os.read(pipe, 1 << 20)
            if not piece:
                return bytes(found)
            found += piece
    return None
