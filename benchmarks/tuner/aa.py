"""Does the final round tell the truth? The same kernel under 20 names must be a tie, one 3 % faster must win.

    python benchmarks/tuner/aa.py                       # 20 runs of each, about a quarter of an hour
    python benchmarks/tuner/aa.py --runs 3 --seconds 10

What is run is ``tune`` as users call it: a first call measures every name, and each run is another call that finds all
trials in the log and only does the final round. Every name is its own source text and is compiled by itself. The kernel
is a loop that does nothing a given number of times, so that 3 % less work is 3 % less time, up to the launch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import tensorir as tir
from tensorir.api.origin import from_file
from tensorir.runtime.device import open_device
from tensorir.tune import race as paired_race
from tensorir.tune.log import LogReader

TURNS = 500_000
SHORTER = 0.97
RESULTS = Path(__file__).parent.parent / "results" / "tuner_aa.json"


def names(count: int, faster: bool) -> tir.Workload:
    """``count`` configurations with one kernel; of the last 3 % of the work is left out when ``faster``."""
    A = tir.placeholder((64,), name="A")
    C = tir.compute((64,), lambda i: A[i] * 5 + 7, name="C")

    def schedule(s: tir.Schedule, config: dict[str, Any]) -> tir.Schedule:
        outer, _ = s.split("C.i", [None, 32])
        s.bind(outer, "block.x")
        turns = int(TURNS * SHORTER) if faster and config["name"] == count - 1 else TURNS
        head, brace, body = s.source().partition("{\n")
        loop = f"  for (volatile int turn = 0; turn < {turns}; ++turn);  // name {config['name']}\n"
        return s.with_source(head + brace + loop + body)

    return tir.Workload(f"names_{count}_{faster}", C, {"loop": (schedule, tir.Space(name=range(count)))})


def series(count: int, faster: bool, runs: int, seconds: float) -> dict[str, Any]:
    """All runs of one kind: in how many the answer was right, and what they cost."""
    work = from_file(str(Path(__file__).resolve()), "names", {"count": count, "faster": faster})
    made = []
    with tempfile.TemporaryDirectory() as log:
        work.tune(trials=count, budget=None, log=log, strategy="grid", top=1)
        for run in range(runs):
            known = {r.id for r in LogReader(log).records(kind="final")}
            started = time.monotonic()
            outcome = work.tune(trials=count, budget=None, log=log, strategy="grid", top=count, final_s=seconds)
            took = time.monotonic() - started
            races = [r.race for r in LogReader(log).records(kind="final") if r.id not in known]
            if outcome.trials or len(races) != count:
                raise RuntimeError("more than the final round was run, or less")
            won = outcome.best is not None and outcome.best.config["name"] == count - 1 and not outcome.ties
            right = won if faster else len(outcome.ties) == count - 1
            made.append({
                "right": right,
                "ties": len(outcome.ties),
                "rounds": max(r["rounds"] for r in races),
                "widest_ratio": round(max(r["ratio"] for r in races), 4),
                "seconds": round(took, 1),
                "load": round(os.getloadavg()[0], 1),
            })  # fmt: skip
            print(f"{'3 % faster' if faster else 'same'}, run {run}: {made[-1]}", flush=True)
    return {
        "names": count,
        "faster_by": round(1 - SHORTER, 3) if faster else 0.0,
        "race_s": seconds,
        "runs": runs,
        "right": sum(m["right"] for m in made),
        "median_rounds": statistics.median(m["rounds"] for m in made),
        "median_seconds": statistics.median(m["seconds"] for m in made),
        "each": made,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--names", type=int, default=20, help="how many have the same kernel")
    parser.add_argument(
        "--finalists", type=int, default=6, help="how many the 3 %% faster one is among, itself included"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="that the same kernels race at most")
    parser.add_argument("--longest", type=float, default=120.0, help="that the faster one has at most to win")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = open_device("opencl")
    found = {
        "device": device.identity,
        "cores": os.cpu_count(),
        "test": {
            "error": paired_race.FAMILY_ERROR,
            "family": "every ordered pair of finalists at every round (Bonferroni, anytime-valid)",
            "margin": paired_race.LEAD_LOG_RATIO,
            "tie": paired_race.TIE_LOG_RATIO,
        },
        "same": series(options.names, False, options.runs, options.seconds),
        "faster": series(options.finalists, True, options.runs, options.longest),
    }
    for kind in ("same", "faster"):
        print(f"{kind}: right in {found[kind]['right']} of {options.runs}")
    options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
