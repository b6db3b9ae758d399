"""The node decorator: slotted classes that know their children, compared by identity."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

# Freezing at run time triples the cost of building a node; the type checker enforces it always, the test suite
# switches it on.
_FREEZE = os.environ.get("TENSORIR_FREEZE", "0") == "1"
_ONE = {"Expr", "Stmt", "Stmt | None", "Expr | None", "Pixels | None"}
_MANY = {"tuple[Expr, ...]", "tuple[Stmt, ...]", "tuple[Region, ...]", "tuple[Role, ...]"}
_STATEMENTS = {"Stmt", "Stmt | None", "tuple[Stmt, ...]", "tuple[Role, ...]"}

NODES: dict[str, type[Node]] = {}


class Node:
    """Base of expressions, statements and regions."""

    __slots__ = ()
    FIELDS: ClassVar[tuple[str, ...]] = ()
    CHILDREN: ClassVar[tuple[tuple[str, bool], ...]] = ()  # (field, is it a tuple of nodes)
    BODIES: ClassVar[tuple[tuple[str, bool], ...]] = ()  # those of them that are statements

    def children(self) -> tuple[Any, ...]:
        """Direct child nodes, in field order."""
        return ()

    def backwards(self) -> tuple[Any, ...]:
        """Direct child nodes, last first."""
        return ()

    def bodies_backwards(self) -> tuple[Any, ...]:
        """Those of them that are statements, last first."""
        return ()

    def map(self, f: Callable[[Any], Any]) -> Self:
        """A copy with ``f`` applied to each child; ``self`` when nothing changed."""
        return self

    def map_bodies(self, f: Callable[[Any], Any]) -> Self:
        """The same for the children that are statements alone."""
        return self

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(*[changes[n] if n in changes else getattr(self, n) for n in self.FIELDS])


T = TypeVar("T", bound=type[Node])


@dataclass_transform(frozen_default=True, eq_default=False)
def node(cls: T) -> T:
    """Make ``cls`` an IR node: a slotted dataclass that knows which of its fields are child nodes."""
    out = dataclasses.dataclass(frozen=_FREEZE, slots=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(out)  # type: ignore[arg-type]
    out.FIELDS = tuple(f.name for f in fields)
    out.CHILDREN = tuple((f.name, f.type in _MANY) for f in fields if f.type in _ONE | _MANY)
    out.BODIES = tuple((f.name, f.type in _MANY) for f in fields if f.type in _STATEMENTS)
    optional = {f.name for f in fields if "None" in str(f.type)}
    _write(out, "children", _listed(out.CHILDREN, optional, ""))
    _write(out, "backwards", _listed(out.CHILDREN[::-1], optional, "[::-1]"))
    _write(out, "bodies_backwards", _listed(out.BODIES[::-1], optional, "[::-1]"))
    _write(out, "map", _mapped(out, out.CHILDREN, optional))
    _write(out, "map_bodies", _mapped(out, out.BODIES, optional))
    NODES[cls.__name__] = out
    return out  # type: ignore[return-value]


# Trees are walked and rewritten millions of times: each class has these methods written out for its own fields, as
# dataclasses writes __init__, which takes half the time of a loop over the names of fields.


def _write(cls: type[Node], name: str, lines: list[str]) -> None:
    """Give ``cls`` a method of Node with this body; one without children keeps Node's."""
    if not lines:
        return
    scope: dict[str, Any] = {"cls": cls}
    signature = "(self, f)" if name.startswith("map") else "(self)"
    exec("\n    ".join([f"def {name}{signature}:", *lines]), scope)
    method = scope[name]
    method.__doc__, method.__qualname__ = getattr(Node, name).__doc__, f"{cls.__name__}.{name}"
    setattr(cls, name, method)


def _listed(children: tuple[tuple[str, bool], ...], optional: set[str], order: str) -> list[str]:
    """``return`` the children."""
    if not children:
        return []
    if len(children) == 1 and children[0][1]:
        return [f"return self.{children[0][0]}{order}"]
    each = [
        f"*self.{n}{order}" if many else f"*(() if self.{n} is None else (self.{n},))" if n in optional else f"self.{n}"
        for n, many in children
    ]
    return [f"return ({', '.join(each)},)"]


def _mapped(cls: type[Node], children: tuple[tuple[str, bool], ...], optional: set[str]) -> list[str]:
    """Apply ``f``, and make a new node where a child is another one; nodes, and so tuples of them, are compared by
    identity.
    """
    if not children:
        return []
    made = [
        f"{n} = tuple([f(x) for x in self.{n}])" if many
        else f"{n} = None if self.{n} is None else f(self.{n})" if n in optional
        else f"{n} = f(self.{n})"
        for n, many in children
    ]  # fmt: skip
    same = [f"{n} == self.{n}" if many else f"{n} is self.{n}" for n, many in children]
    names = {n for n, _ in children}
    fields = [n if n in names else f"self.{n}" for n in cls.FIELDS]
    return [*made, f"if {' and '.join(same)}:", "    return self", f"return cls({', '.join(fields)})"]
