"""View of a reduction as a product of two matrices, for GPU engines: axes of one operand are rows, those of the other
are columns, those of both are batch axes.

An operand that is not stored as a matrix becomes a reindexed view (im2col), computed while its tiles are copied.
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
"""Axis names of a matrix product: batch, row, column, term."""


class AxisDigit(NamedTuple):
    """An axis, or its quotient or remainder ("/4", "%4"), with its extent."""

    it: Iter
    said: str
    size: int


@dataclass(frozen=True, eq=False)
class MatrixView:
    """A reduction as products of matrices ``a`` and ``b``: its axes as ``rows``, ``columns``, ``terms`` and ``apart``
    (batch).

    made_up: axis name -> multiple that its extent is padded to
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
        """True if rows or columns are divided into groups."""
        return any(d.said for d in (*self.rows, *self.columns))

    @property
    def plain(self) -> bool:
        """True if both operands are stored as matrices (or one per group of rows) and axes have the standard names:
        engines need no reindexing.
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
        """True if rows are divided into groups with one matrix each."""
        (row, *more), column = self.rows, self.columns[0]
        alone = not more and len(self.apart) == len(self.columns) == 1 and not column.said
        a = [row.it.var, self.terms[0].it.var]
        return alone and identical(self.a.index, a[::-1] if self.gemm.ta else a)

    def in_groups(self, groups: int) -> MatrixView:
        """The same view as one grouped product: all rows together, with the rows per group as alignment."""
        align = self.size(self.rows)
        p = replace(self.gemm, m=align * self.gemm.batch, batch=1, align=align, groups=groups, in_rows=True)
        return replace(self, gemm=replace(p, m=most(self.rows[0].it.extent)))

    @staticmethod
    def size(digits: Sequence[AxisDigit]) -> int:
        """Product of the extents of ``digits``."""
        return math.prod(d.size for d in digits)

    def stepped(self, step: int) -> MatrixView:
        """The same view with extents padded so that runs of ``step`` contiguous elements do not cross an outer
        iteration.

        Padded is the axis along which operands are stored: the terms if they are stored along these, else rows or
        columns.
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
        """True if an operand is contiguous along ``group``: the rows, the columns or the terms."""
        p = self.gemm
        if group is self.rows:
            return p.ta
        return not p.tb if group is self.columns else group is self.terms and (p.tb or not p.ta)

    @property
    def alone(self) -> bool:
        """True if both operands are loads of one array."""
        return self.a.buffer is self.b.buffer

    @property
    def spatial(self) -> list[str]:
        """Names of the spatial axes."""
        return [short(self.total, it) for it in self.total.spatial]

    def walked(self, s: BaseSchedule, made: Mapping[str, int]) -> dict[str, Operand]:
        """Reindex the sums by rows, columns and terms; return the operands, "a" and "b".

        made: operand computed while it is copied -> number of its trailing dimensions shared with its stored source
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
        """(operand, load, outer axis, inner axis, leading dimensions) of both operands, as text of index maps."""
        for operand, load, row, turned in (("a", self.a, "i", self.gemm.ta), ("b", self.b, "j", not self.gemm.tb)):
            outer, inner = ("k", row) if turned else (row, "k")
            apart = self.gemm.batch > 1 and any(d.it in self.total.along(load) for d in self.apart)
            yield operand, load, outer, inner, "z, " if apart else ""

    def in_vectors(self, made: Mapping[str, int]) -> tuple[bool, bool]:
        """For a and b: True if pairs of elements along a row are contiguous in memory; ``made`` as in ``walked``."""
        parts = {"i": self.rows, "j": self.columns, "k": self.terms}
        runs = [_together(load, parts[inner], made.get(load.buffer.name, len(load.index)))
                for _, load, _, inner, _ in self._operands()]  # fmt: skip
        a, b = (run % 2 == 0 for run in runs)
        return a, b

    def as_matrix(self, s: BaseSchedule, out: str) -> None:
        """Reindex the elementwise stage ``out`` by the sums' rows and columns."""
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        if own != [*self.gemm.axes, "i", "j"]:
            self._by_cells(s, out, own)

    def rows_follow(self, step: int) -> bool:
        """True if results form one row-major matrix although several axes make up its rows or columns, with runs of
        ``step`` contiguous elements along a row.
        """
        in_order = [d.it for d in (*self.rows, *self.columns)] == [*self.total.spatial]
        last = self.columns[-1]
        alone = self.size(self.columns[:-1]) == 1
        together = alone or self.made_up.get(short(self.total, last.it), last.size) % step == 0
        return in_order and together and all(d.said for d in self.apart)

    def results_together(self, most: int) -> int:
        """Contiguous, aligned results along a row: a power of two, at most ``most``; 1 for several result matrices."""
        b, cells = self.total.writes[0], tuple(it.var for it in self.total.spatial)
        run = _together(Load(b, cells, b.dtype), self.columns, len(cells))
        last = next((d.size for d in reversed(self.columns) if d.size > 1), 1)
        return math.gcd(run, last, most) if all(d.said for d in self.apart) else 1

    def as_rows(self, s: BaseSchedule, out: str, also: Sequence[str] = ()) -> str:
        """Reindex ``out`` to write rows and columns of all groups; return the new stage that copies them to the result.

        also: arrays that ``out`` reads, to be reindexed by rows and columns as well
        """
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        whole = replace(self, gemm=replace(self.gemm, batch=1), rows=_whole(self.rows), columns=_whole(self.columns))
        whole._by_cells(s, out, own, f"{out}_rows", "i, j", dict.fromkeys(also, "i, j"))
        self.as_matrix(s, f"{out}.out")
        return f"{out}.out"

    def _by_cells(self, s: BaseSchedule, out: str, own: Sequence[str], name: str | None = None,
                  writes: str | None = None, reads: Mapping[str, str] | None = None) -> None:  # fmt: skip
        """Reindex an elementwise stage with axes ``own`` by rows and columns."""
        called = dict(zip(self.spatial, own, strict=True))
        pad = {called[x]: n for x, n in self.made_up.items() if x in called}
        view = f"{', '.join(own)} -> {self._cells(called)}"
        s.reindex(out, view, pad or None, name=name, reads=reads, writes=writes)

    def _cells(self, called: Mapping[str, str]) -> str:
        """Text of the result's index map for ``reindex``: ``i = n, j = y*8 + x``. called: axis -> its current name"""
        new = [("z", self.apart)] if self.gemm.batch > 1 else []
        new += [("i", self.rows), ("j", self.columns)]
        return ", ".join(f"{axis} = {self._joined(of, called)}" for axis, of in new)

    def _joined(self, digits: Sequence[AxisDigit], called: Mapping[str, str]) -> str:
        if self._along(digits):  # an axis that neighbours are of is all there is, if it is
            digits = sorted(digits, key=lambda d: d.size == 1)
        return joined([called[short(self.total, d.it)] + d.said for d in digits])

    def _is_matrix(self, load: Load, lead: str, outer: Sequence[AxisDigit], inner: Sequence[AxisDigit]) -> bool:
        """True if the operand is stored as a matrix (outer, inner), with the batch axis in front if it has one."""
        groups = [*([self.apart] if lead else []), outer, inner]
        whole = all(len(g) == 1 and not g[0].said for g in groups)
        return whole and identical(load.index, [g[0].it.var for g in groups])


def matrix_view(total: Nest, made: str = "", precision: str = "fp32") -> MatrixView | None:
    """View of a reduction over two loads as a matrix product; None for other operands, symbolic extents, no rows or no
    columns. The operation is not checked (``multiplies``).

    made: dtype of the final result, if not that of the sums;  precision: of float32 products
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
    """View with ``a`` and ``b`` in these roles, the result's last axis being a column; None if it does not fit.

    made: dtype of the final result, "" for that of the sums
    ragged: True if the last group of an axis may be incomplete
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
    """The complete axes of ``digits``."""
    return tuple(AxisDigit(d.it, "", most(d.it.extent)) for d in digits)


def _operand_type(total: Nest, a: Load, b: Load) -> str:
    """dtype of the operands for the engines: the narrow type whose products are accumulated in the sums' type, else
    that type.
    """
    kind, types = total.writes[0].dtype, {a.buffer.dtype, b.buffer.dtype}
    narrow = types.pop() if len(types) == 1 else kind
    return narrow if narrow != kind and accumulator(narrow) == kind else kind


def multiplies(total: Nest) -> bool:
    """True if a reduction sums products of two loads, with conversions to the accumulator's type allowed."""
    (update,) = find(total.stage.body, Update)
    value = update.values[0]
    if update.combiner.name != "sum" or not isinstance(value, Binary) or value.op != "*":
        return False
    return all(isinstance(x.a if isinstance(x, Cast) else x, Load) for x in (value.a, value.b))


def _plain(load: Load, total: Nest) -> bool:
    """True if each index of ``load`` with a reduction axis is that axis alone: ``k``, not ``2*k`` or ``k + i``."""
    reduced = {it.var for it in total.reduced}
    return all(isinstance(i, Var) for i in load.index if uses(i, reduced))


def _dimension(load: Load, it: Iter) -> int:
    """Index of the dimension of ``load`` that axis ``it`` moves along; 0 if none."""
    return next(iter(dims_along(load, it.var)), 0)


def _together(load: Load, group: Sequence[AxisDigit], kept: int) -> int:
    """Contiguous, aligned elements of ``load`` along the fused axes ``group``.

    kept: number of the array's trailing dimensions that the stored source has
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
