"""Queries on a tuning log: best configurations, listings, statistics, verification, merging."""

from __future__ import annotations

import hashlib
import math
import os
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tensorir.codec import Json
from tensorir.errors import refuse
from tensorir.runtime.machine import ProcessorLoad
from tensorir.tune.brief import Brief, whole
from tensorir.tune.circumstances import TIMEOUTS, Limits, open_again
from tensorir.tune.ranking import REPEAT_RATIO, RankedRecord, choose, key_of, passed
from tensorir.tune.record import BadRecord, LogLine, Record, RunIdentity, Setting, encode, key_text, relevant, slug
from tensorir.tune.selection import contenders
from tensorir.tune.store import LogError, LogReader, LogWriter, host_name, refusal

__all__ = [
    "REPEAT_RATIO",
    "BadRecord",
    "LogError",
    "LogReader",
    "LogWriter",
    "RankedRecord",
    "Record",
    "RunIdentity",
    "best",
    "choose",
    "compact",
    "freeze",
    "identity_of",
    "key_of",
    "listing",
    "may_grow",
    "merge",
    "passed",
    "peers",
    "show",
    "slug",
    "stamp_of",
    "stats",
    "usable",
    "verify",
    "write_merged",
    "write_whole",
]

_STALE_DAY = 86_400.0


def identity_of(record: Setting) -> str:
    """Key of comparable records: workload, computation, device, driver and versions, as JSON text."""
    device = record.device
    key = [record.workload, record.compute, device["name"], device["driver"], relevant(record.versions)]
    return key_text(key)


def usable(
    records: Iterable[Record], identity: RunIdentity, limits: Limits | None = None, own: Collection[str] = ()
) -> list[Record]:
    """The trials that need no second measurement, the latest of each configuration: accepted by ``identity`` (same
    computation, device, versions) and no failure that may not recur.

    limits: current ones; failures under lower limits are left out (``circumstances.open_again``)
    own:    ids of trials of this run, always included

    A success outranks a later timeout.
    """
    found = [
        r for r in records if r.kind == "trial" and (r.id in own or not open_again(r, limits)) and identity.accepts(r)
    ]
    found.sort(key=lambda r: (r.status not in TIMEOUTS, r.started, r.id))
    return list({key_of(r): r for r in found}.values())


def best(
    reader: LogReader, *, workload: str | None = None, compute: str | None = None, per_template: bool = False
) -> list[RankedRecord]:
    """The fastest usable configuration for each (workload, computation, device, driver, versions), latest first.

    per_template: True for the fastest of each template as well
    Lines that are damaged, forged or of another version never take part; ``reader`` has their count afterwards.
    """
    return _winners(
        reader.brief(),
        lambda run: workload in (None, run.workload) and compute in (None, run.compute),
        per_template,
    )


def _winners(known: Brief, wanted: Callable[[Setting], bool], per_template: bool = False) -> list[RankedRecord]:
    runs: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for number, run in known.runs():
        if wanted(run):
            runs[identity_of(run), run.template if per_template else None].append(number)
    masks = (np.isin(known.columns["group"], numbers) for numbers in runs.values())
    ranked = (choose(known.records(contenders(known, mask, 1))) for mask in masks)
    winners = [replace(c, record=whole(c.record), timed=whole(c.timed)) for c, *_ in filter(None, ranked)]
    return sorted(winners, key=lambda c: (c.record.started, c.record.id), reverse=True)


def peers(reader: LogReader) -> list[Record]:
    """Final-round records that carry the timing of a vendor library, fully decoded, in order of lines."""
    known = reader.brief()
    return list(map(whole, known.records(np.flatnonzero(known.columns["peer"]))))


def freeze(
    reader: LogReader, workloads: Sequence[str] = (), regenerate: Callable[[Record], str | None] | None = None
) -> tuple[list[RankedRecord], list[str]]:
    """(choices that ``load`` makes now, ids of faster but stale records), for pinning by ``tune.frozen``.

    One choice per workload, definition, device, limits, driver and versions: the fastest usable configuration, except
    that records whose source this version no longer generates are skipped as stale.

    regenerate: SHA-256 of the source that this version makes for a record; None if it cannot tell
    workloads:  titles; all of the log when empty
    """
    groups: dict[tuple[str, str | None], list[Record]] = defaultdict(list)
    for record in reader.records():
        if not workloads or record.workload in workloads:
            groups[identity_of(record), record.device.get("target")].append(record)
    found, stale = [], []
    for group in groups.values():
        for choice in choose(group):
            digest = None if regenerate is None else regenerate(choice.record)
            if digest in (None, choice.record.source_sha256):
                found.append(choice)
                break
            stale.append(choice.record.id)
    return sorted(found, key=lambda c: (c.record.workload, c.record.id)), stale


def listing(reader: LogReader) -> list[Json]:
    """One dict per workload and device, for ``log ls``: number of trials and of ok ones, best seconds, last time."""
    rows: dict[tuple[str, str], Json] = {}
    known = reader.brief()
    for number, run in known.runs():
        mine = known.columns["group"] == number
        key = (run.workload, run.device["name"])
        row = rows.setdefault(
            key,
            {
                "workload": key[0],
                "device": key[1],
                "folder": slug(key[0]),
                "trials": 0,
                "ok": 0,
                "best_s": None,
                "last": "",
            },
        )
        row["last"] = max(row["last"], max(known.columns["started"][mine].tolist()).decode("ascii"))
        trials = mine & (known.columns["final"] == 0)
        row["trials"] += int(trials.sum())
        row["ok"] += int((trials & known.has_status("ok")).sum())
    for c in _winners(known, lambda _: True):  # of several drivers or versions
        row = rows[c.record.workload, c.record.device["name"]]
        row["best_s"] = min(row["best_s"] or math.inf, c.time_s)
    return sorted(rows.values(), key=lambda row: (row["workload"], row["device"]))


def show(reader: LogReader, name: str) -> list[Record]:
    """The records whose id starts with ``name``, and the final measurements of those (``log show``); [] for ""."""
    known = reader.brief()
    if not name:
        return []
    known.read("rest", known.columns["rest"])
    of = [n for n in range(len(known.words["rest"])) if str(known.rest(n).get("of", "")).startswith(name)]
    found = np.char.startswith(known.columns["id"], name.encode("utf-8")) | np.isin(known.columns["rest"], of)
    return list(map(whole, known.records(np.flatnonzero(found))))


def stats(reader: LogReader) -> dict[str, object]:
    """Counts over a whole log as a dict, for ``log stats``: records, statuses, workloads, devices, estimators, …."""
    statuses: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    workloads: set[str] = set()
    devices: set[str] = set()
    estimators: Counter[str] = Counter()
    finals, busy, spread = 0, 0, []
    for record in reader.records():
        workloads.add(record.workload)
        devices.add(record.device["name"])
        flags.update(record.flags or ())
        finals += record.kind == "final"
        if record.kind == "trial":
            statuses[record.status] += 1
        if record.time_s is not None:
            estimators[record.estimator] += 1
            busy += ProcessorLoad.of(record.load).disturbed
            low, high = record.span
            spread.append((high - low) / record.steady_s)
    return {
        "segments": len(reader.segments()),
        "workloads": len(workloads),
        "devices": sorted(devices),
        "trials": sum(statuses.values()),
        "finals": finals,
        "counts": dict(statuses.most_common()),
        "flags": dict(flags),
        "estimators": dict(estimators.most_common()),
        "busy": busy,
        "median_spread": statistics.median(spread) if spread else None,
        "damaged": reader.damaged,
        "other_versions": reader.other,
        "duplicates": reader.duplicates,
    }


def verify(reader: LogReader, regenerate: Callable[[Record], str | None] | None = None) -> dict[str, object]:
    """Dict of counts and of stale ids after checking every line, and every source when ``regenerate`` is given (``log
    verify``).

    regenerate: the SHA-256 of the source that this version makes for a record; None when it cannot
                tell (an operator of another project). A difference makes the record *stale*.
    """
    count, stale, unknown = 0, [], 0
    for record in reader.records():
        count += 1
        if regenerate is None or record.source_sha256 is None:
            continue
        digest = regenerate(record)
        unknown += digest is None
        if digest is not None and digest != record.source_sha256:
            stale.append(record.id)
    return {
        "ok": not reader.damaged and not stale,
        "records": count,
        "damaged": reader.damaged,
        "other_versions": reader.other,
        "duplicates": reader.duplicates,
        "stale": stale,
        "unknown": unknown,
        "findings": [{"file": str(f.path), "line": f.line, "reason": f.reason} for f in reader.findings],
    }


def merge(sources: Sequence[str | os.PathLike[str]], destination: str | os.PathLike[str]) -> dict[str, object]:
    """Write the union of several logs below ``destination``, one segment per workload (``log merge``).

    Commutative and idempotent: the same records give the same file names and bytes in any order.
    Lines of other versions are carried along unread; damaged ones stay where they are. Returns {"files", "records",
    "damaged", "other_versions"}: paths written, and counts. Raises LogError ``log.unreadable`` for a missing source.
    """
    for source in sources:
        if not Path(source).exists():
            raise refuse(LogError, "log.unreadable", f"there is no tuning log {source}")
    readers = [LogReader(source) for source in sources]
    entries = [entry for reader in readers for entry in reader.entries()]
    written = write_merged(entries, Path(destination))
    return {
        "files": [str(p) for p in written],
        "records": len(union(entries)),
        "damaged": sum(e.damaged for e in entries),
        "other_versions": sum(e.other for e in entries),
    }


def compact(root: str | os.PathLike[str]) -> dict[str, object]:
    """Replace the finished segments of each workload by one sorted segment (``log compact``).

    Segments that a live process may still append to are left alone. One with damaged lines is
    renamed to ``….damaged`` instead of being removed: a person may still rescue them. Returns {"files", "replaced",
    "records", "kept_damaged"}: paths written and removed or renamed, and counts.
    """
    reader = LogReader(root)
    before = {path: stamp_of(path) for path in reader.segments() if not may_grow(path)}
    entries = [entry for entry in reader.entries() if entry.path in before]
    written = set(write_merged(entries, Path(root)))
    hurt = {entry.path for entry in entries if entry.damaged}
    foreign = {entry.path for entry in entries if not entry.line}
    removed = []
    for path, stamp in before.items():
        if stamp is None or path in written or path in foreign or stamp_of(path) != stamp:
            continue
        try:
            if path in hurt:
                path.rename(path.with_name(path.name + ".damaged"))
            else:
                path.unlink()
        except OSError as error:
            raise refusal(error, path) from None
        removed.append(str(path))
    return {
        "files": sorted(map(str, written)),
        "replaced": removed,
        "records": len(union(entries)),
        "kept_damaged": len(hurt - foreign),
    }


def union(entries: Iterable[LogLine]) -> dict[str, bytes]:
    """{id: line} of the valid records; of different lines with one id the smaller one, so that order does not
    matter.
    """
    lines: dict[str, bytes] = {}
    for entry in entries:
        if entry.record is not None:
            line = encode(entry.record)
            lines[entry.record.id] = min(line, lines.get(entry.record.id, line))
    return lines


def write_merged(entries: Sequence[LogLine], root: Path) -> list[Path]:
    """Write one segment for each workload among the entries, named after its content; returns the paths. Damaged lines
    are left out.
    """
    folders: dict[str, list[LogLine]] = defaultdict(list)
    for entry in entries:
        if entry.record is not None:
            folders[slug(entry.record.workload)].append(entry)
        elif not entry.damaged:
            folders[entry.path.parent.name or "other"].append(entry)
    written = []
    for folder, members in sorted(folders.items()):
        when = {entry.record.id: entry.record.started for entry in members if entry.record is not None}
        lines = [line for _, line in sorted(union(members).items(), key=lambda item: (when[item[0]], item[1]))]
        lines += sorted({entry.raw.rstrip(b"\r\n") + b"\n" for entry in members if entry.record is None})
        first = re.sub(r"\D", "", min(when.values(), default=""))[:14] or "other"
        content = b"".join(lines)
        path = root / folder / f"{first}-merged-{hashlib.sha256(content).hexdigest()[:12]}.jsonl"
        write_whole(path, content)
        written.append(path)
    return written


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, with its folder; raises LogError ``log.unwritable`` or ``log.full``."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise refusal(error, path) from None


def stamp_of(path: Path) -> tuple[int, int] | None:
    """(size, modification time) of a file; None if missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def may_grow(path: Path) -> bool:
    """True if a segment's writer may still run: its process lives, or the segment is from another machine and was
    changed within a day. False for merged segments and other names.
    """
    named = re.fullmatch(r"\d{8}T\d{6}-(.+)-(\d+)(?:-\d+)?\.jsonl", path.name)
    if named is None:
        return False
    if named[1] != host_name():
        stamp = stamp_of(path)
        return stamp is not None and time.time() - stamp[1] / 1e9 < _STALE_DAY
    try:
        os.kill(int(named[2]), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
