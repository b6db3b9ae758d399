"""The kernel of this folder by TVM-FFI, on processors; needs apache-tvm-ffi.

import FOLDER.door_tvm_ffi           # its parent on sys.path
module = FOLDER.door_tvm_ffi.load()  # tvm_ffi.load_module of this folder's library, which is made where it is missing
module.NAME(a, b, y)                 # outputs are the last arguments, arrays of yours
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tvm_ffi

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


def missing() -> str:
    """Reason why the kernel cannot run here; "" if it can."""
    manifest = common.read_manifest()
    try:
        sibling("build").library()
    except ImportError as error:
        return str(error)
    if "host" not in common.program_in("c", manifest):
        return ""
    return str(sibling("loader" if manifest["language"] == "c" else "loader_c").missing())


def load() -> tvm_ffi.Module:
    """The tvm_ffi.Module of this folder's library."""
    return tvm_ffi.load_module(str(sibling("build").library()))


class Program:
    """The kernel on NumPy arrays, for the self-test."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = common.program_in("c", manifest)
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in self.manifest["arguments"] if p["role"] == "output"]
        self.module = load()
        self.function = getattr(self.module, self.manifest["tvm_ffi"]["function"])

    def __call__(self, *arrays: object) -> Any:
        """An array, or a tuple when there are several outputs; narrow floats are their bits."""
        made = [
            np.empty(shape, common.dtype_of(p["dtype"]))
            for p, shape in zip(self.outputs, self.shapes(arrays), strict=True)
        ]
        given = [
            a.item() if p["role"] == "scalar" and hasattr(a, "item") else a
            for p, a in zip(self.inputs, arrays, strict=True)
        ]
        self.function(*given, *made)
        return made[0] if len(made) == 1 else tuple(made)

    def shapes(self, arrays: Sequence[object]) -> list[tuple[int, ...]]:
        """Shapes of the outputs for these inputs."""
        shapes = [tuple(p["shape"]) for p in self.outputs]
        if not self.manifest.get("dims"):
            return shapes
        pairs = zip(self.inputs, arrays, strict=True)
        told, _ = common.extents().told([(p["name"], p["shape"], getattr(a, "shape", ())) for p, a in pairs])
        found = {d["name"]: told.get(d["name"], (d["low"], ""))[0] for d in self.manifest["dims"]}
        return [common.extents().values(shape, found) for shape in shapes]
