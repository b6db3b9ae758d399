"""Which way of bringing one final round to the level of another errs least?

    python benchmarks/tuner/levels.py

Two rounds share a few configurations; their ratios say by how much the machine's pace differs, for
``tensorir.tune.ranking``. Each time has noise of ``sd`` in log, and with probability ``hit`` something slows it down
besides, by |N(0, by)| in log. Printed for each way: the 95th percentile of the error of the level, in
percent, over 4000 pairs of rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

PAIRS = 4000
MACHINES = ((0.005, 0.0, 0.0), (0.005, 0.1, 0.1), (0.01, 0.3, 0.1), (0.02, 0.1, 0.3))
Way = Callable[[list[float]], float]


def trimmed(logs: list[float]) -> float:
    """The mean of the middle half."""
    cut = len(logs) // 4
    return statistics.mean(sorted(logs)[cut : len(logs) - cut])


def hodges_lehmann(logs: list[float]) -> float:
    """The median of the means of all pairs."""
    return statistics.median((a + b) / 2 for i, a in enumerate(logs) for b in logs[i:])


WAYS: dict[str, Way] = {
    "default": lambda logs: logs[0],
    "median": lambda logs: math.log(statistics.median(map(math.exp, logs))),  # what choosing does
    "median log": statistics.median,
    "mean log": statistics.mean,
    "trimmed": trimmed,
    "Hodges-Lehmann": hodges_lehmann,
}


def errors(way: Way, sd: float, hit: float, by: float, shared: int) -> float:
    """The 95th percentile of how far off the level is."""
    rng = np.random.default_rng(1)

    def logs() -> NDArray[np.float64]:
        size = (PAIRS, shared)
        return rng.normal(0, sd, size) + (rng.random(size) < hit) * np.abs(rng.normal(0, by, size))

    ratios: list[list[float]] = (logs() - logs()).tolist()
    return float(np.percentile([abs(way(r)) for r in ratios], 95))


def main() -> None:
    print(f"{'sd, hit, by':20} shared  " + "  ".join(f"{name:>14}" for name in WAYS))
    for machine in MACHINES:
        for shared in (1, 2, 3, 5, 6):
            found = [f"{100 * errors(way, *machine, shared):14.2f}" for way in WAYS.values()]
            print(f"{machine!s:20} {shared:6}  " + "  ".join(found))


if __name__ == "__main__":
    main()
