"""Registers the kernel of this folder with PyTorch when it is imported: ``import FOLDER``, its parent on ``sys.path``.

torch.ops.NAMESPACE.NAME(x, w)   # the name is manifest["torch"]["op"]; tensors in, tensors out

It needs PyTorch, and what runs the kernel: for tensors of the processor a C compiler or the library that was built when
the folder was written, else pyopencl; for tensors of a GPU cupy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


torch_body, torch_operator = sibling("torch_body"), sibling("torch_operator")
common = torch_body.common
MANIFEST = common.read_manifest()
op = torch_operator.register(
    MANIFEST["torch"]["op"], list(torch_body.kernels(MANIFEST)), torch_body.gradients(), torch_body.doors(MANIFEST)
)


def missing() -> str:
    """Reason why the kernel cannot run here; "" if it can."""
    if torch_body.languages(MANIFEST) != ["cuda"] or torch.cuda.is_available():
        return ""
    return "there is no CUDA device"


class Program:
    """The operator on NumPy arrays, for the self-test; narrow floats are their bits."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = MANIFEST if manifest is None else manifest
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in self.manifest["arguments"] if p["role"] == "output"]
        self.device = "cuda" if torch_body.languages(self.manifest) == ["cuda"] else "cpu"

    def __call__(self, *arrays: object) -> Any:
        given = [self.tensor(p, a) if p["role"] == "input" else a for p, a in zip(self.inputs, arrays, strict=True)]
        made = op(*given)
        results = [t.cpu() for t in (made if isinstance(made, tuple) else (made,))]
        for n, p in enumerate(self.outputs):
            if common.dtype_of(p["dtype"]).kind == "u":
                results[n] = results[n].view(getattr(torch, f"uint{8 * results[n].element_size()}"))
        found = tuple(t.numpy() for t in results)
        return found[0] if len(found) == 1 else found

    def tensor(self, p: Mapping[str, object], array: object) -> torch.Tensor:
        kind = torch_body.torch_kernel.Argument.of(p).kind
        return torch.from_numpy(np.array(array, order="C")).view(kind).to(self.device)
