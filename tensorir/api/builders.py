"""Worker processes that schedule, check and compile several candidates in parallel, idle during timing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tensorir.api.asker import Asker
from tensorir.api.questions import Request
from tensorir.tune.process import WorkerError
from tensorir.tune.trial import Reply

MAX_BUILDERS = 4
"""Builders unless more are requested: each takes a few hundred MB, and configurations that are proposed together cannot
learn from each other."""

BUILDER_THREADS = 64  # each waits for one builder


class Builders:
    """A pool of worker processes for parallel builds, started on demand.

    Results reach the measuring process through the runtime's disk cache (PoCL compiles per size at first launch and
    finds kernels by text).
    """

    def __init__(self, limits: Mapping[str, float]) -> None:
        self._limits = dict(limits)
        self._askers: list[Asker] = []
        self._threads = ThreadPoolExecutor(BUILDER_THREADS, thread_name_prefix="tensorir-builder")

    def build(self, requests: Sequence[Request], remaining_s: float | None) -> list[Reply]:
        """Replies to all requests, in order, once all builds have ended or were killed at a time limit; "crashed" for a
        worker that cannot start.

        remaining_s: seconds until all are cancelled; None for no limit
        """
        asked: list[Future[Reply]] = []
        self._askers += [Asker() for _ in range(len(requests) - len(self._askers))]
        try:
            for asker, request in zip(self._askers, requests, strict=False):
                asked.append(self._threads.submit(asker.request, request, self._limits, remaining_s))
            return [_reply(a) for a in asked]
        except BaseException:
            self._kill(asked)
            raise

    def _kill(self, asked: Sequence[Future[Any]]) -> None:
        """Cancel requests in progress, retrying for workers still starting."""
        end = time.monotonic() + 2.0
        while any(not a.done() for a in asked) and time.monotonic() < end:
            for asker in self._askers:
                asker.kill()
            time.sleep(0.02)

    def close(self) -> None:
        """Kill the workers."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for asker in self._askers:
            asker.close()


def _reply(asked: Future[Reply]) -> Reply:
    try:
        return asked.result()
    except WorkerError as error:  # the measuring process may still do what this one cannot
        return Reply("crashed", {"phase": "start", "message": str(error)})
