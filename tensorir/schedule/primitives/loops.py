"""split, partition, fuse, reorder, tile, vectorize, unroll: primitives on loops alone."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence

from tensorir.arith.affine import same
from tensorir.errors import DeclarationError, Problem, ScheduleError
from tensorir.errors.needs import need_int, need_list, need_name, need_names, need_text, shown
from tensorir.ir.build import as_expr, as_int, binary, const, no_constant
from tensorir.ir.dims import dims_in
from tensorir.ir.marks import Partition
from tensorir.ir.tree import (
    Axis,
    Expr,
    Kind,
    Loop,
    Prefetch,
    Program,
    Seq,
    Stage,
    Stmt,
    Store,
    Var,
)  # fmt: skip
from tensorir.ir.visit import Rewriter, find, reads, substitute, uses, writes
from tensorir.schedule.analysis import (  # fmt: skip
    adds_atomically,
    caret,
    constant_extent,
    driven_axes,
    driven_by,
    drives,
    has_axis,
    in_order,
    index_of,
    need_serial,
    reduces_in_order,
    reopens,
    scans,
    unique,
)
from tensorir.schedule.history import AxisRef, H, Name, S, Scheduled, full_name
from tensorir.schedule.marks import fused_marks, split_marks
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, swap

TAILS = ("guard", "exact", "pad", "peel", "balanced", "shift")
TILED = ("peel", "balanced", "shift")
LANES = (2, 4, 8, 16)
UNROLL_LIMIT = 1024
_LARGEST_FACTOR = 2**31 - 1
"""The largest factor, and the largest place of a cut."""
_COUNTED = 2**62
"""Iterations that can be counted: text has indices of 64 bits where 32 are too few."""


@primitive("Loops")
def split(self: Scheduled[H], axis: Name, factors: Sequence[int | None], tail: str = "guard",
          names: Sequence[str] | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
    """Replace a loop by a nest of ``len(factors)`` loops; returns them, outermost first. One factor may be None
    (inferred).

    tail: "guard" adds a condition where the factors overshoot; "exact" refuses to overshoot; "pad" runs whole tiles
          without a condition, terms beyond the end counting as the initial value, for stages that write a copy of
          their own (lowering refuses others: ``lower.pad-global``). The following need [None, n]:
          "peel" gives the last, shorter tile a copy of the body; "balanced" makes the fewest tiles of at most n, sizes
          differing by at most one, one body per size; "shift" moves the last tile back, so that it repeats
          some elements (stages that only store); over a dim, whose last tile is not known, both are guards
    names: of the new loops; by default ``C.i.0``, ``C.i.1`` … of ``C.i``
    Raises ScheduleError: ``split.covers-extent`` if the product of ``factors`` is less than the extent,
    ``split.divides``, and the other codes of ``split``.
    """
    loop = self._loop(axis)
    need_text("tail", tail, ScheduleError)
    named = None if names is None else [full_name(loop, n) for n in need_names("names", names, ScheduleError)]
    out = self._history._apply("split", (loop, factors), {"tail": tail, "names": named},
                               lambda p: _split(p, loop, factors, tail, named))  # fmt: skip
    return tuple(map(AxisRef, out))


def _split(program: Program, loop: Loop, factors: Sequence[int | None], tail: str = "guard",
          names: Sequence[str] | None = None) -> Rewrite:  # fmt: skip
    need_serial(loop, "split")
    extent = constant_extent(loop, "split.symbolic-extent")
    dim = _dim_of(loop)
    if dim is not None and tail == "exact":
        raise ScheduleError(no_constant(dim).problems)
    tail = "guard" if dim is not None and tail in ("balanced", "shift") else tail
    sizes = _factors(loop, extent, factors, tail)
    index = index_of(program)
    labels = list(names) if names else [f"{loop.var.name}.{n}" for n in range(len(sizes))]
    if len(labels) != len(sizes):
        raise _refuse("split.names", f"{len(sizes)} loops need {len(sizes)} names, got {len(labels)}", loop)
    if names:
        stage = loop.var.name.split(".")[0]
        labels = [n if "." in n else f"{stage}.{n}" for n in labels]
    taken = index.names() - {loop.var.name}
    if clash := [n for n in labels if n in taken] or [n for n in labels if labels.count(n) > 1]:
        raise _refuse("split.names", f"the name {clash[0]} is taken", loop, hint="choose other names=")
    axes = [Var(n, "index") for n in labels]
    if tail in TILED and math.prod(sizes) > extent:
        new = _tiled(loop, extent, axes, sizes[1], tail)
    else:
        whole: Expr = const(0)
        for v, n in zip(axes, sizes, strict=True):
            whole = binary("+", binary("*", whole, n), v)
        body = substitute(loop.body, {loop.var: whole})
        if dim is not None and tail == "pad":
            body = Guard([loop], binary("<", whole, dim), pad=True)(body)
        elif math.prod(sizes) > extent:
            body = Guard([loop], binary("<", whole, extent), tail == "pad")(body)
        loops = [Loop(v, as_expr(n), body) for v, n in zip(axes, sizes, strict=True)]
        new = nest(split_marks(loop, loops), body)
    if dim is not None and tail == "peel" and sizes[1] > 1 and isinstance(new, Loop):
        new = new.marked(Partition((binary("//", dim, sizes[1]),)))
    return Rewrite(swap(program, loop, new), tuple(labels), {loop.var.name: f"it was split into {', '.join(labels)}"})


def _dim_of(loop: Loop) -> Expr | None:
    """The launch-time extent of the axes that ``loop`` iterates one by one; None if constant or split."""
    ends = [it.extent for s, it in driven_by(loop) for v, b in zip(s.iters, s.binds, strict=True)
            if v is it and b is loop.var]  # fmt: skip
    first = ends[0] if ends else None
    known = first is None or not dims_in(first)
    return None if known or any(not same(e, first) for e in ends if first is not None) else first


def _tiled(loop: Loop, extent: int, axes: Sequence[Var], most: int, tail: str) -> Stmt:
    """Loop over tiles of at most ``most`` iterations, the last or shorter ones by ``tail``: "peel", "balanced" or
    "shift".
    """
    outer, inner = axes
    tiles = -(-extent // most)
    parts: tuple[int, ...] = ()
    if tail == "shift" and extent >= most:
        if summed := [s.name for s in find(loop, Stage) if drives(loop, s) and not _only_stores(s)]:
            raise _refuse(
                "split.shift-store",
                f"tail='shift' repeats some iterations of {loop.var.name}, and {summed[0]} would add them twice",
                loop,
                hint="stage_out first and shift the copy, or tail='balanced'",
            )
        whole = binary("+", binary("min", binary("*", outer, most), extent - most), inner)
        body = _Repeats()(substitute(loop.body, {loop.var: whole}))
    elif tail == "balanced":
        # the first ``more`` tiles have one iteration more than the others
        least, more = divmod(extent, tiles)
        most = least + (1 if more else 0)
        first = binary("+", binary("*", outer, least), binary("min", outer, more) if more else 0)
        body = substitute(loop.body, {loop.var: binary("+", first, inner)})
        if more:
            longer = binary("-", binary("min", binary("+", outer, 1), more), binary("min", outer, more))
            body = Guard([loop], binary("<", binary("-", inner, longer), least))(body)
            parts = (more,)
    else:
        whole = binary("+", binary("*", outer, most), inner)
        body = Guard([loop], binary("<", whole, extent))(substitute(loop.body, {loop.var: whole}))
        parts = (tiles - 1,) if tiles > 1 else ()
    loops = [Loop(outer, as_expr(tiles), body).marked(Partition(parts)), Loop(inner, as_expr(most), body)]
    return nest(split_marks(loop, loops, even=tail == "peel"), body)


def _only_stores(s: Stage) -> bool:
    """True if iterations of the stage may run twice: it stores values that depend on none that it stores."""
    several = isinstance(s.body, Seq) and all(it.axis is Axis.SPATIAL for it in s.iters)
    stores = all(isinstance(x, Store | Prefetch) for x in (s.body.children() if several else (s.body,)))
    return stores and not {*reads(s.body)} & {*writes(s.body)}


@primitive("Loops")
def partition(self: S, axis: Name, at: Sequence[int]) -> S:
    """Cut a loop at the given iterations: lowering writes the body once for each part, simplified by that part's range.

    at: iterations in ascending order; those at or beyond either end cut nothing, earlier cuts remain. A loop that is
    bound to blocks afterwards keeps its parts where a block is one work-item: each block runs the copy of its part
    """
    loop, points = self._loop(axis), need_list("at", at, "ints", ScheduleError)
    self._history._apply("partition", (loop, points), {}, lambda p: _partition(p, loop, points))
    return self


def _partition(program: Program, loop: Loop, at: Sequence[object]) -> Rewrite:
    need_serial(loop, "partition")
    extent = constant_extent(loop, "partition.symbolic-extent")
    points = [need_int("at", p, high=_LARGEST_FACTOR, error=ScheduleError) for p in at]
    if sorted(set(points)) != points:
        raise _refuse("partition.order", f"the points {points} of {loop.var.name} are not ascending", loop)
    if ends := dims_in(*Partition.of(loop).at):
        raise ScheduleError(no_constant(ends[0]).problems)
    parts = {*Partition.of(loop).at, *(p for p in points if 0 < p < extent)}
    return Rewrite(swap(program, loop, loop.marked(Partition(tuple(sorted(parts))))))


def _factors(loop: Loop, extent: int, factors: Sequence[int | None], tail: str) -> list[int]:
    name = loop.var.name
    if tail not in TAILS:
        raise _refuse("split.tail", f"there is no tail {tail!r}", loop, hint=f"one of {', '.join(TAILS)}")
    given: list[int | None] = []
    if isinstance(factors, list | tuple):  # a range may be endless, for all that matters
        with contextlib.suppress(DeclarationError):
            given = [f if f is None else need_int("factor", f, high=_LARGEST_FACTOR) for f in factors]
    if not given:
        raise _refuse(
            "split.factors",
            f"the factors of {name} must be a list of ints below 2**31 with at most one None, got {shown(factors)}",
            loop,
            hint=f"[None, {factors}]: {factors} iterations inside" if hasattr(factors, "__index__") else "[None, 8]",
        )
    if given.count(None) > 1:
        raise _refuse(
            "split.inferred",
            f"the factors {given} of {name} hold {given.count(None)} None: only one can be inferred",
            loop,
        )
    known = [f for f in given if f is not None]
    if bad := [f for f in known if f < 1]:
        raise _refuse("split.positive", f"the factor {bad[0]} of {name} is below 1", loop)
    if tail in TILED and (len(given) != 2 or given[0] is not None):
        raise _refuse(
            "split.tail-factors",
            f"tail={tail!r} makes one loop over tiles and one inside: it takes [None, n], not {given}",
            loop,
            hint=f"s.split({name!r}, [None, {known[-1] if known else 8}], tail={tail!r}), then split the inner loop",
        )
    inner = math.prod(known)
    sizes = [max(1, -(-extent // inner)) if f is None else f for f in given]
    total = math.prod(sizes)
    product = " * ".join(map(str, sizes))
    if total > _COUNTED:
        raise _refuse("split.factors", f"{product} = {total} iterations of {name} are more than an index counts", loop)
    if total < extent:
        fix = [None, *sizes[1:]]
        raise _refuse(
            "split.covers-extent",
            f"{product} = {total} iterations cannot cover the {extent} of {name}",
            loop,
            hint=f"s.split({name!r}, {fix})",
        )
    if tail == "exact" and total != extent:
        divisors = [d for d in range(1, extent + 1) if extent % d == 0]
        near = min(divisors, key=lambda d: abs(d - sizes[-1]))
        raise _refuse(
            "split.divides",
            f"{product} = {total} is not the {extent} of {name}, and tail='exact' allows no overshoot",
            loop,
            hint=f"s.split({name!r}, [None, {near}], tail='exact'), or tail='guard'",
        )
    return sizes


class _Repeats(Rewriter):
    """Rewriter: mark stores that several iterations repeat with equal values."""

    def on_Store(self, n: Store) -> Store:
        return n.replace(repeats=True)


class Guard(Rewriter):
    """Rewriter: add a condition to the stages driven by ``loops``.

    Stages that reload or store a copy per piece of a reduction get none: a piece without terms changes nothing.
    """

    def __init__(self, loops: Sequence[Loop], cond: Expr, pad: bool = False) -> None:
        self.cond, self.pad = cond, pad
        self.driven = {s.name for x in loops for s, it in driven_by(x) if it.axis is not Axis.ORDERED or not reopens(s)}

    def on_Stage(self, n: Stage) -> Stage:
        if n.name not in self.driven:
            return n
        return n.replace(guards=(*n.guards, self.cond), padded=(*n.padded, self.cond) if self.pad else n.padded)


@primitive("Loops")
def fuse(self: Scheduled[H], *axes: Name, name: str | None = None) -> AxisRef:
    """Make one loop of two or more perfectly nested ones, outermost first; returns it, by default called ``C.i&j``."""
    loops = [self._loop(a) for a in axes]
    label = None if name is None or not loops else full_name(loops[0], need_name("name", name, ScheduleError))
    out = self._history._apply("fuse", loops, {"name": label}, lambda p: _fuse(p, *loops, name=label))
    return AxisRef(out[0])


def _fuse(program: Program, *loops: Loop, name: str | None = None) -> Rewrite:
    if len(loops) < 2:
        raise ScheduleError(Problem("fuse.count", f"fuse takes at least two loops, got {len(loops)}"))
    for x in loops:
        need_serial(x, "fuse")
    for outer, inner in itertools.pairwise(loops):
        if outer.body is not inner:
            raise _refuse(
                "fuse.directly-nested",
                f"loop {inner.var.name} is not the whole body of {outer.var.name}",
                outer,
                hint="reorder so that the loops are adjacent, outermost first",
            )
    for stage in find(loops[-1], Stage):
        kinds = {it.axis for x in loops for it in driven_axes(x, stage)}
        if len(kinds) > 1 and not adds_atomically(stage):
            named = " and ".join(sorted(k.value for k in kinds))
            raise _refuse(
                "fuse.mixed-axes",
                f"{' and '.join(x.var.name for x in loops)} drive {named} axes of {stage.name}: "
                "one loop cannot do both",
                loops[0],
                hint="fuse spatial loops with spatial ones, reduction loops with reduction ones",
            )
    extents = [constant_extent(x, "fuse.symbolic-extent") for x in loops]
    first = loops[0].var.name
    taken = index_of(program).names() - {x.var.name for x in loops}
    if name in taken:
        raise _refuse("fuse.name", f"the name {name} is taken", loops[0], hint="choose another name=")
    label = name or unique(first + "".join(f"&{x.var.name.split('.', 1)[-1]}" for x in loops[1:]), taken)
    sizes = [max(1, n) for n in extents]  # of a loop without iterations no place is asked
    var, values, rest = Var(label, "index"), {}, math.prod(sizes)
    for n, (x, extent) in enumerate(zip(loops, sizes, strict=True)):
        rest //= extent
        part = binary("//", var, rest)
        values[x.var] = part if n == 0 else binary("%", part, extent)
    body = substitute(loops[-1].body, values)
    fused = fused_marks(loops, Loop(var, as_expr(math.prod(extents)), body))
    gone = {x.var.name: f"it was fused into {label}" for x in loops}
    return Rewrite(swap(program, loops[0], fused), (label,), gone)


@primitive("Loops")
def reorder(self: S, *axes: Name) -> S:
    """Put loops of one perfect nest into the given order, outermost first; others keep their places."""
    loops = [self._loop(a) for a in axes]
    self._history._apply("reorder", loops, {}, lambda p: _reorder(p, *loops))
    return self


@primitive("Loops", step=False)
def tile(self: Scheduled[H], *axes: Name, factors: Sequence[int]) -> tuple[AxisRef, ...]:
    """Split each axis by its factor, ``[None, factor]``, and move the inner parts inside; returns outer axes, then
    inner ones. Traces record the splits and the reorder.
    """
    loops, history = [self._loop(a) for a in axes], self._history
    if len(need_list("factors", factors, "ints", ScheduleError)) != len(loops):
        raise ScheduleError(Problem("tile.factors", f"{len(loops)} axes need {len(loops)} factors, got {len(factors)}"))
    with history._as_one():
        parts = [split(history, x.var.name, [None, f]) for x, f in zip(loops, factors, strict=True)]
        new = [p[0] for p in parts] + [p[1] for p in parts]
        reorder(history, *new)
    return tuple(new)


def _reorder(program: Program, *loops: Loop) -> Rewrite:
    names = [x.var.name for x in loops]
    if twice := [n for n in names if names.count(n) > 1]:
        raise _refuse("reorder.repeats", f"{twice[0]} is given twice", loops[0])
    if len(loops) < 2:
        return Rewrite(program)
    index = index_of(program)
    outermost = min(loops, key=lambda x: len(index.paths[x]))
    chain: list[Loop] = [outermost]
    wanted = set(loops)
    while not wanted <= set(chain):
        below = chain[-1].body
        if not isinstance(below, Loop):
            missing = next(x for x in loops if x not in chain)
            raise _refuse(
                "reorder.perfect-nest",
                f"{missing.var.name} is not in one perfect nest with {outermost.var.name}: "
                f"{chain[-1].var.name} holds more than one statement"
                if isinstance(below, Seq)
                else f"{missing.var.name} is not below {outermost.var.name}",
                outermost,
            )
        chain.append(below)
    for x in loops:
        if ordered := [it for s, it in has_axis(x, Axis.ORDERED) if reopens(s)]:
            raise _refuse("reorder.ordered", f"{x.var.name} drives the ordered axis {ordered[0].var.name}", x)
    order = iter(loops)
    new = [next(order) if x in wanted else x for x in chain]
    _keeps_order(chain, new)
    if moved := [x for x in new[:-1] if x.kind is Kind.VECTOR]:
        raise _refuse(
            "reorder.vectorized",
            f"{moved[0].var.name} is vectorized and would no longer be innermost",
            moved[0],
            hint="reorder first, then vectorize",
        )
    for n, x in enumerate(new):
        if uses(x.extent, {y.var for y in new[n + 1 :]}):
            raise _refuse(
                "reorder.extent-depends", f"the extent of {x.var.name} depends on a loop that would be inside it", x
            )
    return Rewrite(swap(program, chain[0], nest(new, chain[-1].body)))


def _keeps_order(old: Sequence[Loop], new: Sequence[Loop]) -> None:
    """Raise ScheduleError if reordering would change the order of terms of a scan or non-commutative reduction."""
    for outer, inner in itertools.combinations(old, 2):
        if new.index(outer) < new.index(inner):
            continue
        stages = {s for s, _ in in_order(outer)}
        if both := [(s, it) for s, it in in_order(inner) if s in stages]:
            stage, it = both[0]
            why = (
                "combines its terms in their order"
                if it.axis is Axis.ORDERED
                else "has a combiner that does not commute"
            )
            raise _refuse(
                "reorder.ordered",
                f"{stage.name} {why}: {inner.var.name} outside {outer.var.name} would combine terms in another order",
                outer,
                hint=f"reorder the other loops of {stage.name} alone, or rfactor {outer.var.name}, the outer one",
            )


@primitive("Loops")
def vectorize(self: S, axis: Name) -> S:
    """Run an innermost loop of 2, 4, 8 or 16 iterations in vector lanes (emitted as vector loads, stores and arithmetic
    where legal).

    Lanes of a scan's own axis, and of a reduction that does not commute, are combined with those 1, 2, 4 … before them,
    by shuffles where a processor has them.
    """
    loop = self._loop(axis)
    self._history._apply("vectorize", (loop,), {}, lambda p: _vectorize(p, loop))
    return self


def _vectorize(program: Program, loop: Loop) -> Rewrite:
    need_serial(loop, "vectorize")
    if not isinstance(loop.body, Stage):
        raise _refuse(
            "vectorize.innermost",
            f"{loop.var.name} is not an innermost loop",
            loop,
            hint="reorder it innermost, or split it and vectorize the inner part after reordering",
        )
    found = has_axis(loop, Axis.REDUCE) + has_axis(loop, Axis.ORDERED)
    if found and not scans(loop) and not reduces_in_order(loop):
        raise _refuse(
            "vectorize.reduction",
            f"{loop.var.name} drives the reduction axis {found[0][1].var.name}: its lanes would update one element",
            loop,
            hint="vectorize a spatial loop, or rfactor first",
        )
    extent = constant_extent(loop, "vectorize.symbolic-extent")
    if extent not in LANES:
        raise _refuse(
            "vectorize.lanes",
            f"{loop.var.name} has {extent} iterations; vectors have {', '.join(map(str, LANES))} lanes",
            loop,
            hint=f"s.split({loop.var.name!r}, [None, 4]) and vectorize the inner part",
        )
    return Rewrite(swap(program, loop, loop.replace(kind=Kind.VECTOR)))


@primitive("Loops")
def unroll(self: S, axis: Name) -> S:
    """Ask the device compiler to unroll a loop completely; refused beyond 1,024 copies of its body, those of unrolled
    loops inside included.
    """
    loop = self._loop(axis)
    self._history._apply("unroll", (loop,), {}, lambda p: _unroll(p, loop))
    return self


def _unroll(program: Program, loop: Loop) -> Rewrite:
    need_serial(loop, "unroll")
    extent = constant_extent(loop, "unroll.symbolic-extent")
    copies = extent * math.prod(as_int(x.extent) for x in find(loop.body, Loop) if x.kind is Kind.UNROLL)
    if copies > UNROLL_LIMIT:
        raise _refuse(
            "unroll.size-limit",
            f"unrolling {loop.var.name} gives {copies} copies of its body; the limit is {UNROLL_LIMIT}",
            loop,
            hint=f"s.split({loop.var.name!r}, [None, 8]) and unroll the inner part",
        )
    return Rewrite(swap(program, loop, loop.replace(kind=Kind.UNROLL)))


def _refuse(code: str, message: str, loop: Loop, hint: str = "") -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(loop), hint=hint))
