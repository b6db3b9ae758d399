"""``Arith``: facts about index expressions, as linear forms, intervals, proofs and simplification.

A linear form is ``sum(coefficient * atom) + constant``. An atom is a variable, or something no rule resolves (a
``//`` or ``%`` with a remainder that may wrap, a product of variables, a load), kept as an expression and made unique
by its structure. Integers only; ``//`` and ``%`` are floor division and its remainder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from tensorir.arith.conditions import conjuncts, contrary, negate
from tensorir.arith.linear import UNKNOWN as UNKNOWN
from tensorir.arith.linear import FormMemo, Ranges, low_bits, within_bits
from tensorir.arith.linear import Interval as Interval
from tensorir.arith.linear import Linear as Linear
from tensorir.ir.build import BITS, SHIFTS, as_int, binary, cast, const, select, unary
from tensorir.ir.dtypes import DTYPES, is_float
from tensorir.ir.node import ALL_NAMES, DIMS, STEP, Node
from tensorir.ir.shared import once, steps
from tensorir.ir.structure import same as same
from tensorir.ir.structure import structure as structure
from tensorir.ir.tree import Binary, Broadcast, Buffer, Cast, Const, Expr, Load, Pack, Select, Unary, Var
from tensorir.ir.visit import Rewriter, find, has

N = TypeVar("N", bound=Node)

CHAIN = 3
"""Facts about dims used one after another in a proof, and nested selects whose conditions are assumed, at most."""


def _multiples(form: Linear, fact: Linear) -> set[int]:
    """Multipliers with which adding ``fact`` to ``form`` may help a proof: 1, and those that cancel a common term."""
    return {1} | {form.terms[t] // c for t, c in fact.terms.items() if form.terms.get(t, 0) // c > 0}


class Arith:
    """Facts at one point of a program: variable ranges and conditions that hold; derives bounds and proofs.

    ranges: {variable: inclusive bounds}
    facts:  linear forms known to be <= 0
    tight:  tighter bounds of variables, derived from the facts
    known:  other conditions that hold, by structure (comparisons of data)
    near:   tighter bounds of loaded data, derived from comparisons
    elements: function from an array to the bounds of its elements; None: unknown
    """

    elements: Callable[[Buffer], Interval] | None = None
    inside = 0
    """Nesting depth of the selects whose conditions are assumed."""

    def __init__(self, ranges: Mapping[Var, Interval] | None = None, assume: Iterable[Expr] = ()) -> None:
        self.ranges = Ranges(ranges or {})
        self.facts: list[Linear] = []
        self.tight: dict[Var, Interval] = {}
        self.near: dict[Expr, Interval] = {}
        self.known: frozenset[Any] = frozenset()
        self.divisors: dict[Var, int] = {}  # variables known to be multiples
        self._atoms: dict[Any, Expr] = {}
        self._tall = False
        self._forget()
        for cond in assume:
            self.assume(cond)

    def child(self, ranges: Mapping[Var, Interval] | None = None, assume: Iterable[Expr] = ()) -> Arith:
        """A copy, extended by ``ranges`` of variables and by conditions to ``assume``; this Arith stays unchanged."""
        new = object.__new__(Arith)
        new.__dict__.update(self.__dict__)
        new.facts = list(self.facts)
        if ranges:
            new.ranges = Ranges({**self.ranges, **ranges})
            new._forget()
        for cond in assume:
            new.assume(cond)
        return new

    def _forget(self) -> None:
        """Start with empty memos."""
        self._seen = len(self.ranges.changes)  # of the changes of ranges
        self._general, self._special, self._assumed = FormMemo(), FormMemo(), 0

    def _learn(self, bits: int) -> None:
        """Drop the results memoized for expressions that hold some of ``bits``: an assumption about these is new."""
        self._special, self._assumed = FormMemo(), self._assumed | bits

    def _memo(self, holds: int) -> FormMemo:
        """Memo for expressions with these bits: the one that assumptions leave unchanged, if none is about them."""
        if self._seen != len(self.ranges.changes):
            bits = 0
            for changed in self.ranges.changes[self._seen :]:
                bits |= changed
            self._general, self._special = self._general.without(bits), self._special.without(bits)
            self._seen = len(self.ranges.changes)
        return self._special if holds & self._assumed else self._general

    def assume(self, cond: Expr) -> None:
        """Add to this Arith the facts that ``cond`` implies."""
        for c in conjuncts(cond):
            form = self.at_most_zero(c)
            if form is not None:
                self.facts += [form, *self._in_whole(form)]
                self._tighten(form)
            elif isinstance(c, Binary) and c.op == "==" and c.a.dtype == c.b.dtype == "index":
                self.assume(binary("<=", c.a, c.b))
                self.assume(binary("<=", c.b, c.a))
            elif isinstance(c, Binary) and c.op == "!=" and c.a.dtype == c.b.dtype == "index":
                self._one_of(binary("<", c.a, c.b), binary("<", c.b, c.a))
            elif isinstance(c, Binary) and c.op == "or":
                self._one_of(c.a, c.b)
            elif isinstance(c, Binary) and c.op in ("<", "<=", "==") and has(c, Load):
                self._compare_data(c)
            elif isinstance(c, Unary) and c.op == "not" and (opposite := negate(c.a)) is not None and has(c, Load):
                self.assume(opposite)
            if form is None and (has(c, Load) or (isinstance(c, Binary) and c.op == "or")):
                self.known |= {structure(c)}

    def _compare_data(self, c: Binary) -> None:
        """Add the bounds that a comparison of loaded integers implies."""
        if any(DTYPES[x.dtype].kind not in "iu" for x in (c.a, c.b)):
            return
        a, b, strict = self.range(c.a), self.range(c.b), int(c.op == "<")
        self._bring_near(c.a, (b[0] if c.op == "==" else -math.inf, b[1] - strict))
        self._bring_near(c.b, (a[0] + strict, a[1] if c.op == "==" else math.inf))

    def _bring_near(self, e: Expr, bounds: Interval) -> None:
        while isinstance(e, Cast) and _keeps(e):
            e = e.a
        if find(e, Load) and bounds != UNKNOWN:
            atom = self._atom(e)
            old = self.near.get(atom, UNKNOWN)
            self.near = {**self.near, atom: (max(old[0], bounds[0]), min(old[1], bounds[1]))}
            self._learn(Load.BIT)

    def _one_of(self, a: Expr, b: Expr) -> None:
        """Given that ``a or b`` holds: assume one of them if the other is disproved."""
        for one, other in ((a, b), (b, a)):
            if self.disproves(one):
                self.assume(other)

    def _in_whole(self, form: Linear) -> list[Linear]:
        """Facts implied by ``form <= 0``, of terms with a common factor: 64*t + i >= 128, i < 64   ->   t >= 2."""
        out = []
        for g in {abs(c) for c in form.terms.values()} - {1}:
            whole = Linear({t: c // g for t, c in form.terms.items() if c % g == 0}, form.constant // g)
            rest = Linear({t: c for t, c in form.terms.items() if c % g}, form.constant % g)
            low, high = self.range_of(rest)
            if rest.terms and high - low < g:
                out.append(Linear(whole.terms, whole.constant + math.ceil(low / g)))
        return out

    def _tighten(self, form: Linear) -> None:
        if len(form.terms) == 1:
            ((v, c),) = form.terms.items()
            if isinstance(v, Var):
                low, high = self._atom_range(v)
                end = -form.constant / c  # c * v + constant <= 0
                new = (low, min(high, math.floor(end))) if c > 0 else (max(low, math.ceil(end)), high)
                self.tight = {**self.tight, v: new}
                self._learn(v.holds & ALL_NAMES)

    # --- linear forms

    def linear(self, e: Expr) -> Linear:
        """``e`` as a linear form ``sum(c * atom) + constant``; atoms are variables and non-linear subexpressions."""
        if isinstance(e, Const):
            return Linear({}, int(e.value))
        if isinstance(e, Var):
            low, high = self.ranges[e]
            return Linear({}, int(low)) if low == high else Linear({e: 1}, 0)
        forms = self._memo(e.holds).forms
        form = forms.get(e)
        if form is None:
            if not self._tall and e.height > STEP:
                self._tall = True
                try:
                    for x in steps(e, lambda x: x in self._memo(x.holds).forms):
                        self.linear(x)  # type: ignore[arg-type]
                    form = forms[e] = self._found(e)
                finally:
                    self._tall = False
            else:
                form = forms[e] = self._found(e)
        return form

    def normal(self, e: Expr) -> Expr:
        """``e`` in normal form: its linear form as an expression."""
        return self.written(self.linear(e))

    def written(self, form: Linear) -> Expr:
        """A linear form of this Arith as an expression, memoized as the form of that expression."""
        made = form.expr()
        if type(made) is Binary and next(iter(form.terms.values())) > 0:  # a sum begins with what is added
            self._memo(made.holds).forms.setdefault(made, form)
        return made

    def _found(self, e: Expr) -> Linear:
        if isinstance(e, Binary):
            found = self._binary(e)
            if found is not None and self._fits(found, e.dtype):
                return found
        if isinstance(e, Unary) and e.op == "-":
            found = self.linear(e.a).times(-1)
            if self._fits(found, e.dtype):
                return found
        if isinstance(e, Cast) and DTYPES[e.dtype].kind in "iu" and e.a.dtype == "index":
            found = self.linear(e.a)
            if self._fits(found, e.dtype):
                return found
        if isinstance(e, Cast) and e.dtype == "index" and DTYPES[e.a.dtype].kind in "iu":
            found = self.linear(e.a)
            if all(t.dtype == "index" for t in found.terms):  # arithmetic of axes in a wider type
                return found
        return Linear({self._atom(e): 1}, 0)

    def _fits(self, form: Linear, dtype: str) -> bool:
        """True if values of ``form`` provably fit in ``dtype``, without wrapping around; always for "index"."""
        if dtype == "index":
            return True
        low, high = self.range_of(form)
        return DTYPES[dtype].low <= low and high <= DTYPES[dtype].high

    def _binary(self, e: Binary) -> Linear | None:
        op = e.op
        if op == "+" or op == "-":
            return self._sum(e)
        if op == "*":
            a, b = self.linear(e.a), self.linear(e.b)
            if not b.terms:
                return a.times(b.constant)
            if not a.terms:
                return b.times(a.constant)
            return Linear({self._atom(binary("*", a.expr(), b.expr())): 1}, 0)
        if op in ("//", "%"):
            b = self.linear(e.b)
            if not b.terms and b.constant > 0:
                return self._divide(self.linear(e.a), b.constant, op)
        if op in BITS and e.dtype == "index":
            return self._bits(op, self.linear(e.a), self.linear(e.b))
        if op in ("min", "max"):
            a, b = self.linear(e.a), self.linear(e.b)
            lo, hi = self.range_of(a.plus(b, -1))
            if hi <= 0:
                return a if op == "min" else b
            if lo >= 0:
                return b if op == "min" else a
            return Linear({self._atom(binary(op, a.expr(), b.expr())): 1}, 0)
        return None

    def _bits(self, op: str, a: Linear, b: Linear) -> Linear:
        """``a op b`` on bits, apart for low and high ones: ``(8*i + j) ^ 17  ->  8*(i ^ 2) + (j ^ 1)`` for j < 8."""
        a, b = (a, b) if a.terms else (b, a)
        if not b.terms and not b.constant:
            return b if op == "&" else a
        found = None if b.terms or b.constant < 0 else low_bits(a, self.range_of)
        if found is not None:
            high, low, size = found
            upper, lower = divmod(b.constant, size)
            done = self._bits(op, high, Linear({}, upper)).times(size)
            return done.plus(self._bits(op, low, Linear({}, lower)))
        made = binary(op, a.expr(), b.expr())
        kept = isinstance(made, Binary) and made.op == op  # not 0 | x
        return Linear({self._atom(made): 1}, 0) if kept else self.linear(made)

    def _sum(self, e: Binary) -> Linear:
        """Linear form of a sum, built term by term without recursion."""
        sums: list[Binary] = [e]
        while isinstance(x := sums[-1].a, Binary) and x.op in ("+", "-") and x.dtype == "index":
            if x in self._memo(x.holds).forms:
                break
            sums.append(x)
        return self.total([(x, 1), *[(s.b, 1 if s.op == "+" else -1) for s in reversed(sums)]])

    def total(self, parts: Iterable[tuple[Expr, int]]) -> Linear:
        """Linear form of a sum of multiples of indices, ``n * e`` for each pair (e, n)."""
        total, rests = Linear({}, 0), False
        for term, scale in parts:
            if type(term) is Binary and term.op == "*" and type(term.b) is Const and term.dtype == "index":
                scale *= int(term.b.value)
                term = term.a
            if type(term) is Const:
                total.constant += scale * int(term.value)
                continue
            if type(term) is Var:
                low, high = self.ranges[term]
                if low == high:
                    total.constant += scale * int(low)
                else:
                    total.put(term, scale)
            else:
                form = self.linear(term)
                total.add(form, scale)
                rests = rests or form.rests()
            if rests:
                total = self._merge(total)
        return total

    def _divide(self, a: Linear, c: int, op: str) -> Linear:
        """Linear form of ``a // c`` or ``a % c`` (``op``): terms that are multiples of c are divided, the rest is
        resolved if its range allows.
        """
        a = self._factored(a, c)
        whole = Linear({t: k // c for t, k in a.terms.items() if k % c == 0}, a.constant // c)
        rest = Linear({t: k for t, k in a.terms.items() if k % c}, a.constant % c)
        lo, hi = self.range_of(rest)
        if lo > -math.inf and hi < math.inf and lo // c == hi // c:
            step = int(lo // c)
            return (
                Linear(whole.terms, whole.constant + step)
                if op == "//"
                else Linear(rest.terms, rest.constant - step * c)
            )
        if -math.inf < lo < 0 <= self.range_of(a)[0]:  # C divides what is not negative as Python does
            up = -int(lo // c)
            rest, whole = Linear(rest.terms, rest.constant + up * c), Linear(whole.terms, whole.constant - up)
        for g in sorted({math.gcd(c, k) for k in rest.terms.values()} - {1, c}, reverse=True):
            # (g*x + r) // (g*d) == x // d and (g*x + r) % (g*d) == g*(x % d) + r for 0 <= r < g
            x = Linear({t: k // g for t, k in rest.terms.items() if k % g == 0}, rest.constant // g)
            r = Linear({t: k for t, k in rest.terms.items() if k % g}, rest.constant % g)
            low, high = self.range_of(r)
            if low >= 0 and high < g:
                small = self._divide(x, c // g, op)
                return whole.plus(small) if op == "//" else small.times(g).plus(r)
        atom = self._atom(binary(op, rest.expr(), c))
        one = Linear({atom: 1}, 0)
        return whole.plus(one) if op == "//" else one

    def _factored(self, form: Linear, c: int) -> Linear:
        """``min(c*x, c*y) -> c * min(x, y)`` for the terms that c then divides; max likewise."""
        for t, k in form.terms.items():
            if k % c and isinstance(t, Binary) and t.op in ("min", "max"):
                sides = [self.linear(x) for x in (t.a, t.b)]
                n = math.gcd(*(m for s in sides for m in (s.constant, *s.terms.values())))
                if n > 1 and k * n % c == 0:
                    parts = (Linear({x: m // n for x, m in s.terms.items()}, s.constant // n).expr() for s in sides)
                    form = form.plus(Linear({t: k}, 0), -1).plus(Linear({self._atom(binary(t.op, *parts)): k * n}, 0))
        return form

    def _merge(self, form: Linear) -> Linear:
        """``form``, simplified by ``c * (x // c) + x % c   ->   x``, also for x = y // b, where x // c is written y //
        (b * c).
        """
        for m, k in form.terms.items():
            if isinstance(m, Binary) and m.op == "%" and isinstance(m.b, Const):
                d = next((d for d, n in form.terms.items() if n == k * as_int(m.b) and self._whole_of(d, m)), None)
                if d is not None:
                    rest = Linear({t: q for t, q in form.terms.items() if t is not m and t is not d}, form.constant)
                    return self._merge(rest.plus(self.linear(m.a), k))
        return form

    def _whole_of(self, d: Expr, m: Binary) -> bool:
        """True if ``d`` equals ``m.a // m.b`` for the remainder ``m`` = ``m.a % m.b``."""
        if not isinstance(d, Binary) or d.op != "//" or not isinstance(d.b, Const):
            return False
        found = self._memo(d.holds | m.holds).quotients
        if (d, m) not in found:
            found[d, m] = self._divides(d, m)
        return found[d, m]

    def _divides(self, d: Binary, m: Binary) -> bool:
        """True if the quotient ``d`` by a constant equals ``m.a // m.b`` for the remainder ``m``."""
        c, whole = as_int(m.b), as_int(d.b)
        if whole > 0 and whole % c == 0:
            inner = self.linear(d.a) if whole == c else self._divide(self.linear(d.a), whole // c, "//")
            if inner.same(self.linear(m.a)):
                return True
        form = self.linear(m.a)
        for t, k in form.terms.items():  # (x + y // b) // c == (b * x + y) // (b * c)
            if k == 1 and isinstance(t, Binary) and t.op == "//" and isinstance(t.b, Const) and as_int(t.b) > 0:
                b = as_int(t.b)
                flat = form.plus(Linear({t: 1}, 0), -1).times(b).plus(self.linear(t.a))
                if self._divide(flat, b * c, "//").same(Linear({d: 1}, 0)):
                    return True
        return False

    def _atom(self, e: Expr) -> Expr:
        return self._atoms.setdefault(structure(e), e)

    def is_multiple(self, e: Expr, n: int) -> bool:
        """True if every value of ``e`` is provably a multiple of ``n``."""
        form = self.linear(e)
        divisors = self.divisors
        return form.constant % n == 0 and all(
            (c * divisors.get(t, 1) if isinstance(t, Var) else c) % n == 0 for t, c in form.terms.items()
        )

    # --- ranges

    def range_of(self, form: Linear) -> Interval:
        """(lowest, highest) value of a linear form, inclusive, from the ranges of its atoms."""
        lo = hi = float(form.constant)
        for atom, c in form.terms.items():
            a, b = self._atom_range(atom)
            if c > 0:
                lo, hi = lo + c * a, hi + c * b
            else:
                lo, hi = lo + c * b, hi + c * a
        return lo, hi

    def bounds(self, form: Linear) -> Interval:
        """(lowest, highest) value of a linear form, by facts about several of its variables as well."""
        low, high = self.range_of(form)
        for f in self.facts:  # f <= 0, so that form + f <= form <= form - f
            low = max(low, self.range_of(form.plus(f))[0])
            high = min(high, self.range_of(form.plus(f, -1))[1])
        return low, high

    def range(self, e: Expr) -> Interval:
        """(lowest, highest) value of an expression, inclusive; infinite if unknown."""
        return self.range_of(self.linear(e))

    def _atom_range(self, e: Expr) -> Interval:
        if self.near and (near := self.near.get(e)) is not None:
            low, high = self._by_parts(e)
            return max(low, near[0]), min(high, near[1])
        return self._by_parts(e)

    def _by_parts(self, e: Expr) -> Interval:
        if isinstance(e, Var):
            known, near = self.ranges[e], self.tight.get(e, UNKNOWN)
            if known is UNKNOWN and e.bounds is not None:
                known = e.bounds
            return max(known[0], near[0]), min(known[1], near[1])
        bounds = self._memo(e.holds).bounds
        found = bounds.get(e)
        if found is None:
            found = bounds[e] = self._range_inside(e)
        return found

    def _range_inside(self, e: Expr) -> Interval:
        if isinstance(e, Binary):
            if e.op in BITS or e.op in SHIFTS:
                return within_bits(e.op, self._of_type(e.a), self._of_type(e.b), e.dtype)
            if e.op in ("//", "%"):
                return self._divided(e)
            a, b = self.range(e.a), self.range(e.b)
            if e.op == "min":
                return min(a[0], b[0]), min(a[1], b[1])
            if e.op == "max":
                return max(a[0], b[0]), max(a[1], b[1])
            if e.op == "*":
                ends = [_times(p, q) for p in a for q in b]
                low, high = min(ends), max(ends)
                own = DTYPES[e.dtype]
                wraps = e.dtype != "index" and own.kind in "iu" and (low < own.low or high > own.high)
                return (own.low, own.high) if wraps else (low, high)
        if isinstance(e, Select):
            a, b = self._sides(e)
            return min(a[0], b[0]), max(a[1], b[1])
        if isinstance(e, Broadcast | Pack):
            lows, highs = zip(*map(self.range, e.children()), strict=True)
            return min(lows), max(highs)
        kind = DTYPES[e.dtype]
        if isinstance(e, Load) and self.elements is not None:
            return self.elements(e.buffer)
        if isinstance(e, Unary) and e.op == "~":
            low, high = self._of_type(e.a)
            return (-1 - high, -1 - low) if kind.kind == "i" else (kind.high - high, kind.high - low)
        if isinstance(e, Cast) and DTYPES[e.a.dtype].kind in "iub":
            low, high = self.range(e.a) if e.a.dtype != "bool" else (0, 1)
            if e.dtype == "index" or (kind.kind in "iu" and kind.low <= low and high <= kind.high):
                return low, high
        if kind.kind in "iu" and kind.bits < 32:
            return kind.low, kind.high
        return UNKNOWN

    def _sides(self, e: Select) -> tuple[Interval, Interval]:
        """(bounds of the value if true, bounds of the value if false) of a select, each knowing the condition."""
        if self.elements is None or self.inside >= CHAIN or not find(e.cond, Load):
            return self.range(e.a), self.range(e.b)
        one, other = self.child(assume=[e.cond]), self.child(assume=[contrary(e.cond)])
        for side in (one, other):
            side.inside = self.inside + 1
            side._forget()
        return one.range(e.a), other.range(e.b)

    def _divided(self, e: Binary) -> Interval:
        """Bounds of a quotient or remainder; unbounded unless the divisor is positive, and where nothing can hold."""
        (low, high), (least, most) = self.range(e.a), self.range(e.b)
        if not 0 < least <= most or is_float(e.dtype):
            return UNKNOWN
        if e.op == "%":
            return 0, min(most - 1, high) if low >= 0 else most - 1
        ends = [_floor(x, c) for x in (low, high) for c in (least, most)]
        return min(ends), max(ends)

    def _of_type(self, e: Expr) -> Interval:
        """Bounds of an integer, at most those of its dtype; index expressions have no dtype bounds."""
        low, high = self.range(e)
        kind = DTYPES[e.dtype]
        return (low, high) if e.dtype == "index" else (max(low, kind.low), min(high, kind.high))

    def shifts_plainly(self, e: Binary) -> bool:
        """True if the count of the shift ``e`` is provably at least 0 and less than the type's width, where C and NumPy
        agree.
        """
        low, high = self._of_type(e.b)
        return low >= 0 and high < (64 if e.dtype == "index" else DTYPES[e.dtype].bits)

    @once
    def nonzero(self, e: Expr) -> bool:
        """True if the integer ``e`` is provably never 0."""
        low, high = self._of_type(e)
        if low > 0 or high < 0:
            return True
        if isinstance(e, Binary) and e.op == "|":
            return self.nonzero(e.a) or self.nonzero(e.b)
        if isinstance(e, Select):
            return self.nonzero(e.a) and self.nonzero(e.b)
        if isinstance(e, Cast):  # to as many bits or more none is lost
            old, new = DTYPES[e.a.dtype], DTYPES[e.dtype]
            return old.kind in "iu" and new.bits >= old.bits and self.nonzero(e.a)
        return isinstance(e, Unary) and e.op == "-" and self.nonzero(e.a)

    def divides_plainly(self, e: Binary) -> bool:
        """True if both operands of ``//`` or ``%`` are provably nonnegative, so that C and Python agree."""
        return self._of_type(e.a)[0] >= 0 and self._of_type(e.b)[0] >= 0

    # --- proofs

    def proves(self, cond: Expr) -> bool:
        """True if ``cond`` provably holds; False if it fails or is unknown."""
        if isinstance(cond, Const):
            return bool(cond.value)
        if self.known and structure(cond) in self.known:
            return True
        if isinstance(cond, Binary) and cond.op == "and":
            return self.proves(cond.a) and self.proves(cond.b)
        if isinstance(cond, Binary) and cond.op == "or":
            return self.proves(cond.a) or self.proves(cond.b)
        if isinstance(cond, Binary) and cond.op == "==":
            return self.proves(binary("<=", cond.a, cond.b)) and self.proves(binary("<=", cond.b, cond.a))
        if isinstance(cond, Binary) and cond.op == "!=":
            return self.proves(binary("<", cond.a, cond.b)) or self.proves(binary("<", cond.b, cond.a))
        form = self.at_most_zero(cond)
        return form is not None and self._at_most(form)

    def disproves(self, cond: Expr) -> bool:
        """True if ``cond`` provably fails; False if it holds or is unknown."""
        negated = negate(cond)
        return negated is not None and self.proves(negated)

    def _at_most(self, form: Linear, used: tuple[int, ...] = ()) -> bool:
        if self.range_of(form)[1] <= 0:
            return True
        if any(self.range_of(form.plus(f, -k))[1] <= 0 for f in self.facts for k in _multiples(form, f)):
            return True
        dims = [v for v in form.terms if isinstance(v, Var) and v.bounds]
        for n, f in enumerate(self.facts if len(dims) > 1 and len(used) < CHAIN else ()):  # i + k < n + t - 1
            for v in dims if n not in used else ():  # each once: a <= b <= a would have no end
                less = form.plus(f, -form.terms[v] // f.terms[v]) if v in f.terms else form
                if v not in less.terms and form.terms[v] * f.terms[v] > 0 and self._at_most(less, (*used, n)):
                    return True
        for atom, k in form.terms.items():  # min(a, n - 1) is at most either, which ranges of dims do not say
            inner = _plain(atom)
            if isinstance(inner, Binary) and inner.holds & DIMS:
                rest = Linear({t: n for t, n in form.terms.items() if t is not atom}, form.constant)
                if self._held(inner, k, rest):
                    return True
        if not self.facts:
            return False
        # m - x // c <= 0 is as much as m*c - x <= 0, and x // c + m <= 0 as x + m*c - c + 1 <= 0
        for atom, k in form.terms.items():
            if abs(k) == 1 and isinstance(atom, Binary) and atom.op == "//" and isinstance(atom.b, Const):
                c, x = as_int(atom.b), self.linear(atom.a)
                m = Linear({t: n for t, n in form.terms.items() if t is not atom}, form.constant).times(c)
                return c > 0 and self._at_most(x.times(k).plus(m).plus(Linear({}, 0 if k < 0 else 1 - c)))
        return False

    def _held(self, atom: Binary, k: int, rest: Linear) -> bool:
        """True if ``rest + k * atom <= 0`` follows from a bound on ``atom``, a remainder, minimum or maximum."""
        if atom.op == "%" and k > 0 and self.range(atom.b)[0] > 0:
            return self._at_most(rest.plus(self.linear(atom.b).plus(Linear({}, -1)), k))
        if atom.op not in ("min", "max"):
            return False
        one = any if (atom.op == "min") is (k > 0) else all
        return one(self._at_most(rest.plus(self.linear(e), k)) for e in (atom.a, atom.b))

    def at_most_zero(self, cond: Expr) -> Linear | None:
        """The linear form f with ``cond`` equivalent to f <= 0; None unless it compares indices by ``<`` or ``<=``."""
        if isinstance(cond, Unary) and cond.op == "not":
            inner = negate(cond.a)
            return self.at_most_zero(inner) if inner is not None else None
        if not isinstance(cond, Binary) or cond.op not in ("<", "<="):
            return None
        if cond.a.dtype != "index" or cond.b.dtype != "index":
            return None  # data wraps around: X - 1 < X is not always so
        form = self.linear(cond.a).plus(self.linear(cond.b), -1)
        return Linear(form.terms, form.constant + 1) if cond.op == "<" else form

    # --- rewriting

    def simplify(self, e: N) -> N:
        """``e`` with index arithmetic in normal form and provable conditions replaced by constants."""
        if isinstance(e, Binary) and e.dtype == "index":
            made: Any = self.normal(e)
            return made  # type: ignore[no-any-return]
        return _Simplify(self)(e)  # type: ignore[no-any-return]

    @once
    def decided(self, cond: Expr) -> Expr:
        """``cond`` with its provable parts replaced by constants, other parts unchanged."""
        if isinstance(cond, Binary) and cond.op in ("and", "or"):
            return self.settled(binary(cond.op, self.decided(cond.a), self.decided(cond.b)))
        if isinstance(cond, Binary) and cond.a.dtype == "index":
            return self.simplify(cond)
        return self.settled(cond)

    def settled(self, e: Expr) -> Expr:
        """Constant true or false if the condition ``e`` or its negation was assumed; else ``e``."""
        if self.known and e.dtype == "bool" and not isinstance(e, Const):
            for cond, value in ((e, True), (contrary(e), False)):
                if structure(cond) in self.known:
                    return const(value, "bool")
        return e


class Knowing(Rewriter):
    """Rewriter of expressions that knows a select's condition while it rewrites the select's sides."""

    def __init__(self, arith: Arith) -> None:
        self.arith = arith

    def where(self, n: Select, cond: Expr) -> Self:
        """This rewriter with ``cond`` assumed, for the true side of a select."""

        def learn(inside: Self) -> None:
            inside.arith = self.arith.child(assume=[cond])

        return self.on_side(n.cond, False, learn)


class _Simplify(Knowing):
    def on_Binary(self, n: Binary) -> Expr:
        if n.op in ("<", "<=", "==", "!=") and n.a.dtype == "index" and n.b.dtype == "index":
            if self.arith.proves(n):
                return const(True, "bool")
            if self.arith.disproves(n):
                return const(False, "bool")
            return self._compare(n)
        if n.dtype == "index":
            return self.arith.normal(n)
        a, b = self(n.a), self(n.b)
        return self.arith.settled(n if a is n.a and b is n.b else binary(n.op, a, b))

    def on_Load(self, n: Load) -> Expr:
        return self.arith.settled(self.children(n))

    def on_Unary(self, n: Unary) -> Expr:
        a = self(n.a)
        return n if a is n.a else unary(n.op, a)

    def _compare(self, n: Binary) -> Expr:
        if n.a.dtype != "index" or n.b.dtype != "index":
            return binary(n.op, self(n.a), self(n.b))
        form = self.arith.linear(n.a).plus(self.arith.linear(n.b), -1)
        g = math.gcd(*form.terms.values()) if form.terms else 1
        if g > 1 and n.op in ("<", "<="):  # g*x + c <= 0  iff  x <= floor(-c / g)
            strict = 1 if n.op == "<" else 0
            bound = -(form.constant + strict) // g
            form = Linear({t: k // g for t, k in form.terms.items()}, -bound - strict)
        left = Linear({t: k for t, k in form.terms.items() if k > 0}, 0)
        right = Linear({t: -k for t, k in form.terms.items() if k < 0}, -form.constant)
        if right.constant < 0:
            left.constant, right.constant = -right.constant, 0
        return binary(n.op, left.expr(), right.expr())

    def on_Select(self, n: Select) -> Expr:
        cond = self(n.cond)
        if isinstance(cond, Const):
            return self(n.a if cond.value else n.b)  # type: ignore[no-any-return]
        return select(cond, self.where(n, cond)(n.a), self(n.b))

    def on_Cast(self, n: Cast) -> Expr:
        return cast(self(n.a), n.dtype)


def _floor(x: float, c: float) -> float:
    if math.isinf(c):
        return 0 if x >= 0 else -1
    return x if math.isinf(x) else x // c


def _keeps(e: Cast) -> bool:
    """True if the integer conversion ``e`` preserves all values."""
    old, new = DTYPES[e.a.dtype], DTYPES["int64" if e.dtype == "index" else e.dtype]
    return (
        e.a.dtype != "index" and old.kind in "iu" and new.kind in "iu" and new.low <= old.low and old.high <= new.high
    )


def _plain(e: Expr) -> Expr:
    """``e`` without value-preserving conversions to index."""
    return e.a if isinstance(e, Cast) and e.dtype == "index" and DTYPES[e.a.dtype].kind in "iu" else e


def _times(p: float, q: float) -> float:
    return 0.0 if p == 0 or q == 0 else p * q
