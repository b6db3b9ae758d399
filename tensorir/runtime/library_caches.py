"""Cache folders of PoCL and CuPy: private ones in place of unwritable ones; search for damaged files in PoCL's."""

from __future__ import annotations

import os
import re
import stat
import struct
import tempfile
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

_UNLOADED = re.compile(r'dlopen\("([^"\n]+\.so)"\) failed')
_CACHE_DEPTH = 4  # folders of PoCL's cache around a kernel's machine code
_ELF = struct.Struct("<16s HHIQ QQ IHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_UNFINISHED = "tempfile_"
_BITCODE = (b"BC\xc0\xde", b"\xde\xc0\x17\x0b")


def pocl_cache() -> Path:
    """PoCL's kernel cache folder: ``POCL_CACHE_DIR`` or PoCL's default; it need not exist."""
    default = f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/pocl/kcache"
    return Path(os.environ.get("POCL_CACHE_DIR") or os.path.expanduser(default))


def pocl_files(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield (file, true if complete) of binaries in PoCL's cache, judged by ELF headers.

    Files that PoCL is writing, or left unfinished, have other names and are never loaded; they are not listed.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            if name.startswith(_UNFINISHED):
                continue
            whole = {".so": _is_elf, ".bc": _is_bitcode}.get(name[-3:])
            if whole is None:
                continue
            path = os.path.join(place, name)
            try:
                with open(path, "rb", buffering=0) as file:
                    good = whole(file)
            except FileNotFoundError:  # it has just been removed
                continue
            except OSError:
                good = False
            yield Path(path), good


def damaged_pocl_cache(output: str) -> Path | None:
    """PoCL's cache folder if ``output`` of an aborted process names a binary there that could not be loaded, or if one
    is incomplete; else None.
    """
    named = _UNLOADED.search(output)
    if named is not None:
        above = Path(named[1]).parents
        return above[_CACHE_DEPTH] if len(above) > _CACHE_DEPTH else above[0]
    folder = pocl_cache()
    return None if all(whole for _, whole in pocl_files(folder)) else folder


def _is_elf(file: FileIO) -> bool:
    """True if the file contains everything its ELF headers describe."""
    size, head = os.fstat(file.fileno()).st_size, file.read(_ELF.size)
    if len(head) < _ELF.size or not head.startswith(b"\x7fELF"):
        return False
    if head[4:6] != b"\x02\x01":  # of 32 bits or the other byte order: not looked at any further
        return True
    *_, start, sections, _, _, each, count, wide, many, _ = _ELF.unpack(head)
    if start > size or each != _SEGMENT.size:
        return False
    file.seek(start)
    table = file.read(each * count)
    if sections + wide * many > size or len(table) < each * count:
        return False
    return all(s[2] + s[5] <= size for s in _SEGMENT.iter_unpack(table))


def _is_bitcode(file: FileIO) -> bool:
    return file.read(4) in _BITCODE


def ensure_cache(variable: str, default: str) -> None:
    """Point environment variable ``variable`` to a private folder if its present folder, or ``default``, is not
    writable.

    Private to this user, since the kernels in it are executed. If no such folder is available, nothing changes.
    """
    folder = Path(os.environ.get(variable) or os.path.expanduser(default))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return
    except OSError:
        pass
    try:
        os.environ[variable] = str(_own(variable.partition("_")[0].lower()))
    except OSError:  # there is no place for temporary files either
        return


def _own(name: str) -> Path:
    """A private temporary folder, the same each time if possible."""
    user = os.geteuid() if hasattr(os, "geteuid") else os.getpid()
    place = Path(tempfile.gettempdir(), f"tensorir-{name}-{user}")
    place.mkdir(mode=0o700, exist_ok=True)
    about = place.lstat()
    mine = about.st_uid == user and stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
    return place if mine else Path(tempfile.mkdtemp(prefix=f"tensorir-{name}-"))
