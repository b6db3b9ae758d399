"""Bounds of every element and partial sum, by evaluating declarations on the inputs' absolute values.

Absolute values replace floats, so each sum bounds those of its terms in any order. For inputs that are mostly zero,
the bound is far tighter than the largest element times the number of terms, so inputs may have more significand bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import evaluate
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Cast, Expr, Load, PadLoad, Reduce, Select, Unary
from tensorir.ir.visit import find

EXACT_CALLS = ("abs", "floor", "ceil", "round")
"""Functions whose results are whole where their arguments are."""


class InexactError(Exception):
    """Raised if an operation may round, for some operands within the bounds."""


def largest(outputs: Sequence[Tensor], arrays: Sequence[object], of: Iterable[Tensor]) -> dict[Tensor, float] | None:
    """{tensor: largest absolute value of its elements and partial sums} for the computed tensors among ``of``, inputs
    omitted; None if anything but the final store may round.

    arrays: inputs of whole numbers
    """
    ops = computes_of(outputs)
    made = {t for op in ops for t in op.outputs}
    read = {t for op in ops for b in op.bodies for t in tensors_read(b)}
    if not all(_stays_wide(b, last=not read.intersection(op.outputs)) for op in ops for b in op.bodies):
        return None
    wanted = [t for t in of if t in made]
    try:
        found = evaluate((*outputs, *wanted), arrays, _Sizes())
    except InexactError:
        return None
    return {t: float(np.max(x, initial=0)) for t, x in zip(wanted, found[len(outputs) :], strict=True)}


def tensors_read(e: Expr) -> set[Tensor]:
    """The tensors that an expression reads."""
    found: list[Load | PadLoad] = [*find(e, Load), *find(e, PadLoad)]
    return {a.buffer.origin for a in found}


def _stays_wide(body: Expr, last: bool) -> bool:
    """True if floats narrower than float32 occur only in inputs and in the stored final result; integers are not
    examined.

    last: True if ``body`` defines a final output; a reduction in a narrow float is refused there too
    """
    inner: list[Expr] = [
        n for kind in (Binary, Call, Cast, Reduce, Select, Unary) for n in find(body, kind) if DTYPES[n.dtype].widened
    ]
    return all(n is body and last and not isinstance(n, Reduce) for n in inner)


class _Sizes(Numbers):
    """Arithmetic on absolute values, as bounds; raises InexactError for a float that may be no integer, or too
    large.
    """

    def storage(self, dtype: str) -> np.dtype:
        return np.dtype(np.float64) if DTYPES[dtype].kind == "f" else super().storage(dtype)

    def const(self, value: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind != "f":
            return super().const(value, dtype)
        size = abs(float(value))
        if not np.isfinite(size):
            return 0.0  # an identity of min and max
        if size != np.trunc(size):
            raise InexactError
        return size

    def binary(self, op: str, a: Any, b: Any, dtype: str) -> Any:
        if DTYPES[dtype].kind != "f":
            return super().binary(op, a, b, dtype)
        made = {"+": np.add, "-": np.add, "*": np.multiply, "min": np.maximum, "max": np.maximum}.get(op)
        if made is None:  # what a comparison says is lost
            raise InexactError
        return self._kept(made(a, b), dtype)

    def unary(self, op: str, a: object, dtype: str) -> Any:
        return a if DTYPES[dtype].kind == "f" else super().unary(op, a, dtype)

    def call(self, fn: str, args: list[object], dtype: str, given: str) -> Any:
        if DTYPES[dtype].kind != "f" and DTYPES[given].kind != "f":
            return super().call(fn, args, dtype, given)
        if fn not in EXACT_CALLS:
            raise InexactError
        return args[0]

    def cast(self, x: object, old: str, new: str) -> Any:
        if DTYPES[new].kind != "f":
            if DTYPES[old].kind == "f":
                raise InexactError
            return super().cast(x, old, new)
        return self._kept(np.abs(np.asarray(x).astype(np.float64)), new)

    def to_memory(self, x: object, dtype: str) -> Any:
        return x

    def inputs(self, array: object, dtype: str) -> np.ndarray:
        given = super().inputs(array, dtype)
        return np.abs(given) if DTYPES[dtype].kind == "f" else given

    def sum(self, x: np.ndarray, axis: tuple[int, ...], dtype: str) -> np.ndarray:
        out = super().sum(x, axis, dtype)
        return self._kept(out, dtype) if DTYPES[dtype].kind == "f" else out

    @staticmethod
    def _kept(x: Any, dtype: str) -> Any:
        digits = max(DTYPES[dtype].digits, DTYPES["float32"].digits)  # narrower ones: results, made in float32
        if np.max(x, initial=0) > 2.0**digits:
            raise InexactError
        return x
