"""``node`` decorator and base class of IR nodes: slotted, children known, compared by identity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from operator import is_
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
        """A copy with some fields changed."""
        made = type(self)(*[changes.pop(n) if n in changes else getattr(self, n) for n in self.FIELDS])
        if changes:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(changes)}")
        return made


MANY_NODES = 1 << 30
"""Nodes of a tree that are not counted any further."""
STEP = 24
"""Levels of an expression that a recursive function goes down at a time."""


T = TypeVar("T", bound=type[Node])


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def node(cls: T) -> T:
    """Class decorator: make ``cls`` an IR node, a slotted dataclass that knows its child fields."""
    kinds = {n: str(kind) for n, kind in cls.__annotations__.items()}
    cls.BIT = 4 << NAMES + len(NODES)
    cls.FIELDS = tuple(n for n in kinds if not isinstance(vars(cls).get(n), dataclasses.Field))
    cls.CHILDREN = tuple((n, kind in _MANY_CHILDREN) for n, kind in kinds.items() if kind in _ONE | _MANY_CHILDREN)
    cls.BODIES = tuple((n, many) for n, many in cls.CHILDREN if kinds[n] in _STATEMENTS)
    bases = {c.__name__ for c in cls.__mro__}
    cls.INNER, cls.STATEMENT = "Expr" in bases and bool(cls.CHILDREN), "Stmt" in bases
    known: dict[str, Any] = {"is_": is_, "MANY_NODES": MANY_NODES, "default": vars(cls).copy()}
    made: dict[str, Any] = {}
    exec(_methods(cls, {n for n, kind in kinds.items() if kind.endswith("| None")}), known, made)
    for name, method in made.items():
        setattr(cls, name, method)
    for n in _SUMS:
        cls.__annotations__[n] = "Any"
        setattr(cls, n, dataclasses.field(init=False, repr=False))
    out = NODES[cls.__name__] = known["made"] = dataclasses.dataclass(init=False, slots=True, eq=False, repr=False)(cls)
    return out  # type: ignore[return-value]


# Trees are walked and rewritten millions of times: each class has these methods written out for its own fields, which
# take half the time of a loop over the names of all.

_SUMS = ("holds", "height", "spread", "width", "alike")
"""What ``__init__`` finds out about the tree under a node, and what is asked for later."""


def _methods(cls: type[Node], optional: set[str]) -> str:
    """Text of a class's methods: construction, fields, children, maps of children."""
    alone = "".join(f"self.{n}, " for n in cls.FIELDS if n not in dict(cls.CHILDREN))
    text = [_init(cls, optional), f"def own(self): return ({alone})"]
    for name, children, step in (
        ("children", cls.CHILDREN, 1), ("backwards", cls.CHILDREN, -1), ("bodies_backwards", cls.BODIES, -1)
    ):  # fmt: skip
        text.append(f"def {name}(self): return {_listing(children, optional, step)}")
    for name, children in (("map", cls.CHILDREN), ("map_bodies", cls.BODIES)):
        text.append(_mapping(name, cls.FIELDS, children, optional))
    return "\n".join(text)


def _init(cls: type[Node], optional: set[str]) -> str:
    """Text of ``__init__``, with what a node holds, its height and spread from those of its children."""
    args = "".join(f", {n}=default[{n!r}]" if n in vars(cls) else f", {n}" for n in cls.FIELDS)
    later = [n for n in cls.__annotations__ if n not in cls.FIELDS]  # but for _SUMS, which are no annotations yet
    lines = [f"def __init__(self{args}):", *(f"self.{n} = {n}" for n in cls.FIELDS)]
    lines += [f"self.{n} = default[{n!r}].default" for n in later]
    lines += ["self.width, self.alike = 0, None"]
    own = str(cls.BIT) if cls.own_bits is Node.own_bits else "self.own_bits()"
    names = [n for n, many in cls.CHILDREN if not many and n not in optional]
    if not cls.CHILDREN:
        lines += [f"self.holds, self.height, self.spread = {own}, 1, 1"]
    elif len(names) == len(cls.CHILDREN):
        tallest = f"max({', '.join(f'{n}.height' for n in names)})" if len(names) > 1 else f"{names[0]}.height"
        lines += [f"self.holds = {' | '.join([own, *(f'{n}.holds' for n in names)])}"]
        lines += [f"self.height = 1 + {tallest}", f"spread = {' + '.join(['1', *(f'{n}.spread' for n in names)])}"]
        lines += ["self.spread = spread if spread < MANY_NODES else MANY_NODES"]
    else:
        lines += [f"holds, height, spread = {own}, 0, 1", "for c in self.children():", " holds |= c.holds"]
        lines += [" spread += c.spread", " if c.height > height: height = c.height"]
        lines += ["self.holds, self.height = holds, height + 1"]
        lines += ["self.spread = spread if spread < MANY_NODES else MANY_NODES"]
    return "\n ".join(lines)


def _listing(children: tuple[tuple[str, bool], ...], optional: set[str], step: int) -> str:
    """Expression for the tuple of all children, forward (``step`` 1) or backward (-1)."""
    order = "" if step == 1 else "[::-1]"
    if len(children) == 1 and children[0][1]:
        return f"self.{children[0][0]}{order}"
    parts = [
        f"*self.{n}{order}" if many else f"*(() if self.{n} is None else (self.{n},))" if n in optional else f"self.{n}"
        for n, many in children[::step]
    ]
    return f"({''.join(f'{p}, ' for p in parts)})"


def _mapping(name: str, fields: Sequence[str], children: tuple[tuple[str, bool], ...], optional: set[str]) -> str:
    """Text of a method that applies a function to the children and makes a new node if one changes."""
    if not children:
        return f"def {name}(self, f): return self"
    lines, same = [f"def {name}(self, f):"], []
    for n, many in children:
        one = f"f(self.{n})" if n not in optional else f"None if self.{n} is None else f(self.{n})"
        lines.append(f"{n} = tuple([f(x) for x in self.{n}])" if many else f"{n} = {one}")
        same.append(f"all(map(is_, {n}, self.{n}))" if many else f"{n} is self.{n}")
    new = ", ".join(n if n in dict(children) else f"self.{n}" for n in fields)
    lines += [f"return self if {' and '.join(same)} else made({new})"]
    return "\n ".join(lines)
