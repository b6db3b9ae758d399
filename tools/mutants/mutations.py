"""The small changes: where they can be made in a program, and what each gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorir.arith.affine import same
from tensorir.arith.conditions import negate
from tensorir.ir.build import as_int, binary, const, select
from tensorir.ir.text import show
from tensorir.ir.tree import (
    Barrier,
    Binary,
    Const,
    Expr,
    If,
    Load,
    Loop,
    Program,
    Ramp,
    Select,
    Seq,
    Stage,
    Stmt,
    Store,
)
from tensorir.ir.visit import Rewriter, find, sequence, walk
from tensorir.lower.form import nests


@dataclass
class Mutant:
    """One change. ``key`` finds the same change in the program of another shape.

    make:  the changed program;  at: the node changed;  early: whether lowering has still to go on
    """

    key: tuple[Any, ...]
    kind: str
    text: str
    make: Callable[[], Program]
    at: Any
    early: bool
    where: Any = None


class _Put(Rewriter):
    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new = old, new

    def __call__(self, n: Any) -> Any:
        if n is self.old:
            return self.new
        return self.on_Seq(n) if isinstance(n, Seq) else n.map(self)

    def on_Seq(self, n: Seq) -> Stmt:
        return sequence([self(s) for s in n.stmts])


def put(program: Program, old: Any, new: Any) -> Program:
    """``program`` with one node replaced."""
    return program.replace(body=_Put(old, new)(program.body))


def _loops(s: Stmt, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Stmt]]:
    """Every statement with the names of the loops around it."""
    yield above, s
    if isinstance(s, Stage):
        return
    below = (*above, s.var.name) if isinstance(s, Loop) else above
    for c in s.children():
        if isinstance(c, Stmt):
            yield from _loops(c, below)


def after_barriers(program: Program) -> Iterator[Mutant]:
    """Mutants of a program that still has stages."""
    for k, nest in enumerate(nests(program)):
        nth: dict[Any, int] = {}
        for above, s in _loops(nest):
            if isinstance(s, Barrier):
                place = (k, "barrier", above)
                nth[place] = nth.get(place, -1) + 1
                yield _mutant(program, (*place, nth[place]), "barrier", f"barrier in {'/'.join(above)}", s, Seq(()))
            elif isinstance(s, Loop):
                for by in (1, -1):
                    new = s.replace(extent=const(as_int(s.extent) + by))
                    text = f"{s.var.name} in {as_int(s.extent)} -> {as_int(s.extent) + by}"
                    yield _mutant(program, (k, "bound", s.var.name, by), "bound", text, s, new)
            elif isinstance(s, Stage):
                yield from _in_stage(program, k, s)


def _in_stage(program: Program, k: int, s: Stage) -> Iterator[Mutant]:
    if s.name.endswith(".init") and not any(x.name == s.name[:-5] + ".rf" for x in find(program.body, Stage)):
        yield _mutant(program, (k, "init", s.name), "init", f"{s.name} deleted", s, Seq(()), s)
    accesses = [n for n in walk(s.body) if isinstance(n, Load | Store)]
    for n, a in enumerate(accesses):
        if any(a is b for b in accesses[:n]):
            continue
        what = "read of" if isinstance(a, Load) else "write of"
        name = f"{s.name}: {what} {a.buffer.name}[{', '.join(map(show, a.index))}]"
        for d in range(len(a.index)):
            for by in (1, -1):
                index = (*a.index[:d], binary("+", a.index[d], by), *a.index[d + 1 :])
                key = (k, "index", s.name, n, d, by)
                yield _mutant(program, key, "index", f"{name} dimension {d} {by:+}", a, a.replace(index=index), s)
        for d, e in itertools.combinations(range(len(a.index)), 2):
            if same(a.index[d], a.index[e]):
                continue
            index = list(a.index)
            index[d], index[e] = index[e], index[d]
            key = (k, "swap", s.name, n, d, e)
            yield _mutant(
                program, key, "swap", f"{name} dimensions {d} and {e} swapped", a, a.replace(index=tuple(index)), s
            )
    yield from _conditions(program, k, s)


def _conditions(program: Program, k: int, s: Stage) -> Iterator[Mutant]:
    """Bounds in the conditions that tails became, not in the data comparisons of the computation."""
    for n in walk(s.body):
        if not isinstance(n, If | Select):
            continue
        for c in walk(n.cond):
            if isinstance(c, Binary) and c.op in ("<", "<=") and c.a.dtype == "index" and not find(c, Load):
                for by in (1, -1):
                    key = (k, "condition", s.name, show(c.a) if not isinstance(c.a, Const) else show(c.b), by)
                    text = f"{s.name}: {show(c)} -> by {by:+}"
                    yield _mutant(program, key, "condition", text, c, c.replace(b=binary("+", c.b, by)), s)


def _mutant(
    program: Program, key: tuple[Any, ...], kind: str, text: str, old: Any, new: Any, where: Any = None
) -> Mutant:
    return Mutant(key, kind, text, lambda: put(program, old, new), old, True, where)


def final_form(program: Program) -> Iterator[Mutant]:
    """One more or one less in every index of the finished program."""
    for k, nest in enumerate(nests(program)):
        nth: dict[Any, int] = {}
        for n in walk(nest):
            if not isinstance(n, Load | Store):
                continue
            place = (k, "final", type(n).__name__, n.buffer.name, show(n.index[0]))
            nth[place] = nth.get(place, -1) + 1
            i = n.index[0]
            for by in (1, -1):
                moved = i.replace(base=binary("+", i.base, by)) if isinstance(i, Ramp) else binary("+", i, by)
                key = (*place, nth[place], by)
                what = "read of" if isinstance(n, Load) else "write of"
                text = f"final {what} {n.buffer.name}[{show(i)}] {by:+}"
                make = _final(program, n, n.replace(index=(moved,)))
                yield Mutant(key, "index", text, make, n, False)


def _final(program: Program, old: Any, new: Any) -> Callable[[], Program]:
    return lambda: put(program, old, new)


# --- why a mutant is no fault ----------------------------------------------------------------------------------------

POISON = 77_777


def poisoned(m: Mutant, program: Program) -> Iterator[Program]:
    """Programs that are as wrong as can be in the same place: if they pass too, the place does not matter.

    A read gives another value, a write writes one, and the iterations that a bound or condition is about write others.
    """
    if isinstance(m.at, Load):
        yield put(program, m.at, _spoiled(m.at))
    elif isinstance(m.at, Store):
        yield put(program, m.at, m.at.replace(value=_spoiled(m.at.value)))
    else:
        yield from _at_the_edge(m, program, lambda n: _spoiled(n.value))


def idle(m: Mutant, program: Program) -> Iterator[Program]:
    """Programs that go wrong where an iteration that a bound or condition is about stores anything new."""
    if not isinstance(m.at, Load | Store):
        yield from _at_the_edge(
            m, program, lambda n: select(binary("==", n.value, _held(n)), n.value, _spoiled(n.value))
        )


def _held(n: Store) -> Expr:
    return Load(n.buffer, n.index, n.buffer.dtype)


def _at_the_edge(m: Mutant, program: Program, value: Callable[[Store], Expr]) -> Iterator[Program]:
    """``program`` with the iterations that the mutant adds or takes away, storing ``value`` there."""
    if isinstance(m.at, Loop):
        extent, by = as_int(m.at.extent), m.key[3]
        edge = binary("==", m.at.var, const(extent if by > 0 else extent - 1))
        body = _Edge(edge, value)(m.at.body)
        yield put(program, m.at, m.at.replace(extent=const(max(extent, extent + by)), body=body))
    elif isinstance(m.at, Binary) and m.where is not None:
        loose, tight = (m.at.replace(b=binary("+", m.at.b, by)) for by in (1, -1))
        now, less = (loose, m.at) if m.key[4] > 0 else (m.at, tight)
        edge = binary("and", now, negate(less))
        changed = put(program, m.at, now)
        stage = next(s for s in find(changed.body, Stage) if s.name == m.where.name)
        yield put(changed, stage, stage.replace(body=_Edge(edge, value)(stage.body)))


class _Edge(Rewriter):
    """Other values stored where a condition holds."""

    def __init__(self, cond: Expr, value: Callable[[Store], Expr]) -> None:
        self.cond, self.value = cond, value

    def on_Store(self, n: Store) -> Store:
        return n.replace(value=select(self.cond, self.value(n), n.value))


def _spoiled(e: Expr) -> Expr:
    if e.dtype == "bool":
        return binary("==", e, const(False, "bool"))
    return binary("+", e, const(POISON if e.dtype not in ("int8", "uint8") else 77, e.dtype))
