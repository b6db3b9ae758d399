"""Trials and seconds until tuning comes within 5 % of the best configuration that any run found.

    python benchmarks/tuner/reach.py                      # 5 layers of ResNet-50, 5 seeds, one long run
    python benchmarks/tuner/reach.py --layers 1 --seeds 2 --trials 20 --long 40

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

LAYERS: dict[str, dict[str, Any]] = {
    "r2_1x1_512_128_28 NCHW": dict(c=512, h=28, w=28, k=128, r=1, s=1, layout="NCHW"),
    "r2_3x3s2_128_128_56 NHWC": dict(c=128, h=56, w=56, k=128, r=3, s=3, stride=2, pad=1, layout="NHWC"),
    "r3_1x1_256_1024_14 NHWC": dict(c=256, h=14, w=14, k=1024, r=1, s=1, layout="NHWC"),
    "r_stem_7x7s2_3_64_224 NCHW": dict(c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3, layout="NCHW"),
    "r2_3x3_128_128_28 NCHW": dict(c=128, h=28, w=28, k=128, r=3, s=3, pad=1, layout="NCHW"),
}
WITHIN = 1.05
Step = tuple[int, float, str]
"""Trials so far, seconds so far, and the configuration that was best then."""


def run(work: Any, trials: int, budget: str, seed: int) -> tuple[list[Step], int, float]:
    """One run: its steps, the trials it made, and the seconds it took."""
    started, steps, best = time.monotonic(), [], float("inf")
    seen = 0

    def watch(record: Any, *_: Any) -> None:
        nonlocal best, seen
        seen += 1
        if record["status"] == "ok" and record["time_s"] < best:
            best = record["time_s"]
            key = json.dumps([record["template"], record["config"]], sort_keys=True)
            steps.append((seen, time.monotonic() - started, key))

    with tempfile.TemporaryDirectory() as log:
        work.tune(trials=trials, budget=budget, seed=seed, log=log, on_trial=watch)
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
        bound[key] = f.prepack(**fixed).bind(*(a for p, a in zip(work.inputs, arrays, strict=True) if p.name != "w"))
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


def layer(name: str, seeds: int, trials: int, budget: str, long: int) -> dict[str, Any]:
    """All runs of one layer."""
    work = tir.ops.conv2d(**LAYERS[name], prepack=True)
    runs = [(seed, run(work, trials, budget, seed)) for seed in range(seeds)]
    if long:
        runs.append((seeds, run(work, long, "3h", seeds)))
    keys = list(dict.fromkeys(key for _, (steps, *_) in runs for *_, key in steps))
    times = measured_again(work, keys)
    best = min(times, key=lambda k: times[k])
    found = []
    for seed, (steps, made, seconds) in runs:
        at = reached(steps, times, WITHIN * times[best])
        last = times[steps[-1][-1]] / times[best]
        found.append(dict(seed=seed, trials=made, seconds=round(seconds, 1), final=round(last, 3),
                          reached=at and dict(trials=at[0], seconds=round(at[1], 1))))  # fmt: skip
        print(f"  seed {seed}: {made} trials in {seconds:.0f} s, ends {last:.3f} x best; within 5 %: {at}", flush=True)
    short = [r["reached"] for r in found[:seeds]]
    counts = sorted(r["trials"] if r else float("inf") for r in short)
    took = sorted(r["seconds"] if r else float("inf") for r in short)
    middle = [None if m == float("inf") else m for m in (statistics.median(counts), statistics.median(took))]
    print(f"{name}: median {middle[0]} trials, {middle[1]} s; best {json.loads(best)}", flush=True)
    return dict(layer=name, best=json.loads(best), median_trials=middle[0], median_seconds=middle[1], runs=found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=len(LAYERS))
    parser.add_argument("--only", default="", help="layers whose names contain this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--long", type=int, default=1000, help="trials of a long run on the first layer; 0: none")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = open_device("opencl")
    out = {"device": device.identity, "target": device.target.text, "layers": []}
    for n, name in enumerate([x for x in LAYERS if options.only in x][: options.layers]):
        made = layer(name, options.seeds, options.trials, options.budget, options.long if n == 0 else 0)
        out["layers"].append(made)
        if options.json:
            options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
