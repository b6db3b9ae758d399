"""Calls a compiled program with raw memory addresses, for frameworks with their own arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tensorir.codegen.source import Param, itemsize
from tensorir.runtime.arguments import scalar_value
from tensorir.runtime.base import Bytes
from tensorir.runtime.call import least_align
from tensorir.runtime.launch import DIMS_KEPT, CompiledProgram


class OnPointers:
    """``program`` on contiguous memory at given addresses; they are trusted: whoever calls has checked them.

    >>> run = OnPointers(program)
    >>> run([address_of_a, address_of_b, 2.5, address_of_result])  # inputs and numbers in order, then outputs

    With addresses of the host it returns when the results are there; calls from several threads are serialized. On a
    GPU kernels are enqueued on ``stream``, and find their workspace at ``workspace``. Where the device does not work in
    place, memory of the host is copied.

    align: bytes of which an address is a multiple, by parameter
    workspace_bytes: of a launch on a GPU; 0 where the program has its own
    pack: function of the buffers that runs the ``once`` kernels into memory of their own and returns it by parameter,
          to be passed as ``packed`` while the inputs that they read are unchanged; without it they run in every call.
          None if there are no such kernels
    """

    def __init__(self, program: CompiledProgram) -> None:
        self.program, source = program, program.source
        self._params = (*source.inputs, *source.outputs)
        self.align = {p.name: least_align(p, program.device) for p in self._params if p.role != "scalar"}
        self._wants = [(p, _nbytes(p), p.role == "output") for p in self._params]
        self._spaces: list[Param] = []
        if program.device.takes_streams:
            made = {name for k in source.made_early for name in k.params}
            self._spaces = [p for p in source.params if p.role == "workspace" and p.name not in made]
            program._memories()  # waits, as no launch may
        self.workspace_bytes = sum(map(_room, self._spaces))
        module = program._module
        self.pack = self._pack if any(k.once for k in program._launches()) else None
        self._runs = [(k, module.runner(k), k.params) for k in program._launches()]

    def __call__(self, buffers: Sequence[object], stream: int = 0, workspace: int = 0, packed: Any = None) -> None:
        program, device = self.program, self.program.device
        device.check_process()
        with program._lock:
            if device.takes_streams:
                self._enqueue(buffers, stream, workspace)
                return
            memories, shared, back = self._memories(buffers)
            if packed is not None:
                memories |= packed
            self._run(memories, packed is None)
            if shared:
                device.publish(shared)
            else:
                device.finish()
            for memory, array in back:
                device.read(memory, array)

    def _pack(self, buffers: Sequence[Any]) -> dict[str, Any]:
        program, device = self.program, self.program.device
        device.check_process()
        with program._lock:
            own = program._own_workspace()
            memories, _, _ = self._memories(buffers)
            self._run(memories | own, True, False)
            device.finish()
        return own

    def _run(self, memories: dict[str, Any], once: bool = True, each: bool = True) -> None:
        """Enqueue kernels on ``memories``: those that run once if ``once``, the others if ``each``."""
        try:
            for launch, run, names in self._runs:
                if once if launch.once else each:
                    run([memories[name] for name in names])
        except Exception as error:  # each runtime has its own
            raise self.program.device.failure(error) from None

    def _memories(self, buffers: Sequence[Any]) -> tuple[dict[str, Any], list[Any], list[tuple[Any, Bytes]]]:
        """(memory by parameter, memories written in place, (memory, host bytes) to copy back)."""
        program, device = self.program, self.program.device
        memories = dict(program._memories())
        shared: list[Any] = []
        back: list[tuple[Any, Bytes]] = []
        seen: dict[int, Any] = {}
        for (p, nbytes, output), given in zip(self._wants, buffers, strict=False):  # inputs alone where it packs
            if p.role == "scalar":
                memories[p.name] = scalar_value(p, given)
                continue
            array = at_address(given, nbytes)
            memory = seen.get(given)  # two memories over the same bytes are undefined in OpenCL
            if memory is None and (memory := device.share(array, output)) is not None:
                seen[given] = memory
            if memory is None:
                memory = _staged(program, p)
                if output:
                    back.append((memory, array))
                else:
                    device.write(memory, array)
            elif output:
                shared.append((memory, array))
            memories[p.name] = memory
        return memories, shared, back

    def _enqueue(self, buffers: Sequence[Any], stream: int, workspace: int) -> None:
        """Launch on a GPU stream. Not yet run on one."""
        program, device = self.program, self.program.device
        memories = dict(program._memories())
        for p, given in zip(self._params, buffers, strict=True):
            memories[p.name] = scalar_value(p, given) if p.role == "scalar" else device.at(given, _nbytes(p))
        for p in self._spaces:
            memories[p.name] = device.at(workspace, _nbytes(p))
            workspace += _room(p)
        with device.on_stream(stream):
            self._run(memories)


class OnSizedPointers:
    """``OnPointers`` for a program with dims: in a call, their values follow the outputs.

    workspace_bytes: C expression in the dims, as text
    pack: None: ``once`` kernels run in every call, ``packed`` is ignored
    """

    pack = None

    def __init__(self, program: CompiledProgram) -> None:
        self.program, source = program, program.source
        given = [p for p in (*source.inputs, *source.outputs) if p.role != "scalar"]
        self.align = {p.name: least_align(p, program.device) for p in given}
        spaces = [p for p in source.params if p.role == "workspace"] if program.device.takes_streams else []
        sizes = [" * ".join([*(f"({e})" for e in p.shape), str(itemsize(p.dtype))]) for p in spaces]
        self.workspace_bytes = " + ".join(["0", *(f"({size} + 255) // 256 * 256" for size in sizes)])
        self._made: dict[tuple[int, ...], OnPointers] = {}

    def __call__(self, buffers: Sequence[Any], stream: int = 0, workspace: int = 0, packed: Any = None) -> None:
        first = len(buffers) - len(self.program.source.dims)
        self.at(tuple(buffers[first:]))(buffers[:first], stream, workspace)

    def at(self, extents: tuple[Any, ...]) -> OnPointers:
        """Return the OnPointers at these values of dims, in order; the last ``DIMS_KEPT`` are kept."""
        with self.program._lock:
            found = self._made.pop(extents, None)
            if found is None:
                names = [d.name for d in self.program.source.dims]
                found = OnPointers(self.program.at(dict(zip(names, extents, strict=True))))
                while len(self._made) >= DIMS_KEPT:
                    del self._made[next(iter(self._made))]
            self._made[extents] = found
        return found


def on_pointers(program: CompiledProgram) -> OnPointers | OnSizedPointers:
    """``program`` as a callable on memory addresses: OnSizedPointers if it has dims, else OnPointers."""
    return OnSizedPointers(program) if program.source.dims else OnPointers(program)


@cache
def _bytes_type(nbytes: int) -> Any:
    return ctypes.c_uint8 * nbytes


def at_address(address: int, nbytes: int) -> Bytes:
    """Host memory at an address as bytes; not kept alive."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(_bytes_type(nbytes).from_address(address), np.uint8)


def _staged(program: CompiledProgram, p: Param) -> Any:
    if p.name not in program._staging:
        program._staging[p.name] = program.device.allocate(_nbytes(p))
    return program._staging[p.name]


def _nbytes(p: Param) -> int:
    return int(prod(p.shape)) * itemsize(p.dtype)


def _room(p: Param) -> int:
    """Bytes of a workspace array, rounded up for alignment."""
    return -(-_nbytes(p) // 256) * 256
