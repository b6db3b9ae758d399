"""Parser of layouts "k, j -> j/16, k, j%16" and register fragments "i, j -> i%8, j/2%4 | i/8, j%2"."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.text_expr import LEAVES, ParsedText, spine
from tensorir.ir.layout import Fold, Piece, chain, recoverable, written
from tensorir.ir.tree import Layout


def parse_layout(text: str, rank: int, owner: str, fragment: bool = False) -> Layout:
    """Parse ``text`` to a Layout of ``rank`` dimensions; ``owner``: name for messages.

    fragment: pieces before ``|`` give the lane, pieces after it the register (none for one element per lane); ``*4``
              among the former: four lanes hold the same element
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

    def part(said: str) -> PieceText:
        return PieceText(said.strip(), names, lambda what: _syntax(text, _about(said.strip(), what), fragment))

    def piece(said: str, numbers_lanes: bool) -> Piece:
        copies = re.fullmatch(r"\s*\*\s*([1-9]\d{0,8})\s*", said) if numbers_lanes else None
        return part(said).piece() if copies is None else (-1, 1, int(copies[1]))

    pieces = tuple(piece(said, n < lanes) for n, (said, *_) in enumerate(parts))
    if any(not chain([p for p in pieces if p[0] == d]) for d in range(len(names))):
        raise _not_bijective(text, names, pieces, fragment)
    folds = tuple(tuple(part(f).fold() for f in onto) for _, *onto in parts)
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


def _about(part: str, what: str) -> str:
    return f"in {part!r} {what}" if part else "a piece is missing"


def _syntax(text: str, what: str, fragment: bool) -> ScheduleError:
    hint = _LANES if fragment else _PIECES
    return ScheduleError(Problem("layout.syntax", f"layout={text!r}: {what}", hint=hint))


class PieceText(ParsedText):
    """Parser of one index piece: ``j/4%4  ->  (j, 4, 4)``, with any number of divisions and remainders.

    refused: function from a fault to the exception to raise
    """

    pattern = re.compile(r"\s*(?:(?P<number>\d+(?![\w.]))|(?P<name>[^\W\d]\w*(?:[.&]\w+)*)|(?P<op>[-+/%*()]))")
    nodes = (*LEAVES, ast.BinOp, ast.Div, ast.Mod, ast.Mult)
    keywords, longest, digits = frozenset[str](), 1000, 10

    def __init__(self, part: str, names: Sequence[str], refused: Callable[[str], Exception]) -> None:
        self.names, self.refused = names, refused
        super().__init__(part)

    def refusal(self, message: str, hint: str = "", at: int | None = 0) -> Exception:
        return self.refused(message)

    def piece(self) -> Piece:
        """(dimension, divisor, extent) of the piece; extent 0 without ``%``. Raises ``refused`` of a fault."""
        return self._piece(self.tree)

    def fold(self) -> Fold:
        """(dimension, divisor, extent, scale) of a piece to xor; ``refused`` if extent or scale is no power of two."""
        node, scale = self.tree, 1
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                node, scale = left, self._number(right)
        d, divisor, extent = self._piece(node)
        for n in (extent, scale):
            if n < 1 or n & (n - 1):
                values = f"{self.names[d]}/4%4, not {n or 'any'}"
                raise self.refused(f"after ^ a piece has 2, 4, 8 … values, as in {values}")
        return d, divisor, extent, scale

    def _piece(self, node: ast.expr) -> Piece:
        first, rest = spine(node)
        name = self.said(first)
        if not isinstance(first, ast.Name) or name not in self.names:
            raise self.refused(f"{name!r} is none of {', '.join(self.names) or 'no names'}")
        divisor, extent = 1, 0
        for op, node_ in rest:
            n = self._number(node_)
            if isinstance(op, ast.Mult):
                raise self.refused(f"{self.text!r} is no part of {name}")
            if extent % n:  # i%12/4 and i%12%4 are pieces, i%12/5 is not
                raise self.refused(f"{n} does not divide {extent}")
            divisor, extent = (divisor, n) if isinstance(op, ast.Mod) else (divisor * n, extent // n)
        return self.names.index(name), divisor, extent

    def _number(self, node: ast.expr) -> int:
        n = node.value if isinstance(node, ast.Constant) else 0
        if type(n) is not int or not 0 < n < 2**31:
            raise self.refused(f"a number from 1 up is expected, not {self.said(node)}")
        return n


def _not_bijective(text: str, names: tuple[str, ...], pieces: tuple[Piece, ...], fragment: bool) -> ScheduleError:
    """ScheduleError that names the first dimension not covered exactly once, with a correct layout as hint."""
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
