"""The thread-level meaning of lowered programs: their kernels one after another, on the memory that they share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensorir.errors import Problem
from tensorir.interp.frame import KernelLike
from tensorir.interp.idle_blocks import worth_running
from tensorir.interp.lift import Lifts
from tensorir.interp.machine import Machine
from tensorir.interp.memory import Cells, Fault
from tensorir.interp.numbers import Field, Numbers
from tensorir.interp.reference import constant_values
from tensorir.ir.build import as_int
from tensorir.ir.tree import Buffer, Const, IntrinCall, Kind, Let, Loop, Stmt, Store, Var
from tensorir.ir.visit import writes

LANES = 4096  # threads run at once
MANY = 1 << 16
"""Threads of grids of which eight times as many run at once, and no block without need."""


class ModuleLike(Protocol):
    """What the interpreter needs of a lowered program (``lower.kernel.Module``)."""

    @property
    def inputs(self) -> tuple[Buffer, ...]: ...
    @property
    def outputs(self) -> tuple[Buffer, ...]: ...
    @property
    def scalars(self) -> tuple[Var, ...]: ...
    @property
    def workspace(self) -> tuple[Buffer, ...]: ...
    @property
    def constants(self) -> tuple[Buffer, ...]: ...
    @property
    def kernels(self) -> Sequence[KernelLike]: ...


@np.errstate(all="ignore")
def run(module: ModuleLike, arrays: Mapping[str, object], numbers: Numbers) -> dict[str, np.ndarray]:
    """Execute all kernels on ``arrays`` (inputs and scalars by name, in the values of ``numbers``).

    Returns the outputs by name, flat. Raises Fault at the first undefined behaviour: ``race.shared``, ``race.global``,
    ``memory.uninitialised``, ``memory.out-of-bounds``, ``barrier.divergent``, ``memory.unwritten``.
    """
    memory: dict[Buffer, Cells] = {}
    for b in module.inputs:
        memory[b] = Cells(b, 1, numbers.storage(b.dtype), np.array(arrays[b.name]))
    for b in module.constants:
        memory[b] = Cells(b, 1, numbers.storage(b.dtype), constant_values(b, numbers))
    for b in (*module.outputs, *module.workspace):
        memory[b] = Cells(b, 1, numbers.storage(b.dtype))
    scalars = {v: np.asarray(arrays[v.name]).item() for v in module.scalars}
    for k in module.kernels:
        _run_kernel(k, memory, scalars, numbers)
    for b in module.outputs:
        written = memory[b].written
        if written is not None and not written.all():
            cell = int(np.argmin(written))
            raise Fault(Problem("memory.unwritten", f"{b.name}[{cell}] is never written"))
    return {b.name: memory[b].values for b in module.outputs}


def _run_kernel(k: KernelLike, memory: dict[Buffer, Cells], scalars: Mapping[Var, Any], numbers: Numbers) -> None:
    """All blocks, a few at a time."""
    touched = set(writes(k.body))
    for b in k.params:
        old = memory[b]
        watched = b in touched
        new = Cells(b, 1, old.values.dtype, old.values, watched=watched)
        new.written = old.written
        memory[b] = new
    gx, gy, gz = k.grid
    bx, by, bz = k.block
    threads, blocks = bx * by * bz, gx * gy * gz
    block_of = np.repeat(np.arange(blocks), threads)
    if threads * blocks == 0:
        return  # nothing is launched
    cluster = next((as_int(x.extent) for x in k.axes if x.kind is Kind.CLUSTER), 1)
    many = threads * blocks > MANY
    step = max(1, LANES * (8 if many else 1) // threads // cluster) * cluster  # blocks of a cluster run together

    def machine(these: Sequence[int] | np.ndarray) -> Machine:
        return Machine(k, memory, scalars, numbers, these, block_of)

    todo = worth_running(k, set(scalars), machine, blocks) if many and cluster == 1 else np.arange(blocks)
    for first in range(0, len(todo), step):
        machine(todo[first : first + step]).go()


def iterations(module: ModuleLike) -> int:
    """How many statements ``run`` executes one after another over a field: its cost, before paying it."""
    total = 0
    for k in module.kernels:
        threads, blocks = math.prod(k.block), math.prod(k.grid)
        together = max(1, LANES // max(1, threads))
        lanes = max(1, threads * min(blocks, together))
        total += -(-blocks // together) * _statements(k.body, Lifts(k, Field().exact), lanes)
    return total


def _statements(s: Stmt, lifts: Lifts, lanes: int) -> int:
    while isinstance(s, Let):  # there may be many, one inside the other
        s = s.body
    if isinstance(s, Loop):
        lift = lifts.of(s, lanes)
        if lift is not None:
            return 1 if lift.summed else _statements(lift.body, lifts, lanes * lift.times)
        times = as_int(s.extent) if isinstance(s.extent, Const) else 8
        return times * _statements(s.body, lifts, lanes)
    if isinstance(s, Store | IntrinCall):
        return 1
    return sum(_statements(c, lifts, lanes) for c in s.children() if isinstance(c, Stmt))
