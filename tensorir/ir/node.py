"""The node decorator: slotted classes that know their children, compared by identity."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
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
    BACKWARDS: ClassVar[tuple[tuple[tuple[str, bool], ...], ...]] = ((), ())  # both, last first

    def children(self) -> Iterator[Node]:
        """Direct child nodes, in field order."""
        for name, many in self.CHILDREN:
            value = getattr(self, name)
            if many:
                yield from value
            elif value is not None:
                yield value

    def map(self, f: Callable[[Any], Any]) -> Self:
        """A copy with ``f`` applied to each child; ``self`` when nothing changed."""
        changed: dict[str, Any] | None = None
        for name, many in self.CHILDREN:
            old = getattr(self, name)
            if many:
                new = tuple([f(x) for x in old])
                if new != old:  # nodes are compared by identity
                    changed = changed or {}
                    changed[name] = new
            elif old is not None and (one := f(old)) is not old:
                changed = changed or {}
                changed[name] = one
        return self.replace(**changed) if changed else self

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
    out.BACKWARDS = (out.CHILDREN[::-1], out.BODIES[::-1])
    NODES[cls.__name__] = out
    return out  # type: ignore[return-value]
