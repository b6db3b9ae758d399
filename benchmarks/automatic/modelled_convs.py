"""Convolutions on tensor cores: what a tree begins with against what another one began with, by the model of GPUs.

    python benchmarks/automatic/modelled_convs.py ../before          # this tree's starts over those of the other one
    python benchmarks/automatic/modelled_convs.py ../before --save   # and writes benchmarks/results/modelled_convs.json

Every fourth layer of ResNet-50 and some in groups, of 16 images, forward and both gradients, in both layouts, as
float16 and as tf32, on Ampere and on Hopper. Both starts are a template and a configuration; this tree's model says
what each is expected to take, so that neither tree judges itself. A row is the time of this start over that of the
other one: below 1 is faster. Where the other tree begins with a template that this one does not have, or with one whose
time no model tells, the row is left out, and counted. Ends with status 1 if a class takes longer by more than ``MOST``.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

import tensorir as tir  # noqa: E402
from tensorir.errors import TensorIRError  # noqa: E402
from tensorir.ops.shapes import SETS  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "modelled_convs.json"
TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90a")
KINDS: tuple[dict[str, str], ...] = ({"dtype": "float16"}, {"precision": "tf32"})
MOST = 1.05
"""Of the time that is expected of the other tree's starts of a class, in the geometric mean."""
IN_GROUPS = tuple(
    dict(c=c, h=h, w=h, k=c, r=3, s=3, stride=1, pad=1, groups=g) for c, h, g in ((128, 28, 2), (256, 28, 8))
)

Row = dict[str, Any]


def cases() -> Iterator[Row]:
    """The operator, its parameters and the target of each row, and the class it counts to."""
    layers = [*SETS["resnet50"][1]][2::4]
    for op in ("conv2d", "conv2d_backward_data", "conv2d_backward_weight"):
        for layout in ("NHWC", "NCHW"):
            for kind in KINDS:
                for target in TARGETS:
                    of = f"{op} {layout} {next(iter(kind.values()))} {target.split('=')[1]}"
                    for x in (*layers, *IN_GROUPS):
                        given = {**x, "n": 16, "layout": layout, **kind}
                        yield {"op": op, "given": given, "target": target, "class": of}


@functools.lru_cache(maxsize=4)
def _made(op: str, given: str) -> tir.Workload:
    work: tir.Workload = getattr(tir.ops, op)(**json.loads(given))
    return work


def made(row: Row) -> tir.Workload:
    """The workload of a row; the same one for its start and for both times."""
    return _made(row["op"], json.dumps(row["given"]))


def start(case: Row) -> Row:
    """The template that a schedule begins with, and its configuration."""
    work, target = made(case), tir.Target.parse(case["target"])
    name = work.template_for(target)
    return {**case, "template": name, "config": work.templates[name].space_for(target).default}


def starts_of(tree: Path) -> list[Row]:
    """Those of another tree, by a process of its own."""
    named = [sys.executable, str(Path(__file__).resolve()), "--starts"]
    done = subprocess.run(named, env={**os.environ, "PYTHONPATH": str(tree.resolve())}, capture_output=True, check=True)
    rows: list[Row] = json.loads(done.stdout)
    return rows


def seconds(row: Row) -> float | None:
    """What this tree's model expects of a template's configuration; None where it cannot tell."""
    work, target = made(row), tir.Target.parse(row["target"])
    try:
        space = work.templates[row["template"]].space_for(target)
    except (KeyError, TensorIRError):
        return None
    known = space.expected_s is not None and {*space.names} <= {*row["config"]}
    return float(space.expected_s(row["config"])) if known and space.expected_s else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, nargs="?", help="checkout of the other tree")
    parser.add_argument("--starts", action="store_true", help="print what this tree begins with, as JSON")
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    if options.starts:
        print(json.dumps([start(case) for case in cases()]))
        return
    found, left_out = list[Row](), 0
    for old, case in zip(starts_of(options.before), cases(), strict=True):
        new = start(case)
        before, after = seconds(old), seconds(new)
        if before is None or after is None:
            left_out += 1
            continue
        found.append({**new, "before": old["template"], "ratio": round(after / before, 4)})
    late = False
    for of in dict.fromkeys(r["class"] for r in found):
        ratios = [r["ratio"] for r in found if r["class"] == of]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        late |= mean > MOST
        print(f"{of:45s} {len(ratios):3d} rows, mean {mean:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"{left_out} rows left out")
    if options.save:
        RESULT.write_text(
            json.dumps({"schema": 1, "left_out": left_out, "rows": found}, indent=1) + "\n", encoding="utf-8"
        )
    sys.exit(late)


if __name__ == "__main__":
    main()
