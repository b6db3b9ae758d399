"""Tuning among candidates that crash, hang, blow up or lie: statuses, the winner, and how far budgets are overrun.

    python benchmarks/tuner/chaos.py

The corpus is that of the tests, ``tests/api/chaos_zoo.py``. One run has all of it and one only the good candidates;
then runs with budgets that end in the midst of it, in orders drawn at random.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tensorir.api.origin import from_file
from tensorir.runtime.device import open_device
from tensorir.tune.log import LogReader

ROOT = Path(__file__).resolve().parents[2]
ZOO = ROOT / "tests" / "api" / "chaos_zoo.py"
RESULTS = ROOT / "benchmarks" / "results" / "tuner_chaos.json"
BUDGETS = (6.0, 8.0, 11.0, 14.0, 18.0, 25.0)


def run(evil: bool, budget: float | None, **options: Any) -> dict[str, Any]:
    """One run from an empty log."""
    with tempfile.TemporaryDirectory() as log:
        started = time.monotonic()
        work = from_file(str(ZOO), "corpus", {"evil": evil})
        outcome = work.tune(budget=budget, log=log, started=started, **options)
        took = time.monotonic() - started
        finals = {r.config["kind"]: r.status for r in LogReader(log).records(kind="final")}
    return {
        "budget_s": budget,
        "took_s": round(took, 2),
        "over_s": None if budget is None else round(took - budget, 2),
        "stopped": outcome.stopped,
        "statuses": {r.config["kind"]: r.status for r in outcome.records},
        "finals": finals,
        "best": outcome.best and outcome.best.config["kind"],
        "ties": sorted(t.config["kind"] for t in outcome.ties),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    sys.path.insert(0, str(ZOO.parent))
    from chaos_zoo import GOOD, LATE, STATUS

    device = open_device("opencl")
    whole = run(True, None, strategy="grid", timeout=4.0, compile_timeout=10.0)
    alone = run(False, None, strategy="grid")
    wanted = STATUS | dict.fromkeys([*GOOD, *LATE], "ok")
    right = whole["statuses"] == wanted and LATE.items() <= whole["finals"].items()
    cut = []
    for seed, budget in enumerate(BUDGETS):
        cut.append(run(True, budget, strategy="random", seed=seed))
        print(f"budget {budget:g} s: {cut[-1]['over_s']:+.2f} s, {len(cut[-1]['statuses'])} trials, "
              f"best {cut[-1]['best']}, load {cut[-1]['load']}", flush=True)  # fmt: skip
    found = {
        "device": device.identity,
        "cores": os.cpu_count(),
        "statuses_right": right,
        "winner_in_ties_of_run_without": whole["best"] in {alone["best"], *alone["ties"]},
        "winners_of_budgets_good": all(c["best"] in (None, *GOOD) for c in cut),
        "most_over_budget_s": max(c["over_s"] for c in cut),
        "with_evil": whole,
        "without": alone,
        "budgets": cut,
    }
    for key in (
        "statuses_right",
        "winner_in_ties_of_run_without",
        "winners_of_budgets_good",
        "most_over_budget_s",
    ):
        print(f"{key}: {found[key]}")
    options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
