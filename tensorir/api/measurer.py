"""``Measurer``, the supervisor's side of measuring: sends trials to workers and interprets replies."""

from __future__ import annotations

import contextlib
import math
import secrets
import time
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import nsmallest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.api.bench import LONG_S, REFERENCE_FILE, REFERENCE_PHASE
from tensorir.api.builders import MAX_BUILDERS
from tensorir.api.candidate import Refused, digest_of, prepare
from tensorir.api.channel import Channel, Shared
from tensorir.api.limits import Experience, for_a_peer
from tensorir.api.outputs import save_json
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
from tensorir.api.waits import Waits
from tensorir.codec import decode, encode, plain
from tensorir.runtime.host import cores
from tensorir.runtime.opencl import POCL
from tensorir.tune.brief import reason_of
from tensorir.tune.flight import Flights, Sent
from tensorir.tune.log import key_of
from tensorir.tune.record import Record, key_text
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import CANCELLED, FinalRound, Outcome, Peer, Reply, Trial

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device

LEAST_BUILDERS_S = 20.0  # shorter budgets are over when builders, which take a second or two to start, begin to pay
BUILDER_STATUSES = ("wrong_result", "illegal_schedule", "compile_error", "cancelled")
"""Statuses for which a builder's word is final, for they do not depend on the machine's load; what crashed, took too
long or wanted too much memory next to others is judged alone."""
DIGESTS_A_QUESTION = 50
"""Configurations in one question: if one of them kills the worker, the sources of all of these stay unknown."""
LEAST_PEER_S = 5.0  # of the budget, or no library is timed before the final round
RACE_SHARE = 0.25  # of the time that the search took is worth spending on which of its finalists is fastest
LEAST_RACE_S = 1.0  # whatever the search took
LEAST_ROUND_S = 1.0  # of the budget, or there is no round
MOST_LEVELS = 5  # earlier trials that are made again to see whether their source is still the same
AGAINST_S = 60.0  # to time one configuration against libraries


class Measurer:
    """Measures trials of one workload through worker processes."""

    def __init__(
        self,
        work: Work,
        device: str | Device | Sequence[str | Device] | None,
        spec: RunSpec,
        shared: Shared | None = None,
    ) -> None:
        """Connect to measuring processes.

        shared: processes of another workload on the same devices (its ``shareable``), to be used while it is idle
        """
        self.work, self.spec = work, spec
        self.channel = Channel(work, device, spec, shared)
        self.experience = Experience()
        self.reference = Reference(partial(self._made, check=False), self.digests, self.channel.folder)
        self._unwatched = True
        self._neighbours = Neighbours()
        self._built: dict[str, tuple[Ready, Mapping[str, float]]] = {}

    @property
    def flights(self) -> Flights | None:
        """Workers for concurrent trials, set to this workload; None for sequential ones."""
        flights = self.channel.flights
        if flights is not None:
            flights.prepare = self._sent
        return flights

    @property
    def shareable(self) -> Shared | None:
        """The worker processes, to be used for another workload on the same devices; None if they cannot be shared."""
        return self.channel.shareable

    @property
    def waits(self) -> Waits:
        """Record of how long trials waited for other processes that time on the same devices."""
        return self.channel.waits

    @property
    def cold_s(self) -> float:
        """Seconds that starting the worker took."""
        return self.channel.cold_s

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def abandon(self) -> None:
        """Close, and end shared processes too, once nobody uses them."""
        self.channel.abandon()

    def open(self) -> dict[str, object]:
        """Description of the device, of the first of several (``identity.describe``); starts the processes.

        Raises DeviceError if there is none, DeclarationError ``tune.devices`` if several differ in kind.
        """
        return self.channel.open()

    # --- what the search calls

    def known(self, records: Sequence[Record], default: Trial, levels: Sequence[Record] = ()) -> None:
        """Take over earlier results: their best time for time limits, and candidates for the reference kernel.

        default: the run's default configuration, preferred as the reference
        levels:  usable trials of the log, whether or not they count in this run (``Reference.known``)
        """
        for seconds in [r.steady_s for r in records if r.status == "ok"]:
            self.experience.better(seconds)
        self.reference.known(default, levels)

    @property
    def width(self) -> int:
        """Configurations built in parallel: ``builders`` of the spec, else up to 4 by the cores and 1 for a budget
        below 20 s. Always 1 if workers cannot make the schedules, trials run concurrently, or the device is not PoCL's.
        """
        asked = self.spec.builders
        if self.work.origin is None:
            return 1
        if self.channel.flights is not None or POCL not in str(self.channel.about.get("platform", "")).lower():
            return 1
        if asked is None and (self.spec.budget_s or math.inf) < LEAST_BUILDERS_S:
            return 1
        return min(MAX_BUILDERS, cores()) if asked is None else asked

    def build(self, wanted: Sequence[Trial], remaining: float | None) -> list[Outcome | None]:
        """Build several configurations in parallel: the outcome of each that failed, None for those ready to be
        timed.
        """
        requests = [self.channel.request(Build(self._made(t.template, t.config))) for t in wanted]
        replies = self.channel.builders.build(requests, remaining)
        self._built = {
            _key(t): (decode(Ready, r.answer), r.told["seconds"]) for t, r in zip(wanted, replies, strict=True) if r.ok
        }
        return [r.outcome if r.status in BUILDER_STATUSES else None for r in replies]

    def measure(self, trial: Trial, remaining: float | None) -> Outcome:
        """Outcome of one trial; its time becomes part of the time limits and the reference. After the default's, the
        spec's ``on_baseline`` and ``on_peer`` get a library's time.

        remaining: seconds left of the budget; None without one
        """
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
        """Update time limits and the reference from a trial."""
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
        """Message for a concurrent trial, or its outcome if already known."""
        try:
            wanted = self._made(trial.template, trial.config)
        except Refused as refused:
            return refused.outcome
        question = Measure(wanted, trial.best_s, self._standard(), self.channel.until_the_end())
        limits = self.experience.limits(trial.best_s, self.spec.timeout)
        return Sent(encode(self.channel.request(question, limits)), wanted.known)

    def watched(self, on_trial: Callable[[Record], object] | None, record: Record) -> None:
        """Call ``on_trial`` with a concurrent trial's record and learn its times; after the first valid one, report the
        library's time too.
        """
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
        """Message that asks for a configuration, with its source if the workload cannot be made in the worker; raises
        Refused if it cannot be scheduled.

        check: interpret the schedule first; False for a configuration already tried
        """
        wanted = Wanted(template, dict(config))
        if self.work.origin is not None:
            return wanted
        made = prepare(self.work, template, config, self.channel.target, check=check)
        return replace(wanted, ready=Ready(made.source, made.known, made.max_error))

    def digests(self, records: Sequence[Record]) -> list[str | None]:
        """SHA-256 of the source that templates now make for each record; None if they fail.

        The record's own if nothing is known: the budget ended, or making one of them ended the worker (with a warning).
        """
        if self.work.origin is None:
            return [digest_of(self.work, r, self.channel.target) for r in records]
        found: list[str | None] = []
        for low in range(0, len(records), DIGESTS_A_QUESTION):
            some = records[low : low + DIGESTS_A_QUESTION]
            question = Digest(tuple(Wanted(r.template, r.config) for r in some))
            reply = self.channel.ask(question, self.channel.until_the_end())
            if reply.status not in ("ok", "cancelled"):
                text = f"whether {len(some)} records of the log are stale is not known: {reason_of(reply)}"
                warnings.warn(text, stacklevel=2)
            found += decode(Digests, reply.answer).found if reply.ok else [r.source_sha256 for r in some]
        return found

    def _first_baseline(self, remaining: float | None) -> None:
        told = (self.spec.on_baseline, self.spec.on_peer)
        if told == (None, None) or (remaining is not None and remaining < LEAST_PEER_S):
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
        """Results of all checks on one configuration, up to the first that failed; "worker" if its process died."""
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
        """FinalRound of one configuration, timed interleaved with all libraries for a minute at most; only its failed
        outcome if the request fails.
        """
        wanted = self._made(template, config, check=False)
        reply = self.channel.ask(self._final([wanted], AGAINST_S, all_peers=True), None)
        return decode(FinalRound, reply.answer) if reply.ok else FinalRound((reply.outcome,))

    def final(
        self, finalists: Sequence[Record], remaining: float | None, searched_s: float | None = None
    ) -> FinalRound:
        """Re-measure finalists interleaved; one that kills the worker is dropped and the others are retried.

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
    """JSON text ``["template", {configuration}]`` that identifies the trial's configuration."""
    return key_text([trial.template, encode(trial)["config"]])


def race_s(spec: RunSpec, searched_s: float | None) -> float:
    """Seconds allowed for the finalists' race: ``final_s`` of the spec, else a quarter of ``searched_s`` (None: since
    the start), 1 at least.
    """
    if spec.final_s is not None:
        return spec.final_s
    if searched_s is None:
        searched_s = time.monotonic() - (spec.started or math.inf)
    return max(LEAST_RACE_S, RACE_SHARE * searched_s)


def final_round(
    channel: Channel,
    reference: Reference,
    question: Callable[[Sequence[Record], float | None], Final],
    finalists: Sequence[Record],
    remaining: float | None,
) -> FinalRound:
    """Return the FinalRound; a finalist that kills the worker is dropped and the others are retried.

    question: makes the question for some finalists and the seconds left
    """
    began = time.monotonic()
    results: list[Outcome | None] = [None] * len(finalists)
    peers = True
    while open_ := [n for n, r in enumerate(results) if r is None]:
        left = None if remaining is None else remaining - (time.monotonic() - began)
        if left is not None and left < LEAST_ROUND_S:
            break
        asked = replace(question([finalists[n] for n in open_], left), peers=peers)
        late_s = None if channel.flights is None else (len(open_) + 2) * channel.flights.late_s
        reply = channel.ask(asked, left, {"baseline": for_a_peer(left)}, late_s)
        if reference.fell(reply):
            continue
        if reply.ok:
            found = decode(FinalRound, reply.answer)
            for n, outcome in zip(open_, found.results, strict=True):
                results[n] = replace(outcome, device=reply.device)
            return replace(found, results=_all(results))
        guilty = _guilty(reply, len(open_))
        if guilty is not None:
            results[open_[guilty[0]]] = guilty[1]
        elif peers and reply.status != CANCELLED.status and reply.phase == "baseline":
            peers = False  # one of them hangs or takes the worker along: the finalists are not to pay for that
        else:
            break
    return FinalRound(_all(results))


def _all(results: Sequence[Outcome | None]) -> tuple[Outcome, ...]:
    return tuple(r or CANCELLED for r in results)


def _guilty(reply: Reply, count: int) -> tuple[int, Outcome] | None:
    """(finalist being processed when the worker died, its outcome); None if time ran out or none is to blame."""
    phase = reply.phase.split()
    if reply.status == CANCELLED.status or len(phase) != 2 or not phase[1].isdigit() or int(phase[1]) >= count:
        return None
    hung = reply.status == "run_timeout" and phase[0] == "compile"
    return int(phase[1]), replace(reply.outcome, status="compile_timeout") if hung else reply.outcome


class Reference:
    """Selects the reference kernel that all trials are timed with: an earlier trial of the log, else the default after
    its measurement.

    make:    function from a configuration to its message; raises Refused
    digests: function from records to SHA-256 of their present sources
    folder:  of expected outputs; a reference's source made here is stored there
    """

    def __init__(
        self,
        make: Callable[[str, Mapping[str, Any]], Wanted],
        digests: Callable[[Sequence[Record]], Sequence[str | None]],
        folder: str,
    ) -> None:
        self._make, self._digests, self._folder = make, digests, folder
        self._default = ""  # the configuration that others are timed with once it was measured
        self._levels: list[Record] = []  # trials of earlier runs that they can be timed with instead
        self.chosen: Standard | None = None

    def known(self, default: Trial, levels: Sequence[Record]) -> None:
        """Set candidates for the reference from the log's usable trials; the default or the earliest is preferred.

        All trials of a log are timed with one reference, so their times have the drift level of its trial. Without
        usable trials, the default becomes the reference after its measurement.
        """
        self._default = key_text([default.template, default.config])
        short = (r for r in levels if r.status == "ok" and r.steady_s < LONG_S)
        template, config = default.template, plain(default.config)
        self._levels = nsmallest(
            MOST_LEVELS, short, key=lambda r: (r.config != config or r.template != template, r.started)
        )

    def standard(self, templates: Container[str]) -> Standard | None:
        """The reference, None if there is none (yet). The first call looks for an earlier trial among ``templates``
        with an unchanged source.
        """
        while self.chosen is None and self._levels:
            record = self._levels.pop(0)
            if record.template in templates and self._digests([record]) == [record.source_sha256]:
                self._default = key_of(record)
                self.measured(record.template, record.config, record.steady_s, record.source_sha256)
        return self.chosen

    def stands_in(self, template: str, config: Mapping[str, object]) -> None:
        """Make a measured configuration the default's substitute; does nothing once a reference is chosen."""
        if self.chosen is None:
            self._default = key_text([template, config])

    def measured(self, template: str, config: Mapping[str, object], seconds: float, sha256: str | None) -> None:
        """Make a valid trial the reference if it is the preferred one, none is chosen yet, and it takes under 0.1 s."""
        is_default = key_text([template, config]) == self._default
        if self.chosen is not None or not is_default or seconds >= LONG_S:
            return
        with contextlib.suppress(Refused, OSError):  # an old record may be of what cannot be made any more
            wanted = self._make(template, config)
            if wanted.ready is not None:
                save_json(Path(self._folder, REFERENCE_FILE), encode(wanted.ready))
            self.chosen = Standard(replace(wanted, ready=None, sha256=sha256), seconds)

    def fell(self, outcome: Outcome) -> bool:
        """True if the worker died making the reference, which is then given up, along with all candidates for it."""
        fell = outcome.phase == REFERENCE_PHASE
        if fell:
            self.chosen, self._default, self._levels = None, "", []
        return fell
