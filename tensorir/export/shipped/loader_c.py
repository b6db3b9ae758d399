"""Runs the C program of this folder; needs numpy and a C compiler only, or the folder's library.

from FOLDER import Program      # its parent on sys.path; or, this folder first on it, from loader import Program
program = Program()
result = program(a, b)          # numpy arrays in, numpy out
program(a, b, out=result)       # into arrays of yours
"""

from __future__ import annotations

import ctypes
import importlib.util
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


common, build = sibling("common"), sibling("build")
Base: Any = common.Base


def missing() -> str:
    """Reason why the program cannot run here; "" if it can."""
    manifest = common.read_manifest()
    if build.compiler() is None and not (HERE / manifest.get("library", {}).get("file", "?")).exists():
        return "there is no C compiler (cc, gcc, clang, or CC)"
    about = common.program_in("c", manifest)
    return no_driver(library(about | {"operator": manifest["operator"]}), about, manifest) if "host" in about else ""


def no_driver(loaded: ctypes.CDLL, about: dict[str, Any], manifest: dict[str, Any]) -> str:
    """Reason why the GPU driver is unavailable; "" if it is available. Kernel compile errors raise later."""
    name = manifest["operator"].partition("::")[2]
    if loaded[f"{name}_load"](None) in (about["errors"]["DRIVER"], about["errors"]["DEVICE"]):
        return why(loaded, name)
    return ""


def why(loaded: ctypes.CDLL, name: str) -> str:
    """Message of the library's last error."""
    said = loaded[f"{name}_why"]
    said.restype = ctypes.c_char_p
    return str(said().decode("utf-8", "replace"))


def library(manifest: dict[str, Any]) -> ctypes.CDLL:
    """The loaded shared library: this folder's, or one compiled now and cached."""
    build.find_driver(manifest.get("host", ""))
    if "library" in manifest:
        return ctypes.CDLL(str(build.library(manifest)))
    stem = manifest["operator"].partition("::")[2]
    label = manifest["source"].removesuffix(f"{stem}.c")
    contents = {name.removeprefix(label): (HERE / name).read_bytes() for name in manifest["sources"]}
    _, *kept = build.places(f"lib{stem}.so", contents)
    if not kept:
        raise ImportError("there is no place to keep the program's library in: set XDG_CACHE_HOME")
    path = kept[0]
    if not path.exists() or build.unloadable(path):
        command = build.compiler()
        if command is None:
            raise ImportError("there is no C compiler to make the program's library with (cc, gcc, clang, or CC)")
        build.put(path, build.compiled(command, contents))
    return ctypes.CDLL(str(path))


class Program(Base):  # type: ignore[misc]
    """The compiled C function of this folder."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        whole = manifest or common.read_manifest()
        super().__init__(
            common.program_in("c", whole) | {"operator": whole.get("operator", common.read_manifest()["operator"])}
        )
        loaded, name = library(self.manifest), self.manifest["operator"].partition("::")[2]
        self.loaded, self.name = loaded, name
        self.function = loaded[name]
        self.function.argtypes, self.function.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
        self.constants = [p["name"] for p in self.manifest["arguments"] if p["role"] == "constant"]
        self.places: Any = ()
        if self.constants:
            self.places = (ctypes.c_void_p * len(self.constants)).in_dll(loaded, f"{name}_constants")
        self.shipped = list(self.places)

    def prepack(self, **arrays: object) -> Program:
        """This program with inputs fixed."""
        made: Program = super().prepack(**arrays)
        return made

    def _begin(self) -> None:
        """Nothing to prepare for C."""

    def _run_early(self) -> None:
        """Nothing: the C function runs all kernels."""

    def run(self, memories: dict[str, object]) -> None:
        """Call the C function on byte arrays and scalars by argument name; calls are serialized."""
        given = [np.ascontiguousarray(memories[p["name"]]) for p in (*self.inputs, *self.outputs)]
        given += [np.array([self.fixed[p["name"]]], np.int64) for p in self.manifest["arguments"] if p["role"] == "dim"]
        pointers = (ctypes.c_void_p * len(given))(*(a.ctypes.data for a in given))
        with self.lock:
            for n, name in enumerate(self.constants):
                self.places[n] = self.fixed[name].ctypes.data if name in self.fixed else self.shipped[n]
            code = self.function(None, pointers)
        if code:
            said = why(self.loaded, self.name) if "host" in self.manifest else "see the header"
            raise RuntimeError(f"the kernel returned the error code {code}: {said}")

    def buffer(self, nbytes: int) -> np.ndarray:
        """Allocate cache-line-aligned memory."""
        raw = np.empty(nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + nbytes]

    def filled(self, data: np.ndarray) -> np.ndarray:
        """Allocate memory initialized with ``data``."""
        content = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        made = self.buffer(content.size)
        made[:] = content
        return made

    def inside(self, memory: np.ndarray, offset: int, nbytes: int) -> np.ndarray:
        """A slice of memory, in bytes."""
        return memory[offset : offset + nbytes]

    def read(self, memory: np.ndarray, array: np.ndarray) -> None:
        """Copy memory into a NumPy array."""
        array.reshape(-1).view(np.uint8)[:] = memory[: array.nbytes]
