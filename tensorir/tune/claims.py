"""Coordination of processes that tune with the same log: reads their new results, and claims configurations in files.

Each process lists the configurations it is measuring in its own file next to its segment, replaced atomically by
renaming: no locks, so it works on network file systems. If two processes claim one configuration at the same time, at
least one sees the other's claim and withdraws. A claim is void after its time limit, or when its file or process is
gone. A record is written before its claim ends, so reading first claims, then records, misses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tensorir.tune.circumstances import Limits
from tensorir.tune.record import MAX_LINE, BadRecord, Record, decode
from tensorir.tune.store import host_name, open_regular

CLAIM_SUFFIX = ".claim"
MAX_CLAIM = 1 << 20
RUNS_PER_TRIAL = 12.0
"""Launches of a trial, each up to ``run_s`` seconds, in the duration after which a claim expires."""
SETUP_S = 120.0
"""Seconds of a trial besides compiling and running (its worker, the reference), in that duration."""


class Others:
    """Other processes writing to the same log folder.

    limits: of this process's trials; its claims expire after a trial's longest duration
    """

    def __init__(self, folder: Path, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._limit_s = limits.compile_s + RUNS_PER_TRIAL * limits.run_s + SETUP_S
        self._own: Path | None = None
        self._segment = ""
        self._read = {path.name: path.stat().st_size for path in self._files(".jsonl")}

    def begin(self, segment: Path) -> None:
        """Set ``segment`` as the file of this process's records."""
        self._segment, self._own = segment.name, segment.with_suffix(CLAIM_SUFFIX)

    def end(self) -> None:
        """Withdraw this process's claims."""
        own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(OSError):
                own.unlink(missing_ok=True)

    def _files(self, suffix: str) -> list[Path]:
        try:
            return sorted(Path(e.path) for e in os.scandir(self._folder) if e.name.endswith(suffix) and e.is_file())
        except OSError:
            return []

    def measured(self) -> Iterator[Record]:
        """Yield records added by other processes since the last call."""
        for path in self._files(".jsonl"):
            if path.name == self._segment:
                continue
            with contextlib.suppress(OSError):
                yield from self._added(path)

    def _added(self, path: Path) -> list[Record]:
        begin, found = self._read.get(path.name, 0), list[Record]()
        if path.stat().st_size <= begin:
            return found
        with open_regular(path) as file:
            file.seek(begin)
            while (line := file.readline(MAX_LINE + 1)).endswith(b"\n"):
                self._read[path.name] = file.tell()
                with contextlib.suppress(BadRecord):
                    found.append(decode(line))
        return found

    def claimed(self) -> set[str]:
        """Configurations that other processes are measuring, as keys from ``key_of`` (JSON text)."""
        return {key for path in self._files(CLAIM_SUFFIX) if path != self._own for key in self._keys(path)}

    def _keys(self, path: Path) -> list[str]:
        """Keys in a claim file; [] for an expired one, which is deleted."""
        try:
            with open_regular(path) as file:
                claim = json.loads(file.read(MAX_CLAIM))
            until, pid, host, keys = claim["until"], int(claim["pid"]), claim["host"], [str(k) for k in claim["keys"]]
            void = float(until) < self._clock() or (host == host_name() and not _lives(pid))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return []
        if void:
            with contextlib.suppress(OSError):
                path.unlink()
            return []
        return keys

    def claim(self, keys: Collection[str], wanted: str) -> bool:
        """True after claiming configurations ``keys`` (replacing earlier claims); False if another process already has
        ``wanted``, one of them.

        Where files cannot be written nothing is claimed and the result is True.
        """
        if self._own is None:
            return True
        if wanted in self.claimed():
            return False
        self._write(keys)
        if wanted not in self.claimed():
            return True
        self._write([key for key in keys if key != wanted])
        return False

    def _write(self, keys: Collection[str]) -> None:
        assert self._own is not None
        claim = {"pid": os.getpid(), "host": host_name(), "until": self._clock() + self._limit_s, "keys": [*keys]}
        scratch = self._own.with_name(f".{self._own.name}.tmp")
        try:
            scratch.write_text(json.dumps(claim), encoding="ascii")
            scratch.replace(self._own)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
