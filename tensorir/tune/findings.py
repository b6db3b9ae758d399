"""What a search has found: its records, those of earlier runs that count, and the log that they go to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace

from tensorir.codec import CodecError, encode
from tensorir.errors import TensorIRError
from tensorir.tune.circumstances import Limits, available_bytes, open_again
from tensorir.tune.interfaces import Log
from tensorir.tune.record import BadRecord, Identity, Record
from tensorir.tune.store import LogError
from tensorir.tune.trial import Known, Outcome


class Findings:
    """The records of a search.

    records: usable trials, ``reused`` of earlier runs first; finals: those of final rounds
    new:     of this run; counts: its trials by status
    error:   why the log cannot be written any more
    """

    def __init__(self, identity: Identity, log: Log | None, limits: Limits) -> None:
        self.identity, self._log, self._limits = identity, log, limits
        self.records: list[Record] = []
        self.finals: list[Record] = []
        self.new: list[Record] = []
        self.counts: Counter[str] = Counter()
        self.reused = 0
        self.error: TensorIRError | None = None

    @property
    def log_path(self) -> str | None:
        """Where the records are stored."""
        return None if self._log is None else str(self._log.path)

    def trial(self, template: str, config: Mapping[str, object], outcome: Outcome) -> Record:
        """Keep the outcome of a trial: first in the log."""
        record = self._sealed("trial", template, config, outcome)
        self._append(record)
        self.counts[record.status] += 1
        self.records.append(record)
        self.new.append(record)
        return record

    def final(self, trial: Record, outcome: Outcome, **more: object) -> Record:
        """Keep what a final round says of a trial; more: fields of its record."""
        inherited = {f.name: getattr(trial, f.name) for f in fields(Known) if getattr(outcome, f.name) is None}
        made = self._sealed("final", trial.template, trial.config, outcome, of=trial.id, **inherited, **more)
        self.finals.append(made)
        self.new.append(made)
        self._append(made)
        return made

    def failed_again(self, record: Record) -> bool:
        """Whether a final round found a trial wrong."""
        failed = (r for r in self.finals if r.status != "ok" and not open_again(r, self._limits))
        return any(r.of == record.id for r in failed)

    def _sealed(
        self, kind: str, template: str, config: Mapping[str, object], outcome: Outcome, **more: object
    ) -> Record:
        identity = self.identity
        if outcome.device is not None:  # which of several of the same kind
            identity = replace(identity, device=outcome.device)
        if outcome.status != "ok":
            more["limits"] = encode(replace(self._limits, memory_bytes=available_bytes()))
        try:
            return identity.record(kind, template, config, {**encode(outcome), **more})
        except (BadRecord, CodecError) as error:  # a bug of the measuring side, not a reason to lose the run
            detail = {"message": f"the measurement is not a record: {error}", "status": outcome.status[:100]}
            return identity.record(kind, template, config, {"status": "internal_error", "detail": detail})

    def _append(self, record: Record) -> None:
        if self._log is not None and self.error is None:
            try:
                self._log.append(record)
            except LogError as error:
                self.error = error
