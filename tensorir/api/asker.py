"""Where a question to the measuring process goes: a local worker, or whichever of several places is free."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tensorir.tune.flight import Flights
from tensorir.tune.process import LAST, claimed
from tensorir.tune.store import host_name

Json = dict[str, Any]
MODULE = "tensorir.api.worker"
TRIALS = ("measure", "build")
"""What one configuration is asked for by itself."""
LIMIT_S = 86_400.0  # phases have limits of their own


class Asking(Protocol):
    """Answers what ``Measurer`` asks. A message may have ``limits`` of its own for some phases."""

    def request(
        self, message: Json, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Json:
        """The worker's reply, or what became of it; ``late_s``: when to ask another one, where there are several."""
        ...

    def close(self) -> None:
        """End what was started here."""
        ...


class Asker:
    """Asks a worker process of this one.

    name: tells those of one machine apart
    """

    def __init__(self) -> None:
        self._worker = claimed(MODULE)
        self.name = f"{os.getpid()}.{next(_number)}"

    def request(
        self, message: Json, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Json:
        """As ``Asking.request``."""
        if cancel_after is not None and cancel_after <= 0:
            return {"status": "cancelled"}
        limits = {**limits, **message.get("limits", {})}
        began, starts = time.monotonic(), self._worker.starts
        reply = self._worker.request(message, LIMIT_S, limits=limits, cancel_after=cancel_after)
        do = message.get("do")
        victim = do == "hello" or (do in TRIALS and self._worker.starts == starts)
        # one attempt to get the device back, in a new process; who dies where others have been may be their victim; and
        # before any candidate it is nobody's fault (the system's memory killer, say)
        if reply["status"] == "device_lost" or (reply["status"] == "crashed" and victim):
            self.close()
            left = None if cancel_after is None else max(0.0, cancel_after - (time.monotonic() - began))
            reply = self._worker.request(message, LIMIT_S, limits=limits, cancel_after=left)
        if reply.pop(LAST, False):  # its device went with what it measured: others are not to pay for that
            self.close()
        return reply

    def hear(self, phase: Callable[[str], object]) -> None:
        """Let ``phase`` be told of each phase of the requests to come."""
        self._worker.heard = phase

    def kill(self) -> None:
        """Make a request under way return ``cancelled``, from any thread."""
        self._worker.kill()

    def close(self) -> None:
        """End the worker now."""
        self._worker.kill()
        self._worker.close()


_number = itertools.count(1)


class Anyone:
    """Asks whichever of several places is free; for single questions, while no trial is under way."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def request(
        self, message: Json, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Json:
        """As ``Asking.request``; the places know the limits."""
        return self._flights.ask(message, cancel_after, late_s)

    def close(self) -> None:
        """Leave the places."""
        self._flights.close()


# --- what an executor's process runs

_free: dict[int, deque[Asker]] = defaultdict(deque)  # by process: a fork must not touch those of its parent
_lock = threading.Lock()
_folder: list[str] = []


def ask(message: Json, limits: Mapping[str, float], cancel_after: float | None) -> Json:
    """Ask a worker beside this process, one for each request that is answered at the same time.

    Candidates run in that worker, so they cannot harm this process; it is kept for the next request. All arguments
    are JSON data.
    """
    free = _free[os.getpid()]
    try:
        asker = free.pop()
    except IndexError:
        asker = Asker()
    try:
        reply = asker.request(_at_home(message), limits, cancel_after)
    finally:
        free.append(asker)
    if isinstance(reply.get("detail", {}), dict):
        reply["detail"] = {**reply.get("detail", {}), "host": host_name(), "worker": asker.name}
    return reply


def end_idle() -> None:
    """End the workers of this process that answer nothing now."""
    free = _free[os.getpid()]
    while free:
        free.pop().close()


def _at_home(message: Json) -> Json:
    """With a folder for expected outputs on this machine, which outlives workers that candidates kill."""
    setup = message["setup"]
    if os.path.isdir(setup["folder"]):
        return message
    with _lock:
        if not _folder:
            _folder.append(tempfile.mkdtemp(prefix="tensorir-"))
            atexit.register(shutil.rmtree, _folder[0], ignore_errors=True)
    mine = Path(_folder[0], setup["key"])
    mine.mkdir(exist_ok=True)
    return {**message, "setup": {**setup, "folder": str(mine)}}
