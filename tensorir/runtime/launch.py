"""``CompiledProgram``: call with arrays, bind for repeated launches (``BoundLaunch``), time."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from tensorir.codegen.source import DimRange, KernelLaunch, Param, Source, itemsize
from tensorir.errors import LaunchError, Problem, warn
from tensorir.errors.habits import answering, answers
from tensorir.errors.handles import Handle, Value
from tensorir.errors.needs import need_list, wrong
from tensorir.errors.shown import Shown, few_lines
from tensorir.ir.extents import Told, line, told
from tensorir.runtime import guard as guarding
from tensorir.runtime.arguments import bytes_of, wrapped
from tensorir.runtime.base import CompiledModule, Device, Resources, Step
from tensorir.runtime.call import Attached, CallArguments, QuickCall, accept, attach, fixed_numbers, fixed_values
from tensorir.runtime.device import open_device
from tensorir.runtime.limits import check_launches
from tensorir.runtime.timing import Timing, copied_names, measure
from tensorir.target import Target

DIMS_KEPT = 16
"""Sets of values of dims whose programs are kept, the last used ones."""


class CompiledProgram(Value, Shown):
    """``source`` compiled for ``device``.

    >>> program = Program(source, "opencl")
    >>> c = program(a, b)            # numpy in, numpy out; pyopencl, cupy and DLPack likewise
    >>> program(a, b, out=c)         # no allocation

    device: name, target or Device; None for the first usable one of the source's language
    guard: run every call on copies between canaries and raise LaunchError when one is overwritten (``run_guarded``)
    cache: read and write the artifact cache (a tuner, whose sources are used once, leaves it)
    module: compiled module of the same source to use; None compiles

    Kernels that run ``once`` run with every call; a bound launch runs them when it is bound, ``prepack`` for good.

    A call returns when the results are there. Calls from several threads are serialized. Host arrays on a CPU
    device are worked on in place when their address is aligned (``runtime.arguments.aligned_empty``); ``copies`` says
    which were not in the last call, and strided ones are warned of once.
    """

    def __init__(
        self,
        source: Source,
        device: str | Target | Device | None = None,
        *,
        guard: bool = False,
        cache: bool = True,
        module: CompiledModule | None = None,
    ) -> None:
        self.source = source
        self.device = open_device(source.language if device is None else device)
        self.guard, self._cache = guard, cache
        self._module: CompiledModule = module or self.device.compile(source, cache=cache)
        self._early = frozenset(source.made_early)
        self._fixed: dict[str, Any] | None = None
        self._staging: dict[str, Any] = {}
        self._siblings: dict[Device, CompiledProgram] = {}
        self._for: dict[tuple[int, ...], CompiledProgram] = {}  # by extents of dims, the last used ones
        self._lock = threading.RLock()
        self._warned = False
        self._quick: QuickCall | None = None
        self._called = False
        self.copies: tuple[Problem, ...] = ()

    def _data(self) -> tuple[Any, ...]:
        return CompiledProgram, (self.source, self.device)

    def __call__(self, *arrays: object, out: object = None) -> Any:
        """Check the arguments, run, wait, and return the output (``out`` if given), a tuple if there are several.

        Raises LaunchError for bad arguments and failed launches.
        """
        if self.source.dims:
            inner = self._at(arrays, out)
            results = inner(*arrays, out=out)
            self.copies = inner.copies
            return results
        if self._quick is not None:
            with self._lock:
                results = self._quick(arrays, out)
                if results is not None:
                    self.copies = self._quick.copies
                    return results
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
            self._tell(attached.copies)
            memories = program._memories() | attached.memories
            program._enqueue(program._steps(program._launches(), memories, private=False), call.natives())
            program._finish(attached)
            if not self._called:
                self._called, self._quick = True, self._quick_call()
            if self._quick is not None:
                self._quick.warned = self._warned
        return call.results()

    def _quick_call(self) -> QuickCall | None:
        """The fast path of a program that has run once; None if it has none."""
        if not QuickCall.fits(self.source, self.device):
            return None
        steps = [(self._module.runner(k), k.params) for k in self._launches()]
        return QuickCall(self.source, self.device, self._memories(), steps)

    def bind(self, *arrays: object, out: object = None) -> BoundLaunch:
        """Check and prepare once; the result enqueues the program as fast as the runtime allows."""
        program, call = self._accept(arrays, out)
        with program._lock:
            return BoundLaunch(program, call)

    def _at(self, arrays: Sequence[object], out: object = None) -> CompiledProgram:
        """This program with dims set to the extents of these arguments."""
        return self.at(dims_of_call(self.source, arrays, out))

    def at(self, dims: Mapping[str, int]) -> CompiledProgram:
        """This program at the given values of dims (in the source's order); kernels are shared.

        The last ``DIMS_KEPT`` are kept and returned again. Raises LaunchError if a kernel is too large for the device.
        """
        key = tuple(dims.values())
        with self._lock:
            found = self._for.pop(key, None)
            if found is None:
                source = self.source.at(dims)
                check_launches(source, self.device.target)
                found = CompiledProgram(source, self.device, guard=self.guard, cache=self._cache, module=self._module)
                found._lock = self._lock  # all set the arguments of the same kernels
                while len(self._for) >= DIMS_KEPT:
                    del self._for[next(iter(self._for))]
            self._for[key] = found
        return found

    def _tell(self, copies: Sequence[Problem]) -> None:
        """Remember copied arrays; warn once about strided ones."""
        self.copies = tuple(copies)
        strided = [p for p in copies if p.code == "launch.copied-strides"]
        if strided and not self._warned:
            self._warned = True
            for p in strided:
                warn(p)

    def prepack(self, **arrays: object) -> CompiledProgram:
        """This program with fixed inputs: those read only by kernels that run ``once``. These run here, now.

        Raises LaunchError: ``launch.prepack`` for other names, and errors of a call for arrays that do not fit.
        """
        source = self.source.fixed(fixed_values(self.source, self.device, arrays))
        made = CompiledProgram(source, self.device, guard=self.guard, cache=self._cache, module=self._module)
        made._lock = self._lock  # both set the arguments of the same kernels
        with made._lock:
            if not source.dims:  # else when the extents are known
                made._memories()
        return made

    def time(
        self, *arrays: object, out: object = None, repeat: int = 30, min_seconds: float = 0.1, max_seconds: float = 10.0
    ) -> Timing:
        """Timing of one run of the kernels on these arrays, in seconds, without host copies and ``once`` kernels.

        repeat, min_seconds, max_seconds: at least so many batches and so long, at most so long (``timing.measure``)
        """
        bound = self.bind(*arrays, out=out)
        bound()
        bound._natives = []  # their turn has come
        timing = measure(bound, repeat, min_seconds, max_seconds)
        bound.wait()
        return replace(timing, copies=bound.copies)

    def run_guarded(self, *arrays: object) -> tuple[Any, tuple[Problem, ...]]:
        """Run on poisoned copies between guard bytes; returns (outputs, problems: forbidden accesses of the kernels).

        Problems: ``launch.out-of-bounds``, ``launch.unwritten``, ``launch.input-written``.
        """
        program, call = self._accept(arrays, None)
        return program._guarded(call)

    def probe(self, *arrays: object, enough_s: float = math.inf) -> tuple[float, bool]:
        """(estimated seconds of a run, true if lazy initialization is complete), from some blocks on guarded copies.

        enough_s: stop when the estimate exceeds it
        """
        program, call = self._accept(arrays, None)
        with program._lock:
            return guarding.probe(program.source, program.device, program._module, call, enough_s)

    def warm(self, *arrays: object) -> None:
        """Run some blocks of the kernels on copies, as some runtimes compile at first launch (``guard.warm``)."""
        program, call = self._accept(arrays, None)
        with program._lock:
            guarding.warm(program.source, program.device, program._module, call)

    @property
    def resources(self) -> Resources | None:
        """registers, spills, shared_bytes of the worst kernel (None: not known) and ``kernels`` by name."""
        return self._module.resources()

    @property
    def compile_s(self) -> float:
        """Seconds that compiling (or loading from the cache) took."""
        return self._module.compile_s

    @property
    def cached(self) -> bool:
        """True if the compiled program came from the artifact cache."""
        return self._module.cached

    @property
    def digest(self) -> str:
        """SHA-256 of the machine code in the cache; "" if absent."""
        return self._module.digest

    def keep(self) -> None:
        """Store the compiled program in the cache, after a first call; as slow as compiling. No effect where
        compiling has stored it already, or the runtime gives no binaries.
        """
        self._module.keep()

    def __repr__(self) -> str:
        takes = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.source.inputs)
        gives = ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in self.source.outputs)
        return few_lines(f"<{self.source.name}({takes}) -> {gives} on {self.device.name}>")

    def _accept(self, arrays: Sequence[Any], out: Any) -> tuple[CompiledProgram, CallArguments]:
        """(the program, in the context that owns the given device arrays, validated call with outputs allocated);
        raises LaunchError for bad arguments.
        """
        if self.source.dims:
            return self._at(arrays, out)._accept(arrays, out)
        self.device.check_process()
        call = accept(self.source, self.device, arrays, out)
        program = self
        if call.native != "numpy":
            home = self.device.at_home(call.arrays())
            if home is not self.device:
                with self._lock:
                    if home not in self._siblings:
                        self._siblings[home] = CompiledProgram(self.source, home, guard=self.guard, cache=self._cache)
                program = self._siblings[home]
        call.allocate(program.device)
        return program, call

    def _guarded(self, call: CallArguments) -> tuple[Any, tuple[Problem, ...]]:
        with self._lock:
            problems = guarding.run(self.source, self.device, self._module, call)
        return call.results(), problems

    def constants(self) -> dict[str, object]:
        """{name of a constant parameter: new device memory with its content}."""
        made = {}
        for p in self.source.params:
            if p.role == "constant" and p.data is not None:
                made[p.name] = self.device.allocate(len(p.data))
                self.device.write(made[p.name], np.frombuffer(p.data, np.uint8))
        return made

    def _memories(self) -> dict[str, Any]:
        """Workspace and constants by name, allocated at first launch; kernels depending on constants only run then."""
        if self._fixed is None:
            fixed = self.constants()
            for p in self.source.params:
                if p.role == "workspace":
                    fixed[p.name] = self.device.allocate(_nbytes(p))
            fixed |= fixed_numbers(self.source)
            self._fixed = fixed
            if self._early:
                early = [k for k in guarding.launches(self.source) if k in self._early]
                self._enqueue(self._steps(early, fixed, private=False))
                self.device.finish()
                used = {name for launch in self._launches() for name in launch.params}
                for p in self.source.params:  # what was packed is not needed any more
                    if p.role == "constant" and p.name not in used:
                        del fixed[p.name]
        return self._fixed

    def _launches(self) -> list[KernelLaunch]:
        """Kernels that a call must run: all with a nonempty grid, except ``once`` ones that ``prepack`` or an earlier
        call ran.
        """
        return [k for k in guarding.launches(self.source) if k not in self._early]

    def _steps(self, launches: Sequence[KernelLaunch], memories: dict[str, Any], private: bool) -> tuple[Step, ...]:
        return tuple(self._module.step(k, [memories[name] for name in k.params], private) for k in launches)

    def _own_workspace(self) -> dict[str, Any]:
        """New memory for results of ``once`` kernels, for one set of arrays."""
        once = {name for k in self._launches() if k.once for name in k.params}
        kept = [p for p in self.source.params if p.role == "workspace" and p.name in once]
        return {p.name: self.device.allocate(_nbytes(p)) for p in kept}

    def _enqueue(self, steps: Sequence[Step], natives: Sequence[Any] = ()) -> None:
        try:
            with self.device.in_order(natives):
                for step in steps:
                    step()
        except Exception as error:  # each runtime has its own
            raise self.device.failure(error) from None

    def _finish(self, attached: Attached) -> None:
        """Wait, and copy results to host arrays."""
        if attached.shared:
            self.device.publish(attached.shared)
        else:
            self.device.finish()
        for memory, array in attached.copied:
            self.device.read(memory, bytes_of(array))


def _nbytes(p: Param) -> int:
    return int(np.prod(p.shape, dtype=np.int64)) * itemsize(p.dtype)


@answering(LaunchError)
class BoundLaunch(Handle, Shown):
    """A program with its arguments set: calling it enqueues all kernels and returns at once.

    ``wait()`` finishes and returns the results; ``finish()`` only finishes. Host arrays that the device
    cannot work on in place were copied at ``bind``, and kernels that run once have run; ``refresh()`` does both
    again for inputs that have changed.

    On pyopencl arrays a launch takes its place in their queues: after what was enqueued there, or is among their
    ``events``, and before what is enqueued there next.

    Launches from several threads are serialized. With CUDA all launches of one program belong on one stream: they share
    its workspace.
    """

    __slots__ = ("__weakref__", "_attached", "_call", "_memories", "_natives", "_once", "_program", "_steps")

    def __init__(self, program: CompiledProgram, call: CallArguments) -> None:
        self._program, self._call = program, call
        self._attached, self._memories = Attached(), dict[str, Any]()
        self._natives = call.natives()
        self._once: tuple[Step, ...] = ()
        self._steps: tuple[Step, ...] = ()
        if call.empty:
            return
        self._attached = attach(call, program.device)
        memories = program._memories() | self._attached.memories | program._own_workspace()
        self._memories = memories  # a kernel does not keep what it is given alive
        launches = program._launches()
        self._once = program._steps([k for k in launches if k.once], memories, private=True)
        self._steps = program._steps([k for k in launches if not k.once], memories, private=True)
        if self._once:
            program._enqueue(self._once, self._natives)

    def __repr__(self) -> str:
        copies = f"; copies of {copied_names(self.copies)}" if self.copies else ""
        use = f"b() enqueues, b.wait() returns the results{copies}"
        return few_lines(f"<bound launch of {repr(self._program)[1:-1]}: {use}>")

    def __copy__(self) -> BoundLaunch:
        return _bound_again(*self._arrays())

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundLaunch:
        return _bound_again(self._program, *copy.deepcopy(self._arrays()[1:], memo))

    def _data(self) -> tuple[Any, ...]:
        return _bound_again, self._arrays()

    def _arrays(self) -> tuple[CompiledProgram, list[Any], list[Any]]:
        """(program, input arrays and scalars as the user passed them, output arrays as a call returns them), to bind
        again.
        """
        call, source = self._call, self._program.source
        given = [call.inputs[p.name].given if p.name in call.inputs else call.scalars[p.name] for p in source.inputs]
        outputs = [call.outputs[p.name] for p in source.outputs]
        return self._program, given, [wrapped(a.array, a.wrap) if a.given is None else a.given for a in outputs]

    @property
    def copies(self) -> tuple[Problem, ...]:
        """Problems for avoidable copies of host arrays: ``launch.copied-…``."""
        return tuple(self._attached.copies)

    def __del__(self) -> None:
        # what it enqueued may still run on memory that goes with it
        program = getattr(self, "_program", None)
        if program is not None:
            with contextlib.suppress(Exception):
                program.device.finish()

    def __call__(self) -> None:
        with self._program._lock:  # all launches of a program share its workspace
            self._program._enqueue(self._steps, self._natives)

    @property
    def results(self) -> Any:
        """The arrays that hold the outputs once the program has run (what ``wait`` returns)."""
        return self._call.results()

    def finish(self) -> None:
        """Wait for everything enqueued."""
        self._program.device.finish()

    def wait(self) -> Any:
        """Wait, and return the outputs (of all launches so far, the last wins)."""
        with self._program._lock:
            self._program._finish(self._attached)
        return self._call.results()

    def refill(self, outputs: Sequence[object]) -> None:
        """Overwrite the outputs with given contents, to check that kernels do not depend on them.

        Raises LaunchError ``argument.type`` unless ``outputs`` has an array of each output's shape.
        """
        wanted = self._program.source.outputs
        given: tuple[Any, ...] = need_list("outputs", outputs, "arrays", LaunchError)
        if [getattr(c, "shape", None) for c in given] != [tuple(p.shape) for p in wanted]:
            raise wrong("outputs", outputs, f"arrays of the shapes {[p.shape for p in wanted]}", LaunchError)
        self.finish()
        for p, content in zip(wanted, given, strict=True):
            if p.name in self._memories:  # there are none where nothing is to be computed
                self._program.device.write(self._memories[p.name], bytes_of(np.ascontiguousarray(content)))

    def refresh(self) -> None:
        """Take over changed inputs: check indices among them, copy those that are not used in place, and run again what
        runs once. Raises LaunchError ``launch.index-range``.
        """
        problems = self._call.outside()
        if problems:
            raise LaunchError(problems)
        with self._program._lock:
            for memory, argument in self._attached.uploads:
                self._program.device.write(memory, bytes_of(np.ascontiguousarray(argument.array)))
            self._program._enqueue(self._once, self._natives)


def _bound_again(program: CompiledProgram, given: Sequence[object], outputs: Sequence[object]) -> BoundLaunch:
    """``program`` bound to the arrays ``given`` as inputs and ``outputs``."""
    return program.bind(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))


# What a launch reads from the shapes of its arguments: the extents that a Source leaves open.


@answers(LaunchError)
def dims_of_call(source: Source, arrays: Sequence[object], out: object = None) -> dict[str, int]:
    """Return the extents that arguments (or, where those leave one open, outputs) have for the dims of ``source``.

    Arguments without a shape, and too few of them, are left to the checks that follow: a dim that none shows has its
    least value. Raises LaunchError ``launch.shape``, ``launch.dim-disagree``, ``launch.dim-range``.
    """
    outs = out if isinstance(out, tuple | list) else () if out is None else (out,)
    given = (*zip(source.inputs, arrays, strict=False), *zip(source.outputs, outs, strict=False))
    pairs = [(p, tuple(shape)) for p, a in given if _is_shape(shape := getattr(a, "shape", None))]
    problems = [p for p in (_shape(param, shape) for param, shape in pairs) if p is not None]
    found, faults = told((param.name, param.shape, shape) for param, shape in pairs) if not problems else ({}, [])
    problems += [Problem("launch.dim-disagree", fault) for fault in faults]
    for dim in source.dims if not problems else ():
        problems += _range(dim, found, pairs)
    if problems:
        raise LaunchError(problems)
    return {d.name: found[d.name][0] if d.name in found else d.low for d in source.dims}


def _is_shape(shape: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)


def _shape(param: Param, shape: tuple[int, ...]) -> Problem | None:
    """Problem for a wrong rank or constant extent, else None."""
    same = len(shape) == len(param.shape) and all(
        n == m for n, m in zip(shape, param.shape, strict=True) if isinstance(m, int)
    )
    return None if same else _wrong(param, shape)


def _wrong(param: Param, shape: tuple[int, ...]) -> Problem:
    wanted = ", ".join(map(str, param.shape)) + ("," if len(param.shape) == 1 else "")
    return Problem("launch.shape", f"{param.name}: expected shape ({wanted}), got {shape}")


def _range(dim: DimRange, found: Told, pairs: Sequence[tuple[Param, tuple[int, ...]]]) -> Iterator[Problem]:
    """Problems of one dim: out of range, or inconsistent with the shapes in ``pairs``."""
    if dim.name not in found:
        for param, shape in pairs:
            if dim.name in [solved[0] for e in param.shape if (solved := line(e)) is not None]:
                yield _wrong(param, shape)
        return
    n, where = found[dim.name]
    if not dim.low <= n <= dim.high:
        message = f"{where}: {dim.name} is {dim.low} to {dim.high}, got {n}"
        yield Problem("launch.dim-range", message, hint=f"a build of tir.dim({dim.name!r}, low=…, high=…) with room")
