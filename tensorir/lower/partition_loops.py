"""Pass: cut loops at given points into parts with constant sizes, so that no part needs a guard.

The first iterations of a loop from a balanced or peeled split are longer or shorter than the rest; ``partition`` cuts
any loop. Each part becomes a separate loop with a copy of the body of constant sizes; copies keep the loops' names. A
block loop keeps its axis: each one-thread block selects its part's copy by a condition. Blocks of several threads stay
uncut, with guards and a comment in the text, since barriers may not be conditional.

In each part, implied conditions vanish, loops end where their guards end them, and fills of local buffers are limited
to the elements read (loop partitioning as in Halide: Ragan-Kelley et al., PLDI 2013, section 4.3; here the cut points
come from the schedule).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tensorir.arith.affine import Arith, same
from tensorir.arith.box import Side, union
from tensorir.arith.conditions import conjunction
from tensorir.ir.build import as_expr, as_int, binary
from tensorir.ir.dims import dims_in
from tensorir.ir.marks import Partition, Remark, UnrollBy
from tensorir.ir.text import whole
from tensorir.ir.tree import Alloc, Binary, Buffer, Const, Expr, If, Kind, Loop, Program, Seq, Stage, Stmt, Var
from tensorir.ir.visit import Pruner, Rewriter, find, replace, sequence, substitute, swap_buffers, writes
from tensorir.lower.boxes import Access, common, local_accesses, sides_of
from tensorir.lower.end_loops import stage_end
from tensorir.lower.form import bound_loops, each_nest, extent_of, kernel_arith, lowering, rewrap, thread_count
from tensorir.schedule.analysis import in_loops
from tensorir.target import Target


@lowering
def partition_loops(program: Program, target: Target) -> Program:
    """Cut partitioned loops into parts with a copy of the body each.

    gives: no loop has parts; local buffers are filled only as far as they are read
    """
    if not find(program.body, Loop, _in_parts):
        return program
    taken = {s.name for s in find(program.body, Stage)}

    def kernel(nest: Stmt) -> Stmt:
        if not find(nest, Loop, _in_parts):
            return nest
        axes, body = bound_loops(nest)
        if thread_count(axes) > 1:  # threads with neighbours predicate instructions
            axes, body = [_uncut(x) for x in axes], _Uncut()(body)
        cut = _Partition(body, taken)
        body = cut(body)
        if thread_count(axes) == 1:  # no barrier in the body of a block
            for x in axes:
                body = cut.blocks(x, body)
        axes = [x.marked(Remark(whole(x, thread_count(axes)))) for x in axes]
        body = _trimmed(_Tighten(kernel_arith(program.known, axes, body))(body), axes, program.known)
        if not axes and not isinstance(body, Loop):
            body = Loop(Var("once", "index"), as_expr(1), body)  # several loops, still one kernel
        return rewrap(axes, body)

    return each_nest(program, kernel)


def _in_parts(x: Loop) -> bool:
    return bool(Partition.of(x).at)


def _uncut(x: Loop) -> Loop:
    return x.marked(Partition()) if dims_in(*Partition.of(x).at) else x


class _Uncut(Rewriter):
    def on_Loop(self, n: Loop) -> Loop:
        return _uncut(self.children(n))


MOST_TAILS = 8
"""Iterations of the largest tile for which each possible remainder gets a body of its own."""


class Copies(Rewriter):
    """Rewriter that duplicates bodies under new stage names. taken: stage names of the program, updated"""

    def __init__(self, body: Stmt, taken: set[str]) -> None:
        self.taken, self.accesses = taken, local_accesses(body)

    def copied(self, original: Stmt, body: Stmt) -> Stmt:
        """A duplicate of ``body``, derived from ``original``, with new names and local buffers."""
        twins = self._local(original)
        self.accesses.update({new: self.accesses[old] for old, new in twins.items()})
        return Twin(fresh_names(original, self.taken), twins)(body)  # type: ignore[no-any-return]

    def _local(self, body: Stmt) -> dict[Buffer, Buffer]:
        """{buffer: duplicate} for buffers used only inside ``body``."""
        inside = local_accesses(body)
        return {b: b.replace(name=b.name) for b, found in inside.items() if len(found) == len(self.accesses[b])}


def fresh_names(body: Stmt, taken: set[str]) -> dict[str, str]:
    """{old: new} names for the stages of ``body``; the new ones are added to ``taken``."""
    out = {}
    for s in find(body, Stage):
        new, k = s.name, 1
        while new in taken:
            new, k = f"{s.name}.part{k}", k + 1
        taken.add(new)
        out[s.name] = new
    return out


class _Partition(Copies):
    def on_Loop(self, n: Loop) -> Stmt:
        if not (at := Partition.of(n).at):
            return self.children(n)
        if dims_in(*at):
            return self._at_dim(n)
        ends: list[int] = [0, *at, as_int(n.extent)]
        pieces = [(a, b) for a, b in itertools.pairwise(ends) if a < b]
        return sequence([self(self._part(n, a, b, again=k > 0)) for k, (a, b) in enumerate(pieces)])

    def blocks(self, axis: Loop, body: Stmt) -> Stmt:
        """``body`` duplicated for each part of a block loop, each copy under the condition that the block belongs to
        the part.
        """
        if not (at := Partition.of(axis).at):
            return body
        self.accesses = local_accesses(body)
        if dims_in(*at):
            whole, _ = _whole_tiles(axis)
            return sequence([If(whole, body), *(If(c, b) for c, b in self._tails(body, axis, axis.var))])
        ends, out = [0, *at, as_int(axis.extent)], []
        for k, (first, end) in enumerate(itertools.pairwise(ends)):
            part = self.copied(body, body) if k else body
            if end == first + 1:
                part = substitute(part, {axis.var: as_expr(first)})
            low = [binary("<=", as_expr(first), axis.var)] if first else []
            high = [binary("<", axis.var, as_expr(end))] if end < as_int(axis.extent) else []
            out.append(If(conjunction([*low, *high]), part))
        return sequence(out)

    def _at_dim(self, n: Loop) -> Stmt:
        """A loop over whole tiles of a dim, followed by its shorter last tile, each under a condition that later
        becomes a loop end.
        """
        whole, end = _whole_tiles(n)
        tails = [(c, self(b)) for c, b in self._tails(n.body, n, end)]
        first = n.replace(body=If(whole, _once(self(n.body)))).marked(Partition())
        return sequence([first, *(If(c, _once(b)) for c, b in tails)])

    def _tails(self, body: Stmt, n: Loop, place: Expr) -> list[tuple[Expr, Stmt]]:
        """[(condition, body)] for a dim's shorter last tile, at index ``place``. Small tiles get one body per
        remainder, of constant size.
        """
        (tile,) = Partition.of(n).at
        size = as_int(tile.b)
        if size > MOST_TAILS:
            rest = binary("<", binary("*", place, size), tile.a)
            return [(rest, self.copied(body, substitute(body, {n.var: place})))]
        out = []
        for t in range(1, size):
            end = binary("+", binary("*", place, size), t)
            whole = binary("and", binary("<=", end, tile.a), binary("<=", tile.a, end))
            short = _Shorter(n.var, tile, t)(body)
            out.append((whole, self.copied(body, substitute(short, {n.var: place}))))
        return out

    def _part(self, n: Loop, first: int, end: int, again: bool) -> Loop:
        var = Var(n.var.name, "index") if again else n.var
        body: Stmt = substitute(n.body, {n.var: binary("+", var, first)})
        if again:
            body = self.copied(n.body, body)
        return Loop(var, as_expr(end - first), body, n.kind).marked(UnrollBy.of(n))


def _whole_tiles(n: Loop) -> tuple[Expr, Expr]:
    """Condition that iteration of ``n`` is a whole tile, and the index ``x // c`` of the partial one."""
    (end,) = Partition.of(n).at
    return binary("<=", binary("*", binary("+", n.var, 1), end.b), end.a), end


class _Shorter(Rewriter):
    """Rewriter: limit the tile numbered by ``var`` to its first ``count`` iterations.

    Only for axes that end at the tile's end: a producer may be read beyond.
    """

    def __init__(self, var: Var, tile: Binary, count: int) -> None:
        self.var, self.end, self.size, self.count, self.arith = var, tile.a, as_int(tile.b), count, Arith()

    def on_Stage(self, n: Stage) -> Stage:
        ended = [b for b, it in zip(n.binds, n.iters, strict=True) if same(it.extent, self.end)]
        forms = [self.arith.linear(b) for b in ended]
        within = [f.without(self.var).expr() for f in forms if f.terms.get(self.var) == self.size]
        return n.replace(guards=(*n.guards, *(binary("<", i, self.count) for i in within)))


def _once(body: Stmt) -> Loop:
    return Loop(Var("version", "index"), as_expr(1), body)


class Twin(Rewriter):
    """Rewriter: duplicate a body with new loop variables, stage names and local buffers.

    same: its stages access the same elements in the same threads as the originals, recorded in ``of``
    """

    def __init__(self, names: dict[str, str], twins: dict[Buffer, Buffer], same: bool = False) -> None:
        self.names, self.twins, self.same = names, twins, same

    def on_Loop(self, n: Loop) -> Loop:
        var = Var(n.var.name, "index")
        new = {n.var: var}
        marks = tuple([substitute(m, new) for m in n.marks])
        return n.replace(var=var, body=self(substitute(n.body, new)), marks=marks)

    def on_Stage(self, n: Stage) -> Stage:
        of = self.names.get(n.of, n.of) or (n.name if self.same else "")
        return swap_buffers(n.replace(name=self.names[n.name], of=of), self.twins)

    def on_Alloc(self, n: Alloc) -> Stmt:
        return self.within(n, lambda a, body: Alloc(self.twins.get(a.buffer, a.buffer), body))


class _Tighten(Pruner):
    """Rewriter: drop guards that always hold; shorten a loop to the end implied by the guards of its whole body."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def on_Loop(self, n: Loop) -> Stmt:
        end = stage_end(n, self.arith) if n.kind.level == "sequential" and isinstance(n.extent, Const) else None
        if end is not None and end < as_int(n.extent):
            if end <= 0:
                return Seq(())
            if n.kind is not Kind.VECTOR:
                n = n.replace(extent=as_expr(end))
        self.arith.ranges[n.var] = extent_of(n)
        return self.pruned(n)

    def on_Stage(self, n: Stage) -> Stage:
        return n.replace(guards=tuple(g for g in n.guards if not self.arith.proves(g)))


def _trimmed(body: Stmt, axes: list[Loop], known: Arith) -> Stmt:
    """``body`` with loops that fill local buffers shortened to the elements read later."""
    while True:
        arith = kernel_arith(known, axes, body)
        cuts: dict[Loop, Loop] = {}
        inside: set[Loop] = set()
        for b, found in local_accesses(body).items():
            for loop, end in _cuts(b, found, axes, arith):
                within = set(find(loop, Loop))
                if loop not in inside and not within & cuts.keys():  # one of a nest at a time
                    cuts[loop] = loop.replace(extent=as_expr(end))
                    inside |= within
        if not cuts:
            return body
        body = replace(body, cuts)


def _cuts(b: Buffer, found: list[Access], axes: list[Loop], arith: Arith) -> Iterable[tuple[Loop, int]]:
    _, depth = common(found)
    sides = sides_of(b, found, depth, axes, arith)
    makers = [a for a in found if a.writes]
    stages = {a.stage for a in makers}
    read = [s for a, s in zip(found, sides, strict=True) if not a.writes and a.stage not in stages]
    if not read:
        return
    for d in range(len(b.shape)):
        wanted = union([s[d] for s in read])
        if wanted is None:
            continue
        by: dict[Loop, set[Stage]] = {}
        for a in makers:
            loop = _walker(a, d, depth, wanted, arith)
            if loop is not None and wanted.extent < as_int(loop.extent):
                by.setdefault(loop, set()).add(a.stage)
        for loop, walking in by.items():
            # a stage that fills another buffer as well runs as far as that one is read
            if set(find(loop, Stage)) == walking and all(writes(s.body) == [b] for s in walking):
                yield loop, wanted.extent


def _walker(a: Access, d: int, depth: int, wanted: Side, arith: Arith) -> Loop | None:
    """Loop that advances dimension ``d`` of write ``a`` by one element per iteration from the start of ``wanted``; None
    if there is none.
    """
    form = arith.linear(in_loops(a.index[d], a.stage))
    for x in a.path[depth:]:
        if isinstance(x, Loop) and x.kind is not Kind.VECTOR and isinstance(x.extent, Const):
            step, rest = form.along(x.var) or (0, form)
            if step == 1 and rest.same(wanted.first):
                return x
    return None
