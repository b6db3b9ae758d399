"""The computations of docs/stencils.md without a schedule, against the best formulation in NumPy, SciPy and PyTorch.

    export OMP_WAIT_POLICY=passive MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592
    python benchmarks/stencils.py
    python benchmarks/stencils.py --rounds 25 --out FILE

Runs the page's own cells: definitions, inputs and the formulations in NumPy and SciPy are those that readers see. Those
in PyTorch are here, each eager and compiled. All take turns, in rounds of one slot each; a ratio is the median of the
rounds' ratios with its 95 % interval, of the formulation with the smallest median time: above 1 ours is faster. Writes
benchmarks/results/stencils.json. See rows.py for the settings of the environment.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import aligned, environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

PAGE = ROOT / "docs" / "stencils.md"
RESULT = ROOT / "benchmarks" / "results" / "stencils.json"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

Call = Callable[..., Any]
Comparison = tuple[Any, list[np.ndarray], Call]


def comparisons(text: str) -> list[Comparison]:
    """What the page compares: results, inputs, and the formulation in NumPy and SciPy."""
    found: list[Comparison] = []
    names: dict[str, Any] = {}
    for cell in CELL.findall(text):
        code = re.sub(r"^print\(.*\)$", "", cell, flags=re.MULTILINE)
        exec(compile(code, str(PAGE), "exec"), names)
        names["compare"] = lambda *given: found.append(given)
    return found


def blur_of_slices(a: torch.Tensor) -> torch.Tensor:
    """Sums of three along rows, of three of these along columns."""
    x = a[:, :-2] + a[:, 1:-1] + a[:, 2:]
    return (x[:-2] + x[1:-1] + x[2:]) * (1 / 9)


def blur_by_pooling(a: torch.Tensor) -> torch.Tensor:
    """The mean of 3 x 3."""
    return functional.avg_pool2d(a[None], 3, 1)[0]


def blur_by_convolution(a: torch.Tensor) -> torch.Tensor:
    """A filter of equal weights."""
    return functional.conv2d(a[None, None], torch.full((1, 1, 3, 3), 1 / 9))[0, 0]


def colours_of_cases(a: torch.Tensor) -> torch.Tensor:
    """Each colour chosen by where a pixel is, as the page declares it."""
    c, up, down, left, right = a[1:-1, 1:-1], a[:-2, 1:-1], a[2:, 1:-1], a[1:-1, :-2], a[1:-1, 2:]
    cross = (up + down + left + right) * 0.25
    corners = (a[:-2, :-2] + a[:-2, 2:] + a[2:, :-2] + a[2:, 2:]) * 0.25
    row, column = (left + right) * 0.5, (up + down) * 0.5
    i, j = torch.arange(c.shape[0])[:, None], torch.arange(c.shape[1])[None]
    top, first = i % 2 == 0, j % 2 == 0
    red = torch.where(top, torch.where(first, c, row), torch.where(first, column, corners))
    blue = torch.where(top, torch.where(first, corners, column), torch.where(first, row, c))
    return torch.stack([red, torch.where((i + j) % 2 == 0, cross, c), blue])


def _filters_of_colours() -> torch.Tensor:
    """What each of the four pixels of a square takes of 4 x 4 for its colours: (3 * 2 * 2, 1, 4, 4)."""
    one, cross, corners = ((0, 0),), ((-1, 0), (1, 0), (0, -1), (0, 1)), ((-1, -1), (-1, 1), (1, -1), (1, 1))
    row, column = ((0, -1), (0, 1)), ((-1, 0), (1, 0))
    taken = [[[one, row], [column, corners]], [[cross, one], [one, cross]], [[corners, column], [row, one]]]
    found = torch.zeros(3, 2, 2, 4, 4)
    for colour, i, j in np.ndindex(3, 2, 2):
        for y, x in taken[colour][i][j]:
            found[colour, i, j, i + 1 + y, j + 1 + x] = 1 / len(taken[colour][i][j])
    return found.reshape(12, 1, 4, 4)


def colours_by_convolution(a: torch.Tensor, filters: torch.Tensor) -> torch.Tensor:
    """A convolution with stride 2 whose channels are the pixels of a square."""
    return functional.pixel_shuffle(functional.conv2d(a[None, None], filters, stride=2), 2)[0]


def bilateral(a: torch.Tensor, t: int = 8, z: int = 10) -> torch.Tensor:
    """Pixels added to cells by their numbers, a filter over three axes, samples between cells."""
    (h, w), depth = a.shape, z + 2
    rows, columns = h // t + 1, w // t + 1
    i, j = torch.arange(h)[:, None], torch.arange(w)[None]
    cell = ((i // t) * columns + j // t) * depth + (a * z + 0.5).int()
    terms = torch.stack([a.reshape(-1), torch.ones(h * w)])
    grid = torch.zeros(2, rows * columns * depth).index_add_(1, cell.reshape(-1), terms)
    grid = grid.reshape(2, 1, rows, columns, depth)
    weights = torch.tensor([1.0, 2.0, 1.0])
    for shape, pad in (((3, 1, 1), (1, 0, 0)), ((1, 3, 1), (0, 1, 0)), ((1, 1, 3), (0, 0, 1))):
        grid = functional.conv3d(grid, weights.reshape(1, 1, *shape), padding=pad)
    extents = torch.tensor([depth - 1.0, columns - 1.0, rows - 1.0])
    at = torch.stack([a * z, (j / t).expand(h, w), (i / t).expand(h, w)], -1) * (2 / extents) - 1
    halves = functional.grid_sample(grid.reshape(1, 2, rows, columns, depth), at[None, None], align_corners=True)
    return halves[0, 0, 0] / halves[0, 1, 0]


def learned_of_taps(x: torch.Tensor, f: torch.Tensor, m: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """For each tap of the filter a gather, the mask, and a product."""
    (h,), w, p, q = d.shape, m.shape[-1], torch.arange(m.shape[2])[:, None], torch.arange(m.shape[3])[None]
    y = torch.zeros(f.shape[0], h * w)
    for r in range(3):
        for s in range(3):
            taps = x[:, p + r * d[:, None], q + s * d[:, None]] * m[r, s]
            y = torch.addmm(y, f[:, :, r, s], taps.reshape(x.shape[0], -1))
    return y.reshape(-1, h, w)


def learned_at_once(x: torch.Tensor, f: torch.Tensor, m: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """One gather of all taps, the mask, and one product."""
    n, (h,), w = torch.arange(3), d.shape, m.shape[-1]
    p = torch.arange(h)[None, :] + n[:, None] * d[None, :]  # (r, p)
    q = torch.arange(w)[None, None, :] + n[:, None, None] * d[None, :, None]  # (s, p, q)
    taps = x[:, p[:, None, :, None], q[None]] * m  # (i, r, s, p, q)
    return (f.reshape(f.shape[0], -1) @ taps.reshape(-1, h * w)).reshape(-1, h, w)


IN_TORCH: dict[str, list[Call]] = {
    "blur": [blur_of_slices, blur_by_pooling, blur_by_convolution],
    "rgb": [colours_of_cases, partial(colours_by_convolution, filters=_filters_of_colours())],
    "smooth": [bilateral],
    "Y": [learned_of_taps, learned_at_once],
}


def formulations(name: str, given: list[np.ndarray], by_numpy: Call) -> dict[str, Call]:
    """Calls by what they are, each right."""
    tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in given]
    calls: dict[str, Call] = {by_numpy.__name__: partial(by_numpy, *given)}
    for f in IN_TORCH[name]:
        label = getattr(f, "func", f).__name__
        calls[label] = partial(f, *tensors)
        calls[f"{label}, compiled"] = partial(torch.compile(f, dynamic=False), *tensors)
    want = by_numpy(*given)
    for call in calls.values():
        np.testing.assert_allclose(np.asarray(call()), want, rtol=2e-3, atol=2e-4)
    return calls


def row(y: Any, given: list[np.ndarray], by_numpy: Call, rounds: int) -> dict[str, Any]:
    """Microseconds of ours and of each formulation, and how they compare."""
    name = (y[0] if isinstance(y, tuple) else y).op.name
    given = [aligned(np.asarray(a)) for a in given]
    theirs, kernel = formulations(name, given, by_numpy), tir.auto_schedule(y).build()
    np.testing.assert_allclose(np.asarray(kernel(*given)), by_numpy(*given), rtol=2e-3, atol=2e-4)
    calls = [kernel.bind(*given), *theirs.values()]
    turns = Rounds([(c, seconds(c)) for c in calls], range(1, len(calls)))
    for _ in range(rounds):
        turns.run()
    slots = dict(zip(theirs, turns.samples[1:], strict=True))
    best = min(slots, key=lambda m: middle(slots[m])[0])
    ratio, low, high = middle([t / o for t, o in zip(slots[best], turns.samples[0], strict=True)])
    out = {"computation": name, "us": 1e6 * middle(turns.samples[0])[0], "best": best}
    out |= {"ratio": ratio, "low": low, "high": high, "their_us": {m: 1e6 * middle(s)[0] for m, s in slots.items()}}
    print(f"{name:8} {best:28} {ratio:6.2f} [{low:.2f}, {high:.2f}]", flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    for y, given, by_numpy in comparisons(PAGE.read_text(encoding="utf-8")):
        torch.compiler.reset()
        rows.append(row(y, given, by_numpy, options.rounds))
    found = environment(("torch",)) | {"load": os.getloadavg()[0]}
    geomean = math.exp(np.mean([math.log(r["ratio"]) for r in rows]))
    document = {"schema": 1, "environment": found, "geomean": geomean, "rows": rows}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"geometric mean {geomean:.2f}")


if __name__ == "__main__":
    main()
