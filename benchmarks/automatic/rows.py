"""Rows, scans, pooling and attention without a schedule, against schedules made by hand (examples/rows and gallery).

    python benchmarks/automatic/rows.py                                        # all, two shapes of rows, on PoCL
    python benchmarks/automatic/rows.py --only softmax,attention --shapes 1024x1024 --rounds 15

Both are built from the same declaration and called in turn; a ratio is the median of the rounds' ratios of the
automatic time to that of the hand schedule: below 1 the automatic one is faster. Results are compared with each other.
Writes benchmarks/results/automatic_rows.json, keeping what was measured of other operators and shapes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from gallery import attention  # noqa: E402
from measuring import aligned, environment, seconds  # noqa: E402
from rows import libraries, processors  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.estimate import Rounds  # noqa: E402
from tensorir.runtime.host import as_here  # noqa: E402
from tensorir.target import Target  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_rows.json"
OTHERS = ("cumsum", "prefix_sum_2d", "segment_sum", "histogram", "max_pool", "max_unpool", "argmax")
"""Schedules of the gallery: scans, scatters and pooling."""


def tasks(shapes: list[str]) -> Iterator[tuple[str, str, Any, tuple[Any, ...]]]:
    """Names, shapes, schedules by hand and inputs."""
    here = as_here(Target.parse("opencl"))
    for shape in shapes:
        rows, columns = map(int, shape.split("x"))
        for operator in processors.OPERATORS:
            name = operator.__name__
            yield name, shape, operator(rows, columns, here), libraries.inputs(name, rows, columns)
    yield "attention", "8x256x64", attention.schedule(target=here), attention.inputs()
    for name in OTHERS:
        module = importlib.import_module(f"gallery.{name}")
        given = module.inputs()
        yield name, "x".join(map(str, given[-1].shape)), module.schedule(), given


def compared(name: str, shape: str, hand: Any, given: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """What it takes to make the automatic schedule, and its time over that of the hand schedule."""
    start = time.process_time()
    made = tir.auto_schedule(hand.definition)
    making = time.process_time() - start
    built = hand.build(), made.build()
    found = built[1](*given)
    np.testing.assert_allclose(found, built[0](*given), rtol=2e-4, atol=2e-4)
    given = tuple(map(aligned, given))
    out = aligned(np.asarray(found)) if not isinstance(found, tuple) else tuple(map(aligned, found))
    calls = [f.bind(*given, out=out) for f in built]  # on the same arrays: where pages lie makes a difference
    timed = Rounds([(c, seconds(c)) for c in calls])
    for _ in range(rounds):
        timed.run()
    turns = list(zip(*timed.samples, strict=True))
    return {
        "operator": name,
        "shape": shape,
        "template": next(iter(tir.auto(hand.definition))),
        "seconds to make": round(making, 3),
        "kernels": len(made.emitted().kernels),
        "hand microseconds": round(statistics.median(h for h, _ in turns) * 1e6, 1),
        "automatic over hand": round(statistics.median(a / h for h, a in turns), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="operators, with commas")
    parser.add_argument("--shapes", default="1024x1024,512x129")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
    for name, shape, hand, given in tasks(options.shapes.split(",")):
        if options.only and name not in options.only.split(","):
            continue
        row = compared(name, shape, hand, given, options.rounds)
        print(json.dumps(row), flush=True)
        rows = [r for r in rows if (r["operator"], r["shape"]) != (name, shape)] + [row]
        text = json.dumps({"schema": 1, "device": "opencl", "environment": environment(), "rows": rows}, indent=1)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
