"""The way of a question to a measuring process: a local worker, or whichever of several places is free."""

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
    """Answers what ``Measurer`` asks. A request may have ``limits`` of its own for some phases."""

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
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
        self._worker = claimed(WORKER_MODULE)
        self.name = f"{os.getpid()}.{next(_number)}"

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
        """As ``Asking.request``."""
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
        """As ``request``, of and as plain data."""
        return encode(self.request(decode(Request, message), limits, cancel_after))

    def hear(self, phase: Callable[[str], object]) -> None:
        """Let ``phase`` be told of each phase of the requests to come."""
        self._worker.heard = phase

    def kill(self) -> None:
        """Make the present request return ``cancelled``, from any thread."""
        self._worker.kill()

    def close(self) -> None:
        """End the worker now."""
        self._worker.kill()
        self._worker.close()


_number = itertools.count(1)


class Anyone:
    """Asks whichever of several places is free; for single questions, while no trial is being measured."""

    def __init__(self, flights: Flights) -> None:
        self._flights = flights

    def request(
        self, request: Request, limits: Mapping[str, float], cancel_after: float | None, late_s: float | None = None
    ) -> Reply:
        """As ``Asking.request``; the places know the limits."""
        return self._flights.ask(encode(request), cancel_after, late_s)

    def close(self) -> None:
        """Leave the places."""
        self._flights.close()


# --- what an executor's process runs

_free: dict[int, deque[Asker]] = defaultdict(deque)  # by process: a fork must not touch those of its parent
_lock = threading.Lock()
_folder: list[Scratch] = []


def ask(message: Mapping[str, object], limits: Mapping[str, float], cancel_after: float | None) -> dict[str, object]:
    """Ask a worker process of this one, one for each request that is answered at the same time.

    Candidates run in that worker, so they cannot harm this process; it is kept for the next request. All arguments
    are JSON data.
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
    """End the workers of this process that answer nothing now."""
    free = _free[os.getpid()]
    while free:
        free.pop().close()


def _at_home(request: Request) -> Request:
    """With a folder for expected outputs on this machine, which outlives workers that candidates kill."""
    if os.path.isdir(request.setup.folder):
        return request
    with _lock:
        if not _folder:
            _folder.append(Scratch())
    mine = _folder[0].path / request.setup.key
    mine.mkdir(exist_ok=True)
    return replace(request, setup=replace(request.setup, folder=str(mine)))
