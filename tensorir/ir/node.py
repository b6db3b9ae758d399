"""``node`` decorator and base class of IR nodes: slotted, children known, compared by identity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, is_
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from tensorir.errors.shown import Shown, few_lines

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
ALL_NAMES = (1 << NAMES) - 1
SIDES = 1 << NAMES
"""The bit of expressions that evaluate an operand only where a condition holds."""
DIMS = 2 << NAMES
"""The bit of dims (``Var.bounds``)."""
ANY_NODE = -1
"""Mask that has bits in common with the ``holds`` of every node."""


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
    holds: int  # bits of the classes of nodes and of the names of variables in the tree at and under the node
    height: int  # of that tree: 1 without children
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
        """Bits that this node itself contributes to the mask ``holds``: its class's, and its name's if it is a
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
        """A copy with some fields changed; TypeError for unknown ones."""
        made = type(self)(*[changes.pop(n) if n in changes else getattr(self, n) for n in self.FIELDS])
        if changes:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes)}")
        return made


MANY_NODES = 1 << 30
"""Largest value of ``spread``: larger trees are not counted further."""
STEP = 24
"""Levels of an expression that a recursive function goes down at a time."""


T = TypeVar("T", bound=type[Node])


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def node(cls: T) -> T:
    """Class decorator: make ``cls`` an IR node, a slotted dataclass with known child fields; registers it in NODES."""
    kinds = {n: str(kind) for n, kind in cls.__annotations__.items()}
    cls.BIT = 4 << NAMES + len(NODES)
    cls.FIELDS = tuple(n for n in kinds if not isinstance(vars(cls).get(n), dataclasses.Field))
    cls.CHILDREN = tuple((n, kind in _MANY_CHILDREN) for n, kind in kinds.items() if kind in _ONE | _MANY_CHILDREN)
    cls.BODIES = tuple((n, many) for n, many in cls.CHILDREN if kinds[n] in _STATEMENTS)
    bases = {c.__name__ for c in cls.__mro__}
    cls.INNER, cls.STATEMENT = "Expr" in bases and bool(cls.CHILDREN), "Stmt" in bases
    optional = any(kinds[n].endswith("| None") for n, _ in cls.CHILDREN)
    if alone := [n for n in cls.FIELDS if n not in dict(cls.CHILDREN)]:
        cls.own = _fields(alone)  # type: ignore[assignment]
    if cls.CHILDREN:
        cls.children = _listing(cls.CHILDREN, 1, optional)  # type: ignore[assignment]
        cls.backwards = _listing(cls.CHILDREN, -1, optional)  # type: ignore[assignment]
        cls.map = _mapping(cls.FIELDS, cls.CHILDREN)  # type: ignore[assignment]
    if cls.BODIES:
        cls.bodies_backwards = _listing(cls.BODIES, -1, optional)  # type: ignore[assignment]
        cls.map_bodies = _mapping(cls.FIELDS, cls.BODIES)  # type: ignore[assignment]
    leaf = not cls.CHILDREN and cls.own_bits is Node.own_bits
    if not leaf:
        cls.__post_init__ = _summing(cls, optional)  # type: ignore[attr-defined]
    of_leaf: dict[str, Any] = {"holds": cls.BIT, "height": 1, "spread": 1}
    summed = of_leaf if leaf else dict.fromkeys(of_leaf, dataclasses.MISSING)  # in ``__post_init__``, where it has one
    for n, start in {**summed, "width": 0, "alike": None}.items():
        cls.__annotations__[n] = "Any"
        setattr(cls, n, dataclasses.field(default=start, init=False, repr=False))
    out = NODES[cls.__name__] = dataclasses.dataclass(slots=True, eq=False, repr=False)(cls)
    return out  # type: ignore[return-value]


# Trees are walked and rewritten millions of times: each class has these methods for its own fields, which take half the
# time of a loop over the names of all.


def _summing(cls: type[Node], optional: bool) -> Callable[[Any], None]:
    """``__post_init__``: what a node holds, its height and spread, from those of its children."""
    own, constant = cls.own_bits, cls.own_bits is Node.own_bits
    bit = cls.BIT
    if len(cls.CHILDREN) == 2 and not optional and not any(many for _, many in cls.CHILDREN):
        both = attrgetter(*dict(cls.CHILDREN))

        def two(self: Any) -> None:
            a, b = both(self)
            height, other, spread = a.height, b.height, a.spread + b.spread
            self.holds = (bit if constant else own(self)) | a.holds | b.holds
            self.height = (height if height > other else other) + 1
            self.spread = spread + 1 if spread < MANY_NODES else MANY_NODES

        return two

    def several(self: Any) -> None:
        holds, height, spread = bit if constant else own(self), 0, 1
        for c in self.children():
            holds |= c.holds
            spread += c.spread
            if c.height > height:
                height = c.height
        self.holds, self.height = holds, height + 1
        self.spread = spread if spread < MANY_NODES else MANY_NODES

    return several


def _fields(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Method that returns these fields as a tuple."""
    get = attrgetter(*names)

    def several(self: Any) -> tuple[Any, ...]:
        return get(self)

    def alone(self: Any) -> tuple[Any, ...]:
        return (get(self),)

    return several if len(names) > 1 else alone


def _listing(children: tuple[tuple[str, bool], ...], step: int, optional: bool) -> Callable[[Any], tuple[Any, ...]]:
    """Method that returns the children, forward (``step`` 1) or backward (-1)."""
    (name, many), *others = children
    if others and not optional and not any(m for _, m in children):
        every = attrgetter(*[n for n, _ in children[::step]])

        def several(self: Any) -> tuple[Any, ...]:
            return every(self)

        return several
    many_at = [at for at, (_, m) in enumerate(children[::step]) if m]
    if others and not optional and len(many_at) == 1:
        every, (at,) = attrgetter(*[n for n, _ in children[::step]]), many_at

        def around(self: Any) -> tuple[Any, ...]:
            found: tuple[Any, ...] = every(self)
            those: tuple[Any, ...] = found[at]
            return found[:at] + those[::step] + found[at + 1 :]

        return around
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


def _mapping(
    names: tuple[str, ...], children: tuple[tuple[str, bool], ...]
) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """Method that applies a function to the children and makes a new node if one changes."""
    places = [(names.index(n), many) for n, many in children]
    fields = _fields(names)

    def changed(self: Any, at: int, now: Any, below: int = -1, other: Any = None) -> Any:
        new = list(fields(self))
        new[at] = now
        if below >= 0:
            new[below] = other
        return type(self)(*new)

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
        return self if new is None else type(self)(*new)

    return mapped
