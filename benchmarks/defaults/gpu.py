"""Every default of the GPU's templates fits its target, and so do other configurations that their spaces call legal.

    python benchmarks/defaults/gpu.py                        # goes on with benchmarks/results/defaults_gpu.jsonl
    python benchmarks/defaults/gpu.py --count 100 --seed 7   # other shapes
    python benchmarks/defaults/gpu.py --seconds 500          # stops then; the next call goes on
    python benchmarks/defaults/gpu.py --bad                  # those again that were not right
    python benchmarks/defaults/gpu.py --told                 # only what the file says

Shapes are drawn (``drawn_shapes``), for one architecture each. The default of every template that suits the target is
scheduled, and its text emitted: threads, shared memory and blocks of a grid must be within the target's limits; the
same for a configuration of one of its spaces, drawn at random. No device and no compiler is needed. A row of the file
has what was drawn, for which target, and its status: "ok", "empty" (the template that a schedule starts with has no
legal configuration), "limit" (with the configuration and what it asks for) or "error"; "refused" where an operator
declares no such thing. Ends with status 1 if any configuration did not fit.
"""

from __future__ import annotations

import argparse
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

from drawn_shapes import drawn
from scan import recorded, scan, told

import tensorir as tir
from tensorir.api.workload import Template
from tensorir.errors import CompileError, DeclarationError, ScheduleError, TensorIRError
from tensorir.runtime.limits import check_source
from tensorir.target import Target
from tensorir.tune.template import suiting

RESULTS = Path(__file__).parents[1] / "results" / "defaults_gpu.jsonl"
TARGETS = ("cuda -arch=sm_75", "cuda -arch=sm_80", "cuda -arch=sm_86", "cuda -arch=sm_89", "cuda -arch=sm_90a",
           "cuda -arch=sm_100", "cuda -arch=sm_120", "opencl -kind=gpu")  # fmt: skip


def one(number: int, seed: int, others: int) -> dict[str, Any]:
    """What is told of the defaults of one shape, and of ``others`` configurations of one of its spaces."""
    op, given = drawn(seed, number, gpu=True)
    target = Target.parse(TARGETS[number % len(TARGETS)])
    row: dict[str, Any] = {"op": op, "given": given, "target": target.text}
    try:
        work = getattr(tir.ops, op)(**given)
    except DeclarationError as e:
        return {**row, "status": "refused", "detail": e.code}
    row["tried"] = 0
    row["template"] = work.template_for(target)
    rng = random.Random(f"{seed}/{number}/configurations")
    templates = dict(suiting(work.templates, target))
    chosen = rng.choice(list(templates))
    for name, template in templates.items():
        tried, found = judged(work, name, template, target, rng, others if name == chosen else 0)
        row["tried"] += tried
        if found.get("status") == "empty" and name != row["template"]:
            continue  # nothing starts with it, and tuning leaves it out
        if found:
            return {**row, "template": name, **found}
    return {**row, "status": "ok"}


def judged(
    work: tir.Workload, name: str, template: Template, target: Target, rng: random.Random, others: int
) -> tuple[int, dict[str, Any]]:
    """How many configurations of a template were tried, and what is wrong with the first that does not fit."""
    try:
        space = template.space_for(target)
        configs = [space.default]
        if others:
            configs += [space.config(rng.randrange(len(space.legal))) for _ in range(others)]
    except (DeclarationError, ScheduleError) as e:
        empty = e.code in ("space.empty", "template.target")  # the latter of a rule that suits other limits
        return 0, {"status": "empty" if empty else "error", "detail": str(e.problems[0])}
    for n, config in enumerate(configs):
        which = {"config": config, "default": n == 0}
        try:
            check_source(work.schedule(config, name, target).emitted(), target)
        except CompileError as e:
            return n, {**which, "status": "limit", "detail": str(e.problems[0])}
        except TensorIRError as e:
            limit = e.code.endswith("device-limit")
            return n, {**which, "status": "limit" if limit else "error", "detail": str(e.problems[0])}
        except Exception as e:  # one of ours, whatever it is
            return n, {**which, "status": "error", "detail": f"{type(e).__name__}: {e}"}
    return len(configs), {}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=5000, help="cases in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--others", type=int, default=1, help="configurations besides the defaults")
    parser.add_argument("--bad", action="store_true", help="run those again that were not right")
    parser.add_argument("--told", action="store_true", help="run nothing, only tell what the file has")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = recorded(given.results, given.seed)
    if given.bad:
        wanted = [n for n, r in rows.items() if r["status"] not in ("ok", "refused")]
    else:
        wanted = [n for n in range(given.count) if n not in rows]
    if not given.told:
        scan(partial(one, seed=given.seed, others=given.others), wanted, given.results, given.seed, given.seconds)
    rows = recorded(given.results, given.seed)
    print(told(rows))
    return int(any(r["status"] not in ("ok", "refused") for r in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
