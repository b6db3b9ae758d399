"""Registers the kernel of this folder with PyTorch when it is imported: ``import FOLDER``, its parent on ``sys.path``.

torch.ops.NAMESPACE.NAME(x, w)   # the name is manifest["torch"]["op"]; tensors in, tensors out

It needs PyTorch, and what runs the kernel: for tensors of the processor a C compiler or the library that was built when
the folder was written, else pyopencl; for tensors of a GPU cupy.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import threading
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent


def beside(name: str) -> Any:
    """A module of this folder, found by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, torch_c, torch_operator = (beside(name) for name in ("common", "torch_c", "torch_operator"))


def loader_of(manifest: Mapping[str, Any], language: str) -> Any:
    """The folder's loader of a language."""
    return beside("loader" if manifest["language"] == language else f"loader_{language}")


def at_address(address: int, nbytes: int) -> Any:
    """The bytes of the host at an address, which somebody else keeps alive."""
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address) if nbytes else b""
    return np.frombuffer(memory, np.uint8)


def nbytes_of(p: Mapping[str, Any]) -> int:
    """Bytes of an argument."""
    return int(prod(p["shape"]) * common.dtype_of(p["dtype"]).itemsize)


class Loaded:
    """A program of a loader as a body: memory of the processor is copied to its device and back.

    The program is made at the first call: a process that forks before it can call it in both.
    """

    def __init__(self, make: Any) -> None:
        self.make = functools.cache(make)
        self.lock = threading.Lock()

    def program(self) -> Any:
        with self.lock:
            return self.make()

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: Any = None) -> None:
        program, memories, results = self.program(), {}, []
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
    """A program of ``loader_cupy.py`` as a body: on a stream, with the caller's workspace. Not yet run on a GPU."""

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: Any = None) -> None:
        import cupy

        program, memories = self.program(), {}
        for p, given in zip((*program.inputs, *program.outputs), buffers, strict=True):
            scalar = p["role"] == "scalar"
            memories[p["name"]] = common.scalar(p, given) if scalar else self.array(cupy, given, nbytes_of(p))
        for p in spaces(program.manifest):
            memories[p["name"]] = self.array(cupy, workspace, nbytes_of(p))
            workspace += room(p)
        with cupy.cuda.ExternalStream(stream):
            program.enqueue(memories)

    def array(self, cupy: Any, address: int, nbytes: int) -> Any:
        """Memory of the GPU as the loader passes it."""
        memory = cupy.cuda.UnownedMemory(address, max(nbytes, 1), None)
        return cupy.ndarray((nbytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))


def spaces(about: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a program uses between its kernels and the caller gives; what is made once for all calls stays its own."""
    late = {p["name"] for p in about["arguments"] if p["role"] in ("input", "scalar")}
    every = {p["name"]: p for p in about["arguments"] if p["role"] == "workspace"}
    once = [common.arrays_of(k) for k in about["kernels"] if k["once"]]
    for _ in once:
        late |= {name for args in once if args & late for name in args & every.keys()}
    early = {name for args in once if not args & late for name in args & every.keys()}
    return [p for name, p in every.items() if name not in early]


def room(p: Mapping[str, Any]) -> int:
    """Bytes of a workspace with what keeps the next one aligned."""
    return -(-nbytes_of(p) // 256) * 256


def languages(manifest: Mapping[str, Any]) -> list[str]:
    """Of the programs in this folder."""
    return [manifest["language"], *manifest.get("bodies", {})]


def kernels(manifest: Mapping[str, Any]) -> Iterator[Any]:
    """For the processor one, in C where it can be, and for the GPU one."""
    there, why = languages(manifest), ""
    if "c" in there:
        try:
            library = ctypes.CDLL(str(beside("build").library(manifest)))
        except ImportError as error:
            why = str(error)
        else:
            about = common.program_in("c", manifest)
            yield torch_operator.Kernel(about, torch_c.CBody(library[manifest["operator"].partition("::")[2]], about))
    if "opencl" in there and ("c" not in there or why):
        about = common.program_in("opencl", manifest)
        body = Loaded(lambda: loader_of(manifest, "opencl").Program(manifest=manifest))
        yield torch_operator.Kernel({**about, "prepack": ()}, body)
    elif why:
        raise ImportError(why)
    if "cuda" in there:
        about = common.program_in("cuda", manifest)
        body = Enqueued(lambda: loader_of(manifest, "cuda").Program(manifest=manifest))
        yield torch_operator.Kernel({**about, "workspace_bytes": sum(map(room, spaces(about)))}, body, "cuda")


def doors(manifest: Mapping[str, Any]) -> Any:
    """By which kernels in C are called without Python; None where PyTorch, or the library, has none."""
    if "c" not in languages(manifest):
        return None
    try:
        return torch_c.Doors(str(beside("build").library(manifest)))
    except (ImportError, OSError, AttributeError):
        return None


MANIFEST = common.read_manifest()
op = torch_operator.register(MANIFEST["torch"]["op"], list(kernels(MANIFEST)), doors=doors(MANIFEST))


def missing() -> str:
    """Why nothing runs here; "" where it does."""
    if languages(MANIFEST) != ["cuda"] or torch.cuda.is_available():
        return ""
    return "there is no CUDA device"


class Program:
    """The operator on NumPy arrays, for the self-test; narrow floats are their bits."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = MANIFEST if manifest is None else manifest
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in self.manifest["arguments"] if p["role"] == "output"]
        self.device = "cuda" if languages(self.manifest) == ["cuda"] else "cpu"

    def __call__(self, *arrays: Any) -> Any:
        given = [self.tensor(p, a) if p["role"] == "input" else a for p, a in zip(self.inputs, arrays, strict=True)]
        made = op(*given)
        results = [t.cpu() for t in (made if isinstance(made, tuple) else (made,))]
        for n, p in enumerate(self.outputs):
            if common.dtype_of(p["dtype"]).kind == "u":
                results[n] = results[n].view(getattr(torch, f"uint{8 * results[n].element_size()}"))
        found = tuple(t.numpy() for t in results)
        return found[0] if len(found) == 1 else found

    def tensor(self, p: Mapping[str, Any], array: Any) -> Any:
        kind = torch_operator.Argument.of(p).kind
        return torch.from_numpy(np.ascontiguousarray(array)).view(kind).to(self.device)
