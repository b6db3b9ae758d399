"""CUDA device through CuPy: memory and launches of compiled cubins.

Not yet run on a GPU: this file was written and type-checked on machines without one. Everything up to the
cubin (``runtime.cuda``) is tested.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any, cast

import numpy as np

from tensorir.codegen.source import KernelLaunch, Source, TensorMap
from tensorir.errors import CompileError, DeviceError, LaunchError, Problem, TensorIRError, refuse
from tensorir.runtime.base import Bytes, CompiledModule, Device, DeviceInfo, Resources, Step
from tensorir.runtime.compile_limit import need_end
from tensorir.runtime.cuda import compile_cubin, load_cupy, nvrtc_version
from tensorir.runtime.limits import check_registers, check_shared, check_source
from tensorir.runtime.tensor_maps import TensorMapError, encoded
from tensorir.target import Target, preset

_STATIC_SHARED = 49152  # above this a kernel must ask for its dynamic shared memory


def list_devices() -> list[DeviceInfo]:
    """DeviceInfo of each CUDA device, or one unusable entry with the reason."""
    try:
        cupy = load_cupy()
    except TensorIRError as error:
        problem = error.problems[0]
        return [_unusable(problem.code, problem.message, problem.hint)]
    runtime = cupy.cuda.runtime
    try:
        count = int(runtime.getDeviceCount())
        driver = _version(runtime.driverGetVersion())
    except Exception as error:  # CuPy has several exception classes for this
        reason = f"no CUDA driver or device ({error})"
        return [_unusable("device.no-cuda-driver", reason, "install NVIDIA's driver; tensorir compiles without one")]
    found = []
    for n in range(count):
        about = runtime.getDeviceProperties(n)
        label = about["name"].decode() if isinstance(about["name"], bytes) else str(about["name"])
        found.append(
            DeviceInfo(f"cuda:{n}", "cuda", "gpu", label=label, platform="CUDA", driver=driver, details=dict(about))
        )
    return found or [_unusable("device.no-cuda-driver", "the CUDA driver finds no device", "")]


def _unusable(code: str, reason: str, fix: str) -> DeviceInfo:
    return DeviceInfo("cuda", "cuda", "gpu", usable=False, reason=reason, fix=fix, details={"code": code})


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def open_listed(info: DeviceInfo) -> CudaDevice:
    """Open a device that ``list_devices`` found."""
    try:
        return CudaDevice(info)
    except TensorIRError:
        raise
    except Exception as error:  # any of CuPy's
        raise refuse(DeviceError, "device.not-found", f"{info.name} cannot be opened: {error}") from None


class CudaDevice(Device):
    """A GPU; kernels run on CuPy's current stream. Not yet run on a GPU."""

    natives = ("numpy", "cupy")
    base_align = 256
    takes_streams = True

    def __init__(self, info: DeviceInfo) -> None:
        self._cupy = load_cupy()
        self.name, self.number, self.pid = info.name, int(info.name.split(":")[1]), os.getpid()
        self.handle = self._cupy.cuda.Device(self.number)
        self.target = _target(info, str(self.handle.compute_capability))
        self.max_alloc = int(info.details.get("totalGlobalMem", 1 << 40))
        self.identity = {
            "name": info.label,
            "platform": "CUDA",
            "driver": info.driver,
            "compiler": f"NVRTC {nvrtc_version()}",
            "cupy": str(self._cupy.__version__),
            "arch": self.target.arch,
        }

    @property
    def place(self) -> str:
        """PCI bus id, independent of CUDA_VISIBLE_DEVICES."""
        return f"gpu {getattr(self.handle, 'pci_bus_id', self.name)}"

    def compile(self, source: Source, *, cache: bool = True) -> CudaModule:
        self.check_process()
        check_source(source, self.target)
        need_end(source, self)
        return CudaModule(self, source, cache)

    def allocate(self, nbytes: int) -> object:
        try:
            with self.handle:
                return self._cupy.cuda.alloc(max(nbytes, 16))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise refuse(LaunchError, "launch.memory", f"{self.name} has no {nbytes} bytes: {error}") from None

    def part(self, memory: object, offset: int, nbytes: int) -> object:
        return cast("Any", memory) + offset  # a pointer of CuPy's

    def at(self, address: int, nbytes: int) -> object:
        cuda = self._cupy.cuda
        return cuda.MemoryPointer(cuda.UnownedMemory(address, max(nbytes, 1), None, self.number), 0)

    def on_stream(self, stream: int) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = self._cupy.cuda.ExternalStream(stream)
        return made

    def write(self, memory: object, data: Bytes) -> None:
        if data.nbytes:
            self.finish()
            with self.handle:
                cast("Any", memory).copy_from_host(ctypes.c_void_p(data.ctypes.data), data.nbytes)
                # that went by the legacy stream, which kernels on a non-blocking one do not wait for; and from pageable
                # memory it may return before all has arrived
                self._cupy.cuda.Stream.null.synchronize()

    def read(self, memory: object, data: Bytes) -> None:
        self.finish()
        if data.nbytes:
            cast("Any", memory).copy_to_host(ctypes.c_void_p(data.ctypes.data), data.nbytes)

    def finish(self) -> None:
        try:
            with self.handle:
                self._cupy.cuda.get_current_stream().synchronize()
        except Exception as error:  # any of CuPy's
            raise self.failure(error) from None

    def works(self) -> bool:
        """False after a kernel fault, which makes every later CUDA call of the process fail."""
        try:
            with self.handle:
                self._cupy.cuda.runtime.deviceSynchronize()
        except Exception:  # any of CuPy's
            return False
        return True

    def at_home(self, arrays: Sequence[object]) -> CudaDevice:
        for array in cast("Sequence[Any]", arrays):
            if int(array.device.id) != self.number:
                message = f"an array is on cuda:{array.device.id}; the program was built for {self.name}"
                raise refuse(LaunchError, "launch.device", message)
        return self

    def memory_of(self, array: object) -> object:
        return cast("Any", array).data

    def empty(self, like: object, shape: tuple[int, ...], dtype: object) -> object:
        with self.handle:
            return self._cupy.empty(shape, dtype)


def _target(info: DeviceInfo, capability: str) -> Target:
    arch = f"sm_{capability}" + ("a" if int(capability) >= 90 else "")
    about, base = info.details, preset("cuda", "gpu", arch)
    return Target(
        "cuda",
        "gpu",
        arch,
        device=info.name,
        shared_bytes=int(about.get("sharedMemPerBlock", base.shared_bytes)),
        shared_optin_bytes=int(about.get("sharedMemPerBlockOptin", base.shared_optin_bytes)),
        registers=int(about.get("regsPerMultiprocessor", base.registers)),
        fp16=True,
        units=int(about.get("multiProcessorCount", 0)),
        name=f"{info.label} ({arch})",
    )


def encoded_map(m: TensorMap, address: int) -> object:
    """CuPy argument for a tensor map of the array at ``address``; raises LaunchError ``launch.tensor-map``."""
    try:
        return encoded(address, **asdict(m))
    except TensorMapError as error:
        raise LaunchError([Problem("launch.tensor-map", text) for text in error.args]) from None


class CudaModule(CompiledModule):
    """A loaded cubin with its kernels. Not yet run on a GPU."""

    def __init__(self, device: CudaDevice, source: Source, cache: bool) -> None:
        started = time.perf_counter()
        self._device = device
        self._launches = {launch.name: launch for launch in source.kernels}
        self._maps: dict[TensorMap, tuple[int, Any]] = {}
        self._cubin = compile_cubin(source.text, device.target.arch, cache=cache)
        self.cached = self._cubin.cached
        self.digest = hashlib.sha256(self._cubin.data).hexdigest() if cache else ""
        for launch in source.kernels:
            if launch.name not in self._cubin.kernels:
                message = f"the source of {source.name} has no kernel {launch.name}"
                raise refuse(CompileError, "compile.signature", message)
            use = self._cubin.kernels[launch.name]
            check_shared(launch.name, use.shared_bytes, device.target)
            check_registers(launch, source.text, use.registers)
        with device.handle:
            self._module = device._cupy.cuda.function.Module()
            self._module.load(self._cubin.data)
            self._functions = {launch.name: self._function(launch) for launch in source.kernels}
        self.compile_s = time.perf_counter() - started

    def _dynamic(self, launch: KernelLaunch) -> int:
        """Bytes of dynamic shared memory to pass at launch."""
        return max(0, launch.shared_bytes - self._cubin.kernels[launch.name].shared_bytes)

    def _function(self, launch: KernelLaunch) -> Any:
        function = self._module.get_function(launch.name)
        dynamic = self._dynamic(launch)
        if dynamic + self._cubin.kernels[launch.name].shared_bytes > _STATIC_SHARED and dynamic:
            driver = importlib.import_module("cupy_backends.cuda.api.driver")
            driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)
        return function

    def step(self, launch: KernelLaunch, args: Sequence[object], private: bool) -> Step:
        maps = {m.name: m for m in launch.maps}
        values = tuple(self._value(maps.get(name), a) for name, a in zip(launch.args, args, strict=True))
        function, shared = self._functions[launch.name], self._dynamic(launch)
        return partial(self._run, function, launch.grid, launch.block, values, shared)

    def _value(self, m: TensorMap | None, a: Any) -> Any:
        """CuPy's form of an argument: a number as it is, an address, or a map, which it copies at each launch.

        A map is encoded again only if its array's address changed. The old map is kept unmodified: launches bound
        earlier still use it.
        """
        if isinstance(a, np.generic):
            return a
        address = int(a.ptr)
        if m is None:
            return np.uint64(address)
        last = self._maps.get(m)
        if last is None or last[0] != address:
            with self._device.handle:
                last = self._maps[m] = address, encoded_map(m, address)
        return last[1]

    def _run(self, function: Any, grid: Any, block: Any, values: Any, shared: int) -> None:
        with self._device.handle:
            function(grid, block, values, shared_mem=shared)

    def resources(self) -> Resources:
        kernels = {}
        for name, launch in self._launches.items():
            use = self._cubin.kernels[name]
            kernels[name] = {
                "registers": use.registers,
                "spills": use.spill_bytes,
                "shared_bytes": use.shared_bytes + self._dynamic(launch),
                "stack_bytes": use.stack_bytes,
                "barriers": use.barriers,
            }
        return {
            "registers": self._cubin.registers,
            "spills": self._cubin.spills,
            "shared_bytes": max((k["shared_bytes"] for k in kernels.values()), default=0),
            "kernels": kernels,
        }
