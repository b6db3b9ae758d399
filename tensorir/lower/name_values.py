"""Pass: common subexpression elimination. Text for n distinct operations has O(n) operators.

Expressions are graphs: a value used twice in a lambda is one node with two readers. Printed as a tree, it would be
emitted and computed once per reader, recursively: 2**n times after n rounds of ``z = z * z + c``. Here such a node
becomes a Let before its statement::

    out[i] = (z * z + c) * (z * z + c) + c   ->   z1 = z * z + c;  out[i] = z1 * z1 + c

A name is computed in the innermost scope that contains all readers. Scopes are the sides of a select, and the right
side of ``and`` and ``or``. A name read in only one scope is computed under that scope's condition, so that nothing is
loaded, divided or computed if it does not hold::

    where(i > 0, f(A[i - 1]) * f(A[i - 1]), 0)   ->   p = i > 0;  v = where(p, f(A[i - 1]), 0);  where(p, v * v, 0)

Constants, variables, loads, comparisons of these, and short index arithmetic get no name: compilers recognize equal
ones, and the text is easier to read. They count in the size of their readers, and an expression larger than
``VALUE_SIZE`` gets a name, so that text stays linear. Vector selects by mask compute both sides and are no scopes. A
subexpression of height ``TALLEST_VALUE`` gets a name even with one reader: compilers limit the nesting of parentheses.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from contextlib import suppress

from tensorir.ir.build import binary, const, unary
from tensorir.ir.lanes import lanes_of
from tensorir.ir.places import ExactPlaces, Place, operands
from tensorir.ir.shared import children_first
from tensorir.ir.structure import structure
from tensorir.ir.tree import (
    Binary,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    If,
    Let,
    Load,
    Loop,
    Pack,
    Program,
    Ramp,
    Select,
    Shuffle,
    Stmt,
    Store,
    Unary,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, has, let_all
from tensorir.lower.form import lowering
from tensorir.target import Target

VALUE_SIZE = 32
"""The size of an operation on values; of a comparison half of it, of an operation on indices, or a read, 1."""
TALLEST_VALUE = 40
"""Levels of operations in one expression of the text."""


@lowering
def name_values(program: Program, target: Target) -> Program:
    """Bind common subexpressions of values to names (Lets).

    needs: no stages, vectors
    gives: an operation that is an operand of several others is computed once, where one of them is
    """
    return program.replace(body=_Name()(program.body))


class _Name(Rewriter):
    """Rewriter: insert Lets before statements; consecutive Lets share names."""

    def on_Store(self, n: Store) -> Stmt:
        return n if n.later else _named([], n)

    def on_If(self, n: If) -> Stmt:
        return _named([], n.replace(then=self(n.then)))

    def on_Loop(self, n: Loop) -> Stmt:
        return _named([], n.replace(body=self(n.body)))

    def on_Let(self, n: Let) -> Stmt:
        lets: list[Let] = []
        body: Stmt = n
        while isinstance(body, Let):
            lets.append(body)
            body = body.body
        return _named(lets, self(body))


def _named(lets: list[Let], s: Stmt) -> Stmt:
    """Statement ``s`` and preceding ``lets``, inside Lets of their common subexpressions."""
    own = () if lets else tuple(c for c in s.children() if isinstance(c, Expr))
    roots = (*(let.value for let in lets), *own)
    if _none(roots):
        return let_all([(let.var, let.value) for let in lets], s)
    alike = _alike(roots)
    names = _Names([alike[r] for r in roots], {let.var for let in lets})
    done: list[tuple[Var, Expr]] = []
    for let in lets:
        value = names.value(alike[let.value])
        done += [*names.take(), (let.var, value)]
        names.later.discard(let.var)
    if own:
        swap = {c: names.value(alike[c]) for c in own}
        done += names.take()
        s = s.map(lambda c: swap.get(c, c) if isinstance(c, Expr) else c)
    return let_all(done, s)


def _none(roots: Sequence[Expr]) -> bool:
    """True if no operation occurs twice in ``roots``, so that nothing needs a name; a quick check, False when in
    doubt.
    """
    seen: set[Hashable] = set()
    todo = [*roots]
    while todo:
        e = todo.pop()
        if e.height >= TALLEST_VALUE or (e.dtype == "index" and e.spread >= VALUE_SIZE - 1):
            return False
        if e.dtype != "index" and not isinstance(e, Const | Var | Broadcast):
            if (key := structure(e)) in seen and not isinstance(e, Load):  # of an index that is small
                return False
            seen.add(key)
            todo += operands(e)
    return True


def _alike(roots: Sequence[Expr]) -> dict[Expr, Expr]:
    """{expression: the first one equal to it} of ``roots`` and all that they are made of; constants of one type."""
    new, first = dict[Expr, Expr](), dict[Hashable, Expr]()
    for e in children_first(roots, operands):
        if isinstance(e, Const):
            key: Hashable = (e.dtype, type(e.value), e.alone())
        elif (key := e.alone()) is None:
            key = (type(e), *e.own(), *(id(new.get(c, c)) for c in e.children()))
        if key not in first:
            first[key] = e.map(lambda c: new.get(c, c))  # type: ignore[call-overload]
        new[e] = first[key]
    return new


class _Later(Exception):
    """A condition is not known yet where a name needs it."""


class _Names:
    """Assigns names to common subexpressions of expressions evaluated in sequence, in order of use.

    later: variables that are not bound yet
    """

    def __init__(self, roots: Sequence[Expr], later: set[Var]) -> None:
        self.later, self._making = later, set[Expr]()
        self.places = ExactPlaces(roots)
        self.size: dict[Expr, int] = {}
        self.height: dict[Expr, int] = {}
        self.new: dict[Expr, Expr] = {}
        self.lets: list[tuple[Var, Expr]] = []
        self.at = self.count = 0

    def take(self) -> list[tuple[Var, Expr]]:
        """(variable, value) pairs named since the last call."""
        taken, self.lets = self.lets, []
        return taken

    def value(self, root: Expr) -> Expr:
        """``root`` rewritten in terms of names, which must be bound before it."""
        while root not in self.new:
            e = self.places.order[self.at]
            self.at += 1
            if e not in self.new:
                self._make(e)
        return self.new[root]

    def _make(self, e: Expr) -> None:
        self._making.add(e)
        parts = {c: self.new[c] for c in operands(e)}
        made = e if all(c is new for c, new in parts.items()) else self._rebuilt(e, parts)
        self.size[e] = size = _size(e) + sum(self.size[c] for c in operands(e))
        self.height[e] = height = 1 + max((self.height[c] for c in operands(e)), default=0)
        wanted = (self.places.readers[e] > 1 and size >= VALUE_SIZE) or height >= TALLEST_VALUE
        mask = e.dtype == "bool" and lanes_of(e) > 1  # has no type of its own: as wide as what it chooses
        if wanted and not mask and not isinstance(e, Ramp | Broadcast | Const | Var):
            made = self._somewhere(e, made)
        self.new[e] = made
        self._making.remove(e)

    def _somewhere(self, e: Expr, value: Expr) -> Var:
        """Name of ``e``, computed in the innermost scope around its readers whose condition is known."""
        scope = self.places.of[e]
        try:
            return self._name(e, value, scope)
        except _Later:  # a copy for each reader is 2**n of them after n such values: what it reads is within bounds
            value = _Within()(value)
        while scope.outer is not None:
            self.places.of[e] = scope = scope.outer
            with suppress(_Later):
                return self._name(e, value, scope)
        raise AssertionError("the outermost scope has no condition")

    def _rebuilt(self, e: Expr, parts: dict[Expr, Expr]) -> Expr:
        if isinstance(e, Select) and lanes_of(e.cond) == 1:
            side = self.places.side(self.places.of[e], e.cond, False)
            if side.cond is not None:
                return Select(side.cond, parts[e.a], parts[e.b], e.dtype)
        return e.map(lambda c: parts.get(c, c))  # type: ignore[call-overload]

    def _name(self, e: Expr, value: Expr, scope: Place) -> Var:
        lanes = lanes_of(e)
        while scope.several and scope.outer is not None and not _risky(value):
            scope = scope.outer
        where = self._where(scope)
        if where is not None:
            zero: Expr = const(False if e.dtype == "bool" else 0, e.dtype)
            value = Select(where, value, Broadcast(zero, lanes, e.dtype) if lanes > 1 else zero, e.dtype)
        return self._let("v", e.dtype, lanes, value, e)

    def _let(self, name: str, dtype: str, lanes: int, value: Expr, e: Expr | None = None) -> Var:
        self.count += 1
        var = Var(f"{name}{self.count}", dtype, lanes=lanes)
        self.lets.append((var, value))
        if e is not None:
            self.size[e], self.height[e] = 0, 0
        return var

    def _where(self, scope: Place) -> Expr | None:
        """Name of the condition under which ``scope`` executes; None for the outermost scope."""
        path: list[Place] = []
        while scope.outer is not None and scope.cond is None:
            if scope.several:
                asked = [c for p in scope.several if (c := self._where(p)) is not None]
                scope.cond = self._let("p", "bool", 1, functools.reduce(lambda a, b: binary("or", a, b), asked))
                break
            path.append(scope)
            scope = scope.outer
        where = scope.cond
        for s in reversed(path):
            assert s.of is not None
            cond, place = self._condition(s.of), self.places.of[s.of]
            if not isinstance(cond, Var):
                if s.of in self._making:  # it is asked where it holds itself
                    raise _Later
                self._making.add(s.of)
                try:
                    self.new[s.of] = cond = self._name(s.of, cond, place)
                finally:
                    self._making.remove(s.of)
            if s.opposite:
                cond = unary("not", cond)
            holds = not s.opposite and place is s.outer and not place.several and s.of is not cond  # only if ``where``
            where = cond if where is None or holds else binary("and", where, cond)
            if not isinstance(where, Var):
                where = self._let("p", "bool", 1, where)
            s.cond = where
        return where

    def _condition(self, of: Expr) -> Expr:
        """A condition in terms of names, made now if its turn comes later. Raises _Later if it depends on what is being
        made, or bound, later.
        """
        if of not in self.new:
            for x in children_first([of], lambda n: [c for c in operands(n) if c not in self.new]):
                if x in self._making or x in self.later:
                    raise _Later
                if x not in self.new:
                    self._make(x)
        return self.new[of]


class _Within(Rewriter):
    """Rewriter: what is read out of an array's bounds is 0."""

    def on_Load(self, n: Load) -> Expr:
        n = self.children(n)
        if not n.index:  # a number of rank 0
            return n
        at, lanes = n.index[0], lanes_of(n)
        first = at.base if isinstance(at, Ramp) else at
        last = binary("+", first, at.lanes - 1) if isinstance(at, Ramp) else at
        inside = binary("and", binary("<=", 0, first), binary("<", last, n.buffer.shape[0]))
        zero: Expr = const(False if n.dtype == "bool" else 0, n.dtype)
        return Select(inside, n, Broadcast(zero, lanes, n.dtype) if lanes > 1 else zero, n.dtype)


def _risky(e: Expr) -> bool:
    """True if an expression reads, or divides integers, which only its readers' conditions make safe."""
    return has(e, Load) or bool(find(e, Binary, lambda x: x.op in ("//", "%") and x.dtype != "index"))


def _size(e: Expr) -> int:
    """Operators that ``e`` itself adds to the text, weighted: an operation on values counts ``VALUE_SIZE``."""
    if isinstance(e, Const | Var | Broadcast | Cast):
        return 0
    if isinstance(e, Load | Ramp | Pack | Shuffle) or e.dtype == "index":
        return 1
    if isinstance(e, Binary | Unary) and e.dtype == "bool":
        return VALUE_SIZE // 2 if isinstance(e, Binary) and e.a.dtype not in ("index", "bool") else 1
    return VALUE_SIZE if isinstance(e, Binary | Call | Select | Unary) else 1
