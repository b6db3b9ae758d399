"""Kernels that nobody scheduled, against those of TVM's MetaSchedule, on this machine's processor.

    python -m venv tvm
    tvm/bin/pip install apache-tvm==0.25.0.post1 apache-tvm-ffi==0.1.12 cloudpickle numpy psutil scipy xgboost
    python benchmarks/automatic/meta_schedule.py --tvm tvm/bin/python --trials 200 --ours 40

With a later apache-tvm-ffi that wheel does not load; the wheels of 0.26 and 0.27 end in MetaSchedule's first step.

For each problem TVM tunes ``--trials`` candidates (target llvm) in a process of its own, tensorir ``--ours`` of the
workload without templates (``tir.Workload(name, outputs)``), both on all cores. What TVM found is kept in ``--kept``,
and rows of other problems stay in the result, so that a run which was cut off continues. Results are compared with
NumPy's, then both are timed in turn in rounds of one slot each; ratios above 1 mean that ours takes less time. Where
none of TVM's candidates is built in the 30 seconds that its builder has for one, ours is timed in turn with a copy of
the input on all cores, which nothing that reads it all and writes as much can beat; means are without it. Medians
with 95 % intervals go to benchmarks/results/automatic_meta_schedule.json, with the machine's load.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks")]

from measuring import environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.estimate import middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "automatic_meta_schedule.json"
OVER, COPY = "tvm over ours", "copy over ours"
PROBLEMS: dict[str, dict[str, Any]] = {
    "matmul 512": {"name": "matmul", "shape": [512, 512, 512]},
    "BERT 128x768x768": {"name": "matmul", "shape": [128, 768, 768]},
    "conv 3x3, 64 channels, 56x56": {"name": "conv2d", "shape": [[1, 64, 56, 56], [64, 64, 3, 3]], "pad": 1},
    "conv 1x1, 1024 to 256, 14x14": {"name": "conv2d", "shape": [[1, 1024, 14, 14], [256, 1024, 1, 1]], "pad": 0},
    "depthwise 112x112x32": {"name": "conv2d", "shape": [[1, 32, 112, 112], [32, 1, 3, 3]], "pad": 1, "groups": 32},
    "softmax 1024x1024": {"name": "softmax", "shape": [1024, 1024]},
}


def declare(problem: dict[str, Any]) -> Any:
    """The problem in our language, without a schedule."""
    name, shape = problem["name"], problem["shape"]
    if name == "matmul":
        m, n, k = shape
        return tir.nn.matmul(tir.placeholder((m, k), name="a"), tir.placeholder((k, n), name="b"))
    if name == "softmax":
        return tir.nn.softmax(tir.placeholder(tuple(shape), name="x"), -1)
    x, w = (tir.placeholder(tuple(s), name=n) for s, n in zip(shape, "xw", strict=True))
    return tir.nn.conv2d(x, w, pad=problem["pad"], groups=problem.get("groups", 1))


class Peer:
    """The process that has TVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told = self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process with TVM ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self.answer()


@contextmanager
def peer(python: str, problem: dict[str, Any], trials: int, folder: str) -> Iterator[Peer]:
    """TVM's best of so many trials, in a process of its own."""
    command = [python, str(Path(__file__).with_name("tvm_worker.py")), json.dumps(problem), str(trials), folder]
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean) as process:
        yield Peer(process)
        assert process.stdin is not None
        print("end", file=process.stdin, flush=True)


def slot(call: Any, calls: int) -> float:
    """Seconds of one call, the mean of so many."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    call.finish()
    return (time.perf_counter() - began) / calls


def compared(title: str, args: argparse.Namespace) -> dict[str, Any]:
    """One row: both tuned, checked and timed in turn."""
    problem = PROBLEMS[title]
    work = tir.Workload(problem["name"], declare(problem))
    kept = args.kept / title.replace(" ", "_").replace(",", "")
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, peer(args.tvm, problem, args.trials, str(kept)) as other:
        made = work.tune(trials=args.ours, budget=None, log=folder)
        ours, given = work.load(log=folder), work.random_inputs(0)
        np.savez(f"{folder}/given.npz", *given)
        want = work.reference(*given)
        scale = float(np.abs(want).max())
        ran = other.told["ran"]
        for got in (ours(*given), *([np.load(other.ask(f"run {folder}/given.npz"))] if ran else [])):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * scale)
        bound = ours.bind(*given)
        calls = max(1, math.ceil(0.02 / seconds(bound, 3)))
        theirs = partial(other.ask, f"time {calls}") if ran else partial(slot, copied(given[0]), calls)
        ratio = interleaved(bound, theirs, calls, args.rounds)
        told = {"tvm": other.told, "template": made.best.template, "config": dict(made.best.config)}
    name = OVER if ran else COPY
    shown = f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    print(f"{title:32} {name} {shown}  {told['template']}", flush=True)
    of = {"problem": title, "trials": args.trials, "ours": args.ours}
    return {**of, name: ratio, "load": os.getloadavg(), **told}


def copied(given: np.ndarray) -> Any:
    """A bound call of a kernel that copies an input, on all cores."""
    x = tir.placeholder(given.shape, name="x")
    return tir.auto_schedule(tir.compute(given.shape, lambda *i: x[i], name="y"), "opencl").build().bind(given)


def interleaved(bound: Any, other: Callable[[], float], calls: int, rounds: int) -> dict[str, float]:
    """The other's time over ours, the median of rounds with its 95 % interval."""
    ratios = []
    for _ in range(rounds):
        ours = slot(bound, calls)
        ratios.append(other() / ours)
    return dict(zip(("ratio", "low", "high"), middle(ratios), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tvm", required=True, help="the Python of an environment with apache-tvm")
    parser.add_argument("--trials", type=int, default=200, help="of MetaSchedule")
    parser.add_argument("--ours", type=int, default=40, help="trials of ours")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--kept", type=Path, default=Path("tvm_databases"), help="folder for what TVM found")
    parser.add_argument("--only", default="", help="problems whose name has this")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = {r["problem"]: r for r in json.loads(args.out.read_text())["rows"]} if args.out.exists() else {}
    for title in PROBLEMS:
        if args.only in title:
            rows[title] = compared(title, args)
            logs = [math.log(r[OVER]["ratio"]) for r in rows.values() if OVER in r]
            mean = math.exp(sum(logs) / len(logs)) if logs else math.nan
            made = {"schema": 2, "environment": environment(), "rows": list(rows.values()), "geomean": mean}
            text = json.dumps(made, indent=1)
            args.out.write_text(text + "\n", encoding="utf-8")
    print(f"geometric mean {mean:.2f} of {len(logs)}")


if __name__ == "__main__":
    main()
