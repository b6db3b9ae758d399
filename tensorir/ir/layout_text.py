"""Layouts as users write them: "k, j -> j/16, k, j%16", and fragments: "i, j -> i%8, j/2%4 | i/8, j%2"."""

from __future__ import annotations

import re

from tensorir.errors import Problem, ScheduleError
from tensorir.ir.layout import Fold, Piece, chain, recoverable, written
from tensorir.ir.tree import Layout


def parse_layout(text: str, rank: int, owner: str, fragment: bool = False) -> Layout:
    """The layout that ``text`` says for ``owner``, of ``rank`` dimensions.

    fragment: the pieces before a ``|`` number the lane of a warp that holds an element, those after it its register,
              none of them where each lane has one element; ``*4`` among the former stands for four lanes that all hold
              it
    Raises ScheduleError: ``layout.syntax``, ``layout.rank``, ``layout.not-bijective``, ``layout.fold``.
    """
    left, arrow, right = text.partition("->")
    names = tuple(n.strip() for n in left.split(",")) if left.strip() else ()
    bad = [n for n in names if not re.fullmatch(r"[A-Za-z_]\w*", n)]
    if not arrow or bad or len(set(names)) < len(names):
        what = f"{bad[0]!r} is no name" if bad else "a name stands twice on the left" if arrow else "there is no ->"
        raise _syntax(text, what, fragment)
    if len(names) != rank:
        some = [f"d{n}" for n in range(rank)]
        raise ScheduleError(
            Problem(
                "layout.rank",
                f"layout={text!r} names {len(names)} dimensions, {owner} has {len(some)}",
                hint=f"layout='{', '.join(some)} -> {', '.join(some)}'",
            )
        )
    held, bar, kept = right.partition("|") if fragment else ("", "", right)
    if fragment and not bar:
        raise _syntax(text, "no | stands between what numbers the lanes and what numbers their registers", fragment)
    lanes = len(held.split(",")) if bar else 0
    registers = () if bar and not kept.strip() else kept.split(",")
    parts = [part.split("^") for part in [*(held.split(",") if bar else ()), *registers]]
    pieces = tuple(_Pieces(text, names, part, fragment).piece(n < lanes) for n, (part, *_) in enumerate(parts))
    if any(not chain([p for p in pieces if p[0] == d]) for d in range(len(names))):
        raise _not_bijective(text, names, pieces, fragment)
    folds = tuple(tuple(_Pieces(text, names, f, fragment).fold() for f in onto) for _, *onto in parts)
    if not any(folds):
        return Layout(names, pieces, lanes=lanes)
    if fragment:
        raise _syntax(text, "what lanes hold is not xored", fragment)
    found = Layout(names, pieces, folds=folds)
    if not recoverable(found):
        raise ScheduleError(
            Problem(
                "layout.fold",
                f"layout={text!r}: what is xored onto a storage dimension must stand in another one that has no ^",
                hint="'k, j -> k, j/4 ^ k%8, j%4'",
            )
        )
    return found


_PIECES = "names, an arrow, pieces of them: 'o, c -> o/16, c/4, c%4, o%16'; chains as o/4%4"
_LANES = (
    "what numbers the lanes, |, what numbers their registers: 'i, k -> i%8, k/2%4 | k/8, i/8, k%2', 'i, k -> i, k |'"
)


def _syntax(text: str, what: str, fragment: bool) -> ScheduleError:
    hint = _LANES if fragment else _PIECES
    return ScheduleError(Problem("layout.syntax", f"layout={text!r}: {what}", hint=hint))


class _Pieces:
    """One storage dimension: a name, divided and cut off any number of times."""

    def __init__(self, text: str, names: tuple[str, ...], part: str, fragment: bool) -> None:
        self.text, self.names, self.part, self.fragment = text, names, part.strip(), fragment
        self.tokens = re.findall(r"[A-Za-z_]\w*|[0-9]+|\S", part)

    def piece(self, lanes: bool = False) -> Piece:
        """The whole part as a piece; among those that number ``lanes``, some may stand for all."""
        if lanes and self.tokens[:1] == ["*"]:
            self.tokens.pop(0)
            return -1, 1, self._number()
        found = self._chain()
        if self.tokens:
            raise self._bad(f"{self.tokens[0]} is not expected there")
        return found

    def fold(self) -> Fold:
        """The whole part as what is xored: a piece of 2, 4, 8 … values, perhaps times such a number."""
        d, divisor, extent = self._chain()
        scale = 1
        if self.tokens and self.tokens[0] == "*":
            self.tokens.pop(0)
            scale = self._number()
        if self.tokens:
            raise self._bad(f"{self.tokens[0]} is not expected there")
        for n in (extent, scale):
            if n < 1 or n & (n - 1):
                raise self._bad(f"after ^ a piece has 2, 4, 8 … values, as in {self.names[d]}/4%4, not {n or 'any'}")
        return d, divisor, extent, scale

    def _chain(self) -> Piece:
        d, divisor, extent = self._name()
        while self.tokens and self.tokens[0] in "/%":
            op, n = self.tokens.pop(0), self._number()
            if extent % n:  # i%12/4 and i%12%4 are pieces, i%12/5 is not
                raise self._bad(f"{n} does not divide {extent}")
            if op == "%":
                extent = n
            else:
                divisor, extent = divisor * n, extent // n
        return d, divisor, extent

    def _name(self) -> Piece:
        first = self.tokens.pop(0) if self.tokens else ""
        if first == "(":
            found = self._chain()
            if not self.tokens or self.tokens.pop(0) != ")":
                raise self._bad("a parenthesis is not closed")
            return found
        if first not in self.names:
            known = ", ".join(self.names) or "no names"
            raise self._bad(f"{first or 'nothing'} is not one of {known}")
        return self.names.index(first), 1, 0

    def _number(self) -> int:
        n = self.tokens.pop(0) if self.tokens else ""
        if not n.isdecimal() or not 0 < int(n) < 2**31:
            raise self._bad(f"a number from 1 up is expected, not {n or 'nothing'}")
        return int(n)

    def _bad(self, what: str) -> ScheduleError:
        return _syntax(self.text, f"in {self.part!r} {what}" if self.part else "a piece is missing", self.fragment)


def _not_bijective(text: str, names: tuple[str, ...], pieces: tuple[Piece, ...], fragment: bool) -> ScheduleError:
    """Names the first dimension that is not covered once, with a layout that divides each of them at most once; of a
    fragment, with what does cover one.
    """
    pieces = tuple(p for p in pieces if p[0] >= 0)
    d = next(n for n in range(len(names)) if not chain([p for p in pieces if p[0] == n]))
    mine = [p for p in pieces if p[0] == d]
    shown = ", ".join(written(Layout(names, (p,))).split(" -> ")[1] for p in mine)
    what = f"the pieces {shown} do not cover {names[d]} exactly once" if mine else f"{names[d]} is not stored"
    if fragment:
        name = names[d]
        hint = f"{name} alone, or all of its parts, in lanes and registers together: {name}%8 and {name}/8"
        return ScheduleError(Problem("layout.not-bijective", f"layout={text!r}: {what}", hint=hint))
    block = {n: max((q for _, a, e in pieces if _ == n for q in (a, e)), default=1) for n in range(len(names))}
    outer = [n for n in range(len(names)) if n not in {p[0] for p in pieces}]
    outer += list(dict.fromkeys(p[0] for p in pieces))
    inner = [n for n in dict.fromkeys(p[0] for p in pieces) if block[n] > 1]
    legal = [(n, max(block[n], 1), 0) for n in outer] + [(n, 1, block[n]) for n in inner]
    return ScheduleError(
        Problem(
            "layout.not-bijective",
            f"layout={text!r}: {what}",
            hint=f"layout={written(Layout(names, tuple(legal)))!r}",
        )
    )
