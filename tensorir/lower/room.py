"""Checks that kernels fit the target's memory and thread limits; estimates shared memory during scheduling."""

from __future__ import annotations

import functools
from math import prod

from tensorir.errors import CompileError, Problem
from tensorir.ir.dims import most, most_of, span
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.once import nests
from tensorir.ir.tree import Buffer, Expr, Loop, Scope, Stmt
from tensorir.ir.visit import uses
from tensorir.lower.boxes import Access, common, local_accesses
from tensorir.lower.form import fail
from tensorir.lower.kernel import Kernel, Module, bytes_of
from tensorir.schedule.analysis import in_loops
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target, beyond_limits

ON_STACK = 4 << 20
"""Bytes that a processor's thread may keep: half of the usual stack."""
LOCAL_MEMORY = 512 << 10
"""Bytes that a thread of a CUDA GPU may keep (CUDA programming guide, technical specifications)."""
SHOWN_ARRAYS = 3
"""Arrays that a refusal names."""


def need_room(module: Module, target: Target) -> Module:
    """Return ``module`` if the target can hold its kernels: grid, threads, shared memory, private memory per thread.

    Raises CompileError ``compile.grid``, ``compile.threads``, ``compile.shared-memory``; LoweringError
    ``lower.private-memory``, ``lower.c-threads``.
    """
    if target.language == "c":
        for k in module.kernels:
            _need_one_thread(k)
    problems = [p for k in module.kernels for p in _problems(k, target)]
    if problems:
        raise CompileError(problems)
    for k in module.kernels:
        _need_private(k, target)
    return module


def _problems(k: Kernel, target: Target) -> list[Problem]:
    x, y, z = (span(n)[0] if isinstance(n, Expr) else n for n in k.grid)  # dims may be small: a launch knows
    largest = sorted(k.shared, key=bytes_of, reverse=True)[:SHOWN_ARRAYS]
    arrays = "\n".join(f"{b.name}: {bytes_of(b)} bytes" for b in largest)
    return beyond_limits(target, k.name, (x, y, z), k.block, k.shared_bytes, k.cluster, arrays)


def _need_one_thread(k: Kernel) -> None:
    if prod(k.block) == 1:
        return
    x, y, z = k.block
    message = f"a block of {k.name} has ({x}, {y}, {z}) threads, and C runs each block as one function"
    hint = 'bind these loops to blocks, or leave them serial; target="opencl" runs blocks of several threads'
    raise fail("lower.c-threads", message, hint)


def _need_private(k: Kernel, target: Target) -> None:
    room = ON_STACK if target.kind == "cpu" else LOCAL_MEMORY if target.language == "cuda" else None
    if room is not None and (total := sum(bytes_of(b) for b in k.private)) > room:
        largest = k.private[0]
        raise fail(
            "lower.private-memory",
            f"each thread of {k.name} keeps {total} bytes, {bytes_of(largest)} of them in {largest.name}; "
            f"{target.text} has {room} for one",
            f"compute_at a loop further in keeps a smaller part of {largest.name}; or leave it in global memory",
        )


def may_be_full(s: BaseSchedule) -> bool:
    """True if a schedule's shared memory, in all copies of its pipelines, exceeds a block's by an estimate, which
    lowering decides exactly; False if the target has no such limit.
    """
    copies = [int(dict(x.options).get("depth", 2)) for x in s.trace if x.primitive == "pipeline"]
    most = s.target.shared_optin_bytes
    return most > 0 and any(_shared(nest) * max(copies, default=1) > most for nest in nests(s.program))


@functools.lru_cache(maxsize=1024)
def _shared(nest: Stmt) -> int:
    """Estimated bytes of shared memory of a kernel, cached."""
    return sum(_estimate(b, found) for b, found in local_accesses(nest).items() if b.scope is Scope.SHARED)


def _estimate(b: Buffer, found: list[Access]) -> int:
    """Estimated bytes of array ``b`` as allocated: elements written per instance."""
    _, depth = common(found)
    cells = [
        prod(
            most(x.extent)
            for x in a.path[depth:]
            if isinstance(x, Loop) and any(uses(in_loops(i, a.stage), {x.var}) for i in a.index)
        )
        for a in found
        if a.writes
    ]
    return min(max(cells, default=0), prod(most_of(b))) * DTYPES[b.dtype].bits // 8
