"""Reads and writes packed logs: a log and its compiled kernels in one zip file, treated as untrusted input.

A zip archive of ``manifest.json``, ``log/WORKLOAD.jsonl`` and ``cache/DIGEST.bin``. Nothing is ever extracted: members
are read by name, under limits, and the manifest says the size and the SHA-256 of each. Names in the archive never
become paths: where contents go is derived from the contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tensorir.errors import TensorIRError, refuse
from tensorir.tune.record import BadRecord, read_json
from tensorir.tune.store import LogError, open_regular

PACK_VERSION = 1  # version of the format
MANIFEST = "manifest.json"
MOST_MEMBERS = 4096
MOST_BYTES = 1 << 30  # of all members, and of the file
MOST_MEMBER = 64 << 20
MOST_MANIFEST = 1 << 20
MOST_RATIO = 100  # of all members to the file: honest ones have 20 at most
_DIRECTORY = MOST_MEMBERS * 256  # bytes of the list of members
_NAME = re.compile(r"log/[A-Za-z0-9_]{1,40}-[0-9a-f]{8}\.jsonl|cache/[0-9a-f]{64}\.bin")
_END = struct.Struct("<4s4H2LH")
_BROKEN = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError,
    RuntimeError, OverflowError, LookupError, MemoryError,
)  # fmt: skip


class PackError(LogError):
    """A packed log cannot be read or written (``pack.damaged``, ``.version``, ``.too-large``, ``.unreadable``, …)."""


def damaged(path: Path, why: str) -> TensorIRError:
    """The PackError for a file that ``write_pack`` did not write."""
    return refuse(PackError, "pack.damaged", f"{path} is no packed log, or damaged: {why}"[:500], hint="copy it again")


def write_pack(path: Path, members: Mapping[str, bytes], about: Mapping[str, object]) -> None:
    """Write a pack file atomically; equal members give equal bytes.

    about: further fields of the manifest

    Raises PackError: ``pack.unwritable``, or as ``opened`` for members that it would refuse.
    """
    listed = [{"name": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in sorted(members.items())]
    manifest = json.dumps({"pack": PACK_VERSION, **about, "members": listed}, indent=1).encode()
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with scratch.open("xb") as file:
                with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
                    for name, data in [(MANIFEST, manifest), *sorted(members.items())]:
                        info = zipfile.ZipInfo(name)  # of 1980, with no rights: the same bytes every time
                        info.external_attr = (stat.S_IFREG | 0o644) << 16
                        made.writestr(info, data, zipfile.ZIP_DEFLATED)
                file.flush()
                os.fsync(file.fileno())
            with opened(scratch):
                pass  # what we write we can read, limits included
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        words = error.strerror or type(error).__name__
        raise refuse(PackError, "pack.unwritable", f"cannot write {path}: {words}", hint="another place") from None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[PackedLog]:
    """Context manager that opens a packed log with all members verified.

    Raises PackError: ``pack.unreadable``, ``pack.damaged`` (cut, wrong digests, other names, links, encrypted, more or
    fewer members than the manifest says), ``pack.too-large``, ``pack.version``.
    """
    try:
        file = open_regular(path)
    except OSError as error:
        words = error.strerror or type(error).__name__
        raise refuse(PackError, "pack.unreadable", f"cannot read {path}: {words}") from None
    with file:
        pack = PackedLog(path, file)
        pack.verify()
        yield pack


class PackedLog:
    """An open packed log: ``names()``, ``read(name)`` and the manifest's other fields as ``about``."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self.about: dict[str, Any] = {}
        self._listed: dict[str, tuple[int, str]] = {}
        with self._understood():
            self._size = os.fstat(file.fileno()).st_size
            count = self._bounded()
            self._zip = zipfile.ZipFile(file)
            if len(self._zip.infolist()) != count:
                raise BadRecord("it has more or fewer members than it says")

    def names(self, folder: str) -> list[str]:
        """Full names (``"log/…"``) of the members below ``folder``, "log" or "cache", as ``read`` takes them."""
        return [n for n in self._listed if n.startswith(f"{folder}/")]

    def read(self, name: str) -> bytes:
        """Bytes of a member; raises PackError if they differ from the manifest's digest (changed file), KeyError for a
        name that it does not list.
        """
        size, digest = self._listed[name]
        with self._understood():
            data = self._take(name, size)
            if hashlib.sha256(data).hexdigest() != digest:
                raise BadRecord(f"{name} has another digest than the manifest says")
        return data

    def verify(self) -> None:
        """Compare all members with the manifest; raises PackError."""
        with self._understood():
            self._safe()
            self._read_manifest()
        for name in self._listed:
            self.read(name)

    @contextlib.contextmanager
    def _understood(self) -> Iterator[None]:
        """Context manager that turns any exception from zip, deflate and JSON readers into one PackError."""
        try:
            yield
        except BadRecord as error:
            raise damaged(self.path, str(error)) from None
        except OSError as error:
            words = error.strerror or str(error)
            raise refuse(PackError, "pack.unreadable", f"cannot read {self.path}: {words}"[:300]) from None
        except _BROKEN as error:
            raise damaged(self.path, f"{type(error).__name__}: {error}"[:200]) from None

    def _bounded(self) -> int:
        """Number of members; raises PackError if their list would need much memory."""
        if self._size > MOST_BYTES:
            raise self._too_large(f"{self._size} bytes")
        tail = min(self._size, _END.size + 20)
        self._file.seek(self._size - tail)
        end = self._file.read(tail)
        if len(end) < _END.size or not end[-_END.size :].startswith(b"PK\5\6"):
            raise BadRecord("it does not end as such a file does")
        _, disk, first, here, count, length, _, comment = _END.unpack(end[-_END.size :])
        if disk or first or here != count or comment or end.startswith(b"PK\6\7"):
            raise BadRecord("it does not end as such a file does")
        if count > MOST_MEMBERS or length > _DIRECTORY:
            raise self._too_large(f"{count} members")
        self._file.seek(0)
        return int(count)

    def _too_large(self, what: str) -> TensorIRError:
        return refuse(PackError, "pack.too-large", f"{self.path} is too large for a packed log: {what}")

    def _safe(self) -> None:
        """Raise PackError unless names, kinds and declared sizes of all members are allowed."""
        total, seen = 0, set[str]()
        for info in self._zip.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.filename in seen or (info.filename != MANIFEST and _NAME.fullmatch(info.orig_filename) is None):
                raise BadRecord(f"a member {info.orig_filename!r:.100}")
            if kind not in (0, stat.S_IFREG) or info.flag_bits & 0x1 or info.compress_type not in (0, 8):
                raise BadRecord(f"{info.filename} is a link, encrypted, or packed in an unknown way")
            seen.add(info.filename)
            total += info.file_size
            if info.file_size > (MOST_MANIFEST if info.filename == MANIFEST else MOST_MEMBER):
                raise self._too_large(f"{info.filename} has {info.file_size} bytes")
        if total > min(MOST_BYTES, MOST_RATIO * self._size + MOST_MANIFEST):
            raise self._too_large(f"{total} bytes out of {self._size}")

    def _take(self, name: str, size: int) -> bytes:
        """Bytes of a member of ``size`` bytes; decompression stops there."""
        if self._zip.getinfo(name).file_size != size:
            raise BadRecord(f"{name} has another size than the manifest says")
        with self._zip.open(name) as member:
            data = member.read(size)
            if len(data) != size or member.read(1):
                raise BadRecord(f"{name} has another size than it says")
        return data

    def _read_manifest(self) -> None:
        made = read_json(self._take(MANIFEST, self._zip.getinfo(MANIFEST).file_size))
        version, members = made.pop("pack", None), made.pop("members", None)
        if type(version) is int and version != PACK_VERSION:
            raise refuse(PackError, "pack.version", f"{self.path} was packed by another version of tensorir")
        if type(version) is not int or not isinstance(members, list):
            raise BadRecord("its manifest is none")
        for m in members:
            if not isinstance(m, dict) or set(m) != {"name", "size", "sha256"} or type(m["size"]) is not int:
                raise BadRecord("its manifest is none")
            if not isinstance(m["name"], str) or not isinstance(m["sha256"], str):
                raise BadRecord("its manifest is none")
            self._listed[m["name"]] = m["size"], m["sha256"]
        there = {info.filename for info in self._zip.infolist()} - {MANIFEST}
        if there != set(self._listed) or len(members) != len(there):
            raise BadRecord("its members are not those of the manifest")
        self.about = made
