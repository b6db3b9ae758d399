"""Runs lowered kernels in the interpreter, in exact arithmetic modulo a prime, on awkward shapes and compares with the
declarations.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tensorir.algorithms.registry import Algorithm, find_algorithm
from tensorir.arith.repair import EXTREMES
from tensorir.check.different import ascending, independent, kept_apart, kept_in_order
from tensorir.check.resize import constant_extents, dim_values, module_at, resize
from tensorir.errors import LoweringError, Problem, TensorIRError
from tensorir.expr.program import computes_of, dims_of
from tensorir.expr.reread import with_dims
from tensorir.expr.tensor import Compute, Tensor
from tensorir.interp.doubles import NOT_OF_NEGATIVES, Doubles, apart, opaque_combiners
from tensorir.interp.exponentials import field_of
from tensorir.interp.memory import Fault
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import arguments_of, evaluate, random_arguments
from tensorir.interp.run import iterations, run
from tensorir.interp.whole import INPUT_SIZES, Whole, asks_order, joins_by_order
from tensorir.ir.build import COMPARE, as_expr
from tensorir.ir.dims import most
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.places import operands
from tensorir.ir.shared import children_first
from tensorir.ir.structure import among, identical, place
from tensorir.ir.tree import Binary, Const, Expr, If, Prefix, Reduce, Select, Var
from tensorir.ir.visit import find, under
from tensorir.lower.kernel import Module
from tensorir.lower.lowered import lowered
from tensorir.lower.pipeline import lower
from tensorir.schedule.schedule import BaseSchedule
from tensorir.schedule.trace import Trace
from tensorir.target import Target

MOST_ITERATIONS = 60_000
"""Iterations of the unscheduled program above which a shape is too large to interpret in a moment."""

WORK_OF_DISTINCT_EXTENTS = 4
"""Times the work that a shape may have so that all its extents are different."""

SHORT_EXTENTS = 8
"""Extents that may be shorter still where shapes have too many axes; longer ones are those of tiles."""

FAULTS_OF_LOWERING = ("lower.unexpanded", "lower.form", "lower.pass-missing")
"""Codes of faults of lowering itself, whatever the extents."""

STATEMENTS_OF_A_SHAPE = 30_000
"""Statements that the interpreter should run one after another for one shape (some 5 microseconds each): fitting the
schedule to a smaller one takes as long as 20,000 of them."""


def axes_of(outputs: Sequence[Tensor]) -> dict[str, tuple[Var, int | Expr]]:
    """Axes whose extents a check may vary: ``{"C.i": (var, extent)}`` for axes of outputs and of reductions, not of
    scans.
    """
    found: dict[str, tuple[Var, int | Expr]] = {}
    for op in computes_of(outputs):
        if any(among(t, outputs) for t in op.outputs):
            for v, n in zip(op.axes, op.extents, strict=True):
                found[f"{op.name}.{v.name}"] = (v, n)
        for b in op.bodies:
            if isinstance(b, Reduce) and not isinstance(b.part, Prefix):  # a scan has as many terms as elements
                for v in b.axes:
                    found[f"{op.name}.{v.name}"] = (v, v.extent)
    return found


def tiles_of(s: BaseSchedule) -> dict[str, set[int]]:
    """{root loop: products of inner split factors}: extents not divisible by them have a remainder.

    A root loop is one that no split made. Loops that are not split are missing.
    """
    periods: dict[str, set[int]] = {}
    home: dict[str, tuple[str, int]] = {}  # loop -> root loop and the number of its iterations that one step spans
    for step in s.trace:
        if step.primitive == "split":
            name, factors = step.args[0], step.args[1]
            root, span = home.get(name, (name, 1))
            for out, k in zip(step.out, range(len(factors)), strict=False):
                inner = span * math.prod(f for f in factors[k + 1 :] if f is not None)
                home[out] = (root, inner)
                periods.setdefault(root, set()).add(inner)
            if None not in factors:
                periods[root].add(span * math.prod(factors))
        elif step.primitive == "fuse":  # tails of the fused loop show when its last part is about as long
            home[step.out[0]] = home.get(step.args[-1], (step.args[-1], 1))
    return _with_tiles_of_scans(s, periods)


def _with_tiles_of_scans(s: BaseSchedule, periods: dict[str, set[int]]) -> dict[str, set[int]]:
    """``periods``, extended for scan axes by the tile and vector sizes of tiled scans."""
    tiles = {t for x in s.trace if x.primitive == "redeclare" and isinstance(t := dict(x.options).get("tile"), int)}
    for op in computes_of(s.began_with) if tiles else ():
        for v in _scanned(op):
            inner = periods.get(f"{op.name}_local.u", set())
            periods.setdefault(f"{op.name}.{v.name}", set()).update(tiles | inner)
    return periods


def _scanned(op: Compute) -> set[Var]:
    """The axes along which ``op`` scans; empty without a scan."""
    return {b.part.at for b in op.bodies if isinstance(b, Reduce) and isinstance(b.part, Prefix)}


def awkward_shapes(s: BaseSchedule) -> list[dict[Var, int]]:
    """[{axis: extent}] for tests: each tile size and its neighbours (+1, -1), 1, a prime; small enough to interpret.

    All axes vary at once, so that few shapes cover every class of tail. Two of the shapes have a different extent on
    each axis.
    """
    least, bound = _least_extents(s)
    axes = {name: (v, most(as_expr(n))) for name, (v, n) in axes_of(s.began_with).items() if v in least}
    periods = {name: _periods(s, name, n) for name, (_, n) in axes.items()}
    wanted: list[dict[Var, int]] = []
    plan = ((_exact, -1), (_more, -1), (_more, 0), (_less, -1), (_one, 0), (_prime, 0), (_twice, 0), (_double, -1))
    for pick, level in plan:
        wanted.append(
            {
                v: least[v] - 1 + pick(periods[name][level or min(1, len(periods[name]) - 1)])
                for name, (v, _) in axes.items()
            }
        )
    whole, (compared, away) = dict(axes.values()), _compared(s.began_with)
    largest = {v: periods[name][-1] for name, (v, _) in axes.items()}
    wanted[:0] = _different(s, largest, least, {v: n for v, n in whole.items() if n in compared})
    # a reduction or a scan over several tiles; pipeline stages, once around and into the second: one element is enough
    depth = max((dict(x.options).get("depth", 2) for x in s.trace if x.primitive == "pipeline"), default=0)
    several = {v for op in computes_of(s.began_with) for v in _scanned(op)} | {v for v in least if v.extent is not None}
    deep = {
        v: periods[name][-1] * (depth + 1 if depth else 2) + (not depth) if v in several else least[v]
        for name, (v, _) in axes.items()
    }
    if depth or any(n > 3 for n in deep.values()):
        wanted.insert(2, deep)  # among the few that are run as text, too
    ties = _ties(s.began_with)
    tile = max((p[-1] for p in periods.values()), default=1)
    late = list(_late(whole, compared, away, tile)) if compared else []
    wanted[:0] = [w for w in late if w is late[-1] or w == _shrunk(w, MOST_ITERATIONS, least, ties)]
    if math.prod(whole.values()) <= MOST_ITERATIONS // 8:
        wanted.insert(0, whole)
    small = [_shrunk({**w, **_together(w, bound)}, MOST_ITERATIONS, least, ties) for w in wanted]
    small = [{**w, **_together(w, bound)} for w in small]
    kinds = [b.dtype for b in s.program.params]
    small[:0] = several_blocks(s.trace, tiles_of(s), axes, kinds, small, 2 * WORK_OF_DISTINCT_EXTENTS * MOST_ITERATIONS)
    return [w for n, w in enumerate(small) if w not in small[:n]]


def _different(
    s: BaseSchedule, periods: Mapping[Var, int], least: Mapping[Var, int], compared: Mapping[Var, int]
) -> list[dict[Var, int]]:
    """Two shapes {axis: extent} with a different extent on each axis, ascending and descending; [] with a single axis.

    Axes compared by a condition such as i - j < 3 stay equal: a mask would leave the extra rows empty.
    """
    groups = list[list[Var]]()
    for group in independent(s.began_with, periods):
        masked = {compared[v] for v in group if v in compared}
        known = next((g for g in groups if masked & {compared.get(v) for v in g}), None)
        if known is None:
            groups.append([*group])
        else:
            known += group
    back = sorted(groups, key=lambda g: (g[0].extent is not None, -place(g, groups)))  # what is reduced is last again
    found = [ascending(g, periods, MOST_ITERATIONS) for g in (groups, back)] if len(groups) > 1 else []
    return [{v: least[v] - 1 + w[v] for v in periods} for w in found]


def _late(axes: Mapping[Var, int], compared: Container[int], away: int, tile: int) -> Iterator[dict[Var, int]]:
    """Yield {axis: extent} with rows so far down that conditions such as i - j < 100 skip whole leading tiles, and then
    j <= i whole trailing tiles; several tiles remain in both.

    compared: extents of axes in such conditions (others get 1);  away: largest constant there;  tile: largest tile size
    """
    for long in (2 * tile + 1 + away, 2 * tile + 1) if away else (2 * tile + 1,):
        yield {v: min(n, long) if n in compared else 1 for v, n in axes.items()}


def _compared(outputs: Sequence[Tensor]) -> tuple[set[int], int]:
    """(extents of axes that the declarations compare, as in j <= i; largest constant in these comparisons)."""
    found, away = set[int](), 0
    for op in computes_of(outputs):
        axes = {v: most(as_expr(n)) for v, n in zip(op.axes, op.extents, strict=True)}
        axes |= {v: most(as_expr(v.extent)) for b in op.bodies if isinstance(b, Reduce) for v in b.axes}
        conds = [x.cond for b in op.bodies for x in find(b, Select)]
        compared: list[Expr] = [*under(conds, Binary, lambda c: c.op in COMPARE)]
        named: dict[Expr, frozenset[Var]] = {}
        number: dict[Expr, int] = {}
        for e in children_first(compared, operands):
            named[e] = frozenset([e] if isinstance(e, Var) and e in axes else ()).union(
                *[named[c] for c in operands(e)]
            )
            own = abs(e.value) if isinstance(e, Const) and isinstance(e.value, int) else 0
            number[e] = max([own, *(number[c] for c in operands(e))])
        for c in (c for c in compared if len(named[c]) > 1):
            found |= {axes[v] for v in named[c]}
            away = max(away, number[c])
    return found, away


def _ties(outputs: Sequence[Tensor]) -> dict[Var, object]:
    """{reduction axis: (extent, rank)}, its rank among its stage's reduction axes of this extent; axes with equal
    values, such as those of a softmax's maximum and sum, are varied and counted together.
    """
    out: dict[Var, object] = {}
    for op in computes_of(outputs):
        count: dict[int, int] = {}
        for v in dict.fromkeys(v for b in op.bodies if isinstance(b, Reduce) for v in b.axes):
            n = most(as_expr(v.extent))
            out[v] = n, count.setdefault(n, 0)
            count[n] += 1
    return out


def _together(w: Mapping[Var, int], bound: Mapping[Var, object]) -> dict[Var, int]:
    """{axis: extent} for axes in ``bound``, of equal extents where their values are equal: the largest in ``w``."""
    return {v: max(w[u] for u in bound if bound[u] == tie) for v, tie in bound.items()}


def _least_extents(s: BaseSchedule) -> tuple[dict[Var, int], dict[Var, object]]:
    """{axis: least extent} that ``redeclare`` algorithms accept, and ties of axes that they accept with equal extents
    alone; fixed axes such as filter taps are omitted. Without such steps every axis is there, with 1.
    """
    steps = Trace(x for x in s.trace if x.primitive == "redeclare")
    if not steps:  # of axes that a dim ends as well
        return dict.fromkeys((v for v, _ in axes_of(s.began_with).values()), 1), {}
    algorithms = tuple(find_algorithm(str(x.args[0])) for x in steps)  # another may have the name next time
    found = _least_of(s.began_with, steps.to_json(), algorithms, s.target)
    ties = _ties(s.began_with)
    return {v: n for v, n, _ in found}, {v: ties[v] for v, _, tied in found if tied}


@functools.lru_cache(maxsize=16)
def _least_of(
    outputs: tuple[Tensor, ...], steps: str, algorithms: tuple[Algorithm, ...], target: Target
) -> tuple[tuple[Var, int, bool], ...]:
    """Triples (axis, least extent, True if those tied with it must have the same) for the axes of ``outputs``: extents
    on which ``steps`` (a JSON trace) replay; found by bisection and cached. Axes on which the trace does not replay
    with one more element are left out.
    """
    axes, ties = {v: n for v, n in axes_of(outputs).values() if isinstance(n, int)}, _ties(outputs)
    bound = set[Var]()

    def takes(axis: Var, extent: int) -> bool:
        varied = [v for v in axes if v in ties and ties[v] == ties[axis]] if axis in bound else [axis]
        try:
            BaseSchedule(resize(outputs, dict.fromkeys(varied, extent)), target).replay(steps)
        except TensorIRError:
            return False
        return True

    def least(axis: Var, declared: int) -> int:
        """Least extent accepted for ``axis``, by bisection between 1 and ``declared``."""
        low, high = 0, 1 if takes(axis, 1) else declared
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if takes(axis, middle) else (middle, high)
        return high

    bound |= {v for v, n in axes.items() if v in ties and not takes(v, n + 1)}
    return tuple((v, least(v, n), v in bound) for v, n in axes.items() if takes(v, n + 1))


def _periods(s: BaseSchedule, axis: str, extent: int) -> list[int]:
    """Ascending tile sizes along the axis named ``axis``, up to ``extent``; [1] if it is not tiled.

    Tiled loops count by the last part of their name, so that those of copies and attached stages do too (C.out.i, y.k).
    """
    found = {1}
    for root, sizes in tiles_of(s).items():
        if root.rsplit(".", 1)[-1] == axis.rsplit(".", 1)[-1]:
            found |= sizes
    return sorted(p for p in found if p <= max(extent, 1)) or [1]


def _exact(p: int) -> int:
    return p


def _more(p: int) -> int:
    return p + 1


def _less(p: int) -> int:
    return max(1, p - 1)


def _one(_: int) -> int:
    return 1


def _prime(p: int) -> int:
    return _prime_above(p)


def _twice(p: int) -> int:
    return 2 * p + 1


def _shrunk(w: dict[Var, int], work: int, least: dict[Var, int], ties: Mapping[Var, object]) -> dict[Var, int]:
    """{axis: extent} reduced from ``w`` to about ``work`` iterations: reductions to 2 first, then the longest spatial
    axes to 3, then any to 1; none below ``least``. Axes with equal ``ties`` count once.

    Extents that differ in ``w`` stay different, up to ``WORK_OF_DISTINCT_EXTENTS * work`` iterations; beyond it only
    those of spatial axes among each other, and of reductions.
    """
    out, tied = dict(w), {v: ties.get(v, id(v)) for v in w}

    def cost(of: Mapping[Var, int]) -> int:
        return math.prod({tied[v]: max(n for u, n in of.items() if tied[u] == tied[v]) for v in of}.values())

    for axes, few in (
        ([v for v in out if v.extent is not None], 2),
        ([v for v in out if v.extent is None], 3),
        (list(out), 1),
    ):
        while cost(out) > work and (longest := max(axes, key=lambda v: out[v], default=None)) is not None:
            if out[longest] <= max(few, least.get(longest, 1)):
                break
            half = out[longest] // 2
            for v in [v for v in out if tied[v] == tied[longest]]:
                out[v] = max(few, least.get(v, 1), min(out[v], half))
    found = kept_apart(w, out)
    if cost(found) <= WORK_OF_DISTINCT_EXTENTS * work:
        return found
    sums = {v for v in w if v.extent is not None}  # too many to be all different: those of results, those of sums
    for least_of in (out, {v: n if n > SHORT_EXTENTS else min(n, max(2, least.get(v, 1))) for v, n in out.items()}):
        found = {}
        for summed in (False, True):
            found |= kept_in_order({v: n for v, n in w.items() if (v in sums) == summed}, least_of)
        if cost(found) <= WORK_OF_DISTINCT_EXTENTS * work:
            break
    return {v: found[v] for v in w}


def _double(p: int) -> int:
    return 2 * p


def _prime_above(n: int) -> int:
    n = max(3, n + 2)
    while any(n % d == 0 for d in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def label(outputs: Sequence[Tensor]) -> str:
    """The extents of all axes in words, as ``C.i=7 C.j=13 C.k=5``."""
    return " ".join(f"{name}={n}" for name, (_, n) in axes_of(outputs).items())


def compare(s: BaseSchedule, numbers: Numbers, seed: int) -> Problem | None:
    """Interpret the schedule's kernels in the arithmetic ``numbers`` and compare with its declarations, symbolic dims
    at small primes. Returns the first Problem, ``check.not-equal`` or that of a Fault; None if equal.
    """
    dims = dim_values(s.began_with, {})
    module = module_at(lowered(s), dims)
    return compare_module(module, with_dims(s.began_with, dims), numbers, seed, approximation(s))


def approximation(s: BaseSchedule) -> float | None:
    """Error, relative to the largest result, that an approximate algorithm of the schedule declares; None if it is
    exact.
    """
    return None if identical(s.outputs, s.began_with) else s.inexact_by


def compare_module(
    module: Module, outputs: Sequence[Tensor], numbers: Numbers, seed: int, most: float | None = None
) -> Problem | None:
    """Interpret lowered kernels on random inputs and compare with ``outputs``; return the first Problem,
    ``check.not-equal`` or that of a Fault, or None. Unlike ``compare``, takes kernels edited after lowering.

    most: allowed error in doubles relative to the largest result, if the kernels approximate
    """
    conditions = [x.cond for k in module.kernels for x in find(k.body, If)]
    arrays = random_arguments(outputs, seed, numbers, conditions)
    names = argument_names(module, outputs)
    try:
        got = run(module, dict(zip(names, arrays, strict=True)), numbers)
    except Fault as f:
        return f.problem
    want = evaluate(outputs, arrays, numbers)
    for b, w in zip(module.outputs, want, strict=True):
        g = got[b.name].reshape(w.shape)
        rounded = type(numbers) is Doubles and w.dtype.kind == "f"
        differs = apart(g, w, most) if rounded else numbers.differ(g, w, b.dtype)
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            wrong = int(differs.sum())
            return Problem(
                "check.not-equal",
                f"{b.name}{list(at)} is not what the declaration says ({wrong} of {w.size} elements differ)",
            )
    return None


def lowered_as_defined(s: BaseSchedule, module: Module, outputs: Sequence[Tensor], seed: int) -> Problem | None:
    """The first difference between the kernels of ``s`` at some shape and ``outputs``, the definition at that shape;
    None if equal.
    """
    numbers, ordered = field_of(outputs), bool(rolled_extremes(s))
    return compare_in_turn(module, outputs, numbers, seed, approximation(s), ordered)[0]


def rolled_extremes(s: BaseSchedule) -> tuple[str, ...]:
    """Names of running maxima and minima made by ``s.rolling``. They are only scaled by positive factors or shifted,
    which keeps the order of real numbers but not that of the prime field.
    """
    rolled = {x for step in s.trace if step.primitive == "rolling" for x in _names(dict(step.options)["into"])}
    bodies = {op.name: op.bodies for op in computes_of(s.began_with) if op.name in rolled}
    return tuple(n for n, bs in bodies.items() for b in bs if isinstance(b, Reduce) and b.combiner.name in EXTREMES)


def _names(into: object) -> Sequence[str]:
    return [into] if isinstance(into, str) else [str(x) for x in into]  # type: ignore[attr-defined]


def compare_in_turn(
    module: Module, outputs: Sequence[Tensor], numbers: Numbers, seed: int, most: float | None = None,
    ordered: bool = False,
) -> tuple[Problem | None, Numbers]:  # fmt: skip
    """Interpret lowered kernels and compare with ``outputs``: in the prime field, then in other numbers if a difference
    may come from the field (whole numbers for comparisons; doubles for rounding and approximation). Returns (first
    Problem or None, numbers used last).

    most:    allowed error in doubles relative to the largest result, if the kernels approximate
    ordered: True if the steps rely on the order of real numbers (``rolled_extremes``)
    """
    problem = compare_module(module, outputs, numbers, seed, most)
    if problem is None or problem.code != "check.not-equal" or type(numbers) is Doubles:
        return problem, numbers
    if asks_order(outputs) and (found := _in_whole_numbers(module, outputs, seed)) is not None:
        return found
    calls = {fn for fns in opaque_combiners(outputs).values() for fn in fns} & numbers.opaque
    if not calls and most is None and not ordered and not joins_by_order(outputs):
        return problem, numbers
    problem = compare_module(module, outputs, Doubles(), seed, most)
    if problem is None and calls & NOT_OF_NEGATIVES:
        problem = compare_module(module, outputs, Doubles(positive=True), seed, most)
    return problem, Doubles()


def _in_whole_numbers(module: Module, outputs: Sequence[Tensor], seed: int) -> tuple[Problem | None, Numbers] | None:
    """Interpret lowered kernels and compare with ``outputs`` on the largest integers computed without rounding, then on
    the smallest: (first Problem or None, numbers used). None if even the smallest integers are rounded.
    """
    for size in INPUT_SIZES:
        numbers = Whole(size)
        problem = compare_module(module, outputs, numbers, seed)
        if numbers.exact_so_far:
            if problem is None and size != INPUT_SIZES[-1]:
                problem = compare_module(module, outputs, Whole(INPUT_SIZES[-1]), seed + 1)
            return problem, numbers
    return None


def argument_names(module: Module, outputs: Sequence[Tensor]) -> list[str]:
    """Kernel parameter names of the declarations' arguments, in their order."""
    by_order = {b.origin.order: b.name for b in module.inputs if b.origin is not None}
    by_order.update({v.order: v.name for v in module.scalars})
    return [by_order[a.order] for a in arguments_of(outputs)]


def over_shapes(
    s: BaseSchedule, shapes: Iterable[dict[Var, int]], seed: int
) -> tuple[list[Problem], list[str], Numbers]:
    """Compare at each of ``shapes`` on which the trace replays, at the declared shape if there are none; stop at the
    first problem. Returns (problems, labels of the compared shapes, least exact numbers used).
    """
    field: Numbers = field_of(s.began_with)
    numbers, shown, ordered = field, list[str](), bool(rolled_extremes(s))
    for module, outputs in _modules(s, shapes):
        name, first = label(outputs), numbers if type(numbers) is Doubles else field
        problem, found = compare_in_turn(module, outputs, first, seed, approximation(s), ordered)
        numbers = numbers if found is field else found
        shown.append(name)
        if problem is not None:
            return [Problem(problem.code, f"{problem.message}, for {name}", problem.at, problem.hint)], shown, numbers
    return [], shown, numbers


def _modules(s: BaseSchedule, shapes: Iterable[dict[Var, int]]) -> Iterator[tuple[Module, tuple[Tensor, ...]]]:
    """Yield (lowered module, outputs) for each of ``shapes`` on which the trace replays, without repeated shapes; if
    there are none, at the schedule's own shape.
    """
    fits, seen, least = False, set[str](), _least_extents(s)[0]
    for extents in shapes:
        fitted = _fitted(s, extents, least, seen)
        if fitted is not None:  # else this trace does not fit that shape (exact splits, fixed factors)
            fits = True
            seen.add(label(fitted[1]))
            yield fitted
    if not fits:
        for extents in [{}, *shapes] if dims_of(s.began_with) else [{}]:
            dims = dim_values(s.began_with, extents)
            yield module_at(lowered(s), dims), with_dims(s.began_with, dims)


def _fitted(
    s: BaseSchedule, extents: dict[Var, int], least: dict[Var, int], seen: Container[str]
) -> tuple[Module, tuple[Tensor, ...]] | None:
    """(module, outputs) of the schedule lowered at ``extents``, or at nearby extents that fit and are cheap to
    interpret; None if there are none or the shape's label is in ``seen``.
    """
    found, tried, ties = None, None, _ties(s.began_with)
    for work in (MOST_ITERATIONS, MOST_ITERATIONS // 8, MOST_ITERATIONS // 64):
        smaller = _shrunk(extents, work, least, ties)
        if smaller == tried:
            break
        tried = smaller
        made = _lowered(s, smaller, least, seen)
        found = made or found
        if made is None or iterations(made[0]) <= STATEMENTS_OF_A_SHAPE:
            break
    return found


def _lowered(
    s: BaseSchedule, extents: dict[Var, int], least: dict[Var, int], seen: Container[str]
) -> tuple[Module, tuple[Tensor, ...]] | None:
    """(module, outputs) of the trace lowered at ``extents``; if refused, with axes rounded up to whole tiles, one at a
    time and then all. None if all fail or the shape's label is in ``seen``.
    """
    up, fits = _whole_tiles(s, extents, least), False
    rounded = [{**extents, v: n} for v, n in up.items() if n != extents[v]]
    for trace in _traces(s):
        for wanted in (extents, *rounded, *([up] if len(rounded) > 1 else [])):
            try:
                dims, resized = dim_values(s.began_with, wanted), definition_at(s, wanted)
                made = None if resized is s.began_with else BaseSchedule(resized, s.target).replay(trace)
                fits = True
                outputs = with_dims(resized, dims)
                if label(outputs) in seen:
                    return None
                return module_at(lowered(s) if made is None else lower(made.program, made.target), dims), outputs
            except LoweringError as e:
                need_own_extents(s, e)
            except TensorIRError:
                continue
        if fits:
            break
    return None


def definition_at(s: BaseSchedule, extents: Mapping[Var, int]) -> tuple[Tensor, ...]:
    """The declarations from before any scheduling step, resized to ``extents``; unchanged where these are the declared
    ones.

    Axes with a symbolic dim keep it: ``dim_values`` turns their extents into values of dims.
    """
    return resize(s.began_with, constant_extents(extents, axes_of(s.began_with)))


def need_own_extents(s: BaseSchedule, refusal: LoweringError) -> None:
    """Return if the schedule lowers at its own extents, so that ``refusal``, raised at other extents, is their matter.

    Raises ``refusal`` itself if it is a fault of lowering, and the schedule's own LoweringError if it does not lower.
    """
    if any(p.code in FAULTS_OF_LOWERING for p in refusal.problems):
        raise refusal
    lowered(s)


def _whole_tiles(s: BaseSchedule, extents: dict[Var, int], least: dict[Var, int]) -> dict[Var, int]:
    """``extents`` rounded up to multiples of their tiles; if an algorithm has a ``least`` extent, only the part beyond
    it is rounded.
    """
    period = {
        v: max((p for p in _periods(s, name, most(as_expr(n))) if p < most(as_expr(n))), default=1)
        for name, (v, n) in axes_of(s.began_with).items()
        if v in extents
    }
    apart = {v: least.get(v, 1) - 1 for v in extents}
    return {v: apart[v] - (apart[v] - n) // period[v] * period[v] for v, n in extents.items()}


def _traces(s: BaseSchedule) -> Iterator[str]:
    """Yield the schedule's trace as JSON; then, if a split has all factors given, once more with the outermost factors
    inferred, to fit other extents.
    """
    yield s.trace.to_json()
    steps, given = json.loads(s.trace.to_json()), False
    for name, args, *_ in steps:
        if name == "split" and None not in args[1]:
            args[1], given = [None, *args[1][1:]], True
    if given:
        yield json.dumps(steps)


# Extents at which a product of matrices that a view makes of other axes has several blocks.
#
# ``s.reindex`` joins axes to the rows and columns of a matrix, whose loops are split. The extents of the joined axes
# are chosen so that there are a little more rows, and columns, than a tile has: else no shape tells one block from
# another.

ROW_BYTES = 16
"""Bytes of which rows are multiples where copies or stores go by vectors."""


def several_blocks(
    steps: Trace, tiles: Mapping[str, Iterable[int]], axes: Mapping[str, tuple[Var, int]], dtypes: Iterable[str],
    shapes: Sequence[Mapping[Var, int]], work: int,
) -> list[dict[Var, int]]:  # fmt: skip
    """Return extra {axis: extent} shapes with several tiles along output axes that have at most one in all of
    ``shapes``; [] if there are no such axes. Axes share one shape, or have one each if that exceeds ``work`` (or none).

    tiles: tile sizes by loop;  axes: variable and declared extent by axis name
    dtypes: element types, for whole vectors in a row;  work: most iterations of one shape
    """
    more = max(1, *(8 * ROW_BYTES // max(8, DTYPES[t].bits) for t in dtypes))
    named = {_last(name): axis for name, axis in axes.items()}
    groups, terms = _tiled(steps, tiles, named, more)
    new = [g for size, g in groups if not any(math.prod(x[v] for v in g) > size for x in shapes)]
    if not new:
        return []
    extents = dict(named.values())
    sums = sorted((v for v in reversed(extents) if v.extent is not None), key=extents.__getitem__, reverse=True)
    for few in (len(sums) + 1, 2, 1):  # the longest sum has a whole tile, of the others there are a few terms
        least = {v: min(n, max(terms, more)) if among(v, sums[:1]) else 1 for v, n in extents.items()}
        least |= {v: min(extents[v], few, k) for k, v in enumerate(reversed(sums[1:]), 2)}
        found = [least | {v: n for g in new for v, n in g.items()}]
        if math.prod(found[0].values()) <= work:
            break
    else:
        found = [x for g in new if math.prod((x := least | g).values()) <= work]
    return [{v: min(n, x[named[_last(name)][0]]) for name, (v, n) in axes.items()} for x in found]


def _tiled(
    steps: Trace, tiles: Mapping[str, Iterable[int]], named: Mapping[str, tuple[Var, int]], more: int
) -> tuple[list[tuple[int, dict[Var, int]]], int]:
    """([(tile size, {axis: extent})], with extents slightly above one tile, for tiled output axes, fused axes jointly;
    largest tile of a reduction axis, at least 1).

    named: axes by the last part of their names;  more: elements added to a tile
    """
    groups, terms, seen = list[tuple[int, dict[Var, int]]](), 1, set[Var]()
    for stage, axis, parts in (*_joined(steps), *(("", name, [name]) for name in named)):
        inside = [named[p] for p in parts if p in named]
        size = max(itertools.chain((1,), *(t for at, t in tiles.items() if _is_of(at, stage, axis))))
        if len(inside) < len(parts) or (not stage and inside[0][0] in seen):
            continue
        if any(v.extent is not None for v, _ in inside):
            terms = max(terms, size) if stage else terms
            continue
        seen |= {v for v, _ in inside}
        extents = _shared(size, [n for _, n in inside], more)
        if 1 < size < math.prod(extents):
            groups.append((size, dict(zip((v for v, _ in inside), extents, strict=True))))
    return groups, terms


def _is_of(loop: str, stage: str, axis: str) -> bool:
    """True if the last part of the name ``loop`` is ``axis`` and its stage is ``stage``; "" stands for any stage."""
    return _last(loop) == axis and loop.startswith(f"{stage}." if stage else "")


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _joined(steps: Trace) -> Iterable[tuple[str, str, Sequence[str]]]:
    """Yield (stage, new axis, its source axes) for each axis made by a ``reindex`` step."""
    for step in steps:
        if step.primitive == "reindex" and "->" in str(step.args[1]):
            for axis, made in re.findall(r"(\w+) = (\([^)]*\)|\w+)(?=,|$|\s*$)", str(step.args[1]).split("->")[1]):
                yield str(step.args[0]).split(".")[0], axis, re.findall(r"\w+", made)


def _shared(tile: int, extents: Sequence[int], more: int) -> list[int]:
    """New extents, one per axis and at most the given one, whose product slightly exceeds ``tile``; for a single axis
    by ``more``. Mainly the last two axes grow.
    """
    if len(extents) == 1:
        return [min(extents[0], tile + more)]
    if not all(extents):
        return list(extents)
    left, out = tile, list[int]()
    for n in reversed(extents):
        most = min(n, max(2, math.isqrt(2 * left))) if len(out) < len(extents) - 1 else n
        out.insert(0, max(d for d in range(1, most + 1) if left % d == 0))
        left //= out[0]
    for x in reversed(range(len(out))):
        room = max(1, min(left, extents[x] // out[x]))
        out[x], left = out[x] * room, -(-left // room)
    longer = next((x for x in reversed(range(len(out))) if out[x] < extents[x]), None)
    if longer is not None:
        out[longer] += 1
    return out
