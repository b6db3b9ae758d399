"""Pass: the first wgmma of a sum overwrites its accumulators, so that no thread zeroes them."""

from __future__ import annotations

import math

from tensorir.ir.build import as_int, binary, const
from tensorir.ir.tree import Buffer, Const, Expr, If, IntrinCall, Loop, Program, Scope, Seq, Stage, Stmt, Store
from tensorir.ir.visit import Rewriter, find, has, reads, sequence, uses, writes
from tensorir.lower.form import each_nest, lowering
from tensorir.target import Target


@lowering
def start_products(program: Program, target: Target) -> Program:
    """Let the first wgmma of a sum overwrite its accumulators instead of adding to zeros.

    needs: instructions are calls, fragments are distributed to lanes
    gives: accumulators of ``wgmma`` are set to 0 by their first product (its operand scale-d, PTX ISA)
    """
    return each_nest(program, _Start())


class _Start(Rewriter):
    def on_Seq(self, n: Seq) -> Stmt:
        out: list[Stmt] = []
        for s in n.stmts:
            done = self(s)
            begun = _begun(out[-1], done) if out else None
            if begun is None:
                out.append(done)
            else:
                out[-1] = begun
        return sequence(out)


def _begun(start: Stmt, sums: Stmt) -> Stmt | None:
    """Merge a statement that only zeroes accumulators into the products that follow; None if it does more."""
    touching = [c for c in find(sums, IntrinCall) if c.intrin.later]
    held = {b for c in touching for b in writes(c)}
    cleared = next((b for b in held if _clears(start, b, touching[0].intrin.lanes)), None)
    if cleared is None or find(sums, If, lambda x: cleared in writes(x)):
        return None
    others = (s for s in find(sums, Stage) if not isinstance(s.body, IntrinCall) or not s.body.intrin.later)
    if any(cleared in (*reads(s), *writes(s)) for s in others):
        return None
    return _Adds(cleared)(sums)  # type: ignore[no-any-return]


def _clears(s: Stmt, b: Buffer, lanes: int) -> bool:
    """True if ``s`` does nothing but store 0 in every element of ``b``; ``lanes``: lanes with separate copies of it"""
    stages = find(s, Stage)
    if len(stages) != 1 or has(s, If) or b.scope is not Scope.WARP or writes(s) != [b]:
        return False
    body, loops = stages[0].body, find(s, Loop)
    if not isinstance(body, Store) or not isinstance(body.value, Const) or body.value.value != 0:
        return False
    if not all(isinstance(x.extent, Const) for x in loops):
        return False
    return math.prod(as_int(x.extent) for x in loops) * lanes == math.prod(b.dims)


class _Adds(Rewriter):
    """Rewriter: products into ``buffer`` overwrite it in the first iteration of all their reduction loops, and add
    later.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer, self.around = buffer, list[Loop]()

    def on_Loop(self, n: Loop) -> Stmt:
        self.around.append(n)
        done = self.children(n)
        self.around.pop()
        return done

    def on_Stage(self, n: Stage) -> Stage:
        return n.replace(body=self(n.body)) if isinstance(n.body, IntrinCall) else n

    def on_IntrinCall(self, n: IntrinCall) -> IntrinCall:
        if self.buffer not in writes(n):
            return n
        (at,) = (r.first for r in n.operands if r.buffer is self.buffer)
        later: Expr = const(False, "bool")
        for x in self.around:
            once = isinstance(x.extent, Const) and as_int(x.extent) == 1
            if not once and not any(uses(i, {x.var}) for i in at):
                later = binary("or", later, binary("<", const(0), x.var))
        return n.replace(adds=(later,))
