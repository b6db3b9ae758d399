"""What it takes to get from a tuning log to a first result: in a process that has the device open, and in a new one.

python benchmarks/launch/load.py [--runs 15] [--device opencl] [--json FILE]

Tunes a convolution and a matrix product for a moment into a folder of its own (with an artifact cache of its own), then
starts processes in turn: some only import NumPy and pyopencl and list the platforms, the others also load a kernel and
run it. Prints medians and minima of wall time; on a busy machine the minima say more.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

OPERATORS = {
    "conv2d 1x64x56x56 64x64x3x3": "conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, pad=1)",
    "matmul 256x256x256": "matmul(m=256, n=256, k=256)",
}

BASE = """
import time
import numpy, pyopencl
pyopencl.get_platforms()
"""

NEW = (
    BASE
    + """
import tensorir as tir
work = tir.ops.{operator}
arrays = [numpy.ones(a.shape, a.dtype) for a in work.inputs]
f = work.load({device!r}, log={log!r})
f(*arrays)
"""
)

OPENED = (
    BASE
    + """
import tensorir as tir
from tensorir.runtime.device import open_device
device = open_device({device!r})
work = tir.ops.{operator}
arrays = [numpy.ones(a.shape, a.dtype) for a in work.inputs]
started = time.perf_counter()
f = work.load(device, log={log!r})
loaded = time.perf_counter()
f(*arrays)
print(loaded - started, time.perf_counter() - started)
"""
)

WALL = """
import subprocess, sys, time
started = time.perf_counter()
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - started)
"""


def run(*command: str) -> list[float]:
    """The numbers that a Python process prints."""
    done = subprocess.run([sys.executable, "-c", *command], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def milliseconds(values: list[float]) -> dict[str, float]:
    return {"median_ms": statistics.median(values) * 1e3, "least_ms": min(values) * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--json")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="tensorir-bench-") as folder:
        os.environ["TENSORIR_CACHE_DIR"] = os.path.join(folder, "cache")
        log = os.path.join(folder, "log")
        for name, operator in OPERATORS.items():
            values = {"operator": operator, "device": options.device, "log": log}
            subprocess.run(
                [sys.executable, "-c", TUNE.format(**values)], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr
            )
            base, new, load, first = [], [], [], []
            run(OPENED.format(**values))  # the first load checks the kernel and fills the cache
            for _ in range(options.runs):
                base += run(WALL, BASE)
                new += run(WALL, NEW.format(**values))
                to_load, to_result = run(OPENED.format(**values))
                load.append(to_load)
                first.append(to_result)
            above = [n - b for n, b in zip(new, base, strict=True)]
            found[name] = {
                "load, device open": milliseconds(load),
                "load to first result, device open": milliseconds(first),
                "new process": milliseconds(new),
                "new process with only numpy and pyopencl": milliseconds(base),
                "new process above that, by pairs": milliseconds(above),
            }
            found[name]["new process above that, by pairs"]["of_least_ms"] = (min(new) - min(base)) * 1e3
            print(name)
            for what, row in found[name].items():
                print(f"  {what:42s}", "  ".join(f"{k.removesuffix('_ms')} {v:7.1f} ms" for k, v in row.items()))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"runs": options.runs, "results": found}, file, indent=1)


TUNE = """
import tensorir as tir
if __name__ == "__main__":
    tir.ops.{operator}.tune({device!r}, trials=4, budget="60s", log={log!r})
"""

if __name__ == "__main__":
    main()
