"""Views of a domain: new axes that are made of old ones and of parts of them, and back, by mixed radix."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorir.arith.affine import Arith, Linear
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import binary, const
from tensorir.ir.layout import Piece, chain
from tensorir.ir.layout_text import PieceText
from tensorir.ir.tree import Expr, Var

TRIED_VALUES = 64
"""Values of an axis among which a witness is looked for."""
HINT = "'n, p, q, k | r, s, c -> i = (n, p, q), j = k, t = (r, s, c)'; parts of an axis as jo = j/16, ji = j%16"


@dataclass(frozen=True)
class Component:
    """One new axis: pieces (number of the old axis, divisor, extent or 0) of old ones, outermost first."""

    name: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class View:
    """The text of a reindex, read: old spatial axes, old reduce axes, and the new axes in their order.

    backwards: old axes with a minus, which the new ones count from their end
    """

    text: str
    spatial: tuple[str, ...]
    reduced: tuple[str, ...]
    new: tuple[Component, ...]
    backwards: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """The old axes."""
        return self.spatial + self.reduced


def parse_view(text: str) -> View:
    """The view that ``text`` says. Raises ScheduleError ``reindex.syntax``."""
    left, arrow, right = text.partition("->")
    said = [tuple(n.strip() for n in side.split(",") if n.strip()) for side in left.split("|")]
    backwards = frozenset(n[1:].strip() for side in said for n in side if n.startswith("-"))
    sides = [tuple(n.removeprefix("-").strip() for n in side) for side in said]
    names = tuple(itertools.chain(*sides))
    bad = [n for n in names if not re.fullmatch(r"[A-Za-z_][\w.&]*", n)]
    if not arrow or len(sides) > 2 or bad or len(set(names)) < len(names):
        many = "there is a second |" if len(sides) > 2 else "an axis stands twice on the left"
        raise _syntax(text, f"{bad[0]!r} is no name" if bad else many if arrow else "there is no ->")
    return View(text, sides[0], sides[1] if len(sides) > 1 else (), components(text, names, right), backwards)


def components(text: str, names: Sequence[str], right: str) -> tuple[Component, ...]:
    """The new axes that ``right``, a part of ``text``, makes of ``names``: "i = (n, p), ko = k/8, j"; j is j = j."""
    parts = [p.strip() for p in re.split(r",(?![^(]*\))", right)] if right.strip() else []
    new = tuple(_component(text, names, part) for part in parts)
    labels = [c.name for c in new]
    if twice := [n for n in labels if labels.count(n) > 1]:
        raise _syntax(text, f"{twice[0]} is made twice")
    return new


def _component(text: str, names: Sequence[str], part: str) -> Component:
    label, is_, said = (x.strip() for x in part.partition("="))
    said = said if is_ else label
    if not re.fullmatch(r"[A-Za-z_]\w*", label):
        raise _syntax(text, f"{part!r} is no new axis with what it is made of")
    inner = said[1:-1] if said.startswith("(") and said.endswith(")") else said
    pieces = []
    for item in inner.split(","):
        said = item.strip()
        if not said or "(" in said:
            raise _syntax(text, f"{said or 'nothing'!r} is none of {', '.join(names) or 'no axes'}")
        refused = functools.partial(_refused, text, said)
        pieces.append(PieceText(said, names, refused).piece())
    return Component(label, tuple(pieces))


def _refused(text: str, part: str, what: str) -> ScheduleError:
    return _syntax(text, f"in {part!r} {what}")


def _syntax(text: str, what: str) -> ScheduleError:
    return ScheduleError(Problem("reindex.syntax", f"{text!r}: {what}", hint=HINT))


@dataclass(frozen=True)
class Bijection:
    """New axes for old ones of known extents; see ``witness`` for whether it is one.

    names, extents: the old axes;  new: what the new ones are made of
    last: numbers of old axes that are counted backwards, each with its last value, which is 0 then
    """

    names: tuple[str, ...]
    extents: tuple[int, ...]
    new: tuple[Component, ...]
    last: Mapping[int, int] = field(default_factory=dict)

    def pieces(self, n: int) -> list[Piece]:
        """The parts of old axis ``n`` in the new axes."""
        return [p for c in self.new for p in c.pieces if p[0] == n]

    def extent(self, piece: Piece) -> int:
        """Values that a piece takes."""
        number, divisor, extent = piece
        return extent or -(-self.extents[number] // divisor)

    def _values(self, piece: Piece) -> int:
        """The same, to divide by: an axis without iterations has no places that could differ."""
        return max(1, self.extent(piece))

    def size(self, c: Component) -> int:
        """Extent of a new axis."""
        return math.prod(map(self.extent, c.pieces))

    def forward(self, c: Component, of: Sequence[Expr]) -> Expr:
        """A new axis in terms of the old ones ``of``."""
        out: Expr = const(0)
        for number, divisor, extent in c.pieces:
            whole = binary("-", self.last[number], of[number]) if number in self.last else of[number]
            part = binary("//", whole, divisor)
            part = binary("%", part, extent) if extent else part
            out = binary("+", binary("*", out, self._values((number, divisor, extent))), part)
        return out

    def back(self, axes: Sequence[Expr]) -> list[Expr]:
        """The old axes in terms of the new ones ``axes``, the parts that count most first."""
        parts: list[tuple[Piece, Expr]] = []
        for c, axis in zip(self.new, axes, strict=True):
            rest = math.prod(map(self._values, c.pieces))
            for n, piece in enumerate(c.pieces):
                rest //= self._values(piece)
                part = binary("//", axis, rest)
                parts.append((piece, part if n == 0 else binary("%", part, self._values(piece))))
        out: list[Expr] = [const(0) for _ in self.extents]
        for (number, divisor, _), part in sorted(parts, key=lambda p: -p[0][1]):
            out[number] = binary("+", out[number], binary("*", part, divisor))
        return [binary("-", self.last[n], e) if n in self.last else e for n, e in enumerate(out)]

    def beyond(self) -> Iterator[int]:
        """Old axes of which the new ones take values that there are not: parts that do not divide."""
        for n, extent in enumerate(self.extents):
            if math.prod(map(self.extent, self.pieces(n))) > extent:
                yield n

    def witness(self) -> tuple[int, str] | None:
        """An old axis that is not made up exactly once, and two of its values that are one, or one that is none."""
        for n, (name, extent) in enumerate(zip(self.names, self.extents, strict=True)):
            if not chain(self.pieces(n)):
                return n, _witness(name, extent, self.pieces(n))
        return None

    def proved(self) -> bool:
        """True when arithmetic agrees that the new axes of the old ones of the new axes are these."""
        axes = [Var(c.name, "index") for c in self.new]
        arith = Arith({v: (0, max(1, self.size(c)) - 1) for v, c in zip(axes, self.new, strict=True)})
        old = self.back(axes)
        off = [arith.linear(self.forward(c, old)).plus(Linear({v: 1}, 0), -1)
               for v, c in zip(axes, self.new, strict=True)]  # fmt: skip
        return all(arith.range_of(d) == (0, 0) for d in off)


def _witness(name: str, extent: int, pieces: Sequence[Piece]) -> str:
    """Two values of an axis that the pieces do not tell apart, or values of the pieces that no value of it has."""
    if not pieces:
        return f"{name} is nowhere on the right: {name} = 0 and {name} = 1 would be one iteration"
    said = [f"{name}{f'/{d}' if d > 1 else ''}{f'%{e}' if e else ''}" for _, d, e in pieces]
    seen: dict[tuple[int, ...], int] = {}
    for v in range(min(extent, TRIED_VALUES)):
        place = tuple(v // d % e if e else v // d for _, d, e in pieces)
        if place in seen:
            return (
                f"{name} = {seen[place]} and {name} = {v} would be one iteration: both have {', '.join(said)} = {place}"
            )
        seen[place] = v
    sizes = [min(e or -(-extent // d), TRIED_VALUES) for _, d, e in pieces]
    for place in itertools.product(*map(range, sizes)):
        if place not in seen and not all(p == 0 for p in place):
            return f"no {name} has {', '.join(said)} = {', '.join(map(str, place))}, which the new axes would run"
    return f"{', '.join(said)} do not make up {name} exactly once"
