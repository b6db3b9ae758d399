"""Runs the program of this folder; needs numpy and cupy only. Not yet run on a GPU.

from FOLDER import Program      # its parent on sys.path; or, this folder first on it, from loader import Program
program = Program()
result = program(a, b)          # numpy arrays in, numpy out; cupy arrays likewise
program(a, b, out=result)       # into arrays of yours
ready = program.prepack(b=b)    # where the manifest lists b under "prepack": what depends on b alone runs now
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import cupy
import numpy as np

HERE = Path(__file__).resolve().parent
UNASKED = 48 << 10
"""Bytes of block memory that any kernel may have; for more it has to ask."""


def sibling(name: str) -> ModuleType:
    """Import a module of this folder by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = sibling("common")
Base: Any = common.Base


def missing() -> str:
    """Reason why the program cannot run here; "" if it can."""
    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "there is no CUDA device"
    except Exception as error:  # the driver's own, or that of a library that is not there
        return f"there is no CUDA device: {error}"


class Program(Base):  # type: ignore[misc]
    """The compiled kernels of this folder on the current CUDA device."""

    array = cupy.ndarray

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        whole = common.program_in("cuda", manifest)
        for n, (program, image) in enumerate(found := candidates(whole)):
            super().__init__(program)
            try:
                self.kernels = loaded(program, image)
                break
            except Exception:  # an image that this driver does not take; the last one is the text
                if n + 1 == len(found):
                    raise
        self.dynamic: dict[str, int] = {}
        """Bytes of block memory to pass at launch, by kernel: all or, where it declares as much itself, nothing."""
        for about, kernel in self.kernels:
            needed = about["shared_bytes"]
            self.dynamic[about["name"]] = 0 if kernel.shared_size_bytes >= needed else needed
            if self.dynamic[about["name"]] > UNASKED:
                kernel.max_dynamic_shared_size_bytes = needed
        self.maps: dict[tuple[str, str], tuple[int, Any]] = {}
        self.encoded: Any = sibling("tensor_maps").encoded if any(k["maps"] for k, _ in self.kernels) else None
        self._begin()

    def run(self, memories: dict[str, object]) -> None:
        """Launch all kernels on arrays (and NumPy scalars) by argument name, and wait. Calls are serialized."""
        self.enqueue(memories)
        cupy.cuda.get_current_stream().synchronize()

    def enqueue(self, memories: dict[str, object]) -> None:
        """Launch all kernels on the current stream without waiting; concurrent calls need separate workspaces."""
        values = {**self.fixed, **memories}
        with self.lock:  # calls share the workspace
            for about, kernel in self.launches:
                maps = {m["name"]: m for m in about["maps"]}
                values_of = tuple(self._map(about, maps[a], values) if a in maps else values[a] for a in about["args"])
                kernel(tuple(about["grid"]), tuple(about["block"]), values_of, shared_mem=self.dynamic[about["name"]])

    def _map(self, kernel: dict[str, Any], m: dict[str, Any], values: dict[str, Any]) -> Any:
        """Tensor map argument, re-encoded if its array moved."""
        place, address = (kernel["name"], m["name"]), values[m["array"]].data.ptr
        if self.maps.get(place, (None,))[0] != address:
            self.maps[place] = address, self.encoded(address, **m)
        return self.maps[place][1]

    def buffer(self, nbytes: int) -> cupy.ndarray:
        """Allocate device memory."""
        return cupy.empty(max(nbytes, 16), cupy.uint8)

    def filled(self, data: np.ndarray) -> cupy.ndarray:
        """Allocate device memory initialized with ``data``."""
        made = self.buffer(data.nbytes)
        made[: data.nbytes] = cupy.asarray(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        return made

    def inside(self, memory: cupy.ndarray, offset: int, nbytes: int) -> cupy.ndarray:
        """A slice of device memory, in bytes."""
        return memory[offset : offset + nbytes]

    def read(self, memory: cupy.ndarray, array: np.ndarray) -> None:
        """Copy device memory into a NumPy array."""
        array.reshape(-1).view(np.uint8)[:] = memory[: array.nbytes].get()

    def memory(self, a: cupy.ndarray) -> cupy.ndarray:
        """The CuPy array itself."""
        return a

    def values(self, a: cupy.ndarray) -> cupy.ndarray:
        """The array itself; CuPy computes min and max on the device."""
        return a

    def place(self, a: cupy.ndarray) -> int:
        """Device address of an array."""
        return int(a.data.ptr)

    def shared(self, a: cupy.ndarray, b: cupy.ndarray) -> bool:
        """True if two arrays overlap in memory."""
        start, begin = int(a.data.ptr), int(b.data.ptr)
        return max(start, begin) < int(min(start + a.nbytes, begin + b.nbytes))

    def new(self, shape: tuple[int, ...], dtype: object) -> cupy.ndarray:
        """A new CuPy array."""
        return cupy.empty(shape, dtype)


def candidates(manifest: dict[str, Any]) -> list[tuple[dict[str, Any], str | None]]:
    """(program, image file or None for text) that run on the current device, best first."""
    about = manifest.get("cuda", {})
    programs = {"tuned": manifest} | ({"portable": {**manifest, **about["portable"]}} if "portable" in about else {})
    texts = {name: program["arch"] for name, program in programs.items() if program.get("arch")}
    if not texts:
        return [(manifest, None)]
    own = str(cupy.cuda.Device().compute_capability)
    order = sibling("cuda_images").order(about.get("images", ()), texts, (int(own[:-1]), int(own[-1])))
    return [(programs[name], image and image["file"]) for name, image in order]


def loaded(program: dict[str, Any], image: str | None) -> list[tuple[dict[str, Any], Any]]:
    """(kernel entry, CuPy function) of a program's kernels."""
    if image is None:
        text = (HERE / program["source"]).read_text(encoding="utf-8")
        module = cupy.RawModule(code=text, options=options_here(program), backend="nvrtc")
    else:
        module = cupy.RawModule(path=str(HERE / image))
    return [(k, module.get_function(k["name"])) for k in program["kernels"] if all(k["grid"])]


def options_here(manifest: dict[str, Any]) -> tuple[str, ...]:
    """NVRTC options; on Hopper CuPy adds sm_90, which NVRTC 13 and later accept next to sm_90a."""
    hopper = cupy.cuda.Device().compute_capability == "90" and cupy.cuda.nvrtc.getVersion() >= (13, 0)
    return (*manifest["options"], *(["-arch=sm_90a"] if hopper else []))
