"""Results on disk: one JSON document that is whole after every row, and what is running right now beside it."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

Json = dict[str, Any]
SCHEMA = 1


def now() -> str:
    """The time in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def replace_file(path: Path, text: str) -> None:
    """Write a file that others see whole, old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


class Results:
    """The document of a run. rows: one for each problem; crashes: configurations that ended the process."""

    def __init__(self, path: Path, document: Json | None = None) -> None:
        self.path = path
        self.document: Json = document or {"schema": SCHEMA, "runs": [], "crashes": [], "rows": []}

    @classmethod
    def load(cls, path: Path) -> Results:
        """An earlier run's, or an empty one."""
        return cls(path, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None)

    @property
    def rows(self) -> list[Json]:
        rows: list[Json] = self.document["rows"]
        return rows

    @property
    def done(self) -> set[str]:
        """Names of the problems that have a row."""
        return {row["name"] for row in self.rows}

    def crashes(self, name: str) -> list[Json]:
        """What ended the process in the row of this name: {"row", "config" or None, "peer" or "", "reason"}."""
        return [c for c in self.document["crashes"] if c["row"] == name]

    def crashed(self, row: str, last: Json | None, reason: str) -> None:
        """Note what ended a process. last: what it said it was at"""
        at = last or {}
        crash = {"row": row, "config": at.get("config"), "peer": at.get("peer", ""), "reason": reason}
        self.document["crashes"].append(crash)
        self.save()

    def add(self, row: Json) -> None:
        self.rows.append(row)
        self.save()

    def save(self) -> None:
        replace_file(self.path, json.dumps(self.document, indent=1, allow_nan=False) + "\n")


class Progress:
    """A small file that says what is running; its age tells whether anything still moves."""

    def __init__(self, results: Path) -> None:
        self.path = results.with_name(results.name + ".running")

    def says(self, row: str, config: Json | None = None, doing: str = "", peer: str = "") -> None:
        """``row`` is at ``config`` (None: at none in particular), or waits for a library."""
        replace_file(self.path, json.dumps({"row": row, "config": config, "doing": doing, "peer": peer}))

    def read(self) -> Json | None:
        """What ran last; None where nothing did."""
        try:
            found: Json = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def age_s(self) -> float:
        """Seconds since it said something; 0 where it never did."""
        try:
            return max(0.0, datetime.datetime.now().timestamp() - self.path.stat().st_mtime)
        except OSError:
            return 0.0

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
