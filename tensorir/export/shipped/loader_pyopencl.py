"""Runs the program of this folder; needs numpy and pyopencl only.

from FOLDER import Program      # its parent on sys.path; or, this folder first on it, from loader import Program
program = Program()             # the first device; Program(queue=...) for one of yours
result = program(a, b)          # numpy arrays in, numpy out; pyopencl arrays likewise
program(a, b, out=result)       # into arrays of yours
ready = program.prepack(b=b)    # where the manifest lists b under "prepack": what depends on b alone runs now
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import threading
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
import pyopencl as cl
import pyopencl.array as cl_array

HERE = Path(__file__).resolve().parent
CPUINFO = Path("/proc/cpuinfo")

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


def dtype_of(name: str) -> np.dtype[Any]:
    """How a dtype is stored: what NumPy does not know, bfloat16 and floats of 8 bits, as its bits."""
    return np.dtype({"bfloat16": "uint16", "float8_e4m3": "uint8", "float8_e5m2": "uint8"}.get(name, name))


def choose_device(kind: str) -> Any:
    """A device of the wanted kind, simulators last; the environment variable PYOPENCL_CTX decides where it is set."""
    if os.environ.get("PYOPENCL_CTX"):
        return cl.create_some_context(interactive=False).devices[0]
    wanted = cl.device_type.GPU if kind == "gpu" else cl.device_type.CPU
    found = [
        (("oclgrind" in p.name.lower(), not d.type & wanted), d) for p in cl.get_platforms() for d in p.get_devices()
    ]
    if not found:
        raise RuntimeError("no OpenCL device was found; on Linux: pip install pocl-binary-distribution")
    return min(found, key=lambda x: x[0])[1]


def flags_here() -> set[str]:
    """What this machine's processor can do, in the system's words; empty where it does not say."""
    lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines() if CPUINFO.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def extra_options(device: Any) -> list[str]:
    """PoCL's compiler may be older than the processor: say where it has AVX-512."""
    if not device.type & cl.device_type.CPU or "portable computing" not in device.platform.name.lower():
        return []
    return ["-DTENSORIR_AVX512"] if flags_here() >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"} else []


def name_processor(device: Any) -> None:
    """Give PoCL a processor that its compiler knows, where the machine's is younger than its LLVM.

    LLVM 14 calls AMD's since Zen 5 "generic", which Clang refuses. PoCL keeps that behind the triple in the device.
    """
    flags, modern = flags_here(), {"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
    kin = b"x86-64" if not flags >= modern else b"znver3" if "sse4a" in flags else b"haswell"
    if "portable computing" not in device.platform.name.lower():
        return
    with contextlib.suppress(OSError), open("/proc/self/mem", "r+b", buffering=0) as memory:

        def read(address: int, count: int) -> bytes:
            with contextlib.suppress(OSError, OverflowError):  # no pointer
                return os.pread(memory.fileno(), count, address)
            return b""

        for triple, name in pairwise(memoryview(read(device.int_ptr, 2048)).cast("Q")):
            if read(triple, 7) == b"x86_64-" and read(name, 8) == b"generic\0":
                os.pwrite(memory.fileno(), kin + b"\0", name)


class Program:
    """The compiled kernels of this folder on one device."""

    def __init__(self, queue: Any = None, manifest: dict[str, Any] | None = None) -> None:
        self.manifest = manifest or read_manifest()
        if queue is None:
            queue = cl.CommandQueue(cl.Context([choose_device(self.manifest["kind"])]))
        self.queue, self.context = queue, queue.context
        name_processor(queue.device)
        self.lock, self.process = threading.Lock(), os.getpid()
        text = (HERE / self.manifest["source"]).read_text(encoding="utf-8")
        unbuilt: Any = cl.Program(self.context, text)
        options = [*self.manifest["options"], *extra_options(queue.device)]
        program = unbuilt.build(options=options, cache_dir=False)  # its cache holds pickles
        self.kernels = [(k, cl.Kernel(program, k["name"])) for k in self.manifest["kernels"] if prod(k["grid"])]
        roles: dict[str, list[dict[str, Any]]] = {}
        for p in self.manifest["arguments"]:
            roles.setdefault(p["role"], []).append(p)
        self.inputs = [p for p in self.manifest["arguments"] if p["role"] in ("input", "scalar")]
        self.outputs = roles.get("output", [])
        self.fixed = {
            p["name"]: self.buffer(prod(p["shape"]) * dtype_of(p["dtype"]).itemsize) for p in roles.get("workspace", [])
        }
        for p in roles.get("constant", []):
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
        once = [set(k["args"]) for k, _ in self.kernels if k["once"]]
        for _ in once:  # what a late one may write is late as well
            late |= {name for args in once if args & late for name in args & spaces.keys()}
        for name in set().union(*once) & spaces.keys():
            self.fixed[name] = self.buffer(prod(spaces[name]["shape"]) * dtype_of(spaces[name]["dtype"]).itemsize)
        self.launches = [x for x in self.kernels if x[0]["once"] and not late & set(x[0]["args"])]
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
        native = [a for a in arrays if isinstance(a, cl_array.Array)]
        for a in (*native, *(a for a in given if isinstance(a, cl_array.Array))):
            if a.context != self.context:
                raise ValueError("the arrays are in another context than the program: make it with their queue")
            (a.queue or self.queue).finish()  # what is still to be written to them,
            for event in a.events:  # from other queues too
                event.wait()
        memories: dict[str, Any] = {}
        results: list[Any] = []
        for p, a in zip(self.inputs, arrays, strict=True):
            memories[p["name"]] = scalar(p, a) if p["role"] == "scalar" else self._in(p, a)
        for n, p in enumerate(self.outputs):
            result = given[n] if given else self._new(p, bool(native))
            check(p, result)
            for q, other in (*zip(self.inputs, arrays, strict=True), *zip(self.outputs, results, strict=False)):
                if overlap(result, other, q["role"] == "output"):
                    raise ValueError(f"{p['name']}: expected memory of its own, got memory that overlaps {q['name']}")
            results.append(result)
            memories[p["name"]] = part(result) if isinstance(result, cl_array.Array) else self.buffer(result.nbytes)
        self.run(memories)
        for p, result in zip(self.outputs, results, strict=True):
            if not isinstance(result, cl_array.Array):
                self.read(memories[p["name"]], result)
        return out if out is not None else results[0] if len(results) == 1 else tuple(results)

    def run(self, memories: dict[str, Any]) -> None:
        """Launch all kernels on buffers (and NumPy scalars) by argument name, and wait. Threads take turns."""
        self.check_process()
        values, before = {**self.fixed, **memories}, list[Any]()
        with self.lock:  # calls share the kernel objects, which hold arguments, and the workspace
            for about, kernel in self.launches:
                size = tuple(g * b for g, b in zip(about["grid"], about["block"], strict=True))
                kernel.set_args(*(values[name] for name in about["args"]))
                before = [cl.enqueue_nd_range_kernel(self.queue, kernel, size, tuple(about["block"]), wait_for=before)]
            self.queue.finish()

    def check_process(self) -> None:
        """In the child of a fork the driver's threads are missing, and it would be waited for in vain."""
        if os.getpid() != self.process:
            raise RuntimeError("this program was made before the process forked; make one in the child")

    def buffer(self, nbytes: int) -> Any:
        """New device memory."""
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(nbytes, 16))

    def filled(self, data: Any) -> Any:
        """New device memory with these bytes."""
        self.check_process()
        made = self.buffer(data.nbytes)
        if data.nbytes:
            cl.enqueue_copy(self.queue, made, np.ascontiguousarray(data))
        return made

    def inside(self, memory: Any, offset: int, nbytes: int) -> Any:
        """A part of device memory."""
        return memory.get_sub_region(offset, max(nbytes, 1))

    def read(self, memory: Any, array: Any) -> None:
        """Copy device memory into a NumPy array."""
        if array.nbytes:
            cl.enqueue_copy(self.queue, array, memory)

    def _in(self, p: dict[str, Any], a: Any, keep: bool = False) -> Any:
        """The memory of an input; of its own where it is kept, so that what the array becomes later is not read."""
        check(p, a)
        limits = [g["limit"] for g in self.manifest["gathers"] if g["param"] == p["name"]]
        values: Any = None
        if limits and a.size:
            values = a.get() if isinstance(a, cl_array.Array) else a
        if values is not None and not (values.min() >= 0 and values.max() < min(limits)):
            raise ValueError(f"{p['name']}: an index is not in 0 ... {min(limits) - 1}")
        if isinstance(a, cl_array.Array):
            return self.filled(a.get()) if keep else part(a)
        return self.filled(a)

    def _new(self, p: dict[str, Any], native: bool) -> Any:
        if native:
            return cl_array.empty(self.queue, tuple(p["shape"]), dtype_of(p["dtype"]))
        return np.empty(tuple(p["shape"]), dtype_of(p["dtype"]))


def part(a: Any) -> Any:
    """The memory of a pyopencl array."""
    return a.base_data if a.offset == 0 else a.base_data.get_sub_region(a.offset, max(a.nbytes, 1))


def overlap(result: Any, other: Any, written: bool) -> bool:
    """Whether what is written to an output changes another argument; host arrays that are only read are copied."""
    if isinstance(result, cl_array.Array) and isinstance(other, cl_array.Array):
        (base, start), (memory, begin) = whole(result), whole(other)
        return base == memory and max(start, begin) < min(start + result.nbytes, begin + other.nbytes)
    both = isinstance(result, np.ndarray) and isinstance(other, np.ndarray)
    return written and both and np.may_share_memory(result, other)


def whole(a: Any) -> tuple[Any, int]:
    """The memory that a pyopencl array lies in, of which its buffer may be a part; where it starts there."""
    memory, start = a.base_data, a.offset
    parent = None if memory is None else memory.associated_memobject
    return (memory, start) if parent is None else (parent, start + memory.offset)


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
    if not isinstance(a, np.ndarray) and a.offset % p["align"]:
        raise ValueError(f"{p['name']}: expected an array aligned to {p['align']} bytes")


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
