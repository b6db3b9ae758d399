"""What a tuning run found: the values behind the pinned ``tune --json`` document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorir.errors import TensorIRError
from tensorir.tune.record import Identity, Record, drift_of, interval


@dataclass(frozen=True)
class Timed:
    """A configuration with the time to believe; ``time_s`` is None when it failed.

    trial:     id of its trial record
    checked:   its result was compared with the reference on this device
    confirmed: the time comes from the final interleaved round
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

    @classmethod
    def of(cls, trial: Record, final: Mapping[str, Any] | None = None, flops: float | None = None) -> Timed:
        """Take the time of ``final`` (a result or record of the final round) where there is one, else that of the trial
        as if the machine had kept its pace (``steady_s``).
        """
        source = trial if final is None else final
        time_s, samples = source.get("time_s"), list(source.get("samples") or ())
        low = high = gflops = None
        if time_s is not None:
            low, high = interval(samples, time_s)
            low, high = min(source.get("low_s") or low, time_s), max(source.get("high_s") or high, time_s)
            time_s, low, high = (x / drift_of(source) for x in (time_s, low, high))
            gflops = flops / time_s / 1e9 if flops else None
        check = source.get("check") or trial["check"] or {}
        return cls(
            *(trial["id"], trial["template"], trial["config"], source["status"], time_s, low, high, gflops),
            checked=check.get("ok") is True,
            confirmed=final is not None,
            record=trial,
        )

    def json(self) -> dict[str, Any]:
        """The ``best`` object of the document."""
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


@dataclass(frozen=True)
class TuneOutcome:
    """Everything a run knows at its end.

    status:   ``ok``, ``interrupted`` or ``no_valid_config``
    stopped:  why no more was measured: ``trials``, ``budget``, ``exhausted``, ``patience``, ``gain``,
              ``stop``, ``interrupted``, ``cancelled``, ``device_lost``, or ``log`` or ``workers``
              (then ``error`` says more)
    trials:   new trials of this run; the sum of ``counts``
    ties:     finalists that the final round did not find slower than another
    records:  all usable trial records, earlier ones first
    reasons:  the failures of ``records`` grouped, most frequent first
    """

    status: str
    stopped: str
    identity: Identity
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

    def _repr_html_(self) -> str:
        from tensorir.show.outcome import outcome_html

        return outcome_html(self)

    def json(self) -> dict[str, Any]:
        """The pinned document of ``tensorir tune --json``."""
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
            "default": {
                "time_s": getattr(self.default, "time_s", None),
                "status": getattr(self.default, "status", None),
            },
            "baseline": self.baseline,
            "best": None if self.best is None else self.best.json(),
            "ties": [timed.trial for timed in self.ties],
            "stopped": self.stopped,
            "reasons": list(self.reasons),
            "log": self.log_path,
            "elapsed_s": self.elapsed_s,
        }


def reason_of(record: Mapping[str, Any]) -> str:
    """A few words on why a trial failed: its status, and from the detail what tells failures apart."""
    detail = record.get("detail")
    if isinstance(detail, str):
        words = detail
    elif isinstance(detail, Mapping):
        found = (detail.get(key) for key in ("signal", "limit", "code", "where", "message", "exit", "phase"))
        words = next((str(value) for value in found if value not in (None, "")), "")
    else:
        words = ""
    line = words.strip().splitlines()[0][:120] if words.strip() else ""
    return f"{record['status']}: {line}" if line else str(record["status"])


def grouped_reasons(records: Iterable[Record]) -> tuple[dict[str, Any], ...]:
    """Failures by reason: ``{"status", "reason", "count", "trial"}``, where ``trial`` is an example for ``repro``."""
    counts: Counter[str] = Counter()
    example: dict[str, Record] = {}
    for record in records:
        if record["status"] not in ("ok", "skipped_slow"):
            reason = reason_of(record)
            counts[reason] += 1
            example.setdefault(reason, record)
    return tuple(
        {"status": example[reason]["status"], "reason": reason, "count": count, "trial": example[reason]["id"]}
        for reason, count in counts.most_common()
    )
