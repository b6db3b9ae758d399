"""Sends requests to a measuring process: a local worker, or any free one of several."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from tensorir.api.questions import Request
from tensorir.codec import Json, decode, encode
from tensorir.runtime.scratch import Scratch
from tensorir.tune.flight import Flights
from tensorir.tune.process import claimed
from tensorir.tune.store import host_name
from tensorir.tune.trial import CANCELLED, Reply

WORKER_MODULE = "tensorir.api.worker"
TRIAL_QUESTIONS = ("measure", "build")
"""Requests about one configuration alone."""
LIMIT_S = 86_400.0  # phases have limits of their own


class Asking(Protocol):
    """Interface that sends a Measurer's requests to a worker."""

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
        """Send a request, wait, and return the reply. limits: seconds per phase;  cancel_after: seconds until it is
        cancelled;  late_s: seconds until another worker is asked as well
        """
        ...

    def close(self) -> None:
        """End workers started by this object."""
        ...


class Asker:
    """Sends requests to a local worker process.

    name: unique on this machine
    """

    def __init__(self) -> None:
        self._worker = claimed(WORKER_MODULE)
        self.name = f"{os.getpid()}.{next(_number)}"

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
        """Send a request, wait, and return the reply (``Asking.request``); ``late_s`` is ignored.

        After a lost device, or a crash for which the request may not be to blame, it is sent once more to a new worker.
        """
        if cancel_after is not None and cancel_after <= 0:
            return Reply(CANCELLED.status)
        limits, message = {**limits, **(request.limits or {})}, encode(request)
        began, starts = time.monotonic(), self._worker.starts
        reply = self._ask(message, limits, cancel_after)
        victim = request.do == "hello" or (request.do in TRIAL_QUESTIONS and self._worker.starts == starts)
        # one attempt to get the device back, in a new process; who dies where others have been may be their victim; and
        # before any candidate it is nobody's fault (the system's memory killer, say)
        if reply.status == "device_lost" or (reply.status == "crashed" and victim):
            self.close()
            left = None if cancel_after is None else max(0.0, cancel_after - (time.monotonic() - began))
            reply = self._ask(message, limits, left)
        if reply.last:  # its device went with what it measured: others are not to pay for that
            self.close()
        return replace(reply, last=None)

    def _ask(self, message: Json, limits: Mapping[str, float], cancel_after: float | None) -> Reply:
        return Reply.of(self._worker.request(message, LIMIT_S, limits=limits, cancel_after=cancel_after))

    def answer(
        self, message: Mapping[str, object], limits: Mapping[str, float], cancel_after: float | None
    ) -> dict[str, object]:
        """Reply as JSON data to a request given as JSON data, for executors; otherwise like ``request``."""
        return encode(self.request(decode(Request, message), limits, cancel_after))

    def hear(self, phase: Callable[[str], object]) -> None:
        """Set a function to be called with the name of each phase that the worker enters, from the next request on."""
        self._worker.heard = phase

    def kill(self) -> None:
        """Cancel the present request, from any thread; its reply is ``cancelled``."""
        self._worker.kill()

    def close(self) -> None:
        """Kill the worker."""
        self._worker.kill()
        self._worker.close()


_number = itertools.count(1)


class Anyone:
    """Sends single requests to any free one of several workers, while no trial is being measured."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
        """Send a request to a free worker and return the reply; ``limits`` is ignored, as workers have limits of their
        own.
        """
        return self._flights.ask(encode(request), cancel_after, late_s)

    def close(self) -> None:
        """Abandon pending requests and close the workers."""
        self._flights.close()


# --- what an executor's process runs

_free: dict[int, deque[Asker]] = defaultdict(deque)  # by process: a fork must not touch those of its parent
_lock = threading.Lock()
_folder: list[Scratch] = []


def ask(message: Mapping[str, object], limits: Mapping[str, float], cancel_after: float | None) -> dict[str, object]:
    """Reply (JSON data) to a request (JSON data) from a local worker process, one per concurrent request.

    Candidates run in that worker, so they cannot harm this process; it is kept for the next request.
    """
    free = _free[os.getpid()]
    try:
        asker = free.pop()
    except IndexError:
        asker = Asker()
    try:
        reply = asker.request(_at_home(decode(Request, message)), limits, cancel_after)
    finally:
        free.append(asker)
    return encode(reply.telling(host=host_name(), worker=asker.name))


def end_idle() -> None:
    """Kill this process's idle workers."""
    free = _free[os.getpid()]
    while free:
        free.pop().close()


def _at_home(request: Request) -> Request:
    """``request`` if its folder of expected outputs exists on this machine; else with a local folder in its place,
    which outlives killed workers.
    """
    if os.path.isdir(request.setup.folder):
        return request
    with _lock:
        if not _folder:
            _folder.append(Scratch())
    mine = _folder[0].path / request.setup.key
    mine.mkdir(exist_ok=True)
    return replace(request, setup=replace(request.setup, folder=str(mine)))
