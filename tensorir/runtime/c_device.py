"""CPU device for C text: compiled by gcc or clang to a shared library, loaded by ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any, cast

import numpy as np

from tensorir.codegen.pool import PROLOGUE, pool_text
from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import CompileError, DeviceError, LaunchError, refuse
from tensorir.runtime.arguments import address, aligned_empty
from tensorir.runtime.base import Bytes, CompiledModule, Device, DeviceInfo, Resources, Step
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.compile_limit import run_limited
from tensorir.runtime.host import CPUINFO, as_here, cores, flags_here
from tensorir.runtime.limits import check_source
from tensorir.runtime.opencl import compile_error
from tensorir.runtime.scratch import Scratch
from tensorir.target import preset

OPTIONS = ("-std=c11", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-w")
COMPILER_VARIABLE = "TENSORIR_CC"
"""Environment variable that names the C compiler, in place of the gcc and clang on the PATH."""
_GNU = ("gcc", "cc")
_CLANG = ("clang", *(f"clang-{n}" for n in range(25, 13, -1)))
_HUGE_PAGE = 1 << 21

_LAUNCHER = """
typedef struct tir_step {
  tir_launch launch;
  size_t blocks;
  int threads;
  _Atomic uint64_t took;
} tir_step;

int tir_enqueue(tir_step *s) {
  tir_run(tir_block, &s->launch, s->blocks, s->threads, &s->took);
  return atomic_exchange(&s->launch.failed, 0);
}
"""


@cache
def compilers() -> tuple[tuple[str, str], ...]:
    """(path, version) of the C compilers that work, the default first: the one named in ``TENSORIR_CC``, else the first
    gcc and the first clang on the PATH; () if there is none. Kept for the process.
    """
    named = os.environ.get(COMPILER_VARIABLE)
    groups = ((named,),) if named else (_GNU, _CLANG)
    found: list[tuple[str, str]] = []
    for group in groups:
        for name in group:
            path = shutil.which(name)
            version = _version(path) if path else ""
            if path and version and version not in [v for _, v in found]:
                found.append((path, version))
                break
    return tuple(found)


def _version(path: str) -> str:
    """First line of a compiler's version output; "" if it does not work."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip() if done.returncode == 0 else ""


def list_devices() -> list[DeviceInfo]:
    """DeviceInfo per compiler, or one unusable entry with the reason."""
    found = [
        DeviceInfo(f"c:{n}", "c", "cpu", label=processor(), platform="C", driver=version, details={"path": path})
        for n, (path, version) in enumerate(compilers())
    ]
    reason = (
        f"{os.environ[COMPILER_VARIABLE]} ({COMPILER_VARIABLE}) is no compiler"
        if COMPILER_VARIABLE in os.environ
        else "no C compiler (gcc or clang)"
    )
    details = {"code": "device.no-compiler"}
    fix = "apt-get install gcc"
    return found or [DeviceInfo("c", "c", "cpu", usable=False, reason=reason, fix=fix, details=details)]


@cache
def processor() -> str:
    """CPU name with a digest of its feature flags."""
    lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines() if CPUINFO.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    flags = hashlib.sha256(" ".join(sorted(flags_here())).encode()).hexdigest()[:8]
    return f"{name} ({platform.machine()}, {flags})"


def open_listed(info: DeviceInfo) -> CDevice:
    """Open a device that ``list_devices`` found."""
    return CDevice(info)


class CDevice(Device):
    """This machine's processor by one compiler. Memories are NumPy arrays of bytes; a launch returns when it has run.

    Threads are started again in a forked child, which may use the device.
    """

    natives = ("numpy",)
    base_align = 64
    host_align = 1
    coherent = True

    def __init__(self, info: DeviceInfo) -> None:
        self.name, self.pid = info.name, os.getpid()
        self.path, self.options = str(info.details["path"]), OPTIONS
        self.max_alloc = 1 << 46
        self.identity = {
            "name": info.label,
            "platform": "C",
            "driver": info.driver,
            "compiler": f"{info.driver}, {' '.join(OPTIONS)}",
        }
        base = as_here(preset("c", "cpu"))
        self.target = replace(base, device=info.name, units=cores(), here=True, name=f"{info.label} ({info.driver})")
        runtime = _library(self, PROLOGUE + pool_text() + _LAUNCHER, "pool", cache=True)[0]
        self._launch = runtime.tir_enqueue
        self._launch.argtypes, self._launch.restype = [ctypes.c_void_p], ctypes.c_int

    def check_process(self) -> None:
        return

    def compile(self, source: Source, *, cache: bool = True) -> CModule:
        check_source(source, self.target)
        return CModule(self, source, cache)

    def library(self, text: str, name: str) -> ctypes.CDLL:
        """Loaded shared library of C text, compiled by this device's compiler or taken from the cache.

        Raises CompileError ``compile.c-text`` or ``compile.time-limit``, DeviceError ``device.no-compiler``.
        """
        return _library(self, text, name, cache=True)[0]

    def allocate(self, nbytes: int) -> np.ndarray:
        return aligned_empty((max(nbytes, 16),), "uint8", 4096 if nbytes >= _HUGE_PAGE else 64)

    def part(self, memory: object, offset: int, nbytes: int) -> object:
        return cast(np.ndarray, memory)[offset : offset + max(nbytes, 1)]

    def write(self, memory: object, data: Bytes) -> None:
        cast(np.ndarray, memory)[: data.nbytes] = data

    def read(self, memory: object, data: Bytes) -> None:
        data[:] = cast(np.ndarray, memory)[: data.nbytes]

    @property
    def works_in_place(self) -> bool:
        return True

    def share(self, array: np.ndarray, writable: bool) -> np.ndarray | None:
        return array if array.nbytes else None

    def finish(self) -> None:
        return


class _Step(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("grid", ctypes.c_int64 * 3),
        ("local", ctypes.c_size_t),
        ("failed", ctypes.c_int),
        ("blocks", ctypes.c_size_t),
        ("threads", ctypes.c_int),
        ("took", ctypes.c_uint64),
    )


class CModule(CompiledModule):
    """Compiled C kernels in a loaded shared library.

    runs: address of the function that runs a block, by kernel
    """

    def __init__(self, device: CDevice, source: Source, cache: bool) -> None:
        self._device, self._source = device, source
        started = time.perf_counter()
        self._library, payload, self.cached = _library(device, source.text, source.name, cache)
        self.digest = hashlib.sha256(payload).hexdigest() if cache else ""
        self.runs = {launch.name: self._run(launch) for launch in source.kernels}
        self.compile_s = time.perf_counter() - started

    def _run(self, launch: KernelLaunch) -> int:
        try:
            found = ctypes.cast(self._library[f"{launch.name}_run"], ctypes.c_void_p).value
        except AttributeError:
            message = f"the source of {self._source.name} has no kernel {launch.name}"
            raise refuse(CompileError, "compile.signature", message) from None
        assert found is not None
        return found

    def step(self, launch: KernelLaunch, args: Sequence[object], private: bool) -> Step:
        kept = [np.ascontiguousarray(a) for a in args]  # numbers as arrays of one element
        places = (ctypes.c_void_p * max(1, len(kept)))(*(a.ctypes.data for a in kept))
        step = self._launched(launch, places)
        enqueue = partial(self._enqueue(launch), ctypes.addressof(step))
        enqueue.kept = (kept, places, step, self._library)  # type: ignore[attr-defined]
        return enqueue

    def runner(self, launch: KernelLaunch) -> Callable[[Sequence[object]], object]:
        places = (ctypes.c_void_p * max(1, len(launch.args)))()
        step, enqueue = self._launched(launch, places), self._enqueue(launch)

        def run(args: Sequence[object]) -> None:
            kept = [a if isinstance(a, np.ndarray) else np.ascontiguousarray(a) for a in args]
            for n, array in enumerate(kept):
                places[n] = address(array)
            enqueue(ctypes.addressof(step))

        return run

    def _launched(self, launch: KernelLaunch, places: Any) -> _Step:
        grid, units = (ctypes.c_int64 * 3)(*launch.grid), self._device.target.units
        run, blocks = self.runs[launch.name], prod(launch.grid)
        return _Step(run, ctypes.addressof(places), grid, launch.local_bytes, 0, blocks, units, 0)

    def _enqueue(self, launch: KernelLaunch) -> Callable[[int], object]:
        """Function that runs a kernel, given the address of the description of its launch; it raises LaunchError
        ``launch.memory`` if there is no scratch memory for a block.
        """
        enqueue, device = self._device._launch, self._device.name
        if not launch.local_bytes:
            return enqueue

        def checked(step: int) -> None:
            if enqueue(step):
                message = f"{device} has no {launch.local_bytes} bytes for a block of {launch.name}"
                raise refuse(LaunchError, "launch.memory", message)

        return checked

    def resources(self) -> Resources:
        kernels = {k.name: {"shared_bytes": k.shared_bytes} for k in self._source.kernels}
        shared = max((k.shared_bytes for k in self._source.kernels), default=0)
        return {"registers": None, "spills": None, "shared_bytes": shared, "kernels": kernels}


def _library(device: CDevice, text: str, name: str, cache: bool) -> tuple[ctypes.CDLL, bytes, bool]:
    """(loaded library, its bytes, true if from the cache); compiled and, with ``cache``, stored if it is not there."""
    key = cache_key(kind="c library", source=text, options=device.options, device=device.identity)
    payload = default_cache().get(key) if cache else None
    if payload is not None:
        try:
            return _loaded(payload), payload, True
        except OSError:
            default_cache().discard(key)
    payload = _built(device, text, name)
    if cache:
        default_cache().put(key, payload)
    try:
        return _loaded(payload), payload, False
    except OSError as error:
        raise refuse(DeviceError, "device.no-compiler", f"what {device.path} built cannot be loaded: {error}") from None


def _loaded(payload: bytes) -> ctypes.CDLL:
    """Load a library from bytes, through a temporary file."""
    with Scratch() as folder:
        place = folder / "kernel.so"
        place.write_bytes(payload)
        return ctypes.CDLL(str(place))


def _built(device: CDevice, text: str, name: str) -> bytes:
    with Scratch() as folder:
        (folder / "kernel.c").write_text(text, encoding="utf-8")
        command = [device.path, *device.options, "kernel.c", "-o", "kernel.so", "-lm"]
        try:
            status, said = run_limited(command, folder, name, len(text.encode()))
        except OSError as error:
            raise refuse(DeviceError, "device.no-compiler", f"{device.path} cannot be run: {error}") from None
        if status == 0:
            return (folder / "kernel.so").read_bytes()
    said = re.sub(r"kernel\.c:(\d+):(\d+):", r"line \1:\2:", said)
    raise compile_error("compile.c-text", name, text, said)
