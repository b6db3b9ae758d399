"""``node`` decorator and base class of IR nodes: slotted, children known, compared by identity."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, is_
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from tensorir.errors.shown import Shown, few_lines

# Freezing at run time triples the cost of building a node; the type checker enforces it always.
_FREEZE = os.environ.get("TENSORIR_FREEZE", "0") == "1"
_ONE = {"Expr", "Stmt", "Stmt | None", "Expr | None", "Pixels | None", "Terms | None"}
_MANY_CHILDREN = {
    "tuple[Expr, ...]",
    "tuple[Stmt, ...]",
    "tuple[Region, ...]",
    "tuple[Role, ...]",
    "tuple[LoopMark, ...]",
}
_STATEMENTS = {"Stmt", "Stmt | None", "tuple[Stmt, ...]", "tuple[Role, ...]"}

NODES: dict[str, type[Node]] = {}
NAMES = 64
"""Bits of a node's ``holds`` that its variables share, the lowest ones; each class of nodes has one of its own."""
SIDES = 1 << NAMES
"""The bit of expressions that evaluate an operand only where a condition holds."""
ANY_NODE = -1
"""Bits with which any node is met."""


def fields_of(n: Node) -> str:
    """Names of a node's fields, separated by commas, for messages."""
    return ", ".join(n.FIELDS)


brief_of: Callable[[Node], str] = fields_of
"""A node's repr. ``ir/text.py``, which looks at every class of node, sets it to its ``brief``."""


class Node(Shown):
    """Base of expressions, statements and regions."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()
    CHILDREN: ClassVar[tuple[tuple[str, bool], ...]] = ()  # (field, is it a tuple of nodes)
    BODIES: ClassVar[tuple[tuple[str, bool], ...]] = ()  # those of them that are statements
    BIT: ClassVar[int] = 0  # of this class
    INNER: ClassVar[bool] = False  # an expression with children: others may have it as theirs
    STATEMENT: ClassVar[bool] = False
    holds: int  # ``held``, once it has been asked for
    height: int  # of the tree under the node, then: 1 without children
    spread: int  # nodes of that tree, shared ones once for each parent
    width: int  # lanes of an expression (``ir.lanes.lanes_of``), once they have been asked for
    alike: Any  # what expressions of the same structure share (``arith.affine.structure``), once it has been asked for

    def __repr__(self) -> str:
        return few_lines(f"<{type(self).__name__} {brief_of(self)}>")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it never changes, and others know it by its identity

    def own_bits(self) -> int:
        """Bits that this node itself contributes to the mask of ``held``: its class's, and its name's if it is a
        variable.
        """
        return self.BIT

    def own(self) -> tuple[object, ...]:
        """Fields that are not child nodes."""
        return ()

    def alone(self) -> Hashable | None:
        """Structural key of a leaf node, such as a constant's value or the variable itself; None: its fields are the
        key.
        """
        return None

    def children(self) -> tuple[Any, ...]:
        """Direct child nodes, in field order."""
        return ()

    def backwards(self) -> tuple[Any, ...]:
        """Direct child nodes, last first."""
        return ()

    def bodies_backwards(self) -> tuple[Any, ...]:
        """Direct child statements, last first."""
        return ()

    def map(self, f: Callable[[Node], object]) -> Self:
        """A copy with ``f`` applied to each child; ``self`` when nothing changed."""
        return self

    def map_bodies(self, f: Callable[[Node], object]) -> Self:
        """A copy with ``f`` applied to child statements; ``self`` if unchanged."""
        return self

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        made = type(self)(*[changes.pop(n) if n in changes else getattr(self, n) for n in self.FIELDS])
        if changes:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes)}")
        return made


def held(n: Node, nested: int = 0) -> int:
    """Bit mask (Bloom filter) of the node classes and variable names under ``n``, to skip walks."""
    found = n.holds
    if not found:
        found, height, spread = n.own_bits(), 0, 1
        for c in n.children():
            found |= c.holds or (held(c, nested + 1) if nested < STEP else _from_below(c))
            if c.height > height:
                height = c.height
            spread += c.spread
        _set(n, "holds", found)
        _set(n, "height", height + 1)
        _set(n, "spread", min(spread, MANY_NODES))
    return found


MANY_NODES = 1 << 30
"""Nodes of a tree that are not counted any further."""
STEP = 24
"""Levels of an expression that a recursive function goes down at a time."""


def _from_below(n: Node) -> int:
    """``held`` of a deep tree, computed bottom-up."""
    todo = [n]
    while todo:
        open_ = [c for c in todo[-1].children() if not c.holds]
        todo += open_
        if not open_:
            held(todo.pop())
    return n.holds


_set = object.__setattr__  # nodes may be frozen, and this changes none
T = TypeVar("T", bound=type[Node])


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def node(cls: T) -> T:
    """Class decorator: make ``cls`` an IR node, a slotted dataclass that knows its child fields."""
    kept = {"holds": "int", "height": "int", "spread": "int", "width": "int", "alike": "Any"}
    cls.__annotations__ = {**cls.__annotations__, **kept}
    for name, kind in kept.items():
        setattr(cls, name, dataclasses.field(default=0 if kind == "int" else None, init=False, repr=False))
    out = dataclasses.dataclass(frozen=_FREEZE, slots=True, eq=False, repr=False)(cls)
    fields = [f for f in dataclasses.fields(out) if f.init]  # type: ignore[arg-type]
    out.BIT = 1 << NAMES + 1 + len(NODES)
    out.FIELDS = tuple(f.name for f in fields)
    out.CHILDREN = tuple((f.name, f.type in _MANY_CHILDREN) for f in fields if f.type in _ONE | _MANY_CHILDREN)
    out.BODIES = tuple((f.name, f.type in _MANY_CHILDREN) for f in fields if f.type in _STATEMENTS)
    if alone := [n for n in out.FIELDS if n not in dict(out.CHILDREN)]:
        out.own = _fields(alone)  # type: ignore[assignment]
    bases = {c.__name__ for c in cls.__mro__}
    out.INNER, out.STATEMENT = "Expr" in bases and bool(out.CHILDREN), "Stmt" in bases
    if out.CHILDREN:
        out.children = _listing(out, out.CHILDREN, 1)  # type: ignore[assignment]
        out.backwards = _listing(out, out.CHILDREN, -1)  # type: ignore[assignment]
        out.map = _mapping(out, out.CHILDREN)  # type: ignore[assignment]
    if out.BODIES:
        out.bodies_backwards = _listing(out, out.BODIES, -1)  # type: ignore[assignment]
        out.map_bodies = _mapping(out, out.BODIES)  # type: ignore[assignment]
    NODES[cls.__name__] = out
    return out  # type: ignore[return-value]


# Trees are walked and rewritten millions of times: each class has these methods for its own fields, which take half the
# time of a loop over the names of all.


def _fields(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Method that returns these fields as a tuple."""
    get = attrgetter(*names)

    def several(self: Any) -> tuple[Any, ...]:
        return get(self)

    def alone(self: Any) -> tuple[Any, ...]:
        return (get(self),)

    return several if len(names) > 1 else alone


def _listing(cls: type[Node], children: tuple[tuple[str, bool], ...], step: int) -> Callable[[Any], tuple[Any, ...]]:
    """Method that returns the children, forward (``step`` 1) or backward (-1)."""
    (name, many), *others = children
    if others and not any(m for _, m in children):
        every = attrgetter(*[n for n, _ in children[::step]])
        kinds = {f.name: f.type for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        gaps = any(str(kinds[n]).endswith("| None") for n, _ in children)

        def several(self: Any) -> tuple[Any, ...]:
            found: tuple[Any, ...] = every(self)
            return tuple([c for c in found if c is not None]) if gaps else found

        return several
    if others:

        def mixed(self: Any) -> tuple[Any, ...]:
            out: list[Any] = []
            for n, m in children:
                value = getattr(self, n)
                if m:
                    out += value
                elif value is not None:
                    out.append(value)
            return tuple(out[::step])

        return mixed
    get = attrgetter(name)

    def alone(self: Any) -> tuple[Any, ...]:
        value = get(self)
        return value[::step] if many else () if value is None else (value,)

    return alone


def _mapping(cls: type[Node], children: tuple[tuple[str, bool], ...]) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Method that applies a function to the children and makes a new node if one changes."""
    places = [(cls.FIELDS.index(n), many) for n, many in children]
    fields = _fields(cls.FIELDS)

    def changed(self: Any, at: int, now: Any, below: int = -1, other: Any = None) -> Any:
        new = list(fields(self))
        new[at] = now
        if below >= 0:
            new[below] = other
        return cls(*new)

    if len(places) == 1 and not places[0][1]:
        (only, _), get = places[0], attrgetter(children[0][0])

        def one(self: Any, f: Callable[[Any], Any]) -> Any:
            was = get(self)
            now = was if was is None else f(was)
            return self if now is was else changed(self, only, now)

        return one
    if len(places) == 2 and not any(many for _, many in places):
        (first, _), (second, _), both = *places, attrgetter(*[n for n, _ in children])

        def two(self: Any, f: Callable[[Any], Any]) -> Any:
            a, b = both(self)
            x, y = a if a is None else f(a), b if b is None else f(b)
            return self if x is a and y is b else changed(self, first, x, second, y)

        return two

    def mapped(self: Any, f: Callable[[Any], Any]) -> Any:
        old = fields(self)
        new = None
        for at, many in places:
            was = old[at]
            now: Any = tuple([f(x) for x in was]) if many else was if was is None else f(was)
            if now is not was and not (many and all(map(is_, now, was))):
                if new is None:
                    new = list(old)
                new[at] = now
        return self if new is None else cls(*new)

    return mapped
