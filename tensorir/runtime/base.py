"""Abstract base classes of devices and compiled modules, implemented per language."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from tensorir.codegen.source import KernelLaunch, Source
from tensorir.errors import DeviceError, LaunchError, TensorIRError, refuse
from tensorir.errors.handles import Value
from tensorir.errors.shown import Shown
from tensorir.target import Target

Bytes = NDArray[np.uint8]
Step = Callable[[], object]
PRECISE_SUFFIX = " -precise_math=1"
"""Suffix of the name of a device whose kernels call the library's functions (``Target.precise_math``)."""


_this = {"pid": os.getpid()}
"""Id of this process, renewed after a fork: every launch reads it, and ``os.getpid`` is slower."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _this.update(pid=os.getpid()))


class HasBytes(Protocol):
    """Interface of an array or placeholder with a size in bytes."""

    @property
    def nbytes(self) -> int: ...


class Resources(TypedDict):
    """Registers and shared bytes of the worst kernel, spilled bytes of all (None if unknown), and each kernel's own."""

    registers: int | None
    spills: int | None
    shared_bytes: int | None
    kernels: dict[str, dict[str, int]]


class CompiledModule(Shown, ABC):
    """A compiled Source on one device.

    compile_s: seconds that compiling or loading took; cached: whether it came from the artifact cache
    digest: of the machine code in the artifact cache; empty when it does not (yet)
    """

    compile_s: float
    cached: bool
    digest: str = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} compiled in {self.compile_s:.2g} s{', from the cache' * self.cached}>"

    @abstractmethod
    def step(self, launch: KernelLaunch, args: Sequence[object], private: bool) -> Step:
        """A callable that enqueues ``launch`` with fixed ``args`` (those of ``launch.params``).

        private: False if it will run before the next ``step`` or ``runner`` call for this launch, which may replace its
        arguments; True: they stay its own
        """

    def runner(self, launch: KernelLaunch) -> Callable[[Sequence[object]], object]:
        """A function that enqueues ``launch`` with given arguments; not thread-safe."""
        return lambda args: self.step(launch, args, False)()

    @abstractmethod
    def resources(self) -> Resources:
        """``registers`` and ``shared_bytes`` of the worst kernel, ``spills`` of all (None: unknown); ``kernels``."""

    def keep(self) -> None:
        """Store the compiled program in the cache, for runtimes where that needs a first launch."""
        return


class Device(Value, Shown, ABC):
    """An open device: compiles, allocates memory, runs kernels. Memories are the runtime's handles.

    name:     argument for ``open_device``
    target:   its limits, queried from the device
    identity: name, platform, driver and compiler versions as text, for logs and cache keys
    natives:  array types accepted: "numpy" and one of "pyopencl", "cupy"
    base_align: alignment in bytes of memories and of their parts
    host_align: alignment required to work on host arrays in place
    max_alloc:  largest memory in bytes
    coherent:   memories that *are* host arrays show every write to the host and each other at once
    takes_streams: kernels can run on the caller's stream and addresses (``at``, ``on_stream``)
    """

    name: str
    target: Target
    identity: dict[str, str]
    natives: tuple[str, ...]
    base_align: int
    host_align: int = 16
    max_alloc: int
    coherent: bool = False
    takes_streams: bool = False
    pid: int
    _opened: ClassVar[Callable[[str], Device]]
    """The opener of devices by name. ``runtime/device.py``, which needs devices itself, sets it."""

    def _data(self) -> tuple[Any, ...]:
        return type(self)._opened, (self.name,)

    @property
    def place(self) -> str:
        """Text that identifies the hardware; timings on equal ones disturb each other."""
        return "cpu" if self.target.kind == "cpu" else f"{self.name.split()[0]} {self.identity['name']}"

    def precise(self) -> Device:
        """This device with library functions for float32 (``Target.precise_math``)."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.name, made.target = self.name + PRECISE_SUFFIX, replace(self.target, precise_math=True)
        return made

    def check_process(self) -> None:
        """Raise DeviceError ``device.forked`` in a forked child, where driver threads are missing."""
        if self.pid != _this["pid"]:
            raise refuse(
                DeviceError,
                "device.forked",
                f"{self.name} was opened by process {self.pid} and cannot be used in its fork {os.getpid()}",
                hint='multiprocessing.get_context("spawn"), or open the device only in the child',
            )

    @abstractmethod
    def compile(self, source: Source, *, cache: bool = True) -> CompiledModule: ...

    @abstractmethod
    def allocate(self, nbytes: int) -> object: ...

    @abstractmethod
    def part(self, memory: object, offset: int, nbytes: int) -> object:
        """Memory handle of ``nbytes`` bytes of ``memory`` from byte ``offset`` on, a multiple of ``base_align``."""

    @abstractmethod
    def write(self, memory: object, data: Bytes) -> None: ...

    @abstractmethod
    def read(self, memory: object, data: Bytes) -> None:
        """Wait until all that was enqueued has run, then copy the content of ``memory`` into ``data``."""

    @property
    def works_in_place(self) -> bool:
        """True if suitably aligned host arrays can be used as device memory (``share``)."""
        return False

    def share(self, array: np.ndarray, writable: bool) -> object | None:
        """A memory backed by the host array (contiguous, 16-byte aligned); None if unsupported."""
        return None

    def at(self, address: int, nbytes: int) -> object:
        """A memory at a device address kept alive by the caller; needs ``takes_streams``."""
        raise NotImplementedError

    def on_stream(self, stream: int) -> AbstractContextManager[object]:
        """Context manager: enqueue on the given stream; needs ``takes_streams``."""
        raise NotImplementedError

    def publish(self, shared: Sequence[tuple[object, HasBytes]]) -> None:
        """Finish, and make kernel writes visible in host arrays of (memory, array) pairs."""
        self.finish()

    @abstractmethod
    def finish(self) -> None: ...

    def at_home(self, arrays: Sequence[object]) -> Device:
        """Device object whose context owns these native arrays (OpenCL devices may have several contexts).

        Raises LaunchError ``launch.device`` for arrays of other devices or of several contexts.
        """
        return self

    def in_order(self, arrays: Sequence[object]) -> AbstractContextManager[None]:
        """Context manager: work enqueued inside runs after pending work on these arrays and before later work on
        them.
        """
        return nullcontext()

    def works(self) -> bool:
        """True if the device is still usable by this process; asked after a failure."""
        return True

    def failure(self, error: Exception) -> Exception:
        """Exception to raise for a runtime's ``error`` at launch or finish: LaunchError ``launch.failed``, or ``error``
        itself if it is a TensorIRError.
        """
        if isinstance(error, TensorIRError):
            return error
        return refuse(LaunchError, "launch.failed", f"{self.name} did not run the program: {error}"[:1000])

    def memory_of(self, array: object) -> object:
        """Memory of a native device array."""
        raise NotImplementedError

    def empty(self, like: object, shape: tuple[int, ...], dtype: object) -> object:
        """New native device array of this shape and dtype, of the type and queue of array ``like``."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.name}: {self.identity.get('name', '')}, {self.identity.get('platform', '')}>"


@dataclass(frozen=True, repr=False)
class DeviceInfo(Shown):
    """A device found on this machine, usable or not.

    name:   what to pass to ``open_device``
    reason: why it cannot be used; empty when ``usable``; fix: command that mends it, if known
    simulator: True for Oclgrind; details: the runtime's own data, not compared
    """

    name: str
    language: str
    kind: str
    label: str = ""
    platform: str = ""
    driver: str = ""
    usable: bool = True
    reason: str = ""
    simulator: bool = False
    fix: str = ""
    details: dict[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        what = ", ".join(x for x in (self.label, self.platform, self.driver) if x)
        return f"{self.name}: {what or self.language}" + ("" if self.usable else f" (not usable: {self.reason})")
