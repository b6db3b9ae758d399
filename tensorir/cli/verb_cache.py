"""tensorir cache export, import: packs of a tuning log and its compiled kernels, for machines of the same device.

A pack contains records (data) and machine code. Machine code is trusted: the author of such a file can run anything in
a process that loads its kernels, whatever the digests. No imported kernel is used before it was compared with the
reference on the importing machine; its records rank as any others in a log.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir._package import PACKAGE_VERSION
from tensorir.api.unproven import note_imported
from tensorir.cli import common
from tensorir.cli.common import clean, put, put_json, say, usage
from tensorir.cli.parse import work_of
from tensorir.cli.titles import whole
from tensorir.codec import Json
from tensorir.errors import NotTuned, Problem, TensorIRError, refuse
from tensorir.runtime.cache import Cache, default_cache, pack_entry, unpack_entry
from tensorir.runtime.device import devices, open_device
from tensorir.tune.log import slug, write_merged
from tensorir.tune.pack import MOST_BYTES, MOST_MEMBER, MOST_MEMBERS, PackedLog, PackError, damaged, opened, write_pack
from tensorir.tune.record import BadRecord, LogLine, Record, decode, encode, read_json
from tensorir.tune.store import LogReader

if TYPE_CHECKING:
    from tensorir.api.workload import Workload


def export(file: Path, workload: tuple[str, ...], device: str | None, log: str, as_json: bool) -> int:
    """Pack a log and its compiled kernels into FILE; return the exit code."""
    if not Path(log).exists():
        raise usage(f"there is no tuning log {log}")
    if file.exists() and not _is_pack(file):
        raise usage(f"{file} is no packed log: it is not overwritten", "another file")
    done = export_pack(file, log, whole(LogReader(log), workload), work_of, device)
    for title, why in done["without"].items():
        say(clean(f"no kernel of {title:.200}: {why}"))
    if as_json:
        put_json({"schema": 1, **done})
    else:
        put(f"{file}  {done['records']} records, {done['artifacts']} kernels, {done['bytes']} bytes")
    return common.OK


def take(file: Path, log: str, as_json: bool) -> int:
    """Verify FILE, a packed log, then import its records and kernels; return the exit code."""
    done = import_pack(file, log)
    for d in done["devices"]:
        if not d["here"]:
            what = f"{d['records']} records and {d['artifacts']} kernels"
            say(clean(f"{what} are for {d['name']} ({d['driver']}), which is not here: kept, not used"))
    if as_json:
        put_json({"schema": 1, **done})
    else:
        put(f"{log}  {done['records']} records, {done['artifacts']} kernels ({done['known']} were here already)")
    return common.OK


def _is_pack(file: Path) -> bool:
    try:
        with opened(file):
            return True
    except PackError as error:
        return error.code in ("pack.version", "pack.too-large")


KERNEL_KINDS = ("opencl binary", "cubin")
"""Kinds of entries of the artifact cache that are kernels."""


def export_pack(
    path: str | os.PathLike[str],
    log: str,
    workloads: Sequence[str] = (),
    make: Callable[[str], Workload | None] | None = None,
    device: str | None = None,
) -> Json:
    """Pack the valid records of ``workloads`` (titles; all if empty) and all their kernels in the cache into the file
    ``path``.

    make:   function from a title to its workload or None; the workload's chosen kernel is loaded first, so that it is
            compiled, checked and in the cache. None: only kernels in the cache are packed
    device: name of the device to load on

    Returns {"file": ``path``, "records": number, "artifacts": number of kernels, "bytes": size of the file, "without":
    {title: reason why it has no kernel}}. Raises PackError, LogError, and NotTuned if there are no records to pack.
    """
    records: dict[str, list[Record]] = {}
    for record in LogReader(log).records():
        if not workloads or record.workload in workloads:
            records.setdefault(record.workload, []).append(record)
    missing = sorted({*workloads} - records.keys())
    if missing or not records:
        raise _nothing(missing[0] if missing else "", log)
    why = {title: _compiled(title, log, make, device) for title in records}
    wanted = {r.source_sha256: r.workload for rs in records.values() for r in rs if r.status == "ok"}
    members = {f"log/{slug(t)}.jsonl": b"".join(map(encode, _ordered(rs))) for t, rs in records.items()}
    found: set[str] = set()
    cache = default_cache()
    for key in cache.stored():
        owner = wanted.get(_source_of(key) or "")
        payload = None if owner is None else cache.get(key)
        if owner is not None and payload is not None:
            found.add(owner)
            members[f"cache/{hashlib.sha256(key.encode()).hexdigest()}.bin"] = pack_entry(key, payload)
    _small_enough(Path(path), members)

    write_pack(Path(path), members, {"tensorir": PACKAGE_VERSION})
    return {
        "file": str(path),
        "bytes": Path(path).stat().st_size,
        "records": sum(map(len, records.values())),
        "artifacts": len(members) - len(records),
        "without": {t: why[t] or "no kernel of it is in the cache" for t in records if t not in found},
    }


def _ordered(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (r.started, r.id))


def _nothing(title: str, log: str) -> TensorIRError:
    what = f"of {title} " if title else ""
    return NotTuned(Problem("pack.not-tuned", f"there is no record {what}in {log} to pack", hint="tensorir log ls"))


def _compiled(title: str, log: str, make: Callable[[str], Workload | None] | None, device: str | None) -> str:
    """Load the kernel of the workload ``title``, so that it is cached; return "" or the reason for failure."""
    work = None if make is None else make(title)
    if work is None:
        return "it is defined outside of tensorir: call its load() on this machine first"
    try:
        work.load(device, log)
    except TensorIRError as error:
        return error.problems[0].message if error.problems else str(error)
    return ""


def _source_of(key: str) -> str | None:
    """SHA-256 of the source text in a cache key; None if the key is not that of a kernel."""
    try:
        said = read_json(key.encode())
    except (BadRecord, UnicodeEncodeError):
        return None
    text = said.get("source")
    if said.get("kind") not in KERNEL_KINDS or not isinstance(text, str):
        return None
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _small_enough(path: Path, members: dict[str, bytes]) -> None:
    large = [n for n, data in members.items() if len(data) > MOST_MEMBER]
    if large or len(members) >= MOST_MEMBERS or sum(map(len, members.values())) > MOST_BYTES:
        message = f"{path} would be too large: {len(members)} members, {sum(map(len, members.values()))} bytes"
        raise refuse(PackError, "pack.too-large", message, hint="--workload, or a frozen file as --log")


def import_pack(path: str | os.PathLike[str], log: str) -> Json:
    """Verify a packed log as a whole, then put its kernels into the artifact cache and its records below ``log``.

    Entries that the cache has already stay. Returns {"records": number, "artifacts": number, "known": number of
    artifacts that the cache had already, "files": names of the log files written, "devices": list}: for each device of
    the pack its name and driver, numbers of records and kernels, and ``here``, True if this machine has it (kernels of
    other devices are kept and not used).

    Raises PackError and LogError; a refused pack changes nothing.
    """
    with opened(Path(path)) as pack:
        entries = [e for name in pack.names("log") for e in _records(pack, name)]
        sources = {e.record.source_sha256 for e in entries if e.record is not None} - {None}
        keys = {name: _key(pack, name, sources) for name in pack.names("cache")}
        cache = default_cache()
        if cache.directory is None:
            message = "compiled kernels have nowhere to go: the cache directory cannot be written"
            raise refuse(PackError, "pack.unwritable", message, hint="set TENSORIR_CACHE_DIR")
        known = sum(not _put(pack, name, key, cache) for name, key in keys.items())
        files = write_merged(entries, Path(log))
    about = _Devices()
    for record in (entry.record for entry in entries if entry.record is not None):
        about.record(record)
    for key in keys.values():
        about.kernel(read_json(key.encode()))
    rows = list(about.rows.values())
    done = {"records": len(entries), "artifacts": len(keys), "known": known, "files": list(map(str, files))}
    return {**done, "devices": rows}


def _records(pack: PackedLog, name: str) -> list[LogLine]:
    """Log lines of the pack's file ``name``; raises PackError if a line is damaged or of another workload than the
    file's name says.
    """
    found = []
    for number, line in enumerate(pack.read(name).split(b"\n")[:-1], 1):
        try:
            record = decode(line)
        except BadRecord as error:
            raise damaged(pack.path, f"{name}, line {number}: {error}") from None
        if name != f"log/{slug(record.workload)}.jsonl":
            raise damaged(pack.path, f"{name} holds records of another workload")
        found.append(LogLine(pack.path, number, line, record=record))
    return found


def _key(pack: PackedLog, name: str, sources: set[str | None]) -> str:
    """Cache key of the artifact ``name`` in the pack; raises PackError unless it is a kernel of one of ``sources``
    (digests).
    """
    found = unpack_entry(pack.read(name))
    if found is None or name != f"cache/{hashlib.sha256(found[0].encode()).hexdigest()}.bin":
        raise damaged(pack.path, f"{name} is no entry of the cache")
    source = _source_of(found[0])
    if source is None or source not in sources:  # a kernel, or it would be some other thing that the cache believes
        raise damaged(pack.path, f"{name} is no kernel of the records in the same pack")
    return found[0]


def _put(pack: PackedLog, name: str, key: str, cache: Cache) -> bool:
    """Store the artifact ``name`` in the cache; False if the cache had it already, else True. Raises PackError."""
    if cache.get(key) is not None:
        return False
    found = unpack_entry(pack.read(name))
    source = _source_of(key)
    if found is None or source is None or found[0] != key:
        raise damaged(pack.path, f"{name} has changed meanwhile")
    note_imported(source)  # first, so that nobody meets the code without the mark
    cache.put(*found)
    if cache.directory is None:
        message = "the cache directory cannot be written any more; the records have not been imported"
        raise refuse(PackError, "pack.unwritable", message, hint="free some space, or set TENSORIR_CACHE_DIR")
    return True


class _Devices:
    """Counts of records and kernels per device of a pack, and for each True if the device is on this machine."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self._here = [i for i in devices() if i.usable and not i.simulator]

    def _row(self, name: str, driver: str, here: Callable[[], bool]) -> Json:
        if (name, driver) not in self.rows:
            made = {"name": name, "driver": driver, "here": here(), "records": 0, "artifacts": 0}
            self.rows[name, driver] = made
        return self.rows[name, driver]

    def record(self, record: Record) -> None:
        device = record.device
        name, driver = device["name"], device["driver"]
        row = self._row(name, driver, lambda: any((i.label, i.driver) == (name, driver) for i in self._here))
        row["records"] += 1

    def kernel(self, key: dict[str, Any]) -> None:
        if key["kind"] == "cubin":
            arch = next((m[1] for o in key.get("options", ()) if (m := re.search(r"=(sm_\w+)$", str(o)))), "")
            row = self._row(f"CUDA {arch}", f"NVRTC {key.get('nvrtc')}", lambda: self._compiles(arch, key))
        else:
            device = key.get("device")
            said = device if isinstance(device, dict) else {}
            name, driver = str(said.get("name")), str(said.get("driver"))
            row = self._row(name, driver, lambda: self._is(said))
            row["here"] = row["here"] and self._is(said)
        row["artifacts"] += 1

    def _is(self, said: dict[str, Any]) -> bool:
        """True if a device of this machine has the identity ``said``, with the same compiler and libraries."""
        found = [i for i in self._here if i.language == "opencl" and i.label == said.get("name")]
        return any(open_device(i.name).identity == said for i in found)

    def _compiles(self, arch: str, key: dict[str, Any]) -> bool:
        found = [open_device(i.name) for i in self._here if i.language == "cuda"]
        version = f"NVRTC {key.get('nvrtc')}"
        return any(d.target.arch == arch and d.identity["compiler"] == version for d in found)
