"""What an extent known at launch costs: one kernel for n in 1..4096 against kernels made for each n.

    python benchmarks/dims/one_kernel.py                       # three computations on PoCL and c:0
    python benchmarks/dims/one_kernel.py --only conv2d --devices c:0 --rounds 9 --out rows.json

matmul, softmax of rows and conv2d (n is the batch) are built once with ``tir.dim("n", 1, 4096)``; the same schedule of
the same declaration with an int is built for each size. Results of the one kernel are compared with NumPy's at 1, at
primes and around multiples of the tile; then both kernels are timed in turn at ten sizes, a slot of each in every
round, their order changing. ratio: median of the rounds' ratios, time of the one kernel over that of the kernel made
for the size, with its quartiles: 1.05 is 5 % slower. cpu: the same of the processor time that slots took, of which
other processes on the machine take nothing. Writes benchmarks/results/dims_one_kernel.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import environment  # noqa: E402

import tensorir as tir  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "dims_one_kernel.json"
HIGH = 4096
TILE = 4
RIGHT_AT = (1, 2, 3, 4, 5, 7, 8, 9, 13, 127, 128, 129, 1021)
TIMED_AT = (1, 7, 16, 61, 128, 251, 512, 1000, 2039, 4096)
SLOT_S = 0.02
"""Seconds of one slot of a round, at least one call."""


def matmul(n: Any) -> tir.Schedule:
    """C = A @ B of (n, 256) and (256, 256) in register tiles of 4 x 32."""
    A, B = tir.placeholder((n, 256), name="A"), tir.placeholder((256, 256), name="B")
    k = tir.reduce_axis(256, name="k")
    s = tir.Schedule(tir.compute((n, 256), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C"))
    io, ii = s.split("C.i", [None, TILE], tail="peel")
    jo, ju, jv = s.split("C.j", [None, 2, 16])
    s.reorder(io, jo, "C.k", ii, ju, jv)
    s.stage_out("C", jo)
    s.unroll(ii)
    s.unroll(ju)
    s.vectorize(jv)
    s.bind(io, "block.x")
    return s


def softmax(n: Any) -> tir.Schedule:
    """Softmax of n rows of 1024, a row to a block, each exponential computed once."""
    X, k, q = tir.placeholder((n, 1024), name="X"), tir.reduce_axis(1024, "k"), tir.reduce_axis(1024, "q")
    m = tir.compute((n,), lambda i: tir.max(X[i, k], axis=k), name="m")
    e = tir.compute((n, 1024), lambda i, j: tir.exp(X[i, j] - m[i]), name="E")
    d = tir.compute((n,), lambda i: tir.sum(e[i, q], axis=q), name="d")
    s = tir.Schedule(tir.compute((n, 1024), lambda i, j: e[i, j] / d[i], name="Y"))
    _, inner = s.split("Y.j", [None, 16])
    s.vectorize(inner)
    for stage in ("d", "E", "m"):
        s.compute_at(stage, "Y", "i")
    _, inner = s.split("E.j", [None, 16])
    s.vectorize(inner)
    s.bind("Y.i", "block.x")
    return s


def conv2d(n: Any) -> tir.Schedule:
    """A 3 x 3 convolution of n images of 8 x 16 x 16 to 16 channels, an image to a block."""
    x, w = tir.placeholder((n, 8, 16, 16), name="x"), tir.placeholder((16, 8, 3, 3), name="w")
    s = tir.Schedule(tir.nn.conv2d(x, w, pad=1, name="y"))
    s.compute_at("x_pad", "y", "n")
    ko, ki = s.split("y.k", [None, 8])
    s.reorder(ko, "y.p", "y.c", "y.r", "y.s", ki, "y.q")
    s.stage_out("y", "y.p")
    s.unroll(ki)
    s.vectorize("y.q")
    s.bind("y.n", "block.x")
    return s


MAKERS: dict[str, Callable[[Any], tir.Schedule]] = {"matmul": matmul, "softmax": softmax, "conv2d": conv2d}
SHAPES = {"matmul": ((256,), (256, 256)), "softmax": ((1024,),), "conv2d": ((8, 16, 16), (16, 8, 3, 3))}


def inputs(name: str, n: int) -> list[np.ndarray]:
    """Arrays for n, whole numbers where sums of products are exact then."""
    rng = np.random.default_rng(n)
    rows, *others = SHAPES[name]
    if name == "softmax":
        return [aligned(rng.standard_normal((n, *rows), np.float32))]
    return [aligned(rng.integers(-4, 5, s).astype(np.float32)) for s in ((n, *rows), *others)]


def aligned(a: np.ndarray) -> np.ndarray:
    out = tir.empty(a.shape, a.dtype)
    out[...] = a
    return out


def wanted(name: str, arrays: list[np.ndarray]) -> np.ndarray:
    """The result in NumPy."""
    if name == "matmul":
        return arrays[0] @ arrays[1]
    if name == "softmax":
        e = np.exp(arrays[0].astype(np.float64) - arrays[0].max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    x, w = arrays
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w, optimize=True)


def slot(bound: Any, calls: int) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of one of ``calls`` launches."""
    start, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        bound()
    bound.finish()
    return (time.perf_counter() - start) / calls, (time.process_time() - used) / calls


def paired(one: Any, own: Any, rounds: int) -> dict[str, float]:
    """Both timed in turn: the median ratio, its quartiles, that of processor time, and microseconds of each."""
    first = max(slot(one, 1), slot(own, 1), slot(one, 1))[0]
    calls = max(1, round(SLOT_S / max(first, 1e-6)))
    times = []
    for n in range(rounds):
        order = (one, own) if n % 2 else (own, one)
        found = {b: slot(b, calls) for b in order}
        times.append((*found[one], *found[own]))
    wall_one, cpu_one, wall_own, cpu_own = np.array(times).T
    low, ratio, high = map(float, np.quantile(wall_one / wall_own, (0.25, 0.5, 0.75)))
    cpu = float(np.median(cpu_one / np.maximum(cpu_own, 1e-9)))
    us = [float(np.median(x)) * 1e6 for x in (wall_one, wall_own)]
    return {"ratio": ratio, "low": low, "high": high, "cpu": cpu, "one_us": us[0], "own_us": us[1]}


def measured(name: str, device: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of one computation on one device."""
    make = MAKERS[name]
    one = make(tir.dim("n", low=1, high=HIGH)).build(device)
    text, exact = one.source, name != "softmax"
    for n in RIGHT_AT:
        arrays = inputs(name, n)
        got, want = one(*arrays), wanted(name, arrays)
        right = np.array_equal(got, want) if exact else np.allclose(got, want, rtol=2e-6, atol=1e-9)
        if not right or one.source != text:
            raise SystemExit(f"{name} on {device} is wrong at n={n}")
    rows = []
    for n in TIMED_AT:
        own, arrays = make(n).build(device), inputs(name, n)
        out = [tir.empty(one(*arrays).shape) for _ in range(2)]
        found = paired(one.bind(*arrays, out=out[0]), own.bind(*arrays, out=out[1]), rounds)
        rows.append({"computation": name, "device": device, "n": n, **found})
        print(f"{name:8} {device:8} n={n:5} {found['ratio']:.3f} ({found['low']:.3f} to {found['high']:.3f}), "
              f"cpu {found['cpu']:.3f}, "
              f"{found['one_us']:.0f} and {found['own_us']:.0f} us", flush=True)  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Of each computation on each device the geometric means of its ratios, and the largest one of processor time."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault(f"{r['computation']} on {r['device']}", []).append(r)
    return {
        key: {what: float(np.exp(np.mean(np.log([r[what] for r in found])))) for what in ("ratio", "cpu")}
        | {"largest_cpu": max(r["cpu"] for r in found)}
        for key, found in groups.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(MAKERS), default=list(MAKERS))
    parser.add_argument("--devices", nargs="*", default=["opencl", "c:0"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = [r for device in args.devices for name in args.only for r in measured(name, device, args.rounds)]
    about = {"environment": environment(), "right_at": RIGHT_AT, "high": HIGH, "rounds": args.rounds}
    args.out.write_text(json.dumps({**about, "summary": summary(rows), "rows": rows}, indent=1) + "\n")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
