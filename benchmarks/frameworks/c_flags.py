"""Exported C built by a plain ``cc -O3`` against the same text with ``-march=native``, interleaved.

python benchmarks/frameworks/c_flags.py [--only REGEX] [--seconds 1] [--json FILE]

Each workload is exported with its default schedule for this processor and built both ways with every compiler that is
here; both libraries take turns on the same arrays, one call a turn, and results are compared. Printed is the plain
build's least and median time over those of the other (bound: 1.15), written as JSON with the environment. The status
is 1 above the bound of the least times, and where results differ by more than 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
from versus import ours
from versus.environment import environment, now
from versus.shapes import Conv, chosen

import tensorir as tir
from tensorir.runtime.c_device import compilers
from tensorir.runtime.device import open_device

RESULTS = Path(__file__).resolve().parents[1] / "results" / "c_flags.json"
USUAL = "square_512|skinny_8x3072|r_stem|r1_3x3|r2_1x1_512|r3_3x3_256|dw_3x3s1_128|dw_3x3s2_256|alex2"
FLAGS = {"plain": ("-O3",), "native": ("-O3", "-march=native")}
BOUND = 1.15


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time plain builds of exported C against those for this processor.")
    parser.add_argument("--only", metavar="REGEX", default=USUAL, help="workloads whose names this finds")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a workload and compiler")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args()


def built(folder: Path, compiler: str, name: str, flags: tuple[str, ...]) -> Any:
    words = [compiler, "-std=c11", *flags, "-fPIC", "-shared", "plain.c", "-o", f"{name}.so", "-lm", "-lpthread"]
    subprocess.run(words, cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / f"{name}.so")).plain
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return function


def compared(work: Any, compiler: str, seconds: float) -> dict[str, Any]:
    """The least and the median time of both builds, in seconds, and how far apart their results are."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape, dtype=np.float32) for t in work.inputs]
    with tempfile.TemporaryDirectory(prefix="c-flags-") as place:
        folder = Path(place) / "kernel"
        work.schedule(target=open_device("c:0").target).export(folder, to="c", name="tensorir::plain")
        runs = {n: built(folder, compiler, n, flags) for n, flags in FLAGS.items()}
        outs = {n: np.empty(work.outputs[0].shape, np.float32) for n in runs}
        given = {n: (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in (*arrays, outs[n]))) for n in runs}
        times: dict[str, list[float]] = {n: [] for n in runs}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["plain"]) < 20:
            for n in list(runs) if len(times["plain"]) % 2 else list(runs)[::-1]:
                runs[n](None, given[n])  # caches and threads as they are when it is called again
                began = time.perf_counter()
                if runs[n](None, given[n]):
                    raise SystemExit(f"{work.name}: an error code")
                times[n].append(time.perf_counter() - began)
    apart = float(np.abs(outs["plain"] - outs["native"]).max() / np.abs(outs["native"]).max())
    least, median = ({n: float(f(t)) for n, t in times.items()} for f in (np.min, np.median))
    return {"least": least, "median": median, "apart": apart}


def main() -> int:
    options = arguments()
    found: dict[str, Any] = {"environment": environment(), "bound": BOUND, "compilers": compilers(), "rows": []}
    worst = 0.0
    for problem in chosen(options.only):
        work = ours.workload(problem, "NCHW" if isinstance(problem, Conv) else "", ours.VARIANTS["timed"])
        for path, _ in compilers():
            row = {"workload": problem.name, "compiler": path, **compared(work, path, options.seconds)}
            ratio = {k: row[k]["plain"] / row[k]["native"] for k in ("least", "median")}
            worst = max(worst, ratio["least"], np.inf if row["apart"] > 1e-4 else 0.0)
            found["rows"].append({**row, "ratio": ratio})
            told = f"{row['least']['native'] * 1e6:9.1f} us  least {ratio['least']:.3f}  median {ratio['median']:.3f}"
            print(f"{problem.name:28} {Path(path).name:9} {told}", flush=True)
    found["environment"]["ended"] = now()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"worst {worst:.3f}, bound {BOUND}; tensorir {tir.__version__}")
    return int(worst > BOUND)


if __name__ == "__main__":
    sys.exit(main())
