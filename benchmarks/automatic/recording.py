"""Rows of operators on all targets, written to a file of results as they are made."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "automatic"), str(ROOT / "benchmarks")]

from judging import TARGETS  # noqa: E402
from measuring import environment  # noqa: E402

Row = dict[str, Any]


def recorded(
    names: Iterable[str], row_of: Callable[[str, str], Row], summary: Callable[[list[Row]], Row], result: Path
) -> None:
    """Make the rows of operators on all targets and write each; with ``--resume`` those that are not there yet."""
    parser = argparse.ArgumentParser(description=f"Record schedules of operators in {result.name}.")
    parser.add_argument("--resume", action="store_true", help="leave out the rows that are there")
    resumed = parser.parse_args().resume and result.exists()
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"] if resumed else []
    done = {(r["operator"], r["target"]) for r in rows}
    for name, target in itertools.product(names, TARGETS):
        if (name, target) not in done:
            rows.append(row_of(name, target))
            print(json.dumps(rows[-1]), flush=True)
            document = {"schema": 1, "environment": environment(), "summary": summary(rows), "rows": rows}
            result.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary(rows), indent=1))
