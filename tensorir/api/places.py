"""Workers for concurrent trials: processes of an executor, workers of a Dask cluster, or local devices.

Dask needs ``pip install "tensorir[dask]"``.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, cast

from tensorir.api.asker import Asker, ask, end_idle
from tensorir.api.identity import fingerprint
from tensorir.codec import Json
from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.tune.flight import TrialPlaces
from tensorir.tune.trial import Outcome

if TYPE_CHECKING:
    from tensorir.runtime.device import Device

Function = Callable[[Mapping[str, object], Mapping[str, float], float | None], dict[str, object]]
"""As ``asker.ask``: a function of some module, with JSON data as arguments, so that any executor can send it."""
ASK_S = 0.25  # between two questions to the scheduler who is there
ANSWER_S = 1.0  # to wait for its answer: the budget's end is near or not
GONE_S = 15.0  # without an answer, after which the scheduler is gone, and with it all workers


def places_of(executor: Any, width: int | None, limits: Mapping[str, float]) -> TrialPlaces:
    """Workers of an executor or Dask client; raises DeclarationError ``tune.executor`` for other objects.

    width: number of an executor's workers, None if it tells; ignored for Dask, which knows its own
    """
    if type(executor).__module__.partition(".")[0] == "distributed":
        return DaskPlaces(executor, limits)
    if not callable(getattr(executor, "submit", None)):
        hint = "a concurrent.futures.Executor, or a Client of Dask"
        raise refuse(DeclarationError, "tune.executor", f"executor={executor!r:.80} has no submit()", hint=hint)
    return ExecutorPlaces(executor, width or width_of(executor), limits)


def width_of(executor: object) -> int:
    """Number of an executor's workers; 1 if unknown."""
    for name in ("_max_workers", "num_workers"):  # of concurrent.futures and loky; of mpi4py
        number = getattr(executor, name, None)
        if isinstance(number, int) and number > 0:
            return number
    return 1


class ExecutorPlaces:
    """An executor's processes as anonymous workers; the executor assigns requests."""

    named = False

    def __init__(self, executor: Executor, width: int, limits: Mapping[str, float], function: Function = ask) -> None:
        self._executor, self._limits, self._function = executor, dict(limits), function
        self._names = [f"worker {n}" for n in range(width)]

    def live(self) -> list[str]:
        """One name per process."""
        return self._names

    def start(self, place: str, message: Mapping[str, object], remaining_s: float | None) -> Future[dict[str, object]]:
        """Submit a request; returns its Future."""
        return self._executor.submit(self._function, message, self._limits, remaining_s)

    def close(self) -> None:
        """End this process's idle workers; the executor is the caller's, its workers end with its own processes."""
        end_idle()


class DevicePlaces:
    """Local devices as named workers, each with its own process."""

    named = True

    def __init__(self, devices: Sequence[str], limits: Mapping[str, float]) -> None:
        self._askers = {name: Asker() for name in devices}
        self._limits = dict(limits)
        self._threads = ThreadPoolExecutor(len(devices), thread_name_prefix="tensorir-device")
        self._running: set[Future[Json]] = set()

    def live(self) -> list[str]:
        """Names of the devices."""
        return list(self._askers)

    def start(self, place: str, message: Mapping[str, object], remaining_s: float | None) -> Future[dict[str, object]]:
        """Send a request to the device's worker; returns its Future."""
        setup = {**cast("Mapping[str, object]", message["setup"]), "device": place}
        asker = self._askers[place]
        future = self._threads.submit(asker.answer, {**message, "setup": setup}, self._limits, remaining_s)
        self._running = {f for f in self._running if not f.done()} | {future}
        return future

    def close(self) -> None:
        """Kill the workers, retrying for any still starting."""
        end = time.monotonic() + 2.0
        while any(not f.done() for f in self._running) and time.monotonic() < end:
            for asker in self._askers.values():
                asker.kill()
            wait(self._running, timeout=0.02)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for asker in self._askers.values():
            asker.close()


def device_names(device: str | Device | Sequence[str | Device] | None) -> list[str]:
    """Names of the requested devices; [] for the first usable one. Raises DeclarationError ``tune.devices`` for
    anything but a device, a name, or a list of different ones.
    """
    if device is None:
        return []
    several = device if isinstance(device, list | tuple) else [device]
    names = [d if isinstance(d, str) else getattr(d, "name", "") for d in several]
    if not names or not all(isinstance(n, str) and n for n in names) or len(set(names)) < len(names):
        message = f"device={shown(device)} is neither a device's name nor a list of different ones"
        raise refuse(DeclarationError, "tune.devices", message, hint='device=["cuda:0", "cuda:1"]')
    return names


def alike(found: Mapping[str, Json]) -> Json:
    """Description of the first device. Raises DeclarationError ``tune.devices`` if another one differs in name, driver,
    limits or versions, or is the same device.
    """
    (name, first), *others = found.items()
    for other, about in others:
        mine = fingerprint(about)
        apart = [key for key, value in fingerprint(first).items() if mine.get(key) != value]
        if apart or about["id"] == first["id"]:
            what = f"differ in {', '.join(apart)}" if apart else f"are both {first['id']}"
            message = f"{name} and {other} {what}, so their times cannot be put together"
            raise refuse(DeclarationError, "tune.devices", message, hint="tune each one separately")
    return first


class Neighbours:
    """Detects workers that time on the same processor, and warns once."""

    def __init__(self) -> None:
        self._workers: dict[str, str] = {}
        self._warned = False

    def notice(self, outcome: Outcome) -> None:
        """Note on which machine a trial was measured; warns once if several workers measure on the same one."""
        detail = outcome.told
        if self._warned or not detail:
            return
        host, worker = str(detail.get("host", "this machine")), str(detail.get("worker", detail.get("place")))
        if self._workers.setdefault(host, worker) != worker:
            self._warned = True
            text = f"several workers measure on the processor of {host} at the same time"
            warnings.warn(f"{text}: what one of them builds disturbs the timings of the others", stacklevel=2)


class DaskPlaces:
    """One place for each worker of a cluster, by its address; workers may join and leave.

    A request goes to the named worker alone, and Dask never repeats it: ``Flights`` decides on the trial of a lost
    worker, since it knows the counted results. (Left alone, Dask would run a task that kills its worker on one worker
    after the other, and cannot end one that hangs.)

    executor: a ``distributed.Client``, or its ``get_executor(…)`` with options for every request
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
        """Sorted addresses of the usable workers; [] once the scheduler has been unreachable for ``GONE_S`` seconds.

        Only those of the executor's ``workers=``, if given. Asks the scheduler every ``ASK_S`` seconds, up to
        ``ANSWER_S`` each.
        """
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
        """Submit a request to worker ``place``; returns its Future."""
        pinned = {"workers": [place], "allow_other_workers": False, "pure": False, "retries": 0}
        future: Future[Json] = self._executor.submit(self._function, message, self._limits, remaining_s, **pinned)
        return future

    def close(self) -> None:
        """Do nothing: the cluster belongs to the caller, and idle measuring processes end with its workers."""


def _executor_of(client: Any) -> Any:
    if not callable(getattr(client, "get_executor", None)):
        message = f"executor={client!r:.80} is neither a Client nor an executor of one"
        raise refuse(DeclarationError, "tune.executor", message, hint="distributed.Client(address)")
    return client.get_executor()
