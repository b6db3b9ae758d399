"""Runs the program of this folder; needs numpy and pyopencl only.

from FOLDER import Program      # its parent on sys.path; or, this folder first on it, from loader import Program
program = Program()             # the first device; Program(queue=...) for one of yours
result = program(a, b)          # numpy arrays in, numpy out; pyopencl arrays likewise
program(a, b, out=result)       # into arrays of yours
ready = program.prepack(b=b)    # where the manifest lists b under "prepack": what depends on b alone runs now
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
import pyopencl as cl
import pyopencl.array as cl_array

HERE = Path(__file__).resolve().parent
CPUINFO = Path("/proc/cpuinfo")


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
        return "" if any(p.get_devices() for p in cl.get_platforms()) else "there is no OpenCL device"
    except cl.Error as error:
        return f"there is no OpenCL device: {error}"


def choose_device(kind: str) -> cl.Device:
    """An OpenCL device of ``kind``, simulators last; the environment variable PYOPENCL_CTX overrides."""
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
    """CPU feature flags as the system names them; empty if unknown."""
    lines = CPUINFO.read_text(encoding="ascii", errors="replace").splitlines() if CPUINFO.exists() else []
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def extra_options(device: cl.Device) -> list[str]:
    """Options that enable AVX-512 in a PoCL whose compiler does not know the CPU."""
    if not device.type & cl.device_type.CPU or "portable computing" not in device.platform.name.lower():
        return []
    return ["-DTENSORIR_AVX512"] if flags_here() >= {"avx512f", "avx512bw", "avx512dq", "avx512vl"} else []


def name_processor(device: Any) -> None:
    """Give PoCL a processor known to its compiler, for a machine younger than its LLVM.

    LLVM 14 calls AMD's since Zen 5 "generic", and Clang refuses that. PoCL keeps it after the triple in the device.
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


class Program(Base):  # type: ignore[misc]
    """The compiled kernels of this folder on one device."""

    array = cl_array.Array

    def __init__(self, queue: Any = None, manifest: dict[str, object] | None = None) -> None:
        super().__init__(common.program_in("opencl", manifest))
        if queue is None:
            queue = cl.CommandQueue(cl.Context([choose_device(self.manifest["kind"])]))
        self.queue, self.context = queue, queue.context
        name_processor(queue.device)
        self.process = os.getpid()
        text = (HERE / self.manifest["source"]).read_text(encoding="utf-8")
        unbuilt: Any = cl.Program(self.context, text)
        options = [*self.manifest["options"], *extra_options(queue.device)]
        program = unbuilt.build(options=options, cache_dir=False)  # its cache holds pickles
        self.kernels = [(k, cl.Kernel(program, k["name"])) for k in self.manifest["kernels"] if all(k["grid"])]
        self._begin()

    def run(self, memories: dict[str, object]) -> None:
        """Launch all kernels on buffers (and NumPy scalars) by argument name, and wait. Calls are serialized."""
        self.check_process()
        values, before = {**self.fixed, **memories}, list[Any]()
        with self.lock:  # calls share the kernel objects, which hold arguments, and the workspace
            for about, kernel in self.launches:
                size = tuple(g * b for g, b in zip(about["grid"], about["block"], strict=True))
                kernel.set_args(*(values[name] for name in about["args"]))
                before = [cl.enqueue_nd_range_kernel(self.queue, kernel, size, tuple(about["block"]), wait_for=before)]
            self.queue.finish()

    def check_process(self) -> None:
        """Raise in a forked child, where driver threads are missing and waiting would hang."""
        if os.getpid() != self.process:
            raise RuntimeError("this program was made before the process forked; make one in the child")

    def buffer(self, nbytes: int) -> cl.Buffer:
        """Allocate device memory."""
        return cl.Buffer(self.context, cl.mem_flags.READ_WRITE, max(nbytes, 16))

    def filled(self, data: np.ndarray) -> cl.Buffer:
        """Allocate device memory initialized with ``data``."""
        self.check_process()
        made = self.buffer(data.nbytes)
        if data.nbytes:
            cl.enqueue_copy(self.queue, made, np.ascontiguousarray(data))
        return made

    def inside(self, memory: cl.Buffer, offset: int, nbytes: int) -> cl.Buffer:
        """A sub-buffer of device memory."""
        return memory.get_sub_region(offset, max(nbytes, 1))

    def read(self, memory: cl.Buffer, array: np.ndarray) -> None:
        """Copy device memory into a NumPy array."""
        if array.nbytes:
            cl.enqueue_copy(self.queue, array, memory)

    def memory(self, a: cl_array.Array) -> object:
        """Buffer of a pyopencl array."""
        base: Any = a.base_data
        return base if a.offset == 0 else base.get_sub_region(a.offset, max(a.nbytes, 1))

    def place(self, a: cl_array.Array) -> int:
        """Byte offset of an array in its buffer."""
        return int(a.offset)

    def shared(self, a: cl_array.Array, b: cl_array.Array) -> bool:
        """True if two arrays overlap in memory."""
        (base, start), (memory, begin) = whole(a), whole(b)
        return bool(base == memory and max(start, begin) < min(start + a.nbytes, begin + b.nbytes))

    def new(self, shape: tuple[int, ...], dtype: np.dtype) -> cl_array.Array:
        """A new array on the program's queue."""
        return cl_array.empty(self.queue, shape, dtype)

    def ready(self, arrays: list[cl_array.Array]) -> None:
        """Raise for arrays of another context, and wait for pending writes to them."""
        for a in arrays:
            if a.context != self.context:
                raise ValueError("the arrays are in another context than the program: make it with their queue")
            (a.queue or self.queue).finish()
            for event in a.events:  # from other queues too
                event.wait()


def whole(a: cl_array.Array) -> tuple[object, int]:
    """(top-level buffer of a pyopencl array, byte offset in it)."""
    memory: Any = a.base_data
    start = a.offset
    parent = None if memory is None else memory.associated_memobject
    return (memory, start) if parent is None else (parent, start + memory.offset)
