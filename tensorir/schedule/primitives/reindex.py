"""reindex: iterate a stage over a bijective view of its axes, with operands packed accordingly.

The loops of ``n, p, q, k | r, s, c`` become those of a product, ``i = (n, p, q), j = k, t = (r, s, c)``, while the
stage keeps its domain, unless ``writes`` makes the new axes the domain: what it computes is what was declared. TVM's
reindex, transform_layout and pad_einsum in one (Feng et al., "TensorIR", ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorir.arith.affine import Arith, same
from tensorir.arith.conditions import conjunction, weakest
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int, need_mapping, need_name, need_text
from tensorir.ir.build import as_expr, binary, const, no_constant, select
from tensorir.ir.dims import dims_in, most
from tensorir.ir.dtypes import dtype_of
from tensorir.ir.structure import among
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Axis,
    Buffer,
    Cast,
    Expr,
    Iter,
    Load,
    Loop,
    Program,
    Scope,
    Stage,
    Stmt,
    Store,
    Update,
    Var,
)
from tensorir.ir.visit import Rewriter, find, substitute, uses, writes
from tensorir.schedule.analysis import (
    Index,
    accumulates,
    adds_atomically,
    caret,
    commutes,
    constant_extent,
    context,
    driven_axes,
    has_axis,
    in_loops,
    index_of,
    loads_of,
    need_serial,
    packed_name,
    ranges,
    reopens,
    stages_writing,
    unique,
)
from tensorir.schedule.history import AxisRef, H, Name, Scheduled
from tensorir.schedule.primitives.loops import Guard
from tensorir.schedule.primitives.reindex_view import HINT, Bijection, Component, View, components, parse_view
from tensorir.schedule.primitives.reindex_writes import Domain, kept_under, unconverted, unfit
from tensorir.schedule.primitives.reindex_zeros import made_up, zeroed
from tensorir.schedule.registry import primitive
from tensorir.schedule.rewrite import Rewrite, nest, place_at_root, swap


@primitive("Loops", moves=True)
def reindex(self: Scheduled[H], stage: Name, view: str, pad: Mapping[str, int] | None = None,
            reads: Mapping[str, str] | None = None, name: str | None = None,
            dtype: object = None, writes: str | None = None) -> tuple[AxisRef, ...]:  # fmt: skip
    """Iterate over a stage's domain by other axes, "n, p, q, k | r, s, c -> i = (n, p, q), j = k, t = (r, s, c)",
    and pack what it reads under them, ``reads={"x": "i, t"}``; returns the new axes.

    view:  short names of the stage's axes, those of its reduction after the bar, with a minus where the new ones count
           backwards; they are serial and in one perfect nest, other loops of which move inside
    pad:   new axes, or old ones before the view is made of them, whose extent is rounded up to a multiple: what is
           beyond the end is not computed, and packed operands have zeros there
    reads: buffers that the stage reads, each with the new axes under which a copy of what it reads is made ahead, or
           with parts of them: "jo = j/16, k, ji = j%16"; one of several reads of a buffer as it is declared, "x[j, k]"
    name:  what to call that copy, where there is one;  dtype: the type of copies, where the stage converts all that it
           reads there to it
    writes: new axes, or parts of them, by which the result is kept ("" for its one element), which ``name`` and
           ``dtype`` are about then: the new axes become the domain of the stage, its readers follow, and
           "<stage>.out" writes an output from there

    Raises ScheduleError: ``reindex.not-bijective``, ``reindex.axes``, ``reindex.order``, ``reindex.nest``,
    ``reindex.names``, ``reindex.pad``, ``reindex.pad-identity``, ``reindex.reads``, ``reindex.writes``,
    ``reindex.dtype``, ``reindex.serial``, ``reindex.symbolic-extent``.
    """
    history = self._history
    found, said = history._stage(stage), parse_view(need_text("view", view, ScheduleError))
    loops = [history._found_loop(history._axis_of(found.name, n)) for n in said.names]
    multiples = need_mapping("pad", {} if pad is None else pad, ScheduleError)
    padding = {k: need_int("pad", n, 1, error=ScheduleError) for k, n in multiples.items()}
    operands = need_mapping("reads", {} if reads is None else reads, ScheduleError)
    packed = {k: need_text("reads", v, ScheduleError, empty=True) for k, v in operands.items()}
    buffers = {k: (history._buffer(k.partition("[")[0].strip()), v) for k, v in packed.items()}
    label = None if name is None else need_name("name", name, ScheduleError)
    kind = None if dtype is None else dtype_of(dtype).name
    kept = None if writes is None else need_text("writes", writes, ScheduleError, empty=True)
    how = {"pad": padding or None, "reads": packed or None, "name": label, "dtype": kind, "writes": kept}
    out = history._apply("reindex", (found, view), how,
                         lambda p: _reindex(p, found, said, loops, padding, buffers, label, kind, kept))  # fmt: skip
    return tuple(map(AxisRef, out))


def _reindex(program: Program, stage: Stage, view: View, loops: Sequence[Loop], pad: Mapping[str, int] | None = None,
             reads: Mapping[str, tuple[Buffer, str]] | None = None,
             name: str | None = None, dtype: str | None = None, kept: str | None = None) -> Rewrite:  # fmt: skip
    made = _Reindex(program, stage, view, loops, dict(pad or {}))
    return made.rewrite(dict(reads or {}), name, dtype, kept)


class _Reindex:
    """Working state of the ``reindex`` primitive: new loops in terms of the old ones, and back.

    axes: the new loop variables;  padded: their extents;  values: old loop variables in terms of ``axes``
    tails: (condition for an iteration to count, old loops in it)
    """

    def __init__(self, program: Program, stage: Stage, view: View, loops: Sequence[Loop], pad: dict[str, int]) -> None:
        self.program, self.stage, self.view, self.loops = program, stage, view, loops
        self.index = index_of(program)
        self.symbolic = self._kept_as_they_are()
        for x in loops:
            need_serial(x, "reindex")
        extents = tuple(constant_extent(x, "reindex.symbolic-extent") for x in loops)
        made = [c.name for c in view.new]
        whole = [-(-n // m) * m if (m := 1 if a in made else pad.get(a, 1)) > 1 else n
                 for a, n in zip(view.names, extents, strict=True)]  # fmt: skip
        last = {n: extents[n] - 1 for n, name in enumerate(view.names) if name in view.backwards}
        self.map = self._bijective(view.text, view.names, whole, view.new, last)
        self._need_axes()
        labels = [f"{stage.name}.{c.name}" for c in view.new]
        taken = self.index.names() - {x.var.name for x in loops}
        if clash := [n for n in labels if n in taken]:
            raise self._refuse("reindex.names", f"the name {clash[0]} is taken", "another name on the right of ->")
        self.axes = {c.name: Var(label, "index") for c, label in zip(view.new, labels, strict=True)}
        for label, n in pad.items():
            if label not in self.axes and label not in view.names:
                raise self._refuse("reindex.pad", f"pad={{{label!r}: {n}}}: {label} is no axis of the view",
                                   f"pad={{{view.new[0].name!r}: 16}}")  # fmt: skip
        self.sizes = {c.name: self.map.size(c) for c in view.new}
        self.padded = {label: -(-size // pad.get(label, 1)) * pad.get(label, 1) for label, size in self.sizes.items()}
        self.values = dict(zip((x.var for x in loops), self.map.back(list(self.axes.values())), strict=True))
        self.tails = list(self._tails(extents))

    def _kept_as_they_are(self) -> Mapping[str, Expr]:
        """New axes that are old ones over dims -> extent. Raises ``dim.constant`` for an old one that is changed."""
        found = dict[str, Expr]()
        for n, x in enumerate(self.loops):
            for it in driven_axes(x, self.stage):
                if dims_in(it.extent):
                    same_ = [c.name for c in self.view.new if c.pieces == ((n, 1, 0),)]
                    if not same_ or self.view.names[n] in self.view.backwards:
                        raise ScheduleError(no_constant(it.extent).problems)
                    found[same_[0]] = it.extent
        return found

    def _tails(self, extents: Sequence[int]) -> Iterator[tuple[Expr, list[Loop]]]:
        beyond = set(self.map.beyond())
        for n, (x, extent) in enumerate(zip(self.loops, extents, strict=True)):
            if n in beyond or self.map.extents[n] > extent:
                value = self.values[x.var]
                if n in self.map.last:  # counted from the end, as guards are said: an expression below an extent
                    value = Arith({}).linear(binary("-", self.map.last[n], value)).expr()
                    extent = self.map.last[n] + 1
                yield binary("<", value, extent), [x]
        for c in self.view.new:
            if self.padded[c.name] > self.sizes[c.name]:
                yield binary("<", self.axes[c.name], self.sizes[c.name]), [self.loops[p[0]] for p in c.pieces]

    # --- what must hold

    def _bijective(self, text: str, names: Sequence[str], extents: Sequence[int],
                   new: Sequence[Component], last: Mapping[int, int] | None = None) -> Bijection:  # fmt: skip
        """The Bijection from axes ``names`` to ``new``; raises if it is not bijective."""
        made = Bijection(tuple(names), tuple(extents), tuple(new), last or {})
        told = made.witness()
        if told or not made.proved():
            name = names[told[0] if told else 0]
            raise self._refuse(
                "reindex.not-bijective",
                f"{text!r}: {told[1] if told else 'this cannot be proved to be bijective'}",
                f"each old axis whole, or in parts that make it up: {name}/4 and {name}%4",
            )
        return made

    def _need_axes(self) -> None:
        """Raise ScheduleError unless the ``|`` of the view separates spatial from reduce axes, and no new axis mixes
        them.
        """
        for n, x in enumerate(self.loops):
            if scans := [s for s, _ in has_axis(x, Axis.ORDERED) if not reopens(s)]:
                raise self._refuse(
                    "reindex.axes", f"{x.var.name} drives the axis along which {scans[0].name} combines its terms: "
                    "their order is fixed", "a view of the other axes")  # fmt: skip
            if pieces := has_axis(x, Axis.ORDERED):
                raise self._refuse(
                    "reindex.axes", f"{x.var.name} counts pieces of a reduction, in each of which {pieces[0][0].name} "
                    "opens or closes a copy: their order is fixed", "reindex before that stage_out")  # fmt: skip
            kinds = {it.axis for it in driven_axes(x, self.stage)}
            wanted = Axis.SPATIAL if n < len(self.view.spatial) else Axis.REDUCE
            if kinds - {wanted} and not adds_atomically(self.stage):
                is_ = " and ".join(sorted(k.value for k in kinds))
                raise self._refuse(
                    "reindex.axes", f"{x.var.name} drives a {is_} axis of {self.stage.name}: spatial axes stand before "
                    "the |, reduce axes behind it", HINT)  # fmt: skip
        first_reduced = len(self.view.spatial)
        self._need_order(first_reduced)
        for c in self.view.new:
            if len({p[0] < first_reduced for p in c.pieces}) > 1 and not adds_atomically(self.stage):
                raise self._refuse(
                    "reindex.axes", f"{c.name} is made of spatial and of reduce axes: one loop cannot do both", HINT
                )

    def _need_order(self, first_reduced: int) -> None:
        """Raise ScheduleError for a view that reorders the terms of a non-commutative combiner."""
        nested = [x for x in self.index.above(self.stage) if accumulates(x, self.stage)]
        if commutes(self.stage) or not nested:
            return
        reduced = list(self.loops[first_reduced:])
        taken = [(nested.index(self.loops[n]), -divisor) for c in self.view.new for n, divisor, _ in c.pieces
                 if n >= first_reduced]  # fmt: skip
        backwards = self.view.backwards & set(self.view.reduced)
        if (reduced and set(reduced) != set(nested)) or taken != sorted(taken) or backwards:
            raise self._refuse(
                "reindex.order", f"the combiner of {self.stage.name} does not commute, and this view goes through its "
                "terms in another order", "its reduce axes behind the bar in their order, larger parts outside"
            )  # fmt: skip

    def _chain(self) -> list[Loop]:
        """Loops of the perfect nest from the first to the last viewed one."""
        if not self.loops:
            raise self._refuse("reindex.nest", f"the view names no axis of {self.stage.name}")
        outermost = min(self.loops, key=lambda x: len(self.index.paths[x]))
        nested = [outermost]
        while not set(self.loops) <= set(nested):
            below = nested[-1].body
            if not isinstance(below, Loop):
                missing = next(x for x in self.loops if x not in nested)
                raise self._refuse(
                    "reindex.nest", f"{missing.var.name} is not in one perfect nest with {outermost.var.name}",
                    "reindex before other stages are placed in these loops")  # fmt: skip
            nested.append(below)
        return nested

    # --- the new tree

    def rewrite(self, reads: dict[str, tuple[Buffer, str]], name: str | None, dtype: str | None,
                kept: str | None) -> Rewrite:  # fmt: skip
        nested = self._chain()
        body: Stmt = substitute(nested[-1].body, self.values)
        for cond, about in [] if kept is not None else self.tails:
            body = Guard(about, cond)(body)
        inner = [x for x in nested if x not in self.loops]
        new = [Loop(self.axes[c.name], as_expr(self.padded[c.name]), body) for c in self.view.new]
        done = swap(self.program, nested[0], nest([*new, *inner], body))
        labels = tuple(x.var.name for x in new)
        gone = {x.var.name: f"it was reindexed into {', '.join(labels)}" for x in self.loops}
        copies: set[Buffer] = set()
        label = name if len(reads) == 1 and kept is None else None
        for read, (buffer, dims) in reads.items():
            done = self._packed(done, read, buffer, dims, label, dtype or buffer.dtype, copies)
        self._need_identities(done, copies)
        if kept is not None:
            done = self._kept(done, kept, copies, name, dtype)
        return Rewrite(done, labels, gone)

    def _kept(self, program: Program, said: str, copies: set[Buffer], name: str | None, dtype: str | None) -> Program:
        """``program`` with the stage's result stored under the new axes ``said``, text such as "i, k/8, k%8".

        copies: packed operands;  name, dtype: of the stored result, None: its own
        """
        nested = Index(program).stages[self.stage.name]
        reduced = {c.name for c in self.view.new if any(p[0] >= len(self.view.spatial) for p in c.pieces)}
        dims = self._dims("writes", said)
        if set(dims.names) != set(self.axes) - reduced:
            wanted = ", ".join(x for x in self.axes if x not in reduced)
            raise self._refuse("reindex.writes", f"writes={said!r}: a result has one element for each {wanted}",
                               f"writes={wanted!r}")  # fmt: skip
        axes = {n: (v, self.padded[n]) for n, v in self.axes.items()}
        of = self.stage.replace(body=nested.body, init=nested.init)
        d = Domain(of, [x.var for x in self.loops], self.map, axes, frozenset(reduced), [c for c, _ in self.tails],
                   dims, frozenset(copies))  # fmt: skip
        if why := unfit(d, program, nested):
            raise self._refuse(
                "reindex.writes", f"writes={said!r}: {why}", "without writes=: the stage keeps its domain"
            )
        kind = dtype if isinstance(of.body, Store) else None
        if rounded := [b for b in writes(of.body) if b in program.outputs and kind not in (None, b.dtype)]:
            raise self._refuse("reindex.dtype", f"{rounded[0].name} is an output of {rounded[0].dtype}: it is not kept "
                               f"in {kind}", "without dtype=")  # fmt: skip
        done = kept_under(d, program, nested, name, kind)
        if left := unconverted(done, writes(of.body)):
            read = show(left[0])
            raise self._refuse(
                "reindex.dtype", f"{read} is read as {left[0].dtype}, and not converted to {kind}",
                f"without dtype=, or tir.cast({read}, {kind!r}) in the declaration")  # fmt: skip
        return done

    def _packed(self, program: Program, read: str, buffer: Buffer, said: str, name: str | None, dtype: str,
                copies: set[Buffer]) -> Program:  # fmt: skip
        """``program`` with a packed copy of the read ``buffer``, indexed by the new axes ``said``, text such as "i,
        k/8, k%8".

        read: text of the read, "x" or "x[j, k]";  copies: set to which the copy is added
        """
        index = Index(program)
        stage = index.stages[self.stage.name]
        load, dims = self._one_read(index, stage, buffer, read), self._dims(f"reads[{read!r}]", said)
        whole = self._own_axes(dims.names)
        own = tuple(dims.forward(c, whole) for c in dims.new)
        fresh = [Var(c.name, "index") for c in dims.new]
        arith = Arith({v: (0, dims.size(c) - 1) for v, c in zip(fresh, dims.new, strict=True)})
        wanted = [self.axes[n] for n in dims.names]
        known = self._beyond_the_end(index.above(stage), wanted)
        given = [known.linear(in_loops(i, stage)).expr() for i in load.index]
        if any(not among(v, wanted) for i in given for v in find(i, Var)):  # of axes of one iteration nothing moves
            given = [context(index, stage).simplify(i) for i in given]
        if loose := [v for i in given for v in find(i, Var) if not among(v, wanted)]:
            axis = loose[0].name
            more = f"{said}, {axis.split('.', 1)[-1]}" if said else axis.split(".", 1)[-1]
            raise self._refuse(
                "reindex.reads", f"{show(load)} moves with {axis}: {axis} = 0 and {axis} = 1 read different elements "
                f"for the same {said or 'cell'}", f"reads={{{read!r}: {more!r}}}")  # fmt: skip
        back = dict(zip(wanted, dims.back(fresh), strict=True))
        at = [substitute(i, back) for i in given]
        conds = [substitute(c, back) for c, _ in self.tails if set(find(c, Var)) <= set(wanted)]
        conds += [binary("<", back[wanted[n]], dims.extents[n]) for n in dims.beyond()]
        for i, n in zip(at, buffer.shape, strict=True):
            ends = [c for c in (binary("<=", const(0), i), binary("<", i, n)) if not arith.proves(c)]
            conds += [c for c in ends if not any(same(c, x) for x in conds)]
        value: Expr = Load(buffer, tuple(at), buffer.dtype)
        if conds:
            value = select(
                conjunction(weakest(conds, arith)), value, const(False if buffer.dtype == "bool" else 0, buffer.dtype)
            )
        value = value if dtype == buffer.dtype else Cast(value, dtype)
        shape = tuple(as_expr(dims.size(c)) for c in dims.new)
        copy = Buffer(unique(name or packed_name(read), index.names()), shape, dtype, Scope.GLOBAL)
        iters = tuple(Iter(v, n, Axis.SPATIAL) for v, n in zip(fresh, shape, strict=True))
        stored = Stage(copy.name, iters, (), Store(copy, tuple(fresh), value))
        walks = [
            Loop(Var(f"{copy.name}.{v.name}", "index"), as_expr(most(n)), stored)
            for v, n in zip(fresh, shape, strict=True)
        ]
        made = nest(walks, stored.replace(binds=tuple(x.var for x in walks)))
        copies.add(copy)
        reader = stage.replace(body=_Instead(load, Load(copy, own, dtype))(stage.body))
        self._need_converted(reader.body, load, dtype)
        return place_at_root(swap(program, stage, reader), made, before=[reader])

    def _beyond_the_end(self, loops: Sequence[Loop], named: Sequence[Var]) -> Arith:
        """Ranges of ``loops`` for simplifying reads: those of fused axes are doubled, as tiles of a copy may exceed
        them; an axis of one value in ``named`` counts as having two, so that it stays in the index.
        """
        joined = {self.axes[c.name] for c in self.view.new if len(c.pieces) > 1}
        known = ranges(loops)
        least = {v: 1 if among(v, named) else 0 for v in known}
        return Arith(
            {v: (low, 2 * high + 1 if v in joined else max(high, least[v])) for v, (low, high) in known.items()}
        )

    def _dims(self, what: str, said: str) -> Bijection:
        """Bijection from new axes to the dimensions ``said`` of a copy or result."""
        whole = f"{what} = {said!r}"
        found = components(whole, tuple(self.axes), said)
        names = [self.view.new[p[0]].name for c in found for p in c.pieces]
        for extent in (self.symbolic[n] for n in names if n in self.symbolic):
            raise ScheduleError(no_constant(extent).problems)
        used = sorted({p[0] for c in found for p in c.pieces})
        kept = tuple(Component(c.name, tuple((used.index(p[0]), *p[1:]) for p in c.pieces)) for c in found)
        names = [self.view.new[n].name for n in used]
        return self._bijective(whole, names, [self.padded[n] for n in names], kept)

    def _one_read(self, index: Index, stage: Stage, buffer: Buffer, read: str) -> Load:
        """The single load that ``read`` names, of a buffer complete before the stage's nest."""
        loads, told, hint = loads_of(stage, buffer), "", "stage_in near the reader"
        if "[" in read:
            loads = [x for x in loads if show(x).replace(" ", "") == read.replace(" ", "")]
        if not loads:
            every = dict.fromkeys(show(x) if "[" in read else x.buffer.name for x in find(stage.body, Load))
            told = f"{stage.name} does not read {read}, but {', '.join(every)}"
        elif any(not all(map(same, x.index, loads[0].index)) for x in loads):
            told = f"{stage.name} reads {buffer.name} at several places: {show(loads[0])}, {show(loads[-1])}"
            hint = f"reads={{{show(loads[0])!r}: ...}}, or stage_in near the reader"
        else:
            needed = [buffer, *(x.buffer for i in loads[0].index for x in find(in_loops(i, stage), Load))]
            near = [b for b in needed if stages_writing(index.root_of(stage), b)]
            told = f"{near[0].name} is made in the nest of {stage.name}" if near else ""
        if told:
            raise self._refuse("reindex.reads", told, hint)
        return loads[0]

    def _need_converted(self, body: Stmt, load: Load, dtype: str) -> None:
        """Raise ScheduleError unless every use of ``load`` converts it to ``dtype``, the copy's type."""
        if left := [x for x in find(body, Load) if same(x, load)]:
            raise self._refuse(
                "reindex.dtype",
                f"{self.stage.name} reads {show(left[0])} as {load.dtype}, and not converted to {dtype}",
                f"without dtype=, or tir.cast({show(left[0])}, {dtype!r}) in the declaration")  # fmt: skip

    def _own_axes(self, names: Sequence[str]) -> list[Expr]:
        """New axes as expressions of the stage's axes; raises unless loops iterate whole axes."""
        walked = {b: it.var for it, b in zip(self.stage.iters, self.stage.binds, strict=True) if isinstance(b, Var)}
        wanted = [c for c in self.view.new if c.name in names]
        for x in (self.loops[p[0]] for c in wanted for p in c.pieces):
            if x.var not in walked:
                raise self._refuse("reindex.reads", f"{x.var.name} is a part of an axis of {self.stage.name}",
                                   "reindex the whole axis, before it is split")  # fmt: skip
        old = [walked.get(x.var, x.var) for x in self.loops]
        return [self.map.forward(c, old) for c in wanted]

    def _need_identities(self, program: Program, copies: set[Buffer]) -> None:
        """Raise ScheduleError for a padded reduction whose zero padding would change the result."""
        stage = Index(program).stages[self.stage.name]
        if not isinstance(stage.body, Update):
            return
        for cond, about in self.tails:
            axes = set(find(cond, Var))
            reduces = all(it.axis is Axis.REDUCE for x in about for it in driven_axes(x, self.stage))
            for value, identity in zip(stage.body.values, stage.body.combiner.identity, strict=True):
                term = in_loops(value, stage)
                moved, zeros = {x.buffer for x in find(term, Load) if uses(x, axes)}, zeroed(term, axes, copies)
                if reduces and moved and moved == zeros and not made_up(term, identity, axes, copies):
                    raise self._refuse(
                        "reindex.pad-identity", f"beyond the end of {', '.join(sorted(v.name for v in axes))} a term "
                        f"is {show(_Zeros(zeros)(value))} with the zeros of what is packed, and only {show(identity)} "
                        f"leaves a {stage.body.combiner.name} as it is",
                        "without reads=: terms beyond the end are left out then")  # fmt: skip

    def _refuse(self, code: str, message: str, hint: str = "") -> ScheduleError:
        return ScheduleError(Problem(code, message, at=caret(self.stage), hint=hint))


class _Instead(Rewriter):
    """Rewriter: replace a load, possibly converted, by another."""

    def __init__(self, old: Load, new: Load) -> None:
        self.old, self.new = old, new

    def on_Load(self, n: Load) -> Expr:
        return self.new if same(n, self.old) and n.dtype == self.new.dtype else self.children(n)

    def on_Cast(self, n: Cast) -> Expr:
        return self.new if same(n.a, self.old) and n.dtype == self.new.dtype else self.children(n)


class _Zeros(Rewriter):
    """Rewriter: replace loads of some buffers by 0, for a message."""

    def __init__(self, buffers: set[Buffer]) -> None:
        self.buffers = buffers

    def on_Load(self, n: Load) -> Expr:
        return const(0, n.dtype) if n.buffer in self.buffers else n
