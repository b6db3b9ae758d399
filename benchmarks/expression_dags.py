"""Processor time of declaring, scheduling and printing expressions with common subexpressions, by their size.

Graphs of 10 to 10,000 operations in one lambda: rounds of z * z + c, Horner's rule in three variables, layers in which
each value has two readers, and random graphs. Ratios say how much longer ten times the operations take. The random
graphs have a seed.

    python benchmarks/expression_dags.py [--seed 0] [--sizes 10 100 1000 10000] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from measuring import environment

import tensorir as tir

N = 64
Element = Callable[[Any], Any]


def chain(operations: int, inputs: list[Any], seed: int) -> Element:
    """z = z * z + c."""

    def element(i: Any) -> Any:
        z = inputs[0][i]
        for _ in range(operations // 2):
            z = z * z + inputs[1][i]
        return z

    return element


def horner(operations: int, inputs: list[Any], seed: int) -> Element:
    """A polynomial in three variables, each of them computed."""

    def element(i: Any) -> Any:
        x, y, z = inputs[0][i] + 1, inputs[1][i] * 2, inputs[2][i] * 3
        total = x * 0
        for k in range(operations // 6):
            total = ((total * x + 1) * y + total) * z + k
        return total

    return element


def diamonds(operations: int, inputs: list[Any], seed: int) -> Element:
    """Layers of eight values, each read by two of the next layer."""

    def element(i: Any) -> Any:
        layer = [inputs[k % 3][i] + k for k in range(8)]
        for d in range(max(1, operations // 8)):
            step, times = (1, True) if d % 2 else (3, False)
            pairs = [(layer[k], layer[(k + step) % 8]) for k in range(8)]
            layer = [a * b if times else a + b for a, b in pairs]
        total = layer[0]
        for value in layer[1:]:
            total = total + value
        return total

    return element


def drawn(operations: int, inputs: list[Any], seed: int) -> Element:
    """Operations on values drawn from those before, one of the last twenty among them."""

    def element(i: Any) -> Any:
        rng = random.Random(seed)
        values = [x[i] for x in inputs]
        for _ in range(operations):
            a, b, op = rng.choice(values), rng.choice(values[-20:]), rng.randrange(5)
            made = [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, tir.maximum,
                    lambda a, b: tir.where(a < b, a, b)][op]  # fmt: skip
            values.append(made(a, b))
        return values[-1]

    return element


SHAPES = {"chain": chain, "horner": horner, "diamonds": diamonds, "random": drawn}


def measured(make: Callable[[int, list[Any], int], Element], operations: int, seed: int) -> dict[str, float]:
    """Seconds of the processor for each step, the least of three, and the length of the text."""
    rows = []
    for _ in range(3 if operations < 10_000 else 1):
        inputs = [tir.placeholder((N,), name=name) for name in "ABD"]
        at = [time.process_time()]
        result = tir.compute((N,), make(operations, inputs, seed), name="Z")
        at.append(time.process_time())
        s = tir.Schedule(result)
        at.append(time.process_time())
        text = s.source()
        at.append(time.process_time())
        steps = [b - a for a, b in pairwise(at)]
        rows.append((sum(steps), *steps, len(text)))
    return dict(zip(("seconds", "declare", "schedule", "source", "characters"), min(rows), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "expression_dags.json")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    tir.Schedule(tir.compute((N,), chain(10, [tir.placeholder((N,), name=n) for n in "AB"], 0), name="Z")).source()
    found: dict[str, Any] = {}
    for name, make in SHAPES.items():
        rows = {n: measured(make, n, given.seed) for n in given.sizes}
        pairs = list(pairwise(given.sizes))
        ratios = {f"{b}/{a}": rows[b]["seconds"] / rows[a]["seconds"] for a, b in pairs}
        found[name] = {"rows": {str(n): row for n, row in rows.items()}, "ratios": ratios}
        times = ", ".join(f"{n}: {row['seconds']:.3f} s" for n, row in rows.items())
        print(f"{name:9} {times}; ratios {', '.join(f'{k} {v:.1f}' for k, v in ratios.items())}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    also = {"tensorir": tir.__version__, "commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    written = {"schema": 1, "environment": environment() | also, "seed": given.seed, "shapes": found}
    given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
