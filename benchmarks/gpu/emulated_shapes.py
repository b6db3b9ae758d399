"""Each class of CUDA kernels on many shapes with edges and tails, run as text on the CPU and compared exactly.

    python benchmarks/gpu/emulated_shapes.py              # 50 shapes a class
    python benchmarks/gpu/emulated_shapes.py --count 5 --only int8
    python benchmarks/gpu/emulated_shapes.py --save       # and writes benchmarks/results/cuda_shapes.json

A shape counts where the result equals the reference and the emulator has nothing to tell: no race, no read of memory
that nobody wrote, no access out of bounds, no copy in flight that is used, no barrier that not all threads reach. Needs
a C++ compiler. Nothing here was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.reference import random_arguments

RESULT = Path(__file__).parents[1] / "results" / "cuda_shapes.json"
TARGET = "cuda -arch=sm_80"
EDGES = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 127, 128, 129, 136)


def product(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A product whose extents lie at, just before and just behind those of tiles."""
    m, n, k = (rng.choice(EDGES) for _ in "mnk")
    turned = {"ta": rng.random() < 0.5, "tb": rng.random() < 0.5}
    return {"m": m, "n": n, "k": k, "batch": rng.choice((1, 1, 1, 3)), **turned, **options}


def convolution(rng: random.Random, **options: Any) -> dict[str, Any]:
    """A convolution of a small image."""
    r, s = rng.choice((1, 3, 5)), rng.choice((1, 3))
    drawn = {
        "n": rng.choice((1, 2)),
        "c": rng.choice((3, 8, 16, 24, 40)),
        "h": rng.randint(5, 12),
        "w": rng.randint(5, 34),
        "k": rng.choice((8, 24, 33, 64)),
        "pad": rng.choice((0, 1)),
        "bias": rng.random() < 0.5,
    }
    return {**drawn, "r": r, "s": s, "layout": "NHWC", **options}


CLASSES: dict[str, tuple[Callable[..., tir.Workload], Callable[..., dict[str, Any]], dict[str, Any]]] = {
    "fp32 in threads": (tir.ops.matmul, product, {}),
    "fp16 mma.sync": (tir.ops.matmul, product, {"dtype": "float16"}),
    "bf16 mma.sync": (tir.ops.matmul, product, {"dtype": "bfloat16"}),
    "int8 mma.sync": (tir.ops.matmul, product, {"dtype": "int8"}),
    "fp32 by tf32": (tir.ops.matmul, product, {"precision": "tf32"}),
    "fp32 by 3xTF32": (tir.ops.matmul, product, {"precision": "3xtf32"}),
    "fp16 convolution": (tir.ops.conv2d, convolution, {"dtype": "float16"}),
}


def wrong(work: tir.Workload, config: dict[str, Any], template: str) -> str:
    """What is wrong with one kernel; empty where it is right."""
    arrays = random_arguments(work.outputs, 0)
    run = emulate(work.schedule(config, template, TARGET).emitted(), arrays)
    if run.problems:
        return str(run.problems[0])
    return "" if np.array_equal(run.outputs[0], work.reference(*arrays)) else "another result"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=50, help="shapes of each class")
    parser.add_argument("--only", default="", help="classes whose name contains this")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name} among the results")
    options = parser.parse_args()
    rows = []
    for name, (make, draw, given) in CLASSES.items():
        if options.only not in name:
            continue
        rng, failed = random.Random(0), []
        for n in range(options.count):
            shape = draw(rng, **given)
            work = make(**shape)
            template = work.template_for(TARGET)
            space = work.templates[template].space_for(tir.Target.parse(TARGET))
            config = space.default if n % 2 else space.config(rng.randrange(len(space.legal)))
            if told := wrong(work, config, template):
                failed.append({"shape": shape, "config": config, "wrong": told})
                print(name, shape, config, told, flush=True)
        rows.append({"class": name, "shapes": options.count, "exact": options.count - len(failed), "failed": failed})
        print(f"{name:18s} {options.count - len(failed)} of {options.count} exact", flush=True)
    if options.save:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
