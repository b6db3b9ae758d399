"""Result of a tuning run (``TuneOutcome``), with the JSON document of ``tune --json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorir.codec import Json
from tensorir.errors import TensorIRError
from tensorir.errors.shown import Shown, few_lines
from tensorir.runtime.machine import NO_LOAD, ProcessorLoad
from tensorir.tune.brief import reason_of, whole
from tensorir.tune.progress import milliseconds
from tensorir.tune.ratio import Ratio, Span, without_slots
from tensorir.tune.record import ESTIMATOR, Record, RunIdentity


@dataclass(frozen=True, repr=False)
class Timed(Shown):
    """A configuration with the time used for ranking, in seconds; ``time_s``, its 95 % interval ``low_s`` to ``high_s``
    and ``gflops`` are None when it failed.

    trial:     id of its trial record
    checked:   its result was compared with the reference on this device
    confirmed: the time comes from the final interleaved round
    record:    its trial's record;  taken: the time with its interval and times per round
    """

    trial: str
    template: str
    config: dict[str, Any]
    status: str
    time_s: float | None
    low_s: float | None
    high_s: float | None
    gflops: float | None
    checked: bool
    confirmed: bool
    record: Record = field(repr=False)
    taken: Span | None = field(default=None, repr=False)

    @property
    def span(self) -> Span | None:
        """Seconds with interval and times per round, for ratios; None if it failed."""
        if self.taken is None or self.time_s is None:
            return None
        return self.taken.scaled(self.time_s / self.taken.time_s)

    @classmethod
    def of(cls, trial: Record, final: Record | None = None, flops: float | None = None) -> Timed:
        """Timed of a trial: by the time of ``final``, its record of the final round, unless None; else by its own.

        flops: operations of a run, for the rate
        """
        source = trial if final is None else final
        time_s = low = high = gflops = timed = None
        if source.time_s is not None:
            timed = Span.of(source)
            time_s, low, high = timed.time_s, timed.low_s, timed.high_s
            gflops = flops / time_s / 1e9 if flops else None
        check = source.check or trial.check or {}
        return cls(
            *(trial.id, trial.template, trial.config, source.status, time_s, low, high, gflops),
            checked=check.get("ok") is True,
            confirmed=final is not None,
            record=whole(trial),
            taken=timed,
        )

    def json(self) -> dict[str, object]:
        """Dict of the object ``best`` in the document of ``tune --json``."""
        return {
            "trial": self.trial,
            "template": self.template,
            "config": self.config,
            "time_s": self.time_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "gflops": self.gflops,
            "checked": self.checked,
        }


@dataclass(frozen=True, repr=False)
class MachineReport(Shown):
    """Machine load and slowdown during a run's timing, and time spent waiting for others.

    load:  in all of the run; last: in its final round
    pace:  the least and the greatest factor by which it was slower than when the reference was first measured
    waits: whose turn it was instead, and for how many seconds: ``{"pid", "workload", "seconds"}``
    """

    load: ProcessorLoad = NO_LOAD
    last: ProcessorLoad = NO_LOAD
    pace: tuple[float, float] = (1.0, 1.0)
    waits: tuple[dict[str, Any], ...] = ()

    def words(self) -> str:
        """Text for people on what disturbed the timing; "" for an idle machine."""
        parts = [w for w in (self.load.words() or self.last.words(),) if w]
        if self.pace[1] > 1.3 * self.pace[0]:
            parts.append(f"its pace went from {self.pace[0]:.2f} to {self.pace[1]:.2f} times the reference's")
        parts += [f"{_met(w)} process {w['pid']} ({w['workload']}, {w['seconds']:.0f}s)" for w in self.waits]
        return ", ".join(parts)

    def json(self) -> dict[str, object]:
        """Dict for JSON documents: whether the machine was busy, text, load figures, pace and waits."""
        load = self.load.fields() | {"used": round(self.load.used, 3), "lost": round(self.load.lost, 3)}
        return {
            "busy": self.load.disturbed or self.last.disturbed,
            "said": self.words(),
            "load": load,
            "final": self.last.fields(),
            "pace": list(self.pace),
            "waited_for": list(self.waits),
        }


@dataclass(frozen=True, repr=False)
class TuneOutcome(Shown):
    """Result of a tuning run.

    status:   ``ok``, ``interrupted``, ``no_valid_config``, or ``not_tried`` where no trial ended and none was known
    stopped:  why no more was measured: ``trials``, ``budget``, ``exhausted``, ``patience``, ``gain``,
              ``stop``, ``interrupted``, ``cancelled``, ``device_lost``, or ``log`` or ``workers``
              (then ``error`` says more); why: more of that, in words, where there is more to say
    trials:   new trials of this run; the sum of ``counts``
    ties:     finalists that the final round did not find slower than another
    records:  all usable trial records, earlier ones first
    reasons:  the failures of ``records`` grouped, most frequent first; where none is left, those of final rounds too
    machine:  use of the machine by other processes meanwhile
    unspent_s: seconds of the budget that were left; None without a budget
    seconds:  parts of ``elapsed_s`` (``tune.budget.TIME_PARTS``); {} for one shape of a set, which shares workers
    """

    status: str
    stopped: str
    identity: RunIdentity
    trials: int
    reused: int
    counts: dict[str, int]
    search: dict[str, Any]
    space: dict[str, int]
    default: Timed | None
    baseline: dict[str, Any] | None
    best: Timed | None
    ties: tuple[Timed, ...]
    finalists: tuple[Timed, ...]
    records: tuple[Record, ...] = field(repr=False)
    reasons: tuple[dict[str, Any], ...]
    log_path: str | None
    elapsed_s: float
    error: TensorIRError | None = None
    machine: MachineReport = field(default_factory=MachineReport)
    why: str = ""
    unspent_s: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> Ratio | None:
        """Time of the baseline library divided by the best time; None if one of them is missing."""
        return None if self.baseline is None else self.against_best(Span.of_library(self.baseline))

    @property
    def gain(self) -> Ratio | None:
        """Time of the default configuration divided by the best time; None if one of them is missing."""
        found = None if self.default is None else self.default.span
        return None if found is None else self.against_best(found)

    def against_best(self, other: Span) -> Ratio | None:
        """``other``, a time of the final round, divided by the best time; None without a best."""
        mine = None if self.best is None else self.best.span
        on_cpu = self.identity.device.get("kind", "cpu") == "cpu"
        return None if mine is None else Ratio.of(other, mine, self.machine.last if on_cpu else None)

    def _baseline_json(self) -> Json | None:
        if self.baseline is None:
            return None
        return without_slots(self.baseline) | ({} if self.ratio is None else self.ratio.json())

    def __repr__(self) -> str:
        said = f"{self.trials} new trials, {self.reused} reused, stopped by {self.stopped}"
        if self.best is not None and self.best.time_s is not None:
            ratio = f", {self.ratio.text(str(self.baseline['name']))}" if self.ratio and self.baseline else ""
            said = f"best {milliseconds(self.best.time_s)}{ratio}; {said}"
        return few_lines(f"<TuneOutcome {self.status}: {self.identity.workload}: {said}>")

    def json(self) -> dict[str, object]:
        """Dict printed by ``tensorir tune --json`` for one workload."""
        device = self.identity.device
        return {
            "schema": 1,
            "status": self.status,
            "workload": self.identity.workload,
            "device": {key: device.get(key) for key in ("name", "platform", "driver")},
            "space": self.space,
            "trials": self.trials,
            "reused": self.reused,
            "counts": self.counts,
            "search": self.search,
            "estimator": ESTIMATOR,
            "default": {
                **{key: getattr(self.default, key, None) for key in ("time_s", "low_s", "high_s", "status")},
                **({} if self.gain is None else self.gain.json()),
            },
            "baseline": self._baseline_json(),
            "best": None if self.best is None else self.best.json(),
            "ties": [timed.trial for timed in self.ties],
            "stopped": self.stopped,
            "why": self.why,
            "unspent_s": self.unspent_s,
            "reasons": list(self.reasons),
            "machine": self.machine.json(),
            "log": self.log_path,
            "elapsed_s": self.elapsed_s,
            "seconds": dict(self.seconds),
        }


def _met(other: Mapping[str, Any]) -> str:
    return "waited for" if other["seconds"] else "timed next to"


def without_default(record: Record) -> str:
    """Message for a run whose default failed, with the reason."""
    return f"{reason_of(record)}; the search continues with what passes"


def grouped_reasons(records: Iterable[Record]) -> tuple[Json, ...]:
    """Failures grouped by reason, most frequent first: ``{"status", "reason", "count", "trial"}``, the last the record
    id of an example (for ``repro``). Trials cut short for being slow are no failures.
    """
    counts: Counter[str] = Counter()
    example: dict[str, Record] = {}
    for record in records:
        if record.status not in ("ok", "skipped_slow"):
            reason = reason_of(record)
            counts[reason] += 1
            example.setdefault(reason, record)
    return tuple(
        {"status": found.status, "reason": reason, "count": count, "trial": found.of or found.id}
        for reason, count, found in ((r, n, example[r]) for r, n in counts.most_common())
    )
