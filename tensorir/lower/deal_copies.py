"""Distribute the iterations of cooperative copies to the threads of the block."""

from __future__ import annotations

from tensorir.arith.affine import Arith
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.tree import Expr, If, Kind, Loop, Program, Stmt, Var
from tensorir.ir.visit import Rewriter, substitute
from tensorir.lower.form import bound_loops, each_nest, loop_ranges, lowering, rewrap, thread_count
from tensorir.target import Target


@lowering
def deal_copies(program: Program, target: Target) -> Program:
    """Assign iterations of cooperative loops to threads: thread t takes t, t + threads, t + 2 * threads …, for
    coalesced loads.

    gives: no loop is COOPERATIVE
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        return rewrap(axes, _Deal(axes)(body))

    return each_nest(program, kernel)


class _Deal(Rewriter):
    def __init__(self, axes: list[Loop]) -> None:
        self.threads = thread_count(axes)
        self.ranges = loop_ranges(axes)
        self.me: Expr = const(0)
        for x in axes:  # z, y, x
            if x.kind.level == "thread":
                self.me = binary("+", binary("*", self.me, as_int(x.extent)), x.var)

    def on_Loop(self, n: Loop) -> Stmt:
        if n.kind is not Kind.COOPERATIVE:
            return self.children(n)
        loops = [n]
        while isinstance(loops[-1].body, Loop) and loops[-1].body.kind is Kind.COOPERATIVE:
            loops.append(loops[-1].body)
        if self.threads == 1:
            body = loops[-1].body
            return rewrap([x.replace(kind=Kind.SERIAL) for x in loops], body)
        total = 1
        for x in loops:
            total *= as_int(x.extent)
        rounds = -(-total // self.threads)
        turn = Var(f"{n.var.name.rsplit('.', 1)[0]}.n", "index")
        mine = binary("+", binary("*", turn, self.threads), self.me)
        arith = Arith({**self.ranges, turn: (0, rounds - 1)})
        if rounds * self.threads > total:
            arith.assume(binary("<", mine, total))
        values: dict[Var, Expr] = {}
        rest = total
        for x in loops:
            rest //= as_int(x.extent)
            part = binary("//", mine, rest)
            whole = part if x is loops[0] else binary("%", part, as_int(x.extent))
            values[x.var] = arith.simplify(whole) if as_int(x.extent) > 1 else const(0)
        body = substitute(loops[-1].body, values)
        if rounds * self.threads > total:
            body = _inside(body, binary("<", mine, total))
        return Loop(turn, as_expr(rounds), body)


def _inside(body: Stmt, cond: Expr) -> Stmt:
    """``body`` with ``cond`` as a condition around each stage, inside its loops."""
    return body.replace(body=_inside(body.body, cond)) if isinstance(body, Loop) else If(cond, body)
