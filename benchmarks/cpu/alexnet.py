"""AlexNet's five convolutions, tuned one after the other with the command line, against the baseline in the same round.

    python benchmarks/cpu/alexnet.py --budget 120s [--out benchmarks/results/alexnet_cpu.json]

Every figure is a ratio of medians from one interleaved final round; absolute times depend on the machine.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tensorir.ops.shapes import SETS


def environment() -> dict[str, object]:
    """What the figures depend on."""
    found = {}
    for name in ("numpy", "scipy", "torch", "pyopencl", "pocl-binary-distribution", "scikit-optimize"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": found,
    }


def tune(shape: dict[str, int], budget: str, seed: int, folder: str) -> dict[str, object]:
    """One ``tensorir tune conv2d … --json``."""
    x = "x".join(str(shape[k]) for k in "nchw")
    w = "x".join(str(shape[k]) for k in ("k", "c", "r", "s"))
    command = [
        sys.executable,
        "-m",
        "tensorir",
        "tune",
        "conv2d",
        x,
        w,
        "--stride",
        str(shape["stride"]),
        "--pad",
        str(shape["pad"]),
    ]
    command += ["--budget", budget, "--seed", str(seed), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="120s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n, shape in enumerate(SETS["alexnet"][1]):
            name = f"alexnet conv{n + 1}"
            doc = tune(shape, args.budget, args.seed, folder)
            best, default, base = doc["best"]["time_s"], doc["default"]["time_s"], doc["baseline"]["time_s"]
            rows.append(
                {"layer": name, "baseline_over_best": base / best, "default_over_best": default / best, "tune": doc}
            )
            print(f"{name:24s} {doc['baseline']['name']} / best {base / best:5.2f}   "
                  f"default / best {default / best:5.2f}   "
                  f"{doc['best']['gflops']:6.1f} GF/s   {doc['trials']} trials")  # fmt: skip
    if args.out:
        args.out.write_text(
            json.dumps({"environment": environment(), "budget": args.budget, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
