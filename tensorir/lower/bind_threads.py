"""Pass: hoist the block and thread loops of each kernel to its top, one loop per hardware axis."""

from __future__ import annotations

from tensorir.arith.conditions import conjunction
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.marks import Versions
from tensorir.ir.tree import BLOCKS, THREADS, If, Kind, Loop, Program, Scope, Stage, Stmt, Var
from tensorir.ir.visit import Rewriter, find, reads, substitute, uses, writes
from tensorir.lower.form import each_nest, fail, lowering, rewrap
from tensorir.target import Target

AXES = (*reversed(BLOCKS), Kind.CLUSTER, *reversed(THREADS))
_AS_THREADS = {Kind.WARP_X: Kind.THREAD_Y, Kind.WARP_Y: Kind.THREAD_Z, Kind.WARPGROUP: Kind.THREAD_Y}


@lowering
def bind_threads(program: Program, target: Target) -> Program:
    """Hoist block and thread loops to the top of each kernel; stages that do not depend on a thread axis run in its
    first thread only.

    gives: each kernel is block loops, thread loops, then a tree without bound loops; a stage that writes shared or
           global memory and does not move with some axis is run by that axis' first thread only. Warps are the y and z
           of their threads, warpgroups the y, x is the lane; what lanes share out is ``spread_warps``' business

    Raises LoweringError ``lower.one-extent-per-axis`` for two loops of one kernel on one axis with different extents.
    """
    return each_nest(program, lambda nest: _kernel(nest, target))


def _kernel(nest: Stmt, target: Target) -> Stmt:
    loops: dict[Kind, Loop] = {}
    renamed: dict[Var, Var] = {}
    for x in find(nest, Loop):
        if x.kind.level == "sequential":
            continue
        first = loops.setdefault(x.kind, x)
        if as_int(first.extent) != as_int(x.extent):
            raise fail(
                "lower.one-extent-per-axis", f"{x.kind.value} has extents {as_int(first.extent)} and {as_int(x.extent)}"
            )
        renamed[x.var] = first.var
    body = substitute(_Unbind()(nest), renamed)
    lanes = max((k.lanes for k in loops), default=1)
    if lanes > 1:
        loops = {_AS_THREADS.get(k, k): x.replace(kind=_AS_THREADS.get(k, k)) for k, x in loops.items()}
        loops[Kind.THREAD_X] = Loop(Var("lane", "index"), as_expr(lanes), body, Kind.THREAD_X)
    axes = [loops[k].marked(Versions()) for k in AXES if k in loops]  # the body has them in a loop of its own
    return rewrap(axes, _Once(axes, lanes > 1)(body))


class _Unbind(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        n = self.children(n)
        if n.kind.level == "sequential":
            return n
        versions = Versions.of(n)
        return Loop(Var("once", "index"), as_expr(1), n.body, marks=(versions,)) if versions.where else n.body


class _Once(Rewriter):
    """Restrict a stage that writes shared or global memory to the first thread of each axis that it does not
    depend on.
    """

    def __init__(self, axes: list[Loop], warps: bool) -> None:
        self.axes, self.warps = axes, warps
        self.cooperative = False

    def on_Loop(self, n: Loop) -> Loop:
        before, self.cooperative = self.cooperative, self.cooperative or n.kind is Kind.COOPERATIVE
        n = self.children(n)
        self.cooperative = before
        return n

    def on_Stage(self, n: Stage) -> Stmt:
        scopes = {b.scope for b in writes(n.body)}
        if scopes <= {Scope.REGISTER, Scope.WARP}:
            return n
        guards = []
        by_warp = self.warps and any(b.scope is Scope.WARP for b in reads(n))
        for x in self.axes:
            thread = x.kind.level == "thread"
            if by_warp and x.kind is Kind.THREAD_X:
                continue
            if as_int(x.extent) == 1 or (self.cooperative and thread) or (not thread and Scope.GLOBAL not in scopes):
                continue
            if not any(uses(b, {x.var}) for b in n.binds):
                guards.append(binary("<", x.var, const(1)))
        return If(conjunction(guards), n) if guards else n
