"""Registers kernels as PyTorch operators, using the files that exported folders ship."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from importlib.resources import files as resources
from typing import Any, cast

from tensorir.api.build import Executable
from tensorir.codec import encode
from tensorir.codegen.source import Source
from tensorir.export.c_header import DIM_ERRORS, ERRORS, each_time, packed_bytes
from tensorir.export.c_program import core, launched
from tensorir.export.shipped import torch_operator
from tensorir.export.shipped.torch_c import CBody, Doors
from tensorir.export.shipped.torch_kernel import Kernel
from tensorir.ir import extents
from tensorir.runtime.pointers import on_pointers

Refused = Callable[[str, str, type[Exception]], Exception]
"""The package's error of a code, with a message, for a kind of Python's."""


def register(f: Executable, name: str, backward: Mapping[str, Executable], refused: Refused) -> Any:
    """Register ``f`` as PyTorch operator ``name`` and return the operator; ``backward``: {input: its gradient}, all
    validated.
    """
    gradients = {of: [_kernel(g, refused)] for of, g in backward.items()}
    return torch_operator.register(name, [_kernel(f, refused)], gradients, _doors(f))


def _kernel(f: Executable, refused: Refused) -> Any:
    """The kernel as the object that the shipped module registers."""
    source, run = each_time(f.emitted), on_pointers(f.program)
    arguments = [
        {"name": p.name, "dtype": p.dtype, "shape": p.shape, "role": p.role, "align": run.align.get(p.name, 1)}
        for p in (*source.inputs, *source.outputs)
    ]
    about = {
        "name": source.name,
        "arguments": arguments,
        "gathers": [encode(g) for g in source.gathers],
        "dims": [encode(d) for d in source.dims],
        "held": [p.name for p in source.inputs if p.name in source.used_once],
        "workspace_bytes": run.workspace_bytes,
    }
    if f.device.target.language == "c":
        return Kernel(about, _in_c(f, source, about), refuse=refused, extents=extents)
    device = f.device.name if f.device.target.language == "cuda" else "cpu"
    return Kernel(about, run, device, refused, extents)


def _in_c(f: Executable, source: Source, about: Mapping[str, Any]) -> Any:
    """The kernels of a C device as one C function, callable from PyTorch without Python."""
    module = f.program._module
    device: Any = f.device  # of the class CDevice, whose module knows addresses
    library = device.library(core(source, "core"), source.name)
    kernels = [cast(Any, module).runs[k.name] for k in launched(source)]
    (ctypes.c_void_p * len(kernels)).in_dll(library, "tir_kernels")[:] = kernels
    memories = list(f.program.constants().values())
    if memories:
        places = [cast("Any", m).ctypes.data for m in memories]
        (ctypes.c_void_p * len(memories)).in_dll(library, "core_constants")[:] = places
    kept = module, memories, library
    return CBody.of(
        library, "core", about, packed_bytes(source), dict(enumerate((ERRORS | DIM_ERRORS).values(), 1)), kept
    )


def _doors(f: Executable) -> Any:
    """C entry points by which PyTorch calls the kernels; None for other devices or an unsuitable PyTorch."""
    device: Any = f.device
    if device.target.language != "c":
        return None
    if not _open or not _open[-1].free:
        text = resources("tensorir.export.shipped").joinpath("door_torch.c").read_text(encoding="utf-8")
        try:
            _open.append(Doors(device.library(text, "door_torch")))
        except (OSError, AttributeError):
            return None
    return _open[-1]


_open: list[Any] = []
"""Doors of this process, the last one with room for more kernels."""
