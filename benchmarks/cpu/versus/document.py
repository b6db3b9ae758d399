"""The raw result of a run as JSON, and views on it: everything that is reported comes from here."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from versus.protocol import Spec
from versus.rounds import Outcome
from versus.shapes import Problem, from_json, to_json
from versus.stats import Rounds, median_of

Json = dict[str, Any]


def competitor(spec: Spec, versions: Mapping[str, str], missing: str) -> Json:
    """What the document says about one competitor."""
    about = {"side": spec.side, "layout": spec.layout, "label": spec.label, "ahead": spec.ahead}
    return {**about, "versions": dict(versions), "missing": missing or None}


def row(outcome: Outcome) -> Json:
    """What the document says about one workload."""
    results = {}
    for entry in outcome.entries:
        rounds = [statistics.median(times) for times in entry.rounds]
        middle = median_of(rounds)
        results[entry.name] = {
            "median_s": middle.value,
            "low_s": middle.low,
            "high_s": middle.high,
            "fastest_s": min(min(times) for times in entry.rounds),
            "rounds_s": rounds,
            "error": entry.error,
            "about": entry.about,
        }
    return {
        "problem": to_json(outcome.problem),
        "flops": outcome.problem.flops,
        "results": results,
        "excluded": outcome.excluded,
        "skipped": outcome.skipped,
    }


def save(document: Json, path: Path) -> None:
    """Written beside and renamed, so that a run that is stopped leaves the last workload's whole document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


@dataclass(frozen=True)
class Result:
    """One competitor on one workload."""

    name: str
    side: str
    layout: str
    label: str
    ahead: bool
    rounds: Rounds
    median_s: float
    fastest_s: float
    error: float
    about: Json = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        return str(self.about.get("algorithm", self.label))


Test = Callable[[Result], bool]


@dataclass(frozen=True)
class Row:
    """One workload with its results."""

    problem: Problem
    results: Sequence[Result]
    excluded: Mapping[str, str]

    def side(self, side: str, test: Test = lambda _: True) -> list[Result]:
        return [r for r in self.results if r.side == side and test(r)]

    def best(self, side: str, test: Test = lambda _: True) -> Result | None:
        """The fastest by medians."""
        return min(self.side(side, test), key=lambda r: r.median_s, default=None)

    def fastest(self, side: str, test: Test = lambda _: True) -> float | None:
        """The fastest call of anyone on that side."""
        return min((r.fastest_s for r in self.side(side, test)), default=None)

    def gflops(self, seconds: float) -> float:
        return self.problem.flops / seconds / 1e9


def rows(document: Json) -> list[Row]:
    """Views on a document's workloads."""
    return [_row(r, document["competitors"]) for r in document["rows"]]


def _row(found: Json, competitors: Mapping[str, Json]) -> Row:
    results = []
    for name, r in found["results"].items():
        c = competitors[name]
        results.append(
            Result(name, c["side"], c["layout"], c["label"], c["ahead"], r["rounds_s"], r["median_s"], r["fastest_s"],
                   r["error"], r["about"])
        )  # fmt: skip
    return Row(from_json(found["problem"]), results, found["excluded"])
