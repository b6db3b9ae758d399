"""Creates the ``Kernel`` objects of this folder for ``door_torch.py``, for CPU and GPU tensors."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common, torch_c, torch_kernel, pointers = (sibling(name) for name in ("common", "torch_c", "torch_kernel", "pointers"))
loader_of = pointers.loader_of


def languages(manifest: Mapping[str, Any]) -> list[str]:
    """Languages of this folder's programs."""
    return [manifest["language"], *manifest.get("bodies", {})]


def used_once(about: Mapping[str, Any]) -> set[str]:
    """Names of arrays that "once" kernels read or write."""
    return {name for k in about["kernels"] if k["once"] for name in common.arrays_of(k)}


def packed_bytes(about: Mapping[str, Any], names: set[str]) -> int:
    """``NAME_packed_bytes`` of the C header: total size, arrays aligned to 64 bytes."""
    kept = [p for p in about["arguments"] if p["role"] == "workspace" and p["name"] in names]
    return sum(-(-pointers.nbytes_of(p) // 64) * 64 for p in kept)


def gradients() -> dict[str, list[object]]:
    """{input: gradient kernels}, from subfolders."""
    inside = common.read_manifest().get("backward", {})
    bodies = {of: sibling(f"{about['folder']}/torch_body") for of, about in inside.items()}
    return {of: list(body.kernels(body.common.read_manifest())) for of, body in bodies.items()}


def extents(about: Mapping[str, Any]) -> object:
    """Module that evaluates extents, None if all are constant."""
    return common.extents() if about.get("dims") else None


def kernels(manifest: Mapping[str, Any]) -> Iterator[object]:
    """Yield the CPU kernel (in C if possible) and the GPU kernel."""
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
    """The Doors by which PyTorch calls C kernels without Python; None if unsupported."""
    if "c" not in languages(manifest):
        return None
    try:
        return torch_c.Doors(ctypes.CDLL(str(sibling("build").library(manifest))))
    except (ImportError, OSError, AttributeError):
        return None
