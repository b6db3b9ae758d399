"""Tracks other processes that time kernels on the same devices during a tuning."""

from __future__ import annotations

import time
import warnings

from tensorir.api.bench import TURN_PHASE
from tensorir.codec import Json
from tensorir.tune.trial import Outcome


class Waits:
    """Seconds that timings waited for other processes on the same devices (``runtime.turns``), as workers report them.

    wait: true if workers wait; only the text of the warnings depends on it
    """

    def __init__(self, wait: bool) -> None:
        self._wait = wait
        self._by_process: dict[int, Json] = {}
        self._since: float | None = None  # a local worker waits

    def told(self) -> tuple[dict[str, object], ...]:
        """``{"pid", "workload", "seconds"}`` of each other process."""
        return tuple(self._by_process.values())

    def hear_phase(self, phase: str) -> None:
        """Note a worker's phase; warns of the process that it starts waiting for, once for each process."""
        whose = _whose(phase)
        self._since = None if whose is None else time.monotonic()
        if whose is not None and whose["pid"]:
            self._known(whose)

    def hear(self, outcome: Outcome) -> None:
        """Add the waits reported in a worker's outcome, with a warning for each process not known before."""
        for other in outcome.told.get("waited") or ():
            self._known(other)["seconds"] += other["seconds"]
        whose = _whose(outcome.phase)
        if whose is not None and self._since is not None:
            self._known(whose)["seconds"] += time.monotonic() - self._since

    def _known(self, other: Json) -> Json:
        if other["pid"] not in self._by_process:
            self._by_process[other["pid"]] = {**other, "seconds": 0.0}
            doing = "waiting for it" if self._wait else "not waiting for it"
            text = f"process {other['pid']} times {other['workload'] or 'kernels'} on this device too"
            warnings.warn(f"{text}: {doing}", stacklevel=2)
        return self._by_process[other["pid"]]


def _whose(phase: str) -> Json | None:
    """{"pid", "workload"} of the process that a worker waits for, from its phase "turn PID WORKLOAD"
    (``bench.TURN_PHASE``); None for other phases.
    """
    name, pid, workload = (*phase.split(" ", 2), "", "")[:3]
    return {"pid": int(pid), "workload": workload} if name == TURN_PHASE and pid.isdigit() else None
