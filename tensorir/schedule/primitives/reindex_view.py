"""Parser and algebra of axis views such as "n, p | c -> i = (n, p), k = c": mixed-radix bijections between axes."""

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
    """One new axis, as pieces (old axis number, divisor, extent or 0) from most to least significant."""

    name: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class View:
    """A parsed view: old spatial axes, old reduce axes, new axes in order.

    backwards: old axes with a minus, which the new ones count from their end
    """

    text: str
    spatial: tuple[str, ...]
    reduced: tuple[str, ...]
    new: tuple[Component, ...]
    backwards: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the old axes."""
        return self.spatial + self.reduced


def parse_view(text: str) -> View:
    """Parse ``text`` to a View. Raises ScheduleError ``reindex.syntax``."""
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
    """Parse the right side: "i = (n, p), ko = k/8, j" to Components over axes ``names``; "j" means "j = j"."""
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
    """A map from old axes of known extents to new ones; ``witness`` tests that it is bijective.

    names, extents: the old axes;  new: Components of the new ones
    last: {old axis number: last value} of axes counted backwards
    """

    names: tuple[str, ...]
    extents: tuple[int, ...]
    new: tuple[Component, ...]
    last: Mapping[int, int] = field(default_factory=dict)

    def pieces(self, n: int) -> list[Piece]:
        """Pieces (axis, divisor, extent) of old axis ``n`` that occur in the new axes."""
        return [p for c in self.new for p in c.pieces if p[0] == n]

    def extent(self, piece: Piece) -> int:
        """Number of values of a piece."""
        number, divisor, extent = piece
        return extent or -(-self.extents[number] // divisor)

    def _values(self, piece: Piece) -> int:
        """Number of values of a piece, at least 1, for use as a divisor."""
        return max(1, self.extent(piece))

    def size(self, c: Component) -> int:
        """Extent of new axis ``c``."""
        return math.prod(map(self.extent, c.pieces))

    def forward(self, c: Component, of: Sequence[Expr]) -> Expr:
        """New axis ``c`` as an expression of the old axes ``of``."""
        out: Expr = const(0)
        for number, divisor, extent in c.pieces:
            whole = binary("-", self.last[number], of[number]) if number in self.last else of[number]
            part = binary("//", whole, divisor)
            part = binary("%", part, extent) if extent else part
            out = binary("+", binary("*", out, self._values((number, divisor, extent))), part)
        return out

    def back(self, axes: Sequence[Expr]) -> list[Expr]:
        """Old axes as expressions of the new ones ``axes``."""
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
        """Yield the numbers of old axes that new ones overshoot, as pieces do not divide their extents."""
        for n, extent in enumerate(self.extents):
            if math.prod(map(self.extent, self.pieces(n))) > extent:
                yield n

    def witness(self) -> tuple[int, str] | None:
        """(old axis, explanation with two colliding or missing values) if the map is not bijective, else None."""
        for n, (name, extent) in enumerate(zip(self.names, self.extents, strict=True)):
            if not chain(self.pieces(n)):
                return n, _witness(name, extent, self.pieces(n))
        return None

    def proved(self) -> bool:
        """True if symbolic arithmetic confirms forward(back(axes)) == axes."""
        axes = [Var(c.name, "index") for c in self.new]
        arith = Arith({v: (0, max(1, self.size(c)) - 1) for v, c in zip(axes, self.new, strict=True)})
        old = self.back(axes)
        off = [arith.linear(self.forward(c, old)).plus(Linear({v: 1}, 0), -1)
               for v, c in zip(axes, self.new, strict=True)]  # fmt: skip
        return all(arith.range_of(d) == (0, 0) for d in off)


def _witness(name: str, extent: int, pieces: Sequence[Piece]) -> str:
    """Explanation with two axis values of equal pieces, or piece values without an axis value; "" if none."""
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
