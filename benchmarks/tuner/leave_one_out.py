"""Judge the search on recorded GPU tables with settings chosen on the other kernels' tables only; no GPU needed.

python benchmarks/tuner/leave_one_out.py --tables DIR --minutes 80     # goes on where it stopped
python benchmarks/tuner/leave_one_out.py --tables DIR --report

DIR holds the tables (``*.npz``) and the scorer (``score.py``). Each of ``SETTINGS`` differs from the search as it is in
one constant. For a kernel (all tables whose names begin alike: two implementations of a convolution are one kernel) the
setting counts that did best on the tables of all others: least mean, over tables, runs and the budgets 25, 50 and 100,
of the logarithm of the best time found over the optimum. A run is a line of the file of results, its first line the
environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parent))

import adapter
from measuring import environment

from tensorir.tune.strategy import STRATEGIES, Bayes

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_leave_one_out.jsonl"
BUDGETS = (25, 50, 100)
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no other side": {"STALE": 0.0},
    "other side at all times": {"STALE": 2.0},
    "fewer neighbours": {"LOCAL_EVERY": 8},
    "smaller start": {"INITIAL": 4},
    "larger start": {"INITIAL": 10},
}
Runs = dict[str, dict[str, dict[int, list[float]]]]  # setting, table, seed: the best after each budget over the optimum


def tuner(setting: str) -> type:
    """The scorer's adapter of the search with a setting."""
    name = f"bayes, {setting}"
    STRATEGIES[name] = type("Set", (Bayes,), SETTINGS[setting])
    return type("Adapted", (adapter.Bayes,), {"name": name})


def kernel(table: str) -> str:
    return table.split("_")[0]


def read(path: Path) -> Runs:
    found: Runs = defaultdict(lambda: defaultdict(dict))
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        run = json.loads(line)
        if "table" in run:
            found[run["setting"]][run["table"]][run["seed"]] = run["ratios"]
    return found


def measure(options: argparse.Namespace, paths: list[str], score: Any) -> None:
    end, known = time.monotonic() + 60 * options.minutes, read(options.out)
    if not options.out.exists():
        options.out.write_text(json.dumps({"environment": environment()}) + "\n", encoding="utf-8")
    for seed in range(options.first, options.first + options.seeds):
        print(f"seed {seed}", flush=True)
        for setting in options.settings:
            for path in paths:
                table = score._load(path)
                if seed in known[setting][table.name] or time.monotonic() > end:
                    continue
                began = time.process_time()
                run = score.run_one(table, tuner(setting), max(BUDGETS), seed)
                ratios = [round(min(run["curve"][b - 1], 100.0), 6) for b in BUDGETS]
                own = round(1e3 * (time.process_time() - began) / run["n"], 2)
                entry = {"setting": setting, "table": table.name, "seed": seed, "ratios": ratios, "ms_a_step": own}
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")


def loss(tables: dict[str, dict[int, list[float]]], of: list[str], seeds: set[int]) -> float:
    """Mean over ``of`` and the budgets of the log ratio."""
    return float(np.mean([np.log([tables[t][s] for s in sorted(seeds)]).mean() for t in of]))


def report(runs: Runs) -> None:
    """Print each table's result under the setting chosen on the others, by the seeds that all settings have."""
    tables = sorted({t for found in runs.values() for t in found})
    settings = [s for s in SETTINGS if all(runs[s][t] for t in tables)]
    seeds = set.intersection(*[set(runs[s][t]) for s in settings for t in tables])
    print(f"settings, compared on {len(seeds)} seeds: {', '.join(settings)}")
    print("median, and geometric mean over the seeds, of the best time over the optimum\n")
    print("| table | setting chosen on the other kernels | seeds | " + " | ".join(f"@{b}" for b in BUDGETS) + " |")
    print("|---|---|---|" + "---|" * len(BUDGETS))
    rows = {"left out": [], **{s: [] for s in settings}}  # type: dict[str, list[Any]]
    for table in tables:
        others = [t for t in tables if kernel(t) != kernel(table)]
        chosen = min(settings, key=lambda s: loss(runs[s], others, seeds))
        rows["left out"].append(middle(list(runs[chosen][table].values())))
        for setting in settings:
            rows[setting].append(middle([runs[setting][table][s] for s in sorted(seeds)]))
        print(f"| {table} | {chosen} | {len(runs[chosen][table])} | {cells(*rows['left out'][-1])} |")
    for kind, found in rows.items():
        print(f"| geometric mean, {kind} | | | {cells(*np.mean(found, axis=0))} |")


def middle(ratios: list[list[float]]) -> Any:
    """Medians and means of the logs after each budget."""
    return np.median(np.log(ratios), axis=0), np.log(ratios).mean(axis=0)


def cells(medians: Any, means: Any) -> str:
    return " | ".join(f"{np.exp(a):.3f}, {np.exp(b):.3f}" for a, b in zip(medians, means, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge the search with settings chosen on other kernels.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder with *.npz and score.py")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--settings", type=lambda t: t.split(","), default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--minutes", type=float, default=80.0)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--report", action="store_true", help="only print what has been measured")
    options = parser.parse_args()
    sys.dont_write_bytecode = True  # the folder of tables is not ours
    sys.path.insert(0, str(options.tables.resolve()))
    score = importlib.import_module("score")
    paths = [p for p in sorted(map(str, options.tables.resolve().glob("*.npz"))) if score._load(p).kind == "space"]
    if not options.report:
        measure(options, paths, score)
    report(read(options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
