"""Automatic schedules against hand-written templates on the CPU: defaults, and the best after some trials of each.

    python benchmarks/automatic/against_templates.py                          # defaults of all, interleaved
    python benchmarks/automatic/against_templates.py --only depthwise --trials 100

Products (squares and BERT's), ResNet-50's 23 convolutions in NCHW and NHWC, and depthwise ones of MobileNet. A ratio
is the template's seconds over those of the automatic schedule: samples of both alternate, the median of each counts.
After trials the best of both and the automatic default alternate in the same way: "tuned_ratio" is of the first two,
"default_of_best" the faster of them over the default. Where the hand-written template has gone (depthwise), both are
the rule's. Workloads that are in the results already are left out, unless
``--again``. Writes benchmarks/results/automatic_templates.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import environment  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.ops.shapes import RESNET50  # noqa: E402
from tensorir.target import Target  # noqa: E402
from tensorir.tune.template import suiting  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_templates.json"
BERT = ((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (512, 768, 768))
ROUNDS = 7
"""Times that both are timed in turn."""


def workloads() -> dict[str, Any]:
    """All of them, by names that begin with their family."""
    found: dict[str, Any] = {}
    for m, n, k in [*((v, v, v) for v in (256, 384, 512, 768, 1024)), *BERT]:
        found[f"matmul {m}x{n}x{k}"] = tir.ops.matmul(m=m, n=n, k=k)
    for c, size, step in ((32, 112, 1), (64, 112, 2), (128, 56, 1), (256, 28, 1), (512, 14, 1), (1024, 7, 1)):
        for layout in ("NCHW", "NHWC"):
            how = dict(n=1, c=c, h=size, w=size, k=c, r=3, s=3, pad=1, stride=step, groups=c, layout=layout)
            found[f"depthwise {layout} {c}x{size} step {step}"] = tir.ops.conv2d(**how)
    return found | {f"conv2d {layout} {name}": w for layout in ("NCHW", "NHWC") for name, w in resnet(layout)}


def resnet(layout: str) -> list[tuple[str, Any]]:
    """The convolutions of ResNet-50."""
    return [(f"layer {n}", tir.ops.conv2d(**{**s, "layout": layout})) for n, s in enumerate(RESNET50, 1)]


def arguments(work: Any) -> list[np.ndarray]:
    """Inputs of a workload."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(a.shape).astype(a.dtype) for a in work.inputs]


def timed(kernels: list[Any], given: list[np.ndarray]) -> list[list[float]]:
    """Samples of each, in turn."""
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(ROUNDS):
        for f, found in zip(kernels, times, strict=True):
            found += f.time(*given, repeat=6).samples
    return times


def by_hand(work: Any) -> str | None:
    """The first template that no rule makes; None where there is none."""
    rules = tir.auto(work.outputs)
    return next((n for n, _ in suiting(work.templates, Target.parse("opencl")) if n not in rules), None)


def defaults(work: Any) -> dict[str, Any]:
    """Both defaults, with how they compare."""
    given = arguments(work)
    s = tir.auto_schedule(work.outputs)
    automatic, template = s.build(), work.schedule(template=by_hand(work)).build()
    np.testing.assert_allclose(automatic(*given), template(*given), rtol=1e-3, atol=1e-2)
    times = timed([automatic, template], given)
    mine, hand = map(statistics.median, times)
    least = min(times[1]) / min(times[0])
    return {"automatic_s": mine, "template_s": hand, "ratio": hand / mine, "ratio_of_least": least}


def tuned(work: Any, trials: int) -> dict[str, Any]:
    """The best of as many trials of each, and the automatic default."""
    own, best = tir.Workload("automatic", work.outputs), list[Any]()
    hand = [n for n, _ in suiting(work.templates, Target.parse("opencl")) if n not in own.templates]
    for w, templates in ((own, ()), (work, tuple(hand))):
        with tempfile.TemporaryDirectory() as log:
            w.tune(trials=trials, log=log, templates=templates)
            best.append(w.load(log=log))
    times = timed([*best, tir.auto_schedule(work.outputs).build()], arguments(work))
    mine, hand, default = map(statistics.median, times)
    return {"trials": trials, "tuned_ratio": hand / mine, "default_of_best": min(mine, hand) / default}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By family: how many, and geometric means."""
    out: dict[str, Any] = {}
    for family in dict.fromkeys(" ".join(r["workload"].split()[: 2 if "conv" in r["workload"] else 1]) for r in rows):
        mine = [r for r in rows if r["workload"].startswith(family)]
        row: dict[str, Any] = {"workloads": len(mine)}
        for key in ("ratio", "ratio_of_least", "tuned_ratio", "default_of_best"):
            if found := [r[key] for r in mine if key in r]:
                row[key] = {"geomean": math.exp(statistics.fmean(map(math.log, found))), "least": min(found)}
        out[family] = row
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="workloads whose name has this")
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="time the defaults of workloads in the results once more")
    options = parser.parse_args()
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() else []
    known = {r["workload"]: r for r in rows}
    for name, work in workloads().items():
        row = known.get(name) or {"workload": name}
        fresh = name not in known or options.again
        if options.only not in name or not (fresh or (options.trials and "tuned_ratio" not in row)):
            continue
        row |= defaults(work) if fresh else {}
        row |= tuned(work, options.trials) if options.trials and "tuned_ratio" not in row else {}
        rows += [] if name in known else [row]
        print(json.dumps(row), flush=True)
        document = {"schema": 2, "environment": environment(), "summary": summary(rows), "rows": rows}
        RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))


if __name__ == "__main__":
    main()
