"""Concurrent trials on several workers: each is sent to a free worker, resent if late, and counted once.

A worker is a device, process or machine that measures one trial at a time, and may join, leave, hang or die. A trial
whose worker is gone or late is sent to another worker as well; the first answer counts (backup tasks: Dean and
Ghemawat, MapReduce, OSDI 2004, section 3.6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensorir.codec import Json, encode
from tensorir.errors import TensorIRError, refuse
from tensorir.tune.process import WorkerError
from tensorir.tune.trial import CANCELLED, Known, Outcome, Reply, Trial

MAX_RETRIES = 2  # a place that is lost or late is not the candidate's fault unless it happens again and again
LATE_RATIO = 4.0  # times the longest trial so far: an answer is late,
LATE_LEAST_S = 30.0  # but never before this; a free place is asked as well
HOPELESS_S = 900.0  # the phases of a trial have limits that add up to less, so nothing will come any more
GRACE_S = 60.0  # without any place that could measure, after which nobody will come any more
OVERTIME_S = 0.5  # a place counts its time from when it starts, so its own "cancelled" comes a little later
POLL_S = 0.1


class PlacesLost(WorkerError):
    """No worker can measure any more: the executor is broken, or all workers are gone, silent or unfit."""


class TrialPlaces(Protocol):
    """Interface of a set of workers (devices, processes, machines), each answering one request at a time.

    named: true if requests are addressed to a named worker; else they go to any free one
    """

    @property
    def named(self) -> bool: ...

    def live(self) -> list[str]:
        """Names of the workers that exist now."""
        ...

    def start(self, place: str, message: Mapping[str, object], remaining_s: float | None) -> Future[dict[str, object]]:
        """Send a request to worker ``place`` and return a Future; it is ``cancelled`` after ``remaining_s`` seconds."""
        ...

    def close(self) -> None:
        """Release workers that this object started, without waiting for pending requests; those of a caller's executor
        stay.
        """
        ...


@dataclass(frozen=True)
class Sent:
    """The message for a trial, and facts already known about it."""

    message: Mapping[str, object]
    known: Known = field(default_factory=Known)


def as_it_is(trial: Trial) -> Sent:
    """Message of a trial, with no fact about it known yet."""
    return Sent(encode(trial))


@dataclass(frozen=True)
class Landed:
    """A finished trial with its name and result. seconds: duration of the successful attempt"""

    name: Any
    reply: Reply
    seconds: float


@dataclass(eq=False)
class _Flight:
    name: Hashable
    sent: Sent
    until: float | None
    late_s: float | None
    tried: list[str] = field(default_factory=list)  # places, those that turned out unfit left out
    awaited: int = 0  # attempts that may still answer
    began: float = 0.0  # the latest attempt
    troubles: list[tuple[str, str]] = field(default_factory=list)


@dataclass(eq=False)
class _Attempt:
    flight: _Flight
    future: Future[Json]
    began: float


class Flights:
    """Trials in progress on the workers ``places``.

    prepare:       function from a trial to its message, or to its outcome if already known; replaceable while idle
    trial_timeout: seconds after which an answer is late and is resent; None: derived from earlier trials
    """

    def __init__(
        self,
        places: TrialPlaces,
        *,
        prepare: Callable[[Trial], Sent | Outcome] = as_it_is,
        trial_timeout: float | None = None,
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places, self.prepare, self._timeout, self._clock = places, prepare, trial_timeout, clock
        self._grace_s = grace_s
        self._flights: dict[Hashable, _Flight] = {}
        self._busy: dict[str, _Attempt] = {}  # also with what nobody waits for any more
        self._unfit: dict[str, str] = {}
        self._heard: dict[str, float] = {}
        self._ready: list[Landed] = []
        self._broken: TensorIRError | None = None
        self._longest = 0.0
        self._hopeful = clock()  # when there was last a place that was free or answered

    @property
    def under_way(self) -> int:
        """Number of trials whose result has not been collected."""
        return len(self._flights) + len(self._ready)

    @property
    def late_s(self) -> float:
        """Seconds after which an answer counts as late: ``trial_timeout``, or four times the longest trial so far, at
        least 30.
        """
        return max(LATE_LEAST_S, LATE_RATIO * self._longest) if self._timeout is None else self._timeout

    def room(self) -> int:
        """Number of further trials that free workers could start now."""
        waiting = sum(not f.awaited for f in self._flights.values())
        return max(0, len(self._idle(self._live())) - waiting)

    def start(self, name: Hashable, trial: Trial, remaining_s: float | None) -> None:
        """Queue ``trial`` for the next free worker, or its outcome if ``prepare`` knows it; ``name`` identifies it in
        results. It is ``cancelled`` after ``remaining_s`` seconds, None for no limit.
        """
        sent = self.prepare(trial)
        if isinstance(sent, Outcome):
            self._ready.append(Landed(name, Reply.just(sent), 0.0))
            return
        self._enter(name, sent, remaining_s, None)
        self._dispatch(self._live())

    def _enter(self, name: Hashable, sent: Sent, remaining_s: float | None, late_s: float | None) -> None:
        until = None if remaining_s is None else self._clock() + remaining_s
        self._flights[name] = _Flight(name, sent, until, late_s)

    def collect(self, wait_s: float) -> list[Landed]:
        """Finished trials, each once; waits up to ``wait_s`` seconds for the first, [] if none comes. Late and lost
        trials are sent to other workers meanwhile.

        Raises PlacesLost ``tune.workers-lost`` when nothing more can be expected.
        """
        end = self._clock() + wait_s
        while True:
            live = self._live()
            landed, self._ready = [*self._ready, *self._answers(live), *self._given_up()], []
            if landed or not self._flights:
                return landed
            self._dispatch(live)
            self._despair(live)
            left = min(end - self._clock(), POLL_S)
            if left <= 0:
                return []
            if self._busy:
                wait([a.future for a in self._busy.values()], timeout=left, return_when=FIRST_COMPLETED)
            else:
                time.sleep(left)

    def ask(self, message: Mapping[str, object], remaining_s: float | None, late_s: float | None = None) -> Reply:
        """Send one request to any free worker and return the reply; only while no trial is in progress.

        After ``remaining_s`` seconds the reply is ``cancelled``. Raises PlacesLost like ``collect``.
        """
        assert not self.under_way
        key = object()
        self._enter(key, Sent(message), remaining_s, late_s)
        end = None if remaining_s is None else self._clock() + remaining_s + OVERTIME_S
        try:
            while end is None or self._clock() < end:
                for landed in self.collect(1.0 if end is None else min(1.0, end - self._clock())):
                    return landed.reply
            return Reply("cancelled", {"phase": "executor"})
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop waiting for all trials; workers stay busy until they finish."""
        self._flights.clear()
        self._ready.clear()

    def close(self) -> None:
        """Abandon all trials and close the workers."""
        self.abandon()
        for attempt in self._busy.values():
            attempt.future.cancel()
        self._places.close()

    # --- places

    def _live(self) -> list[str]:
        return [p for p in self._places.live() if p not in self._unfit]

    def _idle(self, live: list[str]) -> list[str]:
        """Free workers, the most recently responsive first."""
        return sorted((p for p in live if p not in self._busy), key=lambda p: -self._heard.get(p, 0.0))

    def _dispatch(self, live: list[str]) -> None:
        """Start queued trials on free workers, and resend late ones."""
        idle = self._idle(live)
        for flight in self._flights.values():
            if not idle:
                return
            if (flight.awaited and not self._late(flight)) or len(flight.tried) > MAX_RETRIES:
                continue
            place = next((p for p in idle if p not in flight.tried), None if flight.awaited else idle[0])
            if place is not None:
                idle.remove(place)
                self._attempt(flight, place)

    def _attempt(self, flight: _Flight, place: str) -> None:
        now = self._clock()
        remaining = None if flight.until is None else flight.until - now
        try:
            future = self._places.start(place, flight.sent.message, remaining)
        except (RuntimeError, OSError) as error:  # a pool that is broken or shut down, a scheduler that is gone
            self._broken = self._broken or _lost(f"the executor takes no more work: {error or type(error).__name__}")
            return
        flight.tried.append(place)
        flight.awaited += 1
        flight.began = self._hopeful = now
        self._busy[place] = _Attempt(flight, future, now)

    def _late(self, flight: _Flight) -> bool:
        return self._clock() - flight.began > (flight.late_s or self.late_s)

    def _hopeless_s(self, flight: _Flight) -> float:
        return max(flight.late_s or 0.0, HOPELESS_S if self._timeout is None else self._timeout)

    def _despair(self, live: list[str]) -> None:
        """Raise PlacesLost if the executor is broken, or no worker has existed or answered for long."""
        now = self._clock()
        if self._broken is not None:
            raise self._broken
        if self._idle(live):
            self._hopeful = now
        waited = now - self._hopeful
        if not live and waited > self._grace_s:
            why = "".join(f"; {place}: {reason}" for place, reason in list(self._unfit.items())[:3])
            raise _lost(f"there has been no worker to measure with for {waited:.0f} s{why}")
        if live and waited > max(map(self._hopeless_s, self._flights.values())) + self._grace_s:
            raise _lost(f"none of {len(live)} workers has answered for {waited:.0f} s")

    # --- answers

    def _answers(self, live: list[str]) -> list[Landed]:
        """Collect valid results; workers that finished or vanished become free."""
        landed = []
        now = self._clock()
        for place, attempt in list(self._busy.items()):
            done = attempt.future.done()
            if not done and place in live:
                continue
            del self._busy[place]
            if not done:
                attempt.future.cancel()
            else:
                self._heard[place] = self._hopeful = now
            flight = attempt.flight
            flight.awaited -= 1
            if self._flights.get(flight.name) is not flight:
                continue  # counted already, or abandoned
            reply = self._reply(flight, attempt.future, place, len(live)) if done else None
            if not done:
                flight.troubles.append(("lost", place))
            if reply is not None:
                landed.append(self._land(flight, reply, place, now - attempt.began))
        return landed

    def _reply(self, flight: _Flight, future: Future[Json], place: str, live: int) -> Reply | None:
        """Reply of an attempt; None if it reveals a fault of the worker rather than of the trial."""
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or isinstance(error, BrokenExecutor):
            flight.troubles.append(("lost", place))
            if error is not None:
                self._broken = self._broken or _lost(f"the executor is broken: {error}")
            return None
        if error is not None:
            flight.troubles.append(("failed", f"{type(error).__name__}: {error}"[:500]))
            return None
        reply = Reply.of(future.result())
        words = str(reply.told.get("message", ""))[:500]
        if reply.status == "unfit":
            flight.tried.remove(place)
            self._unfit[place] = words
            if not self._places.named:  # the next request might go there again, and the one after it
                self._broken = _lost(f"a process of the executor cannot measure this: {words}")
            return None
        if reply.status == "device_lost" and live > 1 and len(flight.tried) <= MAX_RETRIES:
            flight.troubles.append(("device", words))
            if self._places.named:
                self._unfit[place] = f"its device was lost: {words}"
            return None
        return reply

    def _given_up(self) -> list[Landed]:
        """Failed results of trials that were lost, late or failed on as many workers as are tried."""
        landed = []
        for flight in list(self._flights.values()):
            hopeless = self._clock() - flight.began > self._hopeless_s(flight)
            if len(flight.tried) > MAX_RETRIES and (not flight.awaited or hopeless):
                kinds = {kind for kind, _ in flight.troubles}
                status = "run_timeout" if flight.awaited else "crashed" if kinds == {"lost"} else "internal_error"
                words = "; ".join(sorted({text for kind, text in flight.troubles if kind != "lost"}))
                message = f"measured at {len(flight.tried)} workers, none of which answered" + (words and f": {words}")
                reply = Reply(status, {"phase": "executor", "message": message[:1000]})
                landed.append(self._land(flight, reply, ", ".join(flight.tried), self._clock() - flight.began))
        return landed

    def _land(self, flight: _Flight, reply: Reply, place: str, seconds: float) -> Landed:
        del self._flights[flight.name]
        if flight.late_s is None and reply.status != CANCELLED.status:
            self._longest = max(self._longest, seconds)
        return Landed(flight.name, reply.telling(place=place).knowing(flight.sent.known), seconds)


def _lost(message: str) -> TensorIRError:
    hint = "what was measured is in the log: the same call continues from there"
    return refuse(PlacesLost, "tune.workers-lost", message, hint=hint)
