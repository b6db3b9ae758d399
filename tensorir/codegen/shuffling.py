"""Text of vector shuffles: swizzles and selects in OpenCL C, ``__builtin_shuffle`` in C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tensorir.codegen.c_text import shuffle
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.lanes import lanes_of
from tensorir.ir.tree import Load, Shuffle

if TYPE_CHECKING:
    from tensorir.codegen.expressions import Expressions

_DIGITS = "0123456789abcdef"
_WHOLE_TYPES = {8: "char", 16: "short", 32: "int", 64: "long"}


def shuffled(to: Expressions, e: Shuffle) -> str:
    """Text of a Shuffle expression."""
    width, count = lanes_of(e.a), len(e.picks)
    texts = [to(x) if isinstance(x, Load) and x.buffer.lanes > 1 else f"({to(x)})" for x in (e.a, e.b)]
    if to.d.family == "c":
        if count == 1:
            return f"{texts[e.picks[0] // width]}[{e.picks[0] % width}]"
        to.vector_type(e.dtype, count)
        return shuffle(texts, e.picks)
    if width == count > 1 and all(k % width == n for n, k in enumerate(e.picks)) and max(e.picks) >= width:
        return _blend(texts, e)
    parts = [f"{texts[n]}.s{''.join(_DIGITS[k] for k in ks)}" for n, ks in _runs(e.picks, width)]
    return parts[0] if len(parts) == 1 else to.pack(e.dtype, count, parts)


def _blend(texts: Sequence[str], e: Shuffle) -> str:
    """A select that takes each lane from the same lane of one of two vectors."""
    count = len(e.picks)
    second = ", ".join("-1" if k >= count else "0" for k in e.picks)
    return f"({_WHOLE_TYPES[DTYPES[e.dtype].bits]}{count})({second}) ? {texts[1]} : {texts[0]}"


def _runs(picks: Sequence[int], width: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield (vector number, lanes) runs of consecutive ``picks`` from one vector, at most ``width`` each."""
    n = 0
    while n < len(picks):
        which = picks[n] // width
        same = next((k for k in range(n, len(picks)) if picks[k] // width != which), len(picks)) - n
        size = next(s for s in (16, 8, 4, 2, 1) if s <= same)
        yield which, [k % width for k in picks[n : n + size]]
        n += size
