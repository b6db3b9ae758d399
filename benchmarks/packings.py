"""What kernels that transform filters and pack operands take, over a copy of as many bytes, interleaved.

python benchmarks/packings.py [--device opencl] [--rounds 15] [--json FILE]

Winograd's filter transforms of 16 to 512 channels, and the packings of operands of products and of convolutions, each
the kernel that a template's own schedule makes. A copy reads and writes as many bytes in all as the kernel. Rounds time
both, one after the other, in batches; the ratio is that of the least times, next to that of processor time. Cases that
the file holds already are not measured again, so that a run can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import aligned, environment

import tensorir as tir
from tensorir.runtime.device import Device, open_device

BATCH_S = 0.003
CHANNELS = (16, 64, 256, 512)
PRODUCTS = ((512, 512, 512), (96, 3000, 768), (128, 768, 3072), (1024, 1000, 1024), (256, 4096, 256), (197, 768, 768))
"""m, n and k of products."""
FILTERS = (
    (64, 64, 3),
    (128, 128, 3),
    (256, 256, 3),
    (512, 512, 3),
    (64, 256, 1),
    (512, 2048, 1),
    (3, 64, 7),
    (48, 96, 5),
)
"""Input channels, output channels and rows of filters."""


@dataclass(frozen=True)
class Case:
    """A kernel by the beginning of its name, of a template with some knobs pinned; the bytes it reads and writes."""

    name: str
    work: Callable[[], Any]
    template: str
    pinned: Mapping[str, Any]
    kernel: str
    moved: int


def transforms() -> Iterator[Case]:
    """Filter transforms of Winograd's algorithm."""
    for layout in ("NCHW", "NHWC"):
        for n in CHANNELS:
            for m in (2, 4):
                yield Case(f"filters of {n} channels, F({m}), {layout}", conv(n, n, 3, layout), "cpu_winograd",
                           {"m": m}, "U", 4 * n * n * (9 + (m + 2) ** 2))  # fmt: skip


def conv(c: int, k: int, r: int, layout: str) -> Callable[[], Any]:
    return lambda: tir.ops.conv2d(n=1, c=c, h=14, w=14, k=k, r=r, s=r, pad=r // 2, layout=layout)


def packings() -> Iterator[Case]:
    """Packings of operands of products and of convolutions."""
    for m, n, k in PRODUCTS:
        for tb in (False, True):
            work = lambda m=m, n=n, k=k, tb=tb: tir.ops.matmul(m=m, n=n, k=k, tb=tb)  # noqa: E731
            yield Case(f"b of {m} x {n} x {k}{', transposed' * tb}", work, "cpu_tile_column", {"pack": "kernel"},
                       "b_packed", 8 * n * k)  # fmt: skip
    for m, n, k in PRODUCTS[:2]:
        work = lambda m=m, n=n, k=k: tir.ops.matmul(m=m, n=n, k=k, ta=True)  # noqa: E731
        yield Case(f"a of {m} x {n} x {k}, transposed", work, "cpu_tile_column", {"pack_a": 1}, "a_packed", 8 * m * k)
    for c, k, r in FILTERS:
        for layout in ("NCHW", "NHWC"):
            if r == 1 and layout == "NCHW":  # lanes are along pixels, and no filter is packed
                continue
            template = "cpu_tile_column" if layout == "NHWC" else "cpu_tile_turned"
            yield Case(f"{k} filters of {c} x {r} x {r}, {layout}", conv(c, k, r, layout), template,
                       {"pack": "kernel"}, "w_packed", 8 * c * k * r * r)  # fmt: skip


Timed = tuple[Callable[[], None], Callable[[], None]]
"""Enqueues a kernel; waits."""


def kernel(case: Case, device: Device) -> Timed:
    """The kernels of a case alone."""
    work = case.work()
    space = work.templates[case.template].space_for(device.target).pin(**case.pinned)
    f = work.schedule(space.default, template=case.template, target=device.target).build(device.name)
    bound = f.bind(*(aligned(a) for a in work.random_inputs(0)))
    own = [k for k in f.emitted.kernels if not k.once]
    steps = [step for k, step in zip(own, bound._steps, strict=True) if k.name.startswith(case.kernel)]
    if not steps:
        raise SystemExit(f"{case.name}: no kernel {case.kernel} among {', '.join(k.name for k in own)}")
    bound()

    def run() -> None:
        for step in steps:
            step()

    return run, bound.finish


def copy(moved: int, device: Device) -> Timed:
    """A copy of half of so many bytes."""
    n = math.ceil(moved / 8 / 16) * 16
    a = tir.placeholder((n,), name="a")
    f = tir.auto_schedule(tir.compute((n,), lambda i: a[i], name="b"), target=device.target).build(device.name)
    bound = f.bind(aligned(np.ones(n, "float32")))
    bound()
    return bound, bound.finish


def batch(timed: Timed, calls: int) -> tuple[float, float]:
    """Wall and processor seconds of one call, of so many in a row."""
    run, finish = timed
    wall, used = time.perf_counter(), time.process_time()
    for _ in range(calls):
        run()
    finish()
    return (time.perf_counter() - wall) / calls, (time.process_time() - used) / calls


def measured(case: Case, device: Device, rounds: int) -> dict[str, float]:
    """Least seconds of the kernel and of the copy, and their ratios."""
    both = kernel(case, device), copy(case.moved, device)
    calls = [max(1, int(BATCH_S / min(batch(t, 2)[0] for _ in range(4)))) for t in both]
    found = [[batch(t, n) for t, n in zip(both, calls, strict=True)] for _ in range(rounds)]
    (wall, used), (wall_copy, used_copy) = (
        tuple(min(r[which][clock] for r in found) for clock in (0, 1)) for which in (0, 1)
    )
    return {
        "bytes": case.moved,
        "seconds": wall,
        "copy_s": wall_copy,
        "ratio": wall / wall_copy,
        "ratio_processor": used / used_copy,
        "ratio_median": statistics.median(r[0][0] / r[1][0] for r in found),
    }


def summary(results: Mapping[str, Mapping[str, float]], cases: Sequence[Case]) -> dict[str, Any]:
    """Geometric mean and worst ratio, by wall and by processor time."""
    rows = [results[c.name] for c in cases if c.name in results]
    if not rows:
        return {}
    return {
        key: {
            "geomean": math.exp(statistics.fmean(math.log(r[key]) for r in rows)),
            "worst": max(r[key] for r in rows),
        }
        for key in ("ratio", "ratio_processor", "ratio_median")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0, help="of the order of cases")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = open_device(given.device)
    groups = {"transforms": list(transforms()), "packings": list(packings())}
    kept = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    results: dict[str, Any] = kept.get("results", {})
    order = [c for cases in groups.values() for c in cases]
    random.Random(given.seed).shuffle(order)
    print(f"seed {given.seed}, {device}")
    for case in order:
        if case.name in results:
            continue
        row = results[case.name] = measured(case, device, given.rounds)
        print(f"{case.name:46} {row['seconds'] * 1e6:10.1f} us  {row['ratio']:6.2f} of a copy "
              f"({row['ratio_processor']:.2f} of its processor time)", flush=True)  # fmt: skip
        if given.json:
            document = {"device": str(device), "date": time.strftime("%Y-%m-%d"), "seed": given.seed,
                        "rounds": given.rounds, "platform": platform.platform(), "environment": environment(),
                        "summary": {g: summary(results, cases) for g, cases in groups.items()},
                        "results": results}  # fmt: skip
            given.json.write_text(json.dumps(document, indent=1) + "\n")
    for group, cases in groups.items():
        print(group, json.dumps(summary(results, cases)))


if __name__ == "__main__":
    main()
