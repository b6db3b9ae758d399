"""C kernels as bodies for ``torch_operator.py``: called through ctypes, or directly by the dispatcher
(``door_torch.c``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


class Call(ctypes.Structure):
    """ctypes mirror of ``tir_call``: threads, workspace and stream of a call."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("threads", ctypes.c_int),
    )


NUMBERS = {
    "float64": ctypes.c_double, "float32": ctypes.c_float, "bool": ctypes.c_uint8,
    **{f"{sign}int{bits}": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""C types of numbers; floats of 8 and 16 bits are passed as float, rounded."""


class CBody:
    """Body that calls ``int NAME(const tir_call *, void *const *buffers)``.

    function: its ctypes function
    about:    manifest entry, as for ``Kernel``
    errors:   meanings of return codes
    pack:     (``NAME_pack``, ``NAME_packed``, ``NAME_packed_bytes``) if kernels run once, else None
    """

    def __init__(
        self, function: Any, about: Mapping[str, Any], errors: Mapping[int, str] | None = None, pack: Any = None
    ) -> None:
        given = [a for a in about["arguments"] if a["role"] in ("input", "scalar")]
        self.function, self.errors = function, dict(errors or {})
        self.name = str(about.get("name", "the kernel"))
        self.scalars = [(n, a["dtype"]) for n, a in enumerate(given) if a["role"] == "scalar"]
        arrays, dims = len(given) + sum(a["role"] == "output" for a in about["arguments"]), about.get("dims", ())
        self.scalars += [(arrays + n, "int64") for n in range(len(dims))]
        self.pointers = ctypes.c_void_p * (arrays + len(dims))
        self.dims = len(dims)
        self.tells: tuple[Any, ...] = (None, None)  # ``NAME_dims`` and ``NAME_extents``
        shapes = [a["shape"] for a in (*given, *(a for a in about["arguments"] if a["role"] == "output"))]
        limits = [g["limit"] for g in about.get("gathers", ())]
        self.open = list(dict.fromkeys(e for shape in (*shapes, limits) for e in shape if isinstance(e, str)))
        self.calls: dict[int, Any] = {}
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_int
        self.kept: object = None
        self.why: Any = None  # ``NAME_why`` of programs that a driver runs: what the last error was
        self.pack = None if pack is None else self.packing
        self.packer: Any
        self.rest: Any
        self.nbytes: int
        self.packer, self.rest, self.nbytes = pack or (None, None, 0)
        if pack is not None:
            for each in (self.packer, self.rest):
                each.argtypes, each.restype = (ctypes.c_void_p,) * 3, ctypes.c_int

    @classmethod
    def of(
        cls, library: ctypes.CDLL, name: str, about: Mapping[str, object], packed: int,
        errors: Mapping[int, str] | None = None, kept: object = None,
    ) -> CBody:  # fmt: skip
        """CBody for function ``name`` of a library.

        packed: ``NAME_packed_bytes``, 0 without packing;  kept: object to keep alive
        """
        pack = (library[f"{name}_pack"], library[f"{name}_packed"], packed) if packed else None
        made = cls(library[name], about, errors, pack)
        made.kept, made.why = kept, getattr(library, f"{name}_why", None)
        if about.get("dims"):
            made.tells = library[f"{name}_dims"], library[f"{name}_extents"]
        if made.why is not None:
            made.why.restype = ctypes.c_char_p
        return made

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: Any = None) -> None:
        call, places = self.call(), self.places(buffers)
        if packed is None:
            code = self.function(call, places[0])
        else:
            code = self.rest(call, places[0], packed.data_ptr())
        if code:
            self.failed(code)

    def packing(self, buffers: Sequence[object]) -> Any:
        """Run the kernels that run once; returns their results as one uint8 tensor. buffers: of the inputs"""
        room = torch.empty(self.nbytes, dtype=torch.uint8)
        places = self.places([*buffers, *[None] * (self.pointers._length_ - len(buffers))])
        if code := self.packer(self.call(), places[0], room.data_ptr()):
            self.failed(code)
        return room

    def call(self) -> int:
        """Address of a ``tir_call`` with PyTorch's number of threads."""
        threads = torch.get_num_threads()
        found = self.calls.get(threads)
        if found is None:
            made = Call(ctypes.sizeof(Call), None, None, None, None, threads)
            found = self.calls[threads] = made, ctypes.addressof(made)
        return int(found[1])

    def places(self, buffers: Sequence[object]) -> tuple[ctypes.Array[ctypes.c_void_p], object]:
        """(C array of ``buffers``' addresses, object that keeps scalars alive)."""
        if not self.scalars:
            return self.pointers(*buffers), None
        numbers = [(n, number(dtype, buffers[n])) for n, dtype in self.scalars if buffers[n] is not None]
        buffers = list(buffers)
        for n, value in numbers:
            buffers[n] = ctypes.addressof(value)
        return self.pointers(*buffers), numbers

    def failed(self, code: int) -> None:
        """Raise the error for a return code."""
        said = self.errors.get(code, f"error {code}") if self.why is None else self.why().decode("utf-8", "replace")
        raise RuntimeError(f"{self.name}: {said}")


def number(dtype: str, value: object) -> Any:
    """A scalar stored in memory as kernels take it."""
    if dtype in NUMBERS:
        return NUMBERS[dtype](value)
    kind = getattr(torch, {"float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype))
    return ctypes.c_float(torch.tensor(value, dtype=kind).to(torch.float32).item())


def coded(extent: Any, known: Sequence[str]) -> int:
    """A constant extent itself, or -1 - k for item k of ``known``."""
    return -1 - known.index(extent) if isinstance(extent, str) else int(extent)


MOST, DIMS = 64, 16
"""Arguments of a door, and dimensions of one."""


class DoorArgument(ctypes.Structure):
    """ctypes mirror of ``argument`` in ``door_torch.c``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("number", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("align", ctypes.c_int64),
        ("limit", ctypes.c_int64),
        ("into", ctypes.c_char_p),
        ("shape", ctypes.c_int64 * DIMS),
    )


class Door(ctypes.Structure):
    """ctypes mirror of ``door`` in ``door_torch.c``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kernel", ctypes.c_void_p),
        ("rest", ctypes.c_void_p),
        ("why", ctypes.c_void_p),
        ("told", ctypes.c_void_p),
        ("extents", ctypes.c_void_p),
        ("given", ctypes.c_int32),
        ("results", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("arguments", DoorArgument * MOST),
    )


PASSED = ("", "float64", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")
"""Types of numbers in C, in the order of ``door_torch.c``."""
STABLE = 2 << 56 | 10 << 48
"""The version of PyTorch's C functions that doors are written for: 2.10."""


class Doors:
    """Compiled ``door_torch.c``: registers C kernels with PyTorch's dispatcher, for contiguous or other CPU tensors.

    Raises OSError for a PyTorch that lacks its C functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.torch = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        begin = self.library.tir_door_begin
        begin.argtypes, begin.restype = (ctypes.c_void_p,), ctypes.c_char_p
        lacking = begin(self.torch._handle)
        if lacking is not None:
            raise OSError(f"this PyTorch ({torch.__version__}) has no {lacking.decode()}")
        self.library.tir_door_sizes.restype = ctypes.c_size_t
        door, argument, self.slots = (int(self.library.tir_door_sizes(n)) for n in range(3))
        if (door, argument) != (ctypes.sizeof(Door), ctypes.sizeof(DoorArgument)):
            raise OSError(f"{library} is of another version")
        self.library.tir_door_set.argtypes = (ctypes.c_int, ctypes.c_void_p)
        self.library.tir_door_open.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64)
        self.library.tir_door_open.restype = ctypes.c_void_p
        self.library.tir_door_close.argtypes = (ctypes.c_void_p,)
        self.free = list(range(self.slots))
        self.kept: list[Any] = []

    def takes(self, kernel: Any) -> bool:
        """True for C kernels, which the dispatcher can call directly; packed inputs are passed last."""
        every = (*kernel.given, *kernel.results, *kernel.dims)
        plain = all(a.dtype in PASSED for a in kernel.given if a.role == "scalar")
        small = len(every) < MOST and all(len(a.shape) <= DIMS for a in (*kernel.given, *kernel.results))
        small = small and len(getattr(kernel.body, "open", ())) <= MOST
        in_c = hasattr(kernel.body, "function") and kernel.on_cpu
        return in_c and plain and small and bool(self.free)

    def open(self, name: str, kernel: Any) -> tuple[int, Any]:
        """Register a kernel; (slot, library object that unregisters it)."""
        slot = self.free.pop()
        self.fill(slot, kernel)
        space, _, last = name.partition("::")
        library = self.library.tir_door_open(slot, space.encode(), last.encode(), STABLE)
        if not library:
            raise RuntimeError(f"{name}: PyTorch does not take its kernel")
        return slot, library

    def close(self, slot: int, library: ctypes.CDLL) -> None:
        """Unregister a kernel and free its slot."""
        self.library.tir_door_close(library)
        self.free.append(slot)

    def fill(self, slot: int, kernel: Any) -> None:
        """Replace the kernel of a slot."""
        body, packs = kernel.body, kernel.packs is not None
        given = [*kernel.given, *([kernel.packed_argument(body.nbytes)] if packs else [])]
        functions: tuple[Any, ...] = (body.function, body.rest if packs else None, body.why, *body.tells)
        door = Door(body.name.encode(), *(ctypes.cast(f, ctypes.c_void_p) for f in functions), len(given),
                    len(kernel.results), len(kernel.dims))  # fmt: skip
        # the function itself looks at parts
        ranges = {position: (limit, into) for position, limit, into, part in kernel.gathers if not part}
        for n, a in enumerate((*given, *kernel.results)):
            limit, into = ranges.get(n, (0, ""))
            dtype = getattr(self.torch, f"aoti_torch_dtype_{str(a.kind).removeprefix('torch.')}")()
            door.arguments[n] = DoorArgument(
                a.name.encode(), a.dtype.encode(), PASSED.index(a.dtype) if a.role == "scalar" else 0, dtype,
                PASSED.index(a.dtype) if limit else 0, len(a.shape), a.align, coded(limit, body.open),
                str(into).encode(), (ctypes.c_int64 * DIMS)(*(coded(e, body.open) for e in a.shape)),
            )  # fmt: skip
        self.kept.append((door, body))  # a call may still be on its way in the old one
        self.library.tir_door_set(slot, ctypes.addressof(door))
