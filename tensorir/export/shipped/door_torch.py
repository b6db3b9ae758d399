"""Registers the kernel of this folder with PyTorch when it is imported: ``import FOLDER``, its parent on ``sys.path``.

torch.ops.NAMESPACE.NAME(x, w)   # the name is manifest["torch"]["op"]; tensors in, tensors out

It needs PyTorch, and what runs the kernel: for tensors of the processor a C compiler or the library that was built when
the folder was written, else pyopencl; for tensors of a GPU cupy.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping
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


common, torch_c, torch_kernel, torch_operator = (
    beside(name) for name in ("common", "torch_c", "torch_kernel", "torch_operator")
)


pointers = beside("pointers")
loader_of, spaces, room = pointers.loader_of, pointers.spaces, pointers.room
Loaded, Enqueued = pointers.Loaded, pointers.Enqueued


def languages(manifest: Mapping[str, Any]) -> list[str]:
    """Of the programs in this folder."""
    return [manifest["language"], *manifest.get("bodies", {})]


def used_once(about: Mapping[str, Any]) -> set[str]:
    """Names of what kernels that run once read and write."""
    return {name for k in about["kernels"] if k["once"] for name in common.arrays_of(k)}


def packed_bytes(about: Mapping[str, Any], names: set[str]) -> int:
    """``NAME_packed_bytes`` of the header: each array from a multiple of 64 on."""
    kept = [p for p in about["arguments"] if p["role"] == "workspace" and p["name"] in names]
    return sum(-(-pointers.nbytes_of(p) // 64) * 64 for p in kept)


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
            name, held = manifest["operator"].partition("::")[2], used_once(about)
            body = torch_c.CBody.of(library, name, about, packed_bytes(about, held))
            given = [p["name"] for p in about["arguments"] if p["role"] in ("input", "scalar")]
            yield torch_kernel.Kernel({**about, "held": [n for n in given if n in held]}, body)
    if "opencl" in there and ("c" not in there or why):
        about = common.program_in("opencl", manifest)
        body = Loaded(lambda: loader_of(manifest, "opencl").Program(manifest=manifest))
        yield torch_kernel.Kernel(about, body)
    elif why:
        raise ImportError(why)
    if "cuda" in there:
        about = common.program_in("cuda", manifest)
        body = Enqueued(lambda: loader_of(manifest, "cuda").Program(manifest=manifest))
        yield torch_kernel.Kernel({**about, "workspace_bytes": sum(map(room, spaces(about)))}, body, "cuda")


def doors(manifest: Mapping[str, Any]) -> Any:
    """By which kernels in C are called without Python; None where PyTorch, or the library, has none."""
    if "c" not in languages(manifest):
        return None
    try:
        return torch_c.Doors(ctypes.CDLL(str(beside("build").library(manifest))))
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
        kind = torch_kernel.Argument.of(p).kind
        return torch.from_numpy(np.ascontiguousarray(array)).view(kind).to(self.device)
