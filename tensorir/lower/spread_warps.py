"""Pass: turn statements of a warp into statements of each lane.

Before this pass a warp is treated as one thread, and its registers as one array. Warp instructions define the lane
that holds each operand element, by fragment layouts. After it, each lane has its own smaller array, loops over single
elements cover only the executing lane's elements, and instructions that read memory get one address per lane.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.conditions import conjunction
from tensorir.ir.build import as_expr, as_int, binary, const
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.layout import Piece, lane_place, written
from tensorir.ir.marks import Pipelined
from tensorir.ir.structure import structure
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
from tensorir.schedule.analysis import in_loops
from tensorir.schedule.primitives.loops import LANES
from tensorir.target import Target


@lowering
def spread_warps(program: Program, target: Target) -> Program:
    """Give each lane of a warp its share of warp registers, and of the statements on them.

    needs: buffers have their size, instructions are calls
    gives: a WARP buffer has the layout of a fragment, and each lane touches its own elements; other buffers of warps
           are REGISTER, a copy in each lane; unchanged for other languages than CUDA

    Raises LoweringError ``lower.fragment`` for accesses that do not fit the lanes.
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
        return rewrap(axes, _spread(body, lane, kernel_arith(program.known, axes, body)))

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
    proved: set[Hashable] = set()  # a sum reads its elements where it writes them
    for stage in find(spread, Stage):
        for b, index in elements(stage):
            if b in layouts:
                for d, i in enumerate(index):
                    owners = [p for p in digits(layouts[b], b.dims, d) if p.stride]
                    if owners and (key := (structure(i), *owners)) not in proved:
                        need_own(b, i, owners, layouts[b], lane, arith)
                        proved.add(key)
            elif any(uses(arith.linear(i).expr(), {lane.var}) for i in index):
                raise fail(
                    "lower.fragment",
                    f"{stage.name} touches elements of {b.name} in the lanes that hold something else, and nothing "
                    f"says which lanes hold those of {b.name}",
                    f"s.layout({b.name!r}, '… | …')",
                )
    return _Allocs(swap)(swap_buffers(_FirstLane(lane, layouts)(spread), swap))  # type: ignore[no-any-return]


def _parts(body: Stmt, layouts: Mapping[Buffer, Layout], arith: Arith) -> dict[Var, Spread]:
    """{loop variable: its lane and register parts}, for loops over elements of fragments.

    Raises LoweringError ``lower.fragment`` if a loop does not fit the layout.
    """
    extents = {x.var: as_int(x.extent) for x in find(body, Loop)}
    order = {v: n for n, v in enumerate(extents)}  # from the outside in
    out: dict[Var, Spread] = {}
    unranged = Arith()
    for stage in find(body, Stage):
        for b, index in elements(stage):
            for d, i in enumerate(index if b in layouts else ()):
                form = unranged.linear(i)
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
    """Rewriter: loops over a fragment's elements run over one lane's share; loops that index registers are unrolled."""

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
        """True if a nest only copies elements between warp registers and memory, or converts them in pairs to 16
        bits.
        """
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
    """Raise LoweringError unless the elements at one lane's address are contiguous in ``b``."""
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
    """Rewriter: one lane stores elements held by several lanes; lane 0 stores those outside fragments."""

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
        """True if lanes that differ in part ``p`` of their number access different elements."""

        def at(lane: int) -> list[Linear]:
            return [Arith().linear(substitute(b, {self.lane.var: const(lane)})) for b in n.binds]

        return not all(a.same(b) for a, b in zip(at(0), at(p.stride), strict=True))


class _Allocs(Rewriter):
    """Rewriter: allocate buffers with their fragment layouts."""

    def __init__(self, swap: Mapping[Buffer, Buffer]) -> None:
        self.swap = swap

    def on_Alloc(self, n: Alloc) -> Alloc:
        n = self.children(n)
        return n.replace(buffer=self.swap.get(n.buffer, n.buffer))


# --- digits of a loop's variable


@dataclass(frozen=True)
class LoopDigit:
    """One part ``index // divisor % extent`` of a fragment index: selects a register, or lanes ``stride`` apart."""

    divisor: int
    extent: int
    stride: int = 0  # 0 for registers

    def of_lane(self, lane: Expr) -> Expr:
        """Value of this index part in lane ``lane``."""
        return binary("%", binary("//", lane, self.stride), self.extent)


def digits(layout: Layout, dims: Sequence[int], d: int) -> tuple[LoopDigit, ...]:
    """Parts of index ``d`` of a fragment, in the order of the layout's pieces; d = -1: of lanes that hold copies."""
    return _digits(layout.pieces, layout.lanes, tuple(dims), d)


@functools.lru_cache(maxsize=1024)
def _digits(pieces: tuple[Piece, ...], lanes: int, dims: tuple[int, ...], d: int) -> tuple[LoopDigit, ...]:
    sizes = [extent or -(-dims[at] // divisor) for at, divisor, extent in pieces]
    out = []
    for n, (at, divisor, _) in enumerate(pieces):
        if at == d:
            stride = math.prod(sizes[n + 1 : lanes])
            out.append(LoopDigit(divisor, sizes[n], stride if n < lanes else 0))
    return tuple(out)


def fragment_layouts(body: Stmt, arith: Arith) -> dict[Buffer, Layout]:
    """Register layout of each warp buffer: an instruction operand's, or that of a buffer it is copied to or from.

    Buffers not connected to an instruction are omitted. Raises LoweringError ``lower.fragment``.
    """
    wanted: dict[Buffer, list[tuple[str, Layout, tuple[int, ...]]]] = {}
    for call in find(body, IntrinCall):
        for tile, region in zip(call.intrin.operands, call.operands, strict=True):
            if tile in call.intrin.held:
                layout, dims = call.intrin.held[tile], tile.dims
                lead = len(region.first) - len(dims)
                if not all(arith.is_multiple(i, n) for i, n in zip(region.first[lead:], dims, strict=True)):
                    message = f"tiles of {region.buffer.name} start elsewhere than at multiples of {dims}"
                    raise _fail(message, "splits by the tile of the instruction, and copies that start with one")
                known = wanted.setdefault(region.buffer, [])
                if (call.intrin.name, layout, dims) not in known:
                    known.append((call.intrin.name, layout, dims))
    found = {b: b.layout for s in find(body, Stage) for b, _ in elements(s) if b.layout is not None and b.layout.lanes}
    found.update({b: _agreed(b, given) for b, given in wanted.items()})
    while grown := _copied(body, found):
        found.update(grown)
    return found


def _agreed(b: Buffer, given: list[tuple[str, Layout, tuple[int, ...]]]) -> Layout:
    """A layout of the whole buffer that contains the operand layout of each instruction; raises if none does."""
    for _, layout, dims in given:
        whole = _extended(layout, dims, b.dims)
        if all(other[1:] == (layout, dims) or _holds(whole, b.dims, *other[1:]) for other in given):
            return whole
    names = " and ".join(dict.fromkeys(name for name, *_ in given))
    raise _fail(
        f"{b.name} would be in different lanes, or registers, for {names}",
        "stage_in one of them at an inner loop, so that its tiles are the whole copy",
    )


def _extended(layout: Layout, dims: Sequence[int], shape: Sequence[int]) -> Layout:
    """Layout of a buffer of shape ``shape`` as consecutive blocks of an operand layout."""
    lead = len(shape) - len(dims)
    inner = [(lead + d, divisor, extent or -(-dims[d] // divisor)) for d, divisor, extent in layout.pieces]
    outer = [(d, 1, 0) for d in range(lead)] + [(lead + d, n, 0) for d, n in enumerate(dims)]
    names = tuple(f"d{d}" for d in range(lead)) + layout.names
    return Layout(names, (*inner[: layout.lanes], *outer, *inner[layout.lanes :]), lanes=layout.lanes)


def _holds(whole: Layout, shape: Sequence[int], layout: Layout, dims: Sequence[int]) -> bool:
    """True if each tile of shape ``dims`` has layout ``layout`` in ``whole``, in consecutive registers."""
    lead = len(shape) - len(dims)
    block = [max([p[1] for p in whole.pieces if p[0] == lead + d], default=1) for d in range(len(dims))]
    starts = [range(0, min(n, max(size, tile)), tile)
              for n, size, tile in zip(shape[lead:], block, dims, strict=True)]  # fmt: skip
    for start in itertools.product(*starts):
        base = lane_place(whole, shape, (*(0,) * lead, *start))[1]
        for index in itertools.product(*map(range, dims)):
            there = (*(0,) * lead, *(a + b for a, b in zip(start, index, strict=True)))
            lane, register = lane_place(whole, shape, there)
            if (lane, register - base) != lane_place(layout, dims, index):
                return False
    return True


def _copied(body: Stmt, found: Mapping[Buffer, Layout]) -> dict[Buffer, Layout]:
    """{buffer: layout} for buffers not in ``found``, taken from one there that the same stage accesses with an equal
    index.
    """

    def same(index: Sequence[Expr], there: Sequence[Expr]) -> bool:
        pairs = zip(index, there, strict=False)
        return len(index) == len(there) and all(Arith().linear(i).same(Arith().linear(j)) for i, j in pairs)

    out: dict[Buffer, Layout] = {}
    for stage in find(body, Stage):
        touched = list(elements(stage))
        for b, index in touched:
            if b in found or b in out or not index or all(as_int(n) == 1 for n in b.shape):
                continue
            for other, there in touched:
                if other in found and same(index, there):
                    out[b] = found[other]
    return out


def elements(stage: Stage) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Yield (buffer, index) of a stage's accesses to single elements of warp buffers, in loop variables."""
    for n in find(stage.body, (Load, Store)):
        if isinstance(n, Load | Store) and n.buffer.scope is Scope.WARP:
            yield n.buffer, tuple(in_loops(i, stage) for i in n.index)


@dataclass(frozen=True)
class Spread:
    """Decomposition of a loop variable into lane and register parts, outermost first.

    over: the parts exceed the loop's extent, which needs a guard
    """

    parts: tuple[LoopDigit, ...]
    over: bool = False


def spread(extent: int, layout: Layout, dims: Sequence[int], d: int, scale: int, outermost: bool) -> Spread | None:
    """Lanes and registers over which a loop that moves index ``d`` in steps of ``scale`` runs, as a Spread; None if its
    steps do not align with the layout's parts.

    outermost: no other loop moves the index further, so parts may exceed the extent
    """
    own = digits(layout, dims, d)
    end = scale * extent
    span = max([p.divisor * p.extent for p in own if p.stride], default=1)
    if outermost and end % span and span % scale == 0:
        end = -(-end // span) * span
    out = []
    for part in own:
        low, high = max(part.divisor, scale), min(part.divisor * part.extent, end)
        if low >= high:
            continue
        if low % part.divisor or low % scale or high % low or (part.divisor * part.extent) % high:
            return None
        out.append(LoopDigit(low // scale, high // low, part.stride * (low // part.divisor)))
    out.sort(key=lambda p: -p.divisor)
    covered = 1
    for part in reversed(out):
        if part.divisor != covered:
            return None
        covered *= part.extent
    return Spread(tuple(out), covered > extent) if covered >= extent else None


def need_own(b: Buffer, i: Expr, owners: Sequence[LoopDigit], layout: Layout, lane: Loop, arith: Arith) -> None:
    """Raise LoweringError ``lower.fragment`` unless the lane that accesses an element of ``b`` holds it: each part of
    its index ``i`` in ``owners`` is the lane's.
    """
    for part in owners:
        own = arith.linear(binary("%", binary("//", i, part.divisor), part.extent))
        if not own.same(arith.linear(part.of_lane(lane.var))):
            raise _fail(
                f"{b.name} is distributed to the lanes of a warp as {written(layout)}, and what touches "
                "single elements of it does not run over whole parts of that",
                "loops over whole tiles of the instruction, or extents that its parts divide",
            )


def row_of_lane(layout: Layout, dims: Sequence[int], lane: Loop) -> tuple[list[Expr], tuple[int, ...]]:
    """(index of the first element at a lane's address, extents of the contiguous run)."""
    first: list[Expr] = []
    run = []
    for d in range(len(dims)):
        at: Expr = const(0)
        for part in digits(layout, dims, d):
            if part.stride:
                at = binary("+", at, binary("*", part.of_lane(lane.var), part.divisor))
        first.append(at)
        run.append(max([p.divisor * p.extent for p in digits(layout, dims, d) if not p.stride], default=1))
    return first, tuple(run)


def _fail(message: str, hint: str) -> Exception:
    return fail("lower.fragment", message, hint)
