"""Where a question to the measuring process goes: a local worker, or one beside an executor's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from tensorir.errors import DeclarationError, refuse
from tensorir.tune.process import Worker

Json = dict[str, Any]
MODULE = "tensorir.api.worker"


class Asker:
    """Asks a worker process of this one."""

    def __init__(self) -> None:
        self._worker = Worker(MODULE)

    def request(self, message: Json, timeout: float, limits: Mapping[str, float], cancel_after: float | None) -> Json:
        """The worker's reply, or what became of it."""
        if cancel_after is not None and cancel_after <= 0:
            return {"status": "cancelled"}
        return self._worker.request(message, timeout, limits=limits, cancel_after=cancel_after)

    def close(self) -> None:
        """End the worker now."""
        self._worker.kill()
        self._worker.close()


class Remote(Asker):
    """Asks through a ``concurrent.futures.Executor``: its process supervises a worker of its own."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self._executor = executor

    def request(self, message: Json, timeout: float, limits: Mapping[str, float], cancel_after: float | None) -> Json:
        """As ``Asker.request``; the clock of the executor's process counts from when it starts the request."""
        return self._executor.submit(ask, message, timeout, dict(limits), cancel_after).result()

    def close(self) -> None:
        """The executor belongs to the caller; idle workers end with its processes."""


def remote(executor: Any) -> Asker:
    """An Asker for an executor; DeclarationError ``tune.executor`` for anything else."""
    if not callable(getattr(executor, "submit", None)):
        hint = "a concurrent.futures.Executor, such as client.get_executor() of Dask"
        raise refuse(DeclarationError, "tune.executor", f"executor={executor!r:.80} has no submit()", hint=hint)
    return Remote(executor)


_lock = threading.Lock()
_local: list[Asker] = []


def ask(message: Json, timeout: float, limits: Mapping[str, float], cancel_after: float | None) -> Json:
    """What an executor's process runs: one request at a time to the worker beside it."""
    began = time.monotonic()
    with _lock:  # one measuring process per machine: building and timing never overlap
        if not _local:
            _local.append(Asker())
        left = None if cancel_after is None else cancel_after - (time.monotonic() - began)
        return _local[0].request(message, timeout, limits, left)
