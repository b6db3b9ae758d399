"""Pass: asynchronous stores -> plain ones, unless the hardware has such a copy."""

from __future__ import annotations

from tensorir.arith.affine import same
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.ir.build import const, select
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Broadcast, Const, Expr, Load, Program, Ramp, Scope, Select, Store
from tensorir.ir.visit import Rewriter, find
from tensorir.lower.form import lowering
from tensorir.lower.moves import moves
from tensorir.target import Target

COPY_BYTES = (4, 8, 16)
"""Sizes in bytes that an asynchronous copy can have (PTX ISA, cp.async)."""


@lowering
def settle_copies(program: Program, target: Target) -> Program:
    """Make asynchronous stores plain where no instruction copies so: ``S[i] = 2*X[i]  # later   ->   S[i] = 2*X[i]``.

    needs: vectors
    gives: each asynchronous store copies from global to shared memory, 4, 8 or 16 bytes at once, or stores 0
    """
    later = target.family == "cuda" and find(program.body, Store, lambda x: x.later)
    return program.replace(body=_Settle()(program.body)) if later else program


class _Settle(Rewriter):
    def on_Store(self, n: Store) -> Store:
        if not n.later:
            return n
        size = DTYPES[n.buffer.dtype].bits // 8 * (n.index[0].lanes if isinstance(n.index[0], Ramp) else 1)
        source = n.value.a if isinstance(n.value, Select) else n.value
        near = n.buffer.scope is Scope.SHARED and isinstance(source, Load) and source.buffer.scope is Scope.GLOBAL
        blank = not isinstance(n.value, Select) or _is_zero(n.value.b)
        able = moves(n) and near and blank and size in COPY_BYTES
        if able and isinstance(n.value, Select) and isinstance(source, Load) and find(source, Load)[1:]:
            n = n.replace(value=n.value.replace(a=_Addressed(n.value.cond, source)(source)))
        return n if able else n.replace(later=False)


def _is_zero(e: Expr) -> bool:
    value = e.value if isinstance(e, Broadcast) else e
    return isinstance(value, Const) and value.value == 0


class _Addressed(Rewriter):
    """Rewriter for a conditional copy whose address is always computed: loads inside the address are guarded."""

    def __init__(self, cond: Expr, source: Load) -> None:
        self.cond, self.source = cond, source

    def on_Load(self, n: Load) -> Expr:
        if n is self.source:
            return self.children(n)
        guards = [c for c in conjuncts(self.cond) if not any(same(x, n) for x in find(c, Load))]
        return select(conjunction(guards), n, const(0, n.dtype))
