"""The arrays of a run, between red zones, in a file without a name that its process shares."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Self

import numpy as np

POISON = 0xFF
"""Every byte of what a kernel has yet to write: NaN, -1."""
RED_ZONE = 4096
"""Bytes on each side of an array that belong to nobody."""


class Placed:
    """Arrays of some kind and count, ``align`` bytes past a multiple of 256, full of poison as all around them.

    file: a descriptor, ``size``: its bytes, ``place``: of each array, in it;  arrays: by name, of one dimension
    """

    def __init__(self, wanted: Mapping[str, tuple[np.dtype, int, int]]) -> None:
        self.place, self.size = dict[str, int](), 0
        for name, (kind, count, align) in wanted.items():
            self.place[name] = self.size + RED_ZONE + align % 256
            self.size += -(-(kind.itemsize * count + 2 * RED_ZONE + 512) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._open = _nameless()
        self.file = self._open.fileno()
        os.truncate(self.file, self.size)
        raw = np.frombuffer(mmap.mmap(self.file, self.size), np.uint8)
        raw[...] = POISON
        self.arrays = {
            name: raw[self.place[name] :][: kind.itemsize * count].view(kind)
            for name, (kind, count, _) in wanted.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()  # the arrays stay as long as someone has them


def _nameless() -> IO[bytes]:
    """In memory, where the system has such files."""
    try:
        return os.fdopen(os.memfd_create("tensorir"), "r+b", buffering=0)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()
