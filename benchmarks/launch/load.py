"""What it takes to get from a tuning log to a first result: in a process that has the device open, and in a new one.

python benchmarks/launch/load.py [--runs 15] [--device opencl] [--json FILE]

Tunes a convolution and a matrix product for a moment into a folder of its own (with an artifact cache of its own), and
exports what won. Then processes start in turn, in another order each time: one only imports NumPy and pyopencl and
lists the platforms, one also loads the kernel and runs it, one runs the exported folder instead. Prints medians and
minima of wall time from the start of the process to that point, and of processor time of all its threads, which other
programs disturb less; "above" is by pairs.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

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

EXPORTED = (
    BASE
    + """
import sys
sys.path.insert(0, {folder!r})
import shipped
f = shipped.Program()
arrays = [numpy.ones(a["shape"], a["dtype"]) for a in f.manifest["arguments"] if a["role"] == "input"]
f(*arrays)
"""
)

DONE = """
print(time.monotonic(), time.process_time())
"""


def run(code: str) -> list[float]:
    """The numbers that a Python process prints."""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [float(word) for word in done.stdout.split()]


def seconds(code: str) -> tuple[float, float]:
    """From starting a process to the end of ``code`` in it: of the wall, and of its processors. No part is its exit."""
    started = time.monotonic()
    ended, used = run(code + DONE)
    return ended - started, used


def milliseconds(values: list[float]) -> dict[str, float]:
    return {"median_ms": statistics.median(values) * 1e3, "least_ms": min(values) * 1e3}


def measured(values: dict[str, str], runs: int, ways: dict[str, str]) -> dict[str, dict[str, float]]:
    """Rows of what was timed. ways: what a new process runs, by its name; the first one is what others are above of."""
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    load, first = [], []
    for code in ways.values():  # the first load checks the kernel and fills the caches
        seconds(code)
    order = list(ways)
    for _ in range(runs):
        random.shuffle(order)
        for way in order:
            took, used = seconds(ways[way])
            wall[way].append(took)
            cpu[way].append(used)
        to_load, to_result = run(OPENED.format(**values))
        load.append(to_load)
        first.append(to_result)
    base = next(iter(ways))
    found = {
        "load, device open": milliseconds(load),
        "load to first result, device open": milliseconds(first),
        f"{base}": milliseconds(wall[base]),
    }
    for way in [w for w in ways if w != base]:
        for what, times in (("", wall), (", processor time", cpu)):
            above = [n - b for n, b in zip(times[way], times[base], strict=True)]
            row = milliseconds(above) | {"of_least_ms": (min(times[way]) - min(times[base])) * 1e3}
            found[f"{way}, above that{what}"] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--json", type=Path, default=HERE.parent / "results" / "load.json")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="tensorir-bench-") as folder:
        os.environ["TENSORIR_CACHE_DIR"] = os.path.join(folder, "cache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # it would have every process compile this package again
        log = os.path.join(folder, "log")
        for number, (name, operator) in enumerate(OPERATORS.items()):
            place = os.path.join(folder, str(number))
            values = {"operator": operator, "device": options.device, "log": log, "folder": place}
            subprocess.run(
                [sys.executable, "-c", TUNE.format(**values)], check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr
            )
            ways = {"numpy and pyopencl alone": BASE, "loaded from the log": NEW, "exported": EXPORTED}
            found[name] = measured(values, options.runs, {way: code.format(**values) for way, code in ways.items()})
            print(name)
            for what, row in found[name].items():
                print(f"  {what:46s}", "  ".join(f"{k.removesuffix('_ms')} {v:7.1f} ms" for k, v in row.items()))
    about = {
        "runs": options.runs,
        "device": options.device,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "load_average": os.getloadavg(),
        "results": found,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


TUNE = """
import tensorir as tir
if __name__ == "__main__":
    work = tir.ops.{operator}
    work.tune({device!r}, trials=4, budget="60s", log={log!r})
    work.load({device!r}, log={log!r}).export({folder!r} + "/shipped", to="c" if {device!r}[0] == "c" else "pyopencl")
"""

if __name__ == "__main__":
    main()
