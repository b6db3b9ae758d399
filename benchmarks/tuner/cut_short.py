"""Where the seconds of tuning go: how many of them to candidates that could not win?

    python benchmarks/tuner/cut_short.py                        # three workloads, 40 random candidates each
    python benchmarks/tuner/cut_short.py --builders 2 --strategy bayes --json FILE

A worker says how long each phase of a trial took (``detail.seconds``). Summed here by what came of the trial: a time
within three times the best of the run, a longer one (cut short or not), or none. Compiling, and checking in the
interpreter, are as long for slow candidates as for others: what cutting short can save is running and timing, and the
interpreter for what has been shown to be slow before. With several builders only what is left to the measuring
process is counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import tensorir as tir
from tensorir.tune.arm import believed_time

FAR = 3.0
LEAST = 0.8  # of a launch is what a trial that was cut short says that it takes at least
WORKLOADS: dict[str, dict[str, Any]] = {
    "conv2d 3x3 64 28": dict(c=64, h=28, w=28, k=64, r=3, s=3, pad=1),
    "conv2d 3x3 128 56 NHWC": dict(c=128, h=56, w=56, k=128, r=3, s=3, pad=1, layout="NHWC"),
    "matmul 512": dict(m=512, n=512, k=512),
}


def kind_of(record: dict[str, Any], best_s: float) -> str:
    """What came of a trial."""
    if record.status not in ("ok", "skipped_slow"):
        return "failed"
    seconds = (believed_time(record) or 0.0) / (LEAST if record.status == "skipped_slow" else 1.0)
    return "far" if seconds > FAR * best_s else "near"


def tuned(shape: dict[str, Any], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run from an empty log: seconds by kind of trial and phase, and the counts."""
    work = tir.ops.matmul(**shape) if "m" in shape else tir.ops.conv2d(**shape)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as log:
        r = work.tune(trials=options.trials, budget="1h", seed=seed, log=log, strategy=options.strategy,
                      builders=options.builders, final_s=0.1, top=1)  # fmt: skip
    best_s = min((believed_time(x) or math.inf for x in r.records if x.status == "ok"), default=math.inf)
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for record in r.records[1:]:  # the default also sets everything up
        spent[kind_of(record, best_s)].update((record.detail or {}).get("seconds", {}))
    return {
        "best_s": best_s,
        "wall_s": round(time.monotonic() - began, 1),
        "counts": r.counts,
        "trials": dict(Counter(kind_of(x, best_s) for x in r.records[1:])),
        "seconds": {kind: {p: round(s, 3) for p, s in phases.items()} for kind, phases in spent.items()},
    }


def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all runs: trials and seconds of each kind, and those of the phases that can be cut."""
    made: dict[str, Any] = {}
    for kind in ("near", "far", "failed"):
        phases: Counter[str] = Counter()
        for run in runs:
            phases.update(run["seconds"].get(kind, {}))
        trials = sum(run["trials"].get(kind, 0) for run in runs)
        made[kind] = {"trials": trials, "seconds": round(sum(phases.values()), 2)}
        made[kind] |= {phase: round(s, 2) for phase, s in sorted(phases.items())}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--strategy", default="random")
    parser.add_argument("--builders", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write every run there")
    options = parser.parse_args()
    runs = {}
    for name, shape in WORKLOADS.items():
        for seed in range(options.seeds):
            runs[f"{name} seed {seed}"] = found = tuned(shape, options, seed)
            print(name, seed, json.dumps(found), flush=True)
    total = summed(list(runs.values()))
    for kind, spent in total.items():
        print(kind, json.dumps(spent))
    if options.json is not None:
        asked = {key: value for key, value in vars(options).items() if key != "json"}
        options.json.write_text(json.dumps({"cores": os.cpu_count(), **asked, "total": total, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
