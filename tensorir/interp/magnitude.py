"""Bounds on magnitudes of intermediate values: decides whether float results are exact, or continuous, for given
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite, ldexp, prod
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.reference import arguments_of
from tensorir.interp.sizes import EXACT_CALLS, InexactError, largest, tensors_read
from tensorir.interp.uses import gather_limits
from tensorir.ir.build import BITS
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.shared import once
from tensorir.ir.tree import Binary, Call, Cast, Const, Expr, Load, PadLoad, Placed, Reduce, Select, Unary, Var
from tensorir.ir.visit import find, has

_BEYOND_DTYPES = 2.0**200  # beyond any dtype


def is_exact(outputs: Sequence[Tensor], amplitude: int, limits: Mapping[object, int]) -> bool:
    """True if no intermediate value rounds or overflows for integer inputs of absolute value up to ``amplitude``.

    limits: {input: its own limit}, as ``gather_limits`` gives them for index tensors
    """
    return _bounds(outputs, amplitude, limits, last=False) is not None


def rounds_last(
    outputs: Sequence[Tensor], arrays: Sequence[object], digits: tuple[int, int] = (24, 24), each: bool = False
) -> bool:
    """True if, on these arrays, every result is exact until one rounding at its store, so that the order of sums does
    not matter. False if an array other than an index table holds a fraction, an infinity or a NaN.

    digits: significand bits that a product keeps of its operands: of the one with the most, and of the others; 11 on
            tf32 tensor cores
    each:   True to evaluate per element, using zeros, where possible: as slow as the reference; False: by largest
            values
    """
    sizes: dict[Any, int] = dict(gather_limits(outputs))
    for x, a in zip(map(np.asarray, arrays), arguments_of(outputs), strict=True):
        if a in sizes:
            continue
        size = np.abs(x.astype(np.float64))
        if not np.isfinite(size).all() or not np.array_equal(size, np.trunc(size)):
            return False
        sizes[a] = int(size.max(initial=0))
    terms = {t for op in computes_of(outputs) for b in op.bodies for r in find(b, Reduce) for v in r.values
             for t in tensors_read(v)}  # fmt: skip
    amplitude = max(sizes.values(), default=0)
    bounds = _bounds(outputs, amplitude, sizes, last=True)
    if bounds is None and each:
        bounds = largest(outputs, arrays, terms)
    if bounds is None:
        return False
    *short, long = [0.0, *sorted(bounds.get(t, sizes.get(t, 0)) for t in terms)]
    return long <= 2.0 ** digits[0] and all(n <= 2.0 ** digits[1] for n in short)


def rounds_inside(outputs: Sequence[Tensor]) -> bool:
    """True if intermediate values, not only results, are rounded to types narrower than float32."""
    ops = computes_of(outputs)
    bodies = [b for op in ops for b in op.bodies]
    inner = [a for b in bodies for c in b.children() for a in (c, *find(c, Cast))]
    made = {t for op in ops for t in op.outputs}
    read = {t for b in bodies for t in tensors_read(b)} & made
    return (
        any(DTYPES[t.dtype].widened for t in read)
        or any(DTYPES[r.dtype].widened for b in bodies for r in find(b, Reduce))
        or any(isinstance(a, Cast) and DTYPES[a.dtype].widened for a in inner)
    )


def narrow_sums(t: Tensor) -> set[str]:
    """Types narrower than float32 in which the sums that ``t`` depends on round each term; empty without sums, or if
    some reduction is in another type.
    """
    found = [r for op in computes_of([t]) for b in op.bodies for r in find(b, Reduce)]
    narrow = all(DTYPES[r.dtype].widened for r in found)
    return {r.dtype for r in found if r.combiner.name == "sum"} if narrow else set()


def is_continuous(outputs: Sequence[Tensor]) -> bool:
    """True if small rounding differences change results little: no rounded value decides an argmax, a branch or an
    integer.
    """
    ops = computes_of(outputs)
    made = {t for op in ops for t in op.outputs}
    for e in (e for op in ops for b in op.bodies for e in (b, *find(b, (Binary, Call, Cast, Reduce)))):
        decides: Sequence[Expr] = ()
        match e:
            case Binary(op="==" | "!=" | "<" | "<=" | "//" | "%"):
                decides = (e.a, e.b)
            case Call(fn="floor" | "ceil" | "round" | "bitcast"):
                decides = e.args
            case Cast() if DTYPES[e.dtype].kind != "f":
                decides = (e.a,)
            case Reduce() if any(has(x, Select) for x in e.combiner.result):
                decides = e.values
        if any(DTYPES[x.dtype].kind == "f" and not _as_given(x, made) for x in decides):
            return False
    return True


def _as_given(e: Expr, made: set[Any]) -> bool:
    """True if ``e`` is an unmodified element of an input, up to sign, or one selected of several.

    made: computed tensors
    """
    match e:
        case Const() | Var():
            return True
        case Load() | PadLoad():
            return e.buffer.origin not in made
        case Unary():
            return _as_given(e.a, made)
        case Binary(op="min" | "max"):
            return _as_given(e.a, made) and _as_given(e.b, made)
    return False


def _bounds(
    outputs: Sequence[Tensor], amplitude: int, limits: Mapping[Any, int], last: bool
) -> dict[Any, float] | None:
    """{tensor: largest absolute value of its elements}; None if something rounds.

    last: True to allow rounding when a final result is stored
    """
    bounds: dict[Any, float] = {}
    ops = computes_of(outputs)
    read = {t for op in ops for b in op.bodies for t in tensors_read(b)}
    try:
        for op in ops:
            final = last and not read.intersection(op.outputs)
            size = _Magnitude(amplitude, limits, bounds)
            made = [size.before_rounding(b) if final else size(b) for b in op.bodies]
            bounds.update(zip(op.outputs, made, strict=True))
    except InexactError:
        return None
    return bounds


class _Magnitude:
    """Function from an expression to its largest absolute value; raises InexactError for one beyond its dtype's exact
    range.
    """

    def __init__(self, amplitude: int, limits: Mapping[Any, int], bounds: dict[object, float]) -> None:
        self.amplitude, self.limits, self.bounds = amplitude, limits, bounds

    @once
    def __call__(self, e: Expr) -> float:
        size = self._of(e)
        kind = DTYPES[e.dtype]
        most = 2.0**kind.digits if kind.kind == "f" else float(max(kind.high, 1))
        if size > most and e.dtype != "index":
            raise InexactError
        return size

    def before_rounding(self, e: Expr) -> float:
        """Largest absolute value of a result before its conversion to the stored type."""
        if isinstance(e, Cast) and DTYPES[e.dtype].kind == "f" == DTYPES[e.a.dtype].kind:
            return self(e.a)
        if DTYPES[e.dtype].widened and not isinstance(e, Reduce):  # computed in float32
            size = self._of(e)
            if size <= 2.0 ** DTYPES["float32"].digits:
                return size
        return self(e)

    def _of(self, e: Expr) -> float:
        match e:
            case Const():
                return self._const(float(e.value))
            case Var():
                return (
                    float(max(abs(e.extent or 0), 2**15)) if e.order == 0 else float(self.limits.get(e, self.amplitude))
                )
            case Load() | PadLoad():
                return max(self._tensor(e), self(e.fill) if isinstance(e, PadLoad) else 0.0)
            case Binary():
                return self._binary(e)
            case Unary():
                return float(DTYPES[e.dtype].high) if DTYPES[e.dtype].kind == "u" else self(e.a) + (e.op == "~")
            case Select():
                return max(self(e.a), self(e.b))
            case Cast() if DTYPES[e.dtype].kind == "u" and DTYPES[e.a.dtype].kind in "if" and e.a.dtype != "index":
                return float(DTYPES[e.dtype].high)  # of what is negative
            case Cast():
                return self(e.a)
            case Call() if e.fn in EXACT_CALLS:
                return max(map(self, e.args))
            case Call(fn="mulhi"):
                return max(map(self, e.args))
            case Reduce():
                return self._reduce(e)
        raise InexactError

    @staticmethod
    def _const(value: float) -> float:
        if not isfinite(value):
            return 0.0  # an identity of min and max
        if value != int(value):
            raise InexactError
        return min(abs(value), _BEYOND_DTYPES)

    def _tensor(self, e: Load | PadLoad) -> float:
        owner = e.buffer.origin
        if e.buffer.data is not None:
            return max((self._const(float(v)) for v in e.buffer.data), default=0.0)
        if owner in self.bounds:
            return float(self.bounds[owner])
        if e.buffer.dtype == "bool":
            return 1.0
        return float(self.limits.get(owner, self.amplitude))

    def _binary(self, e: Binary) -> float:
        if e.op in ("==", "!=", "<", "<=", "and", "or"):
            return 1.0
        a, b = self(e.a), self(e.b)
        if e.op == "-" and DTYPES[e.dtype].kind == "u":
            return float(DTYPES[e.dtype].high)
        if e.op in "+-":
            return min(a + b, _BEYOND_DTYPES)
        if e.op == "*":
            return min(a * b, _BEYOND_DTYPES)
        if e.op in ("min", "max"):
            return max(a, b)
        if e.op == ">>" and isinstance(e.b, Const):
            return float(ceil(a / 2**e.b.value))
        if e.op in ("//", "%", ">>") and DTYPES[e.dtype].kind in "iu":
            return max(a, b)
        if e.op == "&" and any(isinstance(x, Const) and x.value >= 0 for x in (e.a, e.b)):
            return min(float(x.value) for x in (e.a, e.b) if isinstance(x, Const) and x.value >= 0)
        if e.op in BITS:
            return _bits_of(max(a, b))
        if e.op == "<<":
            return min(ldexp(a, int(min(b, 64.0))), _BEYOND_DTYPES)
        raise InexactError

    def _reduce(self, e: Reduce) -> float:
        fill = self(e.part.fill) if isinstance(e.part, Placed) else 0.0
        size = max(fill, *map(self, e.values))
        if e.combiner.name in ("set", "min", "max", "any", "all", "argmin", "argmax"):
            return max(size, float(max(a.extent for a in e.axes)) if "arg" in e.combiner.name else 0.0)
        if e.combiner.name == "sum":
            return min(size * float(prod(a.extent for a in e.axes)) + fill, _BEYOND_DTYPES)
        raise InexactError


def _bits_of(size: float) -> float:
    """Least power of two above ``size``: no signed integer with as many bits is larger."""
    return ldexp(1.0, int(size).bit_length()) if size < _BEYOND_DTYPES else _BEYOND_DTYPES
