"""Copies that accumulate a reduction in pieces: loaded before each piece and stored after it.

Sums are kept in wider memory between pieces. In each piece a tile of them is loaded, accumulated and stored, so that
the operands' piece stays in cache (the loop over ``kc`` of Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", ACM TOMS 34(3), 2008).
"""

from __future__ import annotations

from tensorir.ir.build import as_expr, as_int, binary, select
from tensorir.ir.tree import Axis, Buffer, Expr, Iter, Load, Loop, Stage, Stmt, Store, Var
from tensorir.ir.visit import find, replace
from tensorir.schedule.analysis import Index, unique
from tensorir.schedule.primitives.reduction import has_axis_of, init_nest
from tensorir.schedule.rewrite import axis_labels, written_index


def pieces_around(index: Index, stage: Stage, at: Loop | None) -> list[Loop]:
    """Loops from the outermost one down to ``at`` that drive the reduction of ``stage``; each of their iterations is
    one piece. [] for None.
    """
    around = [] if at is None else [*index.above(at), at]
    return [x for x in around if has_axis_of(x, stage, Axis.REDUCE)]


def numbered(stage: Stage, pieces: list[Loop]) -> tuple[Iter, Expr]:
    """(axis ``piece`` that numbers the pieces of a reduction in order, the number in loop variables)."""
    piece, count = Var(unique("piece", axis_labels(stage)), "index"), 1
    number: Expr = as_expr(0)
    for x in pieces:
        number = binary("+", binary("*", number, x.extent), x.var)
        count *= as_int(x.extent)
    return Iter(piece, as_expr(count), Axis.ORDERED), number


def opening(index: Index, stage: Stage, at: Loop, piece: tuple[Iter, Expr], buffer: Buffer, local: Buffer) -> Stmt:
    """Nest ``<stage>.init`` that loads ``local`` per iteration of ``at``: the initial value in the first piece,
    ``buffer`` in later ones.
    """
    init, where = stage.init, written_index(stage)
    start: Expr = Load(buffer, where, buffer.dtype)
    if init is not None:
        assert isinstance(init, Store)  # of several buffers there is no copy
        start = select(binary("<", piece[0].var, 1), init.value, start)
    name = unique(f"{stage.name}.init", index.names())
    return init_nest(index, stage, index.between(at, stage), name, Store(local, where, start), [piece])


def continues(index: Index, stage: Stage, at: Loop, others: list[Stage]) -> bool:
    """True if a copy inside the pieces of a reduction starts from values that other stages wrote before its piece."""
    pieces = pieces_around(index, stage, at)
    order = list(index.stages.values())
    return bool(pieces) and stage.init is None and all(
        at not in index.above(w) and order.index(w) < order.index(stage) for w in others
    )  # fmt: skip


def closing(made: Stmt, piece: tuple[Iter, Expr]) -> Stmt:
    """``made``, a nest that stores a copy, executed after each piece: axis ``piece`` is added to its stages.

    piece: (axis, its value in loop variables), as from ``numbered``
    """
    axis, number = piece
    return replace(made, {s: s.replace(iters=(*s.iters, axis), binds=(*s.binds, number)) for s in find(made, Stage)})
