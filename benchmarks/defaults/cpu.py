"""Every default of the CPU's templates passes its check, and computes what the reference does.

    python benchmarks/defaults/cpu.py                        # goes on with benchmarks/results/defaults_cpu.jsonl
    python benchmarks/defaults/cpu.py --count 100 --seed 7   # other shapes
    python benchmarks/defaults/cpu.py --seconds 500          # stops then; the next call goes on
    python benchmarks/defaults/cpu.py --bad                  # those again that were not right
    python benchmarks/defaults/cpu.py --told                 # only what the file says

Shapes are drawn (``drawn_shapes``): small and awkward ones of every operator. Each default is checked (``s.check()``),
built for the OpenCL device (without its compiler's optimisations, which compute the same and take most of the time,
unless --optimised) and run between canaries on small whole numbers; results are those of the operator's reference in
NumPy: to the last bit, but for what rounds (activations, and algorithms with an error of their own).
A row of the file has what was drawn, with which template and configuration, and its status: "ok", "check" (with the
problem), "build", "wrong" or "error"; "refused" where an operator declares no such thing. Ends with status 1 if any
default was not right.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from drawn_shapes import drawn
from scan import recorded, scan, told

import tensorir as tir
from tensorir.check.exact_inputs import exactly
from tensorir.check.verdict import compare_results
from tensorir.errors import DeclarationError, TensorIRError
from tensorir.interp.reference import random_arguments, results_of
from tensorir.runtime.device import open_device
from tensorir.runtime.launch import CompiledProgram

RESULTS = Path(__file__).parents[1] / "results" / "defaults_cpu.jsonl"


def one(number: int, seed: int, device: str) -> dict[str, Any]:
    """What is told of one default."""
    op, given = drawn(seed, number)
    row: dict[str, Any] = {"op": op, "given": given}
    try:
        work = getattr(tir.ops, op)(**given)
    except DeclarationError as e:
        return {**row, "status": "refused", "detail": e.code}
    try:
        row |= judged(work, device)
    except TensorIRError as e:
        return {**row, "status": "error", "detail": str(e.problems[0])}
    except Exception as e:  # one of ours, whatever it is
        return {**row, "status": "error", "detail": f"{type(e).__name__}: {e}"}
    return row


def judged(work: tir.Workload, device: str) -> dict[str, Any]:
    """The check of a workload's default for this device, and its run."""
    opened = open_device(device)
    template = work.template_for(opened.target)
    config = work.templates[template].space_for(opened.target).default
    row = {"template": template, "config": config}
    s = work.schedule(config, template, opened.target)
    verdict = s.check()
    if not verdict:
        return {**row, "status": "check", "detail": str(verdict)}
    problem = ran(work, template, s, opened)
    return {**row, "status": "wrong", "detail": problem} if problem else {**row, "status": "ok"}


def ran(work: tir.Workload, template: str, s: Any, device: Any) -> str:
    """What is wrong with a run on small whole numbers, in words; nothing where all is right."""
    program = CompiledProgram(s.emitted(), device, cache=False)
    arrays = random_arguments(s.outputs, 1)
    got, problems = program.run_guarded(*arrays)
    if problems:
        return str(problems[0])
    want, results = work.reference(*arrays), results_of(got)
    allowed = work.allowed_error(template)
    if allowed is None:
        exact = exactly(s.outputs, program.source, arrays)
        return "" if (found := compare_results(s.outputs, results, (want,), exact)) else str(found)
    apart = float(np.abs(results[0].astype(np.float64) - want).max())
    most = allowed * float(np.abs(want).max())
    return "" if apart <= most else f"off by {apart:.3g}, {most:.3g} is allowed"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000, help="cases in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--device", default="opencl:pocl")
    parser.add_argument("--optimised", action="store_true", help="with the compiler's optimisations, as users build")
    parser.add_argument("--bad", action="store_true", help="run those again that were not right")
    parser.add_argument("--told", action="store_true", help="run nothing, only tell what the file has")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not given.optimised:
        os.environ["PYOPENCL_BUILD_OPTIONS"] = "-cl-opt-disable"
    rows = recorded(given.results, given.seed)
    if given.bad:
        wanted = [n for n, r in rows.items() if r["status"] not in ("ok", "refused")]
    else:
        wanted = [n for n in range(given.count) if n not in rows]
    if not given.told:
        case = partial(one, seed=given.seed, device=given.device)
        scan(case, wanted, given.results, given.seed, given.seconds)
    rows = recorded(given.results, given.seed)
    print(told(rows))
    return int(any(r["status"] not in ("ok", "refused") for r in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
