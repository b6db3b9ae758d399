"""Tensorized nests become instruction calls where the target has the instruction, and plain loops elsewhere."""

from __future__ import annotations

from tensorir.arith.conditions import conjunction
from tensorir.intrin.hopper import tile_copy
from tensorir.intrin.match import NoMatch, match
from tensorir.ir.build import const
from tensorir.ir.text import show
from tensorir.ir.tree import Expr, If, IntrinCall, Kind, Loop, Program, Scope, Stage, Stmt, Var
from tensorir.ir.visit import Rewriter, find, substitute, uses
from tensorir.lower.form import each_nest, fail, lowering
from tensorir.schedule.rewrite import nest
from tensorir.target import Target

LAST_HINT = "call tensorize last"


@lowering
def form_instructions(program: Program, target: Target) -> Program:
    """Replace each tensorized nest by an instruction call, or by plain loops if the target lacks the instruction.

    needs: inits split off, since an instruction holds nothing else; guards as conditions, so that what is left of them
           guards the whole call
    gives: no loop is INTRIN and no stage names an instruction

    Raises LoweringError ``lower.intrinsic`` for a nest that no longer matches, a cut tile, an operand in other memory.
    """
    return each_nest(program, _Form(target))


class _Form(Rewriter):
    def __init__(self, target: Target) -> None:
        self.target = target
        self.above: list[Loop] = []

    def on_Loop(self, n: Loop) -> Stmt:
        if n.kind is Kind.INTRIN:
            return self._call(n)
        self.above.append(n)
        n = self.children(n)
        self.above.pop()
        return n

    def _call(self, n: Loop) -> Stmt:
        stages = find(n, Stage)
        if len(stages) == 1 and stages[0].intrin is None:  # guards have told that there is no whole tile to work on
            return _Plain()(n)  # type: ignore[no-any-return]
        if len(stages) != 1 or stages[0].init is not None:
            raise fail("lower.intrinsic", f"{n.var.name} no longer holds just the stage of its instruction", LAST_HINT)
        stage = stages[0]
        intrin = stage.intrin
        if intrin.text_for(self.target) is None or intrin.lacks(self.target):
            return _Plain()(n)  # type: ignore[no-any-return]
        # binding to threads may have put conditions between the loops: they are the same for the whole tile
        conds = [x.cond for x in find(n, If)]
        loops = find(n, Loop)
        if (cut := next((c for c in conds if uses(c, {x.var for x in loops})), None)) is not None:
            message = f"the tail {show(cut)} of {stage.name} would cut through {intrin.name}, which runs whole"
            raise fail("lower.intrinsic", message, "exact splits, or operands staged so that the rest of a tile is 0")
        while isinstance(stage.body, If):
            stage = stage.replace(body=stage.body.then)
        try:
            bare = nest(loops, stage)
            assert isinstance(bare, Loop)
            regions = match(self.above, bare, stage, intrin)
        except NoMatch as e:
            raise fail("lower.intrinsic", f"{stage.name} is not {intrin.name} any more: {e}", LAST_HINT) from None
        for tile, region in zip(intrin.operands, regions, strict=True):
            in_shared = tile in intrin.addressed or tile.name in intrin.descriptors
            wanted = Scope.WARP if tile in intrin.held else Scope.SHARED if in_shared else None
            if wanted is not None and region.buffer.scope is not wanted:
                where = f"{region.buffer.name} is in {region.buffer.scope.value} memory"
                raise fail(
                    "lower.intrinsic", f"{intrin.name} has {tile.name} in that of a {wanted.value}, {where}", LAST_HINT
                )
        start: dict[Var, Expr] = {x.var: const(0) for x in loops}
        binds = tuple(substitute(b, start) for b in stage.binds)
        if any(r.pixels is not None for r in regions):
            intrin = tile_copy(regions[0].buffer.dtype, intrin.operands[0].dims, pixels=True)
        call = stage.replace(binds=binds, body=IntrinCall(intrin, regions), intrin=None)
        return If(conjunction(conds), call) if conds else call


class _Plain(Rewriter):
    """Rewriter: a tensorized nest back to serial loops without an instruction."""

    def on_Loop(self, n: Loop) -> Loop:
        n = self.children(n)
        return n.replace(kind=Kind.SERIAL) if n.kind is Kind.INTRIN else n

    def on_Stage(self, n: Stage) -> Stage:
        return n.replace(intrin=None)
