"""C code that validates index arguments of an exported function before it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorir.codegen.source import Param, SegmentRange, Source, UniquePlaces
from tensorir.export.c_extents import InC, times
from tensorir.export.c_header import in_c


def checks_of(source: Source, given: Sequence[Param], upper: str) -> Iterable[str]:
    """Yield C lines that make the function return NAME_INDEX for out-of-range indices, unordered or overlong segment
    offsets, and colliding scatter targets.

    given: parameters in the order of ``buffers``;  upper: NAME
    """
    said = in_c(source)
    places = {p.name: (n, p) for n, p in enumerate(given)}
    for g in source.gathers:
        if g.param not in places:
            continue
        n, p = places[g.param]
        wide, low = ("uint64_t", "") if p.dtype == "uint64" else ("int64_t", "v < 0 || ")
        limit = f"INT64_C({g.limit})" if isinstance(g.limit, int) else said(g.limit)
        yield _each(said(times(p.shape)))
        for d, part in enumerate(g.part):
            if part:
                start, stop, step = part
                inner, extent = said(times(p.shape[d + 1 :])), said(p.shape[d])
                yield f"    const size_t d{d} = n / (size_t){inner} % (size_t){extent};"
                aside = f" || (d{d} - {start}) % {step}" if step > 1 else ""
                yield f"    if (d{d} < {start} || d{d} >= {stop}{aside}) continue;"
        yield f"    const {wide} v = ((const {_kind(p)} *)buffers[{n}])[n];"
        yield f"    if ({low}v >= {limit if low else f'(uint64_t){limit}'}) return {upper}_INDEX;"
        yield "  }"
    for s in source.segments:
        if s.param in places:
            yield from _segments(*places[s.param], s, upper, said)
    for u in source.unique:
        if all(name in places for name, _ in u.index if name):
            yield from _unique(u, places, upper, said)


def _each(count: str, more: str = "") -> str:
    return f"  for (size_t n = 0; n < (size_t){count}{more}; ++n) {{"


def _segments(n: int, p: Param, s: SegmentRange, upper: str, said: InC) -> Iterable[str]:
    """Yield C lines that return NAME_INDEX unless adjacent segment offsets increase by 0 to ``most``, without
    overflow.
    """
    inner, extent = said(times(p.shape[s.along + 1 :])), said(p.shape[s.along])
    yield _each(said(times(p.shape)))
    yield f"    if (n / (size_t){inner} % (size_t){extent} == (size_t){extent} - 1) continue;"
    yield f"    const {_kind(p)} *v = (const {_kind(p)} *)buffers[{n}] + n;"
    yield f"    const uint64_t terms = (uint64_t)v[{inner}] - (uint64_t)v[0];"
    yield f"    if (v[{inner}] < v[0] || terms > UINT64_C({s.most})) return {upper}_INDEX;"
    yield "  }"


def _unique(u: UniquePlaces, places: Mapping[str, tuple[int, Param]], upper: str, said: InC) -> Iterable[str]:
    """Yield C lines that return NAME_INDEX if two terms of a scatter have the same target; indices must be in range."""
    at, cells = "0", times(u.shape)
    for (name, axes), extent in zip(u.index, u.shape, strict=True):
        at = f"({at}) * (size_t){said(extent)} + (size_t){_place(name, axes, u, places, said)}"
    yield "  {"
    yield f"    unsigned char *seen = calloc((size_t){said(cells or 1)}, 1);"
    yield f"    if (!seen) return {upper}_MEMORY;"
    yield "    int twice = 0;"
    yield f"  {_each(said(times(u.domain)), ' && !twice')}"
    yield f"      const size_t cell = {at};"
    yield "      twice = seen[cell], seen[cell] = 1;"
    yield "    }"
    yield "    free(seen);"
    yield f"    if (twice) return {upper}_INDEX;"
    yield "  }"


def _place(name: str, axes: Sequence[int], u: UniquePlaces, places: Mapping[str, tuple[int, Param]], said: InC) -> str:
    """C expression of one index of the target cell of scatter term number ``n`` (a C variable).

    name, axes: entry of ``UniquePlaces.index``
    """
    if not name and axes[0] < 0:
        return str(axes[1])
    along = [str(-1 - a) if a < 0 else f"n / (size_t){said(times(u.domain[a + 1 :]))} % (size_t){said(u.domain[a])}"
             for a in axes]  # fmt: skip
    if not name:
        return f"({along[0]})"
    n, p = places[name]
    flat = "0"
    for a, extent in zip(along, p.shape, strict=True):
        flat = f"({flat}) * (size_t){said(extent)} + {a}"
    return f"((const {_kind(p)} *)buffers[{n}])[{flat}]"


def _kind(p: Param) -> str:
    """C integer type of an input."""
    return f"{p.dtype}_t"
