"""Ranks measured configurations by comparable times, those of the same final round."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tensorir.codec import Json
from tensorir.errors.shown import Shown, few_lines
from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune.brief import Stored
from tensorir.tune.circumstances import open_again
from tensorir.tune.ratio import Ratio, Span
from tensorir.tune.record import Record, key_text

REPEAT_RATIO = (
    1.02  # the mean of a repeat run moves by up to 2 % (p99), so a time that is not of the round must win by that
)
TOGETHER_S = 1.0  # final records that do not name their round are of one if they follow each other so closely
_WRONG = frozenset({"wrong_result", "nondeterministic"})


@dataclass(frozen=True, repr=False)
class RankedRecord(Shown):
    """A loadable configuration with the time by which it is ranked.

    record:    its trial (or its final measurement, when the trial's line is lost)
    time_s:    seconds measured in the newest final round that it was in, scaled to the newest round; those of its
               trial (``steady_s``) if it was in none
    low_s, high_s: 95 % interval of ``time_s``
    round:     number of that final round, 0 for the newest; None if the time is the trial's
    timed:     the record that the time is from
    """

    record: Record
    time_s: float
    low_s: float
    high_s: float
    round: int | None
    timed: Record = field(repr=False)

    def __repr__(self) -> str:
        return few_lines(f"<RankedRecord {self.time_s * 1e3:.4g} ms: {self.record.template} {self.record.config}>")

    @property
    def span(self) -> Span:
        """``time_s`` with its interval and times per round, for ratios."""
        timed = Span.of(self.timed)
        return timed.scaled(self.time_s / timed.time_s)

    @property
    def load(self) -> ProcessorLoad | None:
        """Load of the machine by other processes during its timing; None for a GPU, which that does not disturb."""
        on_cpu = self.timed.device.get("kind", "cpu") == "cpu"
        return ProcessorLoad.of(self.timed.load) if on_cpu else None

    def over(self, best: RankedRecord) -> Ratio:
        """Ratio of its time to the best's; exactly 1 for the best itself."""
        if self is best:
            return Ratio(1.0, 1.0, 1.0)
        return Ratio.of(self.span.scaled(self.against(best) / self.time_s), best.span, best.load)

    @property
    def confirmed(self) -> bool:
        """True if its time is from the newest final round."""
        return self.round == 0

    def against(self, best: RankedRecord) -> float:
        """Seconds of this record to compare with ``best.time_s``: from trials of both if only one has a final round."""
        if (self.round is None) == (best.round is None):
            return self.time_s
        return best.time_s * self.record.steady_s / best.record.steady_s


def key_of(record: Record) -> str:
    """JSON text ``["template", {configuration}]``: equal for all measurements of one configuration."""
    return record.key if isinstance(record, Stored) else key_text([record.template, record.config])


_Kernel = tuple[str, str | None]
"""(configuration (``key_of``), SHA-256 of its source or None): records equal in both are one kernel."""


def passed(record: Record) -> bool:
    """True if the record has a time and a right result."""
    if isinstance(record, Stored):
        return record.passed
    return record.status == "ok" and record.check is not None and record.check["ok"] is True


def choose(records: Iterable[Record]) -> list[RankedRecord]:
    """Rank the usable configurations among records of *one* identity, fastest first.

    A configuration counts only if it was ok and passed its check, was never found wrong or
    nondeterministic, and did not fail its latest final round. With another source, for its template has been changed
    since, it is another one; which of them is made now, ``choose`` cannot tell, and puts the latest before all others.

    The machine's load differs from hour to hour, so the newest final round decides between those that were in it. One
    that was only in an earlier round is brought to the level of the newest by the configurations that were in both
    (the median of their ratios; the default is nearly always one), or in a third that was. Where there is none, it
    counts by its trial, as if never confirmed. Both must win by ``REPEAT_RATIO``.
    """
    trials: dict[_Kernel, Record] = {}
    finals: dict[_Kernel, Record] = {}
    wrong: set[_Kernel] = set()
    latest: dict[str, str] = {}
    ordered = sorted(records, key=lambda r: (r.started, r.id))
    kernels: list[_Kernel] = [(key_of(r), r.source_sha256) for r in ordered]
    config_of = {r.id: config for r, (config, _) in zip(ordered, kernels, strict=True)}
    for record, key in zip(ordered, kernels, strict=True):
        latest[key[0]] = record.source_sha256 or latest.get(key[0], "")
        if record.status in _WRONG:
            wrong.add(key)
        elif record.kind == "final" and not open_again(record):
            finals[key] = record
        elif passed(record):
            trials[key] = record
    failed = wrong | {key for key, final in finals.items() if not passed(final)}
    # one that names no source speaks of them all
    out = {key for key in kernels if key in failed or (key[0], None) in failed}
    rounds = _rounds(zip(ordered, kernels, strict=True))
    timed = _on_one_level([{k: r for k, r in found.items() if k not in out} for found in rounds])
    found = [_choice(trials.get(k, r), r, level, number) for k, (r, level, number) in timed.items()]
    left = (trials.keys() | finals.keys()) - out - timed.keys()
    found += [_unconfirmed(trials[k] if k in trials else finals[k]) for k in left]
    # a trial that lost to the finalists as a trial ranks after them
    bar = min((c.record.steady_s for c in found if c.round is not None), default=float("inf"))
    return sorted(
        found,
        key=lambda c: (
            (c.record.source_sha256 or "") != latest[config_of[c.record.id]],
            c.round is None and c.time_s * REPEAT_RATIO >= bar,
            c.time_s * (1 if c.confirmed else REPEAT_RATIO),
            (c.timed.race or {}).get("standing") == "slower",
            c.record.id,
        ),
    )


def library(records: Iterable[Record], best: RankedRecord) -> tuple[Json, Ratio] | None:
    """(fields, ratio to the best) of the library timed in the best's final round, else in the newest round with one;
    None if none was.
    """
    rounds = sorted((r for r in records if r.baseline and r.round), key=lambda r: (r.started, r.id))
    found = {r.round: {**(r.baseline or {}), "round": r.round} for r in rounds}
    if not found:
        return None
    own = found.get(best.timed.round or "")
    peer = own or next(reversed(found.values()))
    return peer, Ratio.of(Span.of_library(peer), best.span if own is None else Span.of(best.timed), best.load)


def _choice(record: Record, timed: Record, level: float = 1.0, number: int | None = None) -> RankedRecord:
    low, high = timed.span
    return RankedRecord(record, timed.steady_s * level, low * level, high * level, number, timed)


def _unconfirmed(record: Record) -> RankedRecord:
    return _choice(record, record)


def _rounds(ordered: Iterable[tuple[Record, _Kernel]]) -> list[dict[_Kernel, Record]]:
    """Final rounds, newest first, as {kernel: record} of right results."""
    found: dict[str, dict[_Kernel, Record]] = defaultdict(dict)
    newest: dict[str, str] = {}
    unnamed, last = 0, 0.0
    for record, kernel in ordered:
        if record.kind != "final" or not passed(record):
            continue
        name = record.round
        if name is None:
            now = seconds_of(record.started)
            unnamed += now - last > TOGETHER_S
            name, last = f" {unnamed}", now
        found[name][kernel] = record
        newest[name] = record.started
    return [found[name] for name in sorted(found, key=lambda name: (newest[name], name), reverse=True)]


def seconds_of(started: str) -> float:
    """A log timestamp as Unix seconds; 0 if invalid."""
    try:
        return datetime.fromisoformat(started).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _on_one_level(rounds: Sequence[dict[_Kernel, Record]]) -> dict[_Kernel, tuple[Record, float, int]]:
    """{kernel: (newest final record, factor to the newest round's level, round number)}; rounds not connected to the
    newest are omitted.
    """
    known: dict[_Kernel, tuple[Record, float, int]] = {}
    waiting = {n: found for n, found in enumerate(rounds) if found}
    first = min(waiting, default=0)  # what is left of newer ones is nothing
    while waiting:
        number = next((n for n, found in waiting.items() if not known or found.keys() & known.keys()), None)
        if number is None:
            break
        found = waiting.pop(number)
        ratios = [known[k][0].steady_s * known[k][1] / r.steady_s for k, r in found.items() if k in known]
        level = statistics.median(ratios) if ratios else 1.0
        known |= {k: (r, level, number - first) for k, r in found.items() if k not in known}
    return known
