"""bind, parallel: distribute loop iterations to blocks, threads, warps or cores."""

from __future__ import annotations

import math

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.habits import meant
from tensorir.errors.needs import need_text
from tensorir.ir.build import as_int
from tensorir.ir.dims import dims_in
from tensorir.ir.marks import Partition
from tensorir.ir.tree import BLOCKS, THREADS, WARPS, Axis, Kind, Loop, Program, Scope, Stage, Update
from tensorir.ir.visit import find, uses, writes
from tensorir.schedule.analysis import (
    Index,
    adds_atomically,
    caret,
    constant_extent,
    drives,
    has_axis,
    index_of,
    need_serial,
)
from tensorir.schedule.history import Name, S
from tensorir.schedule.primitives.loops import UNROLL_LIMIT
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, swap
from tensorir.target import Target


@primitive("Loops", moves=True)
def bind(self: S, axis: Name, to: str) -> S:
    """Bind a loop to a block axis (CUDA blockIdx, OpenCL get_group_id), "block.x", "block.y" or "block.z", or a thread
    axis, "thread.x", "thread.y" or "thread.z".

    "warp.x" and "warp.y" hand the iterations to whole warps (CUDA): each does its iteration with its 32 threads
    together, by instructions of warps or by distributing elements that such instructions hold; "warpgroup" to four
    warps each (sm_90a), whose 128 threads do it together. "cluster" hands 2, 4 or 8 iterations to blocks that run at
    the same time (sm_90): what they all copy in whole tiles, each brings a part of, for all. "vthread" hands them to
    virtual threads: threads like others to all that is scheduled, which are interleaved in a real one, statement by
    statement (``lower.interleave_vthreads``). Several loops may be bound to it

    "threads" distributes the iterations to all threads that the block has, whatever axes these are on: thread t takes
    iterations t, t + threads, t + 2 * threads … (as ``stage_in`` does with copies into shared memory). What is inside
    may use registers of its own; what others read of it has to be in shared or global memory

    Loops over terms of reductions and scans are refused, unless the stage is ``atomic``: ``reduce_across`` and
    ``rfactor`` combine partial results. Raises ScheduleError, codes of ``bind`` and ``scope``.
    """
    loop, history = self._loop(axis), self._history
    need_text("to", to, ScheduleError)
    history._apply("bind", (loop, to), {}, lambda p: _bind(p, loop, to, history.target))
    return self


def _bind(program: Program, loop: Loop, axis: str, target: Target) -> Rewrite:
    kinds = {k.value: k for k in Kind if k.level != "sequential"} | {"threads": Kind.COOPERATIVE}
    if axis not in kinds:
        raise _refuse(
            "bind.unknown-axis", f"{axis} is not a block or thread axis", loop, hint=meant("axis", axis, kinds)
        )
    kind = kinds[axis]
    if loop.kind is not Kind.SERIAL:
        need_serial(loop, "bind")
    for sort in (Axis.REDUCE, Axis.ORDERED):
        found = [(s, it) for s, it in has_axis(loop, sort) if not adds_atomically(s)]
        if found:
            stage, it = found[0]
            raise _refuse(
                "bind.reduction-has-one-owner" if sort is Axis.REDUCE else "bind.ordered",
                f"loop {loop.var.name} drives the {sort.value} axis {it.var.name} of {stage.name}: on {axis} several "
                f"threads would update one element of {stage.name} at once",
                loop,
                hint=f"bind a spatial loop, or {_instead(stage, loop, kind)}",
            )
    return bound(program, loop, kind, target)


def bound(program: Program, loop: Loop, kind: Kind, target: Target) -> Rewrite:
    """Rewrite to ``program`` with ``loop`` bound to axis ``kind``; raises ScheduleError, codes of ``bind`` or
    ``scope.overlap``, if the kernel or the target forbids it.
    """
    extent = constant_extent(loop, "bind.symbolic-extent")
    index = index_of(program)
    if kind is Kind.VTHREAD:
        _goes_in_step(index, loop, extent)
        return Rewrite(swap(program, loop, loop.replace(kind=kind)))
    _axis_is_free(index, loop, kind)
    if kind is Kind.COOPERATIVE:
        _own_cells(loop)
        return Rewrite(swap(program, loop, loop.replace(kind=kind)))
    _extents_agree(index, loop, kind, extent)
    if kind.level == "thread":
        _warps_or_threads(index, loop, kind, target)
    if kind is Kind.CLUSTER and (extent not in CLUSTERS or not target.has("sm_90")):
        message = (
            f"{extent} blocks are no cluster" if target.has("sm_90") else f"{target.text} has no clusters of blocks"
        )
        raise _refuse("bind.cluster", message, loop, hint=f"-arch=sm_90a, and one of {CLUSTERS} iterations")
    _fits(index, loop, kind, extent, target)
    return Rewrite(swap(program, loop, loop.replace(kind=kind)))


def _instead(stage: Stage, loop: Loop, kind: Kind = Kind.BLOCK_X) -> str:
    """Text for an error's hint: the call by which threads can combine the reduction of ``loop``, "s.rfactor('C', 'C.k')
    and …".
    """
    if any(it.axis is Axis.ORDERED for it in stage.iters):
        scatters = isinstance(stage.body, Update)
        return f"s.atomic({stage.name!r}), of a sum" if scatters else "of a scan s.redeclare('tiled_scan', tile=1024)"
    if kind in THREADS:
        return f"s.reduce_across({loop.var.name!r}, {kind.value!r})"
    return f"s.rfactor({stage.name!r}, {loop.var.name!r}) and combine the partial results"


CLUSTERS = (2, 4, 8)
"""Blocks of a cluster on every device that has clusters (CUDA programming guide, thread block clusters)."""


def _goes_in_step(index: Index, loop: Loop, extent: int) -> None:
    """Raise ScheduleError if ``loop`` cannot be a virtual thread: warps or cut loops in the kernel, an inner loop whose
    length depends on it, or too many virtual threads.
    """
    root = index.root_of(loop)
    virtual = [as_int(x.extent) for x in find(root, Loop) if x.kind is Kind.VTHREAD]
    why, hint = "", f"s.unroll({loop.var.name!r})"
    if other := next((x for x in find(root, Loop) if x.kind in WARPS), None):
        why = f"{other.var.name} is bound to {other.kind.value}, whose threads hold tiles together"
    elif Partition.of(loop).at:
        why, hint = "its iterations have bodies of their own", "a split with tail='guard', or one that is exact"
    elif other := next((x for x in find(loop.body, Loop) if uses(x.extent, {loop.var})), None):
        why = f"the length of {other.var.name} depends on it"
    elif (copies := math.prod([extent, *virtual])) > UNROLL_LIMIT:
        why = f"{copies} virtual threads would be written out one by one; the limit is {UNROLL_LIMIT}"
        hint = f"s.split({loop.var.name!r}, [None, 2]) and bind the inner part"
    if why:
        raise _refuse("bind.vthread", f"{loop.var.name} cannot be distributed to virtual threads: {why}", loop, hint)


def _warps_or_threads(index: Index, loop: Loop, kind: Kind, target: Target) -> None:
    """Raise ScheduleError for a kernel that binds both threads and warps."""
    if kind in WARPS and target.language != "cuda":
        raise _refuse(
            "bind.warp",
            f"{target.text} has no instructions that the threads of a warp run together",
            loop,
            hint=f"bind {loop.var.name} to thread.{'xyz'[_dimension(kind)]}",
        )
    for other in find(index.root_of(loop), Loop):
        if other.kind is Kind.VTHREAD:
            if kind in WARPS:
                message = f"{other.var.name} is bound to vthread, and the threads of {kind.value} hold tiles together"
                raise _refuse("bind.vthread", message, loop, hint=f"bind {loop.var.name} to thread.x")
        elif other.kind.level == "thread" and other.kind.lanes != kind.lanes:
            group = other.kind.value.split(".")[0]
            raise _refuse(
                "bind.warp-or-thread",
                f"{other.var.name} is bound to {other.kind.value}: a kernel distributes its iterations to threads, to "
                "whole warps or to warpgroups, not to two of these",
                loop,
                hint=f"bind {loop.var.name} to {group}{'' if group == 'warpgroup' else f'.{kind.value[-1]}'}",
            )


def _dimension(kind: Kind) -> int:
    """Index of a hardware axis in its grid or block: 0, 1, 2 for x, y, z; 1 for warpgroups, as their 128 threads are x;
    0 for clusters.
    """
    if kind is Kind.CLUSTER:
        return 0
    return 1 if kind is Kind.WARPGROUP else "xyz".index(kind.value[-1])


@primitive("Loops", moves=True)
def parallel(self: S, axis: Name) -> S:
    """Distribute the iterations of a loop over the cores, or multiprocessors: it gets the first free block axis.

    A block axis is free where no other loop of the same stage has it, where the loops of the kernel that have it are as
    long as this one, and where the target allows that many blocks; all else is as ``bind`` to that axis
    """
    loop, history = self._loop(axis), self._history
    history._apply("parallel", (loop,), {}, lambda p: _parallel(p, loop, history.target))
    return self


def _parallel(program: Program, loop: Loop, target: Target) -> Rewrite:
    need_serial(loop, "parallel")
    if found := has_axis(loop, Axis.REDUCE) + has_axis(loop, Axis.ORDERED):
        stage, it = found[0]
        raise _refuse(
            "parallel.independent",
            f"the iterations of {loop.var.name} are not independent: it drives the {it.axis.value} axis {it.var.name}, "
            f"so that each of them works on what the others made of {stage.name}",
            loop,
            hint=f"a spatial loop, or {_instead(stage, loop)}",
        )
    constant_extent(loop, "parallel.symbolic-extent")
    reasons = []
    for kind in BLOCKS:
        try:
            return _bind(program, loop, kind.value, target)
        except ScheduleError as e:
            reasons.append(e.problems[0].message)
    raise _refuse(
        "parallel.block-axis",
        f"no block axis is left for {loop.var.name}: {'; '.join(reasons)}",
        loop,
        hint="fuse loops before parallel, or split this one and run a part serially",
    )


def _axis_is_free(index: Index, loop: Loop, kind: Kind) -> None:
    for stage in find(loop, Stage):
        for other in index.above(stage):
            if other is not loop and other.kind is kind and drives(other, stage) and drives(loop, stage):
                raise _refuse(
                    "bind.axis-free",
                    f"{kind.value} already runs loop {other.var.name} of {stage.name}",
                    loop,
                    hint=f"another axis for {loop.var.name}, or fuse the two loops first",
                )


def _own_cells(loop: Loop) -> None:
    """Raise ScheduleError if several iterations of ``loop`` write the same element of memory shared by threads."""
    for stage in find(loop, Stage):
        seen = [b for b in writes(stage.body) if b.scope in (Scope.SHARED, Scope.GLOBAL)]
        if seen and not drives(loop, stage):
            raise _refuse(
                "scope.overlap",
                f"several iterations of {loop.var.name} write the same cells of {seen[0].name}, and threads would run "
                "them at the same time",
                loop,
                hint=f"a loop that {stage.name} has a cell of its own for in each iteration",
            )


def _extents_agree(index: Index, loop: Loop, kind: Kind, extent: int) -> None:
    for other in find(index.root_of(loop), Loop):
        if other.kind is kind and other is not loop and as_int(other.extent) != extent:
            raise _refuse(
                "bind.one-extent-per-axis",
                f"{kind.value} has extent {as_int(other.extent)} at {other.var.name}, but {loop.var.name} has {extent}",
                loop,
                hint=f"s.split({loop.var.name!r}, [None, {as_int(other.extent)}]) and bind the inner part",
            )


def _fits(index: Index, loop: Loop, kind: Kind, extent: int, target: Target) -> None:
    n = _dimension(kind)
    if kind.level == "thread":
        axes: dict[Kind, int] = {
            k.kind: as_int(k.extent)
            for k in find(index.root_of(loop), Loop)
            if k.kind.level == "thread" and k.kind is not Kind.VTHREAD
        }
        threads = math.prod({**axes, kind: extent}.values()) * kind.lanes
        if extent > target.max_block[n] or threads > target.max_threads:
            limit = min(target.max_threads, target.max_block[n])
            raise _refuse(
                "bind.device-limit",
                f"{threads} threads a block (with {loop.var.name} = {extent}) exceed the {limit} of {target.text}",
                loop,
                hint=f"s.split({loop.var.name!r}, [None, {max(1, limit * extent // max(threads, 1))}]) "
                "and bind the inner part",
            )
    elif extent > target.max_grid[n] and not (n == 0 and ends_at_dims(loop)):
        raise _refuse(
            "bind.device-limit",
            f"{extent} blocks along {kind.value} exceed the {target.max_grid[n]} of {target.text}",
            loop,
            hint="bind it to block.x, or split it and run the inner part serially",
        )


def ends_at_dims(loop: Loop) -> bool:
    """True if a stage in ``loop`` has an axis whose extent is known only at launch."""
    return bool(dims_in(*(it.extent for s in find(loop, Stage) for it in s.iters)))


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
