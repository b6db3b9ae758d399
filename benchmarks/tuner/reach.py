"""Trials and seconds until tuning comes within 5 % of the best configuration that any run found.

    python benchmarks/tuner/reach.py                      # 5 layers of ResNet-50, a product; 5 seeds, one long run
    python benchmarks/tuner/reach.py --workloads 1 --seeds 2 --trials 20 --long 40 --strategies bayes,random

Every run starts from an empty log. Times that runs measured minutes apart on a shared machine cannot be compared, so
each configuration that was some run's best for a while is measured again at the end, all of a layer interleaved; those
times decide. What is counted is what the run itself would have handed out: its own best so far.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.runtime.device import open_device

WORKLOADS: dict[str, dict[str, Any]] = {
    "r2_1x1_512_128_28 NCHW": dict(c=512, h=28, w=28, k=128, r=1, s=1, layout="NCHW"),
    "r2_3x3s2_128_128_56 NHWC": dict(c=128, h=56, w=56, k=128, r=3, s=3, stride=2, pad=1, layout="NHWC"),
    "r3_1x1_256_1024_14 NHWC": dict(c=256, h=14, w=14, k=1024, r=1, s=1, layout="NHWC"),
    "r_stem_7x7s2_3_64_224 NCHW": dict(c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3, layout="NCHW"),
    "r2_3x3_128_128_28 NCHW": dict(c=128, h=28, w=28, k=128, r=3, s=3, pad=1, layout="NCHW"),
    "matmul 512x512x512": dict(m=512, n=512, k=512),
}
STRATEGIES = ("bayes", "climb", "random")
WITHIN = 1.05
Step = tuple[int, float, str]
"""Trials so far, seconds so far, and the configuration that was best then."""


def workload(name: str) -> Any:
    shape = WORKLOADS[name]
    return tir.ops.matmul(**shape) if name.startswith("matmul") else tir.ops.conv2d(**shape, prepack=True)


def run(work: Any, trials: int, budget: str, seed: int, strategy: str = "bayes") -> tuple[list[Step], int, float]:
    """One run: its steps, the trials it made, and the seconds it took."""
    started, steps, best = time.monotonic(), [], float("inf")
    seen = 0

    def watch(record: Any, *_: Any) -> None:
        nonlocal best, seen
        seen += 1
        if record.status == "ok" and record.time_s < best:
            best = record.time_s
            key = json.dumps([record.template, record.config], sort_keys=True)
            steps.append((seen, time.monotonic() - started, key))

    with tempfile.TemporaryDirectory() as log:
        work.tune(trials=trials, budget=budget, seed=seed, log=log, on_trial=watch, strategy=strategy)
    return steps, seen, time.monotonic() - started


def measured_again(work: Any, keys: list[str], rounds: int = 9, slot: float = 0.03) -> dict[str, float]:
    """Median seconds of each configuration, in interleaved rounds."""
    device = open_device("opencl")
    arrays = [tir.empty(a.shape, a.dtype) for a in work.inputs]
    for array, values in zip(arrays, work.random_inputs(1), strict=True):
        np.copyto(array, values)
    bound = {}
    for key in keys:
        template, config = json.loads(key)
        f = work.schedule(config, template=template, target=device.target).build(device)
        fixed = {p.name: a for p, a in zip(work.inputs, arrays, strict=True) if p.name == "w"}
        f = f.prepack(**fixed) if fixed else f
        bound[key] = f.bind(*(a for p, a in zip(work.inputs, arrays, strict=True) if p.name != "w"))
        bound[key]()
        bound[key].wait()
    times: dict[str, list[float]] = {key: [] for key in keys}
    for n in range(rounds):
        for key in keys if n % 2 else keys[::-1]:
            end = time.perf_counter() + slot
            while (started := time.perf_counter()) < end:
                bound[key]()
                bound[key].wait()
                times[key].append(time.perf_counter() - started)
    return {key: statistics.median(t) for key, t in times.items()}


def reached(steps: list[Step], times: dict[str, float], goal: float) -> tuple[int, float] | None:
    """Trials and seconds until the run's best configuration was good enough, and stayed so."""
    found = None
    for trial, seconds, key in steps:
        if times[key] <= goal:
            found = found or (trial, seconds)
        else:
            found = None
    return found


def measured(name: str, options: argparse.Namespace, long: int) -> dict[str, Any]:
    """All runs of one workload, of all strategies and seeds in turn, so that slow minutes meet all alike."""
    work = workload(name)
    runs = []
    for seed in range(options.seeds):
        for strategy in options.strategies:
            runs.append((strategy, seed, run(work, options.trials, options.budget, seed, strategy)))
            print(f"  {strategy} seed {seed}: {runs[-1][2][1]} trials in {runs[-1][2][2]:.0f} s", flush=True)
    if long:
        runs.append(("long", options.seeds, run(work, long, "3h", options.seeds)))
    keys = list(dict.fromkeys(key for *_, (steps, *_) in runs for *_, key in steps))
    times = measured_again(work, keys)
    best = min(times, key=lambda k: times[k])
    found: dict[str, Any] = {"workload": name, "best": json.loads(best), "strategies": {}, "runs": []}
    for strategy, seed, (steps, made, seconds) in runs:
        at = reached(steps, times, WITHIN * times[best])
        last = times[steps[-1][-1]] / times[best]
        found["runs"].append(dict(strategy=strategy, seed=seed, trials=made, seconds=round(seconds, 1),
                                  final=round(last, 3),
                                  reached=at and dict(trials=at[0], seconds=round(at[1], 1))))  # fmt: skip
    for strategy in options.strategies:
        found["strategies"][strategy] = summary([r for r in found["runs"] if r["strategy"] == strategy])
        print(f"{name} {strategy}: {found['strategies'][strategy]}", flush=True)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians; a run that did not get there counts as infinitely long, and None stands for that."""

    def middle(key: str) -> float | None:
        value = statistics.median(r["reached"][key] if r["reached"] else float("inf") for r in runs)
        return None if value == float("inf") else value

    final = statistics.median(r["final"] for r in runs)
    return {"reached": sum(r["reached"] is not None for r in runs), "of": len(runs), "trials": middle("trials"),
            "seconds": middle("seconds"), "final": final}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=int, default=len(WORKLOADS))
    parser.add_argument("--only", default="", help="workloads whose names contain this")
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=list(STRATEGIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--long", type=int, default=1000, help="trials of a long run on the first workload; 0: none")
    parser.add_argument("--json", type=Path, help="result; workloads that it has are not measured again")
    options = parser.parse_args()
    device = open_device("opencl")
    out: dict[str, Any] = {"device": device.identity, "target": device.target.text, "workloads": []}
    if options.json and options.json.exists():
        out["workloads"] = json.loads(options.json.read_text())["workloads"]
    for n, name in enumerate([x for x in WORKLOADS if options.only in x][: options.workloads]):
        if any(w["workload"] == name for w in out["workloads"]):
            continue
        out["workloads"].append(measured(name, options, options.long if n == 0 else 0))
        if options.json:
            options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
