"""``machine_here``: the machine of a CPU device of this computer, by a probe of its memory."""

from __future__ import annotations

import functools
import json
import math
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise

from tensorir._package import PACKAGE_VERSION
from tensorir.automatic.counts import kernels_of
from tensorir.automatic.facts import vector_lanes
from tensorir.codec import CodecError, decode, encode, travels
from tensorir.codegen.cfamily import emit
from tensorir.errors import TensorIRError
from tensorir.expr.compute import compute, dim, placeholder
from tensorir.lower.lowered import lowered
from tensorir.machine import Machine, machine_of
from tensorir.runtime.arguments import aligned_empty
from tensorir.runtime.base import Device
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.device import open_device
from tensorir.runtime.host import memory_here
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.machine import Section
from tensorir.runtime.timing import measure
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target

PROBE_S = 2.0
"""Seconds after which a probe gives up: the table is used then."""
BATCHES = 5
"""Batches in which each size of array is timed."""
PLAUSIBLE = 8.0
"""Largest factor between what is probed and the table: an emulator's or a halted machine's is not believed."""
CORE_BYTES = (1 << 19, 1 << 22, 1 << 25)
"""Bytes of the arrays of each core: in its own caches, in what is shared, in memory."""
MOST_CORES = 16
"""Cores of larger machines share caches of more bytes than a probe should fill."""
ELEMENT_BYTES, BLOCK = 8, 8192
"""Bytes that are read and written for an element, and elements of a block."""
_lock = threading.Lock()


@travels
@dataclass(frozen=True)
class Probe:
    """What a kernel took on a device of this computer.

    rates: bytes per second of one of ``cores`` while all of them move arrays of ``CORE_BYTES``; () if they could not be
           measured
    seconds: that the probe took, compilers included
    """

    rates: tuple[float, ...]
    cores: int
    seconds: float

    def applied(self, m: Machine) -> Machine:
        """The machine of a table with these rates; that of memory is shared by all cores."""
        ends = [round(math.sqrt(a * b)) for a, b in pairwise(CORE_BYTES)]
        levels = tuple(zip([*ends, math.inf], self.rates, strict=True))
        return replace(m, levels=levels, memory_s=self.rates[-1] * self.cores)

    def believed(self, m: Machine) -> bool:
        """True if each rate is within a factor ``PLAUSIBLE`` of the table's."""
        found = [rate / m.rate(n * m.cores) for rate, n in zip(self.rates, CORE_BYTES, strict=False)]
        return bool(found) and all(1 / PLAUSIBLE <= x <= PLAUSIBLE for x in found)


def machine_here(target: Target) -> Machine:
    """The machine that modelled seconds are of: for a CPU target made here with its device's rates of memory, probed
    once and kept in the cache of compiled programs; that of the table (``machine_of``) for other targets and where no
    device can be probed, or others use it.

    Rules read the table, so that a target is scheduled alike on every computer.
    """
    table = machine_of(target)
    if not target.here or target.kind != "cpu":
        return table
    with _lock:
        probe = probed(target.device or target.language)
    return table if probe is None else probe.applied(table)


@functools.cache
def probed(name: str) -> Probe | None:
    """The probe of a CPU device, from the cache or made now; None if it fails, is disturbed or not believed."""
    try:
        device = open_device(name)
        table = machine_of(device.target)
        key = cache_key(
            kind="machine", of=PACKAGE_VERSION, device=device.identity, target=device.target.text,
            sizes=(CORE_BYTES, BLOCK), table=repr(table),
        )  # fmt: skip
        found = _kept(key) or _made(key, device, table)
    except (TensorIRError, OSError, MemoryError):
        return None
    return found if found and found.believed(table) else None


def _kept(key: str) -> Probe | None:
    """The probe in the cache; None without one, and for one that is broken."""
    try:
        return decode(Probe, json.loads(default_cache().get(key) or b"null"))
    except (CodecError, ValueError):
        return None


def _made(key: str, device: Device, table: Machine) -> Probe | None:
    """A probe made now and put into the cache; None if others used the cores meanwhile."""
    began, rates = time.perf_counter(), list[float]()
    whole = CORE_BYTES[-1] * table.cores
    if table.cores <= MOST_CORES and 4 * whole <= memory_here():
        stream = _Stream(device, whole // ELEMENT_BYTES)
        with Section() as section:
            rates = _measured(stream, table.cores, began + PROBE_S)
        if section.load.disturbed:
            return None
    probe = Probe(tuple(rates), table.cores, time.perf_counter() - began)
    default_cache().put(key, json.dumps(encode(probe)).encode())
    return probe


class _Stream:
    """``y[i] = x[i] * 0.5 + 1`` over ``n`` elements, built for a device and launched with several n.

    moved: bytes of memory traffic per element, as the model counts them
    """

    def __init__(self, device: Device, most: int) -> None:
        self.most, n = most, dim("n", low=1, high=most)
        x = placeholder((n,), name="x")
        s = BaseSchedule([compute((n,), lambda i: x[i] * 0.5 + 1.0, name="y")], device.target)
        lanes = vector_lanes(device.target, 32)
        block, lane = s.split("y.i", [None, lanes])
        s.share_out(block, each=BLOCK // lanes)
        s.vectorize(lane)
        (counts,) = kernels_of(s.program, device.target, machine_of(device.target))
        self.moved = counts.moved / self.most
        self.kernel = CompiledProgram(emit(lowered(s), device.target, [], ()), device)
        self.arrays = [aligned_empty((self.most,), "float32") for _ in "xy"]
        self.arrays[0][:] = 0.5

    def seconds(self, n: int) -> float:
        """The median seconds of a launch over ``n`` elements."""
        call = self.kernel.bind(self.arrays[0][:n], out=self.arrays[1][:n])
        return measure(call, repeat=BATCHES, min_seconds=0.0).median_s


def _measured(stream: _Stream, cores: int, end: float) -> list[float]:
    """Bytes per second of a core for each of ``CORE_BYTES``; [] if that takes longer than until ``end``."""
    empty = stream.seconds(1)
    rates = list[float]()
    for nbytes in CORE_BYTES:
        n = nbytes * cores // ELEMENT_BYTES
        less = n // 2 if nbytes == CORE_BYTES[0] else 0  # so that launches, as long as that, cancel
        taken = stream.seconds(n) - (stream.seconds(less) if less else empty)
        rates.append((n - less) * stream.moved / cores / max(taken, 1e-9))
        if time.perf_counter() > end:
            return []
    return [max(rates[n:]) for n in range(len(rates))]  # a larger array is no faster
