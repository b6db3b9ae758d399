"""What is known of the CUDA kernels without a GPU: one row for each class and architecture, as Markdown and JSON.

    python benchmarks/gpu/offline.py                     # prints the tables
    python benchmarks/gpu/offline.py --save              # and writes benchmarks/results/gpu_offline.{md,json}

Resources and instructions are those of the default configuration at a large shape, compiled by NVRTC and disassembled;
of kernels of warpgroups, the loops that multiply and load are counted by themselves. Costs of accesses are counted by
the emulator, which runs the same text at a small shape on the CPU and compares the result with the reference, exactly.
Needs the extra "cuda" and a C++ compiler. None of it was run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from emulated_shapes import whole_filters
from gallery import attention_cuda
from main_loops import counted, loop_around

import tensorir as tir
from tensorir.check.emulate import Traffic, emulate
from tensorir.interp.reference import random_arguments
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass, sass_opcodes

RESULTS = Path(__file__).parents[1] / "results" / "gpu_offline"


@dataclass(frozen=True)
class KernelClass:
    """``make`` gives the workload; large: its shape when compiled, small: when emulated;  config: other than default

    template: which, where it is not the target's own;  kernel: the start of the name of the one that is told of, where
              there are several;  off: how far results may be off the reference, where it rounds otherwise
    """

    name: str
    make: Callable[..., tir.Workload]
    large: dict[str, Any]
    small: dict[str, Any]
    arches: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    kernel: str = ""
    off: float = 0.0


def attention(**shape: int) -> tir.Workload:
    """The schedule of examples/gallery/attention_cuda.py as a workload."""
    outputs = attention_cuda.declare(**shape)
    template = (lambda s, _: attention_cuda.schedule(outputs, s.target), tir.Space(warps=[4]), ("gpu",))
    return tir.Workload("attention", outputs, {"gpu_mma": template}, attention_cuda.by_numpy)


def _cores(name: str, arches: tuple[str, ...] = ("sm_80", "sm_90"), **options: Any) -> KernelClass:
    """A class of the template for tensor cores; multiply-adds by name."""
    return KernelClass(name, tir.ops.matmul, dict(m=4096, n=4096, k=4096, **options),
                       dict(m=256, n=256, k=128, **options), arches)  # fmt: skip


def _in_groups(name: str, arches: tuple[str, ...], **options: Any) -> KernelClass:
    """A class of rows in eight groups."""
    return KernelClass(name, tir.ops.grouped_matmul, dict(m=8192, n=4096, k=4096, **options),
                       dict(m=256, n=256, k=128, **options), arches)  # fmt: skip


def _winograd(name: str, template: str, kernel: str, layout: str) -> KernelClass:
    """One kernel of a 3x3 convolution by Winograd's algorithm."""
    arches = ("sm_75", "sm_80", "sm_90")
    return KernelClass(f"fp32 Winograd, {layout}, {name}", tir.ops.conv2d,
                       dict(n=16, c=256, h=56, w=56, k=256, pad=1, layout=layout),
                       dict(n=1, c=32, h=16, w=16, k=64, pad=1, layout=layout), arches,
                       template=template, kernel=kernel)  # fmt: skip


def _warpgroups(name: str, config: Mapping[str, int] | None = None, **options: Any) -> KernelClass:
    """A class of the template for warpgroups."""
    return KernelClass(name, tir.ops.matmul, dict(m=4096, n=4096, k=4096, **options),
                       dict(m=256, n=256, k=512, **options), ("sm_90a",), config or {})  # fmt: skip


CLASSES = (
    KernelClass("fp32 SIMT, A and B as they lie", tir.ops.matmul, dict(m=1024, n=1024, k=1024),
                dict(m=256, n=256, k=64), ("sm_75", "sm_80", "sm_90")),
    KernelClass("fp32 SIMT, A and B transposed", tir.ops.matmul, dict(m=1024, n=1024, k=1024, ta=True, tb=True),
                dict(m=256, n=256, k=64, ta=True, tb=True), ("sm_75", "sm_80", "sm_90")),
    _cores("fp16 mma.sync, B transposed", dtype="float16", tb=True),
    _cores("fp16 mma.sync, A and B as they lie", dtype="float16"),
    _cores("bf16 mma.sync, A transposed", dtype="bfloat16", ta=True),
    _cores("int8 mma.sync, B transposed", dtype="int8", tb=True),
    _cores("fp16 mma.sync of sm_75, B transposed", ("sm_75",), dtype="float16", tb=True),
    _cores("fp16 mma.sync of sm_75, A and B as they lie", ("sm_75",), dtype="float16"),
    _cores("int8 mma.sync of sm_75, B transposed", ("sm_75",), dtype="int8", tb=True),
    _cores("tf32 mma.sync, A and B as they lie", precision="tf32"),
    _cores("fp32 by 3xTF32, A and B as they lie", precision="3xtf32"),
    _cores("fp32 by 3xTF32, B transposed", precision="3xtf32", tb=True),
    *(KernelClass(f"fp16 attention by mma.sync, width {width}", attention, dict(heads=16, places=4096, width=width),
                  dict(heads=1, places=128, width=width), ("sm_80", "sm_90"), off=1e-3) for width in (64, 128)),
    KernelClass("fp16 3x3 convolution, NHWC", tir.ops.conv2d,
                dict(n=16, c=64, h=56, w=56, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="float16"),
                dict(n=1, c=64, h=16, w=16, k=64, r=3, s=3, pad=1, layout="NHWC", dtype="float16"), ("sm_80", "sm_90")),
    *(KernelClass(f"fp32 3x3 convolution in threads, {name}", tir.ops.conv2d,
                  dict(n=16, c=64, h=56, w=56, k=64, pad=1, layout=name[:4], prepack=once),
                  dict(n=1, c=64, h=16, w=16, k=64, pad=1, layout=name[:4], prepack=once), ("sm_75", "sm_80", "sm_90"),
                  kernel="y")
      for name, once in (("NHWC", False), ("NCHW, filters turned once", True), ("NCHW in one kernel", False))),
    KernelClass("fp32 depthwise 3x3, NHWC", tir.ops.conv2d,
                dict(n=16, c=144, k=144, groups=144, h=56, w=56, pad=1, layout="NHWC"),
                dict(n=1, c=64, k=64, groups=64, h=28, w=28, pad=1, layout="NHWC"), ("sm_75", "sm_80", "sm_90"),
                kernel="y"),
    _in_groups("fp32 SIMT, rows in groups", ("sm_80", "sm_90")),
    _in_groups("bf16 mma.sync, rows in groups, B transposed", ("sm_80", "sm_90"), dtype="bfloat16", tb=True),
    *(_winograd(name, "gpu_winograd", kernel, layout) for layout in ("NHWC", "NCHW")
      for name, kernel in (("image", "V"), ("products", "M"), ("result", "y"))),
    _winograd("filter", "gpu_winograd", "U", "NHWC"),
    *(_winograd("one kernel", "gpu_winograd_fused", "y", layout) for layout in ("NHWC", "NCHW")),
)  # fmt: skip


HOPPER = (
    _warpgroups("fp16 wgmma, B transposed", dtype="float16", tb=True),
    _warpgroups("fp16 wgmma, A and B as they lie", dtype="float16"),
    _warpgroups("bf16 wgmma, B transposed", dtype="bfloat16", tb=True),
    _warpgroups("bf16 wgmma in turns, B transposed", dict(pingpong=1), dtype="bfloat16", tb=True),
    _warpgroups("bf16 wgmma, A and B as they lie", dtype="bfloat16"),
    _warpgroups("bf16 wgmma, A transposed", dtype="bfloat16", ta=True),
    _warpgroups("bf16 wgmma, A and B transposed", dtype="bfloat16", ta=True, tb=True),
    _warpgroups("int8 wgmma, B transposed", dtype="int8", tb=True),
    _warpgroups("e4m3 wgmma, B transposed", dtype="float8_e4m3", tb=True),
    _warpgroups("e5m2 wgmma, B transposed", dtype="float8_e5m2", tb=True),
    _warpgroups("tf32 wgmma, B transposed", precision="tf32", tb=True),
    KernelClass(
        "bf16 wgmma 3x3 convolution, NHWC",
        tir.ops.conv2d,
        dict(n=64, c=256, h=14, w=14, k=256, pad=1, layout="NHWC", dtype="bfloat16"),
        dict(n=3, c=64, h=14, w=14, k=256, pad=1, layout="NHWC", dtype="bfloat16"),
        ("sm_90a",),
        template="gpu_tile_wgmma",
    ),
    *(
        KernelClass(
            f"bf16 wgmma gradient of 3x3 filters, NHWC{parts}",
            tir.ops.conv2d_backward_weight,
            dict(n=64, c=256, h=56, w=56, k=256, pad=1, layout="NHWC", dtype="bfloat16"),
            dict(n=10, c=64, h=14, w=14, k=256, pad=1, layout="NHWC", dtype="bfloat16"),
            ("sm_90a",),
            config,
            template="gpu_tile_wgmma",
        )
        for parts, config in ((", pixels in parts", {}), ("", dict(splits=1, depth=3)))
    ),
    _in_groups("bf16 wgmma, rows in groups, B transposed", ("sm_90a",), dtype="bfloat16", tb=True),
)


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor (CUDA programming guide, "Compute capabilities")."""

    threads: int
    blocks: int
    shared_bytes: int
    registers: int = 65536


LIMITS = {
    "sm_75": Multiprocessor(1024, 16, 64 * 1024),
    "sm_80": Multiprocessor(2048, 32, 164 * 1024),
    "sm_90": Multiprocessor(2048, 32, 228 * 1024),
    "sm_90a": Multiprocessor(2048, 32, 228 * 1024),
}


def resident(arch: str, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one multiprocessor holds at a time; registers come in groups of 256 a warp."""
    limit = LIMITS[arch]
    warps = -(-threads // 32)
    a_warp = -(-registers * 32 // 256) * 256
    reserved = 0 if arch == "sm_75" else 1024
    return min(
        limit.blocks, limit.threads // threads, limit.registers // (a_warp * warps),
        limit.shared_bytes // (shared_bytes + reserved) if shared_bytes else limit.blocks,
    )  # fmt: skip


def compiled(c: KernelClass, arch: str) -> dict[str, Any]:
    """Resources and instructions at the large shape."""
    source = c.make(**c.large).schedule(template=c.template, target=f"cuda -arch={arch}").emitted()
    (kernel,) = (k for k in source.kernels if k.name.startswith(c.kernel))
    cubin = compile_cubin(source.text, arch)
    use, text = cubin.kernels[kernel.name], of_kernel(sass(cubin), kernel.name)
    found = sass_opcodes(text)
    tensor = any(name.startswith(("HMMA", "IMMA")) for name in found)
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]

    loop = Counter(loop_around(text, ("HMMA", "IMMA", "FFMA")))

    def count(start: str, wide: bool | None = None, where: Mapping[str, int] = found) -> int:
        named = {n: k for n, k in where.items() if n.split(".")[0] == start}
        return sum(k for n, k in named.items() if wide is None or (".128" in n) == wide)

    return {
        "class": c.name, "arch": arch, "registers": use.registers, "spills": use.spill_bytes,
        "shared_bytes": kernel.shared_bytes, "threads": threads,
        "blocks_per_sm": resident(arch, threads, use.registers, kernel.shared_bytes),
        "multiply_adds": count("FFMA") if not tensor else count("HMMA") + count("IMMA"),
        "all": sum(found.values()) - count("NOP"),
        "copies_128": count("LDG", True) + count("LDGSTS", True),
        "reads_128": count("LDS", True, loop) + count("LDSM", None, loop), "sts": count("STS", None, loop),
        "stg": {w: count("STG", None if w == "all" else True) for w in ("all", "128")},
        "narrower": count("LDG", False, loop) + count("LDS", False, loop) + count("LDGSTS", False, loop),
        "local": count("LDL") + count("STL"), "barriers": count("BAR"),
        "membar": count("MEMBAR", None, loop),
    }  # fmt: skip


def specialised(c: KernelClass) -> dict[str, Any]:
    """Resources and instructions of a kernel of warpgroups; of the loops that multiply and that load, by themselves."""
    (arch,) = c.arches
    work, target = c.make(**c.large), tir.Target.parse(f"cuda -arch={arch}")
    s, template = tir.Schedule(work.outputs, target), work.templates[work.template_for(target, c.template)]
    config = {**template.space_for(target).default, **c.config}
    source = (template.function(s, config) or s).emitted()
    cubin, kernel = compile_cubin(source.text, arch), next(k for k in source.kernels if k.maps)
    use, text = cubin.kernels[kernel.name], of_kernel(sass(cubin), kernel.name)
    products = ("HGMMA", "IGMMA", "QGMMA")
    multiplies, loads, whole = loop_around(text, products), loop_around(text, ("UTMALDG",)), sass_opcodes(text)
    high, columns = config.get("rows", 1), config.get("bn", config.get("bk", 0))
    threads, sets = kernel.block[0] * kernel.block[1], config["groups"] if config.get("pingpong") else 1
    rows = 64 * config["groups"] // sets * high

    def count(*starts: str) -> int:
        return sum(k for n, k in whole.items() if n.startswith(starts))

    return {
        "class": c.name, "arch": arch, "config": config, "threads": threads,
        "registers": [use.registers, *_asked(source.text, "down"), *_asked(source.text, "up")],
        "spills": use.spill_bytes, "shared_bytes": kernel.shared_bytes,
        "planned": {"products": high * 4,  # of 32 bytes of k each: a tile has 128
                    "shared_bytes": 128 * config["depth"] * (rows + columns)
                    + (2 * sets * rows * columns if "tir_tma_store(" in source.text else 0)},
        "blocks_per_sm": resident(arch, threads, use.registers, kernel.shared_bytes),
        "products": count(*products), "local": count("LDL", "STL"),
        "membar": counted([*multiplies, *loads], "MEMBAR"),
        "registers_set": count("USETMAXREG"), "stg": {"all": count("STG"), "32": count("STG") - count("STG.E.64")},
        "multiplies": {"all": len(multiplies), "products": counted(multiplies, *products),
                       "waits": counted(multiplies, "WARPGROUP.DEPBAR"), "barriers": counted(multiplies, "SYNCS")},
        "loads": {"all": len(loads), "tiles": counted(loads, "UTMALDG"), "barriers": counted(loads, "SYNCS")},
        "results": {"all": sum(whole.values()) - count("NOP") - len(multiplies) - len(loads), "stsm": count("STSM"),
                    "sts": count("STS") - count("STSM"), "tiles": count("UTMASTG")},
        "by_threads": counted([*multiplies, *loads], "LDS", "LDG", "STS", "STG", "MEMBAR", "BAR."),
        "warnings": sorted(set(re.findall(r"\bC7\d{3}\b", cubin.log))),
    }  # fmt: skip


def _asked(text: str, way: str) -> list[int]:
    """The registers that roles leave to others, or take."""
    return [int(n) for n in re.findall(rf"tir_registers_{way}<(\d+)>\(\);", text)]


def emulated(c: KernelClass) -> dict[str, Any]:
    """What the accesses of the first block cost at the small shape, over the least that their bytes need."""
    work = c.make(**c.small)
    arch = "sm_80" if "sm_80" in c.arches else c.arches[0]
    large, target = c.make(**c.large), tir.Target.parse(f"cuda -arch={arch}")
    name = large.template_for(target, c.template)
    of_large = {**large.templates[name].space_for(target).default, **c.config}
    here = work.templates[name].space_for(target)
    s = work.schedule(of_large if here.index(of_large) >= 0 else here.default, name, target)
    arrays = random_arguments(s.outputs, 0)
    if c.kernel:
        arrays[1] *= whole_filters(4)
    source = s.emitted()
    run = emulate(source, arrays)
    exact = not run.problems and bool(np.allclose(run.outputs[0], work.reference(*arrays), rtol=c.off, atol=c.off))
    mine = [t for t in run.traffic if kernel_at(source.text, t.line).startswith(c.kernel)]
    kinds = ("shared read", "shared write", "global read", "global write")
    return {"class": c.name, "shape": work.title, "exact": exact, **{k: _cost(mine, k) for k in kinds}}


def of_kernel(text: str, name: str) -> str:
    """The part of a disassembly that is one kernel's."""
    parts = re.split(r"(?m)^(?=\s*//-+ \.\S+)", text)
    return "".join(p for p in parts if re.match(rf"\s*//-+ \.text\.{name}\s", p))


def kernel_at(text: str, line: int) -> str:
    """The kernel that a line of the text is in; none for those of helpers."""
    above = "\n".join(text.splitlines()[:line])
    found: list[str] = re.findall(r"(?m)^(\w+_kernel\d*)\(", above)
    return found[-1] if found else ""


def _cost(traffic: Sequence[Traffic], what: str) -> dict[str, int]:
    mine = [t for t in traffic if t.what == what]
    return {name: sum(getattr(t, name) for t in mine) for name in ("requests", "units", "ideal")}


def markdown(rows: list[dict[str, Any]], groups: list[dict[str, Any]], costs: list[dict[str, Any]]) -> str:
    """All three tables."""
    first = (
        "class", "arch", "registers", "spills", "shared", "blocks/SM", "multiply-adds of all", "copies", "reads", "STS",
        "narrower", "LDL/STL", "MEMBAR",
    )  # fmt: skip
    second = ("class, emulated", "exact", "shared reads", "shared writes", "global reads", "global writes")
    kinds = ("shared read", "shared write", "global read", "global write")
    return "\n".join([
        *_head(first),
        *(_line([r["class"], r["arch"], r["registers"], r["spills"], r["shared_bytes"], r["blocks_per_sm"],
                 f"{r['multiply_adds']} of {r['all']}", r["copies_128"], r["reads_128"], r["sts"], r["narrower"],
                 r["local"], r["membar"]]) for r in rows),
        "",
        *_of_warpgroups(groups),
        "",
        *_head(second),
        *(_line([c["class"], "yes" if c["exact"] else "NO", *(f"{c[k]['units']} of {c[k]['ideal']}" for k in kinds)])
          for c in costs),
    ]) + "\n"  # fmt: skip


def _of_warpgroups(rows: list[dict[str, Any]]) -> list[str]:
    names = (
        "class, sm_90a", "registers: launch, load, compute", "spills", "shared (tiles)", "blocks/SM",
        "products (planned)", "multiplying: products of all", "waits", "barriers", "loading: copies of all", "barriers",
        "results: STSM, STS, UTMASTG of the rest", "by threads", "LDL/STL", "MEMBAR", "C7xxx",
    )  # fmt: skip
    return [
        *_head(names),
        *(_line([r["class"], ", ".join(map(str, r["registers"])), r["spills"],
                 f"{r['shared_bytes']} ({r['planned']['shared_bytes']})", r["blocks_per_sm"],
                 f"{r['products']} ({r['planned']['products']})",
                 f"{r['multiplies']['products']} of {r['multiplies']['all']}",
                 r["multiplies"]["waits"], r["multiplies"]["barriers"], f"{r['loads']['tiles']} of {r['loads']['all']}",
                 r["loads"]["barriers"],
                 f"{', '.join(str(r['results'][x]) for x in ('stsm', 'sts', 'tiles'))} of {r['results']['all']}",
                 r["by_threads"], r["local"], r["membar"], ", ".join(r["warnings"]) or "none"])
          for r in rows),
    ]  # fmt: skip


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}.md and .json beside the results")
    options = parser.parse_args()
    rows = [compiled(c, arch) for c in CLASSES for arch in c.arches]
    groups = [specialised(c) for c in HOPPER]
    costs = [emulated(c) for c in (*CLASSES, *HOPPER)]
    text = markdown(rows, groups, costs)
    print(text)
    if options.save:
        RESULTS.with_suffix(".md").write_text(text)
        document = {
            "nvrtc": nvrtc_version(), "limits": {a: asdict(m) for a, m in LIMITS.items()},
            "compiled": rows, "warpgroups": groups, "emulated": costs,
        }  # fmt: skip
        RESULTS.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
