"""Tiled scan (reduce-then-scan): totals of tiles, exclusive scan of the totals, scan of each tile plus its offset.

Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990; Sengupta et al., "Scan primitives for GPU
computing", Graphics Hardware 2007. With totals first, a tile's scan may be computed where the offset is added, so that
only totals and offsets go through memory. Tiles are independent, and terms are combined in a fixed order: results are
the same in each launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tensorir.algorithms.registry import algorithm
from tensorir.errors import Problem, ScheduleError
from tensorir.errors.needs import need_int
from tensorir.expr.bounds import check_accesses
from tensorir.expr.program import computes_of
from tensorir.expr.reread import with_other
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.build import binary, select
from tensorir.ir.structure import place
from tensorir.ir.tree import Expr, Prefix, Reduce, Var
from tensorir.ir.visit import substitute


@algorithm("tiled_scan")
def tiled_scan(outputs: tuple[Tensor, ...], tile: int = 1024, of: str | None = None) -> tuple[Tensor, ...]:
    """Return ``outputs`` with scan S in four stages: ``S_total`` reduces tiles of ``tile`` elements, ``S_offset`` scans
    the totals exclusively, ``S_local`` scans each tile, S combines offset and local scan, the offset on the left.

    of: name of the scan, if there are several
    Raises ScheduleError ``tiled-scan.stage``.
    """
    op, length = _scan_of(outputs, of), need_int("tile", tile, 1, error=ScheduleError)
    made = _Tiled(op, length).result()
    for old, new in zip(op.outputs, made, strict=True):
        outputs = with_other(outputs, old, new)
    return outputs


def _scan_of(outputs: tuple[Tensor, ...], of: str | None) -> Compute:
    scans = [
        op for op in computes_of(outputs) if isinstance(op.bodies[0], Reduce) and isinstance(op.bodies[0].part, Prefix)
    ]
    found = [op for op in scans if of in (None, op.name, *(t.name for t in op.outputs))]
    if len(found) != 1:
        names = ", ".join(op.name for op in scans) or "none"
        hint = f"of={scans[0].name!r}" if scans else "tir.scan declares one"
        raise ScheduleError(Problem("tiled-scan.stage", f"tiled_scan takes one scan; there are {names}", hint=hint))
    return found[0]


@dataclass(frozen=True)
class _Tiled:
    """A scan with tiles of ``length`` elements; element q in scan order belongs to tile q // length."""

    op: Compute
    length: int

    @cached_property
    def body(self) -> Reduce:
        body = self.op.bodies[0]
        assert isinstance(body, Reduce)
        return body

    @cached_property
    def part(self) -> Prefix:
        assert isinstance(self.body.part, Prefix)
        return self.body.part

    @cached_property
    def extent(self) -> int:
        return int(self.op.extents[place(self.part.at, self.op.axes)])

    @cached_property
    def others(self) -> list[tuple[Var, int]]:
        return [(v, n) for v, n in zip(self.op.axes, self.op.extents, strict=True) if v is not self.part.at]

    def turned(self, place: Expr) -> Expr:
        """Index of a position in scan order, and position of an index: ``extent - 1 - place`` for a reverse scan, else
        ``place``.
        """
        return binary("-", self.extent - 1, place) if self.part.reverse else place

    def result(self) -> tuple[Tensor, ...]:
        """Return the tensors that replace those of the scan."""
        tiles = max(1, -(-self.extent // self.length))
        local = self._local(tiles)
        offset = self._offset(tiles, self._total(tiles))
        here, place = tuple(v for v, _ in self.others), self.turned(self.part.at)
        tile, within = binary("//", place, self.length), binary("%", place, self.length)
        before, terms = [t[(*here, tile)] for t in offset], [t[(*here, tile, within)] for t in local]
        c = self.body.combiner
        both = {**dict(zip(c.old, before, strict=True)), **dict(zip(c.new, terms, strict=True))}
        made = [substitute(r, both) for r in c.result]
        bodies = [made[b.which] for b in self.op.bodies if isinstance(b, Reduce)]
        return _compute(self.op.name, self.op.axes, self.op.extents, bodies, [t.name for t in self.op.outputs])

    def _local(self, tiles: int) -> tuple[Tensor, ...]:
        """Tensors that scan each tile alone, one per state of the combiner: (…, tile, position)."""
        t, u, k = Var("t", "index"), Var("u", "index"), Var("u", "index", extent=self.length)
        own, values = self._terms(tiles, t, k)
        axes, extents = (*own, t, u), (*(n for _, n in self.others), tiles, self.length)
        return self._combined("local", axes, extents, k, values, Prefix(u, self.part.exclusive))

    def _total(self, tiles: int) -> tuple[Tensor, ...]:
        """Tensors that reduce each tile, one per state of the combiner: (…, tile)."""
        t, k = Var("t", "index"), Var("u", "index", extent=self.length)
        own, values = self._terms(tiles, t, k)
        return self._combined("total", (*own, t), (*(n for _, n in self.others), tiles), k, values)

    def _terms(self, tiles: int, t: Var, k: Var) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
        """(other axes, terms at position ``k`` of tile ``t``); the last tile is filled with the identity."""
        own = {v: Var(v.name, "index") for v, _ in self.others}
        place = binary("+", binary("*", t, self.length), k)
        at: dict[Var, Expr] = {**own, self.body.axes[0]: self.turned(place)}
        values = tuple(substitute(v, at) for v in self.body.values)
        if tiles * self.length > self.extent:
            inside = binary("<", place, self.extent)
            values = tuple(select(inside, v, i) for v, i in zip(values, self.body.combiner.identity, strict=True))
        return tuple(own.values()), values

    def _offset(self, tiles: int, totals: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Tensors with the combination of all earlier tiles, one per state of the combiner: (…, tile)."""
        t, k = Var("t", "index"), Var("t", "index", extent=tiles)
        own = tuple(Var(v.name, "index") for v, _ in self.others)
        values = tuple(x[(*own, k)] for x in totals)
        extents = (*(n for _, n in self.others), tiles)
        return self._combined("offset", (*own, t), extents, k, values, Prefix(t, exclusive=True))

    def _combined(self, what: str, axes: tuple[Var, ...], extents: tuple[int, ...], over: Var,
                  values: tuple[Expr, ...], part: Prefix | None = None) -> tuple[Tensor, ...]:  # fmt: skip
        name = f"{self.op.name}_{what}"
        bodies = [Reduce(self.body.combiner, (over,), values, n, v.dtype, part) for n, v in enumerate(values)]
        labels = [name] if len(bodies) == 1 else [f"{name}_{n}" for n in range(len(bodies))]
        return _compute(name, axes, extents, bodies, labels)


def _compute(name: str, axes: tuple[Var, ...], extents: tuple[int, ...], bodies: list[Reduce] | list[Expr],
             labels: list[str]) -> tuple[Tensor, ...]:  # fmt: skip
    op = Compute(name, axes, extents, tuple(bodies))
    check_accesses(op)
    op.outputs = tuple(Tensor(n, extents, b.dtype, op) for n, b in zip(labels, bodies, strict=True))
    return op.outputs
