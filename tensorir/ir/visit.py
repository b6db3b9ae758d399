"""Traversal and rewriting of IR trees: ``walk``, ``find``, ``Rewriter``, ``substitute``."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, overload

from tensorir.ir.build import binary, cast, select
from tensorir.ir.node import ALL_NAMES, ANY_NODE, NODES, STEP, Node
from tensorir.ir.places import Rewritten
from tensorir.ir.shared import children_first
from tensorir.ir.tree import (
    Alloc,
    Binary,
    Buffer,
    Cast,
    Expr,
    If,
    IntrinCall,
    Let,
    Load,
    Loop,
    Prefetch,
    Region,
    Role,
    Select,
    Seq,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip

N = TypeVar("N", bound=Node)


def walk(root: Node, statements: bool = False) -> Iterator[Node]:
    """Yield ``root`` and every node under it in preorder, an expression with children once per statement.

    statements: True for statements only
    """
    stack = [root]
    seen: set[Node] = set()
    while stack:
        n = stack.pop()
        if n.INNER:
            if n in seen:
                continue
            seen.add(n)
        elif n.STATEMENT:
            seen.clear()
        yield n
        stack += n.bodies_backwards() if statements else n.backwards()


@overload
def find(root: Node, cls: type[N], where: Callable[[N], bool] | None = None) -> list[N]: ...
@overload
def find(root: Node, cls: tuple[type[Node], ...], where: Callable[[Node], bool] | None = None) -> list[Node]: ...
def find(root: Node, cls: object, where: Any = None) -> list[Any]:
    """Nodes of class ``cls`` (or several; subclasses too) at and under ``root``, in preorder; ``where``: predicate.

    An expression with children is listed once per statement, a leaf (Var, Const) once for each of its parents.
    """
    wanted, bits, statements = _kinds(cls)
    out = []
    stack = [root]
    seen: set[Node] = set()
    while stack:  # walk(), written out: half of all walks are these
        n = stack.pop()
        if not n.holds & bits:
            continue
        if n.INNER:
            if n in seen:
                continue
            seen.add(n)
        elif n.STATEMENT:
            seen.clear()
        if type(n) in wanted and (where is None or where(n)):
            out.append(n)
        stack += n.bodies_backwards() if statements else n.backwards()
    return out


def under(roots: Iterable[Node], cls: type[N], where: Callable[[N], bool] | None = None) -> list[N]:
    """Nodes of class ``cls`` at and under ``roots``, each once, operands first; ``where``: predicate."""
    order = children_first(roots, lambda n: n.children() if has(n, cls) else ())
    return [n for n in order if isinstance(n, cls) and (where is None or where(n))]


@functools.cache
def _kinds(cls: type[Node] | tuple[type[Node], ...]) -> tuple[frozenset[type[Node]], int, bool]:
    """(node classes that are subclasses of ``cls``, their bits in the mask ``holds``, true if all are statements)."""
    kinds = cls if isinstance(cls, tuple) else (cls,)
    found = frozenset(c for c in NODES.values() if issubclass(c, kinds))
    return found, bits_of(found), all(issubclass(c, Stmt) for c in kinds)


def has(root: Node, cls: type[Node], *more: type[Node]) -> bool:
    """True if a node of one of the classes occurs at or under ``root``; always False for base classes (Expr, Stmt)."""
    bits = cls.BIT
    for c in more:
        bits |= c.BIT
    return bool(root.holds & bits)


def bits_of(kinds: Iterable[type[Node]]) -> int:
    """Bit mask of node classes, comparable with ``holds``."""
    return functools.reduce(operator.or_, (c.BIT for c in kinds), 0)


def uses(root: Node, names: Mapping[Var, object] | set[Var]) -> bool:
    """True when any of the variables occurs under ``root``."""
    bits = _names(names)
    stack = [root]
    seen: set[Node] = set()
    while stack:
        n = stack.pop()
        if not n.holds & bits:
            continue
        if n.INNER:
            if n in seen:
                continue
            seen.add(n)
        if type(n) is Var and n in names:
            return True
        stack += n.backwards()
    return False


def _names(names: Iterable[Var]) -> int:
    """Bit mask of variable names, comparable with ``holds``."""
    bits = 0
    for v in names:
        bits |= v.holds
    return bits & ALL_NAMES


def is_empty(s: Node) -> bool:
    """True for a Seq without statements; a loop around one is not empty."""
    return isinstance(s, Seq) and not s.stmts


class Rewriter:
    """Rewrite a tree: subclass and define ``on_<Node>``.

    A handler returns the replacement; ``self.children(n)`` continues below ``n``. Unchanged subtrees are returned as
    the same objects, and an expression that several others of a statement have is rewritten once for all of them. A
    handler for a node that does not exist is an error at class creation, not a silent no-op.
    """

    memo: Rewritten | None = None  # what expressions of this statement have become, once there is one
    _statement: Node | None = None  # the statement, or expression without one, that is being rewritten
    meets: int  # ``holds`` has some of these bits wherever there is anything to do
    _handlers: ClassVar[dict[type, Callable[..., Any]]] = {}
    _table: ClassVar[_Table]  # of every class of nodes that was met: its handler, or what is done without one

    def __init_subclass__(cls) -> None:
        handlers = dict(cls._handlers)
        for name, method in vars(cls).items():
            if name.startswith("on_"):
                if name[3:] not in NODES:
                    raise TypeError(f"{cls.__name__}.{name}: there is no node {name[3:]}")
                handlers[NODES[name[3:]]] = method
        cls._handlers = handlers
        asks_all = cls.__call__ is not Rewriter.__call__
        cls.meets = ANY_NODE if asks_all else bits_of(handlers)
        cls._table = _Table(handlers, asks_all)

    def __call__(self, n: Any) -> Any:
        return self._table[type(n)](self, n) if n.holds & self.meets else n

    def on_side(self, cond: Expr, opposite: bool, learn: Callable[[Self], None]) -> Self:
        """This rewriter for one side of a select on ``cond``, where ``learn`` may add assumptions.

        Expressions also read outside of that side are rewritten only there, so that they stay shared. Indices and
        conditions, whose proofs depend on assumptions, are rewritten separately for each side. Returns this
        rewriter itself, without ``learn``, deeper than ``places.NESTED`` nested conditions.
        """
        assert self.memo is not None  # selects are met under a statement, or an expression
        place = self.memo.side(cond, opposite)
        if place is None:
            return self
        new: Self | None = self.memo.sides.get(place)
        if new is None:
            new = self.memo.sides[place] = copy.copy(self)
            new.memo = Rewritten(self.memo.root, self.memo.places, place, self, self.memo.level)
            learn(new)
        return new

    def children(self, n: N) -> N:
        return n.map_bodies(self) if self._table.statements_only else n.map(self)

    def within(self, n: Alloc, around: Callable[[Alloc, Stmt], Stmt]) -> Stmt:
        """Rewrite the body of nested Allocs, and put each ``around`` the result, iteratively: there may be hundreds."""
        allocs: list[Alloc] = []
        body: Stmt = n
        while type(body) is Alloc:
            allocs.append(body)
            body = body.body
        made: Stmt = self(body)
        for a in reversed(allocs):
            made = around(a, made)
        return made


class _Table(dict[type, Callable[..., Any]]):
    """Handlers by node class; nodes without one have their children rewritten."""

    def __init__(self, handlers: Mapping[type, Callable[..., Any]], asks_all: bool) -> None:
        self.expressions = any(issubclass(c, Expr) for c in handlers)
        self.statements_only = not asks_all and all(issubclass(c, (Stmt, Role)) for c in handlers)
        super().__init__({c: self._sharing(c, do) for c, do in handlers.items()})

    def __missing__(self, kind: type) -> Callable[..., Any]:
        if not issubclass(kind, Node) or not kind.CHILDREN or (issubclass(kind, Expr) and not self.expressions):
            do = _as_it_is
        elif issubclass(kind, Let):
            do = self._sharing(kind, _below_lets)
        elif issubclass(kind, Alloc):
            do = self._sharing(kind, _below_allocs)
        else:
            do = self._sharing(kind, _below_bodies if self.statements_only else _below)
        self[kind] = do
        return do

    def _sharing(self, kind: type[Node], do: Callable[..., Any]) -> Callable[..., Any]:
        """``do`` memoized per expression of a statement."""
        if self.statements_only or not (kind.INNER or kind.STATEMENT):
            return do
        return _once(do) if kind.INNER else _afresh(do)


def _once(do: Callable[..., Any]) -> Callable[..., Any]:
    def once(rewriter: Rewriter, n: Any) -> Any:
        memo = rewriter.memo
        if memo is None:
            if rewriter._statement is None:
                return _afresh(once)(rewriter, n)
            memo = rewriter.memo = Rewritten(rewriter._statement)
        found = memo.get(n)
        if found is not None:
            return found
        if memo.outer is not None and memo.is_elsewhere(n):
            return memo.outer(n)
        if memo.level >= STEP and not memo.descending and n.height > STEP:
            memo.descending = True
            for x in memo.stops(n):
                rewriter(x)
            memo.descending = False
        memo.level += 1
        found = memo[n] = do(rewriter, n)
        memo.level -= 1
        return found

    return once


def _afresh(do: Callable[..., Any]) -> Callable[..., Any]:
    def afresh(rewriter: Rewriter, n: Any) -> Any:
        outer, around = rewriter.memo, rewriter._statement
        rewriter.memo, rewriter._statement = None, n
        try:
            return do(rewriter, n)
        finally:
            rewriter.memo, rewriter._statement = outer, around

    return afresh


def _as_it_is(rewriter: Rewriter, n: Any) -> Any:
    return n


def _below(rewriter: Rewriter, n: Node) -> Node:
    return n.map(rewriter)


def _below_bodies(rewriter: Rewriter, n: Node) -> Node:
    return n.map_bodies(rewriter)


def _below_lets(rewriter: Rewriter, n: Let) -> Stmt:
    """Rewrite a chain of Lets iteratively."""
    lets: list[tuple[Let, Expr]] = []
    body: Stmt = n
    while type(body) is Let and body.holds & rewriter.meets:
        lets.append((body, body.value if rewriter._table.statements_only else rewriter(body.value)))
        body = body.body
    body = rewriter(body)
    for let, value in reversed(lets):
        body = let if value is let.value and body is let.body else Let(let.var, value, body)
    return body


def _below_allocs(rewriter: Rewriter, n: Alloc) -> Stmt:
    return rewriter.within(n, lambda a, body: a if body is a.body else a.replace(body=body))


class Pruner(Rewriter):
    """A Rewriter that drops loops, guards and names around what its rules left empty."""

    def pruned(self, n: Loop | If | Let) -> Stmt:
        """``n`` with children rewritten; an empty Seq if its body became empty."""
        n = self.children(n)
        return Seq(()) if is_empty(n.then if isinstance(n, If) else n.body) else n

    def on_Loop(self, n: Loop) -> Stmt:
        return self.pruned(n)

    def on_If(self, n: If) -> Stmt:
        return self.pruned(n)

    def on_Let(self, n: Let) -> Stmt:
        return self.pruned(n)

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence([self(s) for s in n.stmts])


class _Substitute(Rewriter):
    def __init__(self, values: Mapping[Var, Expr]) -> None:
        self.values = values
        self.meets = _names(values)

    def on_Var(self, n: Var) -> Expr:
        return self.values.get(n, n)

    def on_Binary(self, n: Binary) -> Expr:
        a, b = self(n.a), self(n.b)
        return n if a is n.a and b is n.b else binary(n.op, a, b)

    def on_Cast(self, n: Cast) -> Expr:
        a = self(n.a)
        return n if a is n.a else cast(a, n.dtype)

    def on_Select(self, n: Select) -> Expr:
        c, a, b = self(n.cond), self(n.a), self(n.b)
        return n if c is n.cond and a is n.a and b is n.b else select(c, a, b)


def substitute(root: N, values: Mapping[Var, Expr]) -> N:
    """Replace variables by expressions everywhere under ``root``, folding constants on the way."""
    return _Substitute(values)(root) if values else root


class _Swap(Rewriter):
    """Rewriter: replace buffers, indices unchanged."""

    def __init__(self, swap: Mapping[Buffer, Buffer]) -> None:
        self.swap = swap

    def on_Load(self, n: Load) -> Load:
        n = n.map(self)
        new = self.swap.get(n.buffer)
        return n.replace(buffer=new) if new else n

    def on_Store(self, n: Store) -> Store:
        n = n.map(self)
        new = self.swap.get(n.buffer)
        return n.replace(buffer=new) if new else n

    def on_Prefetch(self, n: Prefetch) -> Prefetch:
        n = n.map(self)
        new = self.swap.get(n.buffer)
        return n.replace(buffer=new) if new else n

    def on_Update(self, n: Update) -> Update:
        n = n.map(self)
        if not any(b in self.swap for b in n.buffers):
            return n
        return n.replace(buffers=tuple(self.swap.get(b, b) for b in n.buffers))

    def on_Region(self, n: Region) -> Region:
        n = n.map(self)
        new = self.swap.get(n.buffer)
        return n.replace(buffer=new) if new else n

    def on_Loop(self, n: Loop) -> Loop:
        new = n.map(self)
        return new if new.marks is n.marks else new.replace(marks=n.marks)  # a copy need not be filled where they stand


def swap_buffers(root: N, swap: Mapping[Buffer, Buffer]) -> N:
    """Replace buffers in loads, stores, prefetches, updates and operands; not in Allocs, barriers, loop marks."""
    return _Swap(swap)(root)  # type: ignore[no-any-return]


class _Replace(Rewriter):
    def __init__(self, swap: Mapping[Node, Node | None]) -> None:
        self.swap = swap

    def __call__(self, n: Any) -> Any:
        if n in self.swap:
            return self.swap[n]
        return self.on_Seq(n) if type(n) is Seq else n.map_bodies(self)

    def on_Seq(self, n: Seq) -> Stmt | None:
        new = [self(s) for s in n.stmts]
        if all(a is b for a, b in zip(new, n.stmts, strict=True)):
            return n
        return sequence(new)


def replace(root: N, swap: Mapping[Any, Any]) -> N:
    """``root`` with statements (found by identity) replaced; None removes one from its Seq."""
    return _Replace(swap)(root)  # type: ignore[no-any-return]


def sequence(stmts: Any) -> Stmt:
    """One statement from several: Seqs flattened one level, None dropped, a single one bare; ``Seq(())`` for none."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Seq):
            flat.extend(s.stmts)
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def let_all(lets: Iterable[tuple[Var, Expr]], body: Stmt) -> Stmt:
    """``body`` inside a Let of each variable and value, the first outermost."""
    for var, value in reversed([*lets]):
        body = Let(var, value, body)
    return body


class _Rebound(Rewriter):
    """Rewriter: Lets bind other variables."""

    def __init__(self, swap: Mapping[Var, Var]) -> None:
        self.swap = swap

    def on_Var(self, n: Var) -> Var:
        return self.swap.get(n, n)

    def on_Let(self, n: Let) -> Stmt:
        lets: list[tuple[Var, Expr]] = []
        body: Stmt = n
        while isinstance(body, Let):
            lets.append((self.swap[body.var], self(body.value)))
            body = body.body
        return let_all(lets, self(body))


def with_own_names(s: Stmt) -> Stmt:
    """A copy of ``s`` with fresh variables for its Lets, ``s`` itself without Lets."""
    swap = {x.var: Var(x.var.name, x.var.dtype, lanes=x.var.lanes) for x in find(s, Let)}
    return _Rebound(swap)(s) if swap else s


def writes(n: Node) -> list[Buffer]:
    """Buffers written under ``n``, each once, in order."""
    found: dict[Buffer, None] = {}
    stack = [n]
    while stack:  # no expression writes
        s = stack.pop()
        if type(s) is Stage:  # successive trees of a schedule share most of theirs with the last one
            found.update(dict.fromkeys(_by_stage(s, True)))
            continue
        if type(s) is Store:
            found[s.buffer] = None
        elif type(s) is Update:
            found.update(dict.fromkeys(s.buffers))
        elif type(s) is IntrinCall:
            found.update(dict.fromkeys(_operands(s, writes)))
        stack += s.bodies_backwards()
    return list(found)


_READING = Load.BIT | IntrinCall.BIT


def reads(n: Node) -> list[Buffer]:
    """Buffers loaded from under ``n`` (not those only updated), each once, in order."""
    found: dict[Buffer, None] = {}
    stack = [n]
    seen: set[Node] = set()
    while stack:
        s = stack.pop()
        if not s.holds & _READING or s in seen:
            continue
        seen.add(s)
        if type(s) is Stage:
            found.update(dict.fromkeys(_by_stage(s, False)))
            continue
        if type(s) is Load:
            found[s.buffer] = None
        elif type(s) is IntrinCall:
            found.update(dict.fromkeys(_operands(s, reads)))
        stack += s.backwards()
    return list(found)


@functools.lru_cache(maxsize=1024)
def _by_stage(stage: Stage, written: bool) -> tuple[Buffer, ...]:
    """Buffers that a stage writes, or with ``written`` False loads."""
    return tuple(dict.fromkeys(b for c in stage.children() for b in (writes(c) if written else reads(c))))


def _operands(call: IntrinCall, touched: Callable[[Node], list[Buffer]]) -> list[Buffer]:
    """Operand buffers that an instruction's definition reads or writes."""
    tiles = _touched(touched, call.intrin.semantics.body)
    return [r.buffer for b, r in zip(call.intrin.operands, call.operands, strict=True) if b in tiles]


@functools.lru_cache(maxsize=1024)
def _touched(touched: Callable[[Node], list[Buffer]], meaning: Node) -> frozenset[Buffer]:
    return frozenset(touched(meaning))
