"""Pass: keep a shared-memory element in a register while a loop accumulates into it.

GPU compilers do not, if the loop reads other shared-memory elements, which they cannot prove distinct. Threads that
update no element neither load nor store one: it may belong to another thread, or not exist.
"""

from __future__ import annotations

from typing import NamedTuple

from tensorir.arith.affine import same
from tensorir.arith.conditions import conjunction, conjuncts
from tensorir.ir.build import const
from tensorir.ir.structure import among
from tensorir.ir.tree import Alloc, Buffer, Const, Expr, If, Kind, Load, Loop, Program, Scope, Seq, Stmt, Store, Var
from tensorir.ir.visit import Rewriter, find, has, uses
from tensorir.lower.form import lowering
from tensorir.target import Target


@lowering
def hold_cells(program: Program, target: Target) -> Program:
    """Keep a shared-memory element in a register during a loop that only updates it (GPU).

    needs: flat indices, no stages
    gives: a nest around such a loop reads the element once and writes it once;  registers filled by the nest are its
           own
    """
    return program.replace(body=_Hold()(program.body)) if target.kind == "gpu" else program


class _Hold(Rewriter):
    def __init__(self) -> None:
        self.uniform: set[Var] = set()

    def on_Loop(self, n: Loop) -> Stmt:
        found = _updates(n)
        where = None if found is None else self._where(found)
        if found is None or where is None:
            if n.kind.level != "thread":
                self.uniform.add(n.var)
            return self.children(n)
        b, index = found.store.buffer, found.store.index
        held = Buffer(f"{b.name}_held", (const(1),), b.dtype, Scope.REGISTER)
        place = (const(0),)
        loop = _Swap(b, held)(n)
        parts = (Store(held, place, Load(b, index, b.dtype)), loop, Store(b, index, Load(held, place, b.dtype)))
        body = Alloc(held, Seq(parts))
        return If(conjunction(where), body) if where else body

    def _where(self, found: _Update) -> list[Expr] | None:
        """Conditions under which a thread updates the element at all; None if they change between iterations."""
        where, changing = list[Expr](), list[Expr]()
        for cond in found.conds:
            (changing if uses(cond, found.variables) else where).append(cond)
        known = self.uniform | found.variables
        alike = all(not has(c, Load) and set(find(c, Var)) <= known for c in changing)
        inside = {found.store.buffer, *found.own}
        told = all(x.buffer not in inside for c in where for x in find(c, Load))
        return where if alike and told else None


class _Update(NamedTuple):
    """A repeated store to one shared element: the store, its loops, their conditions, registers filled for it."""

    store: Store
    variables: set[Var]
    conds: tuple[Expr, ...]
    own: set[Buffer]


def _updates(loop: Loop) -> _Update | None:
    """The only store of a loop nest, register temporaries aside, if it updates shared memory; None if there is more."""
    variables: set[Var] = set()
    own: set[Buffer] = set()
    found: _Update | None = None
    once = True
    inside: list[tuple[Stmt, tuple[Expr, ...]]] = [(loop, ())]
    while inside:
        s, conds = inside.pop()
        if isinstance(s, Loop) and s.kind in (Kind.SERIAL, Kind.UNROLL):
            variables.add(s.var)
            once &= isinstance(s.extent, Const) and s.extent.value == 1
            inside.append((s.body, conds))
        elif isinstance(s, If):
            inside.append((s.then, (*conds, *conjuncts(s.cond))))
        elif isinstance(s, Seq):
            inside.extend((x, conds) for x in s.stmts)
        elif isinstance(s, Alloc) and s.buffer.scope is Scope.REGISTER:
            own.add(s.buffer)
            inside.append((s.body, conds))
        elif not isinstance(s, Store) or s.adds or s.later:
            return None
        elif s.buffer not in own:
            if found is not None or s.buffer.scope is not Scope.SHARED:
                return None
            found = _Update(s, variables, conds, own)
    return found if found and not once and _one_cell(loop, found) else None


def _one_cell(loop: Loop, found: _Update) -> bool:
    """True if all iterations update the same element and read no other one of its array."""
    index, b = found.store.index, found.store.buffer
    if any(uses(i, found.variables) or has(i, Load) for i in index):
        return False
    read, value = [x for x in find(loop, Load) if x.buffer is b], find(found.store.value, Load)
    return bool(read) and all(among(x, value) and len(x.index) == 1 and same(x.index[0], index[0]) for x in read)


class _Swap(Rewriter):
    """Rewriter: replace a shared element by a register."""

    def __init__(self, b: Buffer, held: Buffer) -> None:
        self.b, self.held = b, held

    def on_Load(self, n: Load) -> Expr:
        return Load(self.held, (const(0),), n.dtype) if n.buffer is self.b else self.children(n)

    def on_Store(self, n: Store) -> Stmt:
        n = self.children(n)
        return Store(self.held, (const(0),), n.value) if n.buffer is self.b else n
