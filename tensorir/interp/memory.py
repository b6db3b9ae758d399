"""Interpreter memory that records writers and epochs, and raises Fault on races and undefined reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.numbers import Numbers
from tensorir.ir.build import as_int
from tensorir.ir.tree import Buffer, Scope

READ_BY_MANY = -2  # read by more than one thread
ADDED_ATOMICALLY = -3  # written by threads that add to it atomically


class Fault(Exception):
    """Raised for undefined behaviour of an interpreted kernel; ``problem`` describes it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class Cells:
    """Simulated memory of one buffer with all its copies. Elements are addressed by numbers over all copies.

    copies:  number of blocks or threads with separate copies
    values:  initial contents, counted as written; None: zeros that count as uninitialized
    watched: True to record readers and writers, so that unordered accesses by two threads raise Fault ``race.shared``
             or ``race.global``
    Methods raise Fault ``memory.uninitialised`` and ``memory.in-flight``; element numbers are not checked for bounds.
    """

    def __init__(self, b: Buffer, copies: int, dtype: np.dtype, values: np.ndarray | None = None, *,
                 watched: bool = False) -> None:  # fmt: skip
        self.buffer, self.scope = b, b.scope
        size = 1
        for side in b.shape:
            size *= as_int(side)
        self.size = size * b.lanes
        self.values = np.zeros(copies * self.size, dtype) if values is None else values.reshape(-1)
        self.written = np.zeros(copies * self.size, bool) if values is None else None
        self.whole, self.asked = False, 0  # whether all of it was found written, and how often somebody asked
        self.watched = watched
        self.pending: np.ndarray | None = None  # cells to which a copy is in flight
        self.reading: np.ndarray | None = None  # how many asynchronous instructions read a cell
        if watched:
            n = len(self.values)
            self.writer, self.wrote = np.full(n, -1, np.int32), np.zeros(n, np.int32)
            self.reader, self.had_read = np.full(n, -1, np.int32), np.zeros(n, np.int32)
            self.reading_block = np.full(n, -1, np.int32)

    def forget(self) -> None:
        """Mark the contents undefined, as after a new allocation."""
        self.pending = None
        self.whole, self.asked = False, 0
        if self.written is not None:
            self.written[:] = False

    def read(self, at: np.ndarray, me: np.ndarray, now: np.ndarray, block_of: np.ndarray,
             wanted: np.ndarray | None = None) -> np.ndarray:  # fmt: skip
        """Values of elements ``at``, read by threads ``me`` in barrier epochs ``now``. Raises Fault for races and
        uninitialized elements.

        block_of: block number of every thread;  wanted: mask of values that are used, None for all; others may be
                  undefined
        """
        self.need_written(at, wanted)
        if self.watched:
            self._conflict(self.writer[at], self.wrote[at], at, me, now, block_of, "reads", "wrote")
            old, since = self.reader[at], self.had_read[at]
            blocks = block_of[me]
            fresh = (old == -1) | (since != now)
            if self.scope is Scope.GLOBAL:  # a barrier orders the readers of this block alone
                home = self.reading_block[at]
                fresh = (old == -1) | ((since != now) & (home == blocks))
                self.reading_block[at] = np.where((home == -1) | (home == blocks), blocks, READ_BY_MANY)
                again = self.reading_block[at]
                if (clash := (again != blocks) & (again != READ_BY_MANY)).any():
                    self.reading_block[np.asarray(at)[clash]] = READ_BY_MANY
            self.reader[at] = np.where(fresh | (old == me), me, READ_BY_MANY)
            self.had_read[at] = now
            again = self.reader[at]
            if (clash := (again != me) & (again != READ_BY_MANY)).any():
                # several threads of this very statement read one cell
                self.reader[np.asarray(at)[clash]] = READ_BY_MANY
        found: np.ndarray = self.values[at]
        return found

    def under_way(self, at: np.ndarray) -> None:
        """Mark elements as being written by a copy or product in flight: accesses raise Fault."""
        if self.pending is None:
            self.pending = np.zeros(len(self.values), bool)
        self.pending[at] = True

    def land(self, at: np.ndarray, me: np.ndarray, now: np.ndarray) -> None:
        """Complete copies to elements ``at``: now written by threads ``me`` in barrier epochs ``now``."""
        if self.pending is not None:
            self.pending[at] = False
        if self.watched:
            self.writer[at], self.wrote[at] = me, now

    def depart(self, at: np.ndarray, value: np.ndarray) -> None:
        """Begin a TMA copy of ``value`` to elements ``at``; it is ordered by mbarriers, not block barriers. Raises
        Fault if they are in use.
        """
        self._need_landed(at, "written")
        if self.reading is not None and self.reading[at].any():
            cell = int(at[self.reading[at] > 0].flat[0]) % self.size
            what = (
                f"a copy to {self.buffer.name}[{cell}] begins while an instruction that nobody has waited for reads it"
            )
            raise Fault(Problem("memory.in-flight", what))
        self.values[at] = value
        if self.written is not None:
            self.written[at] = True
        if self.watched:
            self.writer[at] = self.reader[at] = -1
        self.under_way(at)

    def arrive(self, at: np.ndarray) -> None:
        """Complete TMA copies to elements ``at``."""
        if self.pending is not None:
            self.pending[at] = False

    def read_later(self, at: np.ndarray, change: int) -> None:
        """Note that an asynchronous reader of elements ``at`` begins (change 1) or completes (change -1)."""
        if self.reading is None:
            self.reading = np.zeros(len(self.values), np.int32)
        np.add.at(self.reading, at, change)

    def need_written(self, at: np.ndarray, wanted: np.ndarray | None = None) -> None:
        """Raise Fault if an element is uninitialized or in flight.

        wanted: mask of elements whose values are used; None for all
        """
        self._need_landed(at, "read")
        if self.written is None or self.whole:
            return
        missing = ~self.written[at] if wanted is None else ~self.written[at] & wanted
        if missing.any():
            cell = int(np.asarray(at)[missing].flat[0]) % self.size
            raise Fault(Problem("memory.uninitialised", f"{self.buffer.name}[{cell}] is read but was never written"))
        self.asked += 1
        if not self.asked & (self.asked - 1):  # rarely: it looks at all cells
            self.whole = bool(self.written.all())

    def _need_landed(self, at: np.ndarray, verb: str) -> None:
        if self.pending is not None and self.pending[at].any():
            cell = int(np.asarray(at)[self.pending[at]].flat[0]) % self.size
            what = f"{self.buffer.name}[{cell}] is {verb} while a copy to it is in flight, which nobody has waited for"
            raise Fault(Problem("memory.in-flight", what))

    def write(self, at: np.ndarray, value: Any, me: np.ndarray, now: np.ndarray, block_of: np.ndarray, *,
              repeats: bool = False) -> None:  # fmt: skip
        """Store ``value`` to elements ``at`` by threads ``me`` in barrier epochs ``now``. Raises Fault for races.

        repeats: True if several threads may write equal values to one element
        """
        self._need_landed(at, "written")
        if self.reading is not None and self.reading[at].any():
            cell = int(np.asarray(at)[self.reading[at] > 0].flat[0]) % self.size
            what = f"{self.buffer.name}[{cell}] is written while a copy of it that nobody has waited for is in flight"
            raise Fault(Problem("memory.in-flight", what))
        if self.watched and repeats:
            self._repeat(at, value, me, now, block_of)
        elif self.watched:
            self._conflict(self.writer[at], self.wrote[at], at, me, now, block_of, "writes", "wrote")
            self._conflict(self.reader[at], self.had_read[at], at, me, now, block_of, "writes", "read")
            self.writer[at] = me
            self.wrote[at] = now
            if (clash := self.writer[at] != me).any():
                self._race(at, me, clash, "writes", "wrote", self.writer[at])
        self.values[at] = value
        if self.written is not None:
            self.written[at] = True

    def add(self, at: np.ndarray, value: Any, me: np.ndarray, now: np.ndarray, block_of: np.ndarray,
            numbers: Numbers) -> None:  # fmt: skip
        """Add ``value`` atomically to elements ``at``. Raises Fault for races with non-atomic accesses."""
        self.need_written(at)
        if self.watched:
            who = np.where(self.writer[at] == ADDED_ATOMICALLY, -1, self.writer[at])
            self._conflict(who, self.wrote[at], at, me, now, block_of, "adds to", "wrote")
            self._conflict(self.reader[at], self.had_read[at], at, me, now, block_of, "adds to", "read")
            self.writer[at], self.wrote[at] = ADDED_ATOMICALLY, now
        numbers.add_at(self.values, at, value, self.buffer.dtype)

    def _repeat(self, at: np.ndarray, value: Any, me: np.ndarray, now: np.ndarray, block_of: np.ndarray) -> None:
        """Store to elements ``at``; another thread may have written an equal value. Raises Fault for other races."""
        who = np.where(_alike(self.values[at], value), -1, self.writer[at])
        self._conflict(who, self.wrote[at], at, me, now, block_of, "writes", "wrote")
        self._conflict(self.reader[at], self.had_read[at], at, me, now, block_of, "writes", "read")
        self.values[at] = value
        self.writer[at], self.wrote[at] = me, now
        if (clash := ~_alike(self.values[at], value)).any():
            self._race(at, me, clash, "writes", "wrote", self.writer[at])

    def _conflict(self, who: np.ndarray, when: np.ndarray, at: np.ndarray, me: np.ndarray, now: np.ndarray,
                  block_of: np.ndarray, verb: str, other: str) -> None:  # fmt: skip
        clash = (who != -1) & (who != me)
        if not clash.any():
            return
        if self.scope is Scope.SHARED:
            clash &= when == now
        else:  # barriers order the threads of one block only
            home = np.where(who == READ_BY_MANY, self.reading_block[at], block_of[np.where(who < 0, 0, who)])
            home = np.where(who == ADDED_ATOMICALLY, -1, home)  # blocks, in any order
            same_block = home == block_of[me]
            clash &= ~same_block | (when == now)
        if clash.any():
            self._race(at, me, clash, verb, other, who)

    def _race(self, at: np.ndarray, me: np.ndarray, clash: np.ndarray, verb: str, other: str, who: np.ndarray) -> None:
        n = int(np.argmax(clash))
        cell = int(np.asarray(at).flat[n]) % self.size
        mine = int(np.broadcast_to(me, clash.shape).flat[n])
        theirs = int(np.asarray(who).flat[n])
        by = f"thread {theirs}" if theirs >= 0 else "several threads"
        place = "shared" if self.scope is Scope.SHARED else "global"
        since = "since the last barrier" if self.scope is Scope.SHARED else "in the same kernel"
        raise Fault(
            Problem(f"race.{place}", f"thread {mine} {verb} {self.buffer.name}[{cell}], which {by} {other} {since}")
        )


def _alike(a: Any, b: Any) -> np.ndarray:
    """Boolean mask: True where elements are equal or both NaN."""
    return np.asarray((a == b) | ((a != a) & (b != b)))
