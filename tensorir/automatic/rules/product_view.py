"""View of a reduction as a product of matrices, for CPU engines: its axes as rows, columns, terms and batch axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorir.arith.access import alike, first_step
from tensorir.arith.affine import Arith, structure
from tensorir.automatic.facts import Nest
from tensorir.automatic.rules.window_image import Image
from tensorir.engines.problems import Gemm, accumulator
from tensorir.engines.product import SHORT_RUN, Product
from tensorir.ir.build import binary
from tensorir.ir.dims import dims_in, most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Binary, Const, Expr, Iter, Load, Update, Var
from tensorir.ir.visit import Rewriter, find, substitute, uses
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule

FEW_COLUMNS = 32
"""Columns below which further axes are fused to columns even if not contiguous: they do not fill a panel."""

RUN = 16
"""Least terms of a separate inner reduction loop."""


@dataclass(frozen=True)
class ProductView:
    """A reduction as a matrix product: names of its axes by role, ``rows``, ``columns`` (fused), ``terms``, ``apart``
    (batch).

    product: names of its stages and operands;  gemm: its extents and types
    again: load of ``b`` -> its axes, if both operands are the same array, so that ``b`` needs a copy; else {}
    """

    gemm: Gemm
    product: Product
    apart: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    again: Mapping[str, str] = field(default_factory=dict)

    def with_constants(self, names: Sequence[str]) -> ProductView:
        """The same view with operands named in ``names`` marked for packing ahead of time."""
        a, b = (x in names for x in (self.product.a, self.product.b))
        return replace(self, gemm=replace(self.gemm, prepack=b, prepack_a=a)) if a or b else self

    def under(self, total: Nest, image: Image) -> ProductView | None:
        """The same view with ``image`` for operand ``a``, for engines that keep parts of it in blocks; None if that is
        another array or both operands, or a single row of pixels.
        """
        axes = {short(total, it): it for it in total.spatial}
        rows = [axes[x] for x in self.rows]
        buffer = image.group.load.buffer
        if buffer.name != self.product.a or self.again or len(rows) < 2:
            return None
        each = DTYPES[image.wide or buffer.dtype].bits // 8
        one, two = (
            each * image.elements(total, {rows[-1].var: most(rows[-1].extent), rows[-2].var: n}) for n in (1, 2)
        )
        read = (most(rows[-2].extent), 2 * one - two, two - one)
        return replace(self, gemm=replace(self.gemm, row_run=most(rows[-1].extent), image=read))

    def walked(self, s: BaseSchedule, total: Nest, epilogue: str) -> Product:
        """Reindex the sums and the epilogue by rows and columns; return the product with its stage names."""
        of, spatial = self.product, [short(total, it) for it in total.spatial]
        if self.again:
            every = [*spatial, *self.terms]
            (b,) = packed_names(self.again, s.index.names())
            s.reindex(of.stage, f"{', '.join(spatial)} | {', '.join(self.terms)} -> {', '.join(every)}",
                      reads=self.again)  # fmt: skip
            of = of._replace(b=b)
        kept = ", ".join((*of.outer, "i", "j"))
        if (spatial, self.terms) != (["i", "j"], ("k",)) or self.rows != ("i",):  # else it is walked so as it stands
            view = f"{', '.join(spatial)} | {', '.join(self.terms)} -> {self._view(spatial)}, k = {joined(self.terms)}"
            made = {b.name for b in s.program.outputs}
            if not epilogue and not {of.stage, f"{of.stage}.out"} & (made | s.index.stages.keys() - {of.stage}):
                s.stage_out(of.stage, at="root", scope="register")  # readers find results in the declared order
            s.reindex(of.stage, view, writes=kept)
        out = epilogue or f"{of.stage}.out"
        if out not in s.index.stages:
            out = s.stage_out(of.stage, at="root", scope="register").name
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        if own != kept.split(", "):
            s.reindex(out, f"{', '.join(own)} -> {self._view(own if len(own) == len(spatial) else spatial, spatial)}")
        return of._replace(out=out)

    def _view(self, own: Sequence[str], spatial: Sequence[str] = ()) -> str:
        """Right side of a ``reindex`` view of the cells, with axes named ``own``."""
        axes = dict(zip(spatial or own, own, strict=True))

        def called(of: str) -> str:
            axis = re.split("[/%]", of)[0]
            return axes[axis] + of.removeprefix(axis)

        new: list[tuple[str, tuple[str, ...]]] = [
            (z, (x,)) for z, x in zip(self.product.outer, self.apart, strict=True)
        ]
        new += [("i", self.rows), ("j", self.columns)]
        return ", ".join(f"{axis} = {joined([*map(called, of)])}" for axis, of in new)


def product_view(total: Nest) -> ProductView | None:
    """Product view of a reduction over two loads; None for other operands, symbolic extents, no rows or columns."""
    return next((_viewed(total, *parts) for parts in _parts(total)), None)


def turned_view(total: Nest, constants: Sequence[str] = ()) -> ProductView | None:
    """View of a product with exchanged operands, A B -> (B^T A^T)^T; None unless one operand is read in sliding windows
    or the other is one of ``constants``.

    Elements of the first are broadcast from where they are stored, panels of the other are packed, results are stored
    transposed.
    """
    for parts in _parts(total):
        b, a, columns, _ = parts
        rows: list[Iter] = []
        on_a, on_b = total.along(a), total.along(b)
        for it in reversed(total.spatial):
            if it not in on_a or it in on_b:
                break
            rows.insert(0, it)
        if rows and columns and (_windows(total, a, rows) or b.buffer.name in constants):
            return _viewed(total, a, b, rows, columns, turned=True)
    return None


def in_groups(total: Nest) -> Nest | None:
    """The nest with one spatial axis k split into group k/each and index k%each, if an operand depends on the group
    alone; None if none does, or if groups are not equal.
    """
    for n, it in enumerate(total.stage.iters):
        sizes = {size for x in total.loads if (size := alike(x, it.var)) > 1}
        each, extent = min(sizes, default=1), most(it.extent)
        if it in total.spatial and total.constant and len(sizes) == 1 and each < extent and extent % each == 0:
            return _split(total, n, each)
    return None


def _split(total: Nest, n: int, each: int) -> Nest:
    """The nest with axis ``n`` split in two; the inner one has ``each`` iterations."""
    stage, axes, it = total.stage, [*total.axes], total.stage.iters[n]
    sizes = {"/": most(it.extent) // each, "%": each}
    made = [Iter(Var(it.var.name + x, "index"), Const(size, "index"), it.axis) for x, size in sizes.items()]
    axes[n : n + 1] = [f"{axes[n]}{x}{each}" for x in sizes]
    place = {it.var: binary("+", binary("*", made[0].var, Const(each, "index")), made[1].var)}
    iters = (*stage.iters[:n], *made, *stage.iters[n + 1 :])
    simple = _Simplified(Arith({x.var: (0, most(x.extent) - 1) for x in iters}))
    init = None if stage.init is None else substitute(stage.init, place)
    return Nest(stage.replace(iters=iters, init=init, body=simple(substitute(stage.body, place))), axes)


class _Simplified(Rewriter):
    """Rewriter that simplifies index expressions."""

    def __init__(self, ranges: Arith) -> None:
        super().__init__()
        self.ranges = ranges

    def on_Binary(self, n: Binary) -> Expr:
        return self.ranges.simplify(n) if n.dtype == "index" else self.children(n)


def _windows(total: Nest, load: Load, rows: Sequence[Iter]) -> bool:
    """True if some index of ``load`` depends on both a row axis and a reduction axis (a sliding window)."""
    terms, cells = ({it.var for it in axes if most(it.extent) > 1} for axes in (total.reduced, rows))
    return any(uses(index, terms) and uses(index, cells) for index in load.index)


def _parts(total: Nest) -> Iterator[tuple[Load, Load, list[Iter], list[Iter]]]:
    """(a, b, rows, columns) of each way to see a sum as a product; columns are trailing axes of the result that only
    ``b`` has. Rows alone may be counted by dims: ``b`` is packed in whole panels.
    """
    updates = find(total.stage.body, Update)
    loads = {structure(x): x for x in total.loads if x.buffer not in total.writes}
    if len(updates) != 1 or len(total.writes) != 1 or len(loads) != 2:
        return
    first, second = loads.values()
    if any(it.axis not in (Axis.SPATIAL, Axis.REDUCE) for it in total.stage.iters) or not total.reduced:
        return
    for a, b in ((first, second), (second, first)):
        rows, columns = _sides(total, a, b)
        if rows and columns and all(it in rows for it in total.stage.iters if dims_in(it.extent)):
            yield a, b, rows, columns


def _sides(total: Nest, a: Load, b: Load) -> tuple[list[Iter], list[Iter]]:
    """Rows (axes of ``a`` alone) and columns (trailing result axes of ``b`` alone)."""
    on_a, on_b = total.along(a), total.along(b)
    cells = [it for it in total.spatial if most(it.extent) > 1 or not total.reuses]  # narrow: all that there is
    rows = [it for it in cells if it in on_a and it not in on_b]
    columns: list[Iter] = []
    for it in reversed(cells):
        wide = total.size(columns)
        if (
            it in on_a
            or it not in on_b
            or (columns and wide >= FEW_COLUMNS and not _together(total, b, it, columns[0]))
        ):
            break
        columns.insert(0, it)
    return rows, columns


def _viewed(
    total: Nest, a: Load, b: Load, rows: Sequence[Iter], columns: Sequence[Iter], turned: bool = False
) -> ProductView:
    """The view with the given rows and columns; ``turned``: True if results are stored along the rows."""
    on_a, on_b = total.along(a), total.along(b)
    apart = [it for it in total.spatial if it not in rows and it not in columns]
    outer = [f"z{n}" for n in range(len(apart))]
    every = turned or any("/" in short(total, it) for it in apart)  # no run crosses groups
    of_a, of_b = ([z for z, it in zip(outer, apart, strict=True) if it in on] for on in (on_a, on_b))
    gemm, wide_type = _problem(total, a, b, rows, columns)
    again = {show(b): ", ".join(short(total, it) for it in on_b)} if a.buffer is b.buffer else {}
    runs = _runs(total, a, every)
    product = Product(total.name, a.buffer.name, b.buffer.name, outer, of_a, of_b, wide_type, runs=runs)
    groups = (apart, rows, columns, total.reduced)
    z, i, j, k = (tuple(short(total, it) for it in group) for group in groups)
    run = _joint(total, b, columns) % gemm.n
    stored = [(math.prod(map(most, x.buffer.shape)), side) for x, side in ((a, gemm.m), (b, gemm.n))]
    shares = tuple(min(2.0, cells / (side * gemm.k * total.size(apart))) for cells, side in stored)  # 2.0: gaps
    row_run = _joint(total, a, rows) % gemm.m
    gemm = replace(gemm, batch=total.size(apart), run=run, row_run=row_run, tc=turned, apart=shares)
    return ProductView(gemm, product, z, i, j, k, again)


def _joint(total: Nest, load: Load, columns: Sequence[Iter]) -> int:
    """Number of columns contiguous in ``load``: the product of the innermost column extents."""
    first = len(columns) - 1
    while first > 0 and _together(total, load, columns[first - 1], columns[first]):
        first -= 1
    return total.size(columns[first:])


def _runs(total: Nest, a: Load, every: bool) -> tuple[int, ...]:
    """Extents of the reduction loops below the outermost one: one loop of fused inner terms, at least ``RUN``, or
    ``SHORT_RUN`` where the next axis out is elsewhere in ``a``; () if all terms are one loop.

    every: True to keep each reduction axis as a separate loop
    """
    axes = [it for it in total.reduced if most(it.extent) > 1]
    sizes = [most(it.extent) for it in axes]
    if every:
        return tuple(sizes[1:])
    steps, run = [first_step([*map(most, a.buffer.shape)], a.index, it.var) for it in axes], 1
    for n in reversed(range(len(axes))):
        run *= sizes[n]
        ends = n > 0 and steps[n - 1] != (steps[n] or 0) * sizes[n]
        if run >= RUN or (run >= SHORT_RUN and ends):
            return (run,) if run < math.prod(sizes) else ()
    return ()


def _problem(total: Nest, a: Load, b: Load, rows: Sequence[Iter], columns: Sequence[Iter]) -> tuple[Gemm, str | None]:
    """The product for the engines, and the dtype packed operands are converted to (None for no conversion)."""
    kind, types = total.writes[0].dtype, {a.buffer.dtype, b.buffer.dtype}
    narrow = types.pop() if len(types) == 1 else kind
    widened = narrow != kind and accumulator(narrow) == kind and all(total.converts(x.buffer, kind) for x in (a, b))
    m, n, k = (total.size(group) for group in (rows, columns, total.reduced))
    ta, tb = innermost(a, rows, total), not innermost(b, columns, total)
    return Gemm(m=m, n=n, k=k, ta=ta, tb=tb, dtype=narrow if widened else kind), kind if widened else None


def innermost(load: Load, group: Sequence[Iter], total: Nest) -> bool:
    """True if adjacent elements of ``load`` in memory are adjacent along an axis of ``group``."""
    for index in reversed(load.index):
        on = [it for it in total.stage.iters if most(it.extent) > 1 and uses(index, {it.var})]
        if on:
            return any(it in group for it in on)
    return False


def _together(total: Nest, load: Load, outer: Iter, inner: Iter) -> bool:
    """True if ``outer`` and ``inner`` index adjacent dimensions of ``load`` and ``inner`` covers its whole
    dimension.
    """
    longer = [it for it in total.stage.iters if most(it.extent) > 1]
    on = [tuple(it for it in longer if uses(index, {it.var})) for index in load.index]
    places = zip(on, on[1:], load.buffer.shape[1:], strict=False)
    return any((x, y) == ((outer,), (inner,)) and most(n) == most(inner.extent) for x, y, n in places)


def short(nest: Nest, it: Iter) -> str:
    """Name of an axis without its stage's prefix."""
    return nest.loops[it.var].removeprefix(f"{nest.name}.")


def joined(axes: Sequence[str]) -> str:
    """Axes fused to one, as text of a ``reindex`` view: "(a, b)"."""
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
