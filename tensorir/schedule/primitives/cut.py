"""cut: split one nest's iterations into two nests, each its own kernel."""

from __future__ import annotations

from typing import Any

from tensorir.arith.affine import Arith
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.ir.build import as_expr
from tensorir.ir.marks import Partition, Skipped, Versions
from tensorir.ir.tree import Axis, Kind, Load, Loop, Program, Stage, Var
from tensorir.ir.visit import Rewriter, find, sequence, substitute, writes
from tensorir.schedule.analysis import caret, constant_extent, driven_by, index_of, need_constant, unique
from tensorir.schedule.history import H, Name, Scheduled
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, swap


@primitive("Loops")
def cut(self: Scheduled[H], axis: Name, at: int) -> H:
    """Make two nests of one at the root: iterations of ``axis`` below ``at``, and in a stage ``<stage>.tail`` the
    others, which is returned. Each becomes a separate kernel with its own schedule.

    at: a number of iterations from the first one on; a negative one counts from the last one back

    Conditions that one of the nests decides are gone there, and with them what it does not read. Loops are still
    serial: index-set splitting, of a stage that is at the root and shares its loops with no other.
    """
    loop, point = self._loop(axis), need_int("at", at, error=ScheduleError)
    (name,) = self._history._apply("cut", (loop, point), {}, lambda p: _cut(p, loop, point))
    return self._history._handle(name)


def _cut(program: Program, loop: Loop, at: int) -> Rewrite:
    index = index_of(program)
    extent = constant_extent(loop, "cut.symbolic-extent")
    root = index.root_of(loop)
    stages = find(root, Stage)
    stage = stages[0]
    loops = index.above(stage)
    if len(stages) > 1 or any(x.body is not y for x, y in zip(loops, [*loops[1:], stage], strict=True)):
        names = ", ".join(s.name for s in stages)
        raise _refuse("cut.own-nest", f"{names} are in the nest of {loop.var.name}", loop, "cut before compute_at")
    own_bodies = [x for x in loops for m in x.marks if isinstance(m, Partition | Versions | Skipped)]
    if done := [x for x in loops if x.kind is not Kind.SERIAL or x in own_bodies]:
        message = f"{done[0].var.name} has a meaning already, which the other nest would not have"
        raise _refuse("cut.serial", message, loop, "cut first, then schedule both nests")
    own = {x.buffer for x in find(stage.body, Load)} & set(writes(stage.body))
    if own or any(it.axis is not Axis.SPATIAL for _, it in driven_by(loop)):
        message = f"iterations of {loop.var.name} depend on what others have made"
        raise _refuse("cut.spatial", message, loop, "a loop over the result's own dimensions")
    if at < 0:  # from an end that must be known
        need_constant(stage)
    at, asked = at + extent if at < 0 else at, at
    if not 0 < at < extent:
        raise _refuse("cut.inside", f"{loop.var.name} runs over {extent} iterations: {asked} leaves one nest empty",
                      loop, f"1 to {extent - 1}")  # fmt: skip
    name = unique(f"{stage.name}.tail", index.names())
    fresh: dict[Var, Any] = {x.var: Var(f"{name}.{x.var.name.removeprefix(f'{stage.name}.')}", "index") for x in loops}
    ranges = {x.var: (0.0, constant_extent(x, "cut.symbolic-extent") - 1.0) for x in loops}
    low = nest([x.replace(extent=as_expr(at)) if x is loop else x for x in loops],
               _known(stage, Arith({**ranges, loop.var: (0, at - 1)})))  # fmt: skip
    high = _known(stage, Arith({**ranges, loop.var: (at, extent - 1)})).replace(name=name)
    high = substitute(high, {**fresh, loop.var: fresh[loop.var] + at})
    tail = [x.replace(var=fresh[x.var], extent=as_expr(extent - at) if x is loop else x.extent) for x in loops]
    return Rewrite(swap(program, root, sequence([low, nest(tail, high)])), (name,))


def _known(stage: Stage, arith: Arith) -> Stage:
    """The stage without guards and selects that its loop ranges decide."""
    ranges = {it.var: arith.range(bind) for it, bind in zip(stage.iters, stage.binds, strict=True)}
    simplify = Arith(ranges).simplify
    guards = tuple(g for g in stage.guards if not arith.proves(g))
    return stage.replace(body=_Decide(simplify)(stage.body), guards=guards)


class _Decide(Rewriter):
    def __init__(self, simplify: Any) -> None:
        self.simplify = simplify

    def on_Select(self, n: Any) -> Any:
        return self.simplify(n)


def _refuse(code: str, message: str, loop: Loop, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
