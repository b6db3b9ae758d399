"""The measuring process is a child: a kernel that breaks the device, hangs or ends the process costs one configuration.

A broken CUDA context cannot be mended in its process. The parent starts the next child, which leaves out what the one
before was at.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from .results import Json, Progress, Results
from .runner import DONE, NEW_PROCESS

MOST_CHILDREN = 60
START_S = 180.0
"""Seconds that a child may take before it says anything."""
PATIENCE = {"building": 150.0, "starting": 120.0, "comparing": 40.0, "library": 60.0}
"""Seconds without a word after which a child hangs, by what it does; what waits for kernels by itself gives up sooner.
"""
OTHERWISE_S = 90.0
LATE_S = 30.0
"""Seconds after the end of the time that a row in the making has left."""
KILLED_S = 60.0
"""Seconds for a killed process to end: the driver takes its kernels off the device."""


def supervise(command: Sequence[str], results: Results, until: float, patience_s: float = math.inf) -> int:
    """Run ``command`` until it is done, again after each crash; the status of the last one.

    patience_s: the most of ``PATIENCE``
    """
    status, progress = 1, Progress(results.path)
    for _ in range(MOST_CHILDREN):
        progress.clear()
        status, why = _child(command, progress, until, patience_s)
        last = progress.read()
        if (status in (0, 1, 2) and not why) or (last and last["doing"] == DONE):
            progress.clear()
            return status if status in (0, 1, 2) else 1
        if time.time() >= until + LATE_S:
            print("out of time: the row in the making is left (--resume makes it)", flush=True)
            break
        if status != NEW_PROCESS and not _note(results, last, why or f"status {status}"):
            print(f"the measuring process ended before it began: {why or f'status {status}'}", flush=True)
            return 1
        if time.time() >= until:
            break
    progress.clear()
    return status if status in (0, 1) else 1


def _note(results: Results, last: Json | None, why: str) -> bool:
    """Write down where the child was; False where it was nowhere."""
    if last is None:
        return False
    Results.load(results.path).crashed(last["row"], last, f"{why}, {last['doing']}")
    print(f"crash   {last['row']}  {last['peer']} {why}, {last['doing']}", flush=True)
    return True


def _child(command: Sequence[str], progress: Progress, until: float, patience_s: float) -> tuple[int, str]:
    """Status of one child, and why it was ended if it was."""
    child = subprocess.Popen(command, start_new_session=True)
    started = time.time()
    try:
        while (status := child.poll()) is None:
            time.sleep(0.1)
            last = progress.read()
            limit = min(patience_s, PATIENCE.get(last["doing"], OTHERWISE_S)) if last else START_S
            if (progress.age_s() if last else time.time() - started) > limit:
                return -signal.SIGKILL, f"nothing moved for {limit:g} s"
            if time.time() > until + LATE_S:
                return -signal.SIGKILL, "out of time"
        return status, ""
    finally:  # the processes that compile are of its group
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started, which are of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILLED_S)
