"""Kernels of this folder for ``door_torch.py``: a ``Kernel`` for the processor, and one for a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


def sibling(name: str) -> ModuleType:
    """A module of this folder, found by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, torch_c, torch_kernel, pointers = (sibling(name) for name in ("common", "torch_c", "torch_kernel", "pointers"))
loader_of = pointers.loader_of


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


def gradients() -> dict[str, list[object]]:
    """By input, the kernels for its gradient: those of the folders in this one."""
    inside = common.read_manifest().get("backward", {})
    bodies = {of: sibling(f"{about['folder']}/torch_body") for of, about in inside.items()}
    return {of: list(body.kernels(body.common.read_manifest())) for of, body in bodies.items()}


def extents(about: Mapping[str, Any]) -> object:
    """The module that reads and evaluates extents, where calls decide some."""
    return common.extents() if about.get("dims") else None


def kernels(manifest: Mapping[str, Any]) -> Iterator[object]:
    """For the processor one, in C where it can be, and for the GPU one."""
    there, why = languages(manifest), ""
    if "c" in there:
        try:
            library = ctypes.CDLL(str(sibling("build").library(manifest)))
        except ImportError as error:
            why = str(error)
        else:
            about = common.program_in("c", manifest)
            name, held = manifest["operator"].partition("::")[2], used_once(about)
            body = torch_c.CBody.of(library, name, about | {"name": name}, packed_bytes(about, held))
            given = [p["name"] for p in about["arguments"] if p["role"] in ("input", "scalar")]
            yield torch_kernel.Kernel({**about, "held": [n for n in given if n in held]}, body, extents=extents(about))
    if "opencl" in there and ("c" not in there or why):
        about = common.program_in("opencl", manifest)
        body = pointers.Loaded(lambda: loader_of(manifest, "opencl").Program(manifest=manifest))
        yield torch_kernel.Kernel(about, body, extents=extents(about))
    elif why:
        raise ImportError(why)
    if "cuda" in there:
        about = common.program_in("cuda", manifest)
        body = pointers.Enqueued(lambda: loader_of(manifest, "cuda").Program(manifest=manifest))
        about = {**about, "workspace_bytes": pointers.rooms(about)}
        yield torch_kernel.Kernel(about, body, "cuda", extents=extents(about))


def doors(manifest: Mapping[str, Any]) -> object:
    """By which kernels in C are called without Python; None where PyTorch, or the library, has none."""
    if "c" not in languages(manifest):
        return None
    try:
        return torch_c.Doors(ctypes.CDLL(str(sibling("build").library(manifest))))
    except (ImportError, OSError, AttributeError):
        return None
