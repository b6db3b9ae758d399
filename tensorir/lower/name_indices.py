"""Pass: bind repeated index subexpressions to names; the text gets shorter and shows what moves.

* A sum divided (``//``, ``%``) more than once in an innermost loop body: ``e``, computed in that body.
* Two or more block and thread terms of an address in a loop: ``<array>_at``, computed before the loop nest.
"""

from __future__ import annotations

from collections import Counter

from tensorir.arith.affine import Arith, Linear, structure
from tensorir.ir.shared import occurrences
from tensorir.ir.tree import (
    Alloc,
    Barrier,
    Binary,
    Buffer,
    Expr,
    If,
    Let,
    Load,
    Loop,
    Program,
    Ramp,
    Roles,
    Seq,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, let_all, sequence, walk
from tensorir.lower.form import bound_loops, each_nest, lowering, rewrap
from tensorir.target import Target


@lowering
def name_indices(program: Program, target: Target) -> Program:
    """Bind index subexpressions worth computing once to names (Lets).

    gives: no sum is divided by ``//`` or ``%`` twice in one innermost loop body; in loops, an address that depends on
           the thread in several terms starts from a named base
    """

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        return rewrap(axes, _hoisted(_Name()(body), _Hoist({x.var for x in axes})))

    return each_nest(program, kernel)


class _Name(Rewriter):
    def on_Loop(self, n: Loop) -> Stmt:
        if has(n.body, Loop, Barrier, Alloc) or isinstance(n.body, Let):
            return self.children(n)
        return n.replace(body=_named(n.body, n.var.name))

    def on_If(self, n: If) -> Stmt:
        return self.children(n) if has(n.then, Loop) else _named(n, "")

    def on_Seq(self, n: Seq) -> Stmt:
        return self.children(n)


def _named(body: Stmt, loop: str) -> Stmt:
    """``body`` inside Lets for sums that it divides more than once."""
    found: Counter[object] = Counter()
    first: dict[object, Expr] = {}
    divisions = find(body, Binary, lambda n: n.op in ("//", "%") and n.dtype == "index")
    written = occurrences(body, Binary.BIT) if divisions else {}
    for n in divisions:
        if not isinstance(n.a, Var) and not has(n.a, Load):  # an element may be there where its condition holds alone
            key = structure(n.a)
            found[key] += written[n]
            first.setdefault(key, n.a)
    names: dict[object, Var] = {}
    lets: list[tuple[Var, Expr]] = []
    stem = loop.rsplit(".", 1)[0]
    shared = [key for key, count in found.items() if count > 1]
    for key in sorted(shared, key=lambda k: sum(1 for _ in walk(first[k]))):  # the smaller stand inside the larger
        suffix = str(len(names)) if names else ""
        value = _Use(names)(first[key])
        names[key] = Var(f"{stem}.e{suffix}" if stem else f"e{suffix}", "index")
        lets.append((names[key], value))
    return let_all(lets, _Use(names)(body) if names else body)


def _hoisted(body: Stmt, hoist: _Hoist) -> Stmt:
    """``body`` with Lets for the thread-dependent parts of addresses, each right before the loop nest that uses it."""
    if isinstance(body, Alloc | Let):
        return body.replace(body=_hoisted(body.body, hoist))
    if isinstance(body, Seq):
        return sequence([_hoisted(s, hoist) for s in body.stmts])
    if isinstance(body, Roles):  # a thread keeps the bases of its own role
        return body.replace(
            roles=tuple(r.replace(body=_hoisted(r.body, _Hoist(hoist.hardware | set(r.numbers)))) for r in body.roles)
        )
    out = hoist.one(body)
    return let_all(hoist.lets, out)


class _Hoist(Rewriter):
    def __init__(self, hardware: set[Var]) -> None:
        self.hardware, self.arith, self.depth = hardware, Arith(), 0
        self.fixed: dict[Expr, bool] = {}
        self.names: dict[object, Var] = {}
        self.lets: list[tuple[Var, Expr]] = []
        self.used: Counter[str] = Counter()

    def one(self, s: Stmt) -> Stmt:
        """Rewrite one statement, with a new list of named bases."""
        self.names, self.lets = {}, []
        return self(s)  # type: ignore[no-any-return]

    def on_Loop(self, n: Loop) -> Loop:
        self.depth += 1
        n = self.children(n)
        self.depth -= 1
        return n

    def on_Load(self, n: Load) -> Load:
        i = self._index(n.buffer, self(n.index[0]))
        return n if i is n.index[0] else n.replace(index=(i,))

    def on_Store(self, n: Store) -> Store:
        i, value = self._index(n.buffer, self(n.index[0])), self(n.value)
        return n if i is n.index[0] and value is n.value else n.replace(index=(i,), value=value)

    def _index(self, b: Buffer, i: Expr) -> Expr:
        if isinstance(i, Ramp):
            base = self._index(b, i.base)
            return i if base is i.base else i.replace(base=base)
        if not self.depth or has(i, Load):
            return i
        form = self.arith.linear(i)
        fixed = {t: c for t, c in form.terms.items() if self._is_fixed(t)}
        if len(fixed) < 2 or len(fixed) == len(form.terms):
            return i
        rest = Linear({t: c for t, c in form.terms.items() if t not in fixed}, form.constant)
        return Linear({self._name(b, Linear(fixed, 0)): 1}, 0).plus(rest).expr()

    def _is_fixed(self, t: Expr) -> bool:
        if isinstance(t, Var):
            return t in self.hardware
        if (known := self.fixed.get(t)) is None:
            known = self.fixed[t] = all(v in self.hardware for v in find(t, Var))
        return known

    def _name(self, b: Buffer, part: Linear) -> Var:
        key = (b, frozenset((structure(t), c) for t, c in part.terms.items()))
        if key not in self.names:
            self.used[b.name] += 1
            suffix = "" if self.used[b.name] == 1 else str(self.used[b.name])
            self.names[key] = Var(f"{b.name}_at{suffix}", "index")
            self.lets.append((self.names[key], part.expr()))
        return self.names[key]


class _Use(Rewriter):
    def __init__(self, names: dict[object, Var]) -> None:
        self.names = names

    def on_Binary(self, n: Binary) -> Expr:
        if n.dtype == "index":
            found = self.names.get(structure(n))
            if found is not None:
                return found
        return self.children(n)
