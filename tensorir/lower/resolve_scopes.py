"""Pass: give each intermediate buffer of scope "auto" the narrowest memory that all its users share."""

from __future__ import annotations

from tensorir.ir.tree import WARPS, Buffer, Kind, Loop, Program, Scope, Stage, Stmt
from tensorir.ir.visit import find, reads, swap_buffers, writes
from tensorir.lower.form import fail, lowering
from tensorir.schedule.analysis import Index, index_of, statements
from tensorir.target import Target


@lowering
def resolve_scopes(program: Program, target: Target) -> Program:
    """Replace scope "auto" of buffers: global between kernels, shared between threads, register within one.

    gives: no buffer is AUTO; no SHARED, WARP or REGISTER buffer is used by two kernels; where iterations go to warps,
           what is private to an iteration is WARP, unless all threads share the iterations out: each has its own then

    Raises LoweringError: ``lower.grid-wide`` for a buffer shared by the blocks of one kernel, ``lower.fragment`` for
    one of a warp where no loop is bound to warps, ``lower.scope-across-kernels``.
    """
    index = index_of(program)
    users: dict[Buffer, list[Stage]] = {}
    for stage in find(program.body, Stage):
        for b in {*writes(stage.body), *reads(stage), *(writes(stage.init) if stage.init else ())}:
            users.setdefault(b, []).append(stage)
    by_warps = {s for s in statements(program.body) if any(x.kind in WARPS for x in find(s, Loop))}
    swap: dict[Buffer, Buffer] = {}
    for b, stages in users.items():
        if b in program.params or b.scope is Scope.CONSTANT:
            continue
        roots = {id(index.root_of(s)): index.root_of(s) for s in stages}
        several = len(roots) > 1
        scope: Scope = b.scope
        if scope is Scope.AUTO:
            scope = Scope.GLOBAL if several else _narrowest(index, b, stages)
        if scope in (Scope.REGISTER, Scope.WARP):
            warps = any(r in by_warps for r in roots.values())
            if scope is Scope.WARP and not warps:
                raise fail("lower.fragment", f"{b.name} is in the registers of a warp, and no loop is bound to one",
                           "bind a loop around it to warp.x, or set_scope(…, 'register')")  # fmt: skip
            scope = Scope.WARP if warps and not _of_a_thread(index, stages) else Scope.REGISTER
        if scope is not b.scope:
            swap[b] = b.replace(scope=scope)
        if several and scope in (Scope.SHARED, Scope.WARP, Scope.REGISTER):
            raise fail("lower.scope-across-kernels", f"{b.name} is in {b.scope.value} memory but two kernels use it",
                       "compute_at its producer into the reader's loops, or set_scope(…, 'global')")  # fmt: skip
    return program.replace(body=swap_buffers(program.body, swap))


def _of_a_thread(index: Index, stages: list[Stage]) -> bool:
    """True if all users are in one loop whose iterations run in single threads."""
    around = ({x for x in index.above(s) if x.kind is Kind.COOPERATIVE} for s in stages)
    return bool(set.intersection(*around))


def _narrowest(index: Index, b: Buffer, stages: list[Stage]) -> Scope:
    paths = [index.paths[s] for s in stages]
    common = 0
    while all(len(p) > common for p in paths) and len({id(p[common]) for p in paths}) == 1:
        common += 1
    below: list[Stmt] = [n for p in paths for n in p[common:]]
    levels = {n.kind.level for n in below if isinstance(n, Loop)}
    if "block" in levels:
        raise fail("lower.grid-wide", f"{b.name} is made and read by different blocks of one kernel",
                   "place the producer inside the block loops, or leave it in a nest of its own")  # fmt: skip
    return Scope.SHARED if "thread" in levels else Scope.REGISTER
