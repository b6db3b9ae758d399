"""Measures machine load during timing: CPU time of other processes, and time stolen by other virtual machines."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorir.codec import CodecError, decode, encode, travels
from tensorir.errors.shown import Shown

STAT = Path("/proc/stat")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01
_BUSY_COLUMNS = (1, 2, 3, 6, 7)  # user, nice, system, irq, softirq
_STOLEN = 8  # ran elsewhere: another guest of the same host
DISTURBING_SHARE = 0.1  # of the cores, or
SLACK_S = 0.03  # in sum: the steps of the counters
DISTURBING_CORES = 0.5  # of one core, from which others disturb: a kernel waits for the slowest of its threads


@travels(sparse=True)
@dataclass(frozen=True, repr=False)
class ProcessorLoad(Shown):
    """Processor time of others on the cores that this process may use, summed over the sections of timing.

    seconds: length of the sections; 0 where the system does not say
    others, stolen: seconds of processor time that other processes, or other guests of the host, took meanwhile. The
             system counts in steps of 10 ms, so short sections err, and sums of them do not
    cores:   that this process may use
    average: of runnable processes in the last minute (``os.getloadavg``), the highest seen; None where there is none
    """

    seconds: float = 0.0
    others: float = 0.0
    stolen: float = 0.0
    cores: int = 1
    average: float | None = None

    @property
    def used(self) -> float:
        """Cores used by other processes, on average."""
        return max(0.0, self.others) / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> float:
        """Cores' worth of stolen time, on average."""
        return max(0.0, self.stolen) / self.seconds if self.seconds else 0.0

    @property
    def disturbed(self) -> bool:
        """True if others and stolen time took more than a tenth of the cores, or half a core, over the sections (and
        0.03 s in all): timings then do not represent an idle machine.
        """
        taken = max(0.0, self.others) + max(0.0, self.stolen)
        return taken > min(DISTURBING_SHARE * self.cores, DISTURBING_CORES) * self.seconds + SLACK_S

    def __add__(self, other: ProcessorLoad) -> ProcessorLoad:
        averages = [a for a in (self.average, other.average) if a is not None]
        seconds, others, stolen = (a + b for a, b in zip(self._sums(), other._sums(), strict=True))
        return ProcessorLoad(seconds, others, stolen, max(self.cores, other.cores), max(averages, default=None))

    def _sums(self) -> tuple[float, float, float]:
        return self.seconds, self.others, self.stolen

    def rounded(self) -> ProcessorLoad | None:
        """Rounded fields for logs; None if nothing is known."""
        if not self.seconds:
            return None
        seconds, others, stolen = (round(value, 4) for value in self._sums())
        average = None if self.average is None else round(self.average, 2)
        return ProcessorLoad(seconds, others, stolen, self.cores, average)

    def fields(self) -> dict[str, object]:
        """JSON fields; {} if nothing is known."""
        found = self.rounded()
        return {} if found is None else encode(found)

    @classmethod
    def of(cls, fields: object) -> ProcessorLoad:
        """ProcessorLoad from JSON fields; an idle machine's for invalid ones."""
        try:
            found = decode(cls, fields or {})
        except CodecError:
            return cls()
        return found if found.cores > 0 else cls()

    @classmethod
    def sum(cls, some: Iterable[object]) -> ProcessorLoad:
        """Sum of the loads in several JSON objects (``fields``); invalid ones count as idle."""
        total = cls()
        for fields in some:
            total += cls.of(fields)
        return total

    def words(self) -> str:
        """``other programs used 1.7 of 2 cores``; "" if undisturbed."""
        if not self.disturbed:
            return ""
        parts = [f"other programs used {self.used:.1f} of {self.cores} cores"] if self.used > self.lost / 4 else []
        parts += [f"{self.lost / self.cores:.0%} of their time was stolen"] if self.lost > self.used / 4 else []
        return " and ".join(parts)


NO_LOAD = ProcessorLoad()


class Section:
    """Context manager around timed work: ``with Section() as section``, then ``section.load``, which is ``NO_LOAD``
    inside, and on systems without counters.
    """

    load = NO_LOAD

    def __enter__(self) -> Section:
        self._began, self._own, self._taken = time.perf_counter(), time.process_time(), _taken()
        return self

    def __exit__(self, *_: object) -> None:
        taken, seconds = _taken(), time.perf_counter() - self._began
        if taken is None or self._taken is None:
            return
        own = time.process_time() - self._own
        busy, stolen = (after - before for after, before in zip(taken, self._taken, strict=True))
        self.load = ProcessorLoad(seconds, busy - own, stolen, len(_cores()), _average())


def _cores() -> frozenset[int]:
    may = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return frozenset(may)


def _average() -> float | None:
    with contextlib.suppress(OSError, AttributeError):
        return os.getloadavg()[0]
    return None


def _taken() -> tuple[float, float] | None:
    """(busy seconds of this process's cores, stolen seconds) since boot; None if the system has no counters."""
    try:
        rows = list(_rows(_cores()))
    except (OSError, ValueError, IndexError):
        return None
    return None if not rows else (sum(a for a, _ in rows) * _TICK_S, sum(b for _, b in rows) * _TICK_S)


def _rows(cores: frozenset[int]) -> Iterator[tuple[int, int]]:
    for line in STAT.read_text(encoding="ascii").splitlines():
        words = line.split()
        if words and words[0].startswith("cpu") and words[0][3:].isdigit() and int(words[0][3:]) in cores:
            yield sum(int(words[n]) for n in _BUSY_COLUMNS), int(words[_STOLEN])
