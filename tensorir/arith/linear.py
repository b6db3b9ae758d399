"""``Linear``: ``sum(coefficient * atom) + constant`` in exact integers."""

from __future__ import annotations

from tensorir.ir.build import binary, const
from tensorir.ir.tree import Binary, Expr, Var
from tensorir.ir.visit import uses


class Linear:
    """The linear form ``sum(c * atom) + constant``: ``terms`` is {atom: c}, all integers. Treat as immutable."""

    __slots__ = ("_said", "constant", "terms")

    def __init__(self, terms: dict[Expr, int], constant: int) -> None:
        self.terms, self.constant = terms, constant
        self._said: Expr | None = None

    def plus(self, o: Linear, scale: int = 1) -> Linear:
        """``self + scale * o``."""
        if not o.terms:
            return Linear(self.terms, self.constant + scale * o.constant)
        out = Linear(dict(self.terms), self.constant)
        out.add(o, scale)
        return out

    def add(self, o: Linear, scale: int) -> None:
        """Add ``scale * o`` in place; only for a form that no one else holds."""
        terms = self.terms
        for atom, c in o.terms.items():
            if total := terms.get(atom, 0) + scale * c:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        self.constant += scale * o.constant

    def rests(self) -> bool:
        """True if one of the form's atoms is a remainder (``%``)."""
        return any(type(atom) is Binary and atom.op == "%" for atom in self.terms)

    def times(self, k: int) -> Linear:
        return Linear({a: c * k for a, c in self.terms.items()} if k else {}, self.constant * k)

    def without(self, var: Var) -> Linear:
        """Copy of this form without its term in ``var``."""
        return Linear({t: c for t, c in self.terms.items() if t is not var}, self.constant)

    def along(self, var: Var) -> tuple[int, Linear] | None:
        """(coefficient of ``var``, rest); None if ``var`` also occurs inside atoms."""
        rest = self.without(var)
        return None if any(uses(t, {var}) for t in rest.terms) else (self.terms.get(var, 0), rest)

    def same(self, o: Linear) -> bool:
        """True if both forms have equal terms and constants."""
        return self.constant == o.constant and self.terms == o.terms

    def expr(self) -> Expr:
        """The form as an expression, built once."""
        if self._said is None:
            self._said = self._say()
        return self._said

    def _say(self) -> Expr:
        out: Expr | None = None
        later = []
        for atom, c in self.terms.items():
            if c < 0 and out is None:
                later.append((atom, c))
                continue
            term = atom if abs(c) == 1 else _joined("*", atom, const(abs(c), atom.dtype))
            out = term if out is None else _joined("+" if c > 0 else "-", out, term)
        if out is None:
            out = const(self.constant)
            rest = 0
        else:
            rest = self.constant
        for atom, c in later:
            out = binary("-", out, atom if c == -1 else binary("*", atom, -c))
        return binary("+" if rest > 0 else "-", out, abs(rest)) if rest else out


def _joined(op: str, a: Expr, b: Expr) -> Expr:
    """Expression ``a op b``, not folded if both are indices."""
    return Binary(op, a, b, "index") if a.dtype == b.dtype == "index" else binary(op, a, b)
