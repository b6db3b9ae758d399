"""Statements of a warp -> statements of each of its lanes.

Until here a warp is one thread whose registers are one array. Instructions of warps say which lane holds which element
of their operands (``fragments.py``), so that each lane gets its own small array; loops over single elements run over
those of the lane that executes them, and instructions that read memory get an address in each lane.
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.conditions import conjunction
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import written
from tensorir.ir.marks import Pipelined
from tensorir.ir.tree import (
    Alloc,
    Axis,
    Buffer,
    Expr,
    If,
    IntrinCall,
    Kind,
    Layout,
    Load,
    Loop,
    Program,
    Region,
    Scope,
    Stage,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, reads, substitute, swap_buffers, uses, writes
from tensorir.lower.form import bound_loops, each_nest, fail, kernel_arith, lowering, rewrap
from tensorir.lower.fragments import (
    LoopDigit,
    Spread,
    digits,
    elements,
    fragment_layouts,
    need_own,
    row_of_lane,
    spread,
)
from tensorir.schedule.primitives.loops import LANES
from tensorir.target import Target


@lowering
def spread_warps(program: Program, target: Target) -> Program:
    """needs: buffers have their size, instructions are calls;  gives: a WARP buffer has the layout of a fragment, and
    each lane touches what it holds; other buffers of warps are REGISTER, a copy in each lane
    """
    if target.language != "cuda":
        return program

    def kernel(nest: Stmt) -> Stmt:
        axes, body = bound_loops(nest)
        if not any(b.scope is Scope.WARP for b in (*reads(body), *writes(body))):
            return nest
        lane = next((x for x in axes if x.kind is Kind.THREAD_X), None)
        if lane is None:
            raise fail("lower.form", "a kernel has registers of warps and no lanes to hold them")
        return rewrap(axes, _spread(body, lane, kernel_arith(axes, body)))

    return each_nest(program, kernel)


def _spread(body: Stmt, lane: Loop, arith: Arith) -> Stmt:
    layouts = fragment_layouts(body, arith)
    parts = _parts(body, layouts, arith)
    swap = {
        b: b.replace(layout=layouts[b]) if b in layouts else b.replace(scope=Scope.REGISTER)
        for b in {*reads(body), *writes(body)} if b.scope is Scope.WARP
    }  # fmt: skip
    moving = {v for call in find(body, IntrinCall) for r in call.operands if r.buffer in layouts
              for i in r.first for v in find(arith.linear(i).expr(), Var)}  # fmt: skip
    spread = _Deal(parts, moving, lane)(body)
    for x in find(spread, Loop):
        arith.ranges[x.var] = (0, as_int(x.extent) - 1)
    for stage in find(spread, Stage):
        for b, index in elements(stage):
            if b in layouts:
                need_own(b, index, layouts[b], lane, arith)
            elif any(uses(arith.linear(i).expr(), {lane.var}) for i in index):
                raise fail(
                    "lower.fragment",
                    f"{stage.name} touches elements of {b.name} in the lanes that hold something else, and nothing "
                    f"says which lanes hold those of {b.name}",
                    f"s.layout({b.name!r}, '… | …')",
                )
    return _Allocs(swap)(swap_buffers(_FirstLane(lane, layouts)(spread), swap))  # type: ignore[no-any-return]


def _parts(body: Stmt, layouts: Mapping[Buffer, Layout], arith: Arith) -> dict[Var, Spread]:
    """For each loop over single elements of fragments: what its variable is made of."""
    extents = {x.var: as_int(x.extent) for x in find(body, Loop)}
    order = {v: n for n, v in enumerate(extents)}  # from the outside in
    out: dict[Var, Spread] = {}
    for stage in find(body, Stage):
        for b, index in elements(stage):
            for d, i in enumerate(index if b in layouts else ()):
                form = Arith().linear(i)
                if not all(isinstance(v, Var) for v in form.terms):  # divided by more than it can be
                    form = arith.linear(arith.simplify(i))
                terms = form.terms.items()
                moving = {v: c for v, c in terms if isinstance(v, Var) and v in extents}
                for atom, scale in moving.items():
                    furthest = max(moving, key=lambda v: (moving[v], extents[v], -order[v]))
                    found = spread(extents[atom], layouts[b], b.dims, d, scale, atom is furthest)
                    if found is None or out.setdefault(atom, found) != found:
                        raise fail(
                            "lower.fragment",
                            f"{stage.name} touches elements of {b.name} in a loop over {atom.name} that does not fit "
                            f"how they are distributed to the lanes of a warp, {written(layouts[b])}",
                            "loops over whole tiles, or over parts that the layout's divide",
                        )
    return out


class _Deal(Rewriter):
    """Loops over elements become loops over those of a lane; loops that index registers are written out."""

    def __init__(self, parts: Mapping[Var, Spread], moving: set[Var], lane: Loop) -> None:
        self.parts, self.moving, self.lane = parts, moving, lane

    def on_Loop(self, n: Loop) -> Stmt:
        made = self.parts.get(n.var)
        if made is None or not any(p.stride for p in made.parts):
            n = self.children(n)
            plain = n.kind is Kind.SERIAL and not Pipelined.of(n)
            unrolled = plain and (made is not None or n.var in self.moving)
            return n.replace(kind=Kind.UNROLL) if unrolled else n
        value: Expr = const(0)
        loops: list[Loop] = []
        for p in made.parts:
            if p.stride:
                value = binary("+", value, binary("*", p.of_lane(self.lane.var), p.divisor))
                continue
            own = Var(f"{n.var.name}.{len(loops)}", "index")
            value = binary("+", value, binary("*", own, p.divisor))
            vector = p.divisor == 1 and p.extent in LANES and self._is_copy(n.body)
            loops.append(Loop(own, as_expr(p.extent), n.body, Kind.VECTOR if vector else Kind.UNROLL))
        body = n.body
        while loops and loops[-1].kind is Kind.VECTOR and isinstance(body, Loop):  # of one iteration
            body = substitute(body.body, {body.var: const(0)})
        body = self(substitute(body, {n.var: value}))
        return rewrap(loops, If(binary("<", value, n.extent), body) if made.over else body)

    def _is_copy(self, body: Stmt) -> bool:
        """True when a nest brings elements from a warp's registers to memory, or back: perhaps several at once."""
        if isinstance(body, Loop):
            made = self.parts.get(body.var)
            spread = made is not None and any(p.stride for p in made.parts)
            return as_int(body.extent) == 1 and not spread and self._is_copy(body.body)
        if not isinstance(body, Stage | If):
            return False
        written, read = writes(body), [b.scope for b in reads(body)]
        if all(b.scope is not Scope.WARP or DTYPES[b.dtype].bits == 16 for b in written):
            return True  # two halves of a register are converted at once
        inwards = read in ([Scope.SHARED], [Scope.GLOBAL]) and all(b.scope is Scope.WARP for b in written)
        return inwards and all(isinstance(s.value, Load) for s in find(body, Store))

    def on_Stage(self, n: Stage) -> Stage:
        if not isinstance(n.body, IntrinCall) or not n.body.intrin.addressed:
            return n
        regions = []
        for tile, r in zip(n.body.intrin.operands, n.body.operands, strict=True):
            layout = n.body.intrin.addressed.get(tile)
            if layout is not None:
                first, run = row_of_lane(layout, tile.dims, self.lane)
                lead = len(r.first) - len(first)
                _need_run(r.buffer, run[-1], n.body.intrin.name)
                at = (*r.first[:lead], *(binary("+", i, j) for i, j in zip(r.first[lead:], first, strict=True)))
                r = Region(r.buffer, at, (*r.extents[:lead], *run))
            regions.append(r)
        return n.replace(body=n.body.replace(operands=tuple(regions)))


def _need_run(b: Buffer, run: int, name: str) -> None:
    """Check that the elements a lane points to are neighbours in the layout of ``b``."""
    if b.layout is None:
        return
    d, divisor, extent = b.layout.pieces[-1]
    onto = b.layout.folds[-1] if b.layout.folds else ()
    if d != len(b.shape) - 1 or divisor != 1 or extent % run or onto:
        raise fail(
            "lower.fragment",
            f"{name} reads rows of {run} neighbours, and the layout of {b.name} has no such rows",
            f"a layout whose last piece is the last dimension % {run}",
        )


class _FirstLane(Rewriter):
    """Makes one lane store what several lanes hold alike, and the first lane what is in no fragment."""

    def __init__(self, lane: Loop, layouts: Mapping[Buffer, Layout]) -> None:
        self.lane, self.layouts = lane, layouts

    def on_Stage(self, n: Stage) -> Stmt:
        if isinstance(n.body, IntrinCall):
            return n
        for it, bind in zip(n.iters, n.binds, strict=True):
            if it.axis is not Axis.SPATIAL and uses(bind, {self.lane.var}):
                raise fail(
                    "lower.fragment",
                    f"{n.name} combines elements along {it.var.name}, which different lanes of a warp hold",
                    "a layout whose lanes do not number that axis, or the elements in shared memory",
                )
        mine = [b for b in reads(n) if b.scope is Scope.WARP]
        if not mine or all(b.scope in (Scope.WARP, Scope.REGISTER) for b in writes(n.body)):
            return n
        if not any(uses(b, {self.lane.var}) for b in n.binds):
            return If(binary("<", self.lane.var, 1), n)
        if again := [b.name for b in writes(n.body) if b in reads(n)]:
            raise fail(
                "lower.fragment",
                f"{n.name} adds what the lanes of a warp hold to {again[0]} in memory, which the first lane starts",
                f"s.stage_out({n.name!r}, at=<a loop in the warp's>, scope='warp') first",
            )
        alike = {p for b in mine if b in self.layouts for p in digits(self.layouts[b], b.dims, -1)}
        first = [binary("<", p.of_lane(self.lane.var), 1) for p in alike if not self._moves(n, p)]
        return If(conjunction(first), n) if first else n

    def _moves(self, n: Stage, p: LoopDigit) -> bool:
        """True when lanes that differ in a digit alone are at different places."""

        def at(lane: int) -> list[Linear]:
            return [Arith().linear(substitute(b, {self.lane.var: const(lane)})) for b in n.binds]

        return not all(a.same(b) for a, b in zip(at(0), at(p.stride), strict=True))


class _Allocs(Rewriter):
    """Buffers with their layouts where they are allocated."""

    def __init__(self, swap: Mapping[Buffer, Buffer]) -> None:
        self.swap = swap

    def on_Alloc(self, n: Alloc) -> Alloc:
        n = self.children(n)
        return n.replace(buffer=self.swap.get(n.buffer, n.buffer))
