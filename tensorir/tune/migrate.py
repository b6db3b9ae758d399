"""Old logs in the present version of the schema (``log migrate``)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tensorir.tune import record
from tensorir.tune.log import may_grow, stamp_of, write_whole
from tensorir.tune.record import BadRecord, Entry, encode, migrated
from tensorir.tune.store import LogReader, refusal

KEPT = ".older"


def migrate(root: str | os.PathLike[str]) -> dict[str, object]:
    """Rewrite the segments that hold records of older versions; the original segments stay next to them.

    A time stays what it was: that of a record of version 1 names its estimator (``record.FIRST_ESTIMATOR``) from then
    on, and compares with its like only.

    Nothing is lost: newer and damaged lines are carried along as they are, the old segment is kept as
    ``….jsonl.older`` (no log reads it), and one that a live process may still append to is left alone. A second call
    finds nothing to do; so does one after a call that was killed, except for what that call had not come to.
    Raises LogError.
    """
    reader = LogReader(root)
    segments: dict[Path, list[Entry]] = {}
    stamps = {path: stamp_of(path) for path in reader.segments()} if record.MIGRATIONS else {}
    for entry in reader.entries() if stamps else ():
        segments.setdefault(entry.path, []).append(entry)
    done: dict[str, Any] = {"files": [], "kept": [], "migrated": 0, "failed": 0, "in_use": []}
    for path, entries in segments.items():
        if not any(map(_older, entries)):
            continue
        if may_grow(path) or stamp_of(path) != stamps[path]:
            done["in_use"].append(str(path))
            continue
        lines = [_line(e) for e in entries]
        done["migrated"] += sum(_older(e) and line is not None for e, line in zip(entries, lines, strict=True))
        done["failed"] += sum(line is None for line in lines)
        if not any(_older(e) and line is not None for e, line in zip(entries, lines, strict=True)):
            continue
        done["kept"].append(str(_keep(path)))
        write_whole(path, b"".join(e.raw if line is None else line for e, line in zip(entries, lines, strict=True)))
        done["files"].append(str(path))
    return done


def _older(entry: Entry) -> bool:
    """Whether a line is of an earlier version, one that is read as it is included."""
    return entry.older or (entry.record is not None and entry.record["v"] < record.VERSION)


def _line(entry: Entry) -> bytes | None:
    """The line to write in place of an entry's; None for an old one that is damaged in a way that only its age hid."""
    if not _older(entry):
        return entry.raw if entry.raw.endswith(b"\n") else entry.raw + b"\n"
    try:
        return encode(migrated(entry.raw))
    except BadRecord:
        return None


def _keep(path: Path) -> Path:
    """A second name for the segment as it is, which no reader takes for a segment."""
    for number in range(1000):
        kept = path.with_name(path.name + KEPT + (f"-{number}" if number else ""))
        try:
            os.link(path, kept)
        except FileExistsError:
            if os.path.samefile(path, kept):
                return kept  # a call that was killed in between
            continue
        except OSError:  # a file system without links
            shutil.copyfile(path, kept)
        return kept
    raise refusal(FileExistsError(), path)
