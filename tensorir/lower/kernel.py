"""Lowered kernels with launch sizes (``Kernel``, ``Module``), ready to print or interpret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorir.ir.build import as_int
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.once import runs_once
from tensorir.ir.tree import BLOCKS, THREADS, Alloc, Buffer, Const, Fact, Kind, Loop, Program, Scope, Stmt, Var
from tensorir.ir.visit import find, reads, writes
from tensorir.lower.form import bound_loops, nests


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel with its launch; ``body`` runs once per thread of every block.

    axes:   block and thread loops, outermost first; their variables stand for the hardware indices in ``body``
    params: buffers in global memory, in signature order;  scalars: values passed by copy
    grid, block: (x, y, z)
    once: one run serves all launches on the same inputs
    """

    name: str
    params: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    axes: tuple[Loop, ...]
    body: Stmt
    once: bool = False

    def _extents(self, kinds: tuple[Kind, ...]) -> tuple[Any, Any, Any]:
        """Extents along x, y, z of the hardware axes ``kinds``: ints, or expressions of dims; 1 for an axis without a
        loop.
        """
        found = {x.kind: as_int(x.extent) if isinstance(x.extent, Const) else x.extent for x in self.axes}
        x, y, z = (found.get(k, 1) for k in kinds)
        return x, y, z

    @property
    def grid(self) -> tuple[Any, Any, Any]:
        """Blocks along x, y, z: ints, or expressions of dims."""
        x, y, z = self._extents(BLOCKS)
        return x * self.cluster, y, z

    @property
    def cluster(self) -> int:
        """Blocks per thread-block cluster, adjacent along x."""
        return next((as_int(x.extent) for x in self.axes if x.kind is Kind.CLUSTER), 1)

    @property
    def block(self) -> tuple[int, int, int]:
        return self._extents(THREADS)

    @property
    def shared(self) -> list[Buffer]:
        """Shared-memory buffers, mbarriers last."""
        found = [a.buffer for a in find(self.body, Alloc) if a.buffer.scope in (Scope.SHARED, Scope.BARRIER)]
        return sorted(found, key=lambda b: b.scope is Scope.BARRIER)

    @property
    def shared_bytes(self) -> int:
        return sum(bytes_of(b) for b in self.shared)

    @property
    def private(self) -> list[Buffer]:
        """Register buffers of a thread, the largest first."""
        found = [a.buffer for a in find(self.body, Alloc) if a.buffer.scope is Scope.REGISTER]
        return sorted(found, key=bytes_of, reverse=True)


@dataclass(frozen=True, eq=False)
class Module:
    """A lowered program: kernels in launch order, and the global buffers they pass on."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    workspace: tuple[Buffer, ...]
    constants: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    facts: tuple[Fact, ...] = ()


def bytes_of(b: Buffer) -> int:
    """Size of ``b`` in bytes."""
    n = DTYPES[b.dtype].bits // 8 * b.lanes
    for e in b.shape:
        n *= as_int(e)
    return n


def module_of(program: Program) -> Module:
    """Return the kernels of a lowered program as a Module; kernels are named after the last buffer that they write."""
    kernels = []
    workspace: dict[Buffer, None] = {}
    constants: dict[Buffer, None] = {}
    ahead = runs_once(program)
    for n, nest in enumerate(nests(program)):
        axes, body = bound_loops(nest)
        local = {a.buffer for a in find(body, Alloc)}
        written = writes(body)
        used = dict.fromkeys([*reads(body), *written])
        params = [p for p in program.params if p in used]
        extra = [b for b in used if b not in local and b not in program.params]
        workspace.update(dict.fromkeys(b for b in extra if b.data is None))
        constants.update(dict.fromkeys(b for b in extra if b.data is not None))
        scalars = tuple(v for v in program.scalars if v in set(find(body, Var)))
        label = next((b.name for b in reversed(written) if b not in local), program.name)
        name = f"{label}_kernel" if len(nests(program)) == 1 else f"{label}_kernel{n}"
        buffers = (*params, *(b for b in extra if b.data is None))
        kernels.append(Kernel(name, buffers, scalars, tuple(axes), body, ahead[n]))
    return Module(
        program.name,
        program.inputs,
        program.outputs,
        program.scalars,
        tuple(workspace),
        tuple(constants),
        tuple(kernels),
        program.facts,
    )
