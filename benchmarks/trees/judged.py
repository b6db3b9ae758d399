"""What two trees made of one configuration, as a row that says whether the second is worse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trees.names import difference

Answer = Mapping[str, Any]
_MEMORY = ("LD", "ST", "RED", "ATOM", "BAR", "SYNCS", "UTMA", "MEMBAR")
"""Opcodes of which none may be more, begin so; of others only the sum may not be more."""
RESAMPLES = 2000
_APPROXIMATE = 1e-3
"""Relative to the largest, for templates that round in a way of their own."""


def same_text(before: Answer, after: Answer) -> dict[str, Any]:
    """What differs of two emitted programs besides names: nothing, or which lines, and how they are launched."""
    found: dict[str, Any] = {}
    if (lines := difference(before["text"], after["text"])) is not None:
        found["lines"] = [_line(side["text"], n) for side, n in zip((before, after), lines, strict=True)]
    for what in ("launches", "params"):
        if before[what] != after[what]:
            found[what] = [before[what], after[what]]
    return found


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return f"{number}: {lines[number - 1].strip()}" if 0 < number <= len(lines) else f"{number}:"


def worse_on_cuda(before: Answer, after: Answer) -> tuple[list[str], list[str]]:
    """(what is more than before, what changed) of kernels, in words."""
    old, new = before["kernels"], after["kernels"]
    more, changed = list[str](), list[str]()
    if len(old) != len(new):
        more.append(f"{len(new)} kernels, {len(old)} before")
    for n, (a, b) in enumerate(zip(old, new, strict=False)):
        at = f" of kernel {n}" if len(old) > 1 else ""
        for what in ("registers", "spills", "shared_bytes"):
            _compare(f"{what}{at}", a[what], b[what], more, changed)
        x, y = Counter(a["opcodes"]), Counter(b["opcodes"])
        _compare(f"instructions{at}", sum(x.values()), sum(y.values()), more, changed)
        for name in sorted(x | y):
            kept = more if name.startswith(_MEMORY) else changed
            _compare(f"{name}{at}", x[name], y[name], kept, changed)
    for kind in sorted({*before.get("costs", {}), *after.get("costs", {})}):
        _compare(f"{kind}s", before["costs"].get(kind, 0), after["costs"].get(kind, 0), more, changed)
    more += [f"emulator: {p}" for p in after.get("problems", ()) if p not in before.get("problems", ())]
    return more, changed


def _compare(what: str, old: int, new: int, more: list[str], changed: list[str]) -> None:
    if old != new:
        (more if new > old else changed).append(f"{what} {old} -> {new}")


def results_apart(before: Path, after: Path, approximate: bool) -> str:
    """How far the results of two runs are apart, in words; nothing where they are alike."""
    if not before.exists() or not after.exists():
        return ""
    with np.load(before) as a, np.load(after) as b:
        if len(a) != len(b):
            return f"{len(b)} results, {len(a)} before"
        for name in a:
            x, y = a[name], b[name]
            if x.shape != y.shape:
                return f"shape {y.shape}, {x.shape} before"
            apart = float(np.abs(x - y).max(initial=0.0))
            most = _APPROXIMATE * float(np.abs(x).max(initial=0.0)) if approximate else 0.0
            if not apart <= most and not np.array_equal(x, y, equal_nan=True):
                return f"results differ by {apart:.3g}"
    return ""


Rounds = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Ratio:
    """Time before over time after, with its 95 % interval."""

    value: float
    low: float
    high: float


def ratio(pairs: Sequence[Rounds]) -> Ratio:
    """The geometric mean over kernels of the median ratio of a round, by a bootstrap over rounds.

    The two slots of a round follow each other, so that a machine that gets slower slows both.
    """
    rng = np.random.default_rng(0)
    values, drawn = list[float](), list[Any]()
    for before, after in pairs:
        logs = np.log(before) - np.log(after)
        values.append(float(np.median(logs)))
        drawn.append(np.median(logs[rng.integers(0, len(logs), (RESAMPLES, len(logs)))], axis=1))
    middle = float(np.mean(values))
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    return Ratio(math.exp(middle), math.exp(min(middle, low)), math.exp(max(middle, high)))


def counts(rows: Sequence[Answer]) -> Counter[str]:
    """How many rows have which status."""
    return Counter(r["status"] for r in rows)
