"""Statistics for reports on tuning logs: winners, importance of knobs, failures."""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune.log import RankedRecord, choose, identity_of, key_of, passed
from tensorir.tune.ranking import library, seconds_of
from tensorir.tune.ratio import Ratio
from tensorir.tune.record import Record

IMPORTANCE_HALVES = 200  # of the trials, by which the scatter of an importance is known
PAUSE_S = 120.0  # between two records from which on nobody was tuning


@dataclass(frozen=True)
class Tuned:
    """Statistics over the records of one computation on one device.

    trials:    in the order of time; the first is the default's
    best:      the configuration that would be loaded, None if none is valid
    default:   the first trial's configuration; None if it is not valid
    default_s: seconds of the default to compare with the best's (``RankedRecord.against``)
    gain:      the default's time over the best's
    library:   the fastest library of the best's final round: name, ``time_s``, ``low_s``, ``high_s``; None if
               none was timed
    ratio:     its time over the best's; None if none was timed
    spent_s:   seconds of tuning: from the preceding record of the log to each of these, pauses excluded
    """

    workload: str
    device: str
    trials: tuple[Record, ...]
    best: RankedRecord | None
    default_s: float | None
    gain: Ratio | None = None
    library: dict[str, Any] | None = None
    ratio: Ratio | None = None
    default: RankedRecord | None = None
    spent_s: float = 0.0

    @functools.cached_property
    def place(self) -> int | None:
        """Index of the best's trial among ``trials``, from 0; None if there is no best or its line is lost."""
        wanted = None if self.best is None else self.best.record.id
        return next((n for n, r in enumerate(self.trials) if r.id == wanted), None)

    @property
    def kind(self) -> str:
        """The kind of the device: ``cpu`` or ``gpu``."""
        return str(self.trials[0].device.get("kind", "cpu")) if self.trials else "cpu"

    @property
    def load(self) -> ProcessorLoad:
        """Machine load while the trials were timed."""
        return ProcessorLoad.sum(r.load for r in self.trials)

    def best_so_far(self) -> list[float | None]:
        """After each trial, seconds of the fastest valid configuration until then; None before a valid one."""
        found: list[float | None] = []
        least = math.inf
        for r in self.trials:
            least = min(least, r.steady_s) if passed(r) else least
            found.append(least if math.isfinite(least) else None)
        return found


@dataclass(frozen=True)
class Importance:
    """Fraction ``share`` of log-time variance explained by one knob alone, over ``trials``.

    low, high: 90 % interval over other draws of trials, estimated from random halves
    """

    template: str
    knob: str
    share: float
    trials: int
    low: float = 0.0
    high: float = 1.0


def tuned(records: Iterable[Record]) -> list[Tuned]:
    """Statistics per computation, device, driver and versions, those with most trials first."""
    groups: dict[str, list[Record]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    before = -math.inf
    for r in sorted(records, key=lambda r: (r.started, r.id)):
        name, now = identity_of(r), seconds_of(r.started)
        groups[name].append(r)
        spent[name] += max(0.0, now - before) if now - before <= PAUSE_S else _own_s(r)
        before = now
    found = []
    for name, group in groups.items():
        trials = tuple(r for r in group if r.kind == "trial")
        first, ranked = group[0], choose(group)
        best = ranked[0] if ranked else None
        default = _default(trials, ranked)
        seconds, gain = (default.against(ranked[0]), default.over(ranked[0])) if default else (None, None)
        peer, ratio = (library(group, best) if best else None) or (None, None)
        title, device = first.workload, first.device["name"]
        found.append(Tuned(title, device, trials, best, seconds, gain, peer, ratio, default, spent[name]))
    return sorted(found, key=lambda t: (-len(t.trials), t.workload, t.device))


def _own_s(record: Record) -> float:
    """Seconds that a measurement took, from its record."""
    detail = record.detail
    seconds = detail.get("seconds") if isinstance(detail, dict) else None
    known = seconds.values() if isinstance(seconds, dict) else ()
    return float(sum(x for x in known if isinstance(x, int | float) and 0 <= x < PAUSE_S))


def _default(trials: Sequence[Record], ranked: Sequence[RankedRecord]) -> RankedRecord | None:
    key = key_of(trials[0]) if trials else None
    return next((c for c in ranked if key_of(c.record) == key), None)


def importance(trials: Sequence[Record]) -> list[Importance]:
    """Importance of each knob with several values among passed trials, per template, the greatest first; knobs without
    enough trials to tell are left out.

    epsilon squared: the correlation ratio without what as many groups explain by chance (Kelley, "An unbiased
    correlation ratio measure", PNAS 21, 1935). Knobs that matter only together show little of it each.
    """
    found = []
    for template in dict.fromkeys(r.template for r in trials):
        some = [r for r in trials if r.template == template and passed(r)]
        times = np.log([r.steady_s for r in some])
        random = np.random.default_rng(0)  # the same records give the same page
        halves = np.array([random.permutation(len(some))[: len(some) // 2] for _ in range(IMPORTANCE_HALVES)])
        for knob in knobs(some):
            values: dict[str, int] = {}
            groups = np.array([values.setdefault(json.dumps(r.config[knob]), len(values)) for r in some])
            share = float(_explained(times[None], groups[None])[0])
            if np.isnan(share):
                continue
            parts = _explained(times[halves], groups[halves])
            parts = parts[~np.isnan(parts)]
            low, high = 0.0, 1.0
            if len(parts) >= IMPORTANCE_HALVES / 2:
                off = np.quantile(parts, [0.05, 0.95]) - np.mean(parts)
                low, high = (float(np.clip(share + x, 0.0, 1.0)) for x in off)
            shown = max(0.0, share)
            found.append(Importance(template, knob, shown, len(some), min(low, shown), max(high, shown)))
    return sorted(found, key=lambda i: -i.share)


def _explained(times: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Epsilon squared (explained variance, bias-corrected) per row; NaN if undetermined."""
    rows, n = times.shape
    if n == 0:
        return np.full(rows, np.nan)
    most = int(groups.max()) + 1
    places = (groups + most * np.arange(rows)[:, None]).ravel()
    sizes = np.bincount(places, minlength=rows * most).reshape(rows, most)
    means = np.bincount(places, times.ravel(), rows * most).reshape(rows, most) / np.maximum(sizes, 1)
    total = ((times - times.mean(1, keepdims=True)) ** 2).sum(1)
    within = ((times - np.take_along_axis(means, groups, 1)) ** 2).sum(1)
    k = (sizes > 0).sum(1)
    says = (n > k) & (k >= 2) & (total > 0)
    share = 1.0 - within / np.where(says, total, 1.0) * (n - 1) / np.where(says, n - k, 1)
    return np.where(says, share, np.nan)


def knobs(trials: Sequence[Record]) -> list[str]:
    """Names of knobs that all trials have, with several values among them; [] without trials."""
    if not trials:
        return []
    common = [k for k in trials[0].config if all(k in r.config for r in trials)]
    return [k for k in common if len({json.dumps(r.config[k]) for r in trials}) > 1]


def levels(trials: Sequence[Record], knob: str) -> list[object]:
    """Distinct values of a knob, all trials having it: numbers by size, then others by their text."""
    values = {json.dumps(r.config[knob]): r.config[knob] for r in trials}

    def order(v: Any) -> tuple[int, Any]:
        return (0, v) if isinstance(v, int | float) else (1, str(v))

    return sorted(values.values(), key=order)
