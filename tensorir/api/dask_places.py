"""The workers of a Dask cluster as places to measure at; needs ``pip install "tensorir[dask]"``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from tensorir.api.asker import ask
from tensorir.api.places import Function
from tensorir.codec import Json
from tensorir.errors import DeclarationError, refuse

ASK_S = 0.25  # between two questions to the scheduler who is there
ANSWER_S = 1.0  # to wait for its answer: the budget's end is near or not
GONE_S = 15.0  # without an answer, after which the scheduler is gone, and with it all workers


class DaskPlaces:
    """One place for each worker of a cluster, by its address; workers may join and leave.

    A request goes to the worker that is named and nowhere else, and Dask never repeats it: what becomes of a trial
    whose worker is lost is decided in one place, where it is known which results have been counted. (Left alone,
    Dask would run a task that kills its worker on one worker after the other, and cannot end one that hangs.)

    executor: a ``distributed.Client``, or its ``get_executor(…)`` whose options then hold for every request
    """

    named = True

    def __init__(self, executor: Any, limits: Mapping[str, float], function: Function = ask) -> None:
        made = executor if hasattr(executor, "_client") else _executor_of(executor)
        self._executor, self._client = made, made._client
        if self._client.asynchronous:
            raise refuse(
                DeclarationError,
                "tune.executor",
                "the Dask client is asynchronous, and tuning waits for its results",
                hint="Client(address), without asynchronous=True",
            )
        only = made._kwargs.get("workers")
        self._only = {only} if isinstance(only, str) else None if only is None else set(only)
        self._limits, self._function = dict(limits), function
        self._asked, self._reached, self._live = 0.0, time.monotonic(), list[str]()

    def live(self) -> list[str]:
        """Addresses of the workers, as the scheduler knew them a moment ago; none when it is gone."""
        if time.monotonic() - self._asked > ASK_S:
            try:
                found = self._client.nthreads(callback_timeout=ANSWER_S)
                self._live = sorted(a for a in found if self._only is None or a in self._only)
                self._reached = time.monotonic()
            except (OSError, RuntimeError, ValueError, TimeoutError):  # between two connections, or for good
                if time.monotonic() - self._reached > GONE_S:
                    self._live = []
            self._asked = time.monotonic()
        return self._live

    def start(self, place: str, message: Mapping[str, object], remaining_s: float | None) -> Future[dict[str, object]]:
        """Submit it to one worker."""
        pinned = {"workers": [place], "allow_other_workers": False, "pure": False, "retries": 0}
        future: Future[Json] = self._executor.submit(self._function, message, self._limits, remaining_s, **pinned)
        return future

    def close(self) -> None:
        """The cluster belongs to the caller; idle measuring processes end with its workers."""


def _executor_of(client: Any) -> Any:
    if not callable(getattr(client, "get_executor", None)):
        message = f"executor={client!r:.80} is neither a Client nor an executor of one"
        raise refuse(DeclarationError, "tune.executor", message, hint="distributed.Client(address)")
    return client.get_executor()
