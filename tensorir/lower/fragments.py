"""Which lane of a warp holds what: layouts of a warp's buffers, told by the instructions on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorir.arith.affine import Arith
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.layout import lane_place, written
from tensorir.ir.tree import Buffer, Expr, IntrinCall, Layout, Load, Loop, Scope, Stage, Stmt, Store
from tensorir.ir.visit import find
from tensorir.lower.form import fail
from tensorir.schedule.analysis import in_loops


@dataclass(frozen=True)
class LoopDigit:
    """A part of an index: ``index // divisor % extent``, which numbers a register, or lanes ``stride`` apart."""

    divisor: int
    extent: int
    stride: int = 0  # 0 for registers

    def of_lane(self, lane: Expr) -> Expr:
        """Its value in a lane."""
        return binary("%", binary("//", lane, self.stride), self.extent)


def digits(layout: Layout, dims: Sequence[int], d: int) -> list[LoopDigit]:
    """The parts of index ``d`` of a fragment, in the order of its pieces."""
    sizes = [extent or -(-dims[at] // divisor) for at, divisor, extent in layout.pieces]
    out = []
    for n, (at, divisor, _) in enumerate(layout.pieces):
        if at == d:
            stride = 1
            for size in sizes[n + 1 : layout.lanes]:
                stride *= size
            out.append(LoopDigit(divisor, sizes[n], stride if n < layout.lanes else 0))
    return out


def fragment_layouts(body: Stmt, arith: Arith) -> dict[Buffer, Layout]:
    """The layout of each buffer of warps: that of the operand it is for an instruction, or of what it is copied from.

    Buffers that no instruction has a say in are left out. Raises LoweringError ``lower.fragment``.
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
    """One layout of the whole buffer in which each instruction finds its operand."""
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
    """The layout of blocks of one operand, one after another."""
    lead = len(shape) - len(dims)
    inner = [(lead + d, divisor, extent or -(-dims[d] // divisor)) for d, divisor, extent in layout.pieces]
    outer = [(d, 1, 0) for d in range(lead)] + [(lead + d, n, 0) for d, n in enumerate(dims)]
    names = tuple(f"d{d}" for d in range(lead)) + layout.names
    return Layout(names, (*inner[: layout.lanes], *outer, *inner[layout.lanes :]), lanes=layout.lanes)


def _holds(whole: Layout, shape: Sequence[int], layout: Layout, dims: Sequence[int]) -> bool:
    """True when each tile of ``dims`` is in consecutive registers of the lanes that ``layout`` says."""
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
    """Layouts of buffers that some stage touches at the very index at which it touches one with a layout."""

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
    """The single elements of warps' buffers that a stage touches, in terms of the loops around it."""
    for n in find(stage.body, (Load, Store)):
        if isinstance(n, Load | Store) and n.buffer.scope is Scope.WARP:
            yield n.buffer, tuple(in_loops(i, stage) for i in n.index)


@dataclass(frozen=True)
class Spread:
    """Digits of a loop's variable: parts in steps of the variable, outermost first.

    over: they run beyond the loop's end, which a condition must keep
    """

    parts: tuple[LoopDigit, ...]
    over: bool = False


def spread(extent: int, layout: Layout, dims: Sequence[int], d: int, scale: int, outermost: bool) -> Spread | None:
    """The parts of a loop that moves index ``d`` in steps of ``scale``; None if they do not meet those of the index.

    outermost: no other loop moves the index further, so that beyond the end there is nothing
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


def need_own(b: Buffer, index: Sequence[Expr], layout: Layout, lane: Loop, arith: Arith) -> None:
    """Check that the lane that touches an element is the one that holds it."""
    for d, i in enumerate(index):
        for part in digits(layout, b.dims, d):
            if part.stride:
                have = arith.simplify(binary("%", binary("//", i, part.divisor), part.extent))
                if not arith.linear(have).same(arith.linear(arith.simplify(part.of_lane(lane.var)))):
                    raise _fail(
                        f"{b.name} is distributed to the lanes of a warp as {written(layout)}, and what touches "
                        "single elements of it does not run over whole parts of that",
                        "loops over whole tiles of the instruction, or extents that its parts divide",
                    )


def row_of_lane(layout: Layout, dims: Sequence[int], lane: Loop) -> tuple[list[Expr], tuple[int, ...]]:
    """Where the run begins to which a lane points, and its extents."""
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
