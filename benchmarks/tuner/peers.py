"""One table: our search beside random search, the climber, scikit-optimize, Optuna and every strategy of Kernel Tuner.

    pip install kernel_tuner optuna
    python benchmarks/tuner/peers.py --tables DIR         # all, 20 seeds: hours; continues where it stopped
    python benchmarks/tuner/peers.py --tables DIR --only bayes,climb --seeds 5
    python benchmarks/tuner/peers.py --tables DIR --show  # the table of what has been measured

DIR holds recorded tuning tables (``*.npz``) and their scorer (``score.py``), see README.md. Every run is one line of
the result: the best time found over the table's optimum after 25, 50, 100 and 200 measurements of different valid
rows. Proposals that are invalid or repeated are free, as in the scorer's protocol; Kernel Tuner runs in its own
simulation mode, its unique evaluations counted in their order.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "results" / "tuner_peers.jsonl"
BUDGETS = (25, 50, 100, 200)
OURS = {"bayes": "Bayes", "climb": "Climber", "random": "Random", "evolve": "Evolution"}
SLOW = ("skopt:gp", "skopt:pool")
"""Tuners that take up to a second of their own for each step: fewer seeds and steps unless they are asked for."""

Run = dict[str, Any]
Ratios = list[float]


def ours(kind: str, tables: Path, table: str, seed: int, budget: int) -> Run:
    """A strategy of this package, or a peer that asks and tells."""
    score = importlib.import_module("score")
    recorded = score._load(str(tables / f"{table}.npz"))
    found = score.run_one(recorded, _factory(kind), budget, seed)
    steps = max(1, found["n"])
    return {"curve": found["curve"], "ms_step": 1e3 * found["overhead"] / steps, "stalls": found["stalls"] / steps}


def _factory(kind: str) -> Callable[..., Any]:
    if kind in OURS:
        return getattr(importlib.import_module("adapter"), OURS[kind])  # type: ignore[no-any-return]
    module = importlib.import_module("ask_and_tell")
    return {"skopt:gp": module.ScikitOptimize, "skopt:pool": module.ScikitOptimizeOnPool, "optuna:tpe": module.Optuna}[
        kind
    ]


def kernel_tuner(strategy: str, tables: Path, table: str, seed: int, budget: int) -> Run:
    """A strategy of Kernel Tuner in its simulation mode, with its default options."""
    simulated = importlib.import_module("kernel_tuner_runs")
    return dict(simulated.run(strategy, tables, table, seed, budget))


def tuner(name: str) -> Callable[[Path, str, int, int], Run]:
    kind, _, strategy = name.partition(":")
    return partial(kernel_tuner, strategy) if kind == "kt" else partial(ours, name)


def names() -> list[str]:
    try:
        strategies = importlib.import_module("kernel_tuner_runs").strategies()
    except ImportError:
        print("Kernel Tuner is not installed; its strategies are left out", file=sys.stderr)
        strategies = []
    return [*OURS, *SLOW, "optuna:tpe", *(f"kt:{s}" for s in strategies)]


def job(work: tuple[str, Path, str, int, int]) -> Run:
    name, tables, table, seed, budget = work
    line: Run = {"tuner": name, "table": table, "seed": seed, "budget": budget}
    try:
        found = tuner(name)(tables, table, seed, budget)
    except Exception as error:  # a peer's failure is a result
        return {**line, "error": f"{type(error).__name__}: {error}"[:300]}
    curve = found.pop("curve")
    best = {str(b): _at(curve, b) for b in BUDGETS if b <= budget}
    return {**line, "best": best, **{k: round(v, 2) for k, v in found.items()}}


def _at(curve: Ratios, budget: int) -> float | None:
    """Best ratio after ``budget`` measurements; a tuner that ended by itself keeps what it had."""
    if not curve or not math.isfinite(value := curve[min(budget, len(curve)) - 1]):
        return None
    return round(value, 5)


def known(path: Path) -> dict[tuple[str, str, int], Run]:
    if not path.exists():
        return {}
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    return {(r["tuner"], r["table"], r["seed"]): r for r in lines if "tuner" in r}


def table_of(runs: Iterable[Run]) -> str:
    """Geometric mean over tables of the medians over seeds; a run that found nothing counts as 10 times the optimum."""
    cells: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    seeds: dict[str, set[int]] = defaultdict(set)
    failed: dict[str, int] = defaultdict(int)
    steps: dict[str, list[float]] = defaultdict(list)
    for r in runs:
        seeds[r["tuner"]].add(r["seed"])
        if "error" in r:
            failed[r["tuner"]] += 1
            continue
        if "ms_step" in r:
            steps[r["tuner"]].append(r["ms_step"])
        for budget, value in r["best"].items():
            cells[r["tuner"]][budget][r["table"]].append(10.0 if value is None else value)
    lines = [f"| tuner | seeds | tables | {' | '.join(f'@{b}' for b in BUDGETS)} | worst @100 | own ms a step |"]
    lines.append("|" + "---|" * (len(BUDGETS) + 5))

    def middle(found: dict[str, list[float]]) -> float:
        return math.exp(statistics.fmean(math.log(statistics.median(v)) for v in found.values()))

    def order(name: str) -> float:
        found = cells[name].get("100") or cells[name].get("50")
        return middle(found) if found else math.inf

    for name in sorted(seeds, key=order):
        made = cells[name]
        shown = [f"{middle(made[str(b)]):.3f}" if str(b) in made else "" for b in BUDGETS]
        worst = f"{max(statistics.median(v) for v in made['100'].values()):.3f}" if "100" in made else ""
        own = f"{statistics.median(steps[name]):.1f}" if steps[name] else ""
        count = max((len(found) for found in made.values()), default=0)
        note = f" ({failed[name]} runs failed)" if failed[name] else ""
        lines.append(f"| {name}{note} | {len(seeds[name])} | {count} | {' | '.join(shown)} | {worst} | {own} |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our search beside its peers on recorded tuning tables.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder with *.npz and score.py")
    parser.add_argument("--only", default="", help="tuners by name, with commas; kt: for all of Kernel Tuner's")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budget", type=int, default=max(BUDGETS))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--again", action="store_true", help="forget earlier runs of these tuners")
    parser.add_argument("--show", action="store_true", help="only print the table of what has been measured")
    return parser.parse_args()


def chosen(only: str) -> list[str]:
    every = names()
    wanted = [w for w in only.split(",") if w]
    return [n for n in every if not wanted or n in wanted or any(w.endswith(":") and n.startswith(w) for w in wanted)]


def main() -> int:
    options = arguments()
    tables = options.tables.resolve()
    if not (tables / "score.py").is_file():
        print(f"{options.tables} holds no score.py", file=sys.stderr)
        return 2
    sys.dont_write_bytecode = True  # the folder of tables is not ours
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE), str(tables)]
    done = known(options.out)
    if not options.show:
        wanted = chosen(options.only)
        if options.again:
            done = {key: r for key, r in done.items() if key[0] not in wanted}
        spaces = sorted(p.stem for p in tables.glob("*.npz"))
        work = [
            (name, tables, table, seed, options.budget)
            for seed in range(options.seeds)
            for name in wanted
            for table in spaces
            if done.get((name, table, seed), {"budget": -1})["budget"] < options.budget
        ]
        with multiprocessing.Pool(options.jobs, maxtasksperchild=50) as pool:
            for n, line in enumerate(pool.imap_unordered(job, work, chunksize=1)):
                done[line["tuner"], line["table"], line["seed"]] = line
                if n % 4 == 3 or n + 1 == len(work):
                    save(options.out, done)
    print(table_of(done.values()))
    return 0


def save(path: Path, done: dict[tuple[str, str, int], Run]) -> None:
    environment = importlib.import_module("measuring").environment(("kernel_tuner", "optuna"))
    lines = [{"schema": 1, "environment": environment}, *(done[key] for key in sorted(done))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
