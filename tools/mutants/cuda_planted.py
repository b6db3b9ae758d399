"""Are faults that someone plants in CUDA text, launches and tensor maps found by ``check("emulate")``?

    python tools/mutants/cuda_planted.py [--json] [--save] [--kernels TEXT] [--groups TEXT] [--each 1] [--seed 0]

Kernels of every class; of each, faults of every group for which it has a place (``cuda_faults``), a sample with a seed.
A fault that the check does not tell must be no CUDA (NVRTC, or what is asked when a kernel is loaded, refuses it), or
equivalent: by the same machine code, by an experiment of its own (``cuda_reasons``), or by an argument that says what
is computed for it. What is none of these has survived, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cuda_faults import Fault, compared_tables, faults
from cuda_judge import apart, own_folder, sampled, trial
from cuda_kernels import _TURNS, HOPPER, KERNELS, TARGET, Kernel, _template
from cuda_reasons import HELPERS, explain, of_order
from cuda_texts import edits

import tensorir as tir
from tensorir.check.outliers import reads_all_as_is
from tensorir.codegen.source import Source
from tensorir.errors import CompileError, TensorIRError
from tensorir.runtime.cuda import compile_cubin, nvrtc_version, sass
from tensorir.runtime.limits import check_registers, check_shared

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "cuda_planted"
EACH = 1
"""Faults of a kernel and group; twice as many of scalars, index tables and assembly."""

SAME_CODE = "NVRTC makes the same machine code of it"
PROMISE = "a block of as many threads keeps what the bounds promise, and no warpgroup asks for registers"
POOL = "NVRTC spills no more, and the warpgroups ask for no more registers than a block begins with"
ZERO = "a sum that begins with -0 differs in the sign of a zero at most, and the two are equal"
ENTRIES = "at every place what was planted has the value that it had, for every entry that a launch lets through"
PADDED = "the declaration pads or chooses what it multiplies: 0 times an infinity may be left out"
PLACE = "five orders of threads show neither a race nor another result there, but do where it lies on another array"
TINY = "the least number of the results' type is more than 10^10 times as large"


@dataclass
class Fate:
    """What became of a fault.

    by: "check", "compiler" (NVRTC) or "loading"; "" where nobody told, and ``reason`` is why that is right
    """

    group: str
    kind: str
    kernel: str
    place: str
    by: str = ""
    code: str = ""
    reason: str = ""


def _scaled(name: str, template: str, target: str, config: dict[str, int], **shape: Any) -> Kernel:
    """A product with alpha and beta."""
    return _template(name, [tir.ops.matmul(**shape, alpha=True, beta=True)], template, config, target)


def _gathered(target: str) -> tir.Schedule:
    """Rows by a table, some of which are nowhere: their sums are those of nothing."""
    table, x = tir.placeholder((37,), "int32", name="t"), tir.placeholder((11, 24), "float32", name="x")
    y = tir.compute((37, 24), lambda i, j: tir.where((table[i] >= 0) & (table[i] < 11), x[table[i], j], 0.0), name="y")
    s = tir.Schedule(y, target)
    block, thread = s.split("y.i", [None, 8], tail="guard")
    return s.bind(block, "block.x").bind(thread, "thread.x")


MORE = {
    k.name: k
    for k in (
        _scaled("fp32 with alpha and beta, threads", "gpu_tile", TARGET, {}, m=72, n=40, k=70),
        _scaled("bf16 with alpha and beta, mma.sync", "gpu_tile_mma", TARGET, {}, m=72, n=40, k=72, dtype="bfloat16"),
        _scaled("fp16 with alpha, beta and gelu, mma.sync", "gpu_tile_mma", TARGET, dict(staged=0), m=40, n=40, k=72,
                dtype="float16", act="gelu", bias=True),
        _scaled("bf16 with alpha and beta, clusters", "gpu_tile_wgmma", HOPPER.format(4), {**_TURNS, "cluster": 2},
                m=280, n=136, k=264, tb=True, dtype="bfloat16"),
        _scaled("tf32 with alpha and beta, warpgroups", "gpu_tile_wgmma", HOPPER.format(2), {**_TURNS, "pingpong": 0},
                m=72, n=72, k=72, tb=True, precision="tf32"),
        _template("fp16 in parts, mma.sync", [tir.ops.matmul(m=40, n=40, k=512, dtype="float16")], "gpu_tile_mma",
                  dict(splits=2, rest=0, atomic=0, bm=64, bn=64, wm=32, wn=32, bk=32)),
        _template("fp32 in parts, atomic", [tir.ops.matmul(m=40, n=40, k=512, precision="tf32")], "gpu_tile_mma",
                  dict(splits=2, rest=0, atomic=1, bm=64, bn=64, wm=32, wn=32, bk=16, staged=0)),
        _template("fp8, mma.sync", [tir.ops.matmul(m=40, n=40, k=136, tb=True, dtype="float8_e4m3")], "gpu_tile_mma",
                  dict(bm=64, bn=64, wm=32, wn=32, bk=32), "cuda -arch=sm_89"),
        _template("fp32 convolution, threads", [tir.ops.conv2d(n=1, c=12, h=11, w=7, k=24, pad=1, layout="NHWC")],
                  "gpu_tile", {}),
        _template("fp32 Winograd in several kernels", [
            tir.ops.conv2d(n=1, c=8, h=9, w=7, k=16, pad=1, layout="NHWC")], "gpu_winograd", {}),
        _template("fp32 gradient of data", [
            tir.ops.conv2d_backward_data(n=1, c=16, h=10, w=9, k=24, pad=1, layout="NHWC")], "gpu_tile", {}),
        _template("fp32 gradient of filters", [
            tir.ops.conv2d_backward_weight(n=2, c=16, h=10, w=9, k=24, pad=1, layout="NHWC")], "gpu_tile", {}),
        _template("fp32 depthwise", [tir.ops.conv2d(n=1, c=20, k=20, h=13, w=11, pad=1, groups=20)],
                  "gpu_tile_windows", {}),
        _template("fp32 grouped, threads", [tir.ops.grouped_matmul(m=96, n=40, k=40, groups=5, align=16)], "gpu_tile",
                  dict(ti=16, ri=1)),
        Kernel("rows by a table", lambda: [_gathered(TARGET)]),
    )
}  # fmt: skip
EVERY = {**KERNELS, **MORE}


# --- who tells


def told(s: Any, fault: Fault) -> str:
    """The code that ``check("emulate")`` gives of a schedule whose text and launches are the fault's; "" for none."""
    edited = s.with_source(fault.source.text)
    edited.emitted = lambda target=None: replace(fault.source, text=s.emitted().text)
    try:
        verdict = edited.check("emulate")
    except TensorIRError as e:
        return str(e.problems[0].code)
    return verdict.problems[0].code if verdict.problems else ""


@cache
def machine_code(text: str, arch: str) -> str:
    """Of a text; CompileError where NVRTC refuses it."""
    return sass(compile_cubin(text, arch))


def refused(source: Source, arch: str) -> tuple[str, str]:
    """Who, after the check, would not run this: the compiler, or what is asked as a kernel is loaded."""
    try:
        cubin = compile_cubin(source.text, arch)
    except CompileError as e:
        return "compiler", e.code
    try:
        for k in source.kernels:
            if (use := cubin.kernels.get(k.name)) is None:
                return "loading", "kernel.missing"
            check_registers(k, source.text, use.registers)
            check_shared(k.name, k.shared_bytes + use.shared_bytes, tir.Target.parse(f"cuda -arch={arch}"))
    except CompileError as e:
        return "loading", e.code
    return "", ""


# --- why nobody needs to


def equivalent(kernel: Kernel, schedules: list[Any], fault: Fault, arch: str) -> str:
    """Why a fault is none; "" where nothing says so."""
    old, new = schedules[0].emitted(), fault.source
    if old.kernels == new.kernels and machine_code(old.text, arch) == machine_code(new.text, arch):
        return SAME_CODE
    if fault.group == "start values" and fault.kind.startswith("-0.0f"):
        return ZERO
    if fault.group == "start values" and fault.kind.startswith("-1e-20f") and _few_exponents(old):
        return TINY
    if fault.kind == "products with 0 left out" and not reads_all_as_is(schedules[0].outputs):
        return PADDED
    if fault.group == "launch bounds" and "tir_registers" not in new.text and _kept(new):
        return PROMISE
    if fault.group == "registers" and _spills(new.text, arch) <= _spills(old.text, arch):
        return POOL
    if fault.group == "index tables" and _same_entries(schedules[0], old, fault):
        return ENTRIES
    if fault.kind == "placed elsewhere" and _elsewhere(apart(lambda: trial(schedules[0])), new.text):
        return PLACE
    if fault.edit < 0:
        return ""
    trials = [apart(lambda s=s: trial(s)) for s in schedules]
    every = [edits(t.source.text, kernel.slots) for t in trials]
    if len({len(found) for found in every}) != 1:
        return ""
    return explain([found[fault.edit] for found in every], trials) or ""


def _same_entries(s: Any, source: Source, fault: Fault) -> bool:
    """Whether what was planted in index tables has the value that it had, at every place for every entry that a launch
    lets through.
    """
    both = compared_tables(fault, source)
    limits = {g.param: g.limit for g in source.gathers}
    tables = [p.name for p in source.inputs if p.dtype.startswith(("int", "uint"))]
    if not both or set(tables) != set(limits):
        return False
    first = both.index('extern "C" __global__')
    run = replace(trial(s), source=replace(source, text=both[:first] + HELPERS + both[first:]))
    for turn in range(max(limits.values())):
        arrays = [(np.arange(x.size) + turn).reshape(x.shape) % limits[p.name] if p.name in limits else x
                  for p, x in zip(source.inputs, run.arrays, strict=True)]  # fmt: skip
        dealt = [np.asarray(a, x.dtype) for a, x in zip(arrays, run.arrays, strict=True)]
        if apart(lambda given=dealt: run.on(given).run(run.source.text)) is not None:
            return False
    return True


def _elsewhere(run: Any, text: str) -> bool:
    """Whether nothing tells that an array is placed elsewhere, in any order of threads, though another place would be
    told: the emulator sees at all what lies on the array.
    """
    place = re.compile(r"\(tir_shared \+ (\d+)\)")
    old, new = ([int(m[1]) for m in place.finditer(t)] for t in (run.source.text, text))
    (moved,) = (n for n, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    at = [*place.finditer(text)][moved].span(1)
    others = [text[: at[0]] + str(x) + text[at[1] :] for x in (0, *old) if x != old[moved]]
    return bool(of_order([run], [text])) and not all(of_order([run], [other]) for other in others)


def _few_exponents(source: Source) -> bool:
    """Whether all results are integers or floats whose least numbers are those of float16 or larger, and no scalar
    makes more of what is smaller; parts of sums (``_rf``) are added up by the next kernel.
    """
    parts = {p.name for p in source.params if p.role == "workspace" and p.name.endswith("_rf")}
    made = [p.dtype for p in source.params if p.role in ("output", "workspace") and p.name not in parts]
    return not any(p.role == "scalar" for p in source.params) and all(
        x == "float16" or x.startswith(("int", "uint", "float8")) for x in made
    )


def _kept(source: Source) -> bool:
    """Whether each kernel has bounds for the threads that it is launched with."""
    most = re.findall(r"__launch_bounds__\((\d+)", source.text)
    return all(math.prod(k.block) <= int(n) for k, n in zip(source.kernels, most, strict=False))


def _spills(text: str, arch: str) -> int:
    return compile_cubin(text, arch).spills


# --- all of them


def planted(kernel: Kernel, source: Source, each: int, seed: int, groups: str = "") -> list[Fault]:
    """A sample: of each group some faults, of different kinds as far as there are."""
    by_group: dict[str, dict[str, list[Fault]]] = {}
    for f in faults(source, kernel.slots):
        if groups in f.group:
            by_group.setdefault(f.group, {}).setdefault(f.kind, []).append(f)
    out = []
    for group, kinds in by_group.items():
        names = np.random.default_rng([seed, *f"{kernel.name} {group}".encode()]).permutation(sorted(kinds)).tolist()
        most = each * (2 if group in ("assembly", "scalars", "index tables") else 1)
        turn = [f for n in range(most) for name in names
                for f in sampled(kinds[name], n + 1, f"{seed} {kernel.name} {name}")[n : n + 1]]  # fmt: skip
        out += turn[:most]
    return out


def work(task: tuple[str, int, int, str]) -> list[Fate]:
    """The faults of one kernel, in a process of its own."""
    name, each, seed, groups = task
    with own_folder():
        kernel = EVERY[name]
        schedules = kernel.schedules()
        source, arch = schedules[0].emitted(), schedules[0].target.arch
        assert schedules[0].with_source(source.text).check("emulate"), f"{name} is wrong before anything is planted"
        out = []
        for f in planted(kernel, source, each, seed, groups):
            fate = Fate(f.group, f.kind, name, f.place(source))
            fate.code = told(schedules[0], f)
            fate.by = "check" if fate.code else ""
            if not fate.by or fate.code == "emulate.compile":
                by, code = refused(f.source, arch)
                fate.by, fate.code = (by, code) if by else (fate.by, fate.code)
            if not fate.by:
                fate.reason = equivalent(kernel, schedules, f, arch)
            out.append(fate)
        return out


def summary(found: list[Fate], environment: dict[str, str]) -> dict[str, Any]:
    """Numbers by group and kernel, codes, reasons, and what has survived."""
    groups = list(dict.fromkeys(f.group for f in found))
    return {
        "environment": environment,
        **_counts(found),
        "groups": {g: _counts([f for f in found if f.group == g]) for g in groups},
        "kernels": dict(collections.Counter(f.kernel for f in found)),
        "codes": dict(sorted(collections.Counter(f.code for f in found if f.code).items())),
        "reasons": dict(sorted(collections.Counter(f.reason for f in found if f.reason).items())),
        "equivalent_ones": [asdict(f) for f in found if f.reason],
        "survivors": [asdict(f) for f in found if not f.by and not f.reason],
    }


def _counts(found: list[Fate]) -> dict[str, int]:
    by = collections.Counter(f.by for f in found)
    reasons = sum(bool(f.reason) for f in found)
    return {"planted": len(found), "check": by["check"], "refused": by["compiler"] + by["loading"],
            "equivalent": reasons, "survived": by[""] - reasons}  # fmt: skip


def markdown(found: dict[str, Any]) -> str:
    """The tables of the documentation."""
    heads = ("planted", "check", "refused", "equivalent", "survived")
    out = [" ".join(f"**{name} {found[name]}**" for name in heads), ""]
    out += ["| group | " + " | ".join(heads) + " |", "|" + "---|" * 6]
    out += [f"| {g} | " + " | ".join(str(n[h]) for h in heads) + " |" for g, n in found["groups"].items()]
    out += ["", "| equivalent, since | faults |", "|---|---|"]
    out += [f"| {reason} | {n} |" for reason, n in found["reasons"].items()]
    out += ["", f"{len(found['kernels'])} kernels; " + ", ".join(f"{k} {v}" for k, v in found["environment"].items())]
    return "\n".join(out) + "\n"


def environment(given: argparse.Namespace) -> dict[str, str]:
    """What the numbers depend on."""
    return {"python": platform.python_version(), "numpy": np.__version__, "NVRTC": nvrtc_version(),
            "machine": platform.machine(), "seed": str(given.seed), "each": str(given.each)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}.md and .json")
    parser.add_argument("--kernels", default="", metavar="TEXT", help="those whose names contain it")
    parser.add_argument("--groups", default="", metavar="TEXT", help="faults of groups whose names contain it")
    parser.add_argument("--each", type=int, default=EACH, help="faults of each kernel and group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    start, results = time.monotonic(), list[Fate]()
    tasks = [(k, given.each, given.seed, given.groups) for k in EVERY if given.kernels in k]
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for part in pool.imap(work, tasks):
            results += part
            left = [f for f in part if not f.by and not f.reason]
            if part:
                text = f"{part[0].kernel:44} {len(part):4} faults, {len(left)} survived"
                print(f"{time.monotonic() - start:5.0f} s  {text}", file=sys.stderr, flush=True)
            for f in left:
                print(f"         {f.group}, {f.kind}: {f.place}", file=sys.stderr, flush=True)
    found = summary(results, environment(given))
    if given.save:
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(markdown(found))
    print(json.dumps(found, indent=1) if given.json else markdown(found))
    sys.exit(1 if found["survived"] else 0)


if __name__ == "__main__":
    main()
