"""Computations of a few lines that no library has, without a schedule, against their formulations in NumPy.

    python benchmarks/automatic/lambdas.py
    python benchmarks/automatic/lambdas.py --case forces --rounds 25

The formulations have the same terms: ranks are counted, which sorting would give sooner. Both take turns, in rounds of
one slot each; a ratio is the median of the rounds' ratios with its 95 % interval: above 1 ours is faster. Results are
compared first. Writes benchmarks/results/automatic_lambdas.json, but for ``--case``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import aligned, environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_lambdas.json"
LARGEST = 200
"""Of whole numbers, which are places and classes."""

Array = np.ndarray
Made = tuple[Any, Callable[..., Any]]
"""A result, and the same in NumPy, of arrays in the order in which they are declared."""


def _forces() -> Made:
    x, m, j = tir.placeholder((2048, 3), name="x"), tir.placeholder((2048,), name="m"), tir.reduce_axis(2048, name="j")

    def force(i: Any, c: Any) -> Any:
        d = [x[j, a] - x[i, a] for a in range(3)]
        near = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 1e-2
        return tir.sum(m[j] * (x[j, c] - x[i, c]) * tir.rsqrt(near) / near, axis=j)

    def by_numpy(x: Array, m: Array) -> Array:
        d = x[None] - x[:, None]
        near = np.einsum("ijc,ijc->ij", d, d) + np.float32(1e-2)
        return np.einsum("ij,ijc->ic", m / (near * np.sqrt(near)), d)

    return tir.compute((2048, 3), force, name="F"), by_numpy


def _energy() -> Made:
    x, y = tir.placeholder((2048,), name="x"), tir.placeholder((2048,), name="y")
    i, j = tir.reduce_axis(2048, name="i"), tir.reduce_axis(2048, name="j")
    made = tir.compute((1,), lambda z: tir.sum(tir.exp(-(x[i] - y[j]) * (x[i] - y[j])), axis=(i, j)), name="E")
    return made, lambda x, y: np.exp(-np.square(x[:, None] - y)).sum(keepdims=True)[0]


def _bilinear() -> Made:
    x, a, y = (
        tir.placeholder((2048,), name="x"),
        tir.placeholder((2048, 2048), name="a"),
        tir.placeholder((2048,), name="y"),
    )
    i, j = tir.reduce_axis(2048, name="i"), tir.reduce_axis(2048, name="j")
    made = tir.compute((1,), lambda z: tir.sum(x[i] * a[i, j] * y[j], axis=(i, j)), name="E")
    return made, lambda x, a, y: np.reshape(x @ a @ y, 1)


def _ranks() -> Made:
    x, j = tir.placeholder((2048,), name="x"), tir.reduce_axis(2048, name="j")
    made = tir.compute((2048,), lambda i: tir.sum(tir.where(x[j] < x[i], 1, 0), axis=j), name="R")
    return made, lambda x: (x[None] < x[:, None]).sum(1, dtype="int32")


def _triangle() -> Made:
    x, j = tir.placeholder((2048, 2048), name="x"), tir.reduce_axis(2048, name="j")
    made = tir.compute((2048,), lambda i: tir.sum(tir.where(j < i, x[i, j], 0.0), axis=j), name="T")
    return made, lambda x: np.tril(x, -1).sum(1)


def _lags() -> Made:
    n, lags = 1 << 16, 64
    x, i = tir.placeholder((n,), name="x"), tir.reduce_axis(n - lags, name="i")
    made = tir.compute((lags,), lambda k: tir.sum(x[i] * x[i + k], axis=i), name="C")
    return made, lambda x: np.correlate(x, x[: n - lags])[:lags]


def _long_filter() -> Made:
    x, w, i = tir.placeholder((1 << 16,), name="x"), tir.placeholder((1024,), name="w"), tir.reduce_axis(1024, name="i")
    made = tir.compute(((1 << 16) - 1023,), lambda k: tir.sum(x[k + i] * w[i], axis=i), name="Y")
    return made, lambda x, w: np.convolve(x, w[::-1], "valid")


def _factor_of_three() -> Made:
    x, b, c = (
        tir.placeholder((128, 64, 64), name="x"),
        tir.placeholder((64, 16), name="b"),
        tir.placeholder((64, 16), name="c"),
    )
    j, k = tir.reduce_axis(64, name="j"), tir.reduce_axis(64, name="k")
    made = tir.compute((128, 16), lambda i, r: tir.sum(x[i, j, k] * b[j, r] * c[k, r], axis=(j, k)), name="M")
    return made, lambda x, b, c: np.einsum("ikr,kr->ir", np.tensordot(x, b, (1, 0)), c)


def _three_factors() -> Made:
    a, b, c = (tir.placeholder((64, 32), name=n) for n in "abc")
    r = tir.reduce_axis(32, name="r")
    made = tir.compute((64, 64, 64), lambda i, j, k: tir.sum(a[i, r] * b[j, r] * c[k, r], axis=r), name="Y")
    return made, lambda a, b, c: ((a[:, None] * b).reshape(-1, 32) @ c.T).reshape(64, 64, 64)


def _bags() -> Made:
    t, p, i = (
        tir.placeholder((50000, 64), name="t"),
        tir.placeholder((32, 200), "int32", name="p"),
        tir.reduce_axis(200, name="i"),
    )
    made = tir.compute((32, 64), lambda b, c: tir.sum(t[p[b, i], c], axis=i), name="E")
    return made, lambda t, p: t[p].sum(1)


def _channels(last: bool) -> Made:
    x = tir.placeholder((16, 56, 56, 64) if last else (16, 64, 56, 56), name="x")
    n, h, w = tir.reduce_axis(16, name="n"), tir.reduce_axis(56, name="h"), tir.reduce_axis(56, name="w")
    made = tir.compute((64,), lambda c: tir.sum(x[(n, h, w, c) if last else (n, c, h, w)], axis=(n, h, w)), name="S")
    return made, lambda x: x.sum((0, 1, 2) if last else (0, 2, 3))


def _classes() -> Made:
    x = tir.placeholder((1 << 20,), "int32", name="x")
    made = tir.scatter((256,), over=(1 << 20,), index=lambda t: (x[t],), value=lambda t: 1, name="H")
    return made, lambda x: np.bincount(x, minlength=256).astype("int32")


def _gathered() -> Made:
    x, p, i = (
        tir.placeholder((1 << 20,), name="x"),
        tir.placeholder((1 << 20,), "int32", name="p"),
        tir.reduce_axis(1 << 20, name="i"),
    )
    made = tir.compute((1,), lambda z: tir.sum(x[p[i]], axis=i), name="E")
    return made, lambda x, p: np.reshape(x[p].sum(), 1)


def _laplace() -> Made:
    x = tir.placeholder((130, 130, 130), name="x")
    made = tir.compute(
        (128, 128, 128),
        lambda i, j, k: (
            x[i, j + 1, k + 1] + x[i + 2, j + 1, k + 1] + x[i + 1, j, k + 1] + x[i + 1, j + 2, k + 1]
            + x[i + 1, j + 1, k] + x[i + 1, j + 1, k + 2] - 6 * x[i + 1, j + 1, k + 1]
        ),
        name="L",
    )  # fmt: skip
    inner = slice(1, -1)

    def by_numpy(x: Array) -> Array:
        found = x[:-2, inner, inner] + x[2:, inner, inner]
        for at in ((inner, slice(None, -2), inner), (inner, slice(2, None), inner), (inner, inner, slice(None, -2)),
                   (inner, inner, slice(2, None))):  # fmt: skip
            found += x[at]
        return found - 6 * x[inner, inner, inner]

    return made, by_numpy


def _twice_as_large() -> Made:
    x = tir.placeholder((8, 64, 64, 64), name="x")
    made = tir.compute((8, 64, 128, 128), lambda n, c, h, w: x[n, c, h // 2, w // 2], name="U")
    return made, lambda x: np.broadcast_to(x[..., None, :, None], (8, 64, 64, 2, 64, 2)).reshape(8, 64, 128, 128)


def _running() -> Made:
    return tir.scan(tir.placeholder((1 << 20,), name="x"), axis=0, name="S"), np.cumsum


CASES: dict[str, Callable[[], Made]] = {
    "forces between points": _forces,
    "energy of all pairs": _energy,
    "bilinear form": _bilinear,
    "ranks": _ranks,
    "rows of a triangle": _triangle,
    "correlation at 64 lags": _lags,
    "filter of 1024 taps": _long_filter,
    "tensor by two factors": _factor_of_three,
    "product of three factors": _three_factors,
    "sums of bags of rows": _bags,
    "sums of channels, first": lambda: _channels(last=False),
    "sums of channels, last": lambda: _channels(last=True),
    "counts of classes": _classes,
    "sum of gathered elements": _gathered,
    "Laplacian of a volume": _laplace,
    "images twice as large": _twice_as_large,
    "running sum": _running,
}


def inputs(kernel: Any) -> list[Array]:
    """Arrays that a kernel works on in place: normal numbers, or whole ones."""
    rng, found = np.random.default_rng(0), list[Array]()
    for p in kernel.emitted.inputs:
        whole = p.dtype.startswith("int")
        found.append(
            aligned((rng.integers(0, LARGEST, p.shape) if whole else rng.standard_normal(p.shape)).astype(p.dtype))
        )
    return found


def row(name: str, rounds: int) -> dict[str, Any]:
    """Microseconds of both, and how they compare."""
    made, by_numpy = CASES[name]()
    kernel, template = tir.auto_schedule(made).build(), next(iter(tir.auto(made)))
    given = inputs(kernel)
    np.testing.assert_allclose(np.asarray(kernel(*given)), by_numpy(*given), rtol=2e-3, atol=2e-2)
    calls = [kernel.bind(*given), lambda: by_numpy(*given)]
    turns = Rounds([(c, seconds(c)) for c in calls], range(1, 2))
    for _ in range(rounds):
        turns.run()
    ours, theirs = turns.samples
    ratio, low, high = middle([t / o for o, t in zip(ours, theirs, strict=True)])
    print(f"{name:26} {template:18} {ratio:7.2f} [{low:.2f}, {high:.2f}]", flush=True)
    return {"computation": name, "template": template, "us": 1e6 * middle(ours)[0], "numpy_us": 1e6 * middle(theirs)[0],
            "ratio": ratio, "low": low, "high": high}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--case", default="", help="only those whose name has this; nothing is written then")
    options = parser.parse_args()
    rows = [row(name, options.rounds) for name in CASES if options.case in name]
    geomean = math.exp(np.mean([math.log(r["ratio"]) for r in rows]))
    print(f"geometric mean {geomean:.2f}")
    if not options.case:
        document = {
            "schema": 1,
            "environment": environment() | {"load": os.getloadavg()[0]},
            "geomean": geomean,
            "rows": rows,
        }
        RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
