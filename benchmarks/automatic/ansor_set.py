"""Ansor's operators, scheduled from declarations alone: whether schedules are right, and how long it takes to make one.

    python benchmarks/automatic/ansor_set.py [--resume]

C1D C2D C3D GRP DIL DEP T2D CAP GMM NRM SFM CBR TBG (tests/automatic/ansor_set.py). In real shapes each is scheduled on
every target, checked ("fast"), and on the CPU built and timed; in small ones it is compared with the reference, and the
text for CUDA is run on the CPU. Writes benchmarks/results/automatic_ansor.json.
"""

from __future__ import annotations

import inspect
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "automatic")]

import ansor_set as operators  # noqa: E402
from judging import judged_of  # noqa: E402
from recording import recorded  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.interp.reference import arguments_of  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_ansor.json"


def lines_of(name: str) -> int:
    """Lines of an operator's declaration, with its signature, without empty ones."""
    body = operators.REAL[name].__code__.co_names[0]
    return sum(bool(line.strip()) for line in inspect.getsource(getattr(operators, body)).splitlines())


def timed(y: Any) -> float:
    """Median seconds of the default on the CPU."""
    s = tir.auto_schedule(y)
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(a.shape).astype(a.dtype) for a in arguments_of(s.outputs)]
    return float(s.build().time(*given).median_s)


def row_of(name: str, target: str) -> dict[str, Any]:
    """What became of one operator on one target, in both sizes."""
    cpu = target == "opencl"
    small = judged_of(operators.SMALL[name](), target, build=cpu, emulate=not cpu)
    start = time.process_time()
    tir.auto_schedule(operators.REAL[name](), target)
    made = time.process_time() - start
    real = judged_of(operators.REAL[name](), target)
    row = {"operator": name, "target": target, "small": small["found"], "real": real["found"], "seconds": made}
    row |= {k: real[k] for k in ("template", "space", "why") if k in real} | {"lines": lines_of(name)}
    return row | ({"median_s": timed(operators.REAL[name]())} if cpu else {})


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What became of all of them."""
    bad = [r for r in rows if (r["small"], r["real"]) != ("right", "right")]
    seconds, spaces = [r["seconds"] for r in rows], [r["space"] for r in rows if "space" in r]
    return {
        "schedules": len(rows),
        "not right": [f"{r['operator']} on {r['target']}" for r in bad],
        "seconds of the processor to make one": {"median": statistics.median(seconds), "worst": max(seconds)},
        "legal configurations": {"median": statistics.median(spaces), "most": max(spaces)},
        "lines": max(r["lines"] for r in rows),
    }


def main() -> None:
    recorded(operators.REAL, row_of, summary, RESULT)


if __name__ == "__main__":
    main()
