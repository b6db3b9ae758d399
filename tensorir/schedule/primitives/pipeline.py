"""pipeline: software pipelining of loops whose iterations begin with copies into shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_bool, need_int, need_mapping
from tensorir.intrin.hopper import first_registers
from tensorir.ir.build import as_int
from tensorir.ir.marks import Partition, Pipelined, Skipped, Versions
from tensorir.ir.once import nests
from tensorir.ir.tree import Axis, Buffer, Const, If, Kind, Loop, Program, Scope, Stage, Stmt, Store
from tensorir.ir.visit import find, reads, writes
from tensorir.schedule.analysis import (
    caret,
    constant_extent,
    has_axis,
    index_of,
    need_serial,
    statements,
)
from tensorir.schedule.history import Name, S
from tensorir.schedule.ownership import touched
from tensorir.schedule.registry import mark, primitive
from tensorir.schedule.rewrite import Rewrite, swap
from tensorir.target import Target

DEPTHS = (2,)
"""Pipeline stages of copies that pass through registers, which hold one tile."""
ASYNC_DEPTHS = tuple(range(2, 9))
"""Pipeline stages of asynchronous copies."""


ROLES = ("load", "compute")
ROLE_REGISTERS = range(24, 241, 8)
"""Of a thread of a warpgroup that asks for them (PTX ISA, setmaxnreg)."""


@primitive("Copies and memory")
def pipeline(self: S, axis: Name, depth: int = 2, async_: bool = False, roles: Mapping[str, int] | None = None,
             turns: int = 1) -> S:  # fmt: skip
    """Software-pipeline a loop: while one iteration uses its copies in shared memory, those for the next are in flight.

    depth: pipeline stages (buffers): 2, or 2 to 8 with ``async_`` or ``roles``. Copies by threads (the default) go
           through registers: an iteration first loads the tile of the next one into registers, computes, then stores
           that tile into the other buffer; one barrier per iteration is left of two. Costs a second buffer and
           registers for one tile. What a stage computes from registers (``stage_in(…, scope="register")``) is loaded
           ahead and computed when it is stored
    async_: True for asynchronous copies (cp.async; sm_80), ``depth`` - 1 iterations ahead and without registers; those
           of less than 4 bytes at a time are made by the threads, as far ahead
    roles: {"load": n, "compute": m}, registers per thread of the producer warpgroup and of the consumers, multiples of
           8 from 24 to 240 (warp specialization; sm_90a, inside a loop bound to "warpgroup"). The producer issues the
           copies, which are of whole tiles (``stage_in(…, via="tma")``), while buffers are free; consumers wait for
           the next full one, and there is no barrier of all threads
    turns: with roles, the number of consumer sets. They alternate on the iterations of the loop around ``axis``: one
           set stores its results while the next one multiplies (ping-pong)
    The tree keeps one body with a mark. Raises ScheduleError: ``pipeline.async``, ``pipeline.cpu``, ``pipeline.depth``,
    ``pipeline.no-copies``, ``pipeline.parts``, ``pipeline.roles``, ``pipeline.serial``, ``pipeline.symbolic-extent``,
    ``pipeline.turns``; primitives that come later may raise ``pipeline.lost``.
    """
    loop, history = self._loop(axis), self._history
    need_int("depth", depth, 1, error=ScheduleError)
    need_bool("async_", async_, ScheduleError)
    need_int("turns", turns, 1, error=ScheduleError)
    given = None if roles is None else dict(need_mapping("roles", roles, ScheduleError))
    options = {"depth": depth, "async_": async_, "roles": given, "turns": turns}
    history._apply("pipeline", (loop,), options,
                   lambda p: _pipeline(p, loop, depth, async_, history.target, given, turns))  # fmt: skip
    return self


def _pipeline(program: Program, loop: Loop, depth: int, async_: bool, target: Target,
             roles: Mapping[str, int] | None = None, turns: int = 1) -> Rewrite:  # fmt: skip
    need_serial(loop, "pipeline")
    constant_extent(loop, "pipeline.symbolic-extent")
    if roles is not None:
        return Rewrite(swap(program, loop, _with_roles(program, loop, depth, roles, turns, target)))
    if turns > 1:
        raise _refuse("pipeline.turns", f"turns={turns} requires roles=: only consumer warpgroups can ping-pong",
                      loop, hint="roles={'load': 40, 'compute': 232}")  # fmt: skip
    if target.kind == "cpu":
        raise _refuse("pipeline.cpu", "CPUs run the work-items of a group in order: copies cannot overlap compute",
                      loop, hint="s.prefetch(…), which asks for cache lines ahead of time")  # fmt: skip
    if async_ and not target.has("sm_80"):
        raise _refuse("pipeline.async", f"{target.text} has no asynchronous copies", loop,
                      hint="async_=False, or target='cuda -arch=sm_80'")  # fmt: skip
    if depth not in (legal := ASYNC_DEPTHS if async_ else DEPTHS):
        many = "copies pass through registers, which hold one tile" if not async_ else "a pipeline has 2 to 8 stages"
        hint = "async_=True" if depth in ASYNC_DEPTHS and target.has("sm_80") else f"depth={legal[0]}"
        raise _refuse("pipeline.depth", f"depth={depth}: {many}", loop, hint=hint)
    if Skipped.of(loop).unless:
        raise _refuse("pipeline.parts", f"{loop.var.name} skips iterations, for which copies would run ahead", loop,
                      hint="s.pipeline without s.skip")  # fmt: skip
    if Partition.of(loop).at or Versions.of(loop).where:
        raise _refuse("pipeline.parts", f"the body of {loop.var.name} is written more than once already", loop,
                      hint="an exact split, or specialize a loop inside")  # fmt: skip
    if not _has_copies(program, loop, through=not async_):
        raise _refuse(
            "pipeline.no-copies",
            f"no iteration of {loop.var.name} begins with copies into shared memory that could be made ahead of time",
            loop,
            hint=f"s.stage_in(tensor, at={loop.var.name!r}, scope='shared') first, of what the loop does not write",
        )
    return Rewrite(swap(program, loop, loop.marked(Pipelined(depth, async_))))


def _with_roles(program: Program, loop: Loop, depth: int, roles: Mapping[str, int], turns: int, target: Target) -> Loop:
    """``loop`` marked with register counts per role and the number of ping-pong consumer sets; raises ScheduleError
    where warpgroups cannot have roles.
    """
    above = index_of(program).above(loop)
    groups = [as_int(x.extent) * turns for x in above if x.kind is Kind.WARPGROUP]
    legal = "roles={'load': 40, 'compute': 232}"
    if not target.has("sm_90a"):
        raise _refuse("pipeline.roles", f"{target.text} has no warpgroups that give registers to each other", loop,
                      hint="async_=True, or target='cuda -arch=sm_90a'")  # fmt: skip
    if not groups:
        raise _refuse("pipeline.roles", f"roles are of warpgroups, and no loop around {loop.var.name} is bound to them",
                      loop, hint="s.bind(…, 'warpgroup')")  # fmt: skip
    around = [x for x in above if x.kind is Kind.SERIAL]
    several = [x for x in around if as_int(x.extent) > 1]
    if turns > 1 and (not around or len(several) > 1):
        names = " and ".join(x.var.name for x in several)
        raise _refuse("pipeline.turns", f"turns={turns}: they are of the iterations of one loop over tiles around "
                      f"{loop.var.name}, and there is {names or 'none'}", loop,
                      hint="_, tile = s.split(tile, [None, 132]), then s.bind(tile, 'block.x')")  # fmt: skip
    if turns > 1 and several:  # a single tile is the first set's alone
        _tiles_are_own(program, several[0], turns)
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
        raise _refuse("pipeline.depth", f"depth={depth}: a pipeline has 2 to 8 stages", loop, hint="depth=4")
    marked = loop.marked(Pipelined(depth, True, (roles["load"], roles["compute"]), turns))
    if not _has_copies(program, loop, tiles=True):
        raise _refuse("pipeline.no-copies", f"no iteration of {loop.var.name} begins with copies of whole tiles", loop,
                      hint=f"s.stage_in(tensor, at={loop.var.name!r}, scope='shared', via='tma') first")  # fmt: skip
    return marked


def _tiles_are_own(program: Program, around: Loop, turns: int) -> None:
    """Raise ScheduleError ``pipeline.turns`` if iterations of ``around`` reduce together, or stages outside it read
    their registers or shared memory.

    turns: number of sets of warpgroups, for the message
    """
    inside = find(around, Stage)
    made = {b for s in inside for b in writes(s.body) if b.scope is not Scope.GLOBAL}
    wanted = [s.name for s in find(program.body, Stage) if s not in inside and made & set(reads(s))]
    summed = [s.name for s, _ in has_axis(around, Axis.REDUCE) + has_axis(around, Axis.ORDERED)]
    if wanted or summed:
        message = f"turns={turns}: iterations of {around.var.name} are of different warpgroups, and " + (
            f"{summed[0]} adds up over them" if summed else f"{wanted[0]} wants what all of them leave in registers"
        )
        raise _refuse("pipeline.turns", message, around, hint="a loop over tiles of the result around the reduction")


@mark("pipeline")
def unfit(before: Program, after: Program, primitive: str) -> Problem | None:
    """Problem if ``primitive`` left a pipelined loop without copies to prefetch, else None."""
    kept = {id(kernel) for kernel in nests(after)}
    changed = [kernel for kernel in nests(before) if id(kernel) not in kept]  # no other one has shared memory of theirs
    if not changed:
        return None
    left = {x.var.name: x for x in find(after.body, Loop) if Pipelined.of(x).depth > 1}
    for loop in (x for kernel in changed for x in find(kernel, Loop) if Pipelined.of(x).depth > 1):
        now = left[loop.var.name]
        pipe = Pipelined.of(now)
        if not _has_copies(after, now, tiles=bool(pipe.roles), through=not pipe.later):
            return Problem(
                "pipeline.lost",
                f"{primitive} takes away the copies that {loop.var.name} makes ahead",
                at=caret(loop),
                hint=f"{primitive} before pipeline",
            )
    return None


def _has_copies(program: Program, loop: Loop, tiles: bool = False, through: bool = False) -> bool:
    """True if an iteration begins with copies into shared memory that can be started iterations ahead.

    tiles, through: as for ``copies_ahead``
    """
    mine = dict.fromkeys(find(loop.body, Stage))
    inside = {b for s in mine for b in touched(s).writes if b.scope is Scope.SHARED}
    for s in find(program.body, Stage) if inside else ():
        if s not in mine:
            inside.difference_update(touched(s).loads, touched(s).writes)
    return bool(copies_ahead(list(statements(loop.body)), inside, tiles, through))


def copies_ahead(body: Sequence[Stmt], shared: set[Buffer], tiles: bool = False, through: bool = False) -> list[Stmt]:
    """Statements of an iteration that only fill ``shared`` buffers from memory that no iteration writes.

    tiles: select whole-tile (TMA) copies, else copies by threads
    through: include copies that load into registers first and compute from there
    """
    fits = _only_tiles if tiles else _only_moves
    written = {b for s in body for b in writes(s)}
    made = []
    for s in body:
        held = set(registers_of(s, body)) if through else set()
        filled, read = set(writes(s)) - held, set(reads(s)) - held
        if filled and filled <= shared and not read & written and fits(s, held):
            made.append(s)
    while True:  # what shares a buffer with another statement stays with it
        others = {b for s in body if s not in made for b in writes(s)}
        left = [s for s in made if not set(writes(s)) & others]
        if len(left) == len(made):
            return made
        made = left


def registers_of(s: Stmt, body: Sequence[Stmt]) -> list[Buffer]:
    """Register buffers that ``s`` writes and no other statement of ``body`` accesses."""
    others = {b for x in body if x is not s for b in (*reads(x), *writes(x))}
    return [b for b in dict.fromkeys(writes(s)) if b.scope is Scope.REGISTER and b not in others]


def loaded_first(s: Stmt, held: set[Buffer]) -> list[Buffer]:
    """Registers of ``held`` into which ``s`` loads its input from memory."""
    return [b for x in find(s, Stage) if _from_memory(x, held) for b in writes(x.body) if b in held]


def _from_memory(s: Stage, held: set[Buffer]) -> bool:
    """True if ``s`` reads anything but registers ``held`` and constants."""
    return any(b not in held and b.data is None for b in reads(s))


def _only_moves(s: Stmt, held: set[Buffer]) -> bool:
    """True if each stage stores one value in loops of known extent, loading from memory only into ``held`` registers if
    there are any.
    """
    if any(not isinstance(x.extent, Const) or as_int(x.extent) <= 0 for x in find(s, Loop)):
        return False
    first, stages = set(loaded_first(s, held)), find(s, Stage)
    moves = [x for x in stages if not held or set(writes(x.body)) & first]
    plain = all(_stores(x.body) and x.init is None for x in moves) and all(x.intrin is None for x in stages)
    return plain and (not held or all(set(writes(x.body)) & first or not _from_memory(x, held) for x in stages))


def _only_tiles(s: Stmt, _: set[Buffer]) -> bool:
    """True if each stage is a whole-tile copy."""
    return all(x.intrin is not None and x.intrin.maps and not x.intrin.stores for x in find(s, Stage))


def _stores(body: Stmt) -> bool:
    """True if ``body`` is one store, possibly under conditions."""
    return isinstance(body, Store) or (isinstance(body, If) and _stores(body.then))


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
