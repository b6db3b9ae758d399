"""What the advisor on fusions says of pairs of stages, next to what they take: both ways, interleaved, on a device.

    python benchmarks/automatic/fusions.py                        # all pairs on the OpenCL CPU device
    python benchmarks/automatic/fusions.py --only softmax --rounds 9 --out rows.json
    python benchmarks/automatic/fusions.py --sizes 100 640 --out benchmarks/results/automatic_fusions_others.json

Every legal pair of each case is built apart and fused, as ``tir.fusions`` schedules both, on inputs of its own. Results
are compared, then both are timed interleaved, a slot of each in every round: the fastest of three short parts, because
other programs on the machine only ever slow a part down. gain: modelled seconds apart over those of one kernel.
measured: the median of the rounds' ratios, with its quartiles; fastest: of the fastest slots of all rounds; cpu: the
median of processor time. spearman: of gain and each of these over all legal pairs. A recommendation is by the model
alone. Writes benchmarks/results/automatic_fusions.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import environment  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.api.automatic import launched  # noqa: E402
from tensorir.interp.reference import random_arguments  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_fusions.json"
LEAST = 0.97
"""The measured gain below which a recommendation is wrong."""
PART_S, PARTS = 0.0007, 3
"""Seconds of a part of a slot, at least one call, and parts of a slot."""
PLACES = 3
"""Places of the arrays, some of which make a kernel half as slow again."""
SIZES = 256, 2048
"""Rows and columns of matrices that the caches of cores hold, and of those that no cache holds: to these sizes the
model was fitted.
"""


def given(*shape: int, name: str = "A", dtype: str = "float32") -> Any:
    return tir.placeholder(shape, dtype, name=name)


def chain(n: int, body: Callable[[Any], Any], tail: Callable[[Any], Any]) -> Any:
    """Two elementwise stages."""
    A = given(n, n)
    P = tir.compute((n, n), lambda i, j: body(A[i, j]), name="P")
    return tir.compute((n, n), lambda i, j: tail(P[i, j]), name="Y")


def added(n: int) -> Any:
    """A map, and its sum with another matrix."""
    A, B = given(n, n), given(n, n, name="B")
    P = tir.compute((n, n), lambda i, j: tir.maximum(A[i, j], 0), name="P")
    return tir.compute((n, n), lambda i, j: P[i, j] + B[i, j], name="Y")


def stencil(n: int, cell: Callable[[Any], Any], vertical: bool) -> Any:
    """Three neighbours of a pointwise stage, across rows or in them."""
    A = given(n + 2, n + 2)
    P = tir.compute((n + 2, n + 2), lambda i, j: cell(A[i, j]), name="P")
    if vertical:
        return tir.compute((n, n), lambda i, j: P[i, j] + P[i + 1, j] + P[i + 2, j], name="Y")
    return tir.compute((n, n), lambda i, j: P[i, j] + P[i, j + 1] + P[i, j + 2], name="Y")


def blur(n: int) -> Any:
    """Halide's: along rows, then across them."""
    A = given(n + 2, n + 2)
    P = tir.compute((n + 2, n), lambda i, j: (A[i, j] + A[i, j + 1] + A[i, j + 2]) / 3, name="P")
    return tir.compute((n, n), lambda i, j: (P[i, j] + P[i + 1, j] + P[i + 2, j]) / 3, name="Y")


def summed(m: int, n: int, cell: Callable[[Any], Any]) -> Any:
    """The sum of rows of a map."""
    A, k = given(m, n), tir.reduce_axis(n, name="k")
    P = tir.compute((m, n), lambda i, j: cell(A[i, j]), name="P")
    return tir.compute((m,), lambda i: tir.sum(P[i, k], axis=k), name="Y")


def scaled(m: int, n: int) -> Any:
    """Rows less their mean."""
    A, k = given(m, n), tir.reduce_axis(n, name="k")
    P = tir.compute((m,), lambda i: tir.sum(A[i, k], axis=k), name="P")
    return tir.compute((m, n), lambda i, j: A[i, j] - P[i] / n, name="Y")


def columns(m: int, n: int, cell: Callable[[Any], Any]) -> Any:
    """The sum of columns of a map."""
    A, k = given(m, n), tir.reduce_axis(m, name="k")
    P = tir.compute((m, n), lambda i, j: cell(A[i, j]), name="P")
    return tir.compute((n,), lambda j: tir.sum(P[k, j], axis=k), name="Y")


def two_sums(m: int, n: int) -> Any:
    """Sums and largest elements of the same rows."""
    A, k, q = given(m, n), tir.reduce_axis(n, name="k"), tir.reduce_axis(n, name="q")
    s = tir.compute((m,), lambda i: tir.sum(A[i, k], axis=k), name="S")
    return s, tir.compute((m,), lambda i: tir.max(A[i, q], axis=q), name="M")


def two_maps(n: int, heavy: bool) -> Any:
    """Two maps of one matrix."""
    A = given(n, n)
    P = tir.compute((n, n), lambda i, j: tir.exp(A[i, j]) if heavy else A[i, j] * 2, name="P")
    return P, tir.compute((n, n), lambda i, j: tir.tanh(A[i, j]) if heavy else A[i, j] + 1, name="Q")


def apart_maps(n: int) -> Any:
    """Two maps of two matrices."""
    A, B = given(n, n), given(n, n, name="B")
    P = tir.compute((n, n), lambda i, j: A[i, j] * 2, name="P")
    return P, tir.compute((n, n), lambda i, j: B[i, j] + 1, name="Q")


def product(m: int, n: int, k: int, name: str = "C", **of: Any) -> Any:
    A, B = of["A"] if of else given(m, k), given(k, n, name=f"{name}B")
    r = tir.reduce_axis(k, name="r")
    return tir.compute((m, n), lambda i, j: tir.sum(A[i, r] * B[r, j], axis=r), name=name)


def epilogue(m: int, n: int, k: int, cell: Callable[[Any], Any]) -> Any:
    C, b = product(m, n, k), given(n, name="b")
    return tir.compute((m, n), lambda i, j: cell(C[i, j] + b[j]), name="Y")


def prologue(m: int, n: int, k: int) -> Any:
    A = given(m, k)
    P = tir.compute((m, k), lambda i, j: tir.maximum(A[i, j], 0), name="P")
    return product(m, n, k, A=P)


def two_products(m: int, n: int, k: int) -> Any:
    A = given(m, k)
    return product(m, n, k, "C", A=A), product(m, n, k, "D", A=A)


def convolved(c: int, n: int, k: int) -> Any:
    x, w = given(1, c, n, n, name="x"), given(k, c, 3, 3, name="w")
    return tir.nn.relu(tir.nn.conv2d(x, w, pad=1, name="conv"))


def turned(n: int, after: bool) -> Any:
    """A map and a transpose, in either order."""
    A = given(n, n)
    if after:
        P = tir.compute((n, n), lambda i, j: A[i, j] * 2 + 1, name="P")
        return tir.compute((n, n), lambda i, j: P[j, i], name="Y")
    P = tir.compute((n, n), lambda i, j: A[j, i], name="P")
    return tir.compute((n, n), lambda i, j: P[i, j] * 2 + 1, name="Y")


def gathered(rows: int, n: int, picked: int) -> Any:
    """Rows of a map that a table picks."""
    A, I = given(rows, n), given(picked, name="I", dtype="int32")
    P = tir.compute((rows, n), lambda i, j: tir.exp(A[i, j]), name="P")
    return tir.compute((picked, n), lambda i, j: P[I[i], j], name="Y")


def picked(rows: int, n: int, count: int) -> Any:
    """A map of rows that a table picks."""
    A, I = given(rows, n), given(count, name="I", dtype="int32")
    P = tir.compute((count, n), lambda i, j: A[I[i], j], name="P")
    return tir.compute((count, n), lambda i, j: tir.maximum(P[i, j], 0), name="Y")


def joined(m: int, n: int) -> Any:
    """Two maps next to each other."""
    A, B = given(m, n), given(m, n, name="B")
    P = tir.compute((m, n), lambda i, j: tir.exp(A[i, j]), name="P")
    Q = tir.compute((m, n), lambda i, j: tir.tanh(B[i, j]), name="Q")
    return tir.compute((2 * m, n), lambda i, j: tir.where(i < m, P[i, j], Q[i - m, j]), name="Y")


def spread(m: int, n: int) -> Any:
    """A map of a vector that all rows read."""
    A, v = given(m, n), given(n, name="v")
    P = tir.compute((n,), lambda j: tir.exp(v[j]), name="P")
    return tir.compute((m, n), lambda i, j: A[i, j] * P[j], name="Y")


def attention_tail(m: int, n: int) -> Any:
    return tir.nn.softmax(given(m, n), -1)


SIZED: dict[str, Callable[[int], Any]] = {
    "scale and shift": lambda n: chain(n, lambda x: x * 2, lambda x: x + 1),
    "exp and scale": lambda n: chain(n, tir.exp, lambda x: x * 2 + 1),
    "tanh and exp": lambda n: chain(n, tir.tanh, tir.exp),
    "square and sqrt": lambda n: chain(n, lambda x: x * x + 1, tir.sqrt),
    "relu and add": added,
    "across rows of scale": lambda n: stencil(n, lambda x: x * 2, True),
    "across rows of exp": lambda n: stencil(n, tir.exp, True),
    "in rows of tanh": lambda n: stencil(n, tir.tanh, False),
    "blur": blur,
    "sum of squares": lambda n: summed(n, n, lambda x: x * x),
    "sum of exp": lambda n: summed(n, n, tir.exp),
    "columns of squares": lambda n: columns(n, n, lambda x: x * x),
    "less the mean": lambda n: scaled(n, n),
    "sum and max": lambda n: two_sums(n, n),
    "two maps": lambda n: two_maps(n, False),
    "two heavy maps": lambda n: two_maps(n, True),
    "two maps apart": apart_maps,
    "transposed scale": lambda n: turned(n, True),
    "scaled transpose": lambda n: turned(n, False),
    "rows picked": lambda n: picked(n, n, n),
    "picked of exp": lambda n: gathered(n, n, n // 2),
    "joined": lambda n: joined(n // 2, n),
    "spread vector": lambda n: spread(n, n),
    "softmax": lambda n: attention_tail(n, n),
}
"""Definitions of matrices of so many rows and columns."""
SINGLE: dict[str, Callable[[], Any]] = {
    "small chain": lambda: chain(32, tir.exp, lambda x: x * 2),
    "middle chain": lambda: chain(768, tir.exp, lambda x: x * 2),
    "matmul relu 128": lambda: epilogue(128, 128, 128, lambda x: tir.maximum(x, 0)),
    "matmul tanh 512": lambda: epilogue(512, 512, 64, tir.tanh),
    "matmul relu 1024x1024x16": lambda: epilogue(1024, 1024, 16, lambda x: tir.maximum(x, 0)),
    "relu matmul 256": lambda: prologue(256, 256, 256),
    "two products 128": lambda: two_products(128, 128, 128),
    "two products 512": lambda: two_products(512, 256, 128),
    "conv relu": lambda: convolved(16, 32, 32),
}
"""Definitions of one size."""


def cases(sizes: Sequence[int]) -> dict[str, Callable[[], Any]]:
    """The definitions whose pairs are measured, by name; of the usual sizes those of one size as well."""
    found = {f"{name} {n}": functools.partial(make, n) for n in sizes for name, make in SIZED.items()}
    return found | (SINGLE if tuple(sizes) == SIZES else {})


def same(row: Any, device: Any) -> bool:
    """Whether both ways give the same results."""
    outs = []
    for fused in (False, True):
        s = row.pair(fused)
        y = s.build(device)(*random_arguments(s.outputs))
        outs.append(y if isinstance(y, tuple) else (y,))
    apart, fused = outs
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True) for x, y in zip(apart, fused, strict=True))


def slot(bound: Any, calls: int) -> tuple[float, float]:
    """Seconds, and seconds of processor time, of one call: the least of a few short parts."""
    least = [np.inf, np.inf]
    for _ in range(PARTS):
        start, used = time.perf_counter(), time.process_time()
        for _ in range(calls):
            bound()
        bound.finish()
        spent = time.perf_counter() - start, time.process_time() - used
        least = [min(a, b / calls) for a, b in zip(least, spent, strict=True)]
    return least[0], least[1]


def gained(row: Any, device: Any, rounds: int) -> dict[str, float]:
    """Both ways interleaved: how much longer the stages take apart than in one kernel."""
    found, kept = [], []
    for _ in range(PLACES):
        calls = [launched(row.pair(fused), device) for fused in (False, True)]
        kept.append(calls)  # so that the next ones have other arrays
        first = [min(slot(b, 1)[0] for _ in range(3)) for b in calls]
        counts = [max(1, round(PART_S / max(s, 1e-6))) for s in first]
        for n in range(-(-rounds // PLACES)):
            order = (0, 1) if n % 2 else (1, 0)
            took = {k: slot(calls[k], counts[k]) for k in order}
            found.append((*took[0], *took[1]))
    before, before_cpu, after, after_cpu = np.array(found).T
    low, median, high = map(float, np.quantile(before / after, (0.25, 0.5, 0.75)))
    return {
        "measured": median, "low": low, "high": high, "fastest": float(before.min() / after.min()),
        "cpu": float(np.median(before_cpu / after_cpu)),
        "apart_us": 1e6 * float(np.median(before)), "fused_us": 1e6 * float(np.median(after)),
    }  # fmt: skip


def measured(name: str, make: Callable[[], Any], target: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of one case."""
    rows = []
    table = tir.fusions(make(), target)
    device = open_device(table.target)
    for row in table:
        told = {"case": name, "kind": row.kind, "pair": [row.first, row.second], "way": row.way, "code": row.code}
        if row.legal:
            if not same(row, device):
                raise SystemExit(f"{name}: {row} is wrong")
            told |= {"gain": row.gain, **gained(row, device, rounds), "recommended": row.recommended}
            told |= {"saved_bytes": row.saved_bytes, "launch_bound": row.launch_bound}
            told |= {"modelled_us": [1e6 * c.seconds for c in (row.before, row.after)]}
            print(f"{name:25} {row.first:12} {row.second:12} {row.way:23} {row.gain:5.2f} {told['measured']:5.2f} "
                  f"(fastest {told['fastest']:.2f}, cpu {told['cpu']:.2f})  modelled {told['modelled_us'][0]:8.1f} "
                  f"{told['modelled_us'][1]:8.1f} us, took {told['apart_us']:8.1f} {told['fused_us']:8.1f} us"
                  f"{'  recommended' if row.recommended else ''}", flush=True)  # fmt: skip
        rows.append(told)
    return rows


def spearman(x: list[float], y: list[float]) -> float:
    """The correlation of ranks, ties in the middle."""

    def ranks(v: list[float]) -> np.ndarray:
        a = np.array(v)
        return np.array([(a < b).sum() + ((a == b).sum() - 1) / 2 for b in a])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases with these letters in their names")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    chosen = {name: make for name, make in cases(args.sizes).items() if args.only in name}
    rows = [r for name, make in chosen.items() for r in measured(name, make, args.target, args.rounds)]
    legal = [r for r in rows if not r["code"]]
    advised = [r for r in legal if r["recommended"]]
    about = {
        "environment": environment(), "rounds": args.rounds, "pairs": len(legal), "illegal": len(rows) - len(legal),
        **{f"spearman_{k}".removesuffix("_measured"): spearman([r["gain"] for r in legal], [r[k] for r in legal])
           for k in ("measured", "fastest", "cpu")},
        "recommended": len(advised), "recommended_least": min((r["measured"] for r in advised), default=None),
        "recommended_below": [r for r in advised if r["measured"] < LEAST],
    }  # fmt: skip
    args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    print(json.dumps({k: v for k, v in about.items() if k != "environment"}, indent=1))


if __name__ == "__main__":
    main()
