"""Automatic schedules of products, windows and activations for CUDA, judged without a GPU, next to convolutions' tiles.

    python benchmarks/automatic/gpu_offline.py               # prints a table
    python benchmarks/automatic/gpu_offline.py --save        # and writes benchmarks/results/automatic_gpu.json
    python benchmarks/automatic/gpu_offline.py --save --case depthwise      # makes these rows again, keeps the others

Each row is the default of the first template of ``tir.auto``: compiled by NVRTC at a large shape and disassembled
(registers, spills, which instructions multiply), emulated at a small shape of whole tiles and at an awkward one, with
the same configuration where it is legal there (exact; of the first, what its accesses to memory cost, over the least
that their bytes need), and the time that the model of kernels expects, over what it expects of the
default of the tile that is written for convolutions.
Needs the extra "cuda" and a C++ compiler. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / x) for x in ("", "gpu")] + [str(ROOT / "examples")]

from measuring import environment  # noqa: E402
from offline import of_kernel  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.check.emulate import emulate  # noqa: E402
from tensorir.interp.reference import evaluate, random_arguments  # noqa: E402
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass, sass_opcodes  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_gpu.json"
ARCHES = ("sm_80", "sm_90a")
KINDS = ("shared read", "shared write", "global read", "global write")
MULTIPLY = ("FFMA", "HMMA", "IMMA", "HGMMA", "IGMMA", "QGMMA")
MOST = 1.1
"""Of the time that is expected of the tile for convolutions, where there is one."""


@dataclass(frozen=True)
class Case:
    """A definition of ``tir.ops`` at a large shape, at a small one of whole tiles and at an awkward one.

    opcodes: which must multiply, by arch;  precision: of products of float32
    """

    name: str
    operator: str
    large: Mapping[str, Any]
    small: Mapping[str, Any]
    odd: Mapping[str, Any]
    opcodes: Mapping[str, str]
    precision: str = "fp32"

    def work(self, shape: str = "large") -> tir.Workload:
        """The operator's workload, whose definition is what is scheduled automatically."""
        options = {"precision": self.precision} if self.precision != "fp32" else {}
        made: tir.Workload = getattr(tir.ops, self.operator)(**getattr(self, shape), **options)
        return made

    def templates(self, outputs: Any, target: tir.Target) -> Mapping[str, Any]:
        """Those that are made from the definition alone."""
        return tir.auto(outputs, target, precision=self.precision)


@dataclass(frozen=True)
class Alone(Case):
    """A definition of ``tir.nn`` of one array, which has no such tile."""

    def work(self, shape: str = "large") -> tir.Workload:
        options = {"dtype": "float32", **getattr(self, shape)}
        x = tir.placeholder(options.pop("image"), options.pop("dtype"), name="x")
        return tir.Workload(self.operator, getattr(tir.nn, self.operator)(x, **options))


THREADS = {"sm_80": "FFMA", "sm_90a": "FFMA"}
HALVES = {"sm_80": "HMMA", "sm_90a": "HGMMA"}
WARPS = {"sm_80": "HMMA", "sm_90a": "HMMA"}
BYTES = {"sm_80": "IMMA", "sm_90a": "IGMMA"}


def _gemm(name: str, opcodes: Mapping[str, str], large: int | tuple[int, int, int] = 4096,
          small: tuple[int, int, int] = (256, 256, 128), precision: str = "fp32", **options: Any) -> Case:  # fmt: skip
    sizes = (large,) * 3 if isinstance(large, int) else large
    odd = (77, 61, 45) if opcodes is THREADS else (80, 112, 208)  # copies of tiles want rows of whole 16 bytes
    of = [{**dict(zip("mnk", s, strict=True)), **options} for s in (sizes, small, odd)]
    if "batch" in options:
        of[1]["batch"] = of[2]["batch"] = 2
    return Case(name, "matmul", *of, opcodes, precision)


def _conv(name: str, opcodes: Mapping[str, str], large: tuple[int, ...], small: tuple[int, ...],
          odd: tuple[int, ...] = (2, 40, 9, 13, 72), precision: str = "fp32", **options: Any) -> Case:  # fmt: skip
    of = [dict(zip(("n", "c", "h", "w", "k"), shape, strict=True)) for shape in (large, small, odd)]
    of = [{**x, "r": 3, "s": 3, "pad": 1, **options} for x in of]
    for x in of if options.get("groups") == EACH else ():
        x["groups"] = x["c"]
    return Case(name, "conv2d", *of, opcodes, precision)


EACH = -1
"""Groups: one for each channel."""


def _pool(name: str, operator: str, opcode: str, small: tuple[int, ...], **options: Any) -> Alone:
    of = [{"image": image, **options} for image in ((16, 64, 112, 112), small, (2, 5, 13, 19))]
    return Alone(name, operator, *of, dict.fromkeys(ARCHES, opcode))


LAYER, TILE, LAST = (16, 64, 56, 56, 64), (1, 64, 16, 16, 64), dict(layout="NHWC")
POINT, HALF = dict(r=1, s=1, pad=0), dict(dtype="float16")
CASES = (
    _gemm("float32", THREADS, 1024, (256, 256, 64)),
    _gemm("float32, both turned", THREADS, 1024, (256, 256, 64), ta=True, tb=True),
    _gemm("float32, 1000 x 1003 x 997", THREADS, (1000, 1003, 997), (256, 256, 64)),
    _gemm("float32, few rows", THREADS, (16, 4096, 4096), (16, 256, 256)),
    _gemm("float32, long sums, bias and relu", THREADS, (256, 256, 16384), (64, 64, 1024), bias=True, act="relu"),
    _gemm("tf32, b turned", HALVES, precision="tf32", tb=True),
    _gemm("tf32, as they lie", WARPS, precision="tf32"),
    _gemm("3xtf32, b turned", WARPS, 2048, precision="3xtf32", tb=True),
    _gemm("float16, b turned", HALVES, **HALF, tb=True),
    _gemm("float16, as they lie", HALVES, **HALF),
    _gemm("float16, 1000 x 1000 x 1000", HALVES, 1000, **HALF),
    _gemm("float16, few rows", HALVES, (16, 4096, 4096), (16, 256, 256), **HALF, tb=True),
    _gemm("float16, long sums", HALVES, (256, 256, 16384), (64, 64, 1024), **HALF, tb=True),
    _gemm("bfloat16, a turned, bias and relu", HALVES, dtype="bfloat16", ta=True, bias=True, act="relu"),
    _gemm("bfloat16, both turned, alpha, beta", HALVES, 2048, dtype="bfloat16", ta=True, tb=True, alpha=True,
          beta=True),
    _gemm("int8, b turned", BYTES, dtype="int8", tb=True),
    _gemm("int8, as they lie", {"sm_80": "IMMA", "sm_90a": "IMMA"}, dtype="int8"),
    _gemm("uint8, b turned", BYTES, 2048, dtype="uint8", tb=True),
    _gemm("float8_e4m3, b turned", {"sm_90a": "QGMMA"}, dtype="float8_e4m3", tb=True),
    _gemm("float8_e5m2, b turned, alpha", {"sm_90a": "QGMMA"}, 2048, dtype="float8_e5m2", tb=True, alpha=True),
    _gemm("float16, 12 heads of BERT", HALVES, (128, 128, 64), (128, 128, 64), batch=12, tb=True, **HALF),
    _gemm("bfloat16, 16 products", HALVES, (512, 512, 512), (128, 128, 64), batch=16, dtype="bfloat16"),
    _gemm("float32, 16 products", THREADS, (512, 512, 512), (128, 128, 64), batch=16),
    _conv("float32 conv2d, NCHW", THREADS, LAYER, (1, 32, 16, 16, 64)),
    _conv("float32 conv2d, NHWC", THREADS, LAYER, (1, 32, 16, 16, 64), **LAST),
    _conv("float32 conv2d, NCHW, strided", THREADS, LAYER, (1, 32, 32, 32, 64), stride=2, bias=True, act="relu"),
    _conv("float32 conv2d, NHWC, dilated", THREADS, LAYER, (1, 32, 16, 16, 64), **LAST, dilation=2, pad=2),
    _conv("float32 conv2d, NCHW, 1x1", THREADS, LAYER, (1, 32, 16, 16, 64), **POINT),
    _conv("float32 conv2d, NHWC, 1x1", THREADS, LAYER, (1, 32, 16, 16, 64), **LAST, **POINT),
    _conv("float32 conv2d, NCHW, 2 groups", THREADS, (16, 128, 28, 28, 128), (1, 64, 16, 16, 128), groups=2),
    _conv("float32 conv2d, NHWC, of an image", THREADS, (16, 3, 224, 224, 64), (1, 3, 32, 32, 64), (1, 3, 17, 23, 24),
          **LAST, r=7, s=7, pad=3, stride=2),
    _conv("tf32 conv2d, NHWC", HALVES, LAYER, TILE, precision="tf32", **LAST),
    _conv("float16 conv2d, NHWC", HALVES, LAYER, TILE, **LAST, **HALF),
    _conv("bfloat16 conv2d, NHWC, 14 x 14", HALVES, (64, 256, 14, 14, 256), (2, 64, 14, 14, 256), **LAST,
          dtype="bfloat16"),
    _conv("float16 conv2d, NHWC, strided", HALVES, LAYER, (1, 64, 32, 32, 64), **LAST, **HALF, stride=2, bias=True,
          act="relu"),
    _conv("bfloat16 conv2d, NHWC, dilated", HALVES, LAYER, TILE, **LAST, dtype="bfloat16", dilation=2, pad=2),
    _conv("float16 conv2d, NHWC, 1x1", HALVES, (16, 256, 56, 56, 64), (1, 64, 16, 16, 64), **LAST, **HALF, **POINT),
    _conv("float16 conv2d, NHWC, 2 groups", HALVES, (16, 128, 28, 28, 128), (1, 128, 16, 16, 128), (1, 128, 9, 13, 128),
          **LAST, **HALF, groups=2),
    _conv("int8 conv2d, NHWC", BYTES, (16, 128, 28, 28, 128), (1, 128, 16, 16, 64), (2, 144, 9, 13, 80), **LAST,
          dtype="int8"),
    _conv("float16 conv2d, NCHW", WARPS, LAYER, (1, 32, 16, 16, 64), **HALF),
    _conv("bfloat16 conv2d, NCHW, strided", WARPS, LAYER, (1, 32, 32, 32, 64), dtype="bfloat16", stride=2),
    _conv("float16 conv2d, NCHW, 1x1", WARPS, (16, 256, 56, 56, 64), (1, 64, 8, 56, 64), (2, 72, 5, 40, 72), **HALF,
          **POINT),
    _conv("float32 depthwise, NCHW", THREADS, (16, 128, 56, 56, 128), (1, 4, 56, 56, 4), (2, 12, 9, 13, 12),
          groups=EACH),
    _conv("float32 depthwise, NCHW, strided", THREADS, (16, 64, 112, 112, 64), (1, 16, 56, 56, 16), (2, 12, 9, 13, 12),
          groups=EACH, stride=2),
    _conv("float32 depthwise, NCHW, 14 x 14", THREADS, (16, 512, 14, 14, 512), (1, 16, 14, 14, 16), (2, 12, 9, 13, 12),
          groups=EACH),
    _conv("float16 depthwise, NHWC, strided", THREADS, (16, 128, 56, 56, 128), (1, 64, 16, 16, 64), (2, 12, 9, 13, 12),
          **LAST, **HALF, groups=EACH, stride=2),
    _conv("bfloat16 conv2d, NCHW, 14 x 14", WARPS, (64, 256, 14, 14, 256), (2, 64, 16, 16, 128), dtype="bfloat16"),
    _pool("float32 max_pool2d, 3 x 3", "max_pool2d", "FMNMX", (1, 1, 48, 112), kernel_size=3, stride=1, padding=1),
    _pool("float32 max_pool2d, 3 x 3, strided", "max_pool2d", "FMNMX", (1, 16, 32, 112), kernel_size=3, stride=2,
          padding=1),
    _pool("float32 max_pool2d, 2 x 2, strided", "max_pool2d", "FMNMX", (1, 4, 32, 112), kernel_size=2, stride=2),
    _pool("float16 max_pool2d, 2 x 2, strided", "max_pool2d", "FMNMX", (1, 4, 32, 112), kernel_size=2, stride=2,
          dtype="float16"),
    _pool("float32 relu", "relu", "FMNMX", (1, 4, 32, 32)),
    _pool("float16 relu", "relu", "F2FP", (1, 4, 32, 32), dtype="float16"),
    _pool("float32 avg_pool2d, 3 x 3", "avg_pool2d", "FADD", (1, 1, 48, 112), kernel_size=3, stride=1, padding=1),
    _pool("float32 adaptive_avg_pool2d, whole images", "adaptive_avg_pool2d", "FADD", (1, 4, 32, 32), output_size=1),
)  # fmt: skip


def judged(case: Case, arch: str) -> dict[str, Any]:
    """What is known of the default automatic schedule, compiled, emulated and modelled."""
    target, work = tir.Target.parse(f"cuda -arch={arch}"), case.work()
    start = time.process_time()
    name, template = next(iter(case.templates(work.outputs, target).items()))
    made_s = time.process_time() - start
    space = template.space_for(target)
    config = space.default
    expected = space.expected_s(config) if space.expected_s else None
    hand = None if isinstance(case, Alone) else hand_seconds(work, target)
    row = {
        "case": case.name, "arch": arch, "template": name, "config": config, "made_s": round(made_s, 3),
        "legal": len(space.legal), **compiled(case, work, template, config, target, arch),
        **emulated(case, "small", name, config, target),
        "odd": {k: v for k, v in emulated(case, "odd", name, config, target).items() if k not in KINDS},
        "expected_s": expected, "hand_expected_s": hand,
        "over_hand": round(expected / hand, 3) if expected and hand else None,
    }  # fmt: skip
    return {**row, "missed": list(missed(row))}


def missed(row: Mapping[str, Any]) -> Iterator[str]:
    """Which of its demands a row does not meet."""
    if row["spills"] or row["local"]:
        yield "spills"
    if not row["intended"]:
        yield "opcodes"
    yield from (f"{name} exact" for name, of in (("small", row), ("odd", row["odd"])) if not of["exact"])
    yield from (kind for kind in KINDS if kind in row and row[kind][0] > row[kind][1])
    if row["over_hand"] and row["over_hand"] > MOST:
        yield "expected time"


def _scheduled(outputs: Any, template: Any, config: Mapping[str, Any], target: tir.Target) -> tir.Schedule:
    s = tir.Schedule(outputs, target)
    template.function(s, config)
    return s


def compiled(case: Case, work: tir.Workload, template: Any, config: Mapping[str, Any], target: tir.Target,
             arch: str) -> dict[str, Any]:  # fmt: skip
    """Resources and instructions of all kernels at the large shape."""
    source = _scheduled(work.outputs, template, config, target).emitted()
    cubin = compile_cubin(source.text, arch)
    text = sass(cubin)
    kernels = [cubin.kernels[k.name] for k in source.kernels]
    found: dict[str, int] = {}
    for k in source.kernels:
        for opcode, n in sass_opcodes(of_kernel(text, k.name)).items():
            found[opcode.split(".")[0]] = found.get(opcode.split(".")[0], 0) + n
    return {
        "kernels": len(kernels), "registers": max(k.registers for k in kernels),
        "spills": sum(k.spill_bytes for k in kernels), "shared_bytes": max(k.shared_bytes for k in source.kernels),
        "multiplies": {name: found[name] for name in dict.fromkeys((*MULTIPLY, case.opcodes[arch])) if name in found},
        "intended": case.opcodes[arch] in found,
        "local": found.get("LDL", 0) + found.get("STL", 0),
    }  # fmt: skip


def emulated(case: Case, shape: str, name: str, config: Mapping[str, Any], target: tir.Target) -> dict[str, Any]:
    """Whether the text is exact at a shape, and the cost of the first block's accesses over the least."""
    outputs = case.work(shape).outputs
    templates = case.templates(outputs, target)
    if name not in templates:
        name = next(iter(templates))
    space = templates[name].space_for(target)
    same = space.index(config) >= 0
    s = _scheduled(outputs, templates[name], config if same else space.default, target)
    arrays = random_arguments(s.outputs, 0)
    run = emulate(s.emitted(), arrays)
    want = evaluate(s.outputs, arrays)
    exact = not run.problems and all(np.array_equal(x, y) for x, y in zip(run.outputs, want, strict=True))
    cost = {kind: [sum(getattr(t, x) for t in run.traffic if t.what == kind) for x in ("units", "ideal")]
            for kind in KINDS}  # fmt: skip
    return {"exact": exact, "same_config": same, "by": name, **cost}


def hand_seconds(work: tir.Workload, target: tir.Target) -> float | None:
    """What the model of kernels expects of the default of the tile for convolutions, else of the operator's; None where
    products of matrices have no other one.
    """
    name = work.template_for(target, None)
    if name.startswith("gpu_tile_"):
        if "gpu_tensor" not in work.templates:
            return None
        name = "gpu_tensor"
    space = work.templates[name].space_for(target)
    return float(space.expected_s(space.default)) if space.expected_s else None


def line(r: Mapping[str, Any]) -> str:
    """A row of the table."""
    cost = [f"{r[k][0]}/{r[k][1]}" if k in r else "-" for k in KINDS]
    cells = [r["case"], r["arch"], r["template"], r["registers"], r["spills"], r["multiplies"], r["exact"], *cost,
             r["odd"]["exact"], r["over_hand"], r["made_s"], r["legal"], ", ".join(r["missed"])]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--case", default="", help="only those whose name has this; --save keeps the others then")
    parser.add_argument("--arch", choices=ARCHES)
    options = parser.parse_args()
    head = ("case", "arch", "template", "registers", "spills", "multiplies", "exact", *KINDS, "odd exact",
            "over hand", "s", "legal", "missed")  # fmt: skip
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    about = {"schema": 1, "device": "not yet run on a GPU", "environment": environment(), "nvrtc": nvrtc_version()}
    some = options.case or options.arch
    known = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if some and RESULT.exists() else []
    found = {(r["case"], r["arch"]): r for r in known}
    for case in (c for c in CASES if options.case in c.name):
        for arch in (a for a in ARCHES if options.arch in (None, a) and a in case.opcodes):
            found[case.name, arch] = judged(case, arch)
            print(line(found[case.name, arch]), flush=True)
            if options.save:
                rows = [found[c.name, a] for c in CASES for a in ARCHES if (c.name, a) in found]
                RESULT.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
