"""What a report says of tuning logs, as numbers: who found what when, which knobs mattered, what failed."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorir.runtime.machine import Load
from tensorir.tune.log import Choice, choose, identity_of, key_of, passed
from tensorir.tune.ratio import Ratio
from tensorir.tune.record import Record, compares, steady_s


@dataclass(frozen=True)
class Tuned:
    """The records of one computation on one device.

    trials:    in the order of time; the first is the default's
    best:      the configuration that would be loaded, None if none is valid
    default_s: seconds of the default to compare with the best's (``Choice.against``); None if it is not valid
    gain:      the default's time over the best's
    older:     trials whose times do not compare with these (``record.compares``), and are left out
    """

    workload: str
    device: str
    trials: tuple[Record, ...]
    best: Choice | None
    default_s: float | None
    gain: Ratio | None = None
    older: int = 0

    @property
    def kind(self) -> str:
        """Of the device: ``cpu`` or ``gpu``."""
        return str(self.trials[0]["device"].get("kind", "cpu")) if self.trials else "cpu"

    @property
    def load(self) -> Load:
        """What else the machine did while the trials were timed."""
        return Load.sum(r.get("load") for r in self.trials)

    def best_so_far(self) -> list[float | None]:
        """Seconds of the fastest valid configuration after each trial; None before the first."""
        found: list[float | None] = []
        least = math.inf
        for r in self.trials:
            least = min(least, steady_s(r)) if passed(r) else least
            found.append(least if math.isfinite(least) else None)
        return found


@dataclass(frozen=True)
class Importance:
    """``share`` of the variance of log time that the values of a knob explain by themselves, over ``trials``."""

    template: str
    knob: str
    share: float
    trials: int


def tuned(records: Iterable[Record]) -> list[Tuned]:
    """Records by computation, device, driver and versions, those with most trials first."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for r in sorted(records, key=lambda r: (r["started"], r["id"])):
        groups[identity_of(r)].append(r)
    found = []
    for group in groups.values():
        trials, older = _alike([r for r in group if r["kind"] == "trial"])
        first, ranked = group[0], choose(group)
        best = ranked[0] if ranked else None
        default = _default(trials, ranked)
        seconds, gain = (default.against(ranked[0]), default.over(ranked[0])) if default else (None, None)
        found.append(Tuned(first["workload"], first["device"]["name"], trials, best, seconds, gain, older))
    return sorted(found, key=lambda t: (-len(t.trials), t.workload, t.device))


def _alike(trials: Sequence[Record]) -> tuple[tuple[Record, ...], int]:
    """The trials whose times compare, the present version's where it has any; and how many others there are."""
    new = tuple(r for r in trials if compares(r) or not passed(r))
    return (new, len(trials) - len(new)) if any(map(passed, new)) else (tuple(trials), 0)


def _default(trials: Sequence[Record], ranked: Sequence[Choice]) -> Choice | None:
    key = key_of(trials[0]) if trials else None
    return next((c for c in ranked if key_of(c.record) == key), None)


def importance(trials: Sequence[Record]) -> list[Importance]:
    """For each template and knob with several values, the greatest first.

    epsilon squared: the correlation ratio without what as many groups explain by chance (Kelley, "An unbiased
    correlation ratio measure", PNAS 21, 1935). Knobs that matter only together show little of it each.
    """
    found = []
    for template in dict.fromkeys(r["template"] for r in trials):
        some = [r for r in trials if r["template"] == template and passed(r)]
        times = np.log([steady_s(r) for r in some])
        total = float(((times - times.mean()) ** 2).sum()) if len(some) else 0.0
        for knob in knobs(some):
            groups: dict[str, list[float]] = defaultdict(list)
            for r, t in zip(some, times, strict=True):
                groups[json.dumps(r["config"][knob])].append(float(t))
            if len(some) <= len(groups) or not total:
                continue
            within = sum(float(((np.array(g) - np.mean(g)) ** 2).sum()) for g in groups.values())
            share = 1.0 - within / total * (len(some) - 1) / (len(some) - len(groups))
            found.append(Importance(template, knob, max(0.0, share), len(some)))
    return sorted(found, key=lambda i: -i.share)


def knobs(trials: Sequence[Record]) -> list[str]:
    """Knobs that all the trials have, with several values among them."""
    if not trials:
        return []
    common = [k for k in trials[0]["config"] if all(k in r["config"] for r in trials)]
    return [k for k in common if len({json.dumps(r["config"][k]) for r in trials}) > 1]


def levels(trials: Sequence[Record], knob: str) -> list[Any]:
    """The values of a knob among the trials: numbers by size, words by name."""
    values = {json.dumps(r["config"][knob]): r["config"][knob] for r in trials}

    def order(v: Any) -> tuple[int, Any]:
        return (0, v) if isinstance(v, int | float) else (1, str(v))

    return sorted(values.values(), key=order)
