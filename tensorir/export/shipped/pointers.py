"""Runs this folder's loaders on raw memory addresses, as frameworks pass them."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = sibling("common")


def loader_of(manifest: Mapping[str, object], language: str) -> ModuleType:
    """Loader module of a language."""
    return sibling("loader" if manifest["language"] == language else f"loader_{language}")


def at_address(address: int, nbytes: int) -> np.ndarray:
    """Host memory at an address as a byte array; not kept alive."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address) if nbytes else b""
    return np.frombuffer(memory, np.uint8)


def nbytes_of(p: Mapping[str, Any]) -> int:
    """Bytes of an argument."""
    return int(prod(p["shape"]) * common.dtype_of(p["dtype"]).itemsize)


class Loaded:
    """A loader's program called with host addresses; data is copied to its device and back.

    The program is created at the first call, so that a process may fork before.
    """

    def __init__(self, make: Any) -> None:
        self.make = functools.cache(make)
        self.lock = threading.Lock()

    def program(self) -> Any:
        with self.lock:
            return self.make()

    def at(self, buffers: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """(program at the extents that follow the arguments, the arguments)."""
        program = self.program()
        dims = [d["name"] for d in program.manifest.get("dims", ())]
        if not dims:
            return program, buffers
        first = len(buffers) - len(dims)
        return program.at(dict(zip(dims, buffers[first:], strict=True))), buffers[:first]

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: object = None) -> None:
        (program, buffers), memories, results = self.at(buffers), {}, []
        for p, given in zip((*program.inputs, *program.outputs), buffers, strict=True):
            if p["role"] == "scalar":
                memories[p["name"]] = common.scalar(p, given)
                continue
            array = at_address(given, nbytes_of(p))
            if p["role"] == "output":
                memories[p["name"]] = program.buffer(array.nbytes)
                results.append((memories[p["name"]], array))
            else:
                memories[p["name"]] = program.filled(array)
        program.run(memories)
        for memory, array in results:
            program.read(memory, array)


class Enqueued(Loaded):
    """A ``loader_cupy.py`` program called with device addresses, on a stream, with the caller's workspace. Not yet run
    on a GPU.
    """

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: object = None) -> None:
        import cupy

        (program, buffers), memories = self.at(buffers), {}
        for p, given in zip((*program.inputs, *program.outputs), buffers, strict=True):
            scalar = p["role"] == "scalar"
            memories[p["name"]] = common.scalar(p, given) if scalar else self.array(cupy, given, nbytes_of(p))
        for p in spaces(program.manifest):
            memories[p["name"]] = self.array(cupy, workspace, nbytes_of(p))
            workspace += room(p)
        with cupy.cuda.ExternalStream(stream):
            program.enqueue(memories)

    def array(self, cupy: ModuleType, address: int, nbytes: int) -> object:
        """Device memory at an address as a CuPy array."""
        memory = cupy.cuda.UnownedMemory(address, max(nbytes, 1), None)
        return cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


def spaces(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Intermediate arrays of a program supplied by the caller; packed ones stay with the program."""
    late = {p["name"] for p in about["arguments"] if p["role"] in ("input", "scalar")}
    every = {p["name"]: p for p in about["arguments"] if p["role"] == "workspace"}
    once = [common.arrays_of(k) for k in about["kernels"] if k["once"]]
    for _ in once:
        late |= {name for args in once if args & late for name in args & every.keys()}
    early = {name for args in once if not args & late for name in args & every.keys()}
    return [p for name, p in every.items() if name not in early]


def rooms(about: Mapping[str, Any]) -> int | str:
    """Bytes of all ``spaces``, an expression of dims if extents vary."""
    if not about.get("dims"):
        return sum(map(room, spaces(about)))
    sizes = [(*(f"({e})" for e in p["shape"]), str(common.dtype_of(p["dtype"]).itemsize)) for p in spaces(about)]
    return " + ".join(["0", *(f"({' * '.join(size)} + 255) // 256 * 256" for size in sizes)])


def room(p: Mapping[str, object]) -> int:
    """Bytes of a workspace array, rounded up for alignment."""
    return -(-nbytes_of(p) // 256) * 256
