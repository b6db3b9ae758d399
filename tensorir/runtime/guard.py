"""Guarded kernel runs on copies with guard bytes and poisoned outputs, to detect stray and missing writes."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.codegen.source import KernelLaunch, Param, Source, itemsize
from tensorir.errors import Problem
from tensorir.runtime.arguments import bytes_of
from tensorir.runtime.base import CompiledModule, Device, Step
from tensorir.runtime.call import CallArguments

GUARD_BYTES = 4096  # on each side of every array
PROBE_SECONDS = 0.005  # long against the 30-80 us of one finish
LONG_SECONDS = 0.5  # what takes longer is not repeated to see whether something disturbed it
_PROBE_REPEATS = 3
_RESIDENT_BLOCKS = 32  # blocks that a multiprocessor holds at most; a core holds one
_WIDE_ITEMS = 65535  # work-items of a dimension from which PoCL has a variant of its own
_CANARY = 0xA5
_POISONS = (0xFF, 0x5A)  # 0xFF… is a NaN in every float type

Bytes = NDArray[np.uint8]


def launches(source: Source) -> list[KernelLaunch]:
    """Kernels of a source whose grid has at least one block, in order."""
    return [k for k in source.kernels if prod(k.grid) > 0]


def run(source: Source, device: Device, module: CompiledModule, call: CallArguments) -> tuple[Problem, ...]:
    """Run all kernels of a call on guarded copies and fill its outputs; returns the Problems found.

    ``launch.out-of-bounds``: a guard byte next to an array was overwritten; ``launch.input-written``;
    ``launch.unwritten``: output elements that kept both of two poison values. () and no run if all outputs are empty.
    """
    if call.empty:
        return ()
    problems, outputs = _once(source, device, module, call, _POISONS[0])
    suspects = [p for p in source.outputs if _untouched(outputs[p.name], p, _POISONS[0]).any()]
    if suspects:  # elements may really hold that value: they do not hold both poisons
        again, others = _once(source, device, module, call, _POISONS[1])
        problems += [p for p in again if p not in problems]
        for p in suspects:
            left = _untouched(outputs[p.name], p, _POISONS[0]) & _untouched(others[p.name], p, _POISONS[1])
            if left.any():
                problems.append(_unwritten(p, left))
    for p in source.outputs:
        _deliver(device, call, p, outputs[p.name])
    return tuple(problems)


def probe(
    source: Source, device: Device, module: CompiledModule, call: CallArguments, enough_s: float = math.inf
) -> tuple[float, bool]:
    """(estimated seconds of a run, true if lazy initialization is complete), from some blocks of each kernel; ``once``
    kernels are excluded.

    Kernels after the estimate exceeds ``enough_s`` are not run. A kernel first runs as many blocks as the device holds
    at a time, then eight times as many, until PROBE_SECONDS or all. Each kernel sees the results of those before it.
    Kernels with no more blocks than resident are not counted.
    """
    held = max(1, device.target.units) * (1 if device.target.kind == "cpu" else _RESIDENT_BLOCKS)
    if call.empty:
        return 0.0, True
    arrays = _Arrays(source, device, call, _POISONS[0])
    seconds, before = 0.0, list[KernelLaunch]()
    try:
        warm = _warmed(source, device, module, arrays)
        for launch in launches(source):
            if not launch.once and prod(launch.grid) > held:
                arrays.fill()
                for earlier in before:
                    module.step(earlier, arrays.of(earlier), False)()
                seconds += _probed(launch, held, device, module, arrays.of(launch))
                if seconds > enough_s:
                    break
            before.append(launch)
    except Exception as error:  # each runtime has its own
        raise device.failure(error) from None
    return seconds, warm


def warm(source: Source, device: Device, module: CompiledModule, call: CallArguments) -> None:
    """Run some blocks of each kernel, up to the first that reads integers computed by others, as they may be indices.

    PoCL compiles again for dimensions of 65535 work-items or more, so many are run in that case.
    """
    if call.empty:
        return
    try:
        _warmed(source, device, module, _Arrays(source, device, call, _POISONS[0]))
    except Exception as error:  # each runtime has its own
        raise device.failure(error) from None


def _warmed(source: Source, device: Device, module: CompiledModule, arrays: _Arrays) -> bool:
    """Run some blocks of each kernel on guarded copies; False if it ended before a kernel that reads integers computed
    by others, which may be indices.
    """
    places = {p.name for p in source.params if p.role == "workspace" and "float" not in p.dtype}
    arrays.fill()
    for launch in launches(source):
        if not places.isdisjoint(launch.params):
            device.finish()
            return False
        few = [
            min(g, -(-_WIDE_ITEMS // b)) if g * b >= _WIDE_ITEMS else 1
            for g, b in zip(launch.grid, launch.block, strict=True)
        ]
        whole = -(-few[0] // launch.cluster) * launch.cluster
        module.step(replace(launch, grid=(whole, few[1], few[2])), arrays.of(launch), True)()
    device.finish()
    return True


def _probed(launch: KernelLaunch, held: int, device: Device, module: CompiledModule, args: list[Any]) -> float:
    """Estimated seconds of ``launch``: those of its first blocks, scaled to all; ``held``: blocks to begin with."""
    blocks, few, first = prod(launch.grid), held, True
    while True:
        x = min(launch.grid[0], -(-few // launch.cluster) * launch.cluster)
        y = min(launch.grid[1], -(-few // x))
        part = (x, y, min(launch.grid[2], -(-few // (x * y))))
        step = module.step(replace(launch, grid=part), args, True)
        if first:  # some runtimes compile at the first launch
            _seconds(step, device)
            first = False
        seconds = _seconds(step, device)
        for _ in range(_PROBE_REPEATS if seconds < LONG_SECONDS else 0):  # a small one may only have been disturbed
            if seconds >= PROBE_SECONDS:
                seconds = min(seconds, _seconds(step, device))
        if seconds >= PROBE_SECONDS or prod(part) >= blocks:
            return float(seconds * blocks / prod(part))
        few *= 8


def _seconds(step: Step, device: Device) -> float:
    device.finish()
    started = time.perf_counter()
    step()
    device.finish()
    return time.perf_counter() - started


class _Arrays:
    """Copies of a call's arrays with guard bytes."""

    def __init__(self, source: Source, device: Device, call: CallArguments, poison: int) -> None:
        self.pad = -(-GUARD_BYTES // device.base_align) * device.base_align
        self.before: dict[str, Bytes] = {}
        self._device = device
        self._whole: dict[str, Any] = {}
        self._memories: dict[str, Any] = dict(call.scalars)
        for p in source.params:
            if p.role == "scalar":
                continue
            inside = _contents(p, call, poison)
            # reads beyond an input see NaN; writes beyond an output must change a byte
            edge = np.full(self.pad, _POISONS[0] if _is_read_only(p) else _CANARY, np.uint8)
            self.before[p.name] = np.concatenate([edge, inside, edge])
            self._whole[p.name] = device.allocate(self.before[p.name].size)
            self._memories[p.name] = device.part(self._whole[p.name], self.pad, inside.size)

    def fill(self) -> None:
        for name, content in self.before.items():
            self._device.write(self._whole[name], content)

    def of(self, launch: KernelLaunch) -> list[Any]:
        return [self._memories[name] for name in launch.params]

    def after(self, name: str) -> Bytes:
        found = np.empty_like(self.before[name])
        self._device.read(self._whole[name], found)
        return found


def _once(
    source: Source, device: Device, module: CompiledModule, call: CallArguments, poison: int
) -> tuple[list[Problem], dict[str, Bytes]]:
    arrays = _Arrays(source, device, call, poison)
    arrays.fill()
    try:
        for launch in launches(source):
            module.step(launch, arrays.of(launch), False)()
        device.finish()
    except Exception as error:  # each runtime has its own
        raise device.failure(error) from None
    problems, outputs = [], {}
    for p in source.params:
        if p.role == "scalar":
            continue
        after = arrays.after(p.name)
        problems += _compare(p, arrays.before[p.name], after, arrays.pad)
        if p.role == "output":
            outputs[p.name] = after[arrays.pad : after.size - arrays.pad]
    return problems, outputs


def _is_read_only(p: Param) -> bool:
    return p.role in ("input", "constant")


def _contents(p: Param, call: CallArguments, poison: int) -> Bytes:
    if p.role == "constant":
        return np.frombuffer(p.data or b"", np.uint8)
    if p.role == "input":
        argument = call.inputs[p.name]
        if argument.native == "numpy":
            return bytes_of(np.ascontiguousarray(argument.array))
        return bytes_of(np.ascontiguousarray(argument.array.get()))
    return np.full(prod(p.shape) * itemsize(p.dtype), poison, np.uint8)


def _compare(p: Param, before: Bytes, after: Bytes, pad: int) -> list[Problem]:
    problems = []
    size = itemsize(p.dtype)
    length = before.size - 2 * pad
    changed = np.flatnonzero(before != after)
    beyond, ahead = changed[changed >= pad + length], changed[changed < pad]
    if beyond.size:
        first = int(beyond[0]) - pad
        message = f"{p.name} has {length} bytes; byte {first} (element {first // size} in row-major order) was written"
        problems.append(Problem("launch.out-of-bounds", message))
    if ahead.size:
        back = pad - int(ahead[0])
        problems.append(Problem("launch.out-of-bounds", f"{p.name}: {back} bytes before its start were written"))
    inside = changed[(changed >= pad) & (changed < pad + length)]
    if inside.size and _is_read_only(p):
        at = _position(p, (int(inside[0]) - pad) // size)
        problems.append(Problem("launch.input-written", f"{p.name} is only read, but element {at} was written"))
    return problems


def _untouched(content: Bytes, p: Param, poison: int) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = (content.reshape(-1, itemsize(p.dtype)) == poison).all(axis=1)
    return result


def _unwritten(p: Param, left: NDArray[np.bool_]) -> Problem:
    first = _position(p, int(np.argmax(left)))
    count = int(left.sum())
    return Problem("launch.unwritten", f"{p.name}: {count} of {left.size} elements were never written, first {first}")


def _position(p: Param, flat: int) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(flat, p.shape))) if p.shape else ()


def _deliver(device: Device, call: CallArguments, p: Param, content: Bytes) -> None:
    argument = call.outputs[p.name]
    if argument.native == "numpy":
        bytes_of(argument.array)[:] = content
    else:
        device.write(device.memory_of(argument.array), content)
