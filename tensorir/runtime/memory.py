"""How much memory a process that runs unproven kernels may have."""

from __future__ import annotations

import contextlib


def bound_memory(nbytes: int) -> None:
    """From now on, refuse this process more than ``nbytes`` beyond the memory that it has, where the system can.

    A runaway candidate then gets an error instead of bringing the machine down. What counts is private memory that can
    be written: address space that drivers reserve does not. Where the system has to end a process for want of memory,
    it is this one first.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # here, because some systems lack it

        with open("/proc/self/status", encoding="ascii") as file:
            now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = now + nbytes
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
