"""Executables as operators of PyTorch in this process: what they may be called and are refused for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from tensorir.api.build import Executable
from tensorir.errors import LaunchError, LaunchTypeError, TensorIRError, refuse
from tensorir.errors.needs import shown


class TorchError(TensorIRError, ValueError):
    """An operator of PyTorch that cannot be registered."""


def register(f: Executable, name: str, backward: Mapping[str, Executable] | None) -> Any:
    """Register ``f`` as ``torch.ops.namespace.name``; see ``Executable.torch``."""
    _check_name(f, name)
    if importlib.util.find_spec("torch") is None:
        raise refuse(TorchError, "torch.missing", "PyTorch is not installed", hint='pip install "tensorir[torch]"')
    from tensorir.api import torch_kernels  # which needs it

    return torch_kernels.register(f, name, {} if backward is None else _kernels_of(backward), _error)


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
    if not isinstance(backward, Mapping) or not all(isinstance(g, Executable) for g in backward.values()):
        message = f"backward is a kernel for each input that has a gradient, got {shown(backward)}"
        raise refuse(TorchError, "torch.backward", message, hint='backward={"x": dx.build()}')
    return backward


def _error(code: str, message: str, kind: type[Exception]) -> Exception:
    """The package's error of a code."""
    types: Mapping[str, type[TensorIRError]] = {"torch": TorchError, "launch": LaunchError}
    made = LaunchTypeError if kind is TypeError else types[code.partition(".")[0]]
    return refuse(made, code, message)
