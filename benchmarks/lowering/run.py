"""Processor time of the compiler's own work, alone or against another tree: lowering, printing, planning, checking.

    python benchmarks/lowering/run.py                                # every row, this tree alone
    python benchmarks/lowering/run.py --against ../before            # and a worktree of another commit, in turns
    python benchmarks/lowering/run.py --row 'matmul|products' --runs 5
    python benchmarks/lowering/run.py --against ../before --save rows.jsonl   # measured rows are kept, and go on there

Rows of lowering print the default schedule of an operator, the least of --runs lowerings in each of --rounds processes;
with --against, both trees print the schedule that is the default of the tree before.
Rows of planning schedule a definition by rules, or check it, once in each of --rounds processes, which have scheduled
something small before: nothing is remembered from one round to the next. Seconds are of the process's own processor
time, the least over all rounds. Trees take turns, so that what else the machine does meets both. Nothing is drawn: the
programs and the inputs of checks are the same each time (seed 0).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CPU = "opencl -registers=32 -vector_bytes=64"
Seconds = dict[str, float]


def default(op: str, target: str, template: str, **sizes: Any) -> tuple[Any, str]:
    """An operator, and the trace of its default schedule as JSON."""
    import tensorir as tir

    work = getattr(tir.ops, op)(**sizes)
    return work, work.schedule(target=target, **({"template": template} if template else {})).trace.to_json()


def printed(op: str, target: str, template: str, runs: int, trace: str = "", **sizes: Any) -> Seconds:
    """Seconds for lowering and for printing an operator's schedule (its default or a ``trace``), each the least of some
    runs.
    """
    import tensorir as tir
    from tensorir.codegen.cfamily import emit
    from tensorir.lower.pipeline import lower

    work, own = default(op, target, template, **sizes) if not trace else (getattr(tir.ops, op)(**sizes), trace)
    schedule = tir.replay(work.outputs, own, target)
    notes = str(schedule.trace).splitlines()
    best = {"lower": float("inf"), "print": float("inf")}
    for _ in range(runs):
        start = time.process_time()
        module = lower(schedule.program, schedule.target)
        middle = time.process_time()
        emit(module, schedule.target, notes)
        end = time.process_time()
        best = {"lower": min(best["lower"], middle - start), "print": min(best["print"], end - middle)}
    return {**best, "total": sum(best.values())}


def chain(sort: str, stages: int) -> Any:
    """Stages each of which reads the one before: pointwise, products of matrices, or stencils of three points."""
    import tensorir as tir

    x = tir.placeholder((128, 256), name="X")
    for n in range(stages):
        if sort == "pointwise":
            x = tir.compute(x.shape, lambda i, j, x=x: x[i, j] * 1.01 + 0.5, name=f"S{n}")
        elif sort == "products":
            w, k = tir.placeholder((256, 256), name=f"W{n}"), tir.reduce_axis(256, name="k")
            x = tir.compute(x.shape, lambda i, j, x=x, w=w, k=k: tir.sum(x[i, k] * w[k, j], axis=k), name=f"S{n}")
        else:
            x = tir.compute(
                x.shape,
                lambda i, j, x=x: x[i, tir.maximum(j - 1, 0)] + x[i, j] + x[i, tir.minimum(j + 1, 255)],
                name=f"S{n}",
            )
    return x


def planned(sort: str, stages: int, runs: int, check: bool = False) -> Seconds:
    """Seconds for scheduling a chain by rules, or for checking its schedule."""
    import tensorir as tir

    for small in ("pointwise", "products"):  # modules that are imported when they are needed
        tir.auto_schedule(chain(small, 2), target="c")
    result = chain(sort, stages)
    start = time.process_time()
    schedule = tir.auto_schedule(result, target="c")
    middle = time.process_time()
    if not check:
        return {"total": middle - start}
    assert schedule.check(seed=0)
    return {"total": time.process_time() - middle}


HOPPER = "cuda -arch=sm_90a"
CONV = {"n": 1, "c": 64, "h": 56, "w": 56, "k": 64, "r": 3, "s": 3, "pad": 1}
MATMUL = {"m": 1024, "n": 1024, "k": 1024}
WINOGRAD = {"n": 1, "c": 128, "h": 28, "w": 28, "k": 128, "r": 3, "s": 3, "pad": 1, "prepack": True}
WGMMA = {"m": 4096, "n": 4096, "k": 4096, "tb": True, "dtype": "bfloat16"}
WGMMA_CONV = {"n": 16, "c": 64, "h": 56, "w": 56, "k": 64, "pad": 1, "layout": "NHWC", "dtype": "bfloat16"}
ROWS: dict[str, partial[Seconds]] = {
    "print conv2d opencl": partial(printed, "conv2d", "opencl", "", **CONV),
    "print conv2d cuda": partial(printed, "conv2d", "cuda -arch=sm_80", "", **CONV),
    "print matmul opencl": partial(printed, "matmul", "opencl", "", **MATMUL),
    "print matmul cuda": partial(printed, "matmul", "cuda -arch=sm_80", "", **MATMUL),
    "print matmul hopper": partial(printed, "matmul", HOPPER, "", **WGMMA),
    "print conv2d hopper": partial(printed, "conv2d", HOPPER, "", **WGMMA_CONV),
    "print winograd NCHW": partial(printed, "conv2d", CPU, "cpu_winograd", **WINOGRAD, layout="NCHW"),
    "print winograd NHWC": partial(printed, "conv2d", CPU, "cpu_winograd", **WINOGRAD, layout="NHWC"),
    "plan 50 pointwise": partial(planned, "pointwise", 50),
    "plan 200 pointwise": partial(planned, "pointwise", 200),
    "plan 50 products": partial(planned, "products", 50),
    "plan 50 stencils": partial(planned, "stencils", 50),
    "check 50 stencils": partial(planned, "stencils", 50, check=True),
}


def child(row: str, tree: Path, *options: str, given: str = "") -> str:
    """The last line of a new process, which imports the package of a tree and reads what is given."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--child", row, *options]
    made = subprocess.run(command, env=environment, input=given, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"{row} in {tree}:\n{made.stderr[-2000:]}")
    return made.stdout.splitlines()[-1]


def work_of(row: str, runs: int, trace_only: bool) -> str:
    """A row's seconds as JSON, or the trace that it prints as JSON; a trace on standard input is its schedule."""
    do = ROWS[row]
    if trace_only:
        return json.dumps(default(*do.args, **do.keywords)[1])
    trace = sys.stdin.read()
    return json.dumps(do(runs=runs, **({"trace": trace} if trace else {})))


def best(rounds: list[Seconds]) -> Seconds:
    """The least of each part."""
    return {part: min(r[part] for r in rounds) for part in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="TREE", help="checkout of the tree before")
    parser.add_argument("--row", default="", metavar="REGEX", help="rows whose names this finds")
    parser.add_argument("--runs", type=int, default=20, help="lowerings in a process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each tree for a row")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep each measurement there, and go on from it")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(work_of(given.child, given.runs, given.trace))
        return
    trees = {"before": given.against.resolve(), "now": ROOT} if given.against else {"now": ROOT}
    known: dict[tuple[str, str], list[Seconds]] = {}
    if given.save and given.save.exists():
        for line in given.save.read_text().splitlines():
            one = json.loads(line)
            known.setdefault((one["row"], one["tree"]), []).append(one["seconds"])
    for row in (r for r in ROWS if re.search(given.row, r)):
        shared = given.against and ROWS[row].func is printed
        trace = json.loads(child(row, trees["before"], "--trace")) if shared else ""
        for n in range(given.rounds):
            for name, tree in trees.items():
                if len(known.setdefault((row, name), [])) > n:
                    continue
                found = json.loads(child(row, tree, "--runs", str(given.runs), given=trace))
                known[row, name].append(found)
                if given.save:
                    with given.save.open("a") as file:
                        file.write(json.dumps({"row": row, "tree": name, "seconds": found}) + "\n")
        least = {name: best(known[row, name]) for name in trees}
        now = least["now"]
        parts = ", ".join(f"{part} {1e3 * s:.1f}" for part, s in now.items() if part != "total")
        text = f"{row:20s} {1e3 * now['total']:8.1f} ms" + (f" ({parts})" if parts else "")
        if "before" in least:
            was = least["before"]["total"]
            text += f"  before {1e3 * was:8.1f} ms, {now['total'] / was:.2f} of it"
        print(text, flush=True)


if __name__ == "__main__":
    main()
