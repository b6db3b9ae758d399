"""Rows scheduled by hand (examples/rows/processors.py) against the better of PyTorch's eager and compiled modes.

    export OMP_WAIT_POLICY=passive MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592
    python benchmarks/rows.py                                         # seven operators, six shapes, PoCL and c:0
    python benchmarks/rows.py --only softmax,sum_last --shapes 128x256,1024x1024 --rounds 15

Ours on each device, torch eager and torch.compile run in turn, in rounds of one slot each; a ratio is the median of the
rounds' ratios with its 95 % interval, of the mode with the smaller median time: above 1 ours is faster. Results are
compared with NumPy's of float64. Schedules are made for the vector registers of this processor. PyTorch's threads spin
between calls and would take our cores: OMP_WAIT_POLICY=passive. Its results are new arrays, whose memory the C library
is told to keep: else the system clears the pages of large ones in every call, which takes longer than the operator.
Writes benchmarks/results/rows.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from measuring import environment, seconds  # noqa: E402
from rows import libraries, processors  # noqa: E402

from tensorir.runtime.estimate import Rounds, middle  # noqa: E402
from tensorir.runtime.host import as_here  # noqa: E402
from tensorir.target import Target  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "rows.json"
SHAPES = "128x256,128x8192,1024x1024,4096x768,16384x256,2048x8192"


def row(operator: Callable[..., Any], shape: str, devices: list[str], rounds: int) -> dict[str, Any]:
    """Microseconds, and PyTorch's time over ours on each device."""
    name, (rows, columns) = operator.__name__, map(int, shape.split("x"))
    arrays = libraries.inputs(name, rows, columns)
    want = libraries.by_numpy(name, *(a.astype(np.float64) for a in arrays))
    ours: dict[str, Any] = {}
    for device in devices:
        f = operator(rows, columns, as_here(Target.parse(device.partition(":")[0]))).build(device)
        np.testing.assert_allclose(f(*arrays), want, rtol=2e-4, atol=2e-4)
        ours[device] = f.bind(*arrays)
    eager = partial(libraries.by_torch, name, *map(torch.from_numpy, arrays))
    modes = {"eager": eager, "compiled": partial(torch.compile(eager.func, dynamic=False), *eager.args)}
    calls = [*ours.values(), *modes.values()]
    turns = Rounds([(c, seconds(c)) for c in calls], range(len(ours), len(calls)))
    for _ in range(rounds):
        turns.run()
    theirs = dict(zip(modes, turns.samples[len(ours) :], strict=True))
    best = min(theirs, key=lambda m: middle(theirs[m])[0])
    out: dict[str, Any] = {"operator": name, "shape": shape, "best": best}
    out |= {f"{mode}_us": 1e6 * middle(slots)[0] for mode, slots in theirs.items()}
    for device, slots in zip(ours, turns.samples, strict=False):
        ratio, low, high = middle([t / o for t, o in zip(theirs[best], slots, strict=True)])
        out[device] = {"us": 1e6 * middle(slots)[0], "ratio": ratio, "low": low, "high": high}
    told = "  ".join(f"{d} {out[d]['ratio']:5.2f} [{out[d]['low']:.2f}, {out[d]['high']:.2f}]" for d in ours)
    print(f"{name:12} {shape:10} {best:8} {told}", flush=True)
    return out


def geomeans(rows: list[dict[str, Any]], devices: list[str]) -> dict[str, dict[str, float]]:
    """Of the ratios, on each device: of all, and of each operator."""
    names = ["all", *dict.fromkeys(r["operator"] for r in rows)]
    return {
        d: {n: math.exp(np.mean([math.log(r[d]["ratio"]) for r in rows if n in ("all", r["operator"])])) for n in names}
        for d in devices
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda t: t.split(","), default=[])
    parser.add_argument("--shapes", type=lambda t: t.split(","), default=SHAPES.split(","))
    parser.add_argument("--devices", type=lambda t: t.split(","), default=["opencl", "c:0"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    chosen = [op for op in processors.OPERATORS if op.__name__ in options.only or not options.only]
    rows = []
    for op in chosen:
        for shape in options.shapes:
            torch.compiler.reset()
            rows.append(row(op, shape, options.devices, options.rounds))
    told = {n.lower(): os.environ.get(n) for n in ("OMP_WAIT_POLICY", "MALLOC_MMAP_MAX_")}
    found = environment() | told | {"load": os.getloadavg()[0]}
    document = {"schema": 1, "environment": found, "geomeans": geomeans(rows, options.devices), "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document["geomeans"], indent=1))


if __name__ == "__main__":
    main()
