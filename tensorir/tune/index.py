"""Cache file of a log folder: record fields as columns, and the position of each record's line.

The file may be missing, damaged, of another version or of other segments. Entries of unchanged segments (or unchanged
beginnings) are used; the rest of the log is read. After much reading the file is rewritten, if the folder is writable.

Format: one line of JSON (version, segments, columns), the columns and words as binary data, and a checksum of both.
Nothing in it is executed. A record to be used is decoded from its log line, with the line's own checksum.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tensorir.codec import Json
from tensorir.tune.brief import (
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    WORD_COLUMNS,
    Brief,
    Briefs,
    Column,
    WordTable,
    checked,
    joined,
)
from tensorir.tune.record import MAX_LINE, LogLine, Record, decode

INDEX_NAME = "records.index"
VERSION = 2
LEAST_INDEXED_BYTES = 1 << 20
"""Bytes of unindexed lines up to which no index is written: they are read at each start."""
REWRITE_DIVISOR = 8
"""The index is rewritten if more than 1 / this of the bytes was not covered by it."""
RACY_NS = 2_000_000_000
"""Nanoseconds a file must be unmodified before its stamp is trusted: some systems count in seconds."""
BLOCK_BYTES = 1 << 20
MAX_BYTES = 1 << 31
KEPT_FINDINGS = 1000
Opened = Callable[[Path], BinaryIO]
Lines = Callable[[Path, BinaryIO, int], Iterator[LogLine]]
"""Function (path, open file, number of the preceding line) -> LogLines from the file's position on."""


class SegmentIndex:
    """Columns of one log segment's first ``size`` bytes, up to a line end.

    crc:   checksum of these bytes
    stamp: size, times and reading time of the file
    lines: number of lines; counts, reasons and findings: of invalid lines
    """

    def __init__(self) -> None:
        self.size = self.crc = self.lines = 0
        self.stamp: list[int] = []
        self.counts = {"damaged": 0, "other": 0}
        self.reasons: dict[str, int] = {}
        self.findings: list[list[Any]] = []

    def add(self, line: int, reason: str, kind: str) -> None:
        """Count an invalid line and keep its number and reason, if few are kept.

        kind: "damaged" or another key of ``counts``
        """
        self.counts[kind] += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if len(self.findings) < KEPT_FINDINGS:
            self.findings.append([line, reason])


def brief_of(
    folder: Path, segments: list[Path], lines: Lines, opened: Opened, failed: Callable[[Path, OSError], str]
) -> tuple[Brief, list[tuple[Path, SegmentIndex]]]:
    """(records of one folder's segments as columns, [(segment, its index data)]).

    lines:  function that reads records of an open segment; opened: function that opens one
    failed: function that, for a segment that cannot be opened, raises or returns why it is skipped; "" if it vanished
    """
    found = _Folder(folder, segments, opened, failed)
    old = _read(folder / INDEX_NAME, opened)
    if old is not None:
        found.take(*old)
    found.read_on(lines)
    if (
        found.new > LEAST_INDEXED_BYTES and found.new * REWRITE_DIVISOR > found.total
    ) or found.summed > LEAST_INDEXED_BYTES:
        found.write()
    return found.brief(), [
        (path, part) for path in segments for part in (found.parts[path.name], found.torn[path.name])
    ]


class _Folder:
    """Segments of a folder during indexing.

    torn:   index data of unterminated last lines
    new:    bytes not covered by the index; total: all bytes
    summed: bytes re-checksummed, as the file was replaced or modified
    """

    def __init__(
        self, folder: Path, segments: list[Path], opened: Opened, failed: Callable[[Path, OSError], str]
    ) -> None:
        self.folder, self.segments, self.opened, self.failed = folder, segments, opened, failed
        self.number = {path.name: n for n, path in enumerate(segments)}
        self.parts = {path.name: SegmentIndex() for path in segments}
        self.torn = {path.name: SegmentIndex() for path in segments}
        self.known: list[Brief] = []
        self.tails: list[Brief] = []
        self.new = self.total = self.summed = 0

    def take(self, parts: dict[str, SegmentIndex], brief: Brief) -> None:
        """Take over an earlier index (``parts`` by file name, and their records ``brief``) for segments that still
        begin with the bytes it covers.
        """
        names = list(parts)
        place = np.full(len(names) + 1, -1, dtype="i4")
        for n, (name, part) in enumerate(parts.items()):
            if name in self.number and self._same(name, part):
                self.parts[name] = part
                place[n] = self.number[name]
        segment = place[brief.columns["segment"]] if len(brief) else brief.columns["segment"]
        columns, keep = brief.columns | {"segment": segment}, segment >= 0
        if not keep.all():
            columns = {name: column[keep] for name, column in columns.items()}
        self.known.append(Brief(brief.words, columns, nowhere))

    def _same(self, name: str, part: SegmentIndex) -> bool:
        """True if a segment file still begins with the bytes that ``part`` indexes, by its stamp or their checksum."""
        try:
            with self.opened(self.folder / name) as file:
                now = _stamp(file)
                if now[:-1] == part.stamp[:-1] and part.stamp[-1] - max(now[1:3]) > RACY_NS:
                    return True
                same = now[0] >= part.size and _checksum(file, part.size) == part.crc
                if same:
                    part.stamp = now
                    self.summed += part.size
                return same
        except OSError:
            return False

    def read_on(self, lines: Lines) -> None:
        """Read the part of each segment that the index does not cover."""
        for path in self.segments:
            try:
                with self.opened(path) as file:
                    self._read_on(path, file, lines)
            except OSError as error:
                if reason := self.failed(path, error):
                    self.torn[path.name].add(0, reason, "damaged")

    def _read_on(self, path: Path, file: BinaryIO, lines: Lines) -> None:
        number, part, torn = self.number[path.name], self.parts[path.name], self.torn[path.name]
        now, start = _stamp(file), part.size
        self.total += now[0]
        if start == now[0]:
            return
        file.seek(start)
        made, tail = Briefs(), Briefs()
        for entry in lines(path, file, part.lines):
            end = file.tell()
            ended = entry.raw.endswith(b"\n") or (not entry.raw and _ends_a_line(file, end))
            if entry.record is not None:
                length = len(entry.raw)
                (made if ended else tail).add(entry.record, number, entry.line, end - length, length)
            else:
                kind = "other" if entry.other else "damaged"
                (part if ended else torn).add(entry.line, entry.reason, kind)
            if ended:
                part.size, part.lines = end, entry.line
        part.crc, part.stamp = _continued(file, start, part.size, part.crc), now
        self.new += part.size - start
        self.known.append(made.made(nowhere))
        self.tails.append(tail.made(nowhere))

    def brief(self) -> Brief:
        """All records as one Brief, in order of segments and lines."""
        made = joined([*self.known, *self.tails], nowhere)
        line_of, segment_of = made.columns["line"].astype("i8"), made.columns["segment"].astype("i8")
        place = (segment_of << 32) + line_of
        if (np.diff(place) < 0).any():
            order = np.argsort(place)
            made.columns = {name: column[order] for name, column in made.columns.items()}
        segments = list(self.segments)

        def line(row: int) -> Record:
            path = segments[int(made.columns["segment"][row])]
            with self.opened(path) as file:
                file.seek(int(made.columns["offset"][row]))
                return checked(decode(file.read(min(MAX_LINE, int(made.columns["length"][row])))), made, row)

        made.lines = line
        return made

    def write(self) -> None:
        """Write the index file, if the folder is writable."""
        brief = joined(self.known, nowhere)
        columns = {name: np.ascontiguousarray(column) for name, column in (brief.columns | _texts(brief.words)).items()}
        parts = [[name, vars(self.parts[name])] for name in self.number]
        head = {
            "index": VERSION, "order": sys.byteorder, "segments": parts,
            "columns": [[name, column.dtype.str, len(column)] for name, column in columns.items()],
        }  # fmt: skip
        scratch = self.folder / f".{INDEX_NAME}.{os.getpid()}.tmp"
        try:
            with open(scratch, "xb") as file:
                crc = 0
                for piece in (json.dumps(head).encode() + b"\n", *(c.tobytes() for c in columns.values())):
                    file.write(piece)
                    crc = zlib.crc32(piece, crc)
                file.write(b"%08x" % crc)
            os.replace(scratch, self.folder / INDEX_NAME)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()


def nowhere(row: int) -> Record:
    """Never returns: raises LookupError. In place of a function that reads record lines, for a Brief without lines."""
    raise LookupError(row)


def _stamp(file: BinaryIO) -> list[int]:
    """[size, modification time, change time, inode, current time] of a file; times in nanoseconds."""
    status = os.fstat(file.fileno())
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, time.time_ns()]


def _ends_a_line(file: BinaryIO, end: int) -> bool:
    file.seek(end - 1)
    return file.read(1) == b"\n"


def _checksum(file: BinaryIO, size: int) -> int:
    return _continued(file, 0, size, 0)


def _continued(file: BinaryIO, start: int, end: int, crc: int) -> int:
    """Checksum of a file's first ``end`` bytes, given ``crc`` of the first ``start``."""
    file.seek(start)
    while start < end and (block := file.read(min(BLOCK_BYTES, end - start))):
        crc, start = zlib.crc32(block, crc), start + len(block)
    return crc


def _read(path: Path, opened: Opened) -> tuple[dict[str, SegmentIndex], Brief] | None:
    """Content of an index file; None if missing, damaged or of another version."""
    try:
        with opened(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                return None
            text = memoryview(file.read())
        if zlib.crc32(text[:-8]) != int(bytes(text[-8:]), 16):
            return None
        stream = io.BytesIO(text)
        head = json.loads(stream.readline())
        if head["index"] != VERSION or head["order"] != sys.byteorder:
            return None
        return _parts(head), _columns(head, text[stream.tell() : -8])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, MemoryError):
        return None


def _parts(head: Json) -> dict[str, SegmentIndex]:
    found = {}
    for name, about in head["segments"]:
        part = SegmentIndex()
        for key in vars(part):
            setattr(part, key, type(getattr(part, key))(about[key]))
        found[str(name)] = part
    return found


def _texts(words: Mapping[str, WordTable]) -> dict[str, Column]:
    """Each word table as two columns: bytes, and end offsets."""
    data = {f"{name} words": np.frombuffer(found.data, dtype="u1") for name, found in words.items()}
    return data | {f"{name} ends": found.ends for name, found in words.items()}


def _columns(head: Json, data: memoryview) -> Brief:
    """Decode and validate the columns of an index file; raises ValueError if inconsistent."""
    columns: dict[str, Column] = {}
    at = 0
    for name, kind, length in head["columns"]:
        dtype = np.dtype(kind)
        if dtype.kind not in "iufS" or (name in NUMBER_COLUMNS and dtype != np.dtype(NUMBER_COLUMNS[name])):
            raise ValueError(name)
        end = at + dtype.itemsize * length
        columns[name] = np.frombuffer(data[at:end], dtype=dtype)
        at = end
    words = {name: _words(columns.pop(f"{name} words"), columns.pop(f"{name} ends")) for name in WORD_COLUMNS}
    if (
        at != len(data)
        or columns.keys() != {*NUMBER_COLUMNS, *TEXT_COLUMNS}
        or len({len(c) for c in columns.values()}) != 1
    ):
        raise ValueError("columns")
    for name, limit in {**{n: len(words[n]) for n in WORD_COLUMNS}, "segment": len(head["segments"])}.items():
        column = columns[name]
        if len(column) and (column.min() < 0 or column.max() >= limit):
            raise ValueError(name)
    return Brief(words, columns, nowhere)


def _words(data: Column, ends: Column) -> WordTable:
    if data.dtype != "u1" or ends.dtype != "i8" or (np.diff(ends, prepend=0) < 0).any() or ends[-1:].sum() != len(data):
        raise ValueError("words")
    return WordTable(data.data, ends)
