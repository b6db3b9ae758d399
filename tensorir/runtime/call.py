"""One call of a program: validates the user's arguments and obtains device memory for them; calls after the first.

    f(a, b)          accept, attach: each argument is validated, then used in place or copied
    f(a, b) again    QuickCall: the same with all preparation kept, in calls that need no check, warning or error

Whatever the fast path cannot do goes the general way, which alone decides on warnings and errors.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tensorir.codegen.source import Param, Source, itemsize
from tensorir.errors import LaunchError, LaunchTypeError, Problem, TensorIRError, refuse
from tensorir.errors.habits import near
from tensorir.runtime.arguments import (
    Argument,
    Wrap,
    address,
    aligned_empty,
    bytes_of,
    check_aliasing,
    check_array,
    check_gather,
    check_segments,
    check_unique,
    narrowed,
    numpy_dtype,
    recognise,
    scalar_value,
    wrapped,
)
from tensorir.runtime.base import Device


@dataclass
class CallArguments:
    """Validated arguments of a call, by parameter name.

    native: array type of all arrays, "numpy", "pyopencl" or "cupy"
    outputs: given by the caller as ``given_out``, or new ones after ``allocate``
    """

    source: Source
    native: str
    inputs: dict[str, Argument]
    scalars: dict[str, Any]
    outputs: dict[str, Argument]
    given_out: Any = None

    def arrays(self) -> list[np.ndarray]:
        return [a.array for a in (*self.inputs.values(), *self.outputs.values())]

    def natives(self) -> Sequence[object]:
        """The call's device arrays (pyopencl or cupy), inputs and outputs; [] for a call on host arrays."""
        return [] if self.native == "numpy" else self.arrays()

    @property
    def empty(self) -> bool:
        """True if every output has zero elements."""
        return all(prod(p.shape) == 0 for p in self.source.outputs)

    def outside(self, leave: Callable[[Argument], bool] = lambda _: False) -> list[Problem]:
        """Convert 64-bit indices to int32 again, and return Problems for index values out of range, wrong segment
        offsets and scatter targets that occur twice; [] if none. Inputs for which ``leave`` is true are not checked.
        """
        renewed = [a.renew(name) for name, a in self.inputs.items() if a.wide is not None]
        problems = [p for p in renewed if p is not None]
        for gather in self.source.gathers:
            if gather.param in self.inputs and not leave(self.inputs[gather.param]):
                array = self.inputs[gather.param].array
                problem = check_gather(gather, array if self.native == "numpy" else array.get())
                problems += [problem] if problem else []
        for segment in [] if problems else self.source.segments:
            if segment.param in self.inputs and not leave(self.inputs[segment.param]):
                array = self.inputs[segment.param].array
                found = check_segments(segment, array if self.native == "numpy" else array.get())
                problems += [found] if found else []
        for places in [] if problems else self.source.unique:
            asked = {name: self.inputs[name] for name, _ in places.index if name in self.inputs}
            if len(asked) == len({name for name, _ in places.index if name}) and not any(map(leave, asked.values())):
                arrays = {n: a.array if self.native == "numpy" else a.array.get() for n, a in asked.items()}
                found = check_unique(places, arrays)
                problems += [found] if found else []
        return problems

    def allocate(self, device: Device) -> None:
        """Add new arrays to ``outputs`` for those not given: NumPy's aligned to 64 bytes, or device arrays."""
        like = next(iter(self.inputs.values()), None)
        for p in self.source.outputs:
            if p.name in self.outputs:
                continue
            if self.native == "numpy":
                array: Any = aligned_empty(p.shape, p.dtype, max(64, p.align))
            else:
                array = device.empty(None if like is None else like.array, p.shape, numpy_dtype(p.dtype))
            self.outputs[p.name] = Argument(array, self.native, None, None if like is None else like.wrap)

    def results(self) -> Any:
        """The results: given ``out`` or new arrays of the inputs' type; a tuple if several."""
        if self.given_out is not None:
            return self.given_out
        made = tuple(wrapped(a.array, a.wrap) for a in (self.outputs[p.name] for p in self.source.outputs))
        return made[0] if len(made) == 1 else made


def by_name(source: Source, arrays: Sequence[object], named: Mapping[str, object]) -> tuple[object, ...]:
    """Arguments in the order of inputs, from positional ones and keywords.

    Raises LaunchTypeError: ``launch.keyword`` for a wrong or repeated name, ``launch.count`` if one is missing; without
    keywords nothing is checked.
    """
    if not named:
        return tuple(arrays)
    names = [p.name for p in source.inputs]
    left = names[len(arrays) :]
    for name in named:
        if name not in left:
            what = "is given twice" if name in names else "is no input"
            hint = near(name, left) if name not in names else ""
            message = f"{source.name}: {name} {what}; by name there are {', '.join(left) or 'none'}"
            raise refuse(LaunchTypeError, "launch.keyword", message, hint=hint)
    missing = [n for n in left if n not in named]
    if missing:
        given = [n for n in names if n not in missing]
        raise refuse(LaunchTypeError, "launch.count", f"{source.name}: expected {len(names)} arguments "
                     f"({', '.join(names)}), got {', '.join(given)}; missing: {', '.join(missing)}")  # fmt: skip
    return (*arrays, *(named[n] for n in left))


def accept(source: Source, device: Device, arrays: Sequence[object], out: object = None) -> CallArguments:
    """Validated arguments of a call; missing outputs are not allocated yet.

    out: array for the result, or a tuple or list of one per output

    Raises LaunchTypeError ``launch.count`` for a wrong number of arguments, else one LaunchError with a problem per bad
    argument; values of indices are checked once all arrays fit.
    """
    params = source.inputs
    if len(arrays) != len(params):
        raise _wrong_count(source, "argument", [p.name for p in params], len(arrays))
    outs = _outs(source, out)
    problems: list[Problem] = []
    kinds: list[type[TensorIRError]] = []
    call = CallArguments(source, "numpy", {}, dict(fixed_numbers(source)), {}, out)
    for role, pairs in (("in", zip(params, arrays, strict=True)), ("out", zip(source.outputs, outs, strict=False))):
        for param, given in pairs:
            try:
                if param.role == "scalar":
                    call.scalars[param.name] = scalar_value(param, given)
                else:
                    found = recognise(param, given)
                    found = narrowed(param, found) if role == "in" and source.has_indices(param.name) else found
                    (call.inputs if role == "in" else call.outputs)[param.name] = found
            except TensorIRError as error:
                problems += error.problems
                kinds.append(type(error))
    problems += _check_all(call, device)
    if problems:
        raise (kinds[0] if kinds else LaunchError)(problems)
    return call


def fixed_numbers(source: Source) -> dict[str, np.generic]:
    """{parameter: value} of scalars fixed by the source."""
    given = ((p, p.data) for p in source.params if p.role == "scalar" and p.data is not None)
    return {p.name: np.frombuffer(data, numpy_dtype(p.dtype))[0] for p, data in given}


def _check_all(call: CallArguments, device: Device) -> list[Problem]:
    problems = []
    first = next(iter((call.inputs | call.outputs).items()), None)
    call.native = first[1].native if first else "numpy"
    for param in call.source.params:
        output = param.name in call.outputs
        argument = call.outputs.get(param.name) or call.inputs.get(param.name)
        if argument is None:
            continue
        problem = check_array(param, argument, device, output)
        if problem is None and first and argument.native != call.native:
            message = f"{param.name}: expected a {call.native} array like {first[0]}, got a {argument.native} array"
            problem = Problem("launch.device", message)
        if problem is not None:
            problems.append(problem)
    if problems:
        return problems
    return [*check_aliasing(call.inputs, call.outputs), *call.outside()]


def fixed_values(source: Source, device: Device, arrays: Mapping[str, object]) -> dict[str, bytes]:
    """{input: its bytes} for ``prepack``.

    Raises LaunchError: ``launch.prepack`` for no input, or one that other than ``once`` kernels read; ``dim.constant``
    for one with an extent known at launch only; as in a call for an array that does not fit.
    """
    legal = {p.name: p for p in source.prepackable}
    wrong = [name for name in arrays if name not in legal]
    if wrong or not arrays:
        what = f"{wrong[0]} cannot be fixed" if wrong else "no input was named"
        if legal:
            rule = f"only kernels that run once read {', '.join(legal)}"
            raise refuse(LaunchError, "launch.prepack", f"{source.name}: {what}; {rule}", hint=f"{next(iter(legal))}=…")
        rule = "no input is read by kernels that run once only"
        hint = "s.stage_in(…, at='root', scope='global', run='once')"
        raise refuse(LaunchError, "launch.prepack", f"{source.name}: {what}; {rule}", hint=hint)
    made: dict[str, bytes] = {}
    for name, given in arrays.items():
        if open_extents := [n for n in legal[name].shape if isinstance(n, str)]:
            message = f"{name} has the extent {open_extents[0]}, known at launch only: it cannot be fixed"
            raise refuse(LaunchError, "dim.constant", message, hint=f"a declaration with an int for {open_extents[0]}")
        argument = recognise(legal[name], given)
        problem = check_array(legal[name], argument, device, False)
        if problem is None:
            host = argument.array if argument.native == "numpy" else argument.array.get()
            problems = [check_gather(g, host) for g in source.gathers if g.param == name]
            problems += [check_segments(g, host) for g in source.segments if g.param == name]
            problem = next((p for p in problems if p), None)
        if problem is not None:
            raise LaunchError(problem)
        made[name] = np.ascontiguousarray(host).tobytes()
    return made


def _outs(source: Source, out: Any) -> tuple[Any, ...]:
    names = [p.name for p in source.outputs]
    if out is None:
        return ()
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    if len(outs) != len(names):
        raise _wrong_count(source, "out array", names, len(outs))
    return outs


def _wrong_count(source: Source, what: str, names: list[str], got: int) -> Exception:
    listed = ", ".join(names) or "none"
    message = f"{source.name}: expected {len(names)} {what}{'s' * (len(names) != 1)} ({listed}), got {got}"
    if got < len(names):
        message += f"; missing: {', '.join(names[got:])}"
    return refuse(LaunchTypeError, "launch.count", message)


@dataclass
class Attached:
    """Device memory (or scalar) of a call by parameter name, and how results return to host arrays.

    shared: (memory, host array) of in-place outputs; copied: (memory, host array) of outputs to read back
    uploads: (memory, argument) of inputs copied to the device; arrays: objects to keep alive
    copies: problems for avoidable copies of host arrays (``launch.copied-…``)
    """

    memories: dict[str, Any] = field(default_factory=dict)
    shared: list[tuple[Any, Any]] = field(default_factory=list)
    copied: list[tuple[Any, Any]] = field(default_factory=list)
    uploads: list[tuple[Any, Argument]] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    copies: list[Problem] = field(default_factory=list)


def attach(call: CallArguments, device: Device, staging: dict[str, object] | None = None) -> Attached:
    """Memory for a call's arrays: in place if possible, else device memory to which inputs are copied now.

    staging: memories by parameter from earlier calls, reused and added to; None allocates new ones
    """
    attached = Attached(memories=dict(call.scalars))
    spans: list[tuple[int, int, Any]] = []
    for param in call.source.params:
        output = param.name in call.outputs
        argument = call.outputs.get(param.name) or call.inputs.get(param.name)
        if argument is None:
            continue
        if argument.native != "numpy":
            attached.memories[param.name] = device.memory_of(argument.array)
            attached.arrays.append(argument.array)
            continue
        array = argument.array if argument.contiguous else np.ascontiguousarray(argument.array)
        memory = _in_place(device, param, array, output, spans) if argument.contiguous else None
        if memory is None:
            attached.copies += avoidable(device, param, argument, output)
            memory = _staged(device, param, array.nbytes, staging)
            if output:
                attached.copied.append((memory, array))
            else:
                device.write(memory, bytes_of(array))
                attached.uploads.append((memory, argument))
        elif output:
            attached.shared.append((memory, array))
        attached.memories[param.name] = memory
        attached.arrays.append(array)
    return attached


def _in_place(device: Device, param: Param, array: Any, output: bool, spans: list[tuple[int, int, Any]]) -> Any | None:
    """Memory backed by the host array, one for inputs that are the same array; None if it must be copied: it overlaps
    another one, is empty or not aligned, or the device works on copies.
    """
    start = int(array.ctypes.data)
    if start % least_align(param, device) or not array.size:
        return None
    end = start + int(array.nbytes)
    for low, high, memory in spans:
        if (low, high) == (start, end) and not output:
            return memory
        if max(low, start) < min(high, end):
            return None  # two memories over the same bytes are undefined in OpenCL
    made = device.share(bytes_of(array), output)
    if made is not None:
        spans.append((start, end, made))
    return made


def least_align(param: Param, device: Device) -> int:
    """Alignment in bytes that a host array needs to be used in place."""
    return max(param.align, device.host_align)


def avoidable(device: Device, param: Param, argument: Argument, output: bool) -> list[Problem]:
    """[Problem] ``launch.copied-strides`` or ``launch.copied-alignment`` for a host array that is copied because of its
    layout or address; [] if it is not, or the device copies all arrays.
    """
    name, array = param.name, argument.array
    if not argument.contiguous:
        strides = f"strides {tuple(array.strides)} for shape {argument.shape}"
        message = f"{name}: kernels work on a copy, since it is not C-contiguous ({strides})"
        return [Problem("launch.copied-strides", message, hint=f"{_contiguous(name, argument)} once, before the calls")]
    least = least_align(param, device)
    beyond = int(array.ctypes.data) % least
    if not device.works_in_place or not beyond:
        return []
    back = ", which is copied back" if output else ""
    message = f"{name}: kernels work on a copy{back}, since its address is {beyond} beyond a multiple of {least}"
    return [
        Problem("launch.copied-alignment", message, hint=f"an array of tir.empty({argument.shape}, {param.dtype!r})")
    ]


def _contiguous(name: str, argument: Argument) -> str:
    """Text of the call by which the user's library makes a contiguous copy."""
    return f"{name}.contiguous()" if hasattr(argument.given, "contiguous") else f"numpy.ascontiguousarray({name})"


def _staged(device: Device, param: Param, nbytes: int, staging: dict[str, Any] | None) -> Any:
    if staging is None:
        return device.allocate(nbytes)
    if param.name not in staging:
        staging[param.name] = device.allocate(nbytes)
    return staging[param.name]


# --- the fast path

MAX_KEPT_RESULTS = 4
"""Result arrays that a program keeps per output, to use again once nobody references them."""

_COUNTED = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if ``sys.getrefcount`` is exact: CPython with a global interpreter lock."""


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
        """(array with undefined contents, its memory); at most ``MAX_KEPT_RESULTS`` are kept for reuse."""
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


_Step = tuple[Callable[[Sequence[object]], object], Sequence[str]]
"""(function that enqueues a kernel with given arguments, names of their parameters in order)."""


class QuickCall:
    """``quick(arrays, out)`` runs a program and returns its results, or None if the general path must handle the call.

    Callers hold the program's lock.
    memories: constants and workspace by parameter;  steps: kernels, and the parameters that they take
    copies: problems for copied arrays of the last call;  warned: the general path has warned about strides
    """

    def __init__(self, source: Source, device: Device, memories: Mapping[str, object], steps: Sequence[_Step]) -> None:
        self._device = device
        slots = {p.name: n for n, p in enumerate(source.params)}
        self._fixed = [memories.get(p.name) for p in source.params]
        self._steps = [(run, tuple(slots[name] for name in names)) for run, names in steps]
        self._inputs = [_Want(p, source, slots[p.name], device) for p in source.inputs]
        self._outputs = [_Want(p, source, slots[p.name], device) for p in source.outputs]
        self._all = self._inputs + self._outputs
        self._back: list[tuple[Any, Any]] = []
        self.copies: tuple[Problem, ...] = ()
        self.warned = False

    @staticmethod
    def fits(source: Source, device: Device) -> bool:
        """True if calls of the program can be quick: arrays in place, none empty, no indices that must differ."""
        arrays = [p for p in source.params if p.role in ("input", "output")]
        return device.works_in_place and not source.unique and not any(0 in p.shape for p in arrays)

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
