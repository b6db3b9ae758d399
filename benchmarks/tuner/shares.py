"""Equal shares against the shape of greatest expected gain; recorded tuning tables stand for shapes, no GPU needed.

python benchmarks/tuner/shares.py --tables DIR

All tables of DIR are one set. Each is scaled so that its optimum weighs between a tenth and ten (log-uniform, by seed),
a trial of any costs one unit, and after so many trials a table the sum of what was found is divided by the sum of the
optima. The strategy is the climber: the question is who is next, not how a shape is searched. Nothing is shared between
tables, since their spaces differ.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorir.api.shape_set import SLICE_TRIALS, expected_gain
from tensorir.tune.pool import Pool
from tensorir.tune.strategy import make

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_shares.json"
Choose = Callable[[Sequence["Shape"]], "Shape"]


class Shape:
    """One table being tuned."""

    def __init__(self, pool: Pool, times: Any, optimum: float, seed: int) -> None:
        self.times, self.optimum = times * optimum / np.nanmin(times), optimum
        self.search = make("climb", pool, seed=seed)
        self.curve: list[float] = []

    def trial(self) -> None:
        (row,) = self.search.ask()
        time = float(self.times[row])
        self.search.tell(row, None if math.isnan(time) else time)
        best = self.curve[-1] if self.curve else math.inf
        self.curve.append(best if math.isnan(time) else min(best, time))


def equal(shapes: Sequence[Shape]) -> Shape:
    return min(shapes, key=lambda s: len(s.curve))


def gain(shapes: Sequence[Shape]) -> Shape:
    typical = max((s.curve[-1] for s in shapes if math.isfinite(s.curve[-1])), default=1.0)
    return max(shapes, key=lambda s: expected_gain(1.0, s.curve, 1.0, typical))


def run(tables: Sequence[tuple[Pool, Any]], choose: Choose, seed: int, budgets: Sequence[int]) -> list[float]:
    """The sum found over the sum of the optima, after each budget (trials a table)."""
    scales = np.exp(np.random.default_rng(seed).uniform(math.log(0.1), math.log(10), len(tables)))
    shapes = [Shape(p, t, float(x), 100 * seed + n) for n, ((p, t), x) in enumerate(zip(tables, scales, strict=True))]
    for shape in shapes:
        shape.trial()
    found = []
    for budget in budgets:
        while sum(len(s.curve) for s in shapes) + SLICE_TRIALS <= budget * len(shapes):
            chosen = choose(shapes)
            for _ in range(SLICE_TRIALS):
                chosen.trial()
        worst = max(s.curve[-1] for s in shapes if math.isfinite(s.curve[-1]))
        total = sum(s.curve[-1] if math.isfinite(s.curve[-1]) else worst for s in shapes)
        found.append(total / float(scales.sum()))
    return found


def load(folder: Path) -> list[tuple[Pool, Any]]:
    found = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as data:
            meta = json.loads(data["meta"].tobytes())
            found.append((Pool(meta["params"], meta["values"], data["X"]), data["t"].astype(np.float64)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Equal shares against expected gains on recorded tables.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budgets", type=lambda t: tuple(int(b) for b in t.split(",")), default=(10, 15, 25, 50))
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    tables = load(given.tables)
    document: dict[str, Any] = {"tables": len(tables), "seeds": given.seeds, "trials_a_table": given.budgets}
    for name, choose in (("equal", equal), ("gain", gain)):
        runs = [run(tables, choose, seed, given.budgets) for seed in range(given.seeds)]
        document[name] = [round(statistics.median(column), 4) for column in zip(*runs, strict=True)]
        print(f"{name:6}" + "".join(f"{r:9.3f} @{b}" for r, b in zip(document[name], given.budgets, strict=True)))
    given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
