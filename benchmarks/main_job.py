"""README's main job on a fresh log and cache, against the default schedule of an earlier tree, interleaved.

python benchmarks/main_job.py --before WORKTREE [--device opencl] [--budget 60s] [--runs 3] [--rounds 40] [--json FILE]

Each run tunes with an empty log and cache. A process of each tree then holds a kernel, the run's best and the earlier
default, and both time a batch in turn. The ratio is that of the medians, next to that of the least times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
JOB = ["conv2d", "1x64x56x56", "64x64x3x3", "--pad", "1"]
KERNEL = """
import sys, time
import numpy as np
import tensorir as tir
device, log = sys.argv[1:]
w = tir.ops.conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
from tensorir.runtime.device import open_device
f = w.load(device, log=log) if log else w.schedule(target=open_device(device).target).build(device)
arrays = w.random_inputs(0)
held = [tir.empty(a.shape) for a in arrays]
for to, a in zip(held, arrays):
    to[...] = a
b = f.bind(*held)
for line in sys.stdin:
    began, used = time.perf_counter(), time.process_time()
    for _ in range(8):
        b()
    b.finish()
    print((time.perf_counter() - began) / 8, (time.process_time() - used) / 8, flush=True)
"""


def environment(tree: Path, cache: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "TENSORIR_CACHE_DIR": str(cache)}


def batch(kernel: subprocess.Popen[str]) -> tuple[float, float]:
    """Wall and processor seconds of a call."""
    assert kernel.stdin is not None
    assert kernel.stdout is not None
    kernel.stdin.write("\n")
    kernel.stdin.flush()
    wall, used = kernel.stdout.readline().split()
    return float(wall), float(used)


def run(given: Any, scratch: Path) -> dict[str, Any]:
    """One search, and its result against the earlier default."""
    log, here = scratch / "log", environment(HERE, scratch / "cache")
    command = [sys.executable, "-m", "tensorir", "tune", *JOB, "--device", given.device, "--budget", given.budget]
    done = subprocess.run([*command, "--log", str(log), "--json"], env=here, cwd=scratch, check=True,
                          capture_output=True, text=True)  # fmt: skip
    found = json.loads(done.stdout)
    trees = ((here, str(log)), (environment(given.before, scratch / "before"), ""))
    kernels = [
        subprocess.Popen(
            [sys.executable, "-c", KERNEL, given.device, folder],
            env=env,
            cwd=scratch,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for env, folder in trees
    ]
    try:
        for kernel in kernels * 3:
            batch(kernel)
        rounds = [[batch(kernel) for kernel in kernels] for _ in range(given.rounds)]
    finally:
        for kernel in kernels:
            kernel.kill()
            kernel.wait()
    clocks = {"": 0, "_processor": 1}
    times = {c: [[r[which][n] for r in rounds] for which in (0, 1)] for c, n in clocks.items()}
    return {
        "trials": found["trials"],
        "seconds": found["seconds"],
        "best": found["best"],
        **{f"ratio{c}": statistics.median(old) / statistics.median(new) for c, (new, old) in times.items()},
        **{f"ratio_least{c}": min(old) / min(new) for c, (new, old) in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.before = given.before.resolve()
    results: list[dict[str, Any]] = []
    if given.json and given.json.exists():
        results = json.loads(given.json.read_text())["runs"]
    print("seed 0 of each search")
    while len(results) < given.runs:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(run(given, Path(scratch)))
        last = results[-1]
        print(f"{last['trials']} trials; {last['ratio']:.2f} times as fast as the earlier default "
              f"({last['ratio_processor']:.2f} by processor time)", flush=True)  # fmt: skip
        if given.json:
            document = {"device": given.device, "budget": given.budget, "date": time.strftime("%Y-%m-%d"),
                        "runs": results}  # fmt: skip
            given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
