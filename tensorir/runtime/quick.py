"""Fast path for calls on host arrays used in place: cached preparation, recycled result arrays.

It handles only calls that need no check, copy, warning or error; all others go through ``runtime.call``, which alone
decides on these.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorir.codegen.source import Param, Source, itemsize
from tensorir.errors import Problem, TensorIRError
from tensorir.runtime.arguments import (
    Argument,
    Wrap,
    address,
    aligned_empty,
    check_gather,
    check_segments,
    numpy_dtype,
    recognise,
    scalar_value,
    wrapped,
)
from tensorir.runtime.base import Device
from tensorir.runtime.call import avoidable, least_align

if TYPE_CHECKING:
    from tensorir.runtime.launch import CompiledProgram

MAX_KEPT_RESULTS = 4
"""Arrays for results that a program keeps for each output."""

_COUNTED = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""True when the references to an object are counted exactly."""


class _Made:
    """A recyclable result array. raw: owner of its bytes; idle: reference count of ``raw`` while unused"""

    __slots__ = ("array", "idle", "memory", "raw")

    array: Any
    raw: Any
    memory: Any
    idle: int


class Results:
    """Pool of arrays for one output: reuses one that nobody references, else allocates. Callers hold the program's
    lock.
    """

    def __init__(self, param: Param, share: Callable[[Any, bool], object]) -> None:
        self._param, self._share = param, share
        self._made: list[_Made] = []

    def take(self) -> tuple[np.ndarray, object]:
        """(array with undefined contents, its memory)."""
        for made in self._made:
            if sys.getrefcount(made.raw) == made.idle:
                return made.array.view(), made.memory
        made = _Made()
        made.array = aligned_empty(self._param.shape, self._param.dtype, max(64, self._param.align))
        made.memory, made.raw = self._share(made.array, True), made.array.base
        made.idle = sys.getrefcount(made.raw)
        if _COUNTED:
            self._made = [*self._made[1 - MAX_KEPT_RESULTS :], made]
        return made.array.view(), made.memory


class _Want:
    """Requirements on one argument, and cached data.

    slot: position among parameters; results: pool for outputs; staging: (array, memory) for an input that needs a copy;
          told: (reason, problem) of the last copy
    """

    __slots__ = (
        "dtype", "gathers", "multiple", "nbytes", "output", "param", "results", "scalar", "segments", "shape", "slot",
        "staging", "told",
    )  # fmt: skip

    def __init__(self, param: Param, source: Source, slot: int, device: Device) -> None:
        self.param, self.shape, self.slot = param, param.shape, slot
        self.scalar, self.output = param.role == "scalar", param.role == "output"
        self.dtype: np.dtype[Any] = numpy_dtype(param.dtype)
        self.nbytes = prod(param.shape) * itemsize(param.dtype)
        self.multiple = least_align(param, device)
        self.gathers = [g for g in source.gathers if g.param == param.name]
        self.segments = [s for s in source.segments if s.param == param.name]
        self.results = Results(param, device.share)
        self.staging: tuple[Any, Any] | None = None
        self.told: tuple[Any, list[Problem]] = None, []


class _LongWay(Exception):
    """This call needs the general path."""


class QuickCall:
    """``quick(arrays, out)`` runs a program and returns its results, or None if the general path must handle the call.

    Callers hold the program's lock. copies: copies of the last call; warned: the general path has warned about strides
    """

    def __init__(self, program: CompiledProgram) -> None:
        source, self._device = program.source, program.device
        slots = {p.name: n for n, p in enumerate(source.params)}
        memories = program._memories()
        self._fixed = [memories.get(p.name) for p in source.params]
        self._steps = [
            (program._module.runner(k), tuple(slots[name] for name in k.params)) for k in program._launches()
        ]
        self._inputs = [_Want(p, source, slots[p.name], self._device) for p in source.inputs]
        self._outputs = [_Want(p, source, slots[p.name], self._device) for p in source.outputs]
        self._all = self._inputs + self._outputs
        self._back: list[tuple[Any, Any]] = []
        self.copies: tuple[Problem, ...] = ()
        self.warned = False

    @classmethod
    def of(cls, program: CompiledProgram) -> QuickCall | None:
        """QuickCall for a program that has run once; None if unsupported."""
        arrays = [p for p in program.source.params if p.role in ("input", "output")]
        if not program.device.works_in_place or program.source.unique or any(0 in p.shape for p in arrays):
            return None
        return cls(program)

    def __call__(self, given: Sequence[object], out: object) -> Any:
        self._device.check_process()
        slots, wants, values, made = self._fixed.copy(), self._inputs, given, list[Any]()
        if out is not None:
            outs = out if isinstance(out, (tuple, list)) else (out,)
            if len(given) != len(self._inputs) or len(outs) != len(self._outputs):
                return None
            wants, values = self._all, (*given, *outs)
        elif len(given) != len(wants):
            return None
        self.copies, self._back = (), []
        try:
            wrap = self._take(wants, values, slots)
        except (_LongWay, TensorIRError):
            return None
        if out is None:
            for want in self._outputs:
                array, slots[want.slot] = want.results.take()
                made.append(array)
        self._run(slots)
        for array, copy in self._back:
            np.copyto(array, copy)
        if out is not None:
            return out
        if wrap is not None:
            made = [wrapped(array, wrap) for array in made]
        return made[0] if len(made) == 1 else tuple(made)

    def _take(self, wants: Sequence[_Want], values: Sequence[Any], slots: list[Any]) -> Wrap | None:
        """Fill ``slots`` with scalars and memories; returns the converter for results."""
        wrap: Wrap | None = None
        spans = list[tuple[int, int, Any]]()
        for want, value in zip(wants, values):  # noqa: B905 (as many, and each word costs)
            if want.scalar:
                slots[want.slot] = scalar_value(want.param, value)
                continue
            array = value
            if type(array) is not np.ndarray:
                found = recognise(want.param, value)
                if found.native != "numpy":
                    raise _LongWay
                array, wrap = found.array, wrap if spans else found.wrap
            if array.dtype != want.dtype or array.shape != want.shape or (want.output and not array.flags.writeable):
                raise _LongWay
            memory = self._in_place(want, array, spans) if array.flags.c_contiguous else None
            slots[want.slot] = self._copied(want, array, value, spans) if memory is None else memory
            for gather in want.gathers:
                if check_gather(gather, array):
                    raise _LongWay
            for segment in want.segments:
                if check_segments(segment, array):
                    raise _LongWay
        return wrap

    def _in_place(self, want: _Want, array: Any, spans: list[tuple[int, int, Any]]) -> Any:
        """Memory backed by the array; None if it must be copied."""
        start, apart = address(array), True
        end, fits = start + want.nbytes, start % want.multiple == 0
        for low, high, memory in spans:
            if start < high and low < end:
                if want.output:
                    raise _LongWay
                if memory is None:  # that is a copy
                    continue
                if fits and (low, high) == (start, end):
                    return memory
                apart = False
        memory = self._device.share(array, want.output) if fits and apart else None
        spans.append((start, end, memory))
        return memory

    def _copied(self, want: _Want, array: Any, value: Any, spans: list[tuple[int, int, Any]]) -> Any:
        """Memory holding a copy of an array, reused between calls."""
        argument, strided = Argument(array, "numpy", value), not array.flags.c_contiguous
        if not self._device.coherent or (strided and (want.output or not self.warned)):
            raise _LongWay
        if strided:
            spans.append((*argument.span()[1:], None))
        if want.output:
            copy, memory = want.results.take()
            self._back.append((array, copy))
        else:
            want.staging = want.staging or want.results.take()
            copy, memory = want.staging
            np.copyto(copy, array)
        if memory is None:
            raise _LongWay
        reason = array.strides if strided else address(array) % want.multiple, type(value)
        if want.told[0] != reason:
            want.told = reason, avoidable(self._device, want.param, argument, want.output)
        self.copies += tuple(want.told[1])
        return memory

    def _run(self, slots: list[Any]) -> None:
        try:
            for run, places in self._steps:
                run([slots[n] for n in places])
            if self._device.coherent:
                self._device.finish()
            else:
                self._device.publish([(slots[w.slot], w) for w in self._outputs])
        except BaseException as error:
            with contextlib.suppress(Exception):  # nothing may run on arrays that the caller gets back
                self._device.finish()
            if isinstance(error, Exception):  # each runtime has its own
                raise self._device.failure(error) from None
            raise
