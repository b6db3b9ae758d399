"""Analysis of how an array index moves with a loop axis: stride, covered box, reuse, vector lanes.

    X[2*i + r, j // 4]      along i: slope (2, 0); along j: no constant slope, but 4 iterations read the same element
                            over i < 8, r < 3: 17 elements of the first dimension, a box of 17

Lowering uses proved facts (``even``, ``comparison``, ``spaced``, with ``arith``'s ranges). Schedules use the definition
(``slope``, ``alike``, ``Group``), with clamping to constants at borders ignored.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

from tensorir.arith.affine import Arith, Linear
from tensorir.arith.point import NotExactError, evaluate
from tensorir.ir.build import as_int
from tensorir.ir.dims import most
from tensorir.ir.tree import Binary, Cast, Const, Expr, Load, Var
from tensorir.ir.visit import Rewriter, find, uses

Step = tuple[int, Linear]
"""The number that an axis adds in each iteration, and the index without it."""

# --- proved


def even(index: Expr, var: Var, arith: Arith) -> Step | None:
    """(step, rest) if ``index == step * var + rest`` with ``rest`` free of ``var``; else None."""
    return arith.linear(index).along(var)


def comparison(cond: Binary, var: Var, arith: Arith) -> Step | None:
    """(step, rest) if ``a - b == step * var + rest`` for a comparison of a and b, with ``rest`` free of ``var``; else
    None.
    """
    return arith.linear(cond.a).plus(arith.linear(cond.b), -1).along(var)


def spaced(loads: Sequence[Load], arith: Arith) -> Step | None:
    """(distance in elements, index of the first load) if load k is at first + k * distance; else None.

    loads: two or more, of flattened arrays
    """
    first = arith.linear(loads[0].index[0])
    away = [arith.linear(x.index[0]).plus(first, -1) for x in loads]
    step = away[1].constant
    return None if any(d.terms or d.constant != k * step for k, d in enumerate(away)) else (step, first)


def start_of(index: Expr, var: Var) -> int:
    """Greatest n for which ``index`` is ``var`` + n * (others); 1 for other forms, ``var`` + a constant among them."""
    found = even(index, var, Arith())
    if found is None or found[0] != 1 or not found[1].terms:
        return 1
    return math.gcd(found[1].constant, *found[1].terms.values())


# --- as a definition says


def dims_along(load: Load, var: Var) -> list[int]:
    """Numbers of the array dimensions whose index depends on ``var``."""
    return [d for d, i in enumerate(load.index) if uses(i, {var})]


def along_last(load: Load, var: Var) -> bool:
    """True if the index of the last dimension, those of extent 1 left out, depends on ``var`` and no other does."""
    wide = [d for d, n in enumerate(load.buffer.shape) if not (isinstance(n, Const) and n.value == 1)]
    return dims_along(load, var) == (wide[-1:] or [len(load.index) - 1])


def alike(load: Load, var: Var) -> int:
    """Number of consecutive iterations of ``var`` that read the same element: 1 if each reads another, 0 if the load
    does not depend on ``var``.
    """
    seen = sum(x is var for i in load.index for x in find(i, Var))
    sizes = _quotients([load], var)
    return sizes[0] if len({*sizes}) == 1 and len(sizes) == seen else min(1, seen)


def grouped(loads: Iterable[Load], var: Var) -> int:
    """n if the loads' indices depend on ``var`` through ``var // n`` with one common n; 1 otherwise. n consecutive
    iterations then read the same element.
    """
    sizes = {*_quotients(loads, var)}
    return sizes.pop() if len(sizes) == 1 else 1


def _quotients(loads: Iterable[Load], var: Var) -> list[int]:
    """Divisors n of all ``var // n`` in the loads' indices."""
    found = (x for load in loads for i in load.index for x in find(i, Binary) if x.op == "//" and x.a is var)
    return [as_int(x.b) for x in found if isinstance(x.b, Const)]


def slope(e: Expr, var: Var) -> int | None:
    """Change of ``e`` if ``var`` increases by 1, clamps to constants ignored; None if it is not constant."""
    if not uses(e, {var}):
        return 0
    match e:
        case Var():
            return 1
        case Cast():
            return slope(e.a, var)
        case Binary(op="+" | "-"):
            a, b = slope(e.a, var), slope(e.b, var)
            return None if a is None or b is None else a + (b if e.op == "+" else -b)
        case Binary(op="*") if isinstance(e.b, Const):
            a = slope(e.a, var)
            return None if a is None else a * as_int(e.b)
        case Binary(op="*") if isinstance(e.a, Const):
            b = slope(e.b, var)
            return None if b is None else b * as_int(e.a)
        case Binary(op="min" | "max") if e.dtype == "index" and isinstance(e.b, Const):
            return slope(e.a, var)
        case Binary(op="min" | "max") if e.dtype == "index" and isinstance(e.a, Const):
            return slope(e.b, var)
    return None


def first_step(shape: Sequence[int], index: Sequence[Expr], var: Var) -> int | None:
    """Distance in elements between the accesses of iterations 0 and 1 of ``var`` to a row-major array, other
    variables at 0; None if it depends on data.
    """
    ends = []
    for n in (0, 1):
        at, cell = 0, {v: n if v is var else 0 for i in index for v in find(i, Var)}
        for i, extent in zip(index, shape, strict=True):
            try:
                at = at * extent + int(evaluate(i, cell) if uses(i, {var}) else 0)
            except NotExactError:
                return None
        ends.append(at)
    return ends[1] - ends[0]


MOST_WRAPS = 2
"""Maximum places along an axis where a remainder begins anew for a border; more are a pattern of its own."""


def wraps(loads: Iterable[Load], var: Var, extent: int) -> list[int]:
    """Indices along ``var`` from 1 to ``extent - 1`` where a remainder or quotient of a load's index has another whole
    part than one before, as at the border of a periodic image: ``X[(j + 1) % n]``   ->   n - 1.
    """
    found = set[int]()
    for x in {i for load in loads for index in load.index for i in find(index, Binary) if i.op in ("%", "//")}:
        form = Arith().linear(x.a) if isinstance(x.b, Const) and x.b.value > 0 else Linear({}, 0)
        if set(form.terms) == {var}:
            part = [(form.terms[var] * n + form.constant) // as_int(x.b) for n in (0, extent - 1)]
            if abs(part[1] - part[0]) <= MOST_WRAPS:
                whole = [(form.terms[var] * n + form.constant) // as_int(x.b) for n in range(extent)]
                found |= {n for n in range(1, extent) if whole[n] != whole[n - 1]}
    return sorted(found)


class _Unclamped(Rewriter):
    """Rewriter that drops min and max with constants: indices as they are away from the borders."""

    def on_Binary(self, n: Binary) -> Expr:
        if n.op in ("min", "max") and n.dtype == "index" and isinstance(n.b, Const):
            return self(n.a)  # type: ignore[no-any-return]
        if n.op in ("min", "max") and n.dtype == "index" and isinstance(n.a, Const):
            return self(n.b)  # type: ignore[no-any-return]
        return self.children(n)


class Group:
    """Loads of one array whose indices differ by constants only.

    load, forms: the first load and the linear forms of its indices;  count: loads added
    constants: per dimension, the constants in the indices of all
    """

    def __init__(self, load: Load, forms: Sequence[Linear]) -> None:
        self.load, self.forms, self.count = load, forms, 0
        self.constants: list[set[int]] = [set() for _ in forms]

    def add(self, forms: Sequence[Linear]) -> None:
        """Add a load, given by the linear forms of its indices."""
        self.count += 1
        for known, form in zip(self.constants, forms, strict=True):
            known.add(form.constant)

    def places(self, sizes: Mapping[Var, int]) -> int:
        """Number of distinct elements that the loads read while each axis of ``sizes`` runs over so many iterations."""
        return math.prod(_values(f, c, sizes) for f, c in zip(self.forms, self.constants, strict=True))

    def shared(self, terms: Mapping[Var, int], var: Var, count: int = 2) -> bool:
        """True if ``count`` neighbouring iterations of ``var`` read common elements.

        terms: {axis: iterations} that run within each iteration of ``var``
        """
        return self.places({**terms, var: count}) < count * self.places(terms)

    def box(self, sizes: Mapping[Var, int]) -> list[int]:
        """Extent per dimension of the bounding box of the elements read while each axis of ``sizes`` runs over so many
        iterations.
        """
        spans = ((f, max(c) - min(c)) for f, c in zip(self.forms, self.constants, strict=True))
        return [1 + more + sum(_span(x, k, sizes) for x, k in f.terms.items()) for f, more in spans]

    def slopes(self, var: Var) -> list[int | None]:
        """Per dimension, the change of the index if ``var`` increases by 1; None where it is not constant."""
        return [slope(index, var) for index in self.load.index]

    def step(self, var: Var) -> int | None:
        """Distance in memory, in elements of the row-major array, between the accesses of neighbouring iterations of
        ``var``; None if it is not constant.
        """
        pitch, total = 1, 0
        for found, extent in zip(reversed(self.slopes(var)), reversed(self.load.buffer.shape), strict=True):
            if found is None:
                return None
            total, pitch = total + found * pitch, pitch * most(extent)
        return total


def groups(loads: Iterable[Load], arith: Arith) -> list[Group]:
    """The loads grouped by array and by indices equal up to constants, clamps ignored; scalars are left out."""
    found: dict[Hashable, Group] = {}
    for x in loads:
        forms = tuple(arith.linear(_Unclamped()(i)) for i in x.index)
        if forms:
            key = x.buffer, tuple(tuple(sorted((t, str(k)) for k, t in f.terms.items())) for f in forms)
            found.setdefault(key, Group(x, forms)).add(forms)
    return list(found.values())


def _values(form: Linear, constants: Iterable[int], sizes: Mapping[Var, int]) -> int:
    """Number of distinct values of ``form`` plus any of ``constants``, while each axis of ``sizes`` runs over so many
    iterations.
    """
    found, apart = set(constants), 1
    for atom, factor in form.terms.items():
        if not isinstance(atom, Var):
            apart *= _parts(atom, sizes)
        elif (n := sizes.get(atom, 1)) > 1:
            found = {x + factor * y for x in found for y in range(n)}
    return len(found) * apart


def _parts(atom: Expr, sizes: Mapping[Var, int]) -> int:
    """Number of distinct values of a non-linear atom such as a quotient, at most."""
    n = math.prod(size for v, size in sizes.items() if size > 1 and uses(atom, {v}))
    if isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
        return -(-n // max(1, as_int(atom.b)))
    return n


def _span(atom: Expr, factor: int, sizes: Mapping[Var, int]) -> int:
    """Largest minus smallest value of ``factor * atom``, while each axis of ``sizes`` runs over so many iterations."""
    return abs(factor) * ((sizes.get(atom, 1) if isinstance(atom, Var) else _parts(atom, sizes)) - 1)
