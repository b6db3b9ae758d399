"""The measuring process is a child: a kernel that breaks the device, hangs or ends the process costs one configuration.

A broken CUDA context cannot be mended in its process. The parent starts the next child, which leaves out what the one
before was at.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

from .results import Progress, Results
from .rows import COMPARING
from .runner import DONE, NEW_PROCESS

MOST_CHILDREN = 40
START_S = 180.0
"""Seconds that a child may take before it says anything."""
FIRST_RUN_S = 45.0
"""Seconds for the first run of a kernel and all that goes with it, its exact result included: a kernel that hangs."""
KILLED_S = 60.0
"""Seconds for a killed process to end: the driver takes its kernels off the device."""


def supervise(command: Sequence[str], results: Results, until: float, patience_s: float = 150.0) -> int:
    """Run ``command`` until it is done, again after each crash; the status of the last one.

    patience_s: seconds without a word after which a child hangs
    """
    status, progress = 1, Progress(results.path)
    for _ in range(MOST_CHILDREN):
        progress.clear()
        status, why = _child(command, progress, patience_s)
        last = progress.read()
        if (status in (0, 1, 2) and not why) or (last and last["doing"] == DONE):
            progress.clear()
            return status if status in (0, 1, 2) else 1
        if status != NEW_PROCESS and not _note(results, progress, why or f"status {status}"):
            print(f"the measuring process ended before it began: {why or f'status {status}'}", flush=True)
            return 1
        if time.time() >= until:
            break
    return status if status in (0, 1) else 1


def _note(results: Results, progress: Progress, why: str) -> bool:
    """Write down where the child was; False where it was nowhere."""
    last = progress.read()
    if last is None:
        return False
    found = Results.load(results.path)
    found.document["crashes"].append(
        {"row": last["row"], "config": last["config"], "reason": f"{why}, {last['doing']}"}
    )
    found.save()
    print(f"crash   {last['row']}  {why}, {last['doing']}", flush=True)
    return True


def _child(command: Sequence[str], progress: Progress, patience_s: float) -> tuple[int, str]:
    """Status of one child, and why it was ended if it was."""
    child = subprocess.Popen(command, start_new_session=True)
    started = time.time()
    try:
        while (status := child.poll()) is None:
            time.sleep(0.2)
            last = progress.read()
            limit = min(patience_s, FIRST_RUN_S) if last and last["doing"] == COMPARING else patience_s
            if progress.age_s() > limit or (last is None and time.time() - started > START_S):
                return -signal.SIGKILL, f"nothing moved for {limit if last else START_S:g} s"
        return status, ""
    finally:  # the processes that compile are of its group
        end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started, which are of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILLED_S)
