"""Converts the user's arrays (NumPy, CuPy, pyopencl, DLPack, torch) to launch arguments and validates them."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorir.codegen.source import GatherRange, Param, SegmentRange, UniquePlaces
from tensorir.errors import LaunchError, LaunchTypeError, Problem, refuse
from tensorir.errors.habits import answers
from tensorir.errors.needs import need_int, need_ints, shown
from tensorir.interp.numbers import numpy_dtype as numpy_dtype
from tensorir.ir.dtypes import DTYPES, WIDENED, dtype_of, from_numpy
from tensorir.runtime.base import Device

Wrap = Callable[[Any], Any]

NUMPY_KINDS = "biufc"
"""Kinds of the dtypes that are NumPy's own, which every library and the buffer protocol know."""


@dataclass(frozen=True)
class Argument:
    """A user's array passed for one parameter.

    array:  the native array: numpy, pyopencl.array or cupy
    native: "numpy", "pyopencl" or "cupy"
    wrap:   turns a native result into the kind of the user's array (None: it is native already)
    given:  the user's own object
    wide:   the user's indices of 64 bits, where ``array`` has their values in the 32 that the kernel takes
    """

    array: Any
    native: str
    given: Any
    wrap: Wrap | None = None
    wide: NDArray[Any] | None = None

    def renew(self, name: str) -> Problem | None:
        """Convert ``wide`` indices to int32 in ``array`` again, as the user may have changed them; Problem
        ``launch.index-range`` if one does not fit, else None.
        """
        if self.wide is None:
            return None
        self.array[...] = self.wide
        if np.array_equal(self.array, self.wide):
            return None
        place = tuple(int(n) for n in np.argwhere(self.array != self.wide)[0])
        return Problem("launch.index-range", f"{name}: expected indices of int32, got {self.wide[place]} at {place}")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.array.shape))

    @property
    def dtype(self) -> str:
        return _dtype_name(self.array.dtype)

    @property
    def contiguous(self) -> bool:
        return bool(self.array.flags.c_contiguous)

    @property
    def writable(self) -> bool:
        return self.native != "numpy" or bool(self.array.flags.writeable)

    def span(self) -> tuple[object, int, int]:
        """(address space, first byte, one past the last byte), for overlap tests as numpy.may_share_memory."""
        if self.native == "numpy":
            low, high = np.lib.array_utils.byte_bounds(self.array) if _NEW_NUMPY else _bounds(self.array)
            return "host", int(low), int(high)
        if self.native == "cupy":
            start = int(self.array.data.ptr)
            return "cuda", start, start + int(self.array.nbytes)
        base, start = self.array.base_data, int(self.array.offset)
        if base is None:
            return "none", 0, 0
        if base.associated_memobject is not None:  # a part of a buffer, which another array may share
            base, start = base.associated_memobject, start + int(base.offset)
        return int(base.int_ptr), start, start + int(self.array.nbytes)


@cache
def _dtype_name(kind: Any) -> str:
    dtype: np.dtype[Any] = np.dtype(kind)
    if not dtype.isnative:
        return str(dtype.str)  # ">f4" for a foreign byte order
    plain = dtype.kind != "V" and dtype.name not in DTYPES  # what is V and not ours has no telling name
    return from_numpy(dtype.name) or str(dtype.name if plain else dtype.str)


_NEW_NUMPY = int(np.__version__.split(".")[0]) >= 2


def _bounds(array: NDArray[Any]) -> tuple[int, int]:
    low, high = np.byte_bounds(array)  # type: ignore[attr-defined,unused-ignore]  # numpy 1
    return int(low), int(high)


def _found_address() -> Callable[[NDArray[Any]], int]:
    """A function that returns an array's data address: ``a.ctypes.data``, or five times faster from NumPy's object
    layout.
    """
    at, head = ctypes.c_size_t.from_address, object.__basicsize__
    probe = np.empty(9, np.uint8)
    if sys.implementation.name == "cpython" and all(
        at(id(a) + head).value == a.ctypes.data for a in (probe, probe[3:])
    ):
        return lambda array: at(id(array) + head).value
    return lambda array: int(array.ctypes.data)


address = _found_address()


def aligned_empty(shape: tuple[int, ...], dtype: str, align: int = 64) -> np.ndarray:
    """A new contiguous NumPy array whose address is a multiple of ``align``, so that a CPU device works in place.

    Raises LaunchError ``launch.memory``.
    """
    kind = numpy_dtype(dtype)
    nbytes = prod(shape) * kind.itemsize
    try:
        raw = np.empty(nbytes + align, np.uint8)
    except (MemoryError, ValueError, OverflowError):
        raise refuse(LaunchError, "launch.memory", f"there are no {shown(nbytes)} bytes of memory for "
                     f"{dtype}{shown(list(shape))}", hint="smaller shapes, or out= of parts") from None  # fmt: skip
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes].view(kind).reshape(shape)


@answers(LaunchError)
def empty(shape: int | Sequence[int], dtype: object = "float32") -> np.ndarray:
    """A new NumPy array, contents undefined, on which a CPU device works in place: its address is a multiple of 64.

    NumPy's own arrays start at multiples of 16, so kernels that load wider vectors work on copies of them. Raises
    LaunchError for a wrong shape or dtype, ``launch.memory`` for too large a one.
    """
    given = (shape,) if hasattr(shape, "__index__") else shape
    sizes = need_ints("shape", given, LaunchError)
    for n, size in enumerate(sizes):
        need_int(f"shape[{n}]", size, 0, error=LaunchError)
    return aligned_empty(sizes, dtype_of(dtype).name)


@answers(LaunchError)
def recognise(param: Param, given: object) -> Argument:
    """Argument for the user's object; a number is valid for an input without axes. Shape and dtype of arrays are not
    checked.

    Raises LaunchTypeError ``launch.type`` if it is no array, ``launch.gradient`` for a tensor that requires a gradient;
    LaunchError ``launch.dtype`` for an unsuitable number, ``launch.device`` for DLPack data on other devices.
    """
    name, masked = param.name, "numpy.ma" in sys.modules and isinstance(given, np.ma.MaskedArray)
    if isinstance(given, np.ndarray) and not masked:  # (np.ma: 15 ms when first named)
        return Argument(given, "numpy", given)
    if param.shape == () and param.role != "output" and isinstance(given, _NUMBERS):
        return Argument(_number(param, given), "numpy", given)
    module = type(given).__module__.split(".")[0]
    if module == "pyopencl" and hasattr(given, "base_data"):
        if given.base_data is not None and not hasattr(given.base_data, "int_ptr"):
            message = f"{name}: expected an array in an OpenCL buffer, got one in shared virtual memory"
            raise refuse(LaunchTypeError, "launch.type", message, hint=f"{name}.get()")
        return Argument(given, "pyopencl", given)
    if module == "cupy" and hasattr(given, "data"):
        return Argument(given, "cupy", given)
    if isinstance(given, getattr(sys.modules.get("torch"), "Tensor", ())):
        return _from_torch(name, given)
    foreign = not isinstance(given, (np.ndarray, np.generic))
    if foreign and hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
        return _from_dlpack(name, given)
    kind = "MaskedArray" if masked else type(given).__name__
    message = f"{name}: expected an array (numpy, pyopencl, cupy or DLPack), got {kind}"
    likely = isinstance(given, (list, tuple, int, float, memoryview)) or module == "array"
    likely = likely or (foreign and hasattr(given, "__array__"))
    hint = f"numpy.asarray({name})" if likely else ""
    if isinstance(given, getattr(getattr(sys.modules.get("jax"), "core", None), "Tracer", ())):
        hint = 'f.export(…, to="jax"): what it makes runs under jax.jit and jax.grad'
    raise refuse(LaunchTypeError, "launch.type", message, hint=hint)


_NUMBERS = (bool, int, float, np.generic)


def _from_torch(name: str, given: Any) -> Argument:
    """Argument for a torch tensor: a NumPy view on CPU, DLPack otherwise."""
    torch: Any = sys.modules["torch"]
    tensor = given
    if given.requires_grad:
        if torch.is_grad_enabled():
            message = f"{name}: expected a tensor without a gradient, got one that requires it: a kernel would lose it"
            raise refuse(LaunchTypeError, "launch.gradient", message, hint=f"{name}.detach(), or torch.no_grad()")
        tensor = given.detach()
    if not tensor.is_cpu:
        return replace(_from_dlpack(name, tensor), given=given)
    try:
        own = _not_plain(str(tensor.dtype).removeprefix("torch."))
        array = tensor.numpy() if own is None else tensor.view(getattr(torch, _bits(own))).numpy().view(own)
    except Exception as error:  # whatever PyTorch raises
        message = f"{name}: this {type(given).__module__}.{type(given).__name__} cannot be read: {error}"
        raise refuse(LaunchTypeError, "launch.type", message[:500]) from None
    return Argument(array, "numpy", given, _to_torch)


@cache
def _not_plain(name: str) -> np.dtype[Any] | None:
    """NumPy dtype for an element type that libraries cannot export to NumPy directly (bfloat16); None for others."""
    ours = from_numpy(name)
    kind = None if ours is None else numpy_dtype(ours)
    return None if kind is None or kind.kind in NUMPY_KINDS else kind


def _bits(kind: np.dtype[Any]) -> str:
    """Name of an integer dtype with elements of this size, known to NumPy and torch."""
    return "uint8" if kind.itemsize == 1 else f"int{8 * kind.itemsize}"


def _to_torch(array: NDArray[Any]) -> Any:
    """A torch tensor that shares a host array's memory."""
    torch: Any = sys.modules["torch"]
    if array.dtype.kind in NUMPY_KINDS:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_bits(array.dtype))).view(getattr(torch, array.dtype.name))


def _from_dlpack(name: str, given: Any) -> Argument:
    kind = f"{type(given).__module__}.{type(given).__name__}"
    try:
        device = int(given.__dlpack_device__()[0])
        if device == 1:  # kDLCPU
            own = _not_plain(str(getattr(given, "dtype", "")))
            array = np.from_dlpack(given) if own is None else np.asarray(given)  # DLPack in NumPy has no bfloat16
            return Argument(array, "numpy", given, _wrapper(given))
        if device in (2, 13):  # kDLCUDA, kDLCUDAManaged
            array = importlib.import_module("cupy").from_dlpack(given)
            return Argument(array, "cupy", given, _wrapper(given))
    except Exception as error:  # whatever the foreign library raises
        message = f"{name}: this {kind} cannot be read through DLPack: {error}"
        raise refuse(LaunchTypeError, "launch.type", message[:500]) from None
    raise refuse(
        LaunchError, "launch.device", f"{name}: expected a {kind} on the CPU or a CUDA GPU, got DLPack {device}"
    )


def _wrapper(given: Any) -> Wrap | None:
    """Function that converts results to the user's library; None without ``from_dlpack``.

    NumPy arrays that DLPack cannot describe, such as bfloat16, are converted by the library's ``asarray`` if it has
    one.
    """
    space = given.__array_namespace__() if hasattr(given, "__array_namespace__") else None
    for home in (space, sys.modules.get(type(given).__module__.split(".")[0]), type(given)):
        take: Wrap | None = getattr(home, "from_dlpack", None)
        if callable(take):
            other = getattr(home, "asarray", take)
            return lambda array: (take if array.dtype.kind in NUMPY_KINDS else other)(array)
    return None


def wrapped(array: object, wrap: Wrap | None) -> Any:
    """A result in the user's array type; the native array if that library lacks its dtype."""
    if wrap is None:
        return array
    try:
        return wrap(array)
    except Exception:  # whatever the foreign library raises
        return array


def scalar_value(param: Param, given: object) -> Any:
    """A NumPy scalar for a "scalar" parameter, from a number or a 0-d array; 16- and 8-bit floats are rounded, then
    passed as float32, booleans as uint8. Raises LaunchError ``launch.type`` or ``launch.dtype``.
    """
    value = _number(param, given if isinstance(given, _NUMBERS) else _element(param, given))
    if param.dtype in WIDENED:
        return value.astype(np.float32)[()]
    return value.view(np.uint8)[()] if value.dtype.kind == "b" else value[()]


@answers(LaunchError)
def _element(param: Param, given: object) -> object:
    """The element of a 0-d array; other objects unchanged."""
    if getattr(given, "shape", None) != ():
        return given
    found = recognise(param, given)
    return found.array[()] if found.native == "numpy" else given


def _number(param: Param, given: Any) -> NDArray[Any]:
    """A number as a 0-d array; raises LaunchError ``launch.type`` or ``launch.dtype`` if unsuitable."""
    kind = numpy_dtype(param.dtype)
    if not isinstance(given, _NUMBERS):
        message = f"{param.name}: expected a {param.dtype} number, got {type(given).__name__}"
        raise refuse(LaunchTypeError, "launch.type", message)
    if isinstance(given, np.generic) and given.dtype != kind:
        message = f"{param.name}: expected dtype {param.dtype}, got {given.dtype.name}"
        raise refuse(LaunchError, "launch.dtype", message, hint=f"numpy.{param.dtype}({param.name})")
    if kind.kind in "iub" and (isinstance(given, float) or not _fits(given, kind)):
        message = f"{param.name}: expected a {param.dtype}, got {given!r}"
        raise refuse(LaunchError, "launch.dtype", message)
    return np.array(given, kind)


def _fits(value: Any, kind: np.dtype[Any]) -> bool:
    if kind.kind == "b":
        return int(value) in (0, 1)
    limits = np.iinfo(kind)
    return int(limits.min) <= int(value) <= int(limits.max)


def narrowed(param: Param, argument: Argument) -> Argument:
    """``argument`` with int64 indices of a host array copied to int32 if the kernel takes these; others unchanged."""
    if argument.native != "numpy" or (argument.dtype, param.dtype) != ("int64", "int32"):
        return argument
    return replace(argument, array=argument.array.astype(np.int32), wide=argument.array)


def check_array(param: Param, argument: Argument, device: Device, output: bool) -> Problem | None:
    """Problem for the first rule (dtype, shape, strides, device, …) that an array violates, else None."""
    name = param.name
    if argument.native not in device.natives:
        where = {"pyopencl": "an OpenCL array", "cupy": "a CUDA array", "numpy": "a host array"}[argument.native]
        hint = f'build(device="{"cuda" if argument.native == "cupy" else "opencl"}")'
        return Problem("launch.device", f"{name}: expected an array for {device.name}, got {where}", hint=hint)
    if argument.dtype != param.dtype:
        hint = "" if output else f"{name}.astype({param.dtype!r})"
        return Problem("launch.dtype", f"{name}: expected dtype {param.dtype}, got {argument.dtype}", hint=hint)
    if argument.shape != param.shape:
        return Problem("launch.shape", f"{name}: expected shape {param.shape}, got {argument.shape}")
    if not argument.contiguous and (output or argument.native != "numpy"):
        strides = tuple(argument.array.strides)
        message = f"{name}: expected a C-contiguous array, got strides {strides} for shape {argument.shape}"
        hint = f"a new array for out, then {name}[...] = it" if output else f"a contiguous copy of {name}"
        return Problem("launch.strides", message, hint=hint)
    if output and not argument.writable:
        return Problem("launch.read-only", f"{name}: expected a writable array for the result, got a read-only one")
    return None if argument.native == "numpy" else _check_alignment(param, argument, device)


def _check_alignment(param: Param, argument: Argument, device: Device) -> Problem | None:
    """Problem if a sub-buffer's offset violates the device's alignment, else None."""
    _, start, _ = argument.span()
    align = max(param.align, device.base_align) if argument.native == "pyopencl" else param.align
    if start % align == 0:
        return None
    message = f"{param.name}: expected data aligned to {align} bytes, got an array that starts at byte {start}"
    return Problem("launch.alignment", message, hint=f"a copy of {param.name}")


def check_aliasing(inputs: dict[str, Argument], outputs: dict[str, Argument]) -> list[Problem]:
    """Problems ``launch.aliasing`` for outputs whose bytes overlap inputs or other outputs; inputs may overlap."""
    problems = []
    if not outputs:
        return []
    seen = {name: argument.span() for name, argument in inputs.items()}
    for name, out in outputs.items():
        space, low, high = out.span()
        for other, (where, start, end) in seen.items():
            if where == space and max(low, start) < min(high, end):
                message = f"{name}: expected memory of its own, got memory that overlaps {other}"
                problems.append(Problem("launch.aliasing", message, hint=f"a new array for {name}"))
        seen[name] = (space, low, high)
    return problems


def check_gather(gather: GatherRange, indices: np.ndarray) -> Problem | None:
    """Problem for an index outside ``0 <= value < limit``, with its position; None if all are in range."""
    whole, part = indices, tuple(slice(*p) if p else slice(None) for p in gather.part)
    indices = indices[part] if part else indices
    if indices.size == 0:
        return None
    low, high = int(indices.min()), int(indices.max())
    if low >= 0 and high < gather.limit:
        return None
    position = np.unravel_index(int(np.argmax((indices < 0) | (indices >= gather.limit))), indices.shape)
    steps = [(s.start or 0, s.step or 1) for s in part] or [(0, 1)] * indices.ndim
    place = tuple(start + int(n) * step for n, (start, step) in zip(position, steps, strict=True))
    message = (
        f"{gather.shown}: expected indices from 0 to {gather.limit - 1} (they index {gather.into}), "
        f"got {int(whole[place])} at {place}"
    )
    return Problem("launch.index-range", message)


def check_segments(segment: SegmentRange, pointers: np.ndarray) -> Problem | None:
    """Problem for the first adjacent ``pointers`` that differ by less than 0 or more than ``most``, else None."""
    first, last = (np.moveaxis(pointers, segment.along, 0)[part] for part in (slice(None, -1), slice(1, None)))
    wide = np.uint64 if pointers.itemsize == 8 else np.int64  # a difference of their own type may be beyond it
    wrong = (last < first) | (last.astype(wide) - first.astype(wide) > segment.most)
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    at = [int(n) for n in (*place[1 : segment.along + 1], place[0], *place[segment.along + 1 :])]
    after = [n + (d == segment.along) for d, n in enumerate(at)]
    have = int(last[place]) - int(first[place])
    message = (f"{segment.param}: expected neighbours that grow by 0 to {segment.most} (most of axis {segment.axis}), "
               f"got {int(first[place])} at {at} and {int(last[place])} at {after}, {have} terms")  # fmt: skip
    return Problem("launch.segments", message)


def check_unique(places: UniquePlaces, arrays: Mapping[str, np.ndarray]) -> Problem | None:
    """Problem for the first scatter term with the target of an earlier one, else None."""
    axes = np.ix_(*map(np.arange, places.domain))
    columns = []
    for name, at in places.index:
        fixed = not name and at[0] < 0
        found = (
            arrays[name][tuple(axes[n] if n >= 0 else -1 - n for n in at)]
            if name
            else np.array(at[1])
            if fixed
            else axes[at[0]]
        )
        columns.append(np.broadcast_to(found, places.domain).reshape(-1))
    cells = np.stack(columns, axis=1) if columns else np.zeros((prod(places.domain), 0))
    first, counts = np.unique(cells, axis=0, return_inverse=True, return_counts=True)[1:]
    twice = counts[first.reshape(-1)] > 1
    if not twice.any():
        return None
    cell = cells[int(np.argmax(twice))]
    same = np.flatnonzero((cells == cell).all(axis=1))[:2]
    one, other = ([int(i) for i in np.unravel_index(int(n), places.domain)] for n in same)
    message = f"{places.into}: terms {one} and {other} both go to cell {[int(i) for i in cell]}, and op='set' takes one"
    return Problem("launch.duplicate-cell", message, hint="op='sum', 'max' …, or places that differ")


def bytes_of(array: np.ndarray) -> NDArray[np.uint8]:
    """Flat byte view of a C-contiguous array."""
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
