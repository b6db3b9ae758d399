"""What is it worth to time each candidate beside the default? The same candidates, often, on a restless machine.

    python benchmarks/tuner/drift.py                     # 12 candidates, 8 times each, about five minutes
    python benchmarks/tuner/drift.py --burners 3         # with other programs of our own, on in every other minute

Every trial is what ``tune`` asks of its worker. Its ``samples`` are what the clock said, and their median is compared
with ``time_s``, the median of the samples over those of the default in turn. Reported for both: the spread of the
same candidate's log time (the standard deviation over its repeats, median over the candidates, and the 90th percentile
of the distance from the candidate's median), and in what share of all pairs of trials of two candidates that are more
than 5 % apart the slower one looked faster. Who is slower is said by the medians of the times that are judged.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.api.measurer import Measurer
from tensorir.codec import encode
from tensorir.runtime.device import open_device
from tensorir.target import Target
from tensorir.tune.spec import RunSpec
from tensorir.tune.template import suiting
from tensorir.tune.trial import Trial

RESULTS = Path(__file__).parent.parent / "results" / "tuner_drift.json"
APART = math.log(1.05)
KEPT = ("time_s", "samples", "drift")
BURN_S = 60.0


class Burners:
    """Programs that do nothing but keep cores busy, some of them in every other minute."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self._random = most, random.Random(seed)
        self._running: list[subprocess.Popen[bytes]] = []
        self._phase, self._began = 0, time.monotonic()

    def tick(self) -> None:
        """Start or end them when it is time."""
        phase = int((time.monotonic() - self._began) / BURN_S)
        if self.most and phase != self._phase:
            self._phase = phase
            self.stop()
            if phase % 2:
                number = self._random.randint(1, self.most)
                self._running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]

    def stop(self) -> None:
        """End all of them."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running = []


def candidates(work: tir.Workload, target: Target, seed: int) -> list[tuple[str, dict[str, Any]]]:
    """The default, and random legal configurations of all templates."""
    spaces = {n: t.space_for(target) for n, t in suiting(work.templates, target)}
    first = next(iter(spaces))
    found = [(first, dict(spaces[first].default))]
    drawn = random.Random(seed)
    some = itertools.islice(itertools.cycle(spaces.items()), 200)
    return found + [(name, space.config(drawn.randrange(len(space.legal)))) for name, space in some]


@contextlib.contextmanager
def opened(work: tir.Workload) -> Iterator[tuple[Measurer, list[tuple[str, dict[str, Any]]]]]:
    """A measuring side that has timed the default, and what may be measured beside it."""
    with Measurer(work, None, RunSpec(budget_s=None)) as measurer:
        target = Target.parse(measurer.open()["target"])
        every = candidates(work, target, 0)
        name, config = every[0]
        measurer.known([], {"template": name, "config": config})
        measurer.measure(Trial(name, config, "default"), None)
        yield measurer, every[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=12, help="candidates")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--burners", type=int, default=0, help="at most so many programs of our own")
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    work = tir.ops.conv2d(1, 64, 28, 28, 64, 3, 3, pad=1)
    trials: dict[int, list[dict[str, Any]]] = {}
    burners = Burners(arguments.burners, 1)
    try:
        with opened(work) as (measurer, waiting):
            chosen: list[tuple[str, dict[str, Any]]] = []
            while len(chosen) < arguments.count:  # those that are not cut short
                name, config = waiting.pop(0)
                if measurer.measure(Trial(name, config), None).ok:
                    chosen.append((name, config))
            for _ in range(arguments.repeats):
                for n, (name, config) in enumerate(chosen):
                    burners.tick()
                    result = encode(measurer.measure(Trial(name, config), None))
                    if result["status"] == "ok":
                        trials.setdefault(n, []).append({key: result[key] for key in KEPT if key in result})
    finally:
        burners.stop()
    made = {
        "device": open_device(None).identity,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "burners": arguments.burners,
        "candidates": len(trials),
        "repeats": arguments.repeats,
        "drift": {"least": _of(trials, min), "most": _of(trials, max)},
        "as_measured": judged(trials, lambda r: statistics.median(r["samples"])),
        "beside_the_default": judged(trials, lambda r: r["time_s"]),
    }
    print(json.dumps(made, indent=1))
    before = json.loads(arguments.json.read_text()) if arguments.json.exists() else []
    kept = [b for b in before if b["burners"] != arguments.burners]
    arguments.json.write_text(json.dumps([*kept, made], indent=1) + "\n")


def _of(trials: dict[int, list[dict[str, Any]]], which: Any) -> float:
    return round(float(which(r.get("drift", 1.0) for some in trials.values() for r in some)), 3)


def judged(trials: dict[int, list[dict[str, Any]]], time_of: Any) -> dict[str, float]:
    """Spread of the same candidate's log times, and how often two different ones were confused."""
    logs = [np.log([time_of(r) for r in some]) for some in trials.values()]
    truth = [float(np.median(x)) for x in logs]
    away = np.concatenate([np.abs(x - np.median(x)) for x in logs])
    confused = total = 0
    for a, b in itertools.combinations(range(len(logs)), 2):
        if abs(truth[a] - truth[b]) > APART:
            wrong = (logs[a][:, None] > logs[b][None, :]) != (truth[a] > truth[b])
            confused, total = confused + int(wrong.sum()), total + wrong.size
    return {
        "deviation": round(float(np.median([x.std() for x in logs])), 4),
        "away_90": round(float(np.percentile(away, 90)), 4),
        "confused": round(confused / max(1, total), 4),
    }


if __name__ == "__main__":
    main()
