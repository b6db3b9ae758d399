"""What a device computes and moves at most, measured by two kernels of ours; kept in the artifact cache."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorir.api.identity import describe
from tensorir.api.schedule import Schedule
from tensorir.codec import decode, encode, travels
from tensorir.errors import TensorIRError
from tensorir.expr.compute import compute, placeholder, reduce_axis
from tensorir.expr.reducers import sum as total
from tensorir.expr.tensor import Tensor
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.machine import Section
from tensorir.runtime.timing import slots
from tensorir.runtime.turns import Turns
from tensorir.target import Target
from tensorir.tune.record import Record

LOOK_S = 0.5  # seconds for which each kernel is timed
READ_BYTES = 512 << 20  # size of the array: many servers have caches of 256 MiB
CHAINS = 12  # multiply-adds that do not wait for each other: pipelines are 4 to 10 deep
STEPS = 32768  # a tenth of a millisecond and more: launching takes 15 us of a call
LOADS = 4  # loads in flight
_ABOUT = ("name", "driver", "platform", "target")


@travels
@dataclass(frozen=True)
class Peaks:
    """Operations and bytes a second, as measured; the fastest of many short parts.

    busy: what else the machine did meanwhile, in words; empty at rest
    """

    flops: float
    bytes_s: float
    busy: str = ""


def known_peaks(device: Mapping[str, object]) -> Peaks | None:
    """What was measured earlier on this machine of a device of this name, driver and limits (as records have them)."""
    found = default_cache().get(_key(device))
    try:
        return None if found is None else decode(Peaks, json.loads(found))
    except (ValueError, RecursionError):
        return None


def measured_peaks(record: Record) -> Peaks | None:
    """Measure the device of a record, in a second or two; None where it is not here.

    What was measured earlier stays where it was more: other programs only ever slow kernels down.
    """
    about = record.device
    try:
        device = open_device(str(about.get("id") or "") or None)
        if any(describe(device).get(key) != about.get(key) for key in _ABOUT):
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
        kernels=(CHAINS, STEPS, LOADS, READ_BYTES),
        host=platform.node(),
        **{key: device.get(key) for key in _ABOUT},
    )


def _measured(device: Device) -> Peaks:
    rates, section = [], Section()
    with Turns(device.place, "peaks").turn(lambda: None), section:
        for schedule, amount in (arithmetic(device.target), reading(device.target)):
            f = schedule.build(device)
            arrays = [np.ones(p.shape, np.float32) for p in f.emitted.inputs]
            rates.append(amount / _fastest(f.bind(*arrays)))
    return Peaks(rates[0], rates[1], section.load.words() if device.target.kind == "cpu" else "")


def _fastest(call: Any) -> float:
    """Seconds of one call."""
    call.wait()
    began = time.perf_counter()
    call.wait()
    slot = slots([call], time.perf_counter() - began)[0]
    found, end = [slot()], time.perf_counter() + LOOK_S
    while time.perf_counter() < end:
        found.append(slot())
    return min(found)


def arithmetic(target: Target) -> tuple[Schedule, int]:
    """Multiply-adds of float32 in registers, and how many operations they are."""
    blocks, lanes = _sizes(target)
    a, b = placeholder((blocks, CHAINS, lanes), name="A"), placeholder((STEPS,), name="B")
    k = reduce_axis(STEPS, name="k")
    c = compute((blocks, CHAINS, lanes), lambda i, n, t: total(a[i, n, t] * b[k], axis=k), name="C")
    return _scheduled(c, target, [a]), 2 * blocks * CHAINS * lanes * STEPS


def reading(target: Target) -> tuple[Schedule, int]:
    """Sums over an array that no cache holds, and its bytes."""
    blocks, lanes = _sizes(target)
    steps = READ_BYTES // (4 * blocks * LOADS * lanes)
    a, k = placeholder((blocks, steps, LOADS, lanes), name="A"), reduce_axis(steps, name="k")
    c = compute((blocks, LOADS, lanes), lambda i, n, t: total(a[i, k, n, t], axis=k), name="C")
    return _scheduled(c, target, []), 4 * blocks * steps * LOADS * lanes


def _scheduled(c: Tensor, target: Target, kept: list[Tensor]) -> Schedule:
    """Blocks of threads, or of vectors, each with its sums, and the inputs ``kept``, in registers."""
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
    """Blocks, and the threads or the lanes of each."""
    if target.kind == "cpu":
        return 4 * (target.units or 2), max(4, (target.vector_bytes or 16) // 4)
    return 8 * (target.units or 64), 256
