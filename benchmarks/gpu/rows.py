"""What rows scheduled for GPUs (examples/rows/gpus.py) ask of memory, and the steps in which threads combine.

    python benchmarks/gpu/rows.py                       # seven operators; writes benchmarks/results/gpu_rows.json
    python benchmarks/gpu/rows.py --shapes 128x1024

The CUDA text is run on the CPU, its results are compared with NumPy's of float64, and of its first block the sectors of
32 bytes are counted that global memory is asked for. Compulsory are those of what a block reads and writes, each once.
Needs a C++ compiler. Nothing here was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from rows import gpus, libraries  # noqa: E402

from tensorir.check.emulate import emulate  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "gpu_rows.json"
SECTOR = 32
"""Bytes that global memory is read and written by."""


def row(operator: Callable[..., Any], rows: int, columns: int) -> dict[str, Any]:
    """Sectors of the first block, those that are compulsory, and steps of each reduction."""
    name = operator.__name__
    source, arrays = operator(rows, columns).emitted(), libraries.inputs(name, rows, columns)
    done = emulate(source, arrays)
    assert not done.problems, done.problems
    want = libraries.by_numpy(name, *(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(done.outputs[0], want, rtol=2e-4, atol=2e-4)
    read, written = (sum(t.units for t in done.traffic if t.what == f"global {what}") for what in ("read", "write"))
    blocks, x = math.prod(source.kernels[0].grid), arrays[0]
    least = x.nbytes // blocks + sum(a.nbytes for a in arrays[1:]), done.outputs[0].nbytes / blocks
    least_read, least_written = (math.ceil(n / SECTOR) for n in least)
    x_threads, y_threads, _ = source.kernels[0].block
    combined = y_threads if y_threads > 1 else x_threads
    reductions = max(1, sum(f"{n}_part[1];" in source.text for n in ("largest", "total", "squares", "Y")))
    steps = len(re.findall(r"__shfl_down_sync\(|_tree\[[^]]*\] \+=", source.text))
    out = {"operator": name, "shape": f"{rows}x{columns}", "threads": combined, "steps": steps / reductions,
           "log2": math.log2(combined), "read": read, "compulsory_read": least_read, "written": written,
           "compulsory_written": least_written}  # fmt: skip
    print(*out.values(), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda t: t.split(","), default=["128x1024", "256x2048", "64x8192"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    rows = [row(operator, *shape) for operator in gpus.OPERATORS for shape in shapes]
    worst = max((r["read"] + r["written"]) / (r["compulsory_read"] + r["compulsory_written"]) for r in rows)
    options.out.write_text(json.dumps({"schema": 1, "worst": worst, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"{worst:.3f} of what is compulsory at worst")


if __name__ == "__main__":
    main()
