"""Every function of ``tir.ops``, gradients, optimizers and quantized operators by their definitions alone.

    python benchmarks/automatic/operators.py [--resume]

The definitions of tests/automatic/operator_set.py, without the templates that some of them have. In real shapes each is
scheduled on every target and checked ("fast"); in small ones it is compared with the reference on the CPU, and the text
for CUDA is run on the CPU. Writes benchmarks/results/automatic_operators.json: what became of each, the seconds of the
processor to make a schedule, and the legal configurations of its template.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "automatic")]

import operator_set  # noqa: E402
from judging import judged_of  # noqa: E402
from recording import recorded  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_operators.json"


def row_of(name: str, target: str) -> dict[str, Any]:
    """What became of one operator on one target, in both sizes."""
    cpu = target == "opencl"
    small = judged_of(operator_set.SMALL[name](), target, build=cpu, emulate=not cpu)
    real = judged_of(operator_set.REAL[name](), target)
    row = {"operator": name, "target": target, "small": small["found"], "real": real["found"]}
    row |= {k: real[k] for k in ("seconds", "template", "space") if k in real}
    why = small.get("why") or real.get("why")
    return row | ({"why": why} if why else {})


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of all of them."""
    bad = [r for r in rows if (r["small"], r["real"]) != ("right", "right")]
    seconds, spaces = ([r[k] for r in rows if k in r] for k in ("seconds", "space"))
    return {
        "schedules": len(rows),
        "not right": [f"{r['operator']} on {r['target']}" for r in bad],
        "seconds of the processor to make one": {"median": statistics.median(seconds), "worst": max(seconds)},
        "legal configurations": {"median": statistics.median(spaces), "most": max(spaces)},
        "one configuration": [f"{r['operator']} on {r['target']}" for r in rows if r.get("space") == 1],
    }


def main() -> None:
    recorded(operator_set.REAL, row_of, summary, RESULT)


if __name__ == "__main__":
    main()
