"""Merges an elementwise epilogue into the scan whose results it reads."""

from __future__ import annotations

from tensorir.arith.access import even
from tensorir.arith.affine import Arith, Linear, same
from tensorir.errors import Problem, ScheduleError
from tensorir.ir.build import as_int, binary, const
from tensorir.ir.text import show
from tensorir.ir.tree import Axis, Binary, Buffer, Expr, Iter, Load, Program, Seq, Stage, Stmt, Store, Var
from tensorir.ir.visit import find, reads, sequence, substitute, uses
from tensorir.schedule.analysis import caret, in_loops, is_scan, stages_reading
from tensorir.schedule.rewrite import InPlace


def scan_read(program: Program, stage: Stage) -> Stage | None:
    """The last scan whose results ``stage`` reads; None if it reads none or does more than store. Raises ScheduleError
    ``reverse-inline.other-readers`` if others need these results too.
    """
    if not _stores(stage) or stage.init is not None or any(it.axis is not Axis.SPATIAL for it in stage.iters):
        return None
    read = set(reads(stage.body))
    scans = [s for s in find(program.body, Stage) if is_scan(s) and _results(s).keys() & read]
    if not scans:
        return None
    scan = scans[-1]  # what the earlier ones make it may read as well
    buffers = _results(scan)
    kept = [b for b in buffers if b in program.outputs]
    others = [s for b in buffers for s in stages_reading(program.body, b) if s is not stage]
    if kept or others:
        name = next(iter(buffers)).name
        who = f"{others[0].name} reads {name}" if others else f"{kept[0].name} is an output"
        raise _refuse("reverse-inline.other-readers", f"{who} as well", stage,
                      f"s.compute_at({stage.name!r}, …), which leaves {name} where it is")  # fmt: skip
    return scan


def _results(scan: Stage) -> dict[Buffer, Store]:
    assert isinstance(scan.body, Seq)
    return {s.buffer: s for s in scan.body.stmts if isinstance(s, Store)}


def _stores(stage: Stage) -> list[Store]:
    """Stores of a stage that consists of stores only, else []."""
    parts = stage.body.stmts if isinstance(stage.body, Seq) else (stage.body,)
    return [s for s in parts if isinstance(s, Store)] if all(isinstance(s, Store) for s in parts) else []


def into_scan(stage: Stage, scan: Stage) -> Stage:
    """``scan`` with its stores replaced by those of ``stage``; raises unless it is elementwise."""
    results = _results(scan)
    loads = [n for n in find(stage.body, Load) if n.buffer in results]
    index = loads[0].index
    alike = all(same(a, b) for n in loads for a, b in zip(n.index, index, strict=True))
    stored = next(iter(results.values())).index
    found = _places(stage, index, stored, loads[0].buffer) if alike else None
    if found is None:
        read, have = ", ".join(map(show, index)), list(map(show, loads[0].buffer.shape))
        message = f"{stage.name} does not read {loads[0].buffer.name}[{', '.join(have)}] element by element: [{read}]"
        raise _refuse("reverse-inline.elementwise", message, stage,
                      f"each element once, in order; for another order s.compute_at({stage.name!r}, …)")  # fmt: skip
    at, guards = found
    put = _Put({b: s.value for b, s in results.items()})
    made: list[Stmt] = [Store(s.buffer, tuple(substitute(i, at) for i in s.index), put(substitute(s.value, at)))
                        for s in _stores(stage)]  # fmt: skip
    assert isinstance(scan.body, Seq)
    parts = list(scan.body.stmts)
    first = next(n for n, s in enumerate(parts) if isinstance(s, Store))
    rest = [s for s in parts if not isinstance(s, Store)]
    body = sequence([*made, *rest] if first == 0 else [*rest, *made])
    return scan.replace(body=body, guards=(*scan.guards, *(in_loops(g, scan) for g in guards)))


def _places(
    stage: Stage, index: tuple[Expr, ...], stored: tuple[Expr, ...], buffer: Buffer
) -> tuple[dict[Var, Expr], list[Expr]] | None:
    """(axes of ``stage`` in terms of the scan's, conditions against unread elements); None unless it reads each element
    once.

    index: of the read;  stored: of the scan's store
    """
    left = {it.var: it for it in stage.iters}
    at: dict[Var, Expr] = {}
    guards: list[Expr] = []
    sizes = buffer.dims
    d = 0
    while d < len(index):
        i = index[d]
        if isinstance(i, Var):
            it = left.pop(i, None)
            if it is None or as_int(it.extent) != sizes[d]:
                return None
            at[i] = stored[d]
            d += 1
            continue
        found = _digits(index[d : d + 2], left, sizes[d : d + 2])
        if found is None:
            return None
        it, sign, offset = found
        left.pop(it.var)
        place = binary("+", binary("*", stored[d], sizes[d + 1]), stored[d + 1])
        at[it.var] = binary("-", place, offset) if sign > 0 else binary("-", offset, place)
        if sizes[d] * sizes[d + 1] > as_int(it.extent):
            guards.append(binary("<", place, it.extent))
        d += 2
    return None if left else (at, guards)


def _digits(pair: tuple[Expr, ...], axes: dict[Var, Iter], sizes: tuple[int, ...]) -> tuple[Iter, int, int] | None:
    """(axis v, sign, offset) such that ``pair`` are the quotient and remainder of ``sign * v + offset``, covering 0 to
    the last value; None for other indices.
    """
    if len(pair) < 2 or not all(isinstance(i, Binary) for i in pair):
        return None
    tile, within = pair
    assert isinstance(tile, Binary)
    assert isinstance(within, Binary)
    base = const(sizes[1], "index")
    if (tile.op, within.op) != ("//", "%") or not (same(tile.b, base) and same(within.b, base)):
        return None
    names = [v for v in axes if uses(tile.a, {v})]
    if len(names) != 1 or not same(tile.a, within.a):
        return None
    found = even(tile.a, names[0], Arith())
    if found is None or found[1].terms or abs(found[0]) != 1:
        return None
    it, (sign, rest) = axes[names[0]], found
    extent = as_int(it.extent)
    wanted = 0 if sign > 0 else extent - 1
    covered = (sizes[0] - 1) * sizes[1] < extent <= sizes[0] * sizes[1]
    return (it, sign, wanted) if rest.same(Linear({}, wanted)) and covered else None


class _Put(InPlace):
    """Rewriter: replace reads of a scan's result by the value stored there."""

    def __init__(self, values: dict[Buffer, Expr]) -> None:
        self.values = values

    def on_Load(self, n: Load) -> Expr:
        return self.put(self.values[n.buffer]) if n.buffer in self.values else self.children(n)


def _refuse(code: str, message: str, stage: Stage, hint: str) -> ScheduleError:
    return ScheduleError(Problem(code, message, at=caret(stage), hint=hint))
