"""OpenCL device through pyopencl: listing, compilation, memory, launches."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from tensorir.codegen.source import WIDE_MACRO, KernelLaunch, Source
from tensorir.errors import CompileError, DeviceError, LaunchError, Problem, refuse
from tensorir.runtime.base import Bytes, CompiledModule, Device, DeviceInfo, HasBytes, Resources, Step
from tensorir.runtime.cache import cache_key, default_cache
from tensorir.runtime.compile_limit import need_end
from tensorir.runtime.host import as_here, name_processor
from tensorir.runtime.library_caches import damaged_pocl_cache, ensure_cache, pocl_cache
from tensorir.runtime.limits import check_shared, check_source
from tensorir.target import Target, preset

OPTIONS = ("-cl-std=CL1.2", "-w")
POCL = "portable computing"
_LOG_BYTES = 4096
PAGE_BYTES, HUGE_PAGE_BYTES = 4096, 1 << 21
"""Bytes. From a huge page on, PoCL's buffers use memory of NumPy, which asks the system for huge pages: packed weights
of 64 MiB stream 1.5 times as fast."""


def load_pyopencl() -> ModuleType:
    """The pyopencl module, with its pickle caches off; raises DeviceError ``device.no-opencl`` where it is missing.

    Sets environment variables that the user has not set: POCL_AFFINITY pins PoCL's threads (it halves the half-speed
    runs) and must be set before PoCL loads; PYOPENCL_NO_CACHE; POCL_CACHE_DIR if the folder cannot be written.
    """
    os.environ.setdefault("POCL_AFFINITY", "1")
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    ensure_cache("POCL_CACHE_DIR", str(pocl_cache()))
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise refuse(
            DeviceError,
            "device.no-opencl",
            f"pyopencl cannot be imported ({error})",
            hint='pip install pyopencl "pocl-binary-distribution>=3.0"',
        ) from None


def list_devices() -> list[DeviceInfo]:
    """DeviceInfo of each OpenCL device, usable or not, simulators last; one unusable entry with the reason if there is
    none.
    """
    try:
        cl = load_pyopencl()
    except DeviceError as error:
        problem = error.problems[0]
        details = {"code": problem.code}
        return [
            DeviceInfo(
                "opencl", "opencl", "cpu", usable=False, reason=problem.message, fix=problem.hint, details=details
            )
        ]
    try:
        platforms = sorted(cl.get_platforms(), key=_is_simulator)
    except cl.Error as error:
        platforms, reason = [], str(error)
    else:
        reason = "no OpenCL platform"
    found = [info for p, platform in enumerate(platforms) for info in _platform_devices(cl, p, platform)]
    if found:
        return found
    fix = 'pip install "pocl-binary-distribution>=3.0"'
    details = {"code": "device.no-opencl"}
    return [DeviceInfo("opencl", "opencl", "cpu", usable=False, reason=reason, fix=fix, details=details)]


def _platform_devices(cl: Any, number: int, platform: Any) -> list[DeviceInfo]:
    try:
        listed = platform.get_devices()
    except cl.Error as error:
        name = f"opencl:{number}"
        return [DeviceInfo(name, "opencl", "cpu", platform=platform.name, usable=False, reason=str(error))]
    found = []
    for d, device in enumerate(listed):
        kind = "gpu" if device.type & cl.device_type.GPU and not device.type & cl.device_type.CPU else "cpu"
        reason = "" if device.available else "the runtime says that it is not available"
        if not reason and not device.compiler_available:
            reason = "its runtime has no compiler"
        found.append(
            DeviceInfo(
                f"opencl:{number}:{d}",
                "opencl",
                kind,
                label=device.name.strip(),
                platform=platform.name.strip(),
                driver=f"{platform.version.strip()}, driver {device.driver_version.strip()}",
                usable=not reason,
                reason=reason,
                simulator=_is_simulator(platform),
                details={"handle": device},
            )
        )
    return found


def _is_simulator(platform: Any) -> bool:
    return "oclgrind" in str(platform.name).lower()


def open_listed(info: DeviceInfo) -> OpenCLDevice:
    """Open a device that ``list_devices`` found; raises DeviceError ``device.not-found`` if the runtime refuses."""
    cl = load_pyopencl()
    handle = info.details["handle"]
    name_processor(handle)
    try:
        context = cl.Context([handle])
        return OpenCLDevice(info, handle, context)
    except cl.Error as error:
        raise refuse(DeviceError, "device.not-found", f"{info.name} cannot be opened: {error}") from None


def _finish_at_exit(device: weakref.ref[OpenCLDevice]) -> None:
    """Finish the queue before the interpreter frees memory at exit."""
    alive = device()
    if alive is not None and alive.pid == os.getpid():
        with contextlib.suppress(Exception):
            alive.queue.finish()


class OpenCLDevice(Device):
    """An OpenCL device with one context and an in-order queue."""

    natives = ("numpy", "pyopencl")

    def __init__(self, info: DeviceInfo, handle: Any, context: object) -> None:
        self._cl = cl = load_pyopencl()
        self.name, self._info = info.name, info
        self.handle, self.context = handle, context
        self.queue = cl.CommandQueue(context, handle)
        self.pid = os.getpid()
        self.base_align = max(64, int(handle.mem_base_addr_align) // 8)
        self.max_alloc = int(handle.max_mem_alloc_size)
        self.target = _target(info, handle)
        self.options = (*OPTIONS, f"-D{WIDE_MACRO}") if self.target.vector_bytes == 64 else OPTIONS
        self.identity = {
            "name": info.label,
            "platform": info.platform,
            "driver": info.driver,
            "compiler": f"{handle.opencl_c_version.strip()}, {handle.version.strip()}",
            "pyopencl": cl.VERSION_TEXT,
        }
        pocl = POCL in info.platform.lower()
        self._in_place = bool(pocl or (info.kind == "cpu" and "intel" in info.platform.lower()))
        self._has_binaries = self.coherent = pocl  # PoCL's buffers *are* the host memory: no map needed to see them
        flags = cl.mem_flags
        self._shared = tuple(int(access | flags.USE_HOST_PTR) for access in (flags.READ_ONLY, flags.READ_WRITE))
        self.headers = headers_of(handle.platform.version)
        self._siblings: list[OpenCLDevice] = []
        atexit.register(_finish_at_exit, weakref.ref(self))

    def compile(self, source: Source, *, cache: bool = True) -> OpenCLModule:
        self.check_process()
        check_source(source, self.target)
        need_end(source, self)
        return OpenCLModule(self, source, cache and self._has_binaries)

    def allocate(self, nbytes: int) -> object:
        if nbytes > self.max_alloc:
            message = f"an array of {nbytes} bytes; {self.name} allows {self.max_alloc} in one piece"
            raise refuse(LaunchError, "launch.memory", message)
        flags = self._cl.mem_flags
        try:
            if self.coherent and nbytes >= HUGE_PAGE_BYTES:
                raw = np.empty(nbytes + PAGE_BYTES, np.uint8)
                start = -raw.ctypes.data % PAGE_BYTES
                return self._cl.Buffer(
                    self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=raw[start : start + nbytes]
                )
            return self._cl.Buffer(self.context, flags.READ_WRITE, max(nbytes, 16))
        except (self._cl.Error, MemoryError) as error:
            raise refuse(LaunchError, "launch.memory", f"{self.name} has no {nbytes} bytes: {error}") from None

    def part(self, memory: object, offset: int, nbytes: int) -> object:
        return cast("Any", memory).get_sub_region(offset, max(nbytes, 1))

    def write(self, memory: object, data: Bytes) -> None:
        if data.nbytes:
            self._cl.enqueue_copy(self.queue, memory, data, is_blocking=True)

    def read(self, memory: object, data: Bytes) -> None:
        if data.nbytes:
            self._cl.enqueue_copy(self.queue, data, memory, is_blocking=True)

    @property
    def works_in_place(self) -> bool:
        return self._in_place

    def share(self, array: np.ndarray, writable: bool) -> object | None:
        if not self._in_place or not 0 < array.nbytes <= self.max_alloc:
            return None
        made: object = self._cl.Buffer(self.context, self._shared[writable], hostbuf=array)
        return made

    def publish(self, shared: Sequence[tuple[object, HasBytes]]) -> None:
        if self.coherent:
            self.finish()
            return
        self.check_process()
        cl, queue = self._cl, self.queue
        maps = [
            cl.enqueue_map_buffer(queue, memory, cl.map_flags.READ, 0, (array.nbytes,), np.uint8, is_blocking=False)[0]
            for memory, array in shared
        ]
        try:
            queue.finish()
        except cl.Error as error:
            raise self.failure(error) from None
        for mapped in maps:
            mapped.base.release(queue)

    def finish(self) -> None:
        self.check_process()  # what was bound before a fork would be waited for in vain
        try:
            self.queue.finish()
        except self._cl.Error as error:
            raise self.failure(error) from None

    def at_home(self, arrays: Sequence[object]) -> OpenCLDevice:
        """This device in the context of the user's own pyopencl arrays; made once per context.

        Raises LaunchError ``launch.device`` for arrays of several contexts, or of a context without this device.
        """
        given = cast("Sequence[Any]", arrays)
        context = given[0].base_data.context if given[0].base_data is not None else given[0].context
        for array in given:
            if array.context != context:
                raise refuse(LaunchError, "launch.device", "the pyopencl arrays are in different contexts")
        for device in (self, *self._siblings):
            if device.context == context:
                return device
        if self.handle not in context.devices:
            have = ", ".join(d.name for d in context.devices)
            message = f"the arrays are on {have}; the program was built for {self.name} ({self.handle.name})"
            raise refuse(LaunchError, "launch.device", message, hint="build(device=…) for the device of your arrays")
        sibling = OpenCLDevice(self._info, self.handle, context)
        self._siblings.append(sibling)
        return sibling

    @contextlib.contextmanager
    def in_order(self, arrays: Sequence[object]) -> Iterator[None]:
        """Context manager: work enqueued inside runs after pending work on these arrays and before later work, without
        blocking the host: pending work may depend on a user event set later.

        Pending work: commands on an array's queue, and its ``events``, where pyopencl keeps those of other queues. On
        an out-of-order queue, later commands wait by ``events`` only: with a marker per launch, PoCL takes half a
        minute for a thousand launches.
        """
        if not arrays:
            yield
            return
        cl, mine = self._cl, self.queue
        given = cast("Sequence[Any]", arrays)
        queues = {a.queue.int_ptr: a.queue for a in given if a.queue is not None and a.queue != mine}.values()
        pending = [(found, len(found)) for found in {id(a.events): a.events for a in given}.values()]  # views share it
        before = {e.int_ptr: e for events, _ in pending for e in events}
        for queue in queues:
            marker = cl.enqueue_marker(queue)
            before[marker.int_ptr] = marker
            queue.flush()
        if before:
            cl.enqueue_marker(mine, wait_for=list(before.values()))
        yield
        done = cl.enqueue_marker(mine)
        mine.flush()
        for queue in queues:
            if not queue.properties & cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE:
                cl.enqueue_marker(queue, wait_for=[done])
        for events, seen in pending:
            # they precede this one; but letting go of a pending copy to or from the host waits for it
            copies = [e for e in events[:seen] if isinstance(e, cl.NannyEvent) and e.command_execution_status > 0]
            events[:seen] = [*copies, done]

    def memory_of(self, array: object) -> object:
        given = cast("Any", array)
        if given.base_data is None:
            return self.allocate(0)
        return given.base_data if given.offset == 0 else self.part(given.base_data, given.offset, given.nbytes)

    def empty(self, like: object, shape: tuple[int, ...], dtype: object) -> object:
        arrays = importlib.import_module("pyopencl.array")
        return arrays.empty(getattr(like, "queue", None) or self.queue, shape, dtype)


def _target(info: DeviceInfo, handle: Any) -> Target:
    base = preset("opencl", info.kind)
    sizes = [int(n) for n in handle.max_work_item_sizes[:3]]
    shared = int(handle.local_mem_size)
    extensions = handle.extensions.split()
    gpu = info.kind == "gpu"
    if not gpu and POCL in info.platform.lower():
        base = as_here(base)
    return Target(
        "opencl",
        info.kind,
        device=info.name,
        max_threads=int(handle.max_work_group_size),
        max_block=(sizes[0], sizes[1], sizes[2]),
        max_grid=base.max_grid,
        shared_bytes=shared,
        shared_optin_bytes=shared,
        registers=base.registers,
        warp=_warp(handle) if gpu else 1,
        vector_bytes=base.vector_bytes,
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions,
        units=int(handle.max_compute_units),
        here=True,
        name=f"{info.label} ({info.platform})",
    )


def _warp(handle: Any) -> int:
    for name in ("warp_size_nv", "wavefront_width_amd"):
        try:
            return int(getattr(handle, name))
        except Exception:
            continue
    return 32


class OpenCLModule(CompiledModule):
    """A built program and a kernel object per launch (they hold arguments; making one costs 0.2 ms)."""

    def __init__(self, device: OpenCLDevice, source: Source, cache: bool) -> None:
        self._device, self._source, self._cl = device, source, device._cl
        self._key = self._cache_key() if cache else ""
        started = time.perf_counter()
        program = self._from_cache() if self._key else None
        self.cached = program is not None
        self._program = program if program is not None else self._build()
        self._kernels = {launch: self._kernel(launch) for launch in source.kernels}
        self._named = {launch.name: kernel for launch, kernel in self._kernels.items()}
        self.compile_s = time.perf_counter() - started
        for launch, kernel in self._kernels.items():
            check_shared(launch.name, self._work_group(kernel, "LOCAL_MEM_SIZE"), device.target)

    def step(self, launch: KernelLaunch, args: Sequence[object], private: bool) -> Step:
        cl, device = self._cl, self._device
        kernel = cl.Kernel(self._program, launch.name) if private else self._of(launch)
        try:
            for name, put, value in zip(launch.args, self._setters(kernel, launch), args, strict=True):  # noqa: B007
                put(value)
        except cl.Error as error:
            message = f"kernel {launch.name} does not take argument {launch.args.index(name)} ({name}): {error}"
            raise refuse(CompileError, "compile.signature", message) from None
        return partial(cl.enqueue_nd_range_kernel, device.queue, kernel, _threads(launch), launch.block)

    def _of(self, launch: KernelLaunch) -> Any:
        """pyopencl kernel of ``launch``, or of another launch of the same kernel with a different grid."""
        return self._kernels.get(launch) or self._named[launch.name]

    def runner(self, launch: KernelLaunch) -> Callable[[Sequence[object]], object]:
        enqueue, queue, kernel = self._cl.enqueue_nd_range_kernel, self._device.queue, self._of(launch)
        setters, size, block = self._setters(kernel, launch), _threads(launch), launch.block

        def run(args: Sequence[object]) -> None:
            for put, value in zip(setters, args):  # noqa: B905 (as many, and each word costs)
                put(value)
            enqueue(queue, kernel, size, block)

        return run

    def _setters(self, kernel: Any, launch: KernelLaunch) -> list[Callable[[Any], object]]:
        """A function per kernel argument that sets its value (``set_arg`` takes 12 us for a number, as it tries
        types).
        """
        scalars = {p.name for p in self._source.params if p.role in ("scalar", "dim")}
        by_copy = getattr(kernel, "_set_arg_buf", kernel.set_arg)
        return [partial(by_copy if a in scalars else kernel.set_arg, n) for n, a in enumerate(launch.args)]

    def resources(self) -> Resources:
        kernels = {
            launch.name: {
                "shared_bytes": self._work_group(kernel, "LOCAL_MEM_SIZE"),
                "private_bytes": self._work_group(kernel, "PRIVATE_MEM_SIZE"),
                "max_threads": self._work_group(kernel, "WORK_GROUP_SIZE"),
                "warp": self._work_group(kernel, "PREFERRED_WORK_GROUP_SIZE_MULTIPLE"),
            }
            for launch, kernel in self._kernels.items()
        }
        shared = max((k["shared_bytes"] for k in kernels.values()), default=0)
        return {"registers": None, "spills": None, "shared_bytes": shared, "kernels": kernels}

    def keep(self) -> None:
        """Store PoCL's binary, which after a first launch holds the code for the block size used.

        Asking for it compiles each kernel once more, for blocks of any size: often longer than the first time, and
        PoCL has a cache of its own. So only what a log gave is kept, for packs.
        """
        if self._key and not self.cached:
            try:
                binaries = self._program.get_info(self._cl.program_info.BINARIES)
            except self._cl.Error:
                binaries = []  # this runtime cannot say; the program runs all the same
            if len(binaries) == 1 and binaries[0]:
                default_cache().put(self._key, bytes(binaries[0]))
                self.digest = hashlib.sha256(binaries[0]).hexdigest()
            self._key = ""

    def _cache_key(self) -> str:
        return cache_key(
            kind="opencl binary",
            source=self._source.text,
            launches=[(k.name, k.block) for k in self._source.kernels],
            options=self._device.options,
            forced=os.environ.get("PYOPENCL_BUILD_OPTIONS", ""),
            device=self._device.identity,
        )

    def _from_cache(self) -> Any | None:
        payload = default_cache().get(self._key)
        if payload is None:
            return None
        cl = self._cl
        try:
            program = cl.Program(self._device.context, [self._device.handle], [payload])
            program.build(options=list(self._device.options), cache_dir=False)
            for launch in self._source.kernels:
                cl.Kernel(program, launch.name)
        except cl.Error:
            default_cache().discard(self._key)
            return None
        self.digest = hashlib.sha256(payload).hexdigest()
        return program

    def _build(self) -> Any:
        cl, device, text = self._cl, self._device, self._source.text
        if device.headers is not None:
            with contextlib.suppress(cl.Error):  # a name that the text makes of others, or an error that is told below
                short = cl.Program(device.context, declarations(device.headers, text) + text)
                return short.build(options=[*device.options, NO_HEADER_OPTION], cache_dir=False)
        try:
            return cl.Program(device.context, text).build(options=list(device.options), cache_dir=False)
        except cl.Error as error:
            said = re.sub(r"\S*\.cl:(\d+):(\d+):", r"line \1:\2:", str(error))
            raise compile_error("compile.opencl", self._source.name, self._source.text, said) from None

    def _kernel(self, launch: KernelLaunch) -> Any:
        cl = self._cl
        try:
            kernel = cl.Kernel(self._program, launch.name)
        except cl.Error:
            named = re.search(rf"\b{re.escape(launch.name)}\s*\(", self._source.text)
            if named and self._device.coherent and (folder := damaged_pocl_cache("")) is not None:
                message = f"PoCL gave a program without {launch.name}, and files of its cache {folder} are damaged"
                raise refuse(DeviceError, "cache.damaged", message, hint=f"rm -r {shlex.quote(str(folder))}") from None
            message = f"the source of {self._source.name} has no kernel {launch.name}"
            raise refuse(CompileError, "compile.signature", message) from None
        if kernel.num_args != len(launch.args):
            expected = ", ".join(launch.args)
            message = f"kernel {launch.name} takes {kernel.num_args} arguments, not {len(launch.args)} ({expected})"
            raise refuse(CompileError, "compile.signature", message)
        most = self._work_group(kernel, "WORK_GROUP_SIZE")
        if prod(launch.block) > most:
            message = f"kernel {launch.name} runs with at most {most} threads in a block, not {prod(launch.block)}"
            raise refuse(CompileError, "compile.threads", message)
        return kernel

    def _work_group(self, kernel: Any, what: str) -> int:
        which = getattr(self._cl.kernel_work_group_info, what)
        return int(kernel.get_work_group_info(which, self._device.handle))


def _threads(launch: KernelLaunch) -> tuple[int, ...]:
    """Global work size of a launch per dimension."""
    return tuple(g * b for g, b in zip(launch.grid, launch.block, strict=True))


def compile_error(code: str, name: str, text: str, said: str) -> CompileError:
    """CompileError of code ``code`` with the compiler's first complaint in ``said``, and the line of ``text`` that it
    names.
    """
    lines = [
        x for x in said.splitlines() if x.strip() and not x.startswith(("(options:", "Build on", "clBuildProgram"))
    ]
    first = next((x for x in lines if "error" in x.lower()), lines[0] if lines else "the compiler gave no reason")
    place = re.search(r"line (\d+):(\d+):", first)
    at = excerpt(text, int(place[1]), int(place[2])) if place else ""
    problem = Problem(code, f"{name}: {first.strip()[:500]}", at)
    return CompileError(problem, log="\n".join(lines)[:_LOG_BYTES])


def excerpt(text: str, line: int, column: int = 0) -> str:
    """Text with line ``line`` of a source (from 1) and the one before, both numbered and cut at 160 characters, and a
    caret under column ``column``, 0 for none; "" for a line that does not exist.
    """
    lines = text.splitlines()
    shown = [f"{n:4d} | {lines[n - 1][:160]}" for n in (line - 1, line) if 1 <= n <= len(lines)]
    if shown and 1 <= column <= 160 and line <= len(lines):
        shown.append(" " * 7 + " " * (column - 1) + "^")
    return "\n".join(shown)


# The declarations of OpenCL's built-in functions that a text names, for the PoCL that pip brings.
#
# Its compiler reads Clang's header before every program: 15,000 declarations, 80 of the 95 ms that a small kernel
# takes. The header is skipped where its guard is defined, and a text that begins with what is left of it means the
# same: types, macros, and each declaration of the functions that it names, in the header's order.

NO_HEADER_OPTION = "-D_OPENCL_H_"
"""Build option that makes PoCL's compiler skip its own header of built-in functions."""
_VERSION = "PoCL 3.0"  # whose headers the package of that name has
_PACKAGE = "pocl_binary_distribution"
_HEADER, _TYPES = "opencl-c.h", "opencl-c-base.h"  # which reads the other one
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")


def headers_of(version: str) -> Path | None:
    """Folder of the OpenCL C headers of PoCL 3.0 from pip, for a platform of that ``version``; None for others, and
    where the package's headers are missing.
    """
    found = importlib.util.find_spec(_PACKAGE) if _VERSION in version else None
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / ".libs" / "share" / "pocl" / "include"
    return folder if all((folder / name).is_file() for name in (_HEADER, _TYPES)) else None


def declarations(folder: Path, text: str) -> str:
    """Lines to prepend to kernel text ``text`` if the compiler skips its header (``NO_HEADER_OPTION``): types, macros,
    and declarations of the built-in functions that ``text`` names. Line numbers of ``text`` are kept.
    """
    named = frozenset(_WORD.findall(text))
    kept = [line for function, line in _lines(folder) if function is None or function in named]
    return "\n".join(["#undef _OPENCL_H_", *kept, "#line 1", ""])


@functools.cache
def _lines(folder: Path) -> tuple[tuple[str | None, str], ...]:
    """The directives and statements of the header, each with the function that it declares, if it does."""
    text = _COMMENTS.sub("", (folder / _HEADER).read_text(encoding="utf-8")).replace("\\\n", " ")
    text = text.replace(f"<{_TYPES}>", f'"{_TYPES}"').replace(f'"{_TYPES}"', f'"{(folder / _TYPES).as_posix()}"')
    found: list[tuple[str | None, str]] = []
    statement = ""
    for line in text.splitlines():
        if line[:1] == "#":
            found.append((None, line))
        elif statement or line.strip():
            statement += f"{line} "
            if line.rstrip().endswith(";"):
                name = statement.partition("(")[0].split()[-1]
                found.append((None if name == "__attribute__" else name, statement))
                statement = ""
    return tuple(found)
