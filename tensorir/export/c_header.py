"""Generates ``NAME.h``, the C declarations of an exported function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorir.codegen.names import identifier
from tensorir.codegen.source import Param, Source, itemsize
from tensorir.export.c_extents import InC, open_extents, plus, rounded, times
from tensorir.ir.dtypes import WIDENED
from tensorir.ir.extents import Extent

SPACE_ALIGN = 64
ERRORS = {
    "NULL": "an address is NULL",
    "ALIGNMENT": "an address is no multiple of its elements' size, or of 64 where it has to be",
    "MEMORY": "there is no memory for the workspace, or for what a block keeps",
    "INDEX": "an element that is used as an index is out of range, out of order or there twice",
    "THREADS": "parallel_for failed",
    "SIZE": "tir_call.size is not set",
}
"""Errors by name, with codes from 1 on."""
DIM_ERRORS = {
    "DIM_RANGE": "an extent is out of the range that its dim was declared with",
    "DIM_DISAGREE": "two arrays have different extents where a dim is one",
}
"""Errors of programs with dims; their codes are the last ones."""

_CALL = """\
#ifndef TIR_CALL
#define TIR_CALL
/* How to run a kernel; NULL in place of its address: with what the kernel finds itself. */
typedef struct tir_call {
  size_t size;      /* sizeof(tir_call); less: the fields after that are not there, and count as 0 */
  void *stream;     /* not used on processors */
  int (*parallel_for)(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state); /* 0: it ran */
  void *pool;       /* its first argument; without parallel_for the kernel has threads that sleep between calls */
  void *workspace;  /* 64-byte aligned, NAME_workspace_bytes that nobody else uses meanwhile; NULL: memory of its own */
  int threads;      /* at most so many; 0: as many as the process may use */
} tir_call;
#endif"""


def header(source: Source, called: str, errors: Mapping[str, str] = ERRORS, more: Sequence[str] = ()) -> str:
    """Text of ``NAME.h``.

    called: NAME;  errors: {name: meaning} of return codes, from 1 on;  more: lines with further declarations
    """
    upper, errors = called.upper(), {**errors, **(DIM_ERRORS if source.dims else {})}
    lines = [f"/* {_signature(source)} */", f"#ifndef {upper}_H", f"#define {upper}_H"]
    lines += ["#include <stddef.h>", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif", _CALL, ""]
    codes = [f"{upper}_{name} = {n}" for n, name in enumerate(errors, 1)]
    lines += ["enum {", f"  {upper}_OK = 0,"]
    lines += [f"  {code}, /* {why} */" for code, why in zip(codes, errors.values(), strict=True)]
    lines += ["};", "", *_workspace(source, called)]
    lines += ["", "/* Run on arrays, row-major and contiguous, and numbers by their addresses:"]
    lines += [f"   buffers[{n}]: {_said(p, source)}" for n, p in enumerate(given(source))]
    lines += ["   0, or an error code. Outputs overlap nothing else. */"]
    lines += [f"int {called}(const tir_call *call, void *const *buffers);"]
    words = [f"(void *)(uintptr_t){'&' * (p.role in BY_ADDRESS)}{_argument(p, source, called)}" for p in given(source)]
    lines += [f"static inline int {called}_typed({', '.join(_typed(source, called))}) {{"]
    lines += [f"  void *const buffers[] = {{{', '.join(words)}}};", f"  return {called}(call, buffers);", "}", *more]
    lines += [*declared(source, called), *_packing(source, called)]
    lines += ["#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    return "\n".join(lines)


def _workspace(source: Source, called: str) -> list[str]:
    """Header lines that declare the size of the workspace: a constant, or a function of extents if these vary."""
    total = spaces(source).nbytes
    if not source.dims:
        return ["/* Bytes of tir_call.workspace. */", f"#define {called}_workspace_bytes ((size_t){total})"]
    dims = ", ".join(f"int64_t {name}" for name in dim_names(source, called))
    return ["/* Bytes of tir_call.workspace for these extents. */", f"size_t {called}_workspace_bytes({dims});"]


def _packing(source: Source, called: str) -> list[str]:
    """Header lines that declare the packing functions and their buffer's size; [] if no kernel runs once."""
    held = spaces(source).packed_bytes
    if not held:
        return []
    names = ", ".join(identifier(p.name) for p in source.inputs if p.name in source.used_once) or "constants"
    return [
        f"/* What is made of {names} alone can be made once: {called}_pack leaves it in packed, 64-byte aligned and",
        f"   {called}_packed_bytes long, and of buffers needs what it reads; {called}_packed runs the rest with it. */",
        f"#define {called}_packed_bytes ((size_t){held})",
        f"int {called}_pack(const tir_call *call, void *const *buffers, void *packed);",
        f"int {called}_packed(const tir_call *call, void *const *buffers, const void *packed);",
    ]


BY_ADDRESS = ("scalar", "dim")
"""Roles of numbers: ``buffers`` has their addresses."""


def given(source: Source) -> tuple[Param, ...]:
    """Parameters passed by the caller, in the order of ``buffers``: inputs, outputs, then launch-time extents."""
    dims = [replace(p, dtype="int64") for p in source.params if p.role == "dim"]
    return (*source.inputs, *source.outputs, *dims)


def dim_names(source: Source, called: str) -> list[str]:
    """C names of the arguments for launch-time extents (dims), in the order of ``given(source)``.

    called: C name of the function, which they must not equal
    """
    return [_argument(p, source, called) for p in given(source) if p.role == "dim"]


def c_type(p: Param) -> str:
    """C type of a parameter's elements: unsigned integers, for their bits, for 16- and 8-bit floats; scalars of those
    types are float.
    """
    if p.dtype in WIDENED:
        return "float" if p.role == "scalar" else f"uint{8 * itemsize(p.dtype)}_t"
    return {"float32": "float", "float64": "double", "bool": "uint8_t"}.get(p.dtype, f"{p.dtype}_t")


@dataclass(frozen=True)
class Spaces:
    """Places of intermediate arrays in the workspace; those packed once have a separate buffer.

    own:    {array: offset in bytes};  own_bytes: their total size
    packed: {array: offset in bytes} in the packed buffer;  packed_bytes: its size
    nbytes: size of ``tir_call.workspace``, which has space for packed arrays at its end
    """

    own: Mapping[str, Extent]
    own_bytes: Extent
    packed: Mapping[str, int]
    packed_bytes: int

    @property
    def nbytes(self) -> Extent:
        return plus(self.own_bytes, self.packed_bytes)


def spaces(source: Source) -> Spaces:
    """Return the places of intermediate arrays, at multiples of ``SPACE_ALIGN`` bytes."""
    found: tuple[dict[str, Extent], dict[str, Extent]] = {}, {}
    ends: list[Extent] = [0, 0]
    for p in (p for p in source.params if p.role == "workspace"):
        kind = p.name in source.used_once
        found[kind][p.name] = ends[kind]
        ends[kind] = plus(ends[kind], rounded(times([*p.shape, itemsize(p.dtype)]), SPACE_ALIGN))
    packed = {name: int(start) for name, start in found[1].items()}
    return Spaces(found[0], ends[0], packed, int(ends[1]))


def packed_bytes(source: Source) -> int:
    """Bytes of the buffer for intermediate arrays that only ``once`` kernels write; 0 without such kernels."""
    return spaces(source).packed_bytes


def each_time(source: Source) -> Source:
    """Return the source; if a ``once`` kernel or its results depend on dims, a copy in which every call runs all
    kernels.
    """
    once = [k for k in source.kernels if k.once]
    names = {d.name for d in source.dims}
    shapes = [p.shape for p in source.params if p.role == "workspace" and p.name in source.used_once]
    if not any(names & set(k.args) for k in once) and not open_extents([*shapes, *(k.grid for k in once)]):
        return source
    return replace(source, kernels=tuple(replace(k, once=False) for k in source.kernels))


def _signature(source: Source) -> str:
    def shape(p: Param) -> str:
        return f"{identifier(p.name)} {p.dtype}" + (f"[{', '.join(map(str, p.shape))}]" if p.role != "scalar" else "")

    inputs = ", ".join(map(shape, source.inputs)) or "nothing"
    ranges = "".join(f", {d.name} {d.low} to {d.high}" for d in source.dims)
    return f"{', '.join(map(shape, source.outputs))} from {inputs}{ranges}"


def _said(p: Param, source: Source) -> str:
    if p.role == "dim":
        low, high = next((d.low, d.high) for d in source.dims if d.name == p.name)
        return f"{p.name}, the address of an int64_t, {low} to {high}"
    if p.role == "scalar":
        return f"{identifier(p.name)}, the address of a {c_type(p)}"
    bits = " (its bits)" if p.dtype in WIDENED else ""
    shape = "".join(f"[{n}]" for n in p.shape) or "[1]"
    return f"{identifier(p.name)}, {c_type(p)} {shape}{bits}{', written' if p.role == 'output' else ''}"


def _typed(source: Source, called: str) -> list[str]:
    words = []
    for p in given(source):
        name, const = _argument(p, source, called), "" if p.role == "output" else "const "
        words.append(f"{c_type(p)} {name}" if p.role in BY_ADDRESS else f"{const}{c_type(p)} *{name}")
    return [*words, "const tir_call *call"]


def _argument(p: Param, source: Source, called: str) -> str:
    """C name of the argument for a parameter, with a final "_" if it would equal ``called`` or another argument's
    name.
    """
    name = identifier(p.name)
    arrays = [identifier(q.name) for q in given(source) if q.role != "dim"] if p.role == "dim" else []
    return f"{name}_" if name in ("call", "buffers", called, *arrays) else name


def declared(source: Source, called: str) -> list[str]:
    """Header lines that declare the functions on launch-time extents; [] if all extents are constant."""
    if not source.dims:
        return []
    known, dims = ", ".join(extents_of(source)) or "none", ", ".join(d.name for d in source.dims)
    return [
        f"/* The dims ({dims}) of inputs whose shapes these are, shapes[n] that of buffers[n]:",
        f"   0, {called.upper()}_DIM_RANGE or {called.upper()}_DIM_DISAGREE, and then what is wrong in words. */",
        f"int {called}_dims(const int64_t *const *shapes, int64_t *dims, char *why, size_t room);",
        f"/* What shapes and limits of indices are made of: {known}. */",
        f"void {called}_extents(const int64_t *dims, int64_t *extents);",
    ]


def extents_of(source: Source) -> list[str]:
    """Distinct extents that depend on dims, in shapes of parameters and limits of indices."""
    return open_extents([*(p.shape for p in given(source)), [g.limit for g in source.gathers]])


def in_c(source: Source) -> InC:
    """Translator from extents to C expressions, with the ranges of the source's dims."""
    return InC(source.dims)
