"""Devices, and the facts of one that is listed: each language has classes of its own."""

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
"""The suffix of the name of a device whose kernels call the library's functions."""


_this = {"pid": os.getpid()}
"""This process. The system is asked again only after a fork, for launches look at it."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _this.update(pid=os.getpid()))


class HasBytes(Protocol):
    """An array, or what stands for one."""

    @property
    def nbytes(self) -> int: ...


class Resources(TypedDict):
    """Resources of the compiled program: of the worst kernel, None where that is not known, and of each."""

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
        """A callable that enqueues ``launch`` with ``args`` (those of ``launch.params``), set now; it keeps them when
        ``private``."""

    def runner(self, launch: KernelLaunch) -> Callable[[Sequence[object]], object]:
        """The function that enqueues ``launch`` with given arguments, in one thread at a time."""
        return lambda args: self.step(launch, args, False)()

    @abstractmethod
    def resources(self) -> Resources:
        """``registers``, ``spills``, ``shared_bytes`` (the worst kernel; None: not known) and ``kernels``."""

    def keep(self) -> None:
        """Put the compiled program into the artifact cache, where that pays only after a first launch."""
        return


class Device(Value, Shown, ABC):
    """One opened device: compiles, holds memory, runs. Memories are handles of the runtime underneath.

    name:     what to pass to ``open_device``
    target:   its limits, read from the device
    identity: name, platform, driver and compiler versions as text, for logs and cache keys
    natives:  kinds of array that it takes: "numpy" and one of "pyopencl", "cupy"
    base_align: bytes to which the start of a memory is aligned, and of a part of one
    host_align: the same of host arrays that are worked on in place
    max_alloc:  the largest memory in bytes
    coherent:   a memory that *is* a host array shows each write at once, to the host and to other such memories
    takes_streams: kernels run on a stream of the caller's, on memory at his addresses (``at``, ``on_stream``)
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
        """Names the hardware: what is timed on devices of the same place disturbs each other."""
        return "cpu" if self.target.kind == "cpu" else f"{self.name.split()[0]} {self.identity['name']}"

    def precise(self) -> Device:
        """The same device with the library's functions of float32 (``Target.precise_math``)."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.name, made.target = self.name + PRECISE_SUFFIX, replace(self.target, precise_math=True)
        return made

    def check_process(self) -> None:
        """Refuse calls in a forked child: the driver's threads did not come along."""
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
        """The bytes from ``offset`` (a multiple of ``base_align``) of a memory, as a memory."""

    @abstractmethod
    def write(self, memory: object, data: Bytes) -> None: ...

    @abstractmethod
    def read(self, memory: object, data: Bytes) -> None:
        """Fill ``data`` after everything enqueued has run."""

    @property
    def works_in_place(self) -> bool:
        """True if host arrays of suitable addresses are worked on where they are (``share``)."""
        return False

    def share(self, array: np.ndarray, writable: bool) -> object | None:
        """A memory that *is* the host array (of any dtype, contiguous, at a multiple of 16), or None where the device
        cannot work in place."""
        return None

    def at(self, address: int, nbytes: int) -> object:
        """A memory of the device at an address that somebody else keeps alive; only where it ``takes_streams``."""
        raise NotImplementedError

    def on_stream(self, stream: int) -> AbstractContextManager[object]:
        """Enqueue the calls inside on this stream; only where it ``takes_streams``."""
        raise NotImplementedError

    def publish(self, shared: Sequence[tuple[object, HasBytes]]) -> None:
        """Finish, and make what kernels wrote visible in the host arrays of ``(memory, array)`` pairs."""
        self.finish()

    @abstractmethod
    def finish(self) -> None: ...

    def at_home(self, arrays: Sequence[object]) -> Device:
        """The device object whose context holds these native arrays (an OpenCL device may have several contexts)."""
        return self

    def in_order(self, arrays: Sequence[object]) -> AbstractContextManager[None]:
        """Order the calls inside after work pending for these native arrays, and before later work on them."""
        return nullcontext()

    def works(self) -> bool:
        """True if this process can still use it; asked when something has failed."""
        return True

    def failure(self, error: Exception) -> Exception:
        """The error to raise when the runtime refuses a launch or a finish with ``error``."""
        if isinstance(error, TensorIRError):
            return error
        return refuse(LaunchError, "launch.failed", f"{self.name} did not run the program: {error}"[:1000])

    def memory_of(self, array: object) -> object:
        """The memory of a native device array."""
        raise NotImplementedError

    def empty(self, like: object, shape: tuple[int, ...], dtype: object) -> object:
        """A new native device array of the kind and on the queue of ``like``."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self.name}: {self.identity.get('name', '')}, {self.identity.get('platform', '')}>"


@dataclass(frozen=True, repr=False)
class DeviceInfo(Shown):
    """One line of the device list.

    name:   what to pass to ``open_device``
    reason: why it cannot be used; empty when ``usable``
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
