"""Cache for loading: a log's ranking, a record's source, a kernel's passed check, keyed by all they depend on.

Entries are data in the artifact cache. A key covers every dependency of its entry, including this package's files; a
damaged entry, or one for another key, counts as absent.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir import _package
from tensorir._package import PACKAGE_VERSION
from tensorir.api.identity import compute_digest, folder_of
from tensorir.codec import CodecError, decode, encode
from tensorir.codegen.source import Source
from tensorir.errors import ScheduleError, TensorIRError
from tensorir.ir.text import text
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.schedule.trace import read_steps
from tensorir.target import Target
from tensorir.tune.brief import whole
from tensorir.tune.index import LEAST_INDEXED_BYTES
from tensorir.tune.record import BadRecord, Record, RunIdentity, read, relevant
from tensorir.tune.template import found_on

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.launch import CompiledProgram

_PACKAGE = Path(__file__).resolve().parents[1]
MAX_KEPT_RECORDS = 4  # records kept of a ranking


@functools.cache
def package_state() -> str | None:
    """Digest of this package's file names, sizes and times, as part of cache keys.

    None if they cannot be listed, or have changed since this process imported them: what it makes is then not what they
    say.
    """
    digest = hashlib.sha256()
    try:
        for folder, folders, files in os.walk(_PACKAGE, onerror=_raise):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            for name in sorted(f for f in files if f.endswith(".py")):
                about = os.stat(os.path.join(folder, name))
                if max(about.st_mtime, about.st_ctime) >= _package.LOADED:
                    return None
                digest.update(f"{folder}/{name} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}\n".encode())
    except OSError:
        return None
    return digest.hexdigest()


def _raise(error: OSError) -> None:
    raise error


def _key(kind: str, **fields: Any) -> str | None:
    state = package_state()
    return None if state is None else cache_key(kind=kind, package=state, version=PACKAGE_VERSION, **fields)


def _get(key: str | None) -> Any:
    payload = None if key is None else default_cache().get(key)
    try:
        return None if payload is None else json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _put(key: str | None, value: Any) -> None:
    if key is not None:
        default_cache().put(key, json.dumps(value).encode())


# --- the ranking of a log


def ranked(work: Work, identity: RunIdentity, log: str, rank: Callable[[], list[Record]]) -> list[Record]:
    """Records of ``rank()``, best first: all of them, or only the first ``MAX_KEPT_RECORDS`` from the cache if the
    log's files are unchanged. Long logs (``LEAST_INDEXED_BYTES``) are not cached.
    """
    folder = folder_of(work, log)
    files = _contents(folder) if _size(folder) <= LEAST_INDEXED_BYTES else []  # there is an index of a long log
    mine = {k: str(identity.device.get(k)) for k in ("name", "driver")}
    key = files and _key(
        "ranking", files=files, compute=identity.compute, device=mine, versions=relevant(identity.versions)
    )
    found = _get(key or None)
    try:
        known = [read(one) for one in found] if isinstance(found, list) else None
        if known is not None and all(map(identity.accepts, known)):
            return known
    except (BadRecord, TypeError, AttributeError, KeyError):
        pass
    made = rank()
    if key and made:
        _put(key, [encode(whole(record)) for record in made[:MAX_KEPT_RECORDS]])
    return made


def _size(folder: Path) -> int:
    """Total bytes of a log folder's segments, or of a log file; 0 if unreadable."""
    try:
        files = (
            [folder] if folder.is_file() else [Path(e.path) for e in os.scandir(folder) if e.name.endswith(".jsonl")]
        )
        return sum(path.stat().st_size for path in files)
    except OSError:
        return 0


def _contents(folder: Path) -> list[str]:
    """Digests of a log folder's segments; [] if one is unreadable or too large."""
    found = []
    try:
        if folder.is_file():
            return [_digest(folder)]
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if entry.is_dir():
                return []
            if entry.name.endswith(".jsonl"):
                if not entry.is_file():
                    return []
                found.append(_digest(Path(entry.path)))
    except OSError:
        return []
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- sources


def source_key(work: Work, record: Record, target: Target) -> str | None:
    """Cache key of a record's source; None if dependencies are unknown (a user's template function).

    This package's templates are covered by its state in the key; a user's function can call anything.
    """
    try:
        template = found_on(work.templates, record.template, target)
    except ScheduleError:  # no rule schedules it
        return None
    pipeline = sys.modules.get("tensorir.lower.pipeline")
    if template is None or not ours(template.function) or (pipeline is not None and not pipeline.standard()):
        return None
    try:
        steps = read_steps(record.trace or [])
        names = sorted({str(s.args[1]) for s in steps if s.primitive == "tensorize"})
        instructions = [_instruction(n) for n in names]
    except (TensorIRError, ValueError, TypeError, LookupError):
        return None
    return _key(
        "source",
        workload=work.title,
        arguments=[a.name for a in work.inputs],
        compute=record.compute,
        template=record.template,
        config=record.config,
        trace=record.trace or [],
        instructions=instructions,
        target=[target.text, target.name, target.device],
        sha256=record.source_sha256,
    )


def ours(function: Callable[..., object]) -> bool:
    """True if ``function`` is defined in this package's files."""
    code = getattr(function, "__code__", None)
    return code is not None and Path(code.co_filename).resolve().is_relative_to(_PACKAGE)


def _instruction(name: str) -> list[Any]:
    """Name, meaning, text, alignments and required features of an instruction, for cache keys: users may register their
    own under any name.
    """
    from tensorir.intrin.intrin import intrinsic  # few kernels have instructions

    made = intrinsic(name)
    return [name, text(made.semantics), dict(made.emit), dict(made.align), list(made.needs)]


def recall_source(key: str | None, record: Record) -> Source | None:
    """Cached source of a record, if it has the measured digest; else None."""
    found = _get(key)
    try:
        source = decode(Source, found)
    except CodecError:
        return None
    return source if source.sha256 == record.source_sha256 else None


def keep_source(key: str | None, source: Source) -> None:
    """Cache the source of a record under ``key``; nothing if the key is None."""
    _put(key, encode(source))


# --- checks on the device


def check_key(work: Work, program: CompiledProgram, max_error: float | None) -> str | None:
    """Cache key of a check against the reference (machine code excluded); None if uncacheable, as for a user's
    reference.

    A user's reference function can call anything. Without one, the declarations are evaluated, and are part of the key.
    """
    if work._reference is not None and not ours(work._reference):
        return None
    source = json.dumps(encode(program.source), sort_keys=True)
    return _key(
        "check",
        workload=work.title,
        compute=compute_digest(work),
        source=hashlib.sha256(source.encode()).hexdigest(),
        max_error=max_error,
        device=program.device.identity,
        target=program.device.target.text,
    )


def was_checked(key: str | None, program: CompiledProgram) -> bool:
    """True if the program's machine code came from the artifact cache and already passed the check of ``key``."""
    return bool(program.digest) and program.cached and _get(key) == program.digest


def keep_check(key: str | None, program: CompiledProgram) -> None:
    """Cache under ``key`` that the program's machine code passed its check; nothing if it has no digest."""
    if program.digest:
        _put(key, program.digest)
