"""The device of C against PoCL, over the workloads of benchmarks/cpu, interleaved.

python benchmarks/frameworks/c_device.py                              # defaults: eight minutes or so, five with a cache
python benchmarks/frameworks/c_device.py --only 'dw_|skinny' --rounds 3
python benchmarks/frameworks/c_device.py --tune 5s                    # each device tunes each workload first

Every device builds the default schedule (or the best that it found, with ``--tune``) and computes on the same
arrays; results are compared with each other before the clock runs. Rounds alternate in their order; a slot is several
batches of calls with one wait at a batch's end, and the figure of a round is the median of its batches. Printed are
PoCL's time over each C compiler's, the geometric means over all workloads and over those that take less than 100 us
(there, once more with a wait after each call), with 95 % intervals by a bootstrap over rounds; the result is written as
JSON with its environment. The status is 1 where a result differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cpu"))
from versus import ours, stats
from versus.environment import environment, now, stolen
from versus.shapes import Conv, Problem, chosen, to_json

import tensorir as tir
from tensorir.runtime.device import Device, devices, open_device
from tensorir.tune.template import suiting

RESULTS = Path(__file__).resolve().parents[1] / "results" / "c_device.json"
SMALL_S = 100e-6
FLOORS = {"all": (0.95, 1.03), "small": (1.2, 1.5)}
"""Floor and goal of each figure."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time the device of C against PoCL.")
    add = parser.add_argument
    add("--only", metavar="REGEX", help="workloads whose names this finds")
    add("--layout", choices=("NCHW", "NHWC"), default="NCHW", help="of convolutions")
    add("--device", action="append", metavar="NAME", help="c:0, c:clang …; all compilers that are here without it")
    add("--tune", metavar="BUDGET", help="tune each workload on each device first, for 5s, 1m …")
    add("--log", default="benchmarks/tuning_logs", metavar="DIR", help="where tuned configurations go")
    add("--rounds", type=int, default=7)
    add("--slot", type=float, default=0.03, help="seconds of a slot")
    add("--batch", type=float, default=0.003, help="seconds of calls between two waits")
    add("--rest", type=float, default=0.005, help="seconds before a slot, until the other's threads sleep")
    add("--json", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args()


class Run:
    """One workload on one device: how to call it, and what a call takes."""

    def __init__(self, work: Any, device: Device, arrays: tuple[Any, ...], options: argparse.Namespace) -> None:
        if options.tune:
            work.tune(device.name, budget=options.tune, log=options.log)
            made, self.about = ours.built(work, ours.VARIANTS["timed"], device, options.log)
        else:
            template, space = next((n, t.space_for(device.target)) for n, t in suiting(work.templates, device.target))
            made = work.schedule(space.default, template, device.target).build(device)
            self.about = {"origin": "default", "template": template, "config": dict(space.default)}
        self.out = tir.empty(work.outputs[0].shape)
        self.bound = made.bind(*arrays, out=self.out)
        self.bound()
        self.bound.wait()

    def batch(self, calls: int, each: bool = False) -> float:
        """Seconds of a call; each: with a wait after every one of them."""
        bound, finish = self.bound, self.bound.finish
        began = time.perf_counter()
        for _ in range(calls):
            bound()
            if each:
                finish()
        finish()
        return (time.perf_counter() - began) / calls

    def slot(self, options: argparse.Namespace, each: bool = False) -> float:
        """The median of the batches of a slot, in seconds of a call."""
        time.sleep(options.rest)
        self.batch(2, each)  # threads awake
        calls = max(1, min(10000, int(options.batch / max(self.batch(2, each), 1e-7))))
        end, found = time.perf_counter() + options.slot, list[float]()
        while not found or time.perf_counter() < end:
            found.append(self.batch(calls, each))
        return float(np.median(found))


def arrays_of(work: Any, problem: Problem) -> tuple[Any, ...]:
    rng, made = np.random.default_rng(0), []
    for t in work.inputs:
        array = tir.empty(t.shape)
        array[...] = rng.standard_normal(t.shape, dtype=np.float32)
        made.append(array)
    return tuple(made)


def compared(problem: Problem, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """The rounds of every device on one workload."""
    layout = options.layout if isinstance(problem, Conv) else ""
    work = ours.workload(problem, layout, ours.VARIANTS["timed"])
    arrays = arrays_of(work, problem)
    runs = {name: Run(work, open_device(name), arrays, options) for name in names}
    first = runs[names[0]].out
    most = float(np.abs(first).max())
    wrong = [n for n, r in runs.items() if not np.abs(r.out - first).max() <= 1e-4 * most]
    small = min(r.batch(20) for r in runs.values()) < SMALL_S
    row: dict[str, Any] = {"problem": to_json(problem), "layout": layout, "wrong": wrong, "small": small}
    row["about"] = {n: r.about for n, r in runs.items()}
    for kind, each in (("batches", False), ("waits", True)) if small else (("batches", False),):
        rounds = {n: list[float]() for n in names}
        for n in range(options.rounds):
            for name in names if n % 2 == 0 else names[::-1]:
                rounds[name].append(runs[name].slot(options, each))
        row[kind] = rounds
    return row


def figures(rows: list[dict[str, Any]], names: list[str]) -> dict[str, Any]:
    """PoCL's time over that of each C device: geometric means with their intervals."""
    found: dict[str, Any] = {}
    for name in names[1:]:

        def pairs(keep: Callable[[dict[str, Any]], bool], kind: str, name: str = name) -> list[Any]:
            return [(r[kind][names[0]], r[kind][name]) for r in rows if keep(r) and kind in r]

        for figure, kept, kind in (
            ("all", pairs(lambda r: True, "batches"), "batches"),
            ("small", pairs(lambda r: r["small"], "batches"), "batches"),
            ("small, each waited for", pairs(lambda r: r["small"], "waits"), "waits"),
        ):
            if kept:
                found[f"{name} {figure}"] = {**asdict(stats.geomean_of(kept)), "workloads": len(kept), "kind": kind}
    return found


def line(row: dict[str, Any], names: list[str]) -> str:
    def times(kind: str) -> str:
        pocl = row[kind][names[0]]
        text = [f"{stats.median_of(pocl).value * 1e6:9.1f} us"]
        for name in names[1:]:
            text += [f"{stats.ratio(pocl, row[kind][name]).value:6.3f}"]
        return "  ".join(text)

    waited = f"   waited {times('waits')}" if "waits" in row else ""
    return f"{row['problem']['name']:28} {times('batches')}{waited}{'   DIFFERS' if row['wrong'] else ''}"


def main() -> int:
    options = arguments()
    here = [d.name for d in devices() if d.language == "c" and d.usable]
    names = [open_device("opencl:pocl").name, *(options.device or here)]
    found = {"environment": environment(), "settings": {k: str(v) for k, v in vars(options).items() if k != "json"}}
    found |= {"devices": {n: open_device(n).identity for n in names}, "rows": []}
    rows: list[dict[str, Any]] = found["rows"]
    print(f"{'PoCL':>38}  {'  '.join(names[1:])}: PoCL's time over C's", flush=True)
    for problem in chosen(options.only):
        rows.append(compared(problem, names, options))
        print(line(rows[-1], names), flush=True)
    found["figures"] = figures(rows, names)
    found["environment"] |= {"ended": now(), "stolen_s": stolen() - found["environment"]["stolen_s"]}
    for name, figure in found["figures"].items():
        floor = next((f"floor {FLOORS[k][0]}, goal {FLOORS[k][1]}" for k in FLOORS if name.endswith(f" {k}")), "")
        interval = f"[{figure['low']:.3f}, {figure['high']:.3f}]"
        print(f"{name:32} {figure['value']:.3f} {interval} of {figure['workloads']}  {floor}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(r["wrong"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
