"""The final round as the search sees it: who is measured again, and what is believed of them then."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tensorir.codec import Json, encode
from tensorir.runtime.machine import REST, Load
from tensorir.tune.arm import Arms
from tensorir.tune.findings import Findings
from tensorir.tune.interfaces import Bench
from tensorir.tune.log import choose, key_of, passed
from tensorir.tune.outcome import Timed
from tensorir.tune.paired import TIE
from tensorir.tune.ratio import Span
from tensorir.tune.record import Record, is_library
from tensorir.tune.trial import CANCELLED, FinalRound, Peer

ROUNDS = 3  # when all finalists of one are disqualified
CONTENDERS = 1000
"""Trials that are ranked for a final round at most, besides those that were in one."""
MOST_SAMPLES = 200  # of a library's time in a record
MOST_NAME = 200  # characters of its name


class Confirmation:
    """The final rounds of a search, and what they found.

    pairs:    trial and final record of each finalist of the last round
    baseline: the fastest library of it
    load:     what else the machine did in all of them
    """

    def __init__(self, findings: Findings, arms: Arms, top: int, also: Collection[str], flops: float | None) -> None:
        self._findings, self._arms, self._top, self._also, self._flops = findings, arms, top, also, flops
        self.pairs: list[tuple[Record, Record]] = []
        self.baseline: dict[str, Any] | None = None
        self.load: Load = REST

    def measure(self, bench: Bench, remaining: Callable[[], float | None]) -> None:
        """Re-measure the finalists interleaved; those that fail give way to the next best.

        remaining: tells the seconds that are left, None for no limit
        """
        if bench.final is None:
            return
        for _ in range(ROUNDS):
            left, finalists = remaining(), self.finalists()
            if not finalists or (left is not None and left <= 0):
                return
            self._take(finalists, bench.final(finalists, left))
            if any(final.status == "ok" for _, final in self.pairs) or not self.pairs:
                return

    def _take(self, finalists: list[Record], found: FinalRound) -> None:
        self.pairs, name = [], os.urandom(8).hex()
        self.baseline = {**encode(found.baseline), "round": name} if found.baseline else self.baseline
        self.load += found.load or REST
        library = _library(found.baseline)
        for trial, outcome in zip(finalists, found.results, strict=True):
            if outcome.status != CANCELLED.status:  # then there was no time left for it: nothing was learnt
                self.pairs.append((trial, self._findings.final(trial, outcome, **library, round=name)))
                library = {}

    def finalists(self) -> list[Record]:
        """The fastest configurations with different sources, and the default, which stands for those of its source."""
        default = self.default()
        if default is not None and (default.status != "ok" or self._findings.failed_again(default)):
            default = None
        chosen: dict[str, Record] = {}
        sources: set[str] = set()
        for record in (c.record for c in choose([*self._contenders(), *self._findings.finals])):
            source = record.source_sha256 or key_of(record)
            asked = record.id in self._also
            if asked or (source not in sources and len(chosen) < self._top):
                sources.add(source)
                taken = default if default and not asked and source == default.source_sha256 else record
                chosen[taken.id] = taken
        if chosen and default is not None:
            chosen.setdefault(default.id, default)
        return [*chosen.values()]

    def _contenders(self) -> list[Record]:
        """The trials that may be among the fastest: of many that no final round knows the others rank after these."""
        records = self._findings.records
        if len(records) <= CONTENDERS:
            return records
        known = {*map(key_of, self._findings.finals)}
        fastest = {id(r) for r in heapq.nsmallest(CONTENDERS // 2, filter(passed, records), key=lambda r: r.steady_s)}
        return [r for r in records if id(r) in fastest or r.id in self._also or key_of(r) in known]

    def default(self) -> Record | None:
        """The trial of *the* default."""
        return next((r for r in self._findings.records if self._arms.is_default(r)), None)

    # --- what is believed in the end

    def confirmed(self) -> tuple[Timed, ...]:
        """The finalists that were right."""
        return tuple(Timed.of(t, f, self._flops) for t, f in self.pairs if f.status == "ok")

    def ranked(self) -> tuple[Timed | None, tuple[Timed, ...]]:
        """The best, and the finalists that no round found slower than another; everything not re-measured has the time
        of its trial.
        """
        race = {t.id: f.race or {} for t, f in self.pairs}
        lost = {trial for trial, standing in race.items() if standing.get("standing") == "slower"}
        ranked = sorted(
            (t for t in self.confirmed() if t.checked), key=lambda t: (t.trial in lost, t.time_s or math.inf, t.trial)
        )
        # a race that was cut short calls nobody slower, but who is far slower in it is no tie either
        near = {trial for trial, standing in race.items() if standing and standing.get("low", 1.0) <= math.exp(TIE)}
        ties = tuple(t for t in ranked[1:] if t.trial not in lost and t.trial in near)
        if ranked:
            return ranked[0], ties
        choices = choose([*self._contenders(), *self._findings.finals])
        return (Timed.of(choices[0].record, None, self._flops) if choices else None), ties

    def timed_default(self, best: Timed | None) -> Timed | None:
        """The default's time to compare with the best's: by the trials of both where one was not in the final round."""
        record = self.default()
        if record is None:
            return None
        default = Timed.of(record, next((f for t, f in self.pairs if t.id == record.id), None), self._flops)
        if best is None or best.time_s is None or default.time_s is None or default.confirmed == best.confirmed:
            return default
        factor = best.time_s / best.record.steady_s
        times = [None if t is None else t * factor for t in (default.time_s, default.low_s, default.high_s)]
        rate = None if default.gflops is None else default.gflops / factor
        return replace(default, time_s=times[0], low_s=times[1], high_s=times[2], gflops=rate)


def _library(found: Peer | None) -> Json:
    """The field of a final record that holds what is known of the library of its round."""
    if found is None:
        return {}
    taken = Span.of_library(encode(found))
    ends = taken.low_s, taken.high_s, taken.spread
    kept = encode(Peer(found.name[:MOST_NAME], taken.time_s, *ends, taken.slots[:MOST_SAMPLES]))
    return {"baseline": kept} if is_library(kept) else {}
