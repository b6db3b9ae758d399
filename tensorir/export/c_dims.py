"""C code that reads launch-time extents from a call's arguments and validates them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files as resources

from tensorir.codegen.names import identifier
from tensorir.codegen.source import Source
from tensorir.export.c_extents import tellers, variable
from tensorir.export.c_header import dim_names, extents_of, given, in_c, spaces


def dims_text(source: Source, called: str) -> str:
    """C definitions of the header's functions on launch-time extents; "" if all extents are constant."""
    if not source.dims:
        return ""
    names, said = dim_names(source, called), in_c(source)
    extents = [f"extents[{n}] = {said(e)};" for n, e in enumerate(extents_of(source))]
    taken = [f"const int64_t {variable(d.name)} = {name};" for d, name in zip(source.dims, names, strict=True)]
    lines = [
        resources("tensorir.export.shipped").joinpath("dims.c").read_text(encoding="utf-8"),
        *_reading(source, called),
        *_function(f"void {called}_extents(const int64_t *dims, int64_t *extents)",
                   [*_declared(source, "dims[{}]"), "(void)extents;", *extents]),
        *_function(f"size_t {called}_workspace_bytes({', '.join(f'int64_t {n}' for n in names)})",
                   [*taken, *_unused(source), f"return (size_t){said(spaces(source).nbytes)};"]),
    ]  # fmt: skip
    return "\n".join(lines)


def _reading(source: Source, called: str) -> Iterator[str]:
    """Yield C lines: the function ``NAME_dims``, which reads dims from the inputs' shapes, and its tables."""
    upper, order = called.upper(), [d.name for d in source.dims]
    yield "static const tir_dim tir_every_dim[] = {"
    yield from (f'  {{"{d.name}", {d.low}, {d.high}}},' for d in source.dims)
    yield "};"
    yield "static const tir_teller tir_tellers[] = {"
    rows = tellers(p.shape for p in source.inputs)
    for dim, n, axis, a, b in rows:
        yield f'  {{{order.index(dim)}, {n}, {axis}, {a}, {b}, "{identifier(source.inputs[n].name)}.shape[{axis}]"}},'
    yield "};"
    known = f"tir_told(tir_every_dim, {len(order)}, tir_tellers, {len(rows)}, shapes, dims, why, room)"
    yield from _function(
        f"int {called}_dims(const int64_t *const *shapes, int64_t *dims, char *why, size_t room)",
        [f"static const int codes[] = {{{upper}_OK, {upper}_DIM_RANGE, {upper}_DIM_DISAGREE}};",
         f"return codes[{known}];"],
    )  # fmt: skip


def _function(head: str, body: Sequence[str]) -> list[str]:
    return [f"{head} {{", *(f"  {line}" for line in body), "}"]


def _declared(source: Source, place: str) -> list[str]:
    """C lines that declare one variable per dim, initialized by ``place.format(number of the dim)``."""
    found = [f"const int64_t {variable(d.name)} = {place.format(n)};" for n, d in enumerate(source.dims)]
    return [*found, *_unused(source)]


def _unused(source: Source) -> list[str]:
    return [f"{', '.join(f'(void){variable(d.name)}' for d in source.dims)};"] if source.dims else []


def from_buffers(source: Source, only_if: str = "") -> list[str]:
    """C lines that declare one variable per dim, read from the function's argument ``buffers``.

    only_if: C condition under which ``buffers`` has the dims; where it is false, variables get the dims' least values
    """
    first = len(given(source)) - len(source.dims)
    lines = []
    for n, d in enumerate(source.dims, first):
        value = f"*(const int64_t *)buffers[{n}]"
        lines += [f"const int64_t {variable(d.name)} = {f'{only_if} ? {value} : {d.low}' if only_if else value};"]
    return [*lines, *_unused(source)]


def out_of_range(source: Source) -> list[tuple[str, str]]:
    """[(C condition, error message)], one per dim: the condition is true if the dim is out of its range."""
    return [
        (f"{v} < {d.low} || {v} > {d.high}", f"{d.name} is {d.low} to {d.high}")
        for d in source.dims for v in [variable(d.name)]
    ]  # fmt: skip
