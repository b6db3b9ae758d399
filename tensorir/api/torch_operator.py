"""Executables as operators of PyTorch in this process; what registers them is the file that exported folders ship."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from importlib.resources import files as resources
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

from tensorir.codec import encode
from tensorir.errors import LaunchError, LaunchTypeError, TensorIRError, refuse
from tensorir.errors.needs import shown
from tensorir.runtime.pointers import OnPointers

if TYPE_CHECKING:
    from tensorir.api.build import Executable


class TorchError(TensorIRError, ValueError):
    """An operator of PyTorch that cannot be registered."""


def register(f: Executable, name: str, backward: Mapping[str, Executable] | None) -> Any:
    """Register ``f`` as ``torch.ops.namespace.name``; see ``Executable.torch``."""
    _check_name(f, name)
    if importlib.util.find_spec("torch") is None:
        raise refuse(TorchError, "torch.missing", "PyTorch is not installed", hint='pip install "tensorir[torch]"')
    from tensorir.export.shipped import torch_operator as shipped

    given = {} if backward is None else _kernels_of(backward)
    return shipped.register(name, [_kernel(f)], {of: [_kernel(g)] for of, g in given.items()}, _doors(f))


def _check_name(f: Executable, name: object) -> None:
    space, _, last = name.partition("::") if isinstance(name, str) else ("", "", "")
    if not (space.isidentifier() and last.isidentifier() and space.isascii() and last.isascii()):
        message = f"an operator is named namespace::name, got {shown(name)}"
        raise refuse(TorchError, "torch.name", message, hint=f'f.torch("mine::{_plain(f.emitted.name)}")')
    if space in ("aten", "prim", "prims"):
        raise refuse(TorchError, "torch.name", f"{space} is PyTorch's own", hint=f'f.torch("mine::{last}")')
    for p in f.emitted.inputs:
        if not (p.name.isidentifier() and p.name.isascii()) or iskeyword(p.name):
            message = f"an input of an operator cannot be named {shown(p.name)}"
            raise refuse(TorchError, "torch.name", message, hint=f'tir.placeholder(…, name="{_plain(p.name)}")')


def _plain(name: str) -> str:
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return plain + "_" if iskeyword(plain) else plain if plain[:1].isalpha() else f"x{plain}"


def _kernels_of(backward: object) -> Mapping[str, Executable]:
    from tensorir.api.build import Executable

    if not isinstance(backward, Mapping) or not all(isinstance(g, Executable) for g in backward.values()):
        message = f"backward is a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(TorchError, "torch.backward", message, hint='backward={"x": dx.build()}')
    return backward


def _kernel(f: Executable) -> Any:
    """What the shipped file registers."""
    from tensorir.export.shipped.torch_kernel import Kernel

    source, on_pointers = f.emitted, OnPointers(f.program)
    arguments = [
        {"name": p.name, "dtype": p.dtype, "shape": p.shape, "role": p.role, "align": on_pointers.align.get(p.name, 1)}
        for p in (*source.inputs, *source.outputs)
    ]
    about = {
        "name": source.name,
        "arguments": arguments,
        "gathers": [encode(g) for g in source.gathers],
        "held": [p.name for p in source.inputs if p.name in source.used_once],
        "workspace_bytes": on_pointers.workspace_bytes,
    }
    if f.device.target.language == "c":
        return Kernel(about, _in_c(f, about), refuse=_error)
    device = f.device.name if f.device.target.language == "cuda" else "cpu"
    return Kernel(about, on_pointers, device, _error)


def _in_c(f: Executable, about: Mapping[str, Any]) -> Any:
    """The kernels of a C device as one function of C, which PyTorch calls without Python."""
    from tensorir.export.c_program import ERRORS, core, launched, packed_bytes
    from tensorir.export.shipped.torch_c import CBody

    source, module = f.emitted, f.program._module
    device: Any = f.device  # of the class CDevice, whose module knows addresses
    library = device.library(core(source, "core"), source.name)
    kernels = [cast(Any, module).runs[k.name] for k in launched(source)]
    (ctypes.c_void_p * len(kernels)).in_dll(library, "tir_kernels")[:] = kernels
    memories = list(f.program.constants().values())
    if memories:
        (ctypes.c_void_p * len(memories)).in_dll(library, "core_constants")[:] = [m.ctypes.data for m in memories]
    kept = module, memories, library
    return CBody.of(library, "core", about, packed_bytes(source), dict(enumerate(ERRORS.values(), 1)), kept)


def _doors(f: Executable) -> Any:
    """By which PyTorch calls kernels of a C device; None for others, and where PyTorch has no C functions for it."""
    from tensorir.export.shipped.torch_c import Doors

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


def _error(code: str, message: str, kind: type[Exception]) -> Exception:
    """The package's error of a code."""
    types: Mapping[str, type[TensorIRError]] = {"torch": TorchError, "launch": LaunchError}
    made = LaunchTypeError if kind is TypeError else types[code.partition(".")[0]]
    return refuse(made, code, message)
