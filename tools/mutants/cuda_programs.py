"""Small changes of programs between two passes: what a pass that is wrong could leave out, move, or say otherwise.

Each generator walks a program and gives one mutant for every place; programs of the same kernel on another shape have
the same places, in the same order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mutations import put

from tensorir.ir.build import as_int, binary, const
from tensorir.ir.layout import lane_places, written
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Alloc,
    Arrive,
    Await,
    Barrier,
    Binary,
    Buffer,
    CommitGroup,
    Const,
    Fence,
    If,
    InitBarriers,
    IntrinCall,
    Kind,
    Layout,
    Load,
    Loop,
    Pixels,
    Program,
    Region,
    Role,
    Scope,
    Seq,
    Stage,
    Store,
    WaitGroup,
)
from tensorir.ir.visit import Rewriter, find, sequence, swap_buffers, walk

NAMES: dict[type, str] = {
    Barrier: "barrier", WaitGroup: "wait", CommitGroup: "commit", Fence: "fence", Await: "wait for a phase",
    Arrive: "arrival", InitBarriers: "start of barriers",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One mutant of a program."""

    kind: str
    place: str
    make: Callable[[], Program]


def _change(program: Program, kind: str, place: str, old: Any, new: Any) -> Change:
    return Change(kind, place, lambda: put(program, old, new))


def _once(nodes: list[Any]) -> list[Any]:
    return list({id(n): n for n in nodes}.values())


def ordering(program: Program) -> Iterator[Change]:
    """What orders others: dropped, moved, one group too few waited for; copies that land at another time."""
    for n in _once(find(program.body, tuple(NAMES))):
        yield _change(program, f"dropped {NAMES[type(n)]}", NAMES[type(n)], n, Seq(()))
        if isinstance(n, WaitGroup):
            new = n.replace(pending=n.pending + 1)
            yield _change(program, "wait for one group less", f"all but {n.pending} -> {n.pending + 1}", n, new)
    for seq in _once(find(program.body, Seq)):
        for k, (one, two) in enumerate(zip(seq.stmts, seq.stmts[1:], strict=False)):
            name = NAMES.get(type(one)) or NAMES.get(type(two))
            if name:
                stmts = (*seq.stmts[:k], two, one, *seq.stmts[k + 2 :])
                place = f"{type(one).__name__} behind {type(two).__name__}"
                yield _change(program, f"moved {name}", place, seq, sequence(stmts))
    groups = find(program.body, CommitGroup)
    for n in _once(find(program.body, Store)):
        if groups and n.buffer.scope is Scope.SHARED:
            kind = "does not copy on its own" if n.later else "lands at another time"
            yield _change(program, kind, f"store to {n.buffer.name}", n, n.replace(later=not n.later))


def slots(program: Program) -> Iterator[Change]:
    """Another slot of a ring, in one access."""
    for n in _once(find(program.body, (Load, Store, Region))):
        at = n.first if isinstance(n, Region) else n.index
        if n.buffer.scope is Scope.SHARED and isinstance(at[0], Binary) and at[0].op == "%":
            index = (binary("%", binary("+", at[0].a, 1), at[0].b), *at[1:])
            new = n.replace(first=index) if isinstance(n, Region) else n.replace(index=index)
            yield _change(program, "another slot", f"{type(n).__name__} of {n.buffer.name}[{show(at[0])}]", n, new)


def phases(program: Program) -> Iterator[Change]:
    """Barriers that count: another parity, slot, number of arrivals or of bytes, another barrier."""
    for n in _once(find(program.body, Await)):
        new = n.replace(parity=binary("-", 1, n.parity))
        yield _change(program, "another parity", f"wait for {n.buffer.name}", n, new)
        for x in _once([x for x in walk(n.parity) if isinstance(x, Binary) and x.op == "//"]):
            new = n.replace(parity=_Swap(x, binary("//", x.a, binary("+", x.b, 1)))(n.parity))
            yield _change(program, "parity of another turn", f"wait for {n.buffer.name}", n, new)
    for n in _once(find(program.body, (Await, Arrive))):
        for by in (1, -1):
            new = n.replace(index=(_turned(n.index[0], by),))
            yield _change(program, "barrier of another slot", f"{type(n).__name__} {n.buffer.name} {by:+}", n, new)
    for n in _once(find(program.body, InitBarriers)):
        for by in (1, -1):
            if n.arrivals + by:
                new = n.replace(arrivals=n.arrivals + by)
                yield _change(program, "arrivals by one", f"{n.buffer.name}: {n.arrivals} {by:+}", n, new)
    for n in _once([n for n in find(program.body, Arrive) if n.bytes]):
        for size in (n.bytes // 2, n.bytes - 16, n.bytes + 16, 2 * n.bytes):
            yield _change(program, "other bytes announced", f"{n.bytes} -> {size}", n, n.replace(bytes=size))
    for n in _once(find(program.body, IntrinCall)):
        for r in n.signals:
            for by in (1, -1):
                new = n.replace(signals=(r.replace(first=(_turned(r.first[0], by),)),))
                place = f"{n.intrin.name} tells {r.buffer.name} {by:+}"
                yield _change(program, "barrier of another slot", place, n, new)
    for n in _once([x for x in find(program.body, Role) if x.one]):
        yield _change(program, "all threads in a role of one", n.name, n, n.replace(one=False))


def _turned(index: Any, by: int) -> Any:
    """The slot ``by`` further on."""
    if isinstance(index, Binary) and index.op == "%":
        return binary("%", binary("+", index.a, by % as_int(index.b)), index.b)
    return binary("+", index, by)


def described(program: Program) -> Iterator[Change]:
    """Tiles that are found by a descriptor or a map: other steps, no swizzle, on one side only."""
    for call in _once(find(program.body, IntrinCall)):
        for r in (r for r in call.operands if r.steps):
            for d, (step, n) in enumerate(zip(r.steps, r.extents, strict=True)):
                for by in (1, -1) if n > 1 else ():
                    if step + by:
                        other = r.replace(steps=(*r.steps[:d], step + by, *r.steps[d + 1 :]))
                        place = f"{call.intrin.name}: {r.buffer.name}, {r.steps} -> {other.steps}"
                        yield _change(program, "other steps of a copy", place, r, other)
        for r in (r for r in call.operands if r.swizzle):
            place = f"{call.intrin.name}: {r.buffer.name}"
            for k, n in enumerate(r.strides):
                for new in (2 * n, n // 2):
                    other = r.replace(strides=(*r.strides[:k], new, *r.strides[k + 1 :]))
                    yield _change(program, "other steps of a tile", f"{place}, {n} -> {new}", r, other)
            for span in (0, 64):
                yield _change(program, "swizzle on one side only", f"{place}, {span}", r, r.replace(swizzle=span))


def bounds(program: Program) -> Iterator[Change]:
    """Loops and conditions one longer or shorter, conditions left out, stages left out."""
    for n in _once(find(program.body, Loop)):
        if n.kind.level != "sequential" or n.kind is Kind.VECTOR or not isinstance(n.extent, Const):
            continue
        for by in (1, -1):
            new = n.replace(extent=const(as_int(n.extent) + by))
            yield _change(program, "bound of a loop by one", f"{n.var.name} in {as_int(n.extent)} {by:+}", n, new)
    for n in _once(find(program.body, If)):
        yield _change(program, "condition left out", show(n.cond), n, n.then)
    conditions = [c for n in find(program.body, If) for c in find(n.cond, Binary)]
    for c in _once([c for c in conditions if c.op == "<" and c.a.dtype == "index"]):
        for by in (1, -1):
            yield _change(program, "bound of a condition by one", f"{show(c)} {by:+}", c,
                          c.replace(b=binary("+", c.b, by)))  # fmt: skip
    for n in _once(find(program.body, Stage)):
        yield _change(program, "dropped stage", n.name, n, Seq(()))


def operands(program: Program) -> Iterator[Change]:
    """Operands of instructions one tile, one element, or one lane's part further on; exchanged with another."""
    for call in _once(find(program.body, IntrinCall)):
        for tile, r in zip(call.intrin.operands, call.operands, strict=True):
            lead = len(r.first) - len(tile.dims)
            whole = r.strides or len(r.extents) != len(r.first)
            for d in range(max(lead, 0), len(r.first)):
                for by in {1, max(r.extents) if whole else r.extents[d]}:
                    first = (*r.first[:d], binary("+", r.first[d], by), *r.first[d + 1 :])
                    place = f"{call.intrin.name}: {tile.name} of {r.buffer.name}, dimension {d} +{by}"
                    yield _change(program, "operand moved", place, r, r.replace(first=first))
        for k, m in itertools.combinations(range(len(call.operands)), 2):
            if call.operands[k].buffer.dtype == call.operands[m].buffer.dtype:
                given = list(call.operands)
                given[k], given[m] = given[m], given[k]
                place = f"{call.intrin.name}: operands {k} and {m}"
                yield _change(program, "operands exchanged", place, call, call.replace(operands=tuple(given)))


def pixels(program: Program) -> Iterator[Change]:
    """Copies that go through images otherwise: other corners and steps, rows for columns, offsets left out."""
    for n in _once(find(program.body, Pixels)):
        for field in ("lower", "steps", "shape"):
            (a, b) = given = getattr(n, field)
            for new in ((a + 1, b), (a, b + 1), (a - 1, b), (a, b - 1), (b, a)):
                if new != given and (field == "lower" or min(new) > 0):
                    place = f"{field} {given} -> {new}"
                    yield _change(program, f"{field} of an image", place, n, n.replace(**{field: new}))
        for k, at in enumerate(n.offset):
            if not isinstance(at, Const):
                left = tuple(const(0) if m == k else x for m, x in enumerate(n.offset))
                yield _change(program, "offset of a copy left out", show(at), n, n.replace(offset=left))
        yield _change(program, "offsets exchanged", "", n, n.replace(offset=n.offset[::-1]))


def fragments(program: Program) -> Iterator[Change]:
    """Buffers of warps whose lanes, or registers, are numbered in another order than the instructions say."""
    looked_at = {r.buffer for r in find(program.body, Region)}
    for a in _once(find(program.body, Alloc)):
        layout = a.buffer.layout
        if layout is None or not layout.lanes:
            continue
        for what, other in exchanged(layout, a.buffer.dims):
            if what == "registers" and a.buffer not in looked_at:
                continue  # another numbering, which plain statements do not see
            new = a.buffer.replace(layout=other)
            place = f"{a.buffer.name}: {written(layout)} -> {written(other)}"
            yield Change(f"fragment, {what} exchanged", place, _swapped(program, a.buffer, new))


def _swapped(program: Program, old: Buffer, new: Buffer) -> Callable[[], Program]:
    class Allocs(Rewriter):
        def on_Alloc(self, n: Alloc) -> Alloc:
            n = self.children(n)
            return n.replace(buffer=new) if n.buffer is old else n

    return lambda: program.replace(body=Allocs()(swap_buffers(program.body, {old: new})))


def exchanged(layout: Layout, dims: tuple[int, ...]) -> Iterator[tuple[str, Layout]]:
    """The layout with two of its pieces exchanged, unless that says the same."""
    for a, b in itertools.combinations(range(len(layout.pieces)), 2):
        pieces = list(layout.pieces)
        pieces[a], pieces[b] = pieces[b], pieces[a]
        other = layout.replace(pieces=tuple(pieces))
        sides = (a < layout.lanes) + (b < layout.lanes)
        what = ("registers", "lane and register", "lanes")[sides]
        if lane_places(other, dims) != lane_places(layout, dims):
            yield what, other


def swizzles(program: Program) -> Iterator[Change]:
    """Swizzles left out of one access, on one side only; one index by one."""
    for n in _once(find(program.body, (Load, Store, Region))):
        at = n.first[0] if isinstance(n, Region) else n.index[0]
        name = f"{type(n).__name__} of {n.buffer.name}[{show(at)}]"

        def moved(index: Any, n: Any = n) -> Any:
            if isinstance(n, Region):
                return n.replace(first=(index, *n.first[1:]))
            return n.replace(index=(index, *n.index[1:]))

        for x in _once([x for x in walk(at) if isinstance(x, Binary) and x.op == "^"]):
            for kind, new in (("swizzle on one side only", x.a), ("swizzle with + for ^", binary("+", x.a, x.b))):
                yield _change(program, kind, name, n, moved(_Swap(x, new)(at)))
        for by in (1, -1):
            yield _change(program, "index by one", f"{name} {by:+}", n, moved(binary("+", at, by)))


class _Swap(Rewriter):
    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new = old, new

    def __call__(self, n: Any) -> Any:
        return self.new if n is self.old else n.map(self)


def ordering_of_products(program: Program) -> Iterator[Change]:
    """Of products of warpgroups only: other kernels have these statements behind later passes."""
    return ordering(program) if find(program.body, Fence) else iter(())


def ordering_of_roles(program: Program) -> Iterator[Change]:
    """Of kernels with roles only."""
    return ordering(program) if find(program.body, Role) else iter(())


def bounds_of_roles(program: Program) -> Iterator[Change]:
    """Of kernels with roles only."""
    return bounds(program) if find(program.body, Role) else iter(())


AFTER: dict[str, tuple[Callable[[Program], Iterator[Change]], ...]] = {
    "spread_warps": (fragments, operands, bounds, pixels),
    "order_products": (ordering_of_products,),
    "split_roles": (ordering_of_roles, slots, phases, bounds_of_roles),
    "pipeline_loops": (ordering, slots, bounds),
    "insert_barriers": (ordering,),
    "flatten": (swizzles, operands, described, pixels),
}
"""What is changed behind which pass."""
