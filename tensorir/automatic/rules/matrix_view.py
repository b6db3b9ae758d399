"""The view that makes a product of two whole matrices of a sum, as GPUs' engines multiply them: all axes of one operand
alone are rows, all of the other one are columns, those of both are apart.

What is not stored as such matrices is a view of its own (im2col), computed where a tile of it is copied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tensorir.arith.access import alike, dims_along, start_of
from tensorir.arith.affine import structure
from tensorir.automatic.facts import Nest
from tensorir.automatic.rules.product_view import innermost, joined, short
from tensorir.engines.gemm_blocks import Operand
from tensorir.engines.problems import Gemm, accumulator
from tensorir.ir.dims import most
from tensorir.ir.structure import identical
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Binary, Cast, Const, Iter, Load, Update, Var
from tensorir.ir.visit import find, uses
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule

PRODUCT_AXES = ("z", "i", "j", "k")
"""The axes of products."""


class AxisDigit(NamedTuple):
    """An axis, or its quotient or remainder: what its name stands for in a view, and its extent."""

    it: Iter
    said: str
    size: int


@dataclass(frozen=True, eq=False)
class MatrixView:
    """A sum as products of matrices ``a`` and ``b``: which axes are ``rows``, ``columns`` and ``terms``, and those
    ``apart``, each of whose iterations is a product of its own.

    made_up: axes whose iterations are made up to multiples, by their names
    """

    total: Nest
    a: Load
    b: Load
    apart: tuple[AxisDigit, ...]
    rows: tuple[AxisDigit, ...]
    columns: tuple[AxisDigit, ...]
    terms: tuple[AxisDigit, ...]
    gemm: Gemm
    made_up: Mapping[str, int] = field(default_factory=dict)

    @property
    def grouped(self) -> bool:
        """True when rows or columns are those of a group."""
        return any(d.said for d in (*self.rows, *self.columns))

    @property
    def plain(self) -> bool:
        """True when sums over i and j add up products over k of operands that are stored as matrices, or one for each
        group of rows: engines take them as they stand.
        """
        axes = [*self.gemm.axes, "i", "j"]
        groups = self.grouped and self._of_rows
        terms = [short(self.total, d.it) for d in self.terms]
        named = (self.spatial, terms) == (["i", "j"] if groups else axes, ["k"])
        if not named or self.made_up or self.alone or (self.grouped and not groups):
            return False
        if groups:
            inner = self.b.index[1:]
            both = (self.columns[0], self.terms[0]) if self.gemm.tb else (self.terms[0], self.columns[0])
            return identical(inner, [d.it.var for d in both]) and len(self.b.index) == 3
        parts = {"i": self.rows, "j": self.columns, "k": self.terms}
        return all(self._is_matrix(load, lead, parts[x], parts[y]) for _, load, x, y, lead in self._operands())

    @property
    def _of_rows(self) -> bool:
        """True when groups are those of rows, and each has a matrix of its own."""
        (row, *more), column = self.rows, self.columns[0]
        alone = not more and len(self.apart) == len(self.columns) == 1 and not column.said
        a = [row.it.var, self.terms[0].it.var]
        return alone and identical(self.a.index, a[::-1] if self.gemm.ta else a)

    def in_groups(self, groups: int) -> MatrixView:
        """The same, of which engines are told all rows, and which of them have a matrix of their own."""
        align = self.size(self.rows)
        p = replace(self.gemm, m=align * self.gemm.batch, batch=1, align=align, groups=groups, in_rows=True)
        return replace(self, gemm=replace(p, m=most(self.rows[0].it.extent)))

    @staticmethod
    def size(digits: Sequence[AxisDigit]) -> int:
        """Iterations of axes all together."""
        return math.prod(d.size for d in digits)

    def stepped(self, step: int) -> MatrixView:
        """The same for copies of ``step`` neighbours in memory, which stay under one iteration of all axes but the last
        one: where operands are stored along terms there are whole steps of them, else of rows or of columns.
        """
        p, made_up, sizes = self.gemm, dict[str, int](), []
        for group in (self.rows, self.columns, self.terms):
            along, last, outer = self._along(group), group[-1], self.size(group[:-1])
            whole = not along or outer == 1 or last.size % step == 0
            if not whole:
                made_up[short(self.total, last.it)] = step
            sizes.append(outer * (last.size if whole else -(-last.size // step) * step))
        m, n, k = sizes
        return replace(self, gemm=replace(p, m=m, n=n, k=k), made_up=made_up)

    def _along(self, group: Sequence[AxisDigit]) -> bool:
        """True when an operand is stored along the rows, the columns or the terms."""
        p = self.gemm
        if group is self.rows:
            return p.ta
        return not p.tb if group is self.columns else group is self.terms and (p.tb or not p.ta)

    @property
    def alone(self) -> bool:
        """True when both operands are of one array."""
        return self.a.buffer is self.b.buffer

    @property
    def spatial(self) -> list[str]:
        """The names of the axes of cells."""
        return [short(self.total, it) for it in self.total.spatial]

    def walked(self, s: BaseSchedule, made: Mapping[str, int]) -> dict[str, Operand]:
        """Walk the sums by rows, columns and terms; returns the operands.

        made: operands that are computed where they are copied, with how many of their last dimensions are those of
              what they are made of
        """
        if self.plain:
            stored = {"a": self.a.buffer.name, "b": self.b.buffer.name}
            leads = {"a": self.gemm.lead, "b": "z, " if self.gemm.align else self.gemm.lead}
            return {x: Operand(name, leads[x], inlined=name in made) for x, name in stored.items()}
        given, reads, taken = {}, {}, s.index.names()
        for operand, load, outer, inner, lead in self._operands():
            parts = {"i": self.rows, "j": self.columns, "k": self.terms}
            name = load.buffer.name
            packed = not self._is_matrix(load, lead, parts[outer], parts[inner]) or (operand == "b" and self.alone)
            if packed:
                read = show(load) if self.alone else name
                reads[read], (name,) = f"{lead}{outer}, {inner}", packed_names([read], taken)
                taken.add(name)
            run = _together(load, parts[inner], made.get(load.buffer.name, len(load.index)))
            given[operand] = Operand(name, lead, run, packed or name in made)
        axes = [short(self.total, it) for it in self.total.stage.iters if it.axis is Axis.REDUCE]
        left = f"{', '.join(self.spatial)} | {', '.join(axes)}"
        own = {x: f"{x}_own" if x in self.made_up and x in PRODUCT_AXES else x for x in (*self.spatial, *axes)}
        if any(x != y for x, y in own.items()):  # else what is made up would be the new axis of that name
            s.reindex(self.total.name, f"{left} -> {', '.join(f'{y} = {x}' for x, y in own.items())}")
        left = f"{', '.join(own[x] for x in self.spatial)} | {', '.join(own[x] for x in axes)}"
        view = f"{left} -> {self._cells(own)}, k = {self._joined(self.terms, own)}"
        pad = {own[x]: n for x, n in self.made_up.items()}
        s.reindex(self.total.name, view, pad or None, reads, writes=f"{self.gemm.lead}i, j")
        return given

    def _operands(self) -> Iterator[tuple[str, Load, str, str, str]]:
        """Both operands: their names as engines know them, the loads, what their rows and what is along these are, and
        their dimensions before these, as index maps say them.
        """
        for operand, load, row, turned in (("a", self.a, "i", self.gemm.ta), ("b", self.b, "j", not self.gemm.tb)):
            outer, inner = ("k", row) if turned else (row, "k")
            apart = self.gemm.batch > 1 and any(d.it in self.total.along(load) for d in self.apart)
            yield operand, load, outer, inner, "z, " if apart else ""

    def in_vectors(self, made: Mapping[str, int]) -> tuple[bool, bool]:
        """Of both operands, whether neighbours along a row are contiguous in memory; ``made`` as of ``walked``."""
        parts = {"i": self.rows, "j": self.columns, "k": self.terms}
        runs = [_together(load, parts[inner], made.get(load.buffer.name, len(load.index)))
                for _, load, _, inner, _ in self._operands()]  # fmt: skip
        a, b = (run % 2 == 0 for run in runs)
        return a, b

    def as_matrix(self, s: BaseSchedule, out: str) -> None:
        """Walk what takes the sums, one to one, by their rows and columns."""
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        if own != [*self.gemm.axes, "i", "j"]:
            self._by_cells(s, out, own)

    def rows_follow(self, step: int) -> bool:
        """True when results are rows of a matrix, though several axes count its rows or columns, or those of groups:
        ``step`` neighbours along a row are so in memory.
        """
        in_order = [d.it for d in (*self.rows, *self.columns)] == [*self.total.spatial]
        last = self.columns[-1]
        alone = self.size(self.columns[:-1]) == 1
        together = alone or self.made_up.get(short(self.total, last.it), last.size) % step == 0
        return in_order and together and all(d.said for d in self.apart)

    def results_together(self, most: int) -> int:
        """The number of results contiguous in memory along the last axis of a row, from a multiple of it on: a
        power of two up to ``most``; 1 where there are several matrices of results.
        """
        b, cells = self.total.writes[0], tuple(it.var for it in self.total.spatial)
        run = _together(Load(b, cells, b.dtype), self.columns, len(cells))
        last = next(d.size for d in reversed(self.columns) if d.size > 1)
        return math.gcd(run, last, most) if all(d.said for d in self.apart) else 1

    def as_rows(self, s: BaseSchedule, out: str, also: Sequence[str] = ()) -> str:
        """Let ``out`` write rows and columns, those of all groups, which the stage that is returned takes to where
        results are stored; and read those of what it reads ``also``.
        """
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        whole = replace(self, gemm=replace(self.gemm, batch=1), rows=_whole(self.rows), columns=_whole(self.columns))
        whole._by_cells(s, out, own, f"{out}_rows", "i, j", dict.fromkeys(also, "i, j"))
        self.as_matrix(s, f"{out}.out")
        return f"{out}.out"

    def _by_cells(self, s: BaseSchedule, out: str, own: Sequence[str], name: str | None = None,
                  writes: str | None = None, reads: Mapping[str, str] | None = None) -> None:  # fmt: skip
        """Walk what takes the sums, whose axes are called ``own``, by rows and columns."""
        called = dict(zip(self.spatial, own, strict=True))
        pad = {called[x]: n for x, n in self.made_up.items() if x in called}
        view = f"{', '.join(own)} -> {self._cells(called)}"
        s.reindex(out, view, pad or None, name=name, reads=reads, writes=writes)

    def _cells(self, called: Mapping[str, str]) -> str:
        """The right side of a view of the cells, by the names that their axes have."""
        new = [("z", self.apart)] if self.gemm.batch > 1 else []
        new += [("i", self.rows), ("j", self.columns)]
        return ", ".join(f"{axis} = {self._joined(of, called)}" for axis, of in new)

    def _joined(self, digits: Sequence[AxisDigit], called: Mapping[str, str]) -> str:
        if self._along(digits):  # an axis that neighbours are of is all there is, if it is
            digits = sorted(digits, key=lambda d: d.size == 1)
        return joined([called[short(self.total, d.it)] + d.said for d in digits])

    def _is_matrix(self, load: Load, lead: str, outer: Sequence[AxisDigit], inner: Sequence[AxisDigit]) -> bool:
        """True when an operand is stored as the matrices are."""
        groups = [*([self.apart] if lead else []), outer, inner]
        whole = all(len(g) == 1 and not g[0].said for g in groups)
        return whole and identical(load.index, [g[0].it.var for g in groups])


def matrix_view(total: Nest, made: str = "", precision: str = "fp32") -> MatrixView | None:
    """The view of a sum of what two operands give, or None: it has other operands, or no rows or columns.

    made: the type of what is written in the end, where that is not the sums';  precision: of products of float32
    """
    updates = find(total.stage.body, Update)
    loads = {structure(x): x for x in total.loads if x.buffer not in total.writes}
    if not total.constant or len(updates) != 1 or len(total.writes) != 1 or len(loads) != 2 or not total.reduced:
        return None
    first, second = loads.values()
    if any(it.axis not in (Axis.SPATIAL, Axis.REDUCE) for it in total.stage.iters):
        return None
    for ragged, (a, b) in itertools.product((True, False), ((first, second), (second, first))):
        view = _of(total, a, b, made, ragged)
        if view and (not ragged or (view.plain and view.grouped)):
            return replace(view, gemm=replace(view.gemm, precision=precision))
    return None


def _of(total: Nest, a: Load, b: Load, made: str, ragged: bool) -> MatrixView | None:
    """The view whose columns have the last axis of the result that is not apart.

    ragged: the last group of an axis may have fewer iterations than others
    """
    apart, rows, columns = list[AxisDigit](), list[AxisDigit](), list[AxisDigit]()
    last: list[AxisDigit] | None = None
    for it in total.spatial:
        on_a, on_b = alike(a, it.var), alike(b, it.var)
        extent = most(it.extent)
        both = on_a == on_b or (on_a and on_b and not ragged and extent % max(on_a, on_b))
        if both and extent > 1:
            apart.append(AxisDigit(it, "", extent))
        elif both or not (on_a and on_b):
            last = rows if both or on_a else columns
            last.append(AxisDigit(it, "", extent))
        else:  # one operand is that of a whole group
            each = max(on_a, on_b)
            last = columns if on_a == each else rows
            apart.append(AxisDigit(it, f"/{each}", -(-extent // each)))
            last.append(AxisDigit(it, f"%{each}", each))
    several = total.reuses  # else it is narrow, and one of both has no more
    if last is not columns or not all(any(d.size > several for d in group) for group in (rows, columns)):
        return None
    ta = innermost(a, [d.it for d in rows], total)
    tb = not innermost(b, [d.it for d in columns], total)
    first = b if _plain(b, total) and (ta or tb) else a  # in the order in which an operand is stored along them
    ordered = sorted(total.reduced, key=lambda it: (_dimension(first, it), it.var.name))
    terms = [AxisDigit(it, "", most(it.extent)) for it in ordered]
    in_rows = [d.it for d in (*apart, *rows, *columns)] == [*total.spatial] and len(rows) == len(columns) == 1
    in_rows = in_rows and len(apart) <= 1 and not any(d.said for d in (*rows, *columns))
    m, n, k, batch = map(MatrixView.size, (rows, columns, terms, apart))
    stored = [(math.prod(map(most, x.buffer.shape)), side) for x, side in ((a, m), (b, n))]
    shares = (min(1.0, cells / (side * k * batch)) for cells, side in stored)
    problem = Gemm(m=m, n=n, k=k, batch=batch, ta=ta, tb=tb, in_rows=in_rows, dtype=_operand_type(total, a, b),
                   result=made or total.writes[0].dtype, apart=tuple(shares))  # fmt: skip
    return MatrixView(total, a, b, tuple(apart), tuple(rows), tuple(columns), tuple(terms), problem)


def _whole(digits: Sequence[AxisDigit]) -> tuple[AxisDigit, ...]:
    """The axes that digits are of."""
    return tuple(AxisDigit(d.it, "", most(d.it.extent)) for d in digits)


def _operand_type(total: Nest, a: Load, b: Load) -> str:
    """The type of the operands as engines know it: that of the sums, or the narrower one that is added up in it."""
    kind, types = total.writes[0].dtype, {a.buffer.dtype, b.buffer.dtype}
    narrow = types.pop() if len(types) == 1 else kind
    return narrow if narrow != kind and accumulator(narrow) == kind else kind


def multiplies(total: Nest) -> bool:
    """True when a sum adds up products of two reads, each perhaps converted to the type of the sums first."""
    (update,) = find(total.stage.body, Update)
    value = update.values[0]
    if update.combiner.name != "sum" or not isinstance(value, Binary) or value.op != "*":
        return False
    return all(isinstance(x.a if isinstance(x, Cast) else x, Load) for x in (value.a, value.b))


def _plain(load: Load, total: Nest) -> bool:
    """True when terms are dimensions of their own."""
    reduced = {it.var for it in total.reduced}
    return all(isinstance(i, Var) for i in load.index if uses(i, reduced))


def _dimension(load: Load, it: Iter) -> int:
    """The dimension of an operand that an axis moves along."""
    return next(iter(dims_along(load, it.var)), 0)


def _together(load: Load, group: Sequence[AxisDigit], kept: int) -> int:
    """The number of neighbours along joined axes that are contiguous in memory, from a multiple of it on.

    kept: how many of an operand's last dimensions are those of what is stored
    """
    run, places = 1, list(zip(load.index, load.buffer.shape, strict=True))
    places = places[len(places) - kept :]
    for digit in reversed([d for d in group if d.size > 1]):
        while len(places) > 1 and most(places[-1][1]) == 1:
            places.pop()
        index, extent = places.pop() if places else (Const(0, "index"), Const(1, "index"))
        if index is not digit.it.var:
            return run * math.gcd(digit.size, start_of(index, digit.it.var))
        run *= math.gcd(digit.size, most(extent))
        if digit.size != most(extent):
            break
    return run
