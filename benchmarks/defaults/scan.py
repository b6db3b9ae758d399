"""Cases by number, in processes that may end before them, with results in a file that the next call goes on with."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Case = Callable[[int], dict[str, Any]]
CHUNK = 50
"""Cases of one process: what they keep in memory goes with it."""
PATIENCE_S = 600.0
"""Seconds after which a case is taken to hang."""


def recorded(file: Path, seed: int) -> dict[int, dict[str, Any]]:
    """The last row of each case that was run with this seed."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {r["number"]: r for r in map(json.loads, lines) if r["seed"] == seed}


def compact(file: Path) -> None:
    """Leave the last row of each case, in the order of their numbers."""
    rows = {(r["seed"], r["number"]): line for line in file.read_text().splitlines() if (r := json.loads(line))}
    file.write_text("".join(f"{rows[key]}\n" for key in sorted(rows)))


def scan(case: Case, numbers: Iterable[int], file: Path, seed: int, seconds: float) -> None:
    """Run the cases ``numbers`` and append a row for each to ``file``, until ``seconds`` have passed."""
    end, left = time.monotonic() + seconds, list(numbers)
    while left and time.monotonic() < end:
        for row in _answers(case, left[:CHUNK], end):
            with file.open("a") as f:
                f.write(json.dumps({"seed": seed, **row}) + "\n")
            left.remove(row["number"])
            if row["status"] not in ("ok", "refused"):
                print(json.dumps(row), flush=True)
    if file.exists():
        compact(file)


def _answers(case: Case, numbers: list[int], end: float) -> Iterable[dict[str, Any]]:
    """The rows of some cases, made in a process of their own; the one that ends it has the status "crashed"."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_work, args=(case, numbers, theirs))
    process.start()
    theirs.close()
    try:
        for number in numbers:
            if time.monotonic() > end:
                return
            try:
                if not mine.poll(PATIENCE_S):
                    yield {"number": number, "status": "hangs", "detail": f"no answer for {PATIENCE_S:.0f} s"}
                    return
                yield mine.recv()
            except EOFError:
                process.join()
                yield {"number": number, "status": "crashed", "detail": f"exit status {process.exitcode}"}
                return
    finally:
        process.kill()
        process.join()


def _work(case: Case, numbers: list[int], out: Connection) -> None:
    for number in numbers:
        out.send({"number": number, **case(number)})


def told(rows: dict[int, dict[str, Any]]) -> str:
    """How many cases of each operator and template had which status, and all that are wrong."""
    counts = Counter((r.get("op", "?"), r.get("template", "?"), r["status"]) for r in rows.values())
    statuses = Counter(r["status"] for r in rows.values())
    lines = [f"{op:24}{template:20}{status:10}{n:6}" for (op, template, status), n in sorted(counts.items())]
    bad = [json.dumps(r) for r in rows.values() if r["status"] not in ("ok", "refused")]
    return "\n".join([*lines, f"{len(rows)} cases: {dict(statuses)}", *bad])
