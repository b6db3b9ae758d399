"""Automatic schedules for extents known at launch against those for constants, neither tuned, at several extents.

    python benchmarks/dims/untuned.py                        # PoCL and C, about four minutes
    python benchmarks/dims/untuned.py --only attention --device c:0

One kernel for n in 1 to 4096 and one for each n are launched in turn; ``ratio`` is of medians of processor time, which
others on the machine disturb least: above 1 the kernel for all extents takes longer. Results must agree. Writes
benchmarks/results/dims_untuned.json; rows that it has are kept.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from measuring import aligned, environment  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402

HIGH = 4096
COUNTS = (1, 7, 64, 1000, HIGH)
ROUNDS, SLOT_S = 7, 0.004


def _x(*shape: Any, name: str = "x", dtype: str = "float32") -> tir.Tensor:
    return tir.placeholder(shape, dtype, name=name)


def stream(n: Any) -> Any:
    x = _x(n)
    return tir.compute((n,), lambda i: x[i] * 2.0, name="y")


def functions(n: Any) -> Any:
    x = _x(n, 256)
    return tir.compute((n, 256), lambda i, j: tir.exp(x[i, j]) + 1.0, name="y")


def softmax_rows(n: Any) -> Any:
    return tir.nn.softmax(_x(n, 256), -1)


def softmax_columns(n: Any) -> Any:
    return tir.nn.softmax(_x(64, n), -1)


def norm(n: Any) -> Any:
    return tir.nn.layer_norm(_x(n, 256), (256,))


def product_rows(n: Any) -> Any:
    return tir.nn.matmul(_x(n, 256, name="a"), _x(256, 256, name="b"))


def product_columns(n: Any) -> Any:
    return tir.nn.matmul(_x(64, 256, name="a"), _x(256, n, name="b"))


def product_terms(n: Any) -> Any:
    return tir.nn.matmul(_x(64, n, name="a"), _x(n, 64, name="b"))


def sums(n: Any) -> Any:
    x, k = _x(64, n), tir.reduce_axis(n, name="k")
    return tir.compute((64,), lambda i: tir.sum(x[i, k], axis=k), name="y")


def sums_across(n: Any) -> Any:
    x, k = _x(n, 256), tir.reduce_axis(n, name="k")
    return tir.compute((256,), lambda j: tir.sum(x[k, j], axis=k), name="y")


def stencil(n: Any) -> Any:
    x = _x(n + 2, 256)
    return tir.compute((n, 254), lambda i, j: x[i, j] + x[i + 1, j + 1] + x[i + 2, j + 2], name="y")


def convolution(n: Any) -> Any:
    return tir.nn.conv2d(_x(n, 16, 14, 14), _x(32, 16, 3, 3, name="w"), pad=1)


def attention(n: Any) -> Any:
    return tir.nn.attention(*(_x(1, 4, n, 32, name=name) for name in "qkv"))


def gather(n: Any) -> Any:
    table, at = _x(1000, 64, name="table"), _x(n, name="at", dtype="int32")
    return tir.compute((n, 64), lambda i, j: table[tir.minimum(tir.maximum(at[i], 0), 999), j] * 2.0, name="y")


def scan(n: Any) -> Any:
    return tir.scan(_x(n), op="sum", name="y")


def transpose(n: Any) -> Any:
    x = _x(n, 256)
    return tir.compute((256, n), lambda i, j: x[j, i], name="y")


CASES: tuple[Callable[[Any], Any], ...] = (
    stream, functions, softmax_rows, softmax_columns, norm, product_rows, product_columns, product_terms, sums,
    sums_across, stencil, convolution, attention, gather, scan, transpose,
)  # fmt: skip


def taken(call: Any, times: int) -> float:
    """Seconds of processor time of a launch."""
    began = time.process_time()
    for _ in range(times):
        call()
    call.finish()
    return (time.process_time() - began) / times


def compared(case: Callable[[Any], Any], device: str) -> dict[int, tuple[float, float]]:
    """{n: (microseconds of the kernel for all extents, its time over that of the kernel for n)}."""
    target = open_device(device).target
    every = tir.auto_schedule(case(tir.dim("n", low=1, high=HIGH)), target).build(device)
    found = {}
    for n in COUNTS[:-1] if case is attention else COUNTS:
        s = tir.auto_schedule(case(n), target)
        rng = np.random.default_rng(n)
        arrays = [aligned(rng.integers(0, 3, b.dims).astype(b.dtype)) for b in s.program.inputs]
        one = s.build(device)
        np.testing.assert_allclose(every(*arrays), one(*arrays), rtol=1e-3, atol=1e-3)
        calls = [every.bind(*arrays), one.bind(*arrays)]
        times = [max(1, int(SLOT_S / max(min(taken(c, 1) for _ in range(3)), 1e-7))) for c in calls]
        slots = [[taken(c, k) for c, k in zip(calls, times, strict=True)] for _ in range(ROUNDS)]
        all_, this = (statistics.median(column) for column in zip(*slots, strict=True))
        found[n] = (all_ * 1e6, all_ / this)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--device", default="opencl:pocl,c:0")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "dims_untuned.json")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    for case in CASES:
        for device in args.device.split(","):
            key = f"{case.__name__}, {device}"
            if args.only not in key:
                continue
            if key not in rows:
                rows[key] = {str(n): row for n, row in compared(case, device).items()}
                args.out.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1))
            print(f"{key:28}", "  ".join(f"{n}: {us:.1f} us, {r:.2f}" for n, (us, r) in rows[key].items()), flush=True)
    ratios = [r for row in rows.values() for _, r in row.values()]
    print(f"geomean {math.exp(statistics.mean(map(math.log, ratios))):.2f}, worst {max(ratios):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
