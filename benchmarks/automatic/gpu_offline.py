"""Automatic schedules of products and convolutions for CUDA, judged without a GPU, next to the hand-written templates.

    python benchmarks/automatic/gpu_offline.py               # prints a table
    python benchmarks/automatic/gpu_offline.py --save        # and writes benchmarks/results/automatic_gpu.json

Each row is the default of the first template of ``tir.auto``: compiled by NVRTC at a large shape and disassembled
(registers, spills, which instructions multiply), emulated at a small shape, with the same configuration where it is
legal there (exact; what its accesses to memory cost, over the least that their bytes need), and the time that the model
of kernels expects, over what it expects of the hand-written template's default.
Needs the extra "cuda" and a C++ compiler. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "gpu"), str(ROOT / "examples")]

from offline import of_kernel  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.check.emulate import emulate  # noqa: E402
from tensorir.interp.reference import evaluate, random_arguments  # noqa: E402
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass, sass_opcodes  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_gpu.json"
ARCHES = ("sm_80", "sm_90a")
KINDS = ("shared read", "shared write", "global read", "global write")
MULTIPLY = ("FFMA", "HMMA", "IMMA", "HGMMA", "IGMMA")


@dataclass(frozen=True)
class Case:
    """A definition of ``tir.ops`` at a large shape and at a small one; ``opcodes``: which must multiply, by arch."""

    name: str
    operator: str
    large: Mapping[str, Any]
    small: Mapping[str, Any]
    opcodes: Mapping[str, str]

    def work(self, small: bool = False) -> tir.Workload:
        """The hand-written workload, whose definition is what is scheduled automatically."""
        made: tir.Workload = getattr(tir.ops, self.operator)(**(self.small if small else self.large))
        return made


def _gemm(name: str, opcodes: Mapping[str, str], size: int = 4096, small: tuple[int, int, int] = (256, 256, 128),
          **options: Any) -> Case:  # fmt: skip
    m, n, k = small
    return Case(name, "matmul", dict(m=size, n=size, k=size, **options), dict(m=m, n=n, k=k, **options), opcodes)


def _conv(
    name: str, opcodes: Mapping[str, str], large: tuple[int, ...], small: tuple[int, ...], **options: Any
) -> Case:
    of = [dict(zip(("n", "c", "h", "w", "k"), shape, strict=True)) for shape in (large, small)]
    return Case(name, "conv2d", *({**x, "r": 3, "s": 3, "pad": 1, **options} for x in of), opcodes)


THREADS = {"sm_80": "FFMA", "sm_90a": "FFMA"}
HALVES = {"sm_80": "HMMA", "sm_90a": "HGMMA"}
CASES = (
    _gemm("float32", THREADS, 1024, (256, 256, 64)),
    _gemm("float32, both turned", THREADS, 1024, (256, 256, 64), ta=True, tb=True),
    _gemm("float16, b turned", HALVES, dtype="float16", tb=True),
    _gemm("float16, as they lie", HALVES, dtype="float16"),
    _gemm("bfloat16, a turned, bias and relu", HALVES, dtype="bfloat16", ta=True, bias=True, act="relu"),
    _gemm("int8, b turned", {"sm_80": "IMMA", "sm_90a": "IGMMA"}, dtype="int8", tb=True),
    Case("float16, 12 heads of BERT", "matmul", dict(m=128, n=128, k=64, batch=12, tb=True, dtype="float16"),
         dict(m=128, n=128, k=64, batch=2, tb=True, dtype="float16"), HALVES),
    _conv("float32 conv2d, NCHW", THREADS, (16, 64, 56, 56, 64), (1, 32, 16, 16, 64)),
    _conv("float32 conv2d, NHWC", THREADS, (16, 64, 56, 56, 64), (1, 32, 16, 16, 64), layout="NHWC"),
    _conv("float16 conv2d, NHWC", HALVES, (16, 64, 56, 56, 64), (1, 64, 16, 16, 64), layout="NHWC", dtype="float16"),
    _conv("bfloat16 conv2d, NHWC, 14 x 14", HALVES, (64, 256, 14, 14, 256), (2, 64, 14, 14, 256), layout="NHWC",
          dtype="bfloat16"),
    _conv("float16 conv2d, NCHW", {"sm_80": "HMMA", "sm_90a": "HMMA"}, (16, 64, 56, 56, 64), (1, 32, 16, 16, 64),
          dtype="float16"),
)  # fmt: skip


def judged(case: Case, arch: str) -> dict[str, Any]:
    """What is known of the default automatic schedule, compiled, emulated and modelled."""
    target, work = tir.Target.parse(f"cuda -arch={arch}"), case.work()
    start = time.process_time()
    name, template = next(iter(tir.auto(work.outputs, target).items()))
    made_s = time.process_time() - start
    space = template.space_for(target)
    config = space.default
    expected = space.expected_s(config) if space.expected_s else None
    hand = hand_seconds(work, target)
    return {
        "case": case.name, "arch": arch, "template": name, "config": config, "made_s": round(made_s, 3),
        "legal": len(space.legal), **compiled(case, work, template, config, target, arch),
        **emulated(case, name, config, target),
        "expected_s": expected, "hand_expected_s": hand,
        "over_hand": round(expected / hand, 3) if expected and hand else None,
    }  # fmt: skip


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
        "multiplies": {name: found[name] for name in MULTIPLY if name in found},
        "intended": case.opcodes[arch] in found,
        "local": found.get("LDL", 0) + found.get("STL", 0),
    }  # fmt: skip


def emulated(case: Case, name: str, config: Mapping[str, Any], target: tir.Target) -> dict[str, Any]:
    """Whether the text is exact at the small shape, and the cost of the first block's accesses over the least."""
    outputs = case.work(small=True).outputs
    templates = tir.auto(outputs, target)
    if name not in templates:
        return {"exact": None}
    space = templates[name].space_for(target)
    same = space.index(config) >= 0
    s = _scheduled(outputs, templates[name], config if same else space.default, target)
    arrays = random_arguments(s.outputs, 0)
    run = emulate(s.emitted(), arrays)
    want = evaluate(s.outputs, arrays)
    exact = not run.problems and all(np.array_equal(x, y) for x, y in zip(run.outputs, want, strict=True))
    cost = {kind: [sum(getattr(t, x) for t in run.traffic if t.what == kind) for x in ("units", "ideal")]
            for kind in KINDS}  # fmt: skip
    return {"exact": exact, "same_config": same, **cost}


def hand_seconds(work: tir.Workload, target: tir.Target) -> float | None:
    """What the model of kernels expects of the hand-written template's default."""
    name = work.template_for(target, None)
    name = "gpu_tensor" if name.startswith("gpu_tile_") and "gpu_tensor" in work.templates else name
    space = work.templates[name].space_for(target)
    return float(space.expected_s(space.default)) if space.expected_s else None


def line(r: Mapping[str, Any]) -> str:
    """A row of the table."""
    cost = [f"{r[k][0]}/{r[k][1]}" if k in r else "-" for k in KINDS]
    cells = [r["case"], r["arch"], r["template"], r["registers"], r["spills"], r["multiplies"], r["exact"], *cost,
             r["over_hand"], r["made_s"], r["legal"]]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--case", default="", help="only those whose name has this")
    parser.add_argument("--arch", choices=ARCHES)
    options = parser.parse_args()
    head = ("case", "arch", "template", "registers", "spills", "multiplies", "exact", *KINDS, "over hand", "s", "legal")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    rows = []
    for case in CASES:
        for arch in ARCHES:
            if options.case in case.name and options.arch in (None, arch):
                rows.append(judged(case, arch))
                print(line(rows[-1]), flush=True)
    if options.save:
        document = {"schema": 1, "device": "not yet run on a GPU", "nvrtc": nvrtc_version(), "rows": rows}
        RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
