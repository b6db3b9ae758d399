"""A compiled program: call it with arrays, bind it for repeated launches, time it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorir.codegen.source import Source, itemsize
from tensorir.errors import LaunchError, Problem
from tensorir.runtime import guard as guarding
from tensorir.runtime.arguments import bytes_of
from tensorir.runtime.call import Attached, Call, accept, attach
from tensorir.runtime.device import Device, Module, Step, open_device
from tensorir.runtime.timing import Timing, measure
from tensorir.target import Target


class Program:
    """``source`` compiled for ``device``.

    >>> program = Program(source, "opencl")
    >>> c = program(a, b)            # numpy in, numpy out; pyopencl, cupy and DLPack likewise
    >>> program(a, b, out=c)         # no allocation

    guard: run every call on copies between canaries and raise ``launch.out-of-bounds`` when one is overwritten
    cache: read and write the artifact cache (a tuner, whose sources are used once, leaves it)

    A call returns when the results are there. Calls from several threads take turns. Host arrays on a CPU
    device are worked on in place when their address is aligned (``runtime.arguments.aligned_empty``).
    """

    def __init__(
        self,
        source: Source,
        device: str | Target | Device | None = None,
        *,
        guard: bool = False,
        cache: bool = True,
    ) -> None:
        self.source = source
        self.device = open_device(source.language if device is None else device)
        self.guard, self._cache = guard, cache
        self._module: Module = self.device.compile(source, cache=cache)
        self._fixed: dict[str, Any] | None = None
        self._staging: dict[str, Any] = {}
        self._siblings: dict[Device, Program] = {}
        self._lock = threading.RLock()
        self._kept = False

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Check the arguments, run, wait, and return the outputs (or ``out``)."""
        program, call = self._accept(arrays, out)
        if self.guard:
            results, problems = program._guarded(call)
            if problems:
                raise LaunchError(problems)
            return results
        if call.empty:
            return call.results()
        with program._lock:
            attached = attach(call, program.device, program._staging)
            program._enqueue(program._steps(attached, private=False))
            program._finish(attached)
        return call.results()

    def bind(self, *arrays: Any, out: Any = None) -> BoundLaunch:
        """Check and prepare once; the result enqueues the program as fast as the runtime allows."""
        program, call = self._accept(arrays, out)
        with program._lock:
            return BoundLaunch(program, call)

    def time(
        self, *arrays: Any, out: Any = None, repeat: int = 30, min_seconds: float = 0.1, max_seconds: float = 10.0
    ) -> Timing:
        """Seconds of one run of all kernels on these arrays, copies to and from the device not included."""
        bound = self.bind(*arrays, out=out)
        timing = measure(bound, repeat, min_seconds, max_seconds)
        bound.wait()
        return timing

    def run_guarded(self, *arrays: Any) -> tuple[Any, tuple[Problem, ...]]:
        """Run on poisoned copies between canaries; outputs and what the kernels did that they must not.

        Problems: ``launch.out-of-bounds``, ``launch.unwritten``, ``launch.input-written``.
        """
        program, call = self._accept(arrays, None)
        return program._guarded(call)

    @property
    def resources(self) -> dict[str, Any] | None:
        """registers, spills, shared_bytes of the worst kernel (None: not known) and ``kernels`` by name."""
        return self._module.resources()

    @property
    def compile_s(self) -> float:
        """Seconds that compiling (or loading from the cache) took."""
        return self._module.compile_s

    @property
    def cached(self) -> bool:
        """Whether the compiled program came from the artifact cache."""
        return self._module.cached

    def __repr__(self) -> str:
        takes = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.source.inputs)
        gives = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.source.outputs)
        return f"<{self.source.name}({takes}) -> {gives} on {self.device.name}>"

    def _accept(self, arrays: Sequence[Any], out: Any) -> tuple[Program, Call]:
        """The checked call with its outputs allocated, and the program in the context of its arrays."""
        self.device.check_process()
        call = accept(self.source, self.device, arrays, out)
        program = self
        if call.native != "numpy":
            home = self.device.at_home(call.arrays())
            if home is not self.device:
                with self._lock:
                    if home not in self._siblings:
                        self._siblings[home] = Program(self.source, home, guard=self.guard, cache=self._cache)
                program = self._siblings[home]
        call.allocate(program.device)
        return program, call

    def _guarded(self, call: Call) -> tuple[Any, tuple[Problem, ...]]:
        with self._lock:
            problems = guarding.run(self.source, self.device, self._module, call)
        return call.results(), problems

    def _memories(self) -> dict[str, Any]:
        """Workspace and constants, made at the first launch."""
        if self._fixed is None:
            fixed = {}
            for p in self.source.params:
                if p.role == "constant" and p.data is not None:
                    fixed[p.name] = self.device.allocate(len(p.data))
                    self.device.write(fixed[p.name], np.frombuffer(p.data, np.uint8))
                elif p.role == "workspace":
                    fixed[p.name] = self.device.allocate(int(np.prod(p.shape, dtype=np.int64)) * itemsize(p.dtype))
            self._fixed = fixed
        return self._fixed

    def _steps(self, attached: Attached, private: bool) -> tuple[Step, ...]:
        memories = self._memories() | attached.memories
        return tuple(
            self._module.step(launch, [memories[name] for name in launch.args], private)
            for launch in guarding.launches(self.source)
        )

    def _enqueue(self, steps: Sequence[Step]) -> None:
        try:
            for step in steps:
                step()
        except Exception as error:  # each runtime has its own
            raise self.device.failure(error) from None

    def _finish(self, attached: Attached) -> None:
        """Wait, and bring results into the host arrays."""
        if attached.shared:
            self.device.publish(attached.shared)
        else:
            self.device.finish()
        for memory, array in attached.copied:
            self.device.read(memory, bytes_of(array))
        if not self._kept:
            self._kept = True
            self._module.keep()


class BoundLaunch:
    """A program with its arguments set: calling it enqueues all kernels and returns at once.

    ``wait()`` finishes and returns the results; ``finish()`` only finishes. Host arrays that the device
    cannot work on in place were copied at ``bind``; ``refresh()`` copies changed inputs again.
    """

    __slots__ = ("_attached", "_call", "_program", "_steps")

    def __init__(self, program: Program, call: Call) -> None:
        self._program, self._call = program, call
        if call.empty:
            self._attached, self._steps = Attached(), ()  # type: tuple[Attached, tuple[Step, ...]]
        else:
            self._attached = attach(call, program.device)
            self._steps = program._steps(self._attached, private=True)

    def __call__(self) -> None:
        try:
            for step in self._steps:
                step()
        except Exception as error:  # each runtime has its own
            raise self._program.device.failure(error) from None

    def finish(self) -> None:
        """Wait for everything enqueued."""
        self._program.device.finish()

    def wait(self) -> Any:
        """Wait, and return the outputs (of all launches so far, the last wins)."""
        with self._program._lock:
            self._program._finish(self._attached)
        return self._call.results()

    def refresh(self) -> None:
        """Copy inputs to the device again where they are not used in place."""
        for memory, argument in self._attached.uploads:
            self._program.device.write(memory, bytes_of(np.ascontiguousarray(argument.array)))
