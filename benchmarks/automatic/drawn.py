"""Automatic schedules of definitions drawn from seeds: how many are right, and how long it takes to make one.

    python benchmarks/automatic/drawn.py --count 300                     # all three targets
    python benchmarks/automatic/drawn.py --count 1000 --target opencl --resume --again 0.3

Each definition has one to five stages in awkward shapes (tests/automatic/drawing.py): every second one of the common
sorts (seeds 0, 1, …), the others of all sorts (seeds 10000, 10001, …), with gathers, several results, masks, windows of
two axes, pieces, narrow types and operators of ``nn`` among them. Its schedule is checked ("fast"); for OpenCL every
``--build``-th seed is built too and compared with the reference on small whole numbers; the text of every
``--emulate``-th is run on the CPU for CUDA. Seeds are in the output: ``--resume`` goes on after those that are there,
whatever tree they were drawn on, and draws those once more that were not right or took longer to make than ``--again``.
Writes benchmarks/results/automatic_drawn.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "automatic"), str(ROOT / "benchmarks")]

from drawing import WIDE  # noqa: E402
from judging import TARGETS, judged  # noqa: E402
from measuring import environment  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_drawn.json"
SAVED = 25
"""Definitions after which results are written."""


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of the definitions of one target; processor seconds to make a schedule."""
    seconds = [r["seconds"] for r in rows if "seconds" in r]
    spaces = [r["space"] for r in rows if "space" in r]
    return {
        "definitions": len(rows),
        "of all sorts": sum(r["seed"] >= WIDE for r in rows),
        "found": dict(Counter(r["found"] for r in rows)),
        "templates": dict(Counter(r.get("template", "none") for r in rows).most_common()),
        "seconds": {"median": statistics.median(seconds), "worst": max(seconds)} if seconds else {},
        "legal configurations": {"median": statistics.median(spaces), "most": max(spaces)} if spaces else {},
        "built": sum(r.get("built", False) for r in rows),
        "emulated": sum(r.get("emulated", False) for r in rows),
    }


def taken() -> dict[str, object]:
    """What the seconds are, and at which priority and load of the machine they were taken."""
    what = "of the processor, by one thread; the least of three where the first was longer than 0.2"
    return {"seconds": what, "nice": os.getpriority(os.PRIO_PROCESS, 0), "load": round(os.getloadavg()[2], 1)}


def written(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows, those that are right in short."""
    of = {t: [r for r in rows if r["target"] == t] for t in TARGETS}
    kept = [{k: v for k, v in r.items() if r["found"] != "right" or k != "stages"} for r in rows]
    found_of = {t: summary(found) for t, found in of.items() if found}
    document = {"schema": 1, "environment": environment() | taken(), "summary": found_of, "rows": kept}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="definitions of each target")
    parser.add_argument("--first", type=int, default=0, help="how many seeds of each range are left out")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--build", type=int, default=1)
    parser.add_argument("--emulate", type=int, default=10)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = options.resume and options.out.exists()
    rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if before else []
    rows = [r for r in rows if r["found"] == "right" and r["seconds"] <= options.again]
    done = {(r["seed"], r["target"]) for r in rows}
    for n in range(2 * options.first, 2 * options.first + options.count):
        seed = n // 2 + n % 2 * WIDE
        for target in options.target or TARGETS:
            if (seed, target) in done:
                continue
            cuda = target.startswith("cuda")
            build, emulate = not cuda and seed % options.build == 0, cuda and seed % options.emulate == 0
            row = judged(seed, target, build=build, emulate=emulate) | {"built": build, "emulated": emulate}
            rows.append(row)
            if row["found"] != "right":
                print(json.dumps(row), flush=True)
        if n % SAVED == 0:
            written(options.out, rows)
    written(options.out, rows)
    print(json.dumps(json.loads(options.out.read_text(encoding="utf-8"))["summary"], indent=1))


if __name__ == "__main__":
    main()
