"""Automatic schedules of attention for CUDA, judged without a GPU, next to the schedule by hand.

    python benchmarks/automatic/gpu_attention.py             # prints a table
    python benchmarks/automatic/gpu_attention.py --save      # and writes results/automatic_gpu_attention.json

Each row is the default of the first template of ``tir.auto`` for ``tir.nn.attention``, and the schedule of
examples/gallery/attention_cuda.py next to it: compiled by NVRTC at 16 heads of 4096 places and disassembled
(registers, spills, shared memory of a block, which instructions multiply, all instructions), and one head of 128
places emulated with the same configuration (exact; what the first block's accesses to memory cost, over the least
that their bytes need), and two of 75 places, by the default there (exact). The time is that of the rule's model: over
that of the schedule by hand, with its warps and keys and without what it writes again and again; in float32, which has
none, over what the multiplications take at the peak of the threads.
Needs the extra "cuda" and a C++ compiler. Not yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / x) for x in ("", "gpu")] + [str(ROOT / "examples")]

from gallery import attention_cuda  # noqa: E402
from measuring import environment  # noqa: E402
from offline import of_kernel  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.check.emulate import emulate  # noqa: E402
from tensorir.gpu_devices import gpu_of  # noqa: E402
from tensorir.interp.reference import random_arguments  # noqa: E402
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass, sass_opcodes  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_gpu_attention.json"
ARCHES = ("sm_80", "sm_90a")
KINDS = ("shared read", "shared write", "global read", "global write")
COUNTED = ("HMMA", "FFMA", "LDSM", "LDS", "STS", "MUFU", "LDL", "STL")
HAND = {"warps": 4, "keys": 64, "stages": 1, "parts": 1}
"""The configuration of the schedule by hand, as one of the rule's."""


@dataclass(frozen=True)
class Case:
    """Attention by its width and what is told of it; ``groups``: how many heads share keys."""

    name: str
    width: int
    dtype: str = "float16"
    causal: bool = False
    groups: int = 1

    def declared(self, heads: int, places: int) -> tir.Tensor:
        q = tir.placeholder((1, heads, places, self.width), self.dtype, name="q")
        shared = (1, max(1, heads // self.groups), places, self.width)
        k, v = (tir.placeholder(shared, self.dtype, name=n) for n in "kv")
        return tir.nn.attention(q, k, v, causal=self.causal, name="y")


CASES = (
    Case("float16, width 64", 64),
    Case("float16, width 128", 128),
    Case("float16, width 64, causal", 64, causal=True),
    Case("float16, width 128, causal", 128, causal=True),
    Case("bfloat16, width 64", 64, "bfloat16"),
    Case("bfloat16, width 64, causal", 64, "bfloat16", causal=True),
    Case("bfloat16, width 128, causal", 128, "bfloat16", causal=True),
    Case("float16, width 80", 80),
    Case("float16, width 128, 4 heads share keys", 128, groups=4),
    Case("float32, width 64", 64, "float32"),
    Case("float32, width 64, causal", 64, "float32", causal=True),
    Case("float32, width 128", 128, "float32"),
    Case("float32, width 128, causal", 128, "float32", causal=True),
    Case("float32, width 80", 80, "float32"),
)


def counted(s: tir.Schedule, arch: str) -> dict[str, Any]:
    """Resources and instructions of a schedule's only kernel."""
    source = s.emitted()
    (kernel,) = source.kernels
    cubin = compile_cubin(source.text, arch)
    found: dict[str, int] = {}
    for opcode, n in sass_opcodes(of_kernel(sass(cubin), kernel.name)).items():
        found[opcode.split(".")[0]] = found.get(opcode.split(".")[0], 0) + n
    made = cubin.kernels[kernel.name]
    return {
        "registers": made.registers, "spills": made.spill_bytes, "shared_bytes": kernel.shared_bytes,
        "opcodes": {x: found[x] for x in COUNTED if x in found}, "instructions": sum(found.values()),
    }  # fmt: skip


def cost(s: tir.Schedule) -> dict[str, Any]:
    """Whether the text is exact, and the cost of the first block's accesses over the least."""
    run = emulate(s.emitted(), random_arguments(s.outputs, 0))
    sums = {k: [sum(getattr(t, x) for t in run.traffic if t.what == k) for x in ("units", "ideal")] for k in KINDS}
    return {"exact": bool(s.check("emulate")), **sums}


def both(make: Callable[[int, int], tir.Schedule], arch: str) -> dict[str, Any]:
    """What is known of a schedule, by heads and places."""
    return counted(make(16, 4096), arch) | cost(make(1, 128))


def judged(case: Case, arch: str) -> dict[str, Any]:
    """The default automatic schedule, and the one by hand where it has the case."""
    target = tir.Target.parse(f"cuda -arch={arch}")
    name, template = next(iter(tir.auto(case.declared(16, 4096), target).items()))
    space = template.space_for(target)

    def automatic(heads: int, places: int) -> tir.Schedule:
        s = tir.Schedule(case.declared(heads, places), target)
        next(iter(tir.auto(s.outputs, target).values())).function(s, space.default)
        return s

    def by_hand(heads: int, places: int) -> tir.Schedule:
        return attention_cuda.schedule(attention_cuda.declare(heads, places, case.width), f"cuda -arch={arch}")

    expected = space.expected_s
    threads = case.dtype == "float32"
    least = peak_s(case, 16, 4096, target) if threads else expected(HAND) if expected else 0.0
    ratio = round(expected(space.default) / least, 3) if expected else None
    has = case.dtype == "float16" and case.width % 64 == 0 and not case.causal and case.groups == 1
    hand = both(by_hand, arch) if has else None
    return {"case": case.name, "arch": arch, "template": name, "config": space.default, "legal": len(space.legal),
            **both(automatic, arch), "odd_exact": odd(case, target), "hand": hand,
            "over_peak" if threads else "over_hand": ratio}  # fmt: skip


def odd(case: Case, target: tir.Target) -> bool:
    """Whether the default of heads of a few places, no whole tiles, is exact."""
    return bool(tir.auto_schedule(case.declared(2 * case.groups, 75), target).check("emulate"))


def peak_s(case: Case, heads: int, places: int, target: tir.Target) -> float:
    """Seconds of both products at the peak of a device's threads."""
    gpu = gpu_of(target)
    assert gpu is not None
    return 4.0 * heads * places * places * case.width / (gpu.units * gpu.threads_rate * gpu.clock)


def line(name: str, arch: str, r: Mapping[str, Any], ratio: object) -> str:
    """A row of the table."""
    cells = [name, arch, r["registers"], r["spills"], r["shared_bytes"], r["opcodes"].get("HMMA"), r["instructions"],
             r["exact"], *(f"{r[k][0]}/{r[k][1]}" for k in KINDS), ratio]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"write {RESULT.name}, after each row")
    parser.add_argument("--case", default="", help="only those whose name has this; --save keeps the others then")
    options = parser.parse_args()
    head = (
        "case",
        "arch",
        "registers",
        "spills",
        "shared",
        "HMMA",
        "instructions",
        "exact",
        *KINDS,
        "over hand or peak",
    )
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    about = {"schema": 1, "device": "not yet run on a GPU", "environment": environment(), "nvrtc": nvrtc_version()}
    known = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() and options.case else []
    found = {(r["case"], r["arch"]): r for r in known}
    for case in (c for c in CASES if options.case in c.name):
        for arch in ARCHES:
            r = found[case.name, arch] = judged(case, arch)
            print(line(case.name, arch, r, r.get("over_hand", r.get("over_peak"))), flush=True)
            if r["hand"]:
                print(line(f"{case.name}, by hand", arch, r["hand"], ""), flush=True)
            if options.save:
                rows = [found[c.name, a] for c in CASES for a in ARCHES if (c.name, a) in found]
                RESULT.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
