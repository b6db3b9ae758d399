"""The supervisor's side of measuring: what is asked of the worker, and what its answers mean."""

from __future__ import annotations

import math
import secrets
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tensorir.api.builders import MOST
from tensorir.api.candidate import Refused, digest_of, prepare
from tensorir.api.channel import Channel, Shared
from tensorir.api.final_asked import final_round, race_s
from tensorir.api.limits import Experience
from tensorir.api.places import Neighbours
from tensorir.api.questions import (
    Build,
    Checked,
    Checks,
    Digest,
    Digests,
    Examine,
    Final,
    FirstPeer,
    Measure,
    Ready,
    Standard,
    Wanted,
)
from tensorir.api.reference import Reference
from tensorir.api.waits import Waits
from tensorir.codec import decode, encode
from tensorir.runtime.host import cores
from tensorir.runtime.opencl import POCL
from tensorir.tune.brief import reason_of
from tensorir.tune.flight import Flights, Sent
from tensorir.tune.log import Record
from tensorir.tune.record import key_text
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import FinalRound, Outcome, Peer, Trial

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device

WORTH_S = 20.0  # shorter budgets are over when builders, which take a second or two to start, begin to pay
BUILT = ("wrong_result", "illegal_schedule", "compile_error", "cancelled")
"""Statuses for which a builder's word is final, for they do not depend on the machine's load; what crashed, took too
long or wanted too much memory next to others is judged alone."""
AT_ONCE = 50  # configurations in one question: where one of them takes the worker along, nothing is known of these
LEAST_LEFT_S = 5.0  # of the budget, or no library is timed before the final round
AGAINST_S = 60.0  # to time one configuration against libraries


class Measurer:
    """Asks the worker; what it answers is the outcome of a trial."""

    def __init__(
        self,
        work: Work,
        device: str | Device | Sequence[str | Device] | None,
        spec: RunSpec,
        shared: Shared | None = None,
    ) -> None:
        """shared: ``shareable`` of the measurer of another workload on the same devices, used when that one is not."""
        self.work, self.spec = work, spec
        self.channel = Channel(work, device, spec, shared)
        self.experience = Experience()
        self.reference = Reference(partial(self._made, check=False), self.digests, self.channel.folder)
        self._unwatched = True
        self._neighbours = Neighbours()
        self._built: dict[str, tuple[Ready, Mapping[str, float]]] = {}

    @property
    def flights(self) -> Flights | None:
        """Where trials are measured at the same time: those of this workload, from here on."""
        flights = self.channel.flights
        if flights is not None:
            flights.prepare = self._sent
        return flights

    @property
    def shareable(self) -> Shared | None:
        """The processes, for others to use."""
        return self.channel.shareable

    @property
    def waits(self) -> Waits:
        """Who else times on the devices."""
        return self.channel.waits

    @property
    def cold_s(self) -> float:
        """Seconds until the worker was ready."""
        return self.channel.cold_s

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def abandon(self) -> None:
        """Leave, and end what is shared: who shared it has left before."""
        self.channel.abandon()

    def open(self) -> dict[str, object]:
        """The device's description; raises DeviceError when there is none, or when several are not of one kind."""
        return self.channel.open()

    # --- what the search calls

    def known(self, records: Sequence[Record], default: Trial, levels: Sequence[Record] = ()) -> None:
        """Take over the best time of earlier records, and which configuration others are timed with.

        levels: usable trials of the log, whether or not they count in this run (``Reference.known``)
        """
        for seconds in [r.steady_s for r in records if r.status == "ok"]:
            self.experience.better(seconds)
        self.reference.known(default, levels)

    @property
    def width(self) -> int:
        """Configurations that are built at once; several only where the runtime keeps on disk what it compiles, and
        where they are made in the processes that build them.
        """
        asked = self.spec.builders
        if self.work.origin is None:
            return 1
        if self.channel.flights is not None or POCL not in str(self.channel.about.get("platform", "")).lower():
            return 1
        if asked is None and (self.spec.budget_s or math.inf) < WORTH_S:
            return 1
        return min(MOST, cores()) if asked is None else asked

    def build(self, wanted: Sequence[Trial], remaining: float | None) -> list[Outcome | None]:
        """Several configurations at once in processes of their own: what became of those that ended there, and None
        for those that are now to be measured.
        """
        requests = [self.channel.request(Build(self._made(t.template, t.config))) for t in wanted]
        replies = self.channel.builders.build(requests, remaining)
        self._built = {
            _key(t): (decode(Ready, r.answer), r.told["seconds"]) for t, r in zip(wanted, replies, strict=True) if r.ok
        }
        return [r.outcome if r.status in BUILT else None for r in replies]

    def measure(self, trial: Trial, remaining: float | None) -> Outcome:
        """One trial."""
        try:
            wanted = self._made(trial.template, trial.config)
        except Refused as refused:
            return refused.outcome
        ready, spent = self._built.pop(_key(trial), (wanted.ready, None))
        wanted = replace(wanted, ready=ready)
        began = time.monotonic()

        def left() -> float | None:
            return None if remaining is None else remaining - (time.monotonic() - began)

        question = Measure(wanted, self.experience.best_s, self._standard(), remaining)
        outcome = self._measured(question, remaining)
        if self.reference.fell(outcome):  # the candidate is not to blame
            outcome = self._measured(replace(question, reference=None), left())
        self._learn(trial.template, trial.config, outcome, trial.kind == "default")
        if trial.kind == "default" and outcome.ok:
            self._first_baseline(left())
        if spent is not None:
            outcome = outcome.telling(built=spent)
        return outcome.knowing(wanted.known)

    def _measured(self, question: Measure, remaining: float | None) -> Outcome:
        limits = self.experience.limits(question.best_s, self.spec.timeout)
        return self.channel.ask(question, remaining, limits).outcome

    def _learn(self, template: str, config: Mapping[str, object], outcome: Outcome, default: bool) -> None:
        """Judge later trials by this one."""
        self.experience.took(outcome)
        if not outcome.ok:
            return
        self.experience.better(outcome.steady_s)
        if default:
            self.reference.stands_in(template, config)
        self.reference.measured(template, config, outcome.steady_s, outcome.source_sha256)

    def _standard(self) -> Standard | None:
        return self.reference.standard(self.work.templates)

    def _sent(self, trial: Trial) -> Sent | Outcome:
        """What a place is asked for one of several trials; its outcome, where that is known already."""
        try:
            wanted = self._made(trial.template, trial.config)
        except Refused as refused:
            return refused.outcome
        question = Measure(wanted, trial.best_s, self._standard(), self.channel.until_the_end())
        limits = self.experience.limits(trial.best_s, self.spec.timeout)
        return Sent(encode(self.channel.request(question, limits)), wanted.known)

    def watched(self, on_trial: Callable[[Record], object] | None, record: Record) -> None:
        """Show each record of trials at several places; the peer after the default, which has been measured alone."""
        if on_trial is not None:
            on_trial(record)
        drift, detail = record.drift, record.detail
        outcome = Outcome(record.status, detail, record.time_s, source_sha256=record.source_sha256, drift=drift)
        self.waits.hear(outcome)
        self.reference.fell(outcome)
        self._learn(record.template, record.config, outcome, False)
        if self.channel.about["kind"] == "cpu":
            self._neighbours.notice(outcome)
        first, self._unwatched = self._unwatched, self._unwatched and not outcome.ok
        flights = self.channel.flights
        if first and outcome.ok and flights is not None and not flights.under_way:
            self._first_baseline(self.channel.until_the_end())

    def _made(self, template: str, config: Mapping[str, object], check: bool = True) -> Wanted:
        """What a worker must know of a configuration; raises Refused where it cannot be made.

        check: False for one whose trial has been
        """
        wanted = Wanted(template, dict(config))
        if self.work.origin is not None:
            return wanted
        made = prepare(self.work, template, config, self.channel.target, check=check)
        return replace(wanted, ready=Ready(made.source, made.known, made.max_error))

    def digests(self, records: Sequence[Record]) -> list[str | None]:
        """What the templates make now of these configurations: the SHA-256 of the source, None where there is none.

        That of the record where nothing is known, since the budget ended or making one of them took the worker along.
        """
        if self.work.origin is None:
            return [digest_of(self.work, r, self.channel.target) for r in records]
        found: list[str | None] = []
        for low in range(0, len(records), AT_ONCE):
            some = records[low : low + AT_ONCE]
            question = Digest(tuple(Wanted(r.template, r.config) for r in some))
            reply = self.channel.ask(question, self.channel.until_the_end())
            if reply.status not in ("ok", "cancelled"):
                text = f"whether {len(some)} records of the log are stale is not known: {reason_of(reply)}"
                warnings.warn(text, stacklevel=2)
            found += decode(Digests, reply.answer).found if reply.ok else [r.source_sha256 for r in some]
        return found

    def _first_baseline(self, remaining: float | None) -> None:
        told = (self.spec.on_baseline, self.spec.on_peer)
        if told == (None, None) or (remaining is not None and remaining < LEAST_LEFT_S):
            return
        reply = self.channel.ask(FirstPeer(self._standard()), None if remaining is None else 0.5 * remaining)
        if self.reference.fell(reply) or not reply.ok or reply.answer is None:
            return
        peer = decode(Peer, reply.answer)
        if self.spec.on_baseline is not None:
            self.spec.on_baseline(peer.name, peer.time_s)
        if self.spec.on_peer is not None:
            self.spec.on_peer(encode(peer))

    def check(self, template: str, config: Mapping[str, object]) -> Checks:
        """All checks of one configuration."""
        try:
            wanted = self._made(template, config)
        except Refused as refused:
            words = str(refused.outcome.told.get("message", refused.outcome.status))
            return Checks((Checked("schedule", False, words),))
        reply = self.channel.ask(Examine(wanted), None)
        if reply.answer is not None:
            return decode(Checks, reply.answer)
        return Checks((Checked("worker", False, reason_of(reply)),))

    def against(self, template: str, config: Mapping[str, object]) -> FinalRound:
        """Return the record of a configuration timed interleaved with all of its peers."""
        wanted = self._made(template, config, check=False)
        reply = self.channel.ask(self._final([wanted], AGAINST_S, all_peers=True), None)
        return decode(FinalRound, reply.answer) if reply.ok else FinalRound((reply.outcome,))

    def final(
        self, finalists: Sequence[Record], remaining: float | None, searched_s: float | None = None
    ) -> FinalRound:
        """Re-measure, interleaved; a finalist that kills the worker is out, and the others are tried again.

        searched_s: seconds that the search for them took, of which the race may take a share; since the start when None
        """

        def question(open_: Sequence[Record], left: float | None) -> Final:
            return self._final([self._finalist(r) for r in open_], left, searched_s=searched_s)

        return final_round(self.channel, self.reference, question, finalists, remaining)

    def _final(
        self, finalists: Sequence[Wanted], left: float | None, all_peers: bool = False, searched_s: float | None = None
    ) -> Final:
        return Final(
            tuple(finalists),
            race_s(self.spec, searched_s),
            secrets.randbelow(10_000),
            None if left is None else max(0.5, 0.85 * left - 0.5),
            all_peers=all_peers,
            reference=None if all_peers else self._standard(),
        )

    def _finalist(self, record: Record) -> Wanted:
        return replace(self._made(record.template, record.config, check=False), sha256=record.source_sha256)


def _key(trial: Trial) -> str:
    """``key_of`` its record."""
    return key_text([trial.template, encode(trial)["config"]])
