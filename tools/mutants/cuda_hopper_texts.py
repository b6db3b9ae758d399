"""Small changes of the text of kernels with roles: barriers that count, copies and products of whole tiles."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

CALLS = re.compile(
    r"tir_barrier_(?:wait|arrive|expect)\(|tir_barriers_ready\(|tir_wgmma_(?:fence|commit)\(|tir_wgmma_wait<|tir_hold\(|"
    r"tir_registers_|tir_tma_(?:load|store|im2col)\(|tir_wgmma_m64|for \(int n = 0;.*tir_barrier_init|"
    r"const int warpgroup = __shfl_sync"
)
"""Lines whose numbers have kinds of their own, or that change nothing but what the compiler gives to whom."""
ORDERING = (
    r"tir_hold\(|tir_barrier_(?:wait|arrive|expect)\(|tir_barriers_ready\(|tir_wgmma_(?:fence|commit)\(|tir_wgmma_wait<|"
    r"tir_async_fence\(|tir_commit_stores\(|tir_wait_stores<|tir_sync_some\("
)
NAMES = {
    "tir_barrier_wait": "wait for a phase", "tir_barrier_arrive": "arrival", "tir_barrier_expect": "announced bytes",
    "tir_barriers_ready": "fence of barriers", "tir_wgmma_fence": "fence", "tir_wgmma_commit": "commit of products",
    "tir_wgmma_wait": "wait for products", "tir_hold": "hold of registers", "tir_wgmma_m64": "product",
    "tir_tma_im2col": "copy of pixels", "tir_tma_load": "copy",
    "tir_tma_store": "copy of results", "tir_async_fence": "fence of copies",
    "tir_commit_stores": "commit of stores", "tir_wait_stores": "wait for stores", "tir_sync_some": "barrier of a role",
}  # fmt: skip
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True)
class Span:
    """Characters ``start`` to ``end`` become ``new``: an edit of ``kind``."""

    kind: str
    start: int
    end: int
    new: str


def arguments(text: str, at: int) -> list[tuple[int, int]]:
    """Where the arguments of the call whose bracket opens at ``at`` begin and end."""
    out, depth, first = [], 0, at + 1
    for n in range(at, len(text)):
        depth += (text[n] in "([") - (text[n] in ")]")
        if depth == 0 or (depth == 1 and text[n] == ","):
            out.append((first + (text[first] == " "), n))
            first = n + 1
        if depth == 0:
            return out
    raise ValueError("a bracket is not closed")


def calls(text: str, name: str, start: int, end: int) -> Iterator[list[tuple[int, int]]]:
    """The arguments of each call of a function whose name matches."""
    for m in re.finditer(rf"\b{name}\(", text[start:end]):
        yield arguments(text, start + m.end() - 1)


def edits(text: str, start: int, end: int) -> Iterator[Span]:
    """All changes of a kernel between two places."""
    yield from _phases(text, start, end)
    yield from _starts(text, start, end)
    yield from _copies(text, start, end)
    yield from _meetings(text, start, end)
    yield from _products(text, start, end)
    for m in re.finditer(r"tir_(?:wgmma_wait|wait_stores)<(\d+)>", text[start:end]):
        yield Span("wait for one group less", start + m.start(1), start + m.end(1), str(int(m[1]) + 1))
    for m in re.finditer(r"\n *(.*?) \*const \w+ = .*\(tir_shared \+ (\d+)\)", text[start:end]):
        for by in (-1024, -4) if m[1] == "unsigned long long" else (-1024, -8, 8):  # some barriers have room around
            yield Span("arrays overlap", start + m.start(2), start + m.end(2), str(int(m[2]) + by))
    for m in re.finditer(r"0 < [^&;]+ && (?=lane)", text[start:end]):
        yield Span("condition left out", start + m.start(), start + m.end(), "")
    for m in re.finditer(r"if \((threadIdx\.x == 0)\)", text[start:end]):
        yield Span("all threads in a role of one", start + m.start(1), start + m.end(1), "true")


def _phases(text: str, start: int, end: int) -> Iterator[Span]:
    """Which barrier, which phase, how many bytes."""
    for _, (left, right) in calls(text, "tir_barrier_wait", start, end):
        yield Span("another parity", left, right, f"1 - ({text[left:right]})")
        for m in re.finditer(r"(?<=/ )\d+", text[left:right]):
            for by in (1, -1):
                yield Span("parity of another turn", left + m.start(), left + m.end(), str(int(m[0]) + by))
    for m in re.finditer(r"&(?:full|empty|order)\[(.*?) % (\d+)\]", text[start:end]):
        for by in sorted({1, int(m[2]) - 1}):
            yield Span("barrier of another slot", start + m.start(1), start + m.end(1), f"({m[1]} + {by})")
    for m in re.finditer(r"&(full|empty|order)(?=\[)", text[start:end]):
        yield Span("the other barrier", start + m.start(1), start + m.end(1), "empty" if m[1] == "full" else "full")
    for _, (left, right) in calls(text, "tir_barrier_expect", start, end):
        size = int(text[left:right])
        for new in (size // 2, size - 16, size + 16, 2 * size):
            yield Span("other bytes announced", left, right, str(new))


def _starts(text: str, start: int, end: int) -> Iterator[Span]:
    """How many barriers begin, and for how many arrivals."""
    for m in re.finditer(r"for \(int n = 0; n < (\d+); \+\+n\) tir_barrier_init\(&\w+\[n\], (\d+)\);", text[start:end]):
        whole = start + m.start(), start + m.end()
        yield Span("dropped start of barriers", *whole, ";")
        for by in (1, -1):
            yield Span("barriers begun by one", start + m.start(1), start + m.end(1), str(int(m[1]) + by))
            yield Span("arrivals by one", start + m.start(2), start + m.end(2), str(int(m[2]) + by))


def _copies(text: str, start: int, end: int) -> Iterator[Span]:
    """Where a copied tile comes from and where it goes."""
    loads = [(to, of, at) for to, of, _, *at in calls(text, "tir_tma_(?:load|im2col)", start, end)]
    stores = [(place, of, at) for of, place, *at in calls(text, "tir_tma_store", start, end)]
    maps = list(dict.fromkeys(text[slice(*of)] for _, of, _ in (*loads, *stores)))
    for place, of, at in (*loads, *stores):
        yield from _numbers(text, *place, "place of a copy")
        for other in maps:
            if other != text[slice(*of)]:
                yield Span("the other tensor", *of, other)
        for left, right in at:
            for by in ("+ 1", "- 1", "+ 8"):
                yield Span("coordinate of a copy", left, right, f"{text[left:right]} {by}")
        for left, right in at[4:]:  # behind (c, w, h, n) of a pixel, or the fifth coordinate
            yield Span("offset of a copy left out", left, right, "0")
        for (left, stop), (begin, right) in itertools.pairwise(at):
            new = text[begin:right] + text[stop:begin] + text[left:stop]
            yield Span("coordinates exchanged", left, right, new)


def _meetings(text: str, start: int, end: int) -> Iterator[Span]:
    """Barriers of parts of a block: another number, other threads."""
    for number, threads in calls(text, "tir_sync_some", start, end):
        given = text[slice(*number)]
        for by in (1, -1):
            new = str(int(given) + by) if given.isdigit() else f"{given} {by:+}"
            yield Span("number of a barrier by one", *number, new)
        for by in (32, -32):
            yield Span("threads at a barrier by 32", *threads, str(int(text[slice(*threads)]) + by))


def _products(text: str, start: int, end: int) -> Iterator[Span]:
    """Where the tiles of a product lie, and what is said of them."""
    for place, leading, stride in calls(text, "tir_descriptor", start, end):
        yield from _numbers(text, *place, "place of a tile")
        for kind, (left, right) in (("leading step of a tile", leading), ("step of a tile", stride)):
            n = int(text[left:right])
            for new in (2 * n, n // 2, n + 16):
                yield Span(kind, left, right, str(new))
        whole = f"{text[slice(*stride)]}, {text[slice(*leading)]}"
        yield Span("steps exchanged", leading[0], stride[1], whole)
    for sums, (left, stop), (begin, right), *adds in calls(text, r"tir_wgmma_m64\w+", start, end):
        yield Span("operands exchanged", left, right, text[begin:right] + text[stop:begin] + text[left:stop])
        yield Span("other registers of a product", *sums, f"{text[slice(*sums)]} + 2")
        for place in adds:
            given = text[slice(*place)]
            for new in ("1", "0", f"!({given})", given.replace(" || ", " && "), given.replace("0 <", "1 <")):
                yield Span("which products begin a sum", *place, new)


def _numbers(text: str, left: int, right: int, kind: str) -> Iterator[Span]:
    for m in _NUMBER.finditer(text[left:right]):
        for new in (int(m[0]) + 1, 2 * int(m[0])):
            yield Span(kind, left + m.start(), left + m.end(), str(new))
