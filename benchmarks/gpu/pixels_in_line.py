"""What pixels in one line (TMA's im2col mode) save beside boxes of them, by counting: ResNet-50's layers on an H100.

    python benchmarks/gpu/pixels_in_line.py            # the table
    python benchmarks/gpu/pixels_in_line.py --save     # and writes benchmarks/results/gpu_pixels.md

For each layer and batch, of all tilings of either kind the one that the template expects to take least: rows of its
products that are no pixel, and how long boxes take by that expectation, over pixels in one line. It counts rounds of
blocks, multiply-adds and bytes from the L2 cache, nothing else; no GPU has run any of it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorir as tir
from tensorir.engines.problems import Conv
from tensorir.intrin.hopper import ROWS
from tensorir.ops.conv_hopper import PixelTile, takes_warpgroups
from tensorir.ops.shapes import RESNET50

RESULT = Path(__file__).parents[1] / "results" / "gpu_pixels.md"
TARGET = tir.Target.parse("cuda -arch=sm_90a -units=132")
BATCHES = (1, 16, 64)
KINDS = ("box", "im2col")


def shape_of(params: Mapping[str, Any]) -> Conv:
    """A layer as the template has it, in bfloat16 with channels last."""
    full = {**dict(r=3, s=3, stride=1, pad=0), **params}
    for out, size, taps in (("p", "h", "r"), ("q", "w", "s")):
        full[out] = (full[size] + 2 * full["pad"] - full[taps]) // full["stride"] + 1
    return Conv(layout="NHWC", dtype="bfloat16", **full)


def best(shape: Conv, pixels: str) -> dict[str, Any]:
    """The tiling of a kind that is expected to take least; of equals the one with the fewest idle rows."""
    options = {k: getattr(shape, k) for k in ("n", "c", "h", "w", "k", "r", "s", "stride", "pad")}
    work = tir.ops.conv2d(**options, layout="NHWC", dtype="bfloat16")
    space = work.templates["gpu_hopper"].space_for(TARGET)
    every = (c for c in map(space.config, range(len(space.legal))) if c["pixels"] == pixels and c["resident"])
    return min(every, key=lambda c: (PixelTile(c, shape, TARGET).clocks, idle(c, shape)))


def idle(c: Mapping[str, Any], shape: Conv) -> float:
    """Of the rows of all products, those that are no pixel."""
    rows = PixelTile(c, shape, TARGET).tiles // -(-shape.k // c["bk"]) * c["groups"] * ROWS
    return float(1 - shape.n * shape.p * shape.q / rows)


def row(params: Mapping[str, Any]) -> tuple[float, float, float]:
    """Idle rows of boxes and in one line, and the time of boxes over that in one line."""
    shape = shape_of(params)
    box, line = (best(shape, kind) for kind in KINDS)
    in_boxes, in_line = (PixelTile(c, shape, TARGET).clocks for c in (box, line))
    return idle(box, shape), idle(line, shape), in_boxes / in_line


def markdown(batches: Sequence[int] = BATCHES, layers: Sequence[Mapping[str, Any]] = RESNET50) -> str:
    """A row for each layer of which tensor copies bring tiles, and the geometric mean of each batch."""
    head = ["layer, bf16 (out: p x q, k)", *(f"n={n}: idle rows, time" for n in batches)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    ratios: dict[int, list[float]] = {n: [] for n in batches}
    for layer in layers:
        shape = shape_of(layer)
        if not takes_warpgroups(shape):
            continue
        cells = []
        for n in batches:
            box, line, ratio = row({**layer, "n": n})
            ratios[n].append(ratio)
            cells.append(f"{box:.0%} -> {line:.0%}, {ratio:.2f}")
        name = f"{shape.r}x{shape.s}/{shape.stride} c={shape.c} {shape.p}x{shape.q} k={shape.k}"
        lines.append(f"| {' | '.join([name, *cells])} |")
    means = (f"{math.exp(sum(map(math.log, ratios[n])) / len(ratios[n])):.2f}" for n in batches)
    return "\n".join([*lines, f"| geometric mean | {' | '.join(means)} |"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name} among the results")
    options = parser.parse_args()
    text = markdown()
    print(text)
    if options.save:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
