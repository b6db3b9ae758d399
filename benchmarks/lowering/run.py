"""Process-CPU time of lowering and code generation, minimum of 20 runs.

python benchmarks/lowering/run.py [--json]
"""

import argparse
import json
import time

import tensorir as tir
from tensorir.codegen.cfamily import emit
from tensorir.lower.pipeline import lower


def measure(schedule: tir.Schedule, runs: int = 20) -> dict[str, float]:
    """Seconds for lowering and printing, each the minimum over ``runs``."""
    best = {"lower": float("inf"), "codegen": float("inf")}
    for _ in range(runs):
        start = time.process_time()
        module = lower(schedule.program, schedule.target)
        middle = time.process_time()
        emit(module, schedule.target, str(schedule.trace).splitlines())
        end = time.process_time()
        best = {"lower": min(best["lower"], middle - start), "codegen": min(best["codegen"], end - middle)}
    return {**best, "total": best["lower"] + best["codegen"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    works = {
        "conv2d": tir.ops.conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, pad=1),
        "matmul": tir.ops.matmul(m=1024, n=1024, k=1024),
    }
    rows = {
        f"{name} {target}": measure(w.schedule(target=target))
        for name, w in works.items()
        for target in ("opencl", "cuda -arch=sm_80")
    }
    hopper = "cuda -arch=sm_90a"
    products = {
        "matmul by warpgroups": tir.ops.matmul(m=4096, n=4096, k=4096, tb=True, dtype="bfloat16"),
        "conv2d by warpgroups": tir.ops.conv2d(n=16, c=64, h=56, w=56, k=64, pad=1, layout="NHWC", dtype="bfloat16"),
    }
    rows.update({name: measure(w.schedule(target=hopper)) for name, w in products.items()})
    for layout in ("NCHW", "NHWC"):
        work = tir.ops.conv2d(n=1, c=128, h=28, w=28, k=128, r=3, s=3, pad=1, layout=layout, prepack=True)
        schedule = work.schedule(template="cpu_winograd", target="opencl -registers=32 -vector_bytes=64")
        rows[f"winograd {layout}"] = measure(schedule)
    if args.json:
        print(json.dumps(rows))
        return
    for name, row in rows.items():
        print(
            f"{name:24s} lower {1e3 * row['lower']:6.1f} ms  codegen {1e3 * row['codegen']:6.1f} ms  total "
            f"{1e3 * row['total']:6.1f} ms"
        )


if __name__ == "__main__":
    main()
