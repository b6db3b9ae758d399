"""All rows of a run, in the process that holds the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from .building import Job
from .device import Broken, Device
from .problems import Problem
from .results import Json, Progress, Results
from .rows import Plan, Row

LISTED = 32
"""Rows whose configurations are listed while an earlier one is measured."""
AHEAD = 12
"""Rows whose programs are compiled meanwhile."""
MOST_OF_FAMILY = 4
"""Processes that kernels of one family may end, more than rows of it are right, before the others are left."""
DONE = "done"
NEW_PROCESS = 75
"""The status with which a process asks for another one: its device is broken."""


def run(problems: Sequence[Problem], device: Device, results: Results, plan: Plan, until: float) -> int:
    """Make the rows that are missing and keep each at once; no new one after ``until`` (seconds since 1970)."""
    todo = [p for p in problems if p.name not in results.done]
    families = {p.name: p.family for p in problems}
    progress = Progress(results.path)
    for at, problem in enumerate(todo):
        if time.time() >= until:
            print(f"out of time: {len(todo) - at} rows are left (--resume makes them)", flush=True)
            break
        progress.says(problem.name, None, "starting")
        _ahead(todo[at : at + LISTED], device, plan)
        given_up = _given_up(problem, results, families)
        try:
            row = Row(problem, device, plan, progress.says, results.crashes(problem.name), given_up).make()
        except Broken as error:
            last = progress.read()
            results.crashed(problem.name, last, str(error))
            print(f"crash   {problem.name}  {(last or {}).get('peer', '')} {error}", flush=True)
            return NEW_PROCESS
        results.add(row)
        print(line(row), flush=True)
    progress.says("", None, DONE)
    return int(any(row["status"] == "wrong" or row.get("wrong") for row in results.rows))


def _given_up(problem: Problem, results: Results, families: dict[str, str]) -> str:
    """Why a row is not made although it could be: its like ended too many processes. Each costs many seconds."""
    ended = [c for c in results.document["crashes"] if not c["peer"] and families.get(c["row"]) == problem.family]
    right = [r for r in results.rows if r["status"] == "exact" and families.get(r["name"]) == problem.family]
    if len(ended) < max(MOST_OF_FAMILY, len(right) + 1):
        return ""
    return f"given up: {len(ended)} kernels of its kind ended their process"


def _ahead(problems: Sequence[Problem], device: Device, plan: Plan) -> None:
    """Ask for lists of configurations, and for programs of the next rows; what fails here fails in its row."""
    device.list_ahead((p, plan.listed_of(p)) for p in problems)
    for problem in problems[:AHEAD]:
        with contextlib.suppress(Exception):
            found = device.listed(problem, plan.listed_of(problem), wait=False)
            if found is not None:
                template, configs = found
                device.ahead(Job(problem, template, c, problem.target(device.target)) for c in configs)


def line(row: Json) -> str:
    """One row for the terminal."""
    told = f"{row['status']:7} {row['name']}"
    tried = row["tried"]
    if row.get("reason"):
        told += f"  {row['reason']}"
    elif cold := row.get("cold"):
        told += "".join(f"  {name} {1e6 * figure['median_s']:.1f} us" for name, figure in cold.items())
    exact = sum(t["status"] == "exact" for t in tried)
    return f"{told}  ({exact} of {len(tried)} configurations exact, {row['wall_s']:.1f} s)"
