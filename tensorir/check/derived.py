"""What instructions that users declare do in the emulator: made from their meaning.

The instructions of this package have emulations of their own, written after the manual. One that a user declares with a
prelude has none, so its function is derived: what the lanes hold, or point to, is put together to whole tiles, the
meaning runs on those as a kernel of one thread, and the result is distributed to the lanes. So a wrong schedule around
the instruction is found, a wrong declaration of it is not: that takes the device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tensorir.codegen.cfamily import emit
from tensorir.codegen.dialect import DIALECTS
from tensorir.codegen.instructions import GUARD
from tensorir.codegen.source import Source
from tensorir.errors import CheckError, refuse
from tensorir.intrin.intrin import Intrin, known
from tensorir.ir.build import as_expr, const
from tensorir.ir.layout import lane_places
from tensorir.ir.tree import Buffer, Region, Scope
from tensorir.lower.kernel import Kernel, Module
from tensorir.target import Target

_TYPES = DIALECTS["cuda"].types


def derived(source: Source) -> tuple[str, str]:
    """Declarations for the text of ``source``, and definitions, of the functions that the emulator does not have.

    Raises CheckError ``emulate.instruction``.
    """
    needed = [known()[name] for name in source.instructions if name in known()]
    needed = [i for i in needed if "cuda" in i.prelude and GUARD not in i.prelude["cuda"]]
    made = [_function(i) for i in needed]
    return "\n".join(d for d, _ in made), "\n".join(t for _, t in made)


def _function(intrin: Intrin) -> tuple[str, str]:
    called = re.fullmatch(r"\s*(\w+)\(((?:\{\w+\}(?:, )?)+)\);\s*", intrin.emit.get("cuda", ""))
    names = re.findall(r"\{(\w+)\}", called[2]) if called else []
    operands = {b.name: b for b in intrin.operands}
    if called is None or set(names) != set(operands):
        raise refuse(
            CheckError,
            "emulate.instruction",
            f"the emulator does not know {intrin.name}, and its text is no call of one function on all its operands",
            hint=f"emit={{'cuda': 'my_function({', '.join(f'{{{n}}}' for n in operands)});'}} with a prelude",
        )
    made = {b.name for b in intrin.outputs}
    params = ", ".join(f"{'' if n in made else 'const '}void *{n}_" for n in names)
    head = f'extern "C" void {called[1]}({params})'
    meaning, kernel = _meaning(intrin)
    body = _by_warp(intrin) if intrin.by_warp else _by_thread(intrin)
    call = f"  {kernel}({', '.join(f'{b.name}_tile' for b in intrin.operands)});"
    lines = [meaning, f"{head} {{", *body[0], call, *body[1], "}"]
    return f"{head};", "\n".join(lines)


def _meaning(intrin: Intrin) -> tuple[str, str]:
    """A kernel of one thread that does what the instruction does to whole tiles, and its name."""
    tiles = {b: Buffer(b.name, (as_expr(math.prod(b.dims)),), b.dtype, Scope.GLOBAL) for b in intrin.operands}

    def region(b: Buffer) -> Region:
        strides = tuple(math.prod(b.dims[d + 1 :]) for d in range(len(b.dims)))
        return Region(tiles[b], (const(0),), b.dims, strides)

    name = re.sub(r"\W", "_", f"meaning_of_{intrin.name}")
    kernel = Kernel(name, tuple(tiles.values()), (), (), intrin.inline(tuple(map(region, intrin.operands))))
    inputs = tuple(tiles[b] for b in intrin.operands if b not in intrin.outputs)
    outputs = tuple(tiles[b] for b in intrin.outputs)
    module = Module(name, inputs, outputs, (), (), (), (kernel,))
    text = emit(module, Target.parse("cuda")).text
    return re.sub(r"#include[^\n]*", "", text), name


def _by_thread(intrin: Intrin) -> tuple[list[str], list[str]]:
    """Tiles are where the thread says: what is in memory is watched."""
    lines = []
    for b in intrin.operands:
        kind, size = _TYPES[b.dtype], math.prod(b.dims)
        lines.append(f"  {kind} *{b.name}_tile = ({kind} *){b.name}_;")
        lines.append(f"  tir_touch({b.name}_, {size} * sizeof({kind}), {int(b in intrin.outputs)});")
    return lines, []


def _by_warp(intrin: Intrin) -> tuple[list[str], list[str]]:
    """Tiles put together from what the lanes bring, and what each lane takes of the results."""
    fields, mine, tiles, back = [], [], [], []
    for b in intrin.operands:
        kind, name = _TYPES[b.dtype], b.name
        layout = intrin.held.get(b) or intrin.addressed[b]
        places = lane_places(layout, b.dims)
        count = max(r for _, r in places) + 1
        tiles += [*_table(name, "lane", [p for p, _ in places]), *_table(name, "register", [r for _, r in places])]
        tiles.append(f"  {kind} {name}_tile[{len(places)}];")
        if b in intrin.held:
            fields.append(f"{kind} {name}[{count}];")
            mine.append(f"  __builtin_memcpy(mine.{name}, {name}_, sizeof mine.{name});")
        else:
            fields.append(f"const {kind} *{name};")
            mine += [f"  mine.{name} = (const {kind} *){name}_;",
                     f"  tir_touch({name}_, {count} * sizeof({kind}), {int(b in intrin.outputs)});"]  # fmt: skip
        at = f"{name}_tile[e] = all[{name}_lane[e]].{name}[{name}_register[e]]"
        tiles.append(f"  for (int e = 0; e < {len(places)}; e++) {at};")
        if b in intrin.outputs:
            own = f"if ({name}_lane[e] == tir_lane()) (({kind} *){name}_)[{name}_register[e]] = {name}_tile[e]"
            back.append(f"  for (int e = 0; e < {len(places)}; e++) {own};")
    start = [f"  struct Held {{ {' '.join(fields)} }} mine;", *mine,
             "  const Held *all = (const Held *)tir_together(&mine, sizeof mine);", *tiles]  # fmt: skip
    return start, [*back, "  tir_part();"]


def _table(name: str, what: str, values: Sequence[int]) -> list[str]:
    return [f"  static const int {name}_{what}[] = {{{', '.join(map(str, values))}}};"]
