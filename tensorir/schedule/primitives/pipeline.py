"""pipeline: copies into shared memory that run ahead of the loop that uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.intrin.hopper import first_registers
from tensorir.ir.build import as_int
from tensorir.ir.tree import Buffer, Const, If, Kind, Loop, Program, Scope, Stage, Stmt, Store
from tensorir.ir.visit import find, reads, writes
from tensorir.schedule.analysis import (
    Index,
    caret,
    constant_extent,
    need_serial,
    stages_reading,
    stages_writing,
    statements,
)
from tensorir.schedule.rewrite import Rewrite, swap
from tensorir.target import Target

DEPTHS = (2,)
"""Buffers that may take turns where the copies pass through registers, which hold one tile."""
ASYNC_DEPTHS = tuple(range(2, 9))
"""Those of copies that are under way on their own."""


ROLES = ("load", "compute")
ROLE_REGISTERS = range(24, 241, 8)
"""Of a thread of a warpgroup that asks for them (PTX ISA, setmaxnreg)."""


def pipeline(program: Program, loop: Loop, depth: int, async_: bool, target: Target,
             roles: Mapping[str, int] | None = None) -> Rewrite:  # fmt: skip
    """While one iteration of ``loop`` uses what it copied into shared memory, the copies for the next are under way.

    depth: buffers that take turns. With 2, an iteration loads what the next one needs into registers first, and stores
           that into the other buffer when its own work is done: memory is waited for once, before the first, and one
           barrier an iteration is left of two. Costs a second buffer in shared memory, and registers for one tile
    async_: the copies are under way on their own (cp.async, PTX ISA), ``depth`` - 1 iterations ahead, and pass through
           no register; what has fewer than 4 bytes at a time is copied by the threads themselves, as far ahead
    roles: registers of each thread that loads and that computes. A warpgroup of its own asks for the copies, which are
           of whole tiles (``stage_in(…, via="tma")``), as long as a buffer is free; those that compute wait for the
           next full one, and no thread waits for all others (warp specialisation)
    The tree keeps one body with a mark. Raises ScheduleError: ``pipeline.async``, ``pipeline.cpu``, ``pipeline.depth``,
    ``pipeline.no-copies``, ``pipeline.parts``, ``pipeline.roles``, ``pipeline.serial``, ``pipeline.symbolic-extent``;
    primitives that come later may raise ``pipeline.lost``.
    """
    need_serial(loop, "pipeline")
    constant_extent(loop, "pipeline.symbolic-extent")
    if roles is not None:
        return Rewrite(swap(program, loop, _with_roles(program, loop, depth, roles, target)))
    if target.kind == "cpu":
        raise _refuse("pipeline.cpu", "the threads of a block take turns on CPUs: a copy has nothing to run beside",
                      loop, hint="s.prefetch(…), which asks for cache lines ahead of time")  # fmt: skip
    if async_ and not target.has("sm_80"):
        raise _refuse("pipeline.async", f"{target.text} has no copies that are under way on their own", loop,
                      hint="async_=False, or target='cuda -arch=sm_80'")  # fmt: skip
    if depth not in (legal := ASYNC_DEPTHS if async_ else DEPTHS):
        many = "copies pass through registers, which hold one tile" if not async_ else "2 to 8 buffers take turns"
        hint = "async_=True" if depth in ASYNC_DEPTHS and target.has("sm_80") else f"depth={legal[0]}"
        raise _refuse("pipeline.depth", f"depth={depth}: {many}", loop, hint=hint)
    if loop.parts or loop.cases:
        raise _refuse("pipeline.parts", f"the body of {loop.var.name} is written more than once already", loop,
                      hint="an exact split, or specialize a loop inside")  # fmt: skip
    if not _has_copies(program, loop):
        raise _refuse(
            "pipeline.no-copies",
            f"no iteration of {loop.var.name} begins with copies into shared memory that could be made ahead of time",
            loop,
            hint=f"s.stage_in(tensor, at={loop.var.name!r}, scope='shared') first, of what the loop does not write",
        )
    return Rewrite(swap(program, loop, loop.replace(depth=depth, later=async_)))


def _with_roles(program: Program, loop: Loop, depth: int, roles: Mapping[str, int], target: Target) -> Loop:
    """The loop marked with the registers of its roles."""
    groups = [as_int(x.extent) for x in Index(program).above(loop) if x.kind is Kind.WARPGROUP]
    legal = "roles={'load': 40, 'compute': 232}"
    if not target.has("sm_90a"):
        raise _refuse("pipeline.roles", f"{target.text} has no warpgroups that give registers to each other", loop,
                      hint="async_=True, or target='cuda -arch=sm_90a'")  # fmt: skip
    if not groups:
        raise _refuse("pipeline.roles", f"roles are of warpgroups, and no loop around {loop.var.name} is bound to them",
                      loop, hint="s.bind(…, 'warpgroup')")  # fmt: skip
    odd = [n for n in roles.values() if type(n) is not int or n not in ROLE_REGISTERS]
    if tuple(sorted(roles)) != tuple(sorted(ROLES)) or odd:
        raise _refuse("pipeline.roles", f"roles={roles} does not say the registers of {' and '.join(ROLES)}, multiples "
                      f"of 8 from {ROLE_REGISTERS[0]} to {ROLE_REGISTERS[-1]}", loop, hint=legal)  # fmt: skip
    threads, all_groups = Kind.WARPGROUP.lanes, 1 + groups[0]
    wanted, first = threads * (roles["load"] + groups[0] * roles["compute"]), first_registers(all_groups * threads)
    if wanted > all_groups * threads * first:  # what a role asks for beyond that it would wait for without end
        most = (all_groups * first - roles["load"]) // groups[0] // 8 * 8
        raise _refuse("pipeline.roles", f"{wanted} registers for {all_groups} warpgroups exceed the {first} for each "
                      f"thread that a block begins with", loop, hint=f"'compute': {most}")  # fmt: skip
    if depth not in ASYNC_DEPTHS:
        raise _refuse("pipeline.depth", f"depth={depth}: 2 to 8 buffers take turns", loop, hint="depth=4")
    marked = loop.replace(depth=depth, later=True, roles=(roles["load"], roles["compute"]))
    if not _has_copies(program, loop, tiles=True):
        raise _refuse("pipeline.no-copies", f"no iteration of {loop.var.name} begins with copies of whole tiles", loop,
                      hint=f"s.stage_in(tensor, at={loop.var.name!r}, scope='shared', via='tma') first")  # fmt: skip
    return marked


def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Why a primitive that was called after pipeline may not do what it did: the loop gone, or its copies."""
    marked = [x for x in find(before.body, Loop) if x.depth > 1]
    left = {x.var.name: x for x in find(after.body, Loop) if x.depth > 1}
    for loop in marked:
        now = left.get(loop.var.name)
        if now is None or now.kind is not Kind.SERIAL or now.parts or now.cases:
            return Problem(
                "pipeline.lost",
                f"{primitive} changes {loop.var.name}, whose copies run ahead",
                at=caret(loop),
                hint=f"{primitive} before pipeline",
            )
        if not _has_copies(after, now, tiles=bool(now.roles)):
            return Problem(
                "pipeline.lost",
                f"{primitive} takes away the copies that {loop.var.name} makes ahead",
                at=caret(loop),
                hint=f"{primitive} before pipeline",
            )
    return None


def _has_copies(program: Program, loop: Loop, tiles: bool = False) -> bool:
    """Whether an iteration begins with copies that could be made ahead, for the loop alone."""
    used = {b for s in find(loop.body, Stage) for b in writes(s.body) if b.scope is Scope.SHARED}
    mine = find(loop, Stage)
    inside = {
        b for b in used
        if all(s in mine for s in [*stages_writing(program.body, b), *stages_reading(program.body, b)])
    }  # fmt: skip
    return bool(copies_ahead(list(statements(loop.body)), inside, tiles))


def copies_ahead(body: Sequence[Stmt], shared: set[Buffer], tiles: bool = False) -> list[Stmt]:
    """The statements of an iteration that do nothing but fill ``shared`` buffers from what no iteration writes.

    tiles: those that copy whole tiles, else those that threads make
    """
    fits = _only_tiles if tiles else _only_moves
    written = {b for s in body for b in writes(s)}
    made = [s for s in body if len(set(writes(s))) > 0 and set(writes(s)) <= shared
            and not set(reads(s)) & written and fits(s)]  # fmt: skip
    while True:  # what shares a buffer with another statement stays with it
        others = {b for s in body if s not in made for b in writes(s)}
        left = [s for s in made if not set(writes(s)) & others]
        if len(left) == len(made):
            return made
        made = left


def _only_moves(s: Stmt) -> bool:
    """Whether each stage stores one value, in loops of known extents."""
    loops = all(isinstance(x.extent, Const) and as_int(x.extent) > 0 for x in find(s, Loop))
    return loops and all(_stores(x.body) and x.init is None and x.intrin is None for x in find(s, Stage))


def _only_tiles(s: Stmt) -> bool:
    """Whether each stage copies a whole tile."""
    return all(x.intrin is not None and x.intrin.maps and not x.intrin.stores for x in find(s, Stage))


def _stores(body: Stmt) -> bool:
    """Whether it is one store, perhaps under the conditions that lowering makes of guards."""
    return isinstance(body, Store) or (isinstance(body, If) and _stores(body.then))


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
