"""Runs the program of this folder; needs numpy and cupy only. Not yet run on a GPU.

from FOLDER import Program      # its parent on sys.path; or, this folder first on it, from loader import Program
program = Program()
result = program(a, b)          # numpy arrays in, numpy out; cupy arrays likewise
program(a, b, out=result)       # into arrays of yours
ready = program.prepack(b=b)    # where the manifest lists b under "prepack": what depends on b alone runs now
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import math
import threading
from math import prod
from pathlib import Path
from typing import Any

import cupy
import numpy as np

HERE = Path(__file__).resolve().parent
UNASKED = 48 << 10
"""Bytes of block memory that any kernel may have; for more it has to ask."""

NARROW = {"float16": (10, -14, 65504.0), "bfloat16": (7, -126, 255 * 2.0**120),
          "float8_e4m3": (3, -6, 448.0), "float8_e5m2": (2, -14, 57344.0)}  # fmt: skip
"""Narrow floats: bits of mantissa, least exponent, largest number."""


def read_manifest() -> dict[str, Any]:
    """The manifest, after comparing every file with its digest."""
    manifest: dict[str, Any] = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))
    for name, about in manifest["files"].items():
        if Path(name).name != name:
            raise ValueError(f"manifest.json names the file {name!r}, which is not in this folder")
        digest = hashlib.sha256((HERE / name).read_bytes()).hexdigest()
        if digest != about["sha256"]:
            raise ValueError(f"{name} was changed: its SHA-256 is {digest}, the manifest says {about['sha256']}")
    return manifest


def beside(name: str) -> Any:
    """A module of this folder, found by path."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{name}.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dtype_of(name: str) -> np.dtype[Any]:
    """How a dtype is stored: what NumPy does not know, bfloat16 and floats of 8 bits, as its bits."""
    return np.dtype({"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}.get(name, name))


class Program:
    """The compiled kernels of this folder on the current CUDA device."""

    def __init__(self, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = manifest or read_manifest()
        text = (HERE / self.manifest["source"]).read_text(encoding="utf-8")
        module = cupy.RawModule(code=text, options=options_here(self.manifest), backend="nvrtc")
        self.kernels = [(k, module.get_function(k["name"])) for k in self.manifest["kernels"] if prod(k["grid"])]
        self.dynamic: dict[str, int] = {}
        """Bytes of block memory to pass at launch, by kernel: all or, where it declares as much itself, nothing."""
        for about, kernel in self.kernels:
            needed = about["shared_bytes"]
            self.dynamic[about["name"]] = 0 if kernel.shared_size_bytes >= needed else needed
            if self.dynamic[about["name"]] > UNASKED:
                kernel.max_dynamic_shared_size_bytes = needed
        self.maps: dict[tuple[str, str], tuple[int, Any]] = {}
        self.encoded: Any = beside("tensor_maps").encoded if any(k["maps"] for k, _ in self.kernels) else None
        self.lock = threading.Lock()
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = [p for p in self.manifest["arguments"] if p["role"] == "output"]
        self.fixed: dict[str, Any] = {}
        for p in self.manifest["arguments"]:
            if p["role"] == "workspace":
                self.fixed[p["name"]] = self.buffer(prod(p["shape"]) * dtype_of(p["dtype"]).itemsize)
            elif p["role"] == "constant":
                self.fixed[p["name"]] = self.filled(np.frombuffer((HERE / p["file"]).read_bytes(), np.uint8))

        self._run_early()

    def prepack(self, **arrays: Any) -> Program:
        """This program with inputs fixed that only kernels marked "once" read: those run here, not in every call."""
        legal = {p["name"]: p for p in self.manifest["arguments"] if p["name"] in self.manifest["prepack"]}
        if not arrays or set(arrays) - set(legal):
            raise TypeError(f"prepack takes one or more of {list(legal)} by name, got {list(arrays)}")
        made = copy.copy(self)
        made.inputs = [p for p in self.inputs if p["name"] not in arrays]
        made.fixed = self.fixed | {name: self._in(legal[name], a, True) for name, a in arrays.items()}
        made._run_early()
        return made

    def _run_early(self) -> None:
        """Run the kernels marked "once" that need no array of the caller, into memory of this program's own."""
        late = {p["name"] for p in self.inputs}
        spaces = {p["name"]: p for p in self.manifest["arguments"] if p["role"] == "workspace"}
        once = [arrays_of(k) for k, _ in self.kernels if k["once"]]
        for _ in once:  # what a late one may write is late as well
            late |= {name for args in once if args & late for name in args & spaces.keys()}
        for name in set().union(*once) & spaces.keys():
            self.fixed[name] = self.buffer(prod(spaces[name]["shape"]) * dtype_of(spaces[name]["dtype"]).itemsize)
        self.launches = [x for x in self.kernels if x[0]["once"] and not late & arrays_of(x[0])]
        early = [k["name"] for k, _ in self.launches]
        self.run({})
        self.launches = [x for x in self.kernels if x[0]["name"] not in early]

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run on arrays in the order of ``inputs``; an array, or a tuple when there are several outputs."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(p["name"] for p in self.inputs)
            raise TypeError(f"expected {len(self.inputs)} arguments ({names}), got {len(arrays)}")
        given = out if isinstance(out, tuple | list) else () if out is None else (out,)
        if given and len(given) != len(self.outputs):
            raise TypeError(f"expected {len(self.outputs)} arrays in out, got {len(given)}")
        native = any(isinstance(a, cupy.ndarray) for a in arrays)
        memories: dict[str, Any] = {}
        results: list[Any] = []
        for p, a in zip(self.inputs, arrays, strict=True):
            memories[p["name"]] = scalar(p, a) if p["role"] == "scalar" else self._in(p, a)
        for n, p in enumerate(self.outputs):
            space = cupy if native else np
            result = given[n] if given else space.empty(tuple(p["shape"]), dtype_of(p["dtype"]))
            check(p, result)
            for q, other in (*zip(self.inputs, arrays, strict=True), *zip(self.outputs, results, strict=False)):
                if overlap(result, other, q["role"] == "output"):
                    raise ValueError(f"{p['name']}: expected memory of its own, got memory that overlaps {q['name']}")
            results.append(result)
            memories[p["name"]] = result if isinstance(result, cupy.ndarray) else self.buffer(result.nbytes)
        self.run(memories)
        for p, result in zip(self.outputs, results, strict=True):
            if not isinstance(result, cupy.ndarray):
                self.read(memories[p["name"]], result)
        return out if out is not None else results[0] if len(results) == 1 else tuple(results)

    def run(self, memories: dict[str, Any]) -> None:
        """Launch all kernels on arrays (and NumPy scalars) by argument name, and wait. Threads take turns."""
        values = {**self.fixed, **memories}
        with self.lock:  # calls share the workspace
            for about, kernel in self.launches:
                maps = {m["name"]: m for m in about["maps"]}
                values_of = tuple(self._map(about, maps[a], values) if a in maps else values[a] for a in about["args"])
                kernel(tuple(about["grid"]), tuple(about["block"]), values_of, shared_mem=self.dynamic[about["name"]])
            cupy.cuda.get_current_stream().synchronize()

    def _map(self, kernel: dict[str, Any], m: dict[str, Any], values: dict[str, Any]) -> Any:
        """A tensor map, encoded again where its array lies at another address than the last time."""
        place, address = (kernel["name"], m["name"]), values[m["array"]].data.ptr
        if self.maps.get(place, (None,))[0] != address:
            self.maps[place] = address, self.encoded(address, **m)
        return self.maps[place][1]

    def buffer(self, nbytes: int) -> Any:
        """New device memory."""
        return cupy.empty(max(nbytes, 16), cupy.uint8)

    def filled(self, data: Any) -> Any:
        """New device memory with these bytes."""
        made = self.buffer(data.nbytes)
        made[: data.nbytes] = cupy.asarray(np.ascontiguousarray(data).reshape(-1).view(np.uint8))
        return made

    def inside(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A part of device memory."""
        return memory[offset : offset + nbytes]

    def read(self, memory: Any, array: Any) -> None:
        """Copy device memory into a NumPy array."""
        array.reshape(-1).view(np.uint8)[:] = memory[: array.nbytes].get()

    def _in(self, p: dict[str, Any], a: Any, keep: bool = False) -> Any:
        """The memory of an input; of its own where it is kept, so that what the array becomes later is not read."""
        check(p, a)
        limits = [g["limit"] for g in self.manifest["gathers"] if g["param"] == p["name"]]
        values: Any = a if limits and a.size else None
        if values is not None and not (values.min() >= 0 and values.max() < min(limits)):
            raise ValueError(f"{p['name']}: an index is not in 0 ... {min(limits) - 1}")
        if isinstance(a, cupy.ndarray):
            return self.filled(a.get()) if keep else a
        return self.filled(a)


def options_here(manifest: dict[str, Any]) -> tuple[str, ...]:
    """What the compiler is told. On Hopper CuPy adds sm_90, beside which NVRTC takes sm_90a too, from version 13 on."""
    hopper = cupy.cuda.Device().compute_capability == "90" and cupy.cuda.nvrtc.getVersion() >= (13, 0)
    return (*manifest["options"], *(["-arch=sm_90a"] if hopper else []))


def arrays_of(kernel: dict[str, Any]) -> set[str]:
    """The arguments that a kernel works on: for a tensor map, the array that it is of."""
    behind = {m["name"]: m["array"] for m in kernel["maps"]}
    return {behind.get(name, name) for name in kernel["args"]}


def check(p: dict[str, Any], a: Any) -> None:
    """Refuse an array that does not fit the argument."""
    kind = dtype_of(p["dtype"])
    if not hasattr(a, "dtype") or hasattr(a, "mask"):
        raise TypeError(f"{p['name']}: expected an array of {p['dtype']}, got {type(a).__name__}")
    if a.dtype != kind and str(a.dtype) != p["dtype"].replace("e4m3", "e4m3fn"):
        raise TypeError(f"{p['name']}: expected {p['dtype']}, got {a.dtype}")
    if tuple(a.shape) != tuple(p["shape"]):
        raise ValueError(f"{p['name']}: expected shape {tuple(p['shape'])}, got {tuple(a.shape)}")
    if (p["role"] == "output" or not isinstance(a, np.ndarray)) and not a.flags.c_contiguous:
        raise ValueError(f"{p['name']}: expected a C-contiguous array")
    if not isinstance(a, np.ndarray) and a.data.ptr % p["align"]:
        raise ValueError(f"{p['name']}: expected an array aligned to {p['align']} bytes")


def overlap(result: Any, other: Any, written: bool) -> bool:
    """Whether what is written to an output changes another argument; host arrays that are only read are copied."""
    if isinstance(result, cupy.ndarray) and isinstance(other, cupy.ndarray):
        start, begin = int(result.data.ptr), int(other.data.ptr)
        return max(start, begin) < int(min(start + result.nbytes, begin + other.nbytes))
    both = isinstance(result, np.ndarray) and isinstance(other, np.ndarray)
    return written and both and np.may_share_memory(result, other)


def scalar(p: dict[str, Any], value: Any) -> Any:
    """A number as the kernel takes it, floats of 8 and 16 bits as float32; TypeError for what is no such number."""
    given = value[()] if isinstance(value, np.ndarray) and value.shape == () else value
    kind = np.dtype(np.float32) if p["dtype"] in NARROW else dtype_of(p["dtype"])
    if isinstance(given, np.generic):
        legal = str(given.dtype).replace("e4m3fn", "e4m3") == p["dtype"]
    else:
        legal = isinstance(given, int if kind.kind in "iub" else int | float)
    if not legal or (kind.kind in "iub" and int(np.array(given).astype(kind)) != given):
        raise TypeError(f"{p['name']}: expected a {p['dtype']} number, got {given!r:.40}")
    return kind.type(narrowed(p["dtype"], float(given)) if p["dtype"] in NARROW else given)


def narrowed(dtype: str, value: float) -> float:
    """The number of a narrow float nearest to this one, the even one of two."""
    mantissa, least, most = NARROW[dtype]
    if math.isfinite(value):
        step = math.ldexp(1.0, max(math.frexp(value)[1] - 1, least) - mantissa)
        value = math.copysign(round(value / step) * step, value)
    if abs(value) <= most:
        return value
    return math.nan if dtype == "float8_e4m3" else math.copysign(math.inf, value) if value == value else value
