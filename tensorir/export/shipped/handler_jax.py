"""XLA FFI (version 0.1) handlers for this folder's loaders, through ctypes; no compiler needed.

XLA calls a ctypes function, which acquires the GIL in XLA's thread: some microseconds slower than the compiled library.
Used for OpenCL on CPUs, where the library cannot be built, and for CUDA, where kernels are launched on the call's
stream without waiting, except to read scalars and indices. Not yet run on a GPU.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
Pointer, Size, Int32, Int64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64
METADATA, EXECUTE, INVALID_ARGUMENT, INTERNAL = 1, 3, 3, 13
HEAD = (("size", Size), ("more", Pointer))
VERSION = (0, 1)
"""The first of the interface, which later ones are supersets of."""


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, pointers = sibling("common"), sibling("pointers")


def structure(
    name: str, *fields: tuple[str, object], head: Sequence[tuple[str, object]] = HEAD
) -> type[ctypes.Structure]:
    """A ctypes struct of the XLA FFI, with its size and extension header."""
    return type(name, (ctypes.Structure,), {"_fields_": [*head, *fields]})


Version = structure("Version", ("major", Int32), ("minor", Int32))
Metadata = structure("Metadata", ("api", Version), ("traits", ctypes.c_uint32), head=HEAD[:1])
Extension = structure(
    "Extension", ("type", Int32), ("next", Pointer), ("about", ctypes.POINTER(Metadata)), head=HEAD[:1]
)
Buffer = structure("Buffer", ("dtype", Int32), ("data", Pointer), ("rank", Int64), ("dims", ctypes.POINTER(Int64)))
List = structure("List", ("count", Int64), ("types", Pointer), ("items", ctypes.POINTER(ctypes.POINTER(Buffer))))
Error = structure("Error", ("message", ctypes.c_char_p), ("code", Int32))
Stream = structure("Stream", ("context", Pointer), ("stream", Pointer))
Destroyed = structure("Destroyed", ("error", Pointer))
Interface = structure(
    "Interface",
    ("version", Version),
    ("internal", Pointer),
    ("error_create", ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(Error))),
    ("error_message", Pointer),
    ("error_destroy", ctypes.CFUNCTYPE(None, ctypes.POINTER(Destroyed))),
    ("register", Pointer),
    ("stream_get", ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(Stream))),
)
Frame = structure(
    "Frame", ("api", ctypes.POINTER(Interface)), ("context", Pointer), ("stage", Int32), ("args", List), ("rets", List)
)


class Handler:
    """An XLA FFI handler function: ``address``, valid while this object lives.

    about: manifest entry of the program;  types: XLA's dtype codes
    run:   function of argument addresses and the stream that computes
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        types: Mapping[str, int],
        run: Callable[[Sequence[int], int], None],
        stream: bool,
    ) -> None:
        self.about, self.arguments = about, passed(about)
        self.given = sum(p["role"] != "output" for p in self.arguments)
        self.name, self.types, self.run, self.stream = about["name"], types, run, stream
        self.function = ctypes.CFUNCTYPE(Pointer, Pointer)(self.called)
        self.address = ctypes.cast(self.function, Pointer).value

    def called(self, place: int) -> int | None:
        """Handle a call from XLA: None, or the address of an error."""
        frame = Frame.from_address(place)
        if frame.more and Extension.from_address(frame.more).type == METADATA:
            about = Extension.from_address(frame.more).about.contents
            about.api.major, about.api.minor = VERSION
            about.traits = 0
            return None
        if frame.stage != EXECUTE:
            return None
        try:
            self.compute(frame)
        except Exception as error:  # which ctypes would print and ignore
            code = INVALID_ARGUMENT if isinstance(error, TypeError | ValueError) else INTERNAL
            text = f"{self.name}: {error}".encode()[:500]
            said = Error(Error.code.offset + 4, None, text, code)
            made: int | None = frame.api.contents.error_create(ctypes.byref(said))
            return made
        return None

    def compute(self, frame: ctypes.Structure) -> None:
        """Run the program for each item of leading batch dimensions."""
        buffers = [lst.items[n].contents for lst in (frame.args, frame.rets) for n in range(lst.count)]
        if (frame.args.count, frame.rets.count) != (self.given, len(self.arguments) - self.given):
            raise TypeError(f"expected {self.given} arrays, got {frame.args.count}")
        extents = buffers[self.given].dims[: buffers[self.given].rank - len(self.arguments[self.given]["shape"])]
        dims = told(self.about, [b.dims[len(extents) : b.rank] for b in buffers[: self.given]])
        arguments = passed(at(self.about, dims))
        leading = [self.leading(p, b, extents) for p, b in zip(arguments, buffers, strict=True)]
        stream = self.stream_of(frame) if self.stream else 0
        sizes = [prod(p["shape"]) * itemsize(p) for p in arguments]
        if any(sizes[self.given :]):
            for where in product(*map(range, extents)):
                items = zip(buffers, leading, sizes, strict=True)
                places = [(b.data or 0) + size * place(where, many) for b, many, size in items]
                self.run([*places, *dims.values()], stream)

    def leading(self, p: Mapping[str, Any], b: Any, extents: Sequence[int]) -> list[int]:
        """Batch dimensions before the kernel's; TypeError if an array does not fit."""
        dims: list[int] = b.dims[: b.rank]
        own = dims[len(dims) - len(p["shape"]) :] if p["shape"] else []
        mine = dims[: len(dims) - len(p["shape"])]
        fits = len(mine) == len(extents) and all(
            a == b or (a == 1 and p["role"] != "output") for a, b in zip(mine, extents, strict=True)
        )
        if b.dtype != self.types[p.get("passed_as", p["dtype"])] or own != list(p["shape"]) or not fits:
            shape = tuple(p["shape"])
            message = (
                f"{p['name']}: expected {p['dtype']} {shape}, got an array of type {b.dtype} and shape {tuple(dims)}"
            )
            raise TypeError(message)
        return mine

    def stream_of(self, frame: ctypes.Structure) -> int:
        """Stream of the call."""
        asked = Stream(ctypes.sizeof(Stream), None, frame.context, None)
        if error := frame.api.contents.stream_get(ctypes.byref(asked)):
            frame.api.contents.error_destroy(ctypes.byref(Destroyed(ctypes.sizeof(Destroyed), None, error)))
            raise RuntimeError("XLA gives no stream for this call")
        return asked.stream or 0


def itemsize(p: Mapping[str, Any]) -> int:
    """Bytes per element in XLA; narrow float scalars are float32."""
    return 4 if "passed_as" in p else common.dtype_of(p["dtype"]).itemsize


def place(at: Sequence[int], dims: Sequence[int]) -> int:
    """Linear index of batch item ``at`` in an array, whose extents of 1 broadcast."""
    number = 0
    for n, extent in zip(at, dims, strict=True):
        number = number * extent + (n if extent > 1 else 0)
    return number


class OnHost:
    """A program of the OpenCL loader, on host memory."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.about = common.program_in("opencl", manifest)
        self.body = pointers.Loaded(lambda: pointers.loader_of(manifest, "opencl").Program(manifest=manifest))

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        given, about = list(addresses), at(self.about, dims_after(self.about, addresses))
        for n, p in enumerate(passed(about)):
            if p["role"] == "scalar":
                given[n] = elements(p, pointers.at_address(given[n], itemsize(p))).item()
            elif is_index(about, p):
                check_indices(about, p, elements(p, pointers.at_address(given[n], prod(p["shape"]) * itemsize(p))))
        self.body(given)


class OnStream:
    """A program of the folder's CUDA loader on the stream of the call, on memory of the GPU. Not yet run on a GPU.

    What it needs in addition comes from CuPy's pool for this stream, which gives it to later work there only.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.manifest, self.about = manifest, common.program_in("cuda", manifest)
        self.bodies = dict[int, Any]()

    def body(self, device: int) -> Any:
        """Enqueuing callable for a device; kernels are loaded by its first call."""
        if device not in self.bodies:
            made = pointers.Enqueued(lambda: pointers.loader_of(self.manifest, "cuda").Program(manifest=self.manifest))
            self.bodies.setdefault(device, made)
        return self.bodies[device]

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        import cupy

        with cupy.cuda.ExternalStream(stream):
            device = int(cupy.cuda.Device().id)
            body = self.body(device)
            given, held, late = list(addresses), [], []
            about = at(self.about, dims_after(self.about, addresses))
            for n, p in enumerate(passed(about)):
                memory = body.array(cupy, given[n], prod(p["shape"]) * itemsize(p))
                if p["role"] == "scalar":
                    given[n] = elements(p, memory.get()).item()
                    continue
                if is_index(about, p):
                    check_indices(about, p, elements(p, memory.get()))
                if given[n] % max(p["align"], 1):  # an item of a batch
                    held.append(cupy.empty((memory.nbytes,), cupy.uint8))
                    given[n] = held[-1].data.ptr
                    if p["role"] == "output":
                        late.append((memory, held[-1]))
                    else:
                        held[-1][:] = memory
            room = sum(map(pointers.room, pointers.spaces(about)))
            held.append(cupy.empty((room,), cupy.uint8))
            body(given, stream, held[-1].data.ptr)
            for memory, result in late:
                memory[:] = result


def told(about: Mapping[str, Any], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """{dim: value} from array shapes; ValueError if inconsistent or out of range."""
    dims = about.get("dims", ())
    if not dims:
        return {}
    found, faults = common.extents().told(
        [(p["name"], p["shape"], s) for p, s in zip(passed(about), shapes, strict=False)]
    )
    for d in dims:
        n, where = found.get(d["name"], (0, d["name"]))
        faults += [] if d["low"] <= n <= d["high"] else [f"{where}: {d['name']} is {d['low']} to {d['high']}, got {n}"]
    if faults:
        raise ValueError(faults[0])
    return {d["name"]: found[d["name"]][0] for d in dims}


def dims_after(about: Mapping[str, Any], given: Sequence[int]) -> dict[str, int]:
    """Dims passed after the arguments, by name."""
    dims = about.get("dims", ())
    return dict(zip([d["name"] for d in dims], given[len(given) - len(dims) :], strict=True))


def at(about: Mapping[str, Any], dims: Mapping[str, int]) -> Mapping[str, Any]:
    """Manifest entry with shapes evaluated at given dims."""
    if not dims:
        return about
    values = common.extents().values
    arguments = [{**p, "shape": list(values(tuple(p["shape"]), dims))} for p in about["arguments"]]
    gathers = [{**g, "limit": values((g["limit"],), dims)[0]} for g in about["gathers"]]
    return {**about, "arguments": arguments, "gathers": gathers}


def passed(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Arguments of a program: inputs, scalars, outputs."""
    arguments = about["arguments"]
    given = [p for p in arguments if p["role"] in ("input", "scalar")]
    return given + [p for p in arguments if p["role"] == "output"]


def elements(p: Mapping[str, object], data: np.ndarray) -> np.ndarray:
    """Bytes viewed as an argument's elements."""
    return data.view(np.float32 if "passed_as" in p else common.dtype_of(p["dtype"]))


def is_index(about: Mapping[str, Any], p: Mapping[str, object]) -> bool:
    """True if elements of argument ``p`` are indices."""
    return any(g["param"] == p["name"] for g in about["gathers"])


def check_indices(about: Mapping[str, Any], p: Mapping[str, Any], values: np.ndarray) -> None:
    """ValueError for an index out of range."""
    common.check_indices(about["gathers"], p["name"], values.reshape(tuple(p["shape"])))
