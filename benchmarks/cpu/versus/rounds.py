"""Interleaved rounds: everyone who does a workload takes turns, in alternating order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from versus.data import BOUND, Files
from versus.shapes import Problem, to_json


@dataclass(frozen=True)
class Pace:
    """seconds: of a slot;  batch: of calls between two waits;  rest: before each slot, until spinning threads sleep."""

    rounds: int = 7
    seconds: float = 0.05
    batch: float = 0.004
    rest: float = 0.04


@dataclass
class Entry:
    """What one competitor did on one workload."""

    name: str
    rounds: list[list[float]] = field(default_factory=list)
    error: float | None = None
    about: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """entries: of those who did it right;  excluded: name to reason;  skipped: name to reason, nobody's fault."""

    problem: Problem
    entries: list[Entry]
    excluded: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


class Asked(Protocol):
    """A Process, or what a test puts in its place."""

    @property
    def name(self) -> str: ...

    def ask(self, **message: Any) -> dict[str, Any]: ...


def compete(
    problem: Problem,
    competitors: Sequence[Asked],
    pace: Pace,
    folder: Path,
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Prepare and check everyone, time the right ones in turn, and check them again.

    A result is compared with the float64 reference before the first and after the last slot; whoever errs, dies or
    deviates is left out of this workload and named.
    """
    files, outcome = Files(problem, folder), Outcome(problem, [])
    asked: list[tuple[Asked, Entry]] = []
    for one in competitors:
        answer = one.ask(do="prepare", problem=to_json(problem), x=str(files.x), w=str(files.w))
        if "skip" in answer:
            outcome.skipped[one.name] = answer["skip"]
        elif "ok" not in answer:
            outcome.excluded[one.name] = answer["error"]
        else:
            entry = Entry(one.name, about=answer["about"])
            if _checked(one, entry, files, outcome):
                asked.append((one, entry))
    for n in range(pace.rounds):
        _round(asked if n % 2 == 0 else asked[::-1], pace, outcome, sleep)
        asked = [(one, entry) for one, entry in asked if one.name not in outcome.excluded]
    outcome.entries = [entry for one, entry in asked if _checked(one, entry, files, outcome)]
    return outcome


def _round(order: Sequence[tuple[Asked, Entry]], pace: Pace, outcome: Outcome, sleep: Callable[[float], None]) -> None:
    for one, entry in order:
        sleep(pace.rest)
        answer = one.ask(do="run", seconds=pace.seconds, batch=pace.batch)
        if "times" in answer:
            entry.rounds.append(answer["times"])
        else:
            outcome.excluded[one.name] = answer["error"]


def _checked(one: Asked, entry: Entry, files: Files, outcome: Outcome) -> bool:
    file = files.x.with_name("result.npy")
    answer = one.ask(do="result", file=str(file))
    if "ok" not in answer:
        outcome.excluded[one.name] = answer["error"]
        return False
    found = files.error_of(file)
    entry.error = max(found, entry.error or 0.0)
    if not found <= BOUND:
        outcome.excluded[one.name] = f"wrong: error {found:.1e} of the largest output, allowed {BOUND:.0e}"
        return False
    return True
