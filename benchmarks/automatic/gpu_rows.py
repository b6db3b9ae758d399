"""What automatic schedules of rows for GPUs ask of memory, next to those made by hand (examples/rows/gpus.py).

    python benchmarks/automatic/gpu_rows.py                      # writes benchmarks/results/automatic_gpu_rows.json
    python benchmarks/automatic/gpu_rows.py --shapes 128x1024

The CUDA text is run on the CPU and compared with NumPy's results of float64; of its first block the sectors of 32 bytes
are counted that global memory is asked for, over those that are compulsory, and the wavefronts of shared memory beyond
the fewest. Registers and spills are ptxas's. Needs a C++ compiler and nvcc. Nothing here was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from measuring import environment  # noqa: E402
from rows import gpus, libraries  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.check.emulate import emulate  # noqa: E402
from tensorir.interp.reference import random_arguments  # noqa: E402
from tensorir.runtime.cuda import compile_cubin  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_gpu_rows.json"
SECTOR = 32
ARCHES = ("sm_80", "sm_90a")


def asked(s: Any, name: str, arrays: tuple[Any, ...]) -> dict[str, Any]:
    """Sectors over compulsory ones, and wavefronts beyond the fewest, of the first blocks of a schedule's kernels."""
    source = s.emitted()
    done = emulate(source, arrays)
    assert not done.problems, done.problems
    want = libraries.by_numpy(name, *(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(done.outputs[0], want, rtol=2e-4, atol=2e-4)
    moved = sum(t.units for t in done.traffic if t.what in ("global read", "global write"))
    blocks, x = math.prod(source.kernels[0].grid), arrays[0]
    least = x.nbytes / blocks + sum(a.nbytes for a in arrays[1:]), done.outputs[0].nbytes / blocks
    shared = [t for t in done.traffic if t.what.startswith("shared")]
    return {
        "kernels": len(source.kernels),
        "sectors": round(moved / sum(math.ceil(n / SECTOR) for n in least), 3),
        "conflicts": sum(t.units - t.ideal for t in shared),
    }


def row(operator: Any, rows: int, columns: int) -> dict[str, Any]:
    name = operator.__name__
    out: dict[str, Any] = {"operator": name, "shape": f"{rows}x{columns}"}
    for arch in ARCHES:
        target = f"cuda -arch={arch}"
        hand = operator(rows, columns, target)
        made = tir.auto_schedule(hand.outputs, target)
        for who, s in (("hand", hand), ("automatic", made)):
            cubin = compile_cubin(s.emitted().text, arch)
            out[f"{who} {arch}"] = {
                "registers": cubin.registers, "spills": cubin.spills,
            }  # fmt: skip
        if arch == ARCHES[0]:
            arrays = libraries.inputs(name, rows, columns)
            out |= {"hand": asked(hand, name, arrays), "automatic": asked(made, name, arrays)}
    print(json.dumps(out), flush=True)
    return out


def _rows(shape: tuple[int, int], dtype: str, made: Callable[..., Any]) -> Any:
    x, w, b = (tir.placeholder(n, dtype, name=v) for n, v in ((shape, "x"), (shape[1:], "w"), (shape[1:], "b")))
    return made(x, w, b)


OTHERS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w, b: tir.nn.softmax(x, -1),
    "layer_norm": lambda x, w, b: tir.nn.layer_norm(x, w.shape, w, b),
    "rms_norm": lambda x, w, b: tir.nn.rms_norm(x, w.shape, w),
}
"""Operators of ``tir.nn``, of which other types and awkward lengths of rows are judged, with no schedule by hand."""
AWKWARD = [((33, 1003), "float32"), ((7, 77), "float32"), ((5, 20001), "float32"), ((128, 1024), "float16"),
           ((64, 8192), "bfloat16"), ((33, 1003), "float16")]  # fmt: skip


def other(name: str, shape: tuple[int, int], dtype: str) -> dict[str, Any]:
    """One of ``OTHERS``: exact in emulated text, what its kernels keep in registers, and what they ask of memory."""
    out: dict[str, Any] = {"operator": name, "shape": f"{shape[0]}x{shape[1]}", "dtype": dtype}
    for arch in ARCHES:
        s = tir.auto_schedule(_rows(shape, dtype, OTHERS[name]), f"cuda -arch={arch}")
        source = s.emitted()
        cubin = compile_cubin(source.text, arch)
        out[arch] = {"registers": cubin.registers, "spills": cubin.spills, "exact": bool(s.check("emulate"))}
        if arch == ARCHES[0]:
            traffic = emulate(source, random_arguments(s.outputs, 0)).traffic
            cost = {of: [t for t in traffic if t.what.startswith(of)] for of in ("shared", "global")}
            out |= {"kernels": len(source.kernels)}
            out |= {of: [sum(t.units for t in found), sum(t.ideal for t in found)] for of, found in cost.items()}
    print(json.dumps(out), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda t: t.split(","), default=["128x1024", "64x8192"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    rows = [row(operator, *shape) for operator in gpus.OPERATORS for shape in shapes]
    others = [other(name, *of) for name in OTHERS for of in AWKWARD]
    about = {"schema": 1, "device": "not yet run on a GPU", "environment": environment()}
    options.out.write_text(json.dumps(about | {"rows": rows, "others": others}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
