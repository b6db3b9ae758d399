"""Everything that waits for a CUDA device: exact checks of each kernel on it, then timings against cuBLAS and cuDNN.

    python benchmarks/gpu/first_run.py --out results.json            # on a machine with a GPU
    python benchmarks/gpu/first_run.py --offline --arch sm_90        # no GPU: compile all of it, print resources

Not yet run on a GPU. Inputs of the checks are small whole numbers in floats, so that equality is exact; timings
interleave the library and our kernels in one process and report medians with 95 % intervals.
"""

import argparse
import json
import platform
import random
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import tensorir as tir
from tensorir.interp.reference import random_arguments

MATMULS = [dict(m=m, n=n, k=k) for m, n, k in ((127, 65, 33), (512, 512, 512), (2048, 2048, 2048), (4096, 4096, 4096))]
CONVS = [
    dict(n=1, c=3, h=224, w=224, k=64, r=7, s=7, stride=2, pad=3),
    dict(n=16, c=64, h=56, w=56, k=64, r=3, s=3, pad=1),
    dict(n=16, c=256, h=14, w=14, k=1024, r=1, s=1),
    dict(n=2, c=7, h=13, w=11, k=5, r=3, s=3, pad=1, layout="NHWC", bias=True, act="relu"),
]


def works() -> list[tir.Workload]:
    """The operators and shapes of one run."""
    return [tir.ops.matmul(**p) for p in MATMULS] + [tir.ops.conv2d(**p) for p in CONVS]


def configurations(work: tir.Workload, count: int, seed: int) -> list[dict[str, Any]]:
    """The default and some random legal configurations of the GPU template."""
    space = work.templates["gpu_tile"].space
    rows = random.Random(seed).sample(range(len(space.legal)), min(count, len(space.legal)))
    return [space.default, *(space.config(r) for r in rows)]


def library(work: tir.Workload, arrays: list[Any]) -> dict[str, Any]:
    """cuBLAS through CuPy, cuDNN through torch, where installed."""
    import cupy

    out: dict[str, Any] = {}
    if work.name.startswith("matmul"):
        a, b = arrays[:2]
        out["cublas"] = lambda: cupy.matmul(a, b)
    try:
        import torch
    except ImportError:
        return out
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    t = [torch.from_dlpack(a) for a in arrays]
    if work.name.startswith("conv2d") and "NCHW" in work.name:
        options = dict(part.split("=", 1) for part in work.name.split()[1:])
        stride, pad = int(options["stride"]), int(options["pad"])
        out["cudnn"] = lambda: torch.nn.functional.conv2d(t[0], t[1], stride=stride, padding=pad)
    return out


def on_gpu(work: tir.Workload, config: dict[str, Any]) -> dict[str, Any]:
    """Check one configuration exactly and time it beside the library."""
    import cupy

    from tensorir.runtime.timing import interleaved

    arrays = random_arguments(work.outputs, 1)
    f = work.schedule(config, template="gpu_tile", target="cuda:0").build("cuda:0")
    given = [cupy.asarray(a) for a in arrays]
    got = cupy.asnumpy(f(*given))
    want = work.reference(*arrays)
    row: dict[str, Any] = {"exact": bool(np.array_equal(got, want)), "resources": f.resources}
    if row["exact"]:
        others = library(work, given)
        out = cupy.empty_like(f(*given))
        timings = interleaved([f.bind(*given, out=out), *(_synchronised(c) for c in others.values())])
        names = ["ours", *others]
        row["times"] = {n: [t.median_s, t.low_s, t.high_s] for n, t in zip(names, timings, strict=True)}
    return row


def _synchronised(call: Any) -> Any:
    import cupy

    def run() -> None:
        call()
        cupy.cuda.Device().synchronize()

    return run


def offline(work: tir.Workload, config: dict[str, Any], arch: str) -> dict[str, Any]:
    """What the compiler says without a device."""
    from tensorir.runtime.cuda import compile_cubin, sass_opcodes

    cubin = compile_cubin(work.schedule(config, template="gpu_tile", target=f"cuda -arch={arch}").source(), arch)
    return {
        "registers": cubin.registers,
        "spills": cubin.spills,
        "shared_bytes": cubin.shared_bytes,
        "sass": sass_opcodes(cubin),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--arch", default="sm_80")
    parser.add_argument("--configurations", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for work in works():
        for config in configurations(work, args.configurations, args.seed):
            row = offline(work, config, args.arch) if args.offline else on_gpu(work, config)
            rows.append({"workload": work.name, "config": config, **row})
            print(work.name, config, {k: v for k, v in row.items() if k != "sass"}, flush=True)
    packages = {}
    for name in ("cupy-cuda13x", "cupy-cuda12x", "torch", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    if args.out:
        args.out.write_text(
            json.dumps({"python": platform.python_version(), "packages": packages, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
