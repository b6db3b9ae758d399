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
    gives: a nest of loops that does nothing but update one shared cell reads it once and writes it once;  registers
           that it fills for that on its way are its own
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
    """The only store in a nest of loops, but for registers that it fills for itself, to one cell of shared memory that
    it reads; None where there is more.
    """
    variables: set[Var] = set()
    own: set[Buffer] = set()
    found: Store | None = None
    once = True
    inside: list[Stmt] = [loop]
    while inside:
        s = inside.pop()
        if isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.UNROLL):
            variables.add(s.var)
            once &= isinstance(s.extent, Const) and s.extent.value == 1
            inside.append(s.body)
        elif isinstance(s, If):
            inside.append(s.then)
        elif isinstance(s, Seq):
            inside.extend(s.stmts)
        elif isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER:
            own.add(s.buffer)
            inside.append(s.body)
        elif not isinstance(s, Store) or s.adds or s.later:
            return None
        elif s.buffer not in own:
            if found is not None or s.buffer.scope is not Scope.SHARED:
                return None
            found = s
    if once or found is None:
        return None
    if any(uses(i, variables) for i in found.index) or any(find(i, Load) for i in found.index):
        return None
    cell, b = found.index[0], found.buffer
    read, value = [x for x in find(loop, Load) if x.buffer is b], find(found.value, Load)
    alike = all(x in value and len(x.index) == 1 and same(x.index[0], cell) for x in read)
    return found if read and alike else None


class _Swap(Rewriter):
    """The same statements with one cell in another array."""

    def __init__(self, b: Buffer, held: Buffer) -> None:
        self.b, self.held = b, held

    def on_Load(self, n: Load) -> Expr:
        return Load(self.held, (const(0),), n.dtype) if n.buffer is self.b else self.children(n)

    def on_Store(self, n: Store) -> Stmt:
        n = self.children(n)
        return Store(self.held, (const(0),), n.value) if n.buffer is self.b else n
