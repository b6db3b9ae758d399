"""A cell of shared memory that one loop builds up is in a register meanwhile.

Compilers for GPUs do not do this where the loop reads other cells of shared memory: they might be the same.
"""

from __future__ import annotations

from tensorir.arith.affine import same
from tensorir.ir.build import const
from tensorir.ir.tree import Alloc, Buffer, Const, Expr, If, Kind, Load, Loop, Program, Scope, Seq, Stmt, Store, Var
from tensorir.ir.visit import Rewriter, find, uses
from tensorir.lower.form import lowering
from tensorir.target import Target


@lowering
def hold_cells(program: Program, target: Target) -> Program:
    """needs: flat indices, no stages
    gives: a nest of loops that does nothing but update one shared cell reads it once and writes it once
    """
    return program.replace(body=_Hold()(program.body)) if target.kind == "gpu" else program


class _Hold(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        found = _updates(n)
        if found is None:
            return self.children(n)
        b, index = found.buffer, found.index
        held = Buffer(f"{b.name}_held", (const(1),), b.dtype, Scope.REGISTER)
        place = (const(0),)
        loop = _Swap(b, held)(n)
        parts = (Store(held, place, Load(b, index, b.dtype)), loop, Store(b, index, Load(held, place, b.dtype)))
        return Alloc(held, Seq(parts))


def _updates(loop: Loop) -> Store | None:
    """The only store in a nest of loops, to one cell of shared memory that it reads; None where there is more."""
    variables: set[Var] = set()
    inside: Stmt = loop
    conditions: list[Expr] = []
    once = True
    while isinstance(inside, Loop | If):
        if isinstance(inside, Loop):
            if inside.kind not in (Kind.SERIAL, Kind.UNROLL):
                return None
            variables.add(inside.var)
            once &= isinstance(inside.extent, Const) and inside.extent.value == 1
            conditions.append(inside.extent)
        else:
            conditions.append(inside.cond)
        inside = inside.body if isinstance(inside, Loop) else inside.then
    if once or not isinstance(inside, Store) or inside.buffer.scope is not Scope.SHARED or inside.adds or inside.later:
        return None
    if any(uses(i, variables) for i in inside.index) or any(find(i, Load) for i in inside.index):
        return None
    read = [x for e in (inside.value, *conditions) for x in find(e, Load) if x.buffer is inside.buffer]
    value = find(inside.value, Load)
    alike = all(x in value and len(x.index) == 1 and same(x.index[0], inside.index[0]) for x in read)
    return inside if read and alike else None


class _Swap(Rewriter):
    """The same statements with one cell in another array."""

    def __init__(self, b: Buffer, held: Buffer) -> None:
        self.b, self.held = b, held

    def on_Load(self, n: Load) -> Expr:
        return Load(self.held, (const(0),), n.dtype) if n.buffer is self.b else self.children(n)

    def on_Store(self, n: Store) -> Stmt:
        n = self.children(n)
        return Store(self.held, (const(0),), n.value) if n.buffer is self.b else n
