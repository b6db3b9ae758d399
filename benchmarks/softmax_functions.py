"""What our own functions are worth in a softmax of rows on CPUs: against the library's, and against PyTorch.

    OMP_WAIT_POLICY=passive python benchmarks/softmax_functions.py           # three shapes on PoCL and c:0
    python benchmarks/softmax_functions.py --shapes 128x1024 --devices c:0 --rounds 25 --out rows.json

The gallery's schedule (examples/gallery/softmax.py), made for each shape, is built as it is and with
``-precise_math=1``. Both, and torch.softmax where it is installed, are timed in turn in rounds of one slot each; ratios
are medians of the rounds' ratios with their 95 % intervals: above 1 ours is faster. PyTorch's threads spin between
calls and would take our cores: OMP_WAIT_POLICY=passive. Writes benchmarks/results/softmax_functions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from gallery import softmax  # noqa: E402
from measuring import environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "softmax_functions.json"


def made(rows: int, columns: int, target: str) -> tir.Schedule:
    """The gallery's schedule for another shape and target."""
    X = tir.placeholder((rows, columns), "float32", name="X")
    k, q = tir.reduce_axis(columns, name="k"), tir.reduce_axis(columns, name="q")
    largest = tir.compute((rows,), lambda i: tir.max(X[i, k], axis=k), name="largest")
    e = tir.compute((rows, columns), lambda i, j: tir.exp(X[i, j] - largest[i]), name="E")
    total = tir.compute((rows,), lambda i: tir.sum(e[i, q], axis=q), name="total")
    y = tir.compute((rows, columns), lambda i, j: e[i, j] / total[i], name="Y")
    return tir.replay(y, softmax.schedule().trace, target=target)


def torch_call(x: np.ndarray) -> Callable[[], Any] | None:
    """torch.softmax on the same array; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    given = torch.from_numpy(x)
    return lambda: given.softmax(1)


def timed(shape: str, device: str, rounds: int) -> dict[str, Any]:
    """One row: the library's functions, and PyTorch, over ours."""
    rows, columns = map(int, shape.split("x"))
    x = np.random.default_rng(0).standard_normal((rows, columns), "float32")
    language = device.partition(":")[0]
    built = [made(rows, columns, t).build(device) for t in (language, f"{language} -precise_math=1")]
    want = softmax.by_numpy(x.astype(np.float64))
    for f in built:
        np.testing.assert_allclose(f(x), want, rtol=2e-5, atol=1e-7)
    calls = {n: f.bind(x) for n, f in zip(("ours", "library"), built, strict=True)}
    if torch := torch_call(x):
        calls["torch"] = torch
    turns = Rounds([(c, seconds(c)) for c in calls.values()], range(len(built), len(calls)))
    for _ in range(rounds):
        turns.run()
    ours, *others = turns.samples
    row: dict[str, Any] = {"shape": shape, "device": device, "us": 1e6 * middle(ours)[0]}
    for name, slots in zip(list(calls)[1:], others, strict=True):
        ratio, low, high = middle([t / o for t, o in zip(slots, ours, strict=True)])
        row[name] = {"ratio": ratio, "low": low, "high": high}
        print(f"{shape:10} {device:8} {name:8} {ratio:5.2f} [{low:.2f}, {high:.2f}]", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda t: t.split(","), default=["1024x1024", "128x1024", "512x8192"])
    parser.add_argument("--devices", type=lambda t: t.split(","), default=["opencl", "c:0"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = [timed(shape, device, options.rounds) for shape in options.shapes for device in options.devices]
    found = environment() | {"omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"), "load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({"schema": 1, "environment": found, "rows": rows}, indent=1) + "\n",
                           encoding="utf-8")  # fmt: skip


if __name__ == "__main__":
    main()
