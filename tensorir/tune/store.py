"""Tuning log files: one append-only segment per writing process, and a reader that tolerates damage."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import socket
import stat
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tensorir.errors import TensorIRError, refuse
from tensorir.tune.brief import Brief, Briefs, joined
from tensorir.tune.frozen import frozen_records, looks_frozen
from tensorir.tune.index import SegmentIndex, brief_of, nowhere
from tensorir.tune.record import MAX_LINE, BadRecord, LogLine, OtherVersion, Record, decode, encode, slug

_NO_FILE = {errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.ELOOP}  # a pipe, a socket, a device, a link to itself
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
KEPT_FINDINGS = 1000
BATCH_BYTES = 1 << 15
FROZEN_AT_START = 1000
"""Frozen objects from which on somebody else uses ``gc.freeze``: Python 3.12 begins with some 400."""


class LogError(TensorIRError):
    """The tuning log cannot be read or written (``log.unreadable``, ``log.unwritable``, ``log.full``)."""


class LogWriter:
    """Appends records to a new segment file; lock-free, so safe on network file systems.

    directory: the log's root, ``tuning_logs``
    workload:  decides the folder

    The segment is made at once, so that an unwritable place is known before anything is measured;
    one that stayed empty is removed by ``close``. Raises LogError ``log.unwritable`` or ``log.full``.
    """

    def __init__(self, directory: str | os.PathLike[str], workload: str) -> None:
        self.path = Path(directory) / slug(workload) / segment_name()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd, self.path = _create(self.path)
        except OSError as error:
            raise refusal(error, self.path.parent) from None
        self._lock = threading.Lock()
        self._pid, self._mine = os.getpid(), True

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> LogWriter:
        """Return a writer that appends to an existing segment; a torn last line stays and a fresh one is begun.

        Raises LogError ``log.unwritable``, also for a missing file.
        """
        made = cls.__new__(cls)
        made.path, made._lock, made._pid, made._mine = Path(path), threading.Lock(), os.getpid(), False
        try:
            made._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(made._fd).st_mode):
                os.close(made._fd)
                raise OSError(errno.EINVAL, "not a regular file")
        except OSError as error:
            raise refusal(error, made.path) from None
        return made

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Record) -> None:
        """Write one record with its checksum and wait until the disk has it.

        A short write (full disk) is taken back, so the file never ends in half a record of ours. A segment that
        somebody moved away meanwhile (a machine whose clock is wrong takes it for an old one) gets a successor.
        Raises LogError; the segment is then as it was before. Raises BadRecord for a record too long to be read back.
        """
        line = encode(record)
        with self._lock:
            if os.getpid() != self._pid:
                raise refuse(LogError, "log.forked", f"the log {self.path} belongs to the process that opened it")
            self._write(line)
            if not self._in_place():
                self._begin_again()
                self._write(line)

    def _in_place(self) -> bool:
        """True if the segment's path still names the open file; False if it was moved or deleted."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path))
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def _begin_again(self) -> None:
        old = self._fd
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd, self.path = _create(self.path.with_name(segment_name()))
        except OSError as error:
            raise refusal(error, self.path) from None
        self._mine = True
        os.close(old)

    def _write(self, line: bytes) -> None:
        """Write the line completely, on a new line of the file, or not at all."""
        try:
            start = os.fstat(self._fd).st_size
            if start and os.pread(self._fd, 1, start - 1) != b"\n":
                line = b"\n" + line
        except OSError as error:
            raise refusal(error, self.path) from None
        try:
            written = os.write(self._fd, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, start)
            raise refusal(error, self.path) from None

    def close(self) -> None:
        """Close the segment; one that this writer made and never filled is removed."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            if self._mine and os.fstat(fd).st_size == 0 and os.getpid() == self._pid:
                self.path.unlink()
        with contextlib.suppress(OSError):
            os.close(fd)


def segment_name() -> str:
    """New file name ``<utc>-<host>-<pid>.jsonl`` for this process."""
    return f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}-{host_name()}-{os.getpid()}.jsonl"


def host_name() -> str:
    """This machine's name, sanitized for file names."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", socket.gethostname())[:40] or "host"


def _create(path: Path) -> tuple[int, Path]:
    """Open a new file, (descriptor, path), adding a suffix if the name exists (containers may share host name
    and pid).
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    for number in range(1000):
        candidate = path if number == 0 else path.with_name(f"{path.stem}-{number}.jsonl")
        try:
            fd = os.open(candidate, flags, 0o644)
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):  # the new name must survive a power cut as well
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return fd, candidate
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def refusal(error: OSError, path: Path) -> TensorIRError:
    """The LogError for an unwritable log: ``log.full`` for a full disk or quota, else ``log.unwritable``."""
    words = error.strerror or type(error).__name__
    if error.errno in _FULL:
        return refuse(
            LogError,
            "log.full",
            f"no room for the tuning log {path}: {words}",
            hint="free some space; finished trials are safe",
        )
    return refuse(
        LogError,
        "log.unwritable",
        f"cannot write the tuning log {path}: {words}",
        hint="choose another place with log=… or --log",
    )


@dataclass(frozen=True)
class UnusableLine:
    """A skipped log line: file, number and reason."""

    path: Path
    line: int
    reason: str


class LogReader:
    """Streams the records of a log directory, of one folder, of one segment or of a frozen file (``tune.frozen``).

    Lines that are damaged or of another version are skipped and counted; a damaged frozen file is refused, LogError
    ``log.frozen-damaged``.

    damaged, other, duplicates: line counts of the last complete pass
    findings:                   the first of the skipped lines, with reasons
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._reset()

    def _reset(self) -> None:
        self.damaged = self.other = self.duplicates = 0
        self.reasons: Counter[str] = Counter()
        self.findings: list[UnusableLine] = []

    def segments(self) -> list[Path]:
        """Every ``*.jsonl`` file below the root, sorted, or the root itself if it is a file; [] when it does not exist.

        Raises LogError ``log.unreadable`` for a folder that cannot be read.
        """
        if is_file(self.root):
            return [self.root]
        found: list[Path] = []
        for folder, folders, files in os.walk(self.root, onerror=self._unreadable):
            folders.sort()
            found += [Path(folder, name) for name in files if name.endswith(".jsonl")]
        return sorted(found)

    def _unreadable(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise unreadable(error, Path(error.filename or self.root))

    def entries(self) -> Iterator[LogLine]:
        """Yield every line of every segment, damaged ones and duplicates too; the counts stay as they are."""
        return _in_batches(self._entries())

    def _entries(self) -> Iterator[LogLine]:
        for path in self.segments():
            try:
                with open_regular(path) as file:
                    frozen = frozen_records(file) if path == self.root else None
                    yield from _entries(path, file) if frozen is None else _frozen_entries(path, frozen)
            except BadRecord as error:
                raise _broken(path, error) from None
            except FileNotFoundError:
                continue  # compacted away meanwhile
            except OSError as error:
                if error.errno not in _NO_FILE or path == self.root:
                    raise unreadable(error, path) from None
                yield LogLine(path, 0, b"", reason="not a regular file")

    def records(
        self, *, workload: str | None = None, compute: str | None = None, kind: str | None = None
    ) -> Iterator[Record]:
        """Yield each valid record once, filtered; updates the counts."""
        self._reset()
        seen: set[str] = set()
        for entry in self.entries():
            record = entry.record
            if record is None:
                self._count(entry)
            elif record.id in seen:
                self.duplicates += 1
            else:
                seen.add(record.id)
                wanted = ((workload, record.workload), (compute, record.compute), (kind, record.kind))
                if all(value is None or value == said for value, said in wanted):
                    yield record

    def brief(self) -> Brief:
        """All records as a Brief, from the index if present (``tune.index``); updates the counts."""
        self._reset()
        if is_file(self.root) and self._is_frozen():
            made = Briefs()
            kept = list(self.records())
            for n, record in enumerate(kept):
                made.add(record, 0, n, 0, 0)
            return made.made(kept.__getitem__)
        folders: dict[Path, list[Path]] = {}
        for path in self.segments():
            folders.setdefault(path.parent, []).append(path)
        parts = []
        for folder, segments in folders.items():
            part, others = brief_of(folder, segments, _entries, open_regular, self._passed_over)
            parts.append(part)
            for path, other in others:
                self._add(path, other)
        return self._distinct(parts)

    def _is_frozen(self) -> bool:
        try:
            with open_regular(self.root) as file:
                return looks_frozen(file)
        except OSError as error:
            raise unreadable(error, self.root) from None

    def _passed_over(self, path: Path, error: OSError) -> str:
        """Reason for skipping a segment that cannot be opened; "" if it was compacted away. Raises LogError for other
        errors.
        """
        if isinstance(error, FileNotFoundError):
            return ""
        if error.errno not in _NO_FILE or path == self.root:
            raise unreadable(error, path) from None
        return "not a regular file"

    def _add(self, path: Path, part: SegmentIndex) -> None:
        self.damaged += part.counts["damaged"]
        self.other += part.counts["other"]
        self.reasons.update(part.reasons)
        room = KEPT_FINDINGS - len(self.findings)
        self.findings += [UnusableLine(path, line, reason) for line, reason in part.findings[:room]]

    def _distinct(self, parts: list[Brief]) -> Brief:
        """Concatenated Briefs without duplicate records."""
        made = joined(parts, nowhere)
        begins = np.cumsum([0, *map(len, parts)])
        rows = made.distinct()
        self.duplicates = len(made) - len(rows)
        columns = made.columns if not self.duplicates else {name: c[rows] for name, c in made.columns.items()}

        def line(row: int) -> Record:
            origin = int(rows[row])
            number = int(np.searchsorted(begins, origin, side="right")) - 1
            try:
                return parts[number].lines(origin - int(begins[number]))
            except (OSError, BadRecord) as error:
                message = f"the tuning log {self.root} was changed while it was read: {error}"
                raise refuse(LogError, "log.unreadable", message) from None

        return Brief(made.words, columns, line)

    def _count(self, entry: LogLine) -> None:
        self.other += entry.other
        self.damaged += entry.damaged
        self.reasons[entry.reason] += 1
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append(UnusableLine(entry.path, entry.line, entry.reason))

    def summary(self) -> str:
        """Sentence about skipped lines; "" if there were none."""
        parts = []
        if self.damaged:
            parts.append(f"{self.damaged} damaged line{'s' * (self.damaged != 1)} ignored")
        if self.other:
            parts.append(f"{self.other} line{'s' * (self.other != 1)} of another version of tensorir skipped")
        return ", ".join(parts)


def is_file(path: Path) -> bool:
    """True if ``path`` is a file; raises LogError ``log.unreadable`` for an invalid name."""
    try:
        return path.is_file()
    except OSError as error:
        raise unreadable(error, path) from None


def unreadable(error: OSError, path: Path) -> TensorIRError:
    """The LogError for an unreadable log."""
    return refuse(
        LogError, "log.unreadable", f"cannot read the tuning log {path}: {error.strerror or type(error).__name__}"
    )


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises OSError, also for pipes and devices, which could block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(fd, "rb")


def _in_batches(entries: Iterator[LogLine]) -> Iterator[LogLine]:
    """``entries`` unchanged, but created in batches of up to ``BATCH_BYTES`` bytes that the garbage collector does not
    rescan.

    A kept record has a hundred containers, and Python's cyclic collector would visit them repeatedly as they
    accumulate, which doubles the time to read a large log.
    """
    limit, failed, ended, ours = 0, None, False, None
    while not ended:
        if (
            ours is None and limit == BATCH_BYTES
        ):  # not for small logs: counting what is frozen may take as long as these
            ours = gc.isenabled() and gc.get_freeze_count() < FROZEN_AT_START
        batch, size = list[LogLine](), 0
        with _past_the_collector() if ours else contextlib.nullcontext():
            try:
                while size <= limit:
                    batch.append(next(entries))
                    size += len(batch[-1].raw) + 1
            except StopIteration:
                ended = True
            except Exception as error:  # said after what was read before
                failed, ended = error, True
        yield from batch
        limit = min(BATCH_BYTES, 2 * size)
    if failed is not None:
        raise failed


@contextlib.contextmanager
def _past_the_collector() -> Iterator[None]:
    """Context manager: objects created inside skip the young generations of the garbage collector."""
    gc.collect(1)  # what others made meanwhile stays where it belongs
    gc.disable()
    try:
        yield
        gc.freeze()
        gc.unfreeze()
    finally:
        gc.enable()


def _frozen_entries(path: Path, records: list[Record]) -> Iterator[LogLine]:
    for number, record in enumerate(records, 2):  # a record a line, after the head
        yield LogLine(path, number, encode(record), record=record)


def _broken(path: Path, error: BadRecord) -> TensorIRError:
    other = isinstance(error, OtherVersion)
    return refuse(
        LogError,
        "log.frozen-version" if other else "log.frozen-damaged",
        f"{path} was frozen by another version of tensorir" if other else f"{path} is no frozen file any more: {error}",
        hint=f"tensorir log freeze -o {path.name}",
    )


def _entries(path: Path, file: BinaryIO, number: int = 0) -> Iterator[LogLine]:
    """Lines of an open segment from its position on; number: of the preceding line."""
    while raw := file.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            if not raw.endswith(b"\n"):
                _skip_line(file)
            yield LogLine(path, number, b"", reason="over-long line")
            continue
        if not raw.strip():
            continue  # what is left where a torn line was closed
        try:
            yield LogLine(path, number, raw, record=decode(raw))
        except OtherVersion as error:
            yield LogLine(path, number, raw, reason=str(error), other=True)
        except BadRecord as error:
            yield LogLine(path, number, raw, reason=str(error))


def _skip_line(file: BinaryIO) -> None:
    """Skip to the next line end in constant memory."""
    while block := file.read(MAX_LINE):
        end = block.find(b"\n")
        if end >= 0:
            file.seek(end + 1 - len(block), os.SEEK_CUR)
            return
