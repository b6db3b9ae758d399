"""Failures caused by circumstances, not by the configuration: time and memory limits, a full disk, a killed process."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import dataclass

from tensorir.codec import travels
from tensorir.runtime.compile_limit import COMPILE_S
from tensorir.tune.brief import TrialEnd, limits_told, told
from tensorir.tune.record import TRANSIENT, Record

RUN_S = 10.0
"""Default seconds for one launch, or one call of the template."""
TIMEOUTS = frozenset({"compile_timeout", "run_timeout"})
LARGER_LIMIT_RATIO = 1.1
"""Ratio of a limit to the earlier one from which a configuration is measured again."""
_ENVIRONMENT = [
    os.strerror(number)
    for number in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE),
        *(errno.ESTALE, errno.EAGAIN),
    )
] + ["out of memory", "OUT_OF_HOST_MEMORY", "bad_alloc"]
_FROM_OUTSIDE = frozenset(
    {"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGXCPU", "SIGXFSZ", "SIGUSR1", "SIGUSR2", "SIGPWR"}
)
"""Signals sent from outside: by the system's memory killer, a batch system, a person."""


@travels(sparse=True)
@dataclass(frozen=True)
class Limits:
    """Time and memory limits of a measurement.

    compile_s, run_s: seconds for one compilation; for one launch or one call of the template
    memory_bytes:     available when it failed; None: unknown
    """

    compile_s: float = COMPILE_S
    run_s: float = RUN_S
    memory_bytes: int | None = None


USUAL_LIMITS = Limits()


def available_bytes() -> int | None:
    """Bytes of host memory available to this process: the lesser of the machine's available memory and the limit of
    address space; None if the system tells neither.
    """
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    found = [own] if own != resource.RLIM_INFINITY else []
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            found += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    return min(found, default=None)


def environment(text: str) -> str:
    """The machine's problem (such as a full disk) mentioned in an error text; "" if none."""
    return next((words for words in _ENVIRONMENT if words in text), "")


def open_again(record: Record | TrialEnd, now: Limits | None = None) -> bool:
    """True for a failure that may not recur under limits ``now`` (None: the usual ones), so the configuration is
    measured again.

    Timeouts: if more time is allowed now. Out of memory: if more memory is allowed now. A full disk or a kill: always.
    """
    status = record.status
    if status in TRANSIENT:
        return True
    now = USUAL_LIMITS if now is None else now
    if status == "compile_timeout":
        return _less(record, "compile_s", now.compile_s)
    if status == "run_timeout":
        return _less(record, "run_s", now.run_s)
    if status not in ("crashed", "resource_limit"):
        return False
    detail = told(record)
    if status == "crashed":
        return detail.get("signal") in _FROM_OUTSIDE or detail.get("phase") == "executor"
    if detail.get("limit") == "host memory":
        return _less(record, "memory_bytes", now.memory_bytes)
    return detail.get("limit") == "memory"  # the device's, which others use as well


def _less(record: Record | TrialEnd, name: str, now: float | None) -> bool:
    """True if a record failed under a limit ``name`` that is lower than ``now`` by more than ``LARGER_LIMIT_RATIO``;
    False if either is unknown.
    """
    then = limits_told(record).get(name)
    if now is None or not isinstance(then, int | float) or isinstance(then, bool):
        return False
    return now > LARGER_LIMIT_RATIO * then
