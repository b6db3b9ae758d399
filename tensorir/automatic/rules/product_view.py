"""The view that makes a product of matrices of a sum: which of its axes are rows, columns, terms, or apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorir.arith.affine import structure
from tensorir.automatic.facts import Nest
from tensorir.engines.problems import Gemm, accumulator
from tensorir.engines.product import Product
from tensorir.ir.dims import most
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Iter, Load, Update
from tensorir.ir.visit import find, uses
from tensorir.schedule.analysis import packed_names
from tensorir.schedule.schedule import BaseSchedule

FEW_COLUMNS = 32
"""Neighbours that are joined with others to columns, wherever they are stored: they do not fill panels."""

RUN = 16
"""Terms that are worth a loop of their own."""


@dataclass(frozen=True)
class ProductView:
    """A sum as products of ``a`` and ``b``, by names of its axes: ``rows`` and ``columns`` (``joined``), ``terms``, and
    those ``apart``, each of whose iterations is a product of its own.

    again: the read of ``b`` where both are of one array, and its axes: it gets a name of its own
    """

    gemm: Gemm
    product: Product
    apart: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    again: Mapping[str, str] = field(default_factory=dict)

    def with_constants(self, names: Sequence[str]) -> ProductView:
        """The same, told which operands never change."""
        a, b = (x in names for x in (self.product.a, self.product.b))
        return replace(self, gemm=replace(self.gemm, prepack=b, prepack_a=a)) if a or b else self

    def walked(self, s: BaseSchedule, total: Nest, epilogue: str) -> Product:
        """Walk the sums, and what takes them, by rows and columns."""
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
            s.reindex(of.stage, view, writes=kept)
        out = epilogue or f"{of.stage}.out"
        if out not in s.index.stages:
            out = s.stage_out(of.stage, at="root", scope="register").name
        own = [str(x).removeprefix(f"{out}.") for x in s.loops(out)]
        if own != kept.split(", "):
            s.reindex(out, f"{', '.join(own)} -> {self._view(own if len(own) == len(spatial) else spatial, spatial)}")
        return of._replace(out=out)

    def _view(self, own: Sequence[str], spatial: Sequence[str] = ()) -> str:
        """The right side of a view of the cells, by the names that their axes have."""
        called = dict(zip(spatial or own, own, strict=True))
        new: list[tuple[str, tuple[str, ...]]] = [
            (z, (x,)) for z, x in zip(self.product.outer, self.apart, strict=True)
        ]
        new += [("i", self.rows), ("j", self.columns)]
        return ", ".join(f"{axis} = {joined([called[x] for x in of])}" for axis, of in new)


def product_view(total: Nest) -> ProductView | None:
    """The view of a sum of what two operands give, or None: it has other operands, or no rows or columns."""
    updates = find(total.stage.body, Update)
    loads = {structure(x): x for x in total.loads if x.buffer not in total.writes}
    if not total.constant or len(updates) != 1 or len(total.writes) != 1 or len(loads) != 2:
        return None
    first, second = loads.values()
    if any(it.axis not in (Axis.SPATIAL, Axis.REDUCE) for it in total.stage.iters):
        return None
    for a, b in ((first, second), (second, first)):
        if view := _of(total, a, b):
            return view
    return None


def _of(total: Nest, a: Load, b: Load) -> ProductView | None:
    """The view whose columns are the last axes of the result, which ``b`` alone has."""
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
    if not rows or not columns or not total.reduced:
        return None
    apart = [it for it in total.spatial if it not in rows and it not in columns]
    outer = [f"z{n}" for n in range(len(apart))]
    of_a, of_b = ([z for z, it in zip(outer, apart, strict=True) if it in on] for on in (on_a, on_b))
    gemm, wide_type = _problem(total, a, b, rows, columns)
    again = {show(b): ", ".join(short(total, it) for it in on_b)} if a.buffer is b.buffer else {}
    product = Product(total.name, a.buffer.name, b.buffer.name, outer, of_a, of_b, wide_type, run=_run(total))
    groups = (apart, rows, columns, total.reduced)
    z, i, j, k = (tuple(short(total, it) for it in group) for group in groups)
    run = _joint(total, b, columns) % gemm.n
    return ProductView(replace(gemm, batch=total.size(apart), run=run), product, z, i, j, k, again)


def _joint(total: Nest, load: Load, columns: Sequence[Iter]) -> int:
    """Columns that are next to each other in an operand."""
    first = len(columns) - 1
    while first > 0 and _together(total, load, columns[first - 1], columns[first]):
        first -= 1
    return total.size(columns[first:])


def _run(total: Nest) -> int:
    """Terms along the last axes of them, long enough to be a loop; 0 where these are all."""
    run = 1
    for it in reversed(total.reduced):
        run *= most(it.extent)
        if run >= RUN:
            return run if run < total.size(total.reduced) else 0
    return 0


def _problem(total: Nest, a: Load, b: Load, rows: Sequence[Iter], columns: Sequence[Iter]) -> tuple[Gemm, str | None]:
    """The product as the engines know it, and the type that packed operands are converted to."""
    kind, types = total.writes[0].dtype, {a.buffer.dtype, b.buffer.dtype}
    narrow = types.pop() if len(types) == 1 else kind
    widened = narrow != kind and accumulator(narrow) == kind and all(total.converts(x.buffer, kind) for x in (a, b))
    m, n, k = (total.size(group) for group in (rows, columns, total.reduced))
    ta, tb = innermost(a, rows, total), not innermost(b, columns, total)
    return Gemm(m=m, n=n, k=k, ta=ta, tb=tb, dtype=narrow if widened else kind), kind if widened else None


def innermost(load: Load, group: Sequence[Iter], total: Nest) -> bool:
    """True when neighbours in memory of an operand are neighbours along an axis of ``group``."""
    for index in reversed(load.index):
        on = [it for it in total.stage.iters if most(it.extent) > 1 and uses(index, {it.var})]
        if on:
            return any(it in group for it in on)
    return False


def _together(total: Nest, load: Load, outer: Iter, inner: Iter) -> bool:
    """True when an operand holds all of ``inner`` for one iteration of ``outer``, and then for the next."""
    longer = [it for it in total.stage.iters if most(it.extent) > 1]
    on = [tuple(it for it in longer if uses(index, {it.var})) for index in load.index]
    places = zip(on, on[1:], load.buffer.shape[1:], strict=False)
    return any((x, y) == ((outer,), (inner,)) and most(n) == most(inner.extent) for x, y, n in places)


def short(nest: Nest, it: Iter) -> str:
    """The name of an axis within its stage."""
    return nest.loops[it.var].removeprefix(f"{nest.name}.")


def joined(axes: Sequence[str]) -> str:
    """Axes in one, as a view says it."""
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
