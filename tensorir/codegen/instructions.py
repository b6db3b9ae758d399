"""The text of hardware instructions: templates filled with addresses, values and vectors of their operands."""

from __future__ import annotations

import math
import re

from tensorir.codegen.expressions import Expressions
from tensorir.errors import LoweringError, Problem
from tensorir.intrin.intrin import fields_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Buffer, IntrinCall, Load, Ramp, Region

GUARD = "TIR_EMULATED"
"""Defined where the emulator compiles a text: functions of device instructions are left out there."""


def instruction_lines(call: IntrinCall, expr: Expressions) -> list[str]:
    """The lines of one call; ``intrin/intrin.py`` says what stands for what."""
    intrin = call.intrin
    text = intrin.text_for(expr.target)
    if text is None:
        raise _fail("codegen.intrinsic", f"{intrin.name} has no {expr.d.name} text")
    if prelude := intrin.prelude.get(expr.d.name):
        expr.helpers[_function(prelude) or intrin.name] = _guarded(prelude) if expr.d.name == "cuda" else prelude
    wanted = set(fields_of(text))
    values: dict[str, str] = {}
    for tile, region in zip(intrin.operands, call.operands, strict=True):
        _check(call, tile, region, expr, wanted)
        for name in wanted & {tile.name, *(f"{tile.name}_{f}" for f in ("space", "value", "vector", "stride"))}:
            values[name] = _field(name.removeprefix(tile.name), tile, region, expr, const=tile not in intrin.outputs)
    return str(text.format(**values)).splitlines()


def _field(kind: str, tile: Buffer, r: Region, expr: Expressions, *, const: bool) -> str:
    """One property of an operand."""
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


def _check(call: IntrinCall, tile: Buffer, r: Region, expr: Expressions, wanted: set[str]) -> None:
    """Where the tile really lies is known only now: refuse what the instruction cannot address."""
    name = f"{tile.name} of {call.intrin.name}, a tile of {r.buffer.name},"
    by_lane = call.intrin.by_warp  # lowering has seen to it that each lane has its part
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
        raise _fail("codegen.intrinsic-alignment", f"{name} is not proved to lie at a multiple of {aligned} bytes")
    expr.aligned[r.buffer] = max(expr.aligned.get(r.buffer, 0), aligned)


def _guarded(prelude: str) -> str:
    """A prelude that the emulator leaves out: there its functions are others."""
    return prelude if GUARD in prelude else f"#ifndef {GUARD}\n{prelude}\n#endif"


def _function(prelude: str) -> str:
    """The name of the first function that a prelude defines: several instructions may bring the same one."""
    found = re.search(r"(\w+)\s*\(", re.sub(r"__\w+__\s*\(.*?\)", "", prelude))
    return found[1] if found else ""


def _fail(code: str, message: str) -> LoweringError:
    return LoweringError(Problem(code, message))
