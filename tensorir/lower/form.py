"""Helpers for lowering passes: the mark of a pass on its program, iteration over kernels, variable ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from tensorir.arith.affine import Arith, Interval
from tensorir.errors import LoweringError, Problem
from tensorir.ir.build import as_int
from tensorir.ir.dims import dims_in, most
from tensorir.ir.once import nests as nests
from tensorir.ir.tree import Const, Loop, Program, Role, Stmt, Var
from tensorir.ir.visit import find, sequence
from tensorir.target import Target

Pass = Callable[[Program, Target], Program]


def lowering(f: Pass) -> Pass:
    """Decorator for a lowering pass: records the pass in the program it returns, and hands on what is known."""

    @functools.wraps(f)
    def run(program: Program, target: Target) -> Program:
        if program.known is None:
            program = _knowing(program.replace(), Arith())
        return _knowing(f(program, target).replace(done=(*program.done, f.__name__)), program.known)

    return run


def _knowing(program: Program, known: Arith) -> Program:
    object.__setattr__(program, "known", known)
    return program


def each_nest(program: Program, f: Callable[[Stmt], Stmt]) -> Program:
    """``program`` with ``f`` applied to every kernel."""
    return program.replace(body=sequence([f(n) for n in nests(program)]))


def bound_loops(nest: Stmt) -> tuple[list[Loop], Stmt]:
    """The block and thread loops at the top of a kernel (after ``bind_threads``), and what is inside."""
    out: list[Loop] = []
    while isinstance(nest, Loop) and nest.kind.level != "sequential":
        out.append(nest)
        nest = nest.body
    return out, nest


def rewrap(loops: list[Loop], body: Stmt) -> Stmt:
    """Nest ``loops``, outermost first, around ``body``."""
    for x in reversed(loops):
        body = x.replace(body=body)
    return body


def extent_of(loop: Loop) -> Interval:
    """(low, high) of a loop's variable, at the largest dims; extents that depend on data are unbounded above."""
    if isinstance(loop.extent, Const):
        return 0, as_int(loop.extent) - 1
    return 0, most(loop.extent) - 1 if dims_in(loop.extent) else float("inf")


def loop_ranges(loops: Iterable[Loop]) -> dict[Var, Interval]:
    """{loop variable: (low, high)} at the largest dims; high is inf for extents that depend on data."""
    return {x.var: extent_of(x) for x in loops}


def kernel_arith(known: Arith, axes: Iterable[Loop], body: Stmt) -> Arith:
    """Enter in ``known`` the ranges of a kernel's block and thread loops, and of every loop in its body; return it.

    What passes before found out stays known (``Program.known``), but for what depends on a range that has changed.
    """
    ranges: dict[Var, Interval] = {}
    for x in (*axes, *find(body, Loop)):  # copies of a loop share its variable, and one of them may be shorter
        found = extent_of(x)
        before = ranges.setdefault(x.var, found)
        if found != before:
            ranges[x.var] = min(found[0], before[0]), max(found[1], before[1])
    for r in find(body, Role):
        ranges |= {v: (0, count - 1) for v, count in r.numbers.items()}
    for v, interval in ranges.items():
        known.ranges[v] = interval
    return known


def thread_count(loops: list[Loop]) -> int:
    """Threads per block."""
    n = 1
    for x in loops:
        if x.kind.level == "thread":
            n *= as_int(x.extent)
    return n


def fail(code: str, message: str, hint: str = "") -> LoweringError:
    """A LoweringError with one problem, to be raised by the caller."""
    return LoweringError(Problem(code, message, hint=hint))
