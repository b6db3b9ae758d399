"""All rows of a run, in the process that holds the device."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .building import Job, in_words
from .candidates import configurations
from .device import Broken, Device
from .problems import Problem
from .results import Json, Progress, Results
from .rows import Plan, Row

AHEAD = 6
"""Rows whose programs are compiled while an earlier one is measured."""
DONE = "done"
NEW_PROCESS = 75
"""The status with which a process asks for another one: its device is broken."""


def run(problems: Sequence[Problem], device: Device, results: Results, plan: Plan, until: float) -> int:
    """Make the rows that are missing and keep each at once; no new one after ``until`` (seconds since 1970)."""
    todo = [p for p in problems if p.name not in results.done]
    progress = Progress(results.path)
    listed: dict[str, list[Job]] = {}
    for at, problem in enumerate(todo):
        if time.time() >= until:
            print(f"out of time: {len(todo) - at} rows are left (--resume makes them)", flush=True)
            break
        _ahead(todo[at : at + AHEAD], device, plan, listed)
        progress.says(problem.name, None, "starting")
        try:
            row = Row(problem, device, plan, progress.says, results.crashes(problem.name)).make()
        except Broken as error:
            last = progress.read() or {}
            crash = {"row": problem.name, "config": last.get("config"), "reason": str(error)}
            results.document["crashes"].append(crash)
            results.save()
            return NEW_PROCESS
        results.add(row)
        print(line(row), flush=True)
    progress.says("", None, DONE)
    return int(any(row["status"] == "wrong" or row.get("wrong") for row in results.rows))


def _ahead(problems: Sequence[Problem], device: Device, plan: Plan, listed: dict[str, list[Job]]) -> None:
    """Ask for the first programs of some rows, again after compilers have ended; what fails here fails in its row.

    listed: those of rows that were asked for before, since spaces take long to list
    """
    for problem in problems:
        try:
            if problem.name not in listed:
                template, found = configurations(problem, device.target, plan.count_of(problem))
                listed[problem.name] = [Job(problem, template, c, device.target) for c in found]
            device.ahead(listed[problem.name])
        except Exception as error:
            print(f"{problem.name}: {in_words(error)}", flush=True)


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
