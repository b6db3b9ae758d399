"""Measures device peaks (flop/s, bytes/s) with two kernels, caches them, and relates kernels to them."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorir.api.identity import describe
from tensorir.api.identity import target_of as find
from tensorir.api.schedule import Schedule
from tensorir.api.workload import Workload
from tensorir.cli.titles import brief
from tensorir.codec import decode, encode, travels
from tensorir.errors import TensorIRError
from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.gpu_devices import gpu_of
from tensorir.ir.dtypes import DTYPES
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.machine import Section
from tensorir.runtime.timing import slots
from tensorir.runtime.turns import DeviceTurns
from tensorir.show.figures import Point, Roof
from tensorir.target import Target
from tensorir.tune.record import Record
from tensorir.tune.summary import Tuned

LOOK_S = 0.5  # seconds for which each kernel is timed
READ_BYTES = 512 << 20  # size of the array: many servers have caches of 256 MiB
MULTIPLY_ADD_CHAINS = 12  # multiply-adds that do not wait for each other: pipelines are 4 to 10 deep
REDUCTION_STEPS = 32768  # a tenth of a millisecond and more: launching takes 15 us of a call
LOADS_IN_FLIGHT = 4  # loads in flight
LEAST_S = 1e-9
"""Seconds of the shortest time that a device can take."""
_DEVICE_KEYS = ("name", "driver", "platform", "target")


@travels
@dataclass(frozen=True)
class Peaks:
    """Measured peak rates of a device, in flop/s (float32) and bytes/s: the fastest of many short runs.

    busy: machine load during measurement in words; "" if idle
    """

    flops: float
    bytes_s: float
    busy: str = ""


def known_peaks(device: Mapping[str, object]) -> Peaks | None:
    """Peaks from the cache for a device of this name, driver and limits on this machine; None if not measured yet."""
    found = default_cache().get(_key(device))
    try:
        return None if found is None else decode(Peaks, json.loads(found))
    except (ValueError, RecursionError):
        return None


def measured_peaks(record: Record) -> Peaks | None:
    """Peaks of a record's device, measured now (1 to 2 s) and cached; None if the device is absent, has another name,
    driver or limits than the record's, or fails.

    Each rate is the larger of the measured and the cached one: other programs only ever slow kernels down.
    """
    about = record.device
    try:
        device = open_device(str(about.get("id") or "") or None)
        if any(describe(device).get(key) != about.get(key) for key in _DEVICE_KEYS):
            return None
        found = _measured(device)
    except TensorIRError:
        return None
    if (before := known_peaks(about)) is not None:
        busy = found.busy and before.busy
        found = Peaks(max(found.flops, before.flops), max(found.bytes_s, before.bytes_s), busy)
    default_cache().put(_key(about), json.dumps(encode(found)).encode())
    return found


def _key(device: Mapping[str, object]) -> str:
    return cache_key(
        kind="peaks",
        kernels=(MULTIPLY_ADD_CHAINS, REDUCTION_STEPS, LOADS_IN_FLIGHT, READ_BYTES),
        host=platform.node(),
        **{key: device.get(key) for key in _DEVICE_KEYS},
    )


def _measured(device: Device) -> Peaks:
    rates, section = [], Section()
    with DeviceTurns(device.place, "peaks").turn(lambda: None), section:
        for schedule, amount in (arithmetic(device.target), reading(device.target)):
            f = schedule.build(device)
            arrays = [np.ones(p.shape, np.float32) for p in f.emitted.inputs]
            rates.append(amount / _fastest(f.bind(*arrays)))
    return Peaks(rates[0], rates[1], section.load.words() if device.target.kind == "cpu" else "")


def _fastest(call: Any) -> float:
    """Seconds of one call of a bound launch: the minimum over slots repeated for ``LOOK_S`` seconds."""
    call.wait()
    began = time.perf_counter()
    call.wait()
    slot = slots([call], time.perf_counter() - began)[0]
    found, end = [slot()], time.perf_counter() + LOOK_S
    while time.perf_counter() < end:
        found.append(slot())
    return min(found)


def arithmetic(target: Target) -> tuple[Schedule, int]:
    """(schedule of a kernel of float32 multiply-adds in registers, its number of floating-point operations)."""
    blocks, lanes = _sizes(target)
    a, b = placeholder((blocks, MULTIPLY_ADD_CHAINS, lanes), name="A"), placeholder((REDUCTION_STEPS,), name="B")
    k = reduce_axis(REDUCTION_STEPS, name="k")
    c = compute((blocks, MULTIPLY_ADD_CHAINS, lanes), lambda i, n, t: total(a[i, n, t] * b[k], axis=k), name="C")
    return _scheduled(c, target, [a]), 2 * blocks * MULTIPLY_ADD_CHAINS * lanes * REDUCTION_STEPS


def reading(target: Target) -> tuple[Schedule, int]:
    """(schedule of a kernel that sums an array larger than any cache, bytes of this array)."""
    blocks, lanes = _sizes(target)
    steps = READ_BYTES // (4 * blocks * LOADS_IN_FLIGHT * lanes)
    a, k = placeholder((blocks, steps, LOADS_IN_FLIGHT, lanes), name="A"), reduce_axis(steps, name="k")
    c = compute((blocks, LOADS_IN_FLIGHT, lanes), lambda i, n, t: total(a[i, k, n, t], axis=k), name="C")
    return _scheduled(c, target, []), 4 * blocks * steps * LOADS_IN_FLIGHT * lanes


def _scheduled(c: Tensor, target: Target, kept: list[Tensor]) -> Schedule:
    """Schedule of ``c`` over blocks of threads, or of vectors on CPUs, with accumulators and the inputs ``kept`` in
    registers.
    """
    s = Schedule(c, target=target)
    on_cpu = target.kind == "cpu"
    s.reorder("C.i", *(("C.k", "C.n", "C.t") if on_cpu else ("C.t", "C.k", "C.n")))
    s.bind("C.i", "block.x")
    home = "C.i" if on_cpu else "C.t"
    s.stage_out(c, at=home, scope="register")
    for t in kept:
        s.stage_in(t, at=home, scope="register")
    s.unroll("C.n")
    if on_cpu:
        s.vectorize("C.t")
    else:
        s.bind("C.t", "thread.x")
    return s


def _sizes(target: Target) -> tuple[int, int]:
    """(number of blocks, threads per block); on CPUs (number of blocks, lanes of a vector)."""
    if target.kind == "cpu":
        return 4 * (target.units or 2), max(4, (target.vector_bytes or 16) // 4)
    return 8 * (target.units or 64), 256


@dataclass(frozen=True)
class Above:
    """A workload's best kernel relative to the roofline of its device.

    point: its position; None if the workload's operations are unknown, or its time is impossible
    roof:  measured peaks of the device in float32, or those of a data sheet; None if unknown
    busy:  machine load while the peaks were measured, in words
    why:   reason why no share can be given; "" if it can
    """

    point: Point | None
    roof: Roof | None
    busy: str
    why: str

    @property
    def share(self) -> float | None:
        """Rate of the best kernel divided by the roof at its intensity, above 1 if it reads from caches; None if
        ``why`` has a reason, or point or roof is unknown.
        """
        if self.why or self.point is None or self.roof is None:
            return None
        return self.point.best / self.roof.at(self.point.intensity)[0]


class Roofs:
    """Rooflines of devices by record; peaks come from the cache.

    measure: True: measure devices that are present but not in the cache
    """

    def __init__(self, measure: bool) -> None:
        self._measure = measure
        self._found: dict[str, Peaks | None] = {}

    def above(self, t: Tuned, work: Workload | None) -> Above:
        """The best kernel of the tuning result ``t`` relative to its device's roofline.

        work: its workload; None if it is defined outside of this package
        """
        point = None if work is None else _point(t, work)
        if work is None or point is None:
            return Above(None, None, "", "its operations are not known here" if work is None else "no operations")
        peaks = self._peaks(t)
        if peaks is None:
            return Above(
                point,
                _sheet(target_of(t)),
                "",
                "not measured: the device is not here" if self._measure else "not measured: --no-peaks",
            )
        roof = Roof(peaks.flops, peaks.bytes_s, "measured")
        if peaks.busy and point.high > 1.05 * roof.at(point.intensity)[0]:
            return Above(point, roof, peaks.busy, "not measured: the best is above what this busy machine shows")
        others = sorted({a.dtype for a in (*work.inputs, *work.outputs)} - {"float32"})
        others += [str(p) for p in (work.parameters.get("precision", "fp32"),) if p != "fp32"]
        if others and roof.at(point.intensity)[1] == "arithmetic":
            return Above(point, roof, peaks.busy, f"not measured for {', '.join(others)}")
        if point.best > 1.05 * peaks.flops:  # Winograd's are fewer operations than are counted
            return Above(point, roof, peaks.busy, "not measured: the best is above the peak of multiply-adds")
        return Above(point, roof, peaks.busy, "")

    def _peaks(self, t: Tuned) -> Peaks | None:
        assert t.best is not None
        device: Mapping[str, Any] = t.best.record.device
        name = str(sorted((k, str(v)) for k, v in device.items()))
        if name not in self._found:
            found = known_peaks(device)
            if self._measure and device.get("id") and (found is None or found.busy):  # then it was no peak
                found = measured_peaks(t.best.record) or found
            self._found[name] = found
        return self._found[name]


def target_of(t: Tuned) -> Target | None:
    """Target of the best configuration of ``t``; None if there is no best one, or this version does not know its
    target.
    """
    try:
        return None if t.best is None else find(t.best.record)
    except TensorIRError:
        return None


def _sheet(target: Target | None) -> Roof | None:
    gpu = None if target is None else gpu_of(target)
    if gpu is None:
        return None
    return Roof(gpu.threads_rate * gpu.units * gpu.clock, gpu.dram, f"{gpu.name} by its data sheet", measured=False)


def _point(t: Tuned, work: Workload) -> Point | None:
    """Roofline position of the best kernel: flop/byte, flop/s; None for workloads without operations and impossible
    times.
    """
    assert t.best is not None
    arrays = [a for a in (*work.inputs, *work.outputs) if isinstance(a, Tensor)]
    moved = sum(DTYPES[a.dtype].bits * math.prod(map(int, a.shape)) // 8 for a in arrays)
    if t.best.time_s < LEAST_S or not work.flops or not moved:
        return None
    default = None if t.default_s is None or t.default_s < LEAST_S else work.flops / t.default_s
    low, best, high = (work.flops / max(s, LEAST_S) for s in (t.best.high_s, t.best.time_s, t.best.low_s))
    return Point(brief(t.workload), work.flops / moved, best, low, high, default)
