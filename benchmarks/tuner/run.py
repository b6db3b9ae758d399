"""Score the search strategies on recorded GPU tuning tables, side by side; no GPU needed.

python benchmarks/tuner/run.py --tables DIR

DIR holds the tables (``*.npz``) and the scorer (``score.py``) that defines the protocol and the format.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "results" / "tuner_score.json"
TUNERS = ("Bayes", "Evolution", "Climber", "Random")


def outcome(score: Any, paths: list[str], tuner: str, options: argparse.Namespace) -> dict[str, Any]:
    prior = str(options.tables.resolve()) if options.prior else None
    rows, _, _ = score.score(
        f"adapter:{tuner}", paths, options.seeds, options.budgets, options.jobs, prior, options.noise, quiet=True
    )
    return {"rows": rows, "summary": score.show(rows, options.budgets, f"== {tuner}")}


def side_by_side(outcomes: dict[str, dict[str, Any]], budgets: tuple[int, ...]) -> str:
    """Geometric means over the tables of the median ratio to the optimum (1 is the optimum)."""
    lines = ["", f"{'':12}" + "".join(f"{'@' + str(b):>9}{'worst':>8}{'hit5':>7}" for b in budgets) + f"{'ms/step':>9}"]
    for name, found in outcomes.items():
        cells = []
        for b in budgets:
            s = found["summary"][b]
            cells.append(f"{s['geomean']:9.3f}{s['worst']:8.3f}{100 * s['hit5']:6.0f}%")
        overhead = sum(row["ovh_ms"] for row in found["rows"]) / len(found["rows"])
        lines.append(f"{name:12}" + "".join(cells) + f"{overhead:9.1f}")
    some = next(iter(outcomes))  # it is in each summary
    exact = "".join(f"{outcomes[some]['summary'][b]['rand_geomean']:9.3f}{'':15}" for b in budgets)
    return "\n".join([*lines, f"{'random exact':12}" + exact])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Score the search strategies on recorded tuning tables.")
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR", help="folder with *.npz and score.py")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--budgets", type=lambda t: tuple(int(b) for b in t.split(",")), default=(25, 50, 100))
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", type=lambda t: tuple(t.split(",")), default=TUNERS, help="of " + ", ".join(TUNERS))
    parser.add_argument("--prior", action="store_true", help="with the other devices' tables of the kernel as priors")
    parser.add_argument("--noise", action="store_true", help="tell times with the recorded noise")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    tables = options.tables.resolve()
    paths = sorted(map(str, tables.glob("*.npz")))
    if not paths or not (tables / "score.py").is_file():
        print(f"{options.tables} holds no tables, or no score.py beside them", file=sys.stderr)
        return 2
    sys.dont_write_bytecode = True  # the folder of tables is not ours
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE), str(tables)]
    score = importlib.import_module("score")
    outcomes = {tuner: outcome(score, paths, tuner, options) for tuner in options.only}
    print(side_by_side(outcomes, options.budgets))
    setting = {"seeds": options.seeds, "budgets": options.budgets, "jobs": options.jobs, "noise": options.noise}
    setting["prior"] = options.prior
    environment = importlib.import_module("measuring").environment()
    document = {"schema": 1, "environment": environment, "setting": setting, "tuners": outcomes}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
