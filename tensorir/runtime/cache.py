"""On-disk cache of compiled programs: one verified file per entry, addressed by content.

Entries are native code, so they are trusted only from a directory that belongs to this user and that
nobody else may write (see SECURITY in the documentation). A damaged entry counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat as modes
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tensorir.errors import DeviceError, refuse

_MAGIC = b"tensorir-cache 1\n"
_MOST_BYTES = 2 << 30  # oldest entries beyond this go
_MOST_HEAD = 1000  # bytes of the line of lengths
_TRIM_EVERY = 64  # puts


@dataclass(frozen=True)
class CacheStat:
    """Cache statistics.

    directory: "" if entries are in memory only
    entries, bytes: of all stored files;  hits, misses: ``get`` calls of this process; damaged: its misses due to damage
    """

    directory: str
    entries: int
    bytes: int
    hits: int
    misses: int
    damaged: int


def cache_key(**fields: object) -> str:
    """Canonical JSON text of all fields that an artifact depends on."""
    return json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)


def default_directory() -> Path:
    """Directory named by ``TENSORIR_CACHE_DIR``, or the platform's cache directory for this package."""
    named = os.environ.get("TENSORIR_CACHE_DIR")
    if named:
        return Path(named)
    base: str | None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or os.path.expanduser("~/.cache")) / "tensorir"


class Cache:
    """Artifacts by key text, in ``directory``, which is made; in memory if that is None or, with a RuntimeWarning once
    per process, cannot be written.

    >>> cache.put(key, payload)
    >>> cache.get(key) == payload

    Raises DeviceError ``cache.foreign-directory`` for one that others own or may write.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._hits = self._misses = self._damaged = self._puts = 0
        self.directory: Path | None = None if directory is None else _prepare(Path(directory))

    def get(self, key: str) -> bytes | None:
        """The payload stored under exactly this key text; None if absent, damaged or another user's file."""
        payload = self._read(key) if self.directory is not None else self._memory.get(key)
        with self._lock:
            if payload is None:
                self._misses += 1
            else:
                self._hits += 1
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store or replace an entry atomically; every 64th call trims the directory to 2 GiB.

        If the directory cannot be written, entries are in memory from then on, with a RuntimeWarning.
        """
        if self.directory is None:
            self._memory[key] = payload
            return
        try:
            self._write(self.directory, key, payload)
        except OSError as error:
            self.directory = None
            self._memory[key] = payload
            _warn(f"the cache directory cannot be written ({error}); compiled programs stay in memory")
            return
        self._puts += 1
        if self._puts % _TRIM_EVERY == 0:
            self.trim(_MOST_BYTES)

    def discard(self, key: str) -> None:
        """Remove an entry, for instance if the driver rejects it."""
        self._memory.pop(key, None)
        if self.directory is not None:
            with contextlib.suppress(OSError):
                self._path(self.directory, key).unlink()

    def stored(self) -> Iterator[str]:
        """Yield the keys of all readable entries; payloads are not verified."""
        if self.directory is None:
            yield from list(self._memory)
            return
        for _, _, path in _entries(self.directory):
            with contextlib.suppress(OSError):
                key = _key_in(path)
                if key is not None and path == self._path(self.directory, key):
                    yield key

    def stat(self) -> CacheStat:
        """Entries and bytes stored, and this process's hits and misses."""
        if self.directory is None:
            sizes = [len(p) for p in self._memory.values()]
        else:
            sizes = [size for _, size, _ in _entries(self.directory)]
        where = "" if self.directory is None else str(self.directory)
        return CacheStat(where, len(sizes), sum(sizes), self._hits, self._misses, self._damaged)

    def clear(self) -> int:
        """Remove every entry; returns their number."""
        removed = len(self._memory)
        self._memory.clear()
        return removed + (self.trim(-1) if self.directory is not None else 0)

    def trim(self, most_bytes: int) -> int:
        """Remove the oldest files until ``most_bytes`` are left (-1: all); returns their number, 0 for a cache in
        memory.
        """
        if self.directory is None:
            return 0
        entries = sorted(_entries(self.directory))
        total, removed = sum(size for _, size, _ in entries), 0
        for _, size, path in entries:
            if total <= most_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
        return removed

    @staticmethod
    def _path(directory: Path, key: str) -> Path:
        return directory / (hashlib.sha256(key.encode()).hexdigest() + ".bin")

    def _read(self, key: str) -> bytes | None:
        assert self.directory is not None
        try:
            with _open_own(self._path(self.directory, key)) as file:
                found = unpack_entry(file.read())
        except OSError:
            return None
        if found is None or found[0] != key:
            with self._lock:
                self._damaged += 1
            return None
        return found[1]

    @staticmethod
    def _write(directory: Path, key: str, payload: bytes) -> None:
        number, name = tempfile.mkstemp(prefix=".new-", dir=directory)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(pack_entry(key, payload))
            os.replace(name, Cache._path(directory, key))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def pack_entry(key: str, payload: bytes) -> bytes:
    """Bytes of an entry with lengths and digest."""
    text = key.encode()
    head = {"key": len(text), "payload": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    return _MAGIC + json.dumps(head).encode() + b"\n" + text + payload


def unpack_entry(blob: bytes) -> tuple[str, bytes] | None:
    """(key, payload), or None if damaged."""
    if not blob.startswith(_MAGIC):
        return None
    line, newline, rest = blob[len(_MAGIC) : len(_MAGIC) + _MOST_HEAD].partition(b"\n")
    head = _head(line) if newline else None
    if head is None:
        return None
    rest = blob[len(_MAGIC) + len(line) + 1 :]
    text, payload = rest[: head["key"]], rest[head["key"] :]
    if head["key"] != len(text) or head["payload"] != len(payload):
        return None
    if hashlib.sha256(payload).hexdigest() != head["sha256"]:
        return None
    try:
        return text.decode(), payload
    except UnicodeDecodeError:
        return None


def _head(line: bytes) -> dict[str, Any] | None:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(head, dict) or set(head) != {"key", "payload", "sha256"}:
        return None
    lengths = (head["key"], head["payload"])
    return head if all(type(n) is int and n >= 0 for n in lengths) else None


def _key_in(path: Path) -> str | None:
    """Key of an entry file, payload unread; None if invalid."""
    with _open_own(path) as file:
        if file.readline(len(_MAGIC)) != _MAGIC:
            return None
        head = _head(file.readline(_MOST_HEAD))
        if head is None or head["key"] > _MOST_BYTES:
            return None
        try:
            return file.read(head["key"]).decode()
        except UnicodeDecodeError:
            return None


def _open_own(path: Path) -> BinaryIO:
    """Open a regular file owned by this user; raises OSError for others and links."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(number, "rb")
    about = os.fstat(number)
    if not modes.S_ISREG(about.st_mode) or (hasattr(os, "geteuid") and about.st_uid != os.geteuid()):
        file.close()
        raise OSError(f"{path} is not a file of this user")
    return file


def _entries(directory: Path) -> list[tuple[float, int, Path]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(directory) as listed:
        for entry in listed:
            if entry.name.endswith(".bin") or entry.name.startswith(".new-"):
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    found.append((about.st_mtime, about.st_size, Path(entry.path)))
    return found


def _prepare(directory: Path) -> Path | None:
    """The directory, created with mode 0700; None, with a warning, if not writable."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = os.stat(directory)
    except OSError as error:
        _warn(f"no cache directory ({error}); compiled programs stay in memory")
        return None
    if hasattr(os, "geteuid"):
        _refuse_foreign(directory, about)
    if not os.access(directory, os.W_OK | os.X_OK):
        _warn(f"{directory} cannot be written; compiled programs stay in memory")
        return None
    return directory


def _refuse_foreign(directory: Path, about: os.stat_result) -> None:
    hint = "set TENSORIR_CACHE_DIR to a directory of your own with mode 0700"
    if about.st_uid != os.geteuid():
        message = f"the cache directory {directory} belongs to user {about.st_uid}, not to you ({os.geteuid()})"
        raise refuse(DeviceError, "cache.foreign-directory", message, hint=hint)
    if about.st_mode & 0o022:
        message = f"others may write the cache directory {directory} (mode {modes.S_IMODE(about.st_mode):04o})"
        raise refuse(DeviceError, "cache.foreign-directory", message, hint=f"chmod 700, or {hint}")


_warned: set[str] = set()


def _warn(message: str) -> None:
    """RuntimeWarning for the first message of the process; later ones are dropped."""
    if not _warned:
        _warned.add(message)
        warnings.warn(f"tensorir: {message}", RuntimeWarning, stacklevel=3)


_caches: dict[str, Cache] = {}


def default_cache() -> Cache:
    """Cache in ``default_directory()``, shared within the process."""
    directory = str(default_directory())
    if directory not in _caches:
        _caches[directory] = Cache(directory)
    return _caches[directory]


def stat() -> CacheStat:
    """Entries and bytes stored in the default cache, and this process's hits and misses."""
    return default_cache().stat()


def clear() -> int:
    """Remove every entry of the default cache; returns their number."""
    return default_cache().clear()
