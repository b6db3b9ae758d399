"""Inputs, the reference in float64, and what counts as the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from versus.shapes import Conv, Problem

BOUND = 1e-4
"""Largest error that a result may have, relative to the largest output."""

Array = NDArray[Any]


def inputs(problem: Problem, seed: int = 0) -> tuple[Array, Array]:
    """Two float32 arrays, uniform in [-0.5, 0.5): A and B, or image (NCHW) and weights (OIHW)."""
    rng = np.random.default_rng(seed)
    first, second, _ = problem.shapes
    half = np.float32(0.5)
    return rng.random(first, dtype=np.float32) - half, rng.random(second, dtype=np.float32) - half


def reference(problem: Problem, x: Array, w: Array) -> Array:
    """The result in float64."""
    a, b = x.astype(np.float64), w.astype(np.float64)
    return _conv(problem, a[0], b)[None] if isinstance(problem, Conv) else a @ b


def _conv(t: Conv, x: Array, w: Array) -> Array:
    """One shifted product for each position of the kernel: slow, plain, and unlike any kernel that it judges."""
    x = np.pad(x, ((0, 0), (t.pad, t.pad), (t.pad, t.pad)))
    y = np.zeros((t.groups, t.o // t.groups, t.p, t.p))
    reach = (t.p - 1) * t.stride + 1
    weights = w.reshape(t.groups, t.o // t.groups, t.c // t.groups, t.r, t.r)
    for r in range(t.r):
        for q in range(t.r):
            seen = x[:, r : r + reach : t.stride, q : q + reach : t.stride].reshape(t.groups, -1, t.p * t.p)
            y += np.matmul(weights[..., r, q], seen).reshape(y.shape)
    return y.reshape(t.o, t.p, t.p)


def error(result: Array, exact: Array) -> float:
    """Largest deviation relative to the largest output; infinite for a wrong shape or a value that is no number."""
    if result.shape != exact.shape:
        return float("inf")
    deviation = float(np.abs(result - exact).max())
    return deviation / float(np.abs(exact).max()) if np.isfinite(deviation) else float("inf")


class Files:
    """Inputs of one workload as files, which every process reads, and the reference, which only the judge has."""

    def __init__(self, problem: Problem, folder: Path) -> None:
        x, w = inputs(problem)
        self.x, self.w = folder / "x.npy", folder / "w.npy"
        np.save(self.x, x)
        np.save(self.w, w)
        self._exact = reference(problem, x, w)

    def error_of(self, file: Path) -> float:
        """Of a result that a process has written; the file is removed."""
        try:
            return error(np.load(file), self._exact)
        finally:
            file.unlink(missing_ok=True)
