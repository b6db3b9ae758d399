"""Text of hardware instructions: templates filled with operand addresses, values, vectors and descriptors."""

from __future__ import annotations

import math
import re
from collections.abc import Set

from tensorir.codegen.expressions import Expressions
from tensorir.codegen.hopper import barrier
from tensorir.codegen.names import Names, identifier
from tensorir.codegen.source import TensorMap
from tensorir.errors import LoweringError, Problem
from tensorir.intrin.declare import FIELDS, fields_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, IntrinCall, Load, Ramp, Region, Stmt
from tensorir.ir.visit import find
from tensorir.lower.tiles import is_described

MapKey = tuple[Buffer, tuple[tuple[int, ...], ...], int, str]

GUARD = "TIR_EMULATED"
"""Defined where the emulator compiles a text: functions of device instructions are left out there."""


def instruction_lines(call: IntrinCall, expr: Expressions) -> list[str]:
    """Lines of one call of a hardware instruction; the fields of its template are documented in ``intrin/intrin.py``.

    Raises LoweringError: ``codegen.intrinsic`` if it has no text for the language, ``codegen.intrinsic-stride`` and
    ``codegen.intrinsic-alignment`` if it cannot address its operands. Records helpers and alignments in ``expr``.
    """
    intrin = call.intrin
    text = intrin.text_for(expr.target)
    if text is None:
        raise _fail("codegen.intrinsic", f"{intrin.name} has no {expr.d.name} text")
    if prelude := intrin.prelude.get(expr.d.name):
        # by no word of it: it may have several functions, of which a kernel calls any
        expr.helpers[f"{_function(prelude) or intrin.name}()"] = guarded(prelude) if expr.d.name == "cuda" else prelude
    if intrin.maps:
        whole = next(r for t, r in zip(intrin.operands, call.operands, strict=True) if t.name in intrin.maps)
        how = "store" if intrin.stores else "multicast" if intrin.blocks > 1 else "load"
        expr.need(f"tir_tma_{how}_{'pixels' if whole.pixels is not None else len(whole.first)}")
    wanted = set(fields_of(text))
    values: dict[str, str] = {}
    for tile, region in zip(intrin.operands, call.operands, strict=True):
        _check(call, tile, region, expr, wanted)
        for name in wanted & {tile.name, *(f"{tile.name}_{f}" for f in FIELDS)}:
            if tile.name in (*intrin.maps, *intrin.descriptors):
                values[name] = _told(name.removeprefix(tile.name), region, call, expr)
                continue
            values[name] = _field(name.removeprefix(tile.name), tile, region, expr, const=tile not in intrin.outputs)
    if "barrier" in wanted:
        values["barrier"] = barrier(call.signals[0].buffer, call.signals[0].first, expr)
    if "adds" in wanted:
        values["adds"] = "".join(f", {expr(e)}" for e in call.adds)
    return str(text.format(**values)).splitlines()


def _field(kind: str, tile: Buffer, r: Region, expr: Expressions, *, const: bool) -> str:
    """Text that replaces the template field ``kind`` of an operand: its address, value, vector, row stride or address
    space.

    tile: the operand as declared;  r: the region of memory that it is in this call
    """
    first = r.first[0]
    if kind == "_space":
        return expr.d.space[r.buffer.scope]
    if kind == "_value":
        return expr.load(Load(r.buffer, r.first, r.buffer.dtype))
    if kind == "_vector":
        return expr.vector_access(r.buffer, Ramp(first, tile.dims[0], "index"), const=const)
    if kind == "_stride":
        return str(r.strides[-2])
    return expr.address(expr.names.buffer(r.buffer), first)


def _told(kind: str, r: Region, call: IntrinCall, expr: Expressions) -> str:
    """Text that replaces the template field ``kind`` of an operand passed as a whole tile: tensor map, coordinates in
    it, or shared-memory descriptor.
    """
    if kind == "_map":
        return expr.maps[map_key(call, r, expr.rounded_tiles)].name
    if kind == "_at":
        offset = r.pixels.offset if r.pixels is not None else ()
        return ", ".join(expr(i) for i in (*reversed(r.first), *reversed(offset)))
    size, address = DTYPES[r.buffer.dtype].bits // 8, expr.address(expr.names.buffer(r.buffer), r.first[0])
    eight, panel = (n * size for n in r.strides)
    expr.need("tir_descriptor")
    return f"tir_descriptor({address}, {panel or 16}, {eight})"


def map_key(call: IntrinCall, source: Region, rounded: Set[Buffer]) -> MapKey:
    """Key of the tensor map for one copy: (array, (shape, box, steps, im2col corners lower and upper), swizzle, element
    type).

    source: the global region that is copied;  rounded: tiles whose elements the copy rounds to tf32
    """
    tile = next(r for t, r in zip(call.intrin.operands, call.operands, strict=True) if is_described(call, t))
    dtype = "tfloat32" if tile.buffer in rounded else source.buffer.dtype
    steps: tuple[int, ...] = source.steps
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    if (p := source.pixels) is not None:
        steps, lower, upper = (1, *p.steps, 1), p.lower, p.upper(source.array[1:3])
    return source.buffer, (source.array, source.span, steps, lower, upper), tile.swizzle, dtype


def rounded_tiles(body: Stmt) -> frozenset[Buffer]:
    """Shared float32 arrays read only by tf32 products, so that copies may round them to tf32.

    ``wgmma`` truncates elements to their upper 19 bits, a biased error. The TMA copy rounds to nearest instead
    (CUtensorMapDataType TFLOAT32), as in CUTLASS's kernels.
    """
    cut, whole = set[Buffer](), {n.buffer for n in find(body, Load)}
    for call in find(body, IntrinCall):
        for tile, r in zip(call.intrin.operands, call.operands, strict=True):
            if tile.name in call.intrin.descriptors and "tf32" in call.intrin.name.split("."):
                cut.add(r.buffer)
            elif tile not in call.intrin.outputs:
                whole.add(r.buffer)
    return frozenset(cut - whole)


def tensor_maps(body: Stmt, names: Names, rounded: Set[Buffer] = frozenset()) -> dict[MapKey, TensorMap]:
    """{key (``map_key``): tensor map} for the tile copies of a kernel, one per distinct key; claims their names.

    A tile of N elements with step s needs a box of N * s elements (CUDA driver API, cuTensorMapEncodeTiled).
    """
    out: dict[MapKey, TensorMap] = {}
    for call in find(body, IntrinCall):
        for tile, r in zip(call.intrin.operands, call.operands, strict=True):
            if tile.name in call.intrin.maps and (key := map_key(call, r, rounded)) not in out:
                b = r.buffer
                name = names.claim(f"{identifier(b.name)}_map")
                _, (shape, box, steps, lower, upper), swizzle, dtype = key
                out[key] = TensorMap(name, b.name, dtype, shape, box, swizzle, steps, lower, upper)
    return out


def aligned_tiles(call: IntrinCall) -> list[Buffer]:
    """Shared arrays that the instruction accesses by tensor map or descriptor: their swizzle depends on the address, so
    that they need alignment.
    """
    return [r.buffer for t, r in zip(call.intrin.operands, call.operands, strict=True) if is_described(call, t)]


def _check(call: IntrinCall, tile: Buffer, r: Region, expr: Expressions, wanted: set[str]) -> None:
    """Raise LoweringError for an operand that the instruction cannot address: stride, alignment; known only after
    lowering.

    wanted: fields of the instruction's template
    """
    name = f"{tile.name} of {call.intrin.name}, a tile of {r.buffer.name},"
    by_lane = call.intrin.by_warp or call.intrin.maps  # lowering has seen to it that each lane has its part
    if not by_lane and tile.dims[-1] > 1 and r.strides[-1] != 1:
        raise _fail("codegen.intrinsic-stride", f"{name} has {r.strides[-1]} elements from one to the next")
    rows = not by_lane and len(tile.dims) == 2 and tile.dims[0] > 1
    if rows and f"{tile.name}_stride" not in wanted and r.strides[-2] != tile.dims[1]:
        raise _fail("codegen.intrinsic-stride", f"{name} has rows {r.strides[-2]} elements apart, not {tile.dims[1]}")
    aligned = call.intrin.align.get(tile.name)
    if not aligned:
        return
    step = max(1, aligned // (DTYPES[r.buffer.dtype].bits // 8))
    if not expr.arith.is_multiple(r.first[0], step) or (rows and math.gcd(r.strides[-2], step) != step):
        raise _fail("codegen.intrinsic-alignment", f"{name} is not proved to start at a multiple of {aligned} bytes",
                    f"offsets, rows and pad of {r.buffer.name} in multiples of {step} elements")  # fmt: skip
    expr.aligned[r.buffer] = max(expr.aligned.get(r.buffer, 0), aligned)


def guarded(prelude: str) -> str:
    """``prelude`` inside ``#ifndef`` for devices only, unless it is so already; the emulator has functions in its
    place.
    """
    return prelude if GUARD in prelude else f"#ifndef {GUARD}\n{prelude}\n#endif"


def _function(prelude: str) -> str:
    """Name of the first function that a prelude defines, "" if none; instructions with the same name share the text."""
    found = re.search(r"(\w+)\s*\(", re.sub(r"__\w+__\s*\(.*?\)", "", prelude))
    return found[1] if found else ""


def _fail(code: str, message: str, hint: str = "") -> LoweringError:
    return LoweringError(Problem(code, message, hint=hint))
