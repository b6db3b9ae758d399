"""Generates test inputs that give a correct CUDA kernel exactly the reference's results, with no rounding differences.

Large whole numbers show intermediate rounding. Small ones, many of them zero, with scalars of full significand show
extra summands and wrong use of scalars. Scalars and index tables change from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tensorir.codegen.source import Source
from tensorir.expr.program import computes_of
from tensorir.expr.tensor import Tensor
from tensorir.interp.magnitude import rounds_last
from tensorir.interp.reference import arguments_of, evaluate, random_arguments
from tensorir.interp.sizes import tensors_read
from tensorir.interp.uses import bitcast_floats, divisors, gather_limits, reads_bits, shift_amounts
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.tree import Binary, Call, Expr, Reduce
from tensorir.ir.visit import find, has

SCALAR_BITS = (20, 16, 13, 11, 9)
"""Digits of scalars that are tried: bfloat16 has 8, float16 and tf32 have 11."""
_ROUNDED_BITS = 13
"""Digits of what tf32 rounds to 11, to its nearest neighbour and never half way."""


@dataclass(frozen=True)
class TextRun:
    """One test run of a text: its inputs and how results are compared.

    exact:  True: results must equal the declaration's to the last bit; False: within rounding; None: not yet determined
    read:   the arrays after rounding by the instructions, if that changes them
    eager:  asynchronous copies may land before the wait
    packed: arrays begin at the least alignment promised to the kernels
    spread: inputs hold infinities: only their propagation is compared
    about:  a description of the inputs, for the verdict
    """

    arrays: list[np.ndarray]
    exact: bool | None = None
    read: list[np.ndarray] | None = None
    eager: bool = False
    packed: bool = False
    spread: bool = False
    about: str = ""


def exactly(outputs: tuple[Tensor, ...], source: Source, arrays: Sequence[object], each: bool = False) -> bool:
    """True if a right kernel's results on ``arrays`` equal the reference to the last bit: no intermediate value is
    rounded by the instructions of ``source``.

    each: True: decide by every element, as slow as the reference; False: by the largest ones
    """
    kinds = {kind for name in source.instructions for kind in name.split(".")}
    digits = (11, 11) if "tf32" in kinds else (21, 11) if "3xtf32" in kinds else (24, 24)
    return rounds_last(outputs, arrays, digits, each)


def multiplies_tf32(source: Source) -> bool:
    """True if an instruction of the text multiplies in tf32 (3xtf32 included)."""
    return any("tf32" in name for name in source.instructions)


def short(outputs: tuple[Tensor, ...], source: Source, conditions: Sequence[Expr], seed: int) -> TextRun:
    """Return a test run on sparse inputs, zero at the ends of axes, with float scalars of as many significand bits as
    still give bit-exact results (``TextRun.exact`` is True).

    If no such inputs give exact results, all arrays are zero: wrong additions to empty sums are then still seen.

    conditions: of the schedule on values of inputs; some inputs satisfy each
    """
    arrays = random_arguments(outputs, seed, conditions=conditions)
    free = free_inputs(outputs, arrays, conditions)
    for bits in SCALAR_BITS:
        arrays = random_arguments(outputs, seed, conditions=conditions, scalar_bits=bits)
        arrays = thinned(outputs, arrays, free, seed)
        if exactly(outputs, source, arrays, each=True) and all_finite(evaluate(outputs, arrays)):
            return TextRun(arrays, exact=True, packed=True, about=", with zeros and long scalars among its inputs")
    nothing = [np.zeros_like(x) if f else x for x, f in zip(arrays, free, strict=True)]
    return TextRun(nothing, packed=True, about=", with nothing but zeros for its inputs")


def thinned(
    outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], free: Sequence[bool], seed: int
) -> list[np.ndarray]:
    """Copies of ``arrays``, zero at the ends of axes; operands of sums are sparse.

    free: one boolean per input: false for those to leave unchanged
    """
    terms, summed = longest_sum(outputs), _multiplied(outputs)
    return [
        _thin(x, terms if a in summed else 1, seed + n) if f else x
        for n, (x, a, f) in enumerate(zip(arrays, arguments_of(outputs), free, strict=True))
    ]


def longest_sum(outputs: Sequence[Tensor]) -> int:
    """Number of terms of the declaration's longest reduction; 1 without reductions."""
    sums = [r for op in computes_of(outputs) for b in op.bodies for r in find(b, Reduce)]
    return max((prod(int(a.extent or 1) for a in r.axes) for r in sums), default=1)


def _thin(x: np.ndarray, terms: int, seed: int) -> np.ndarray:
    """Copy of ``x``, mostly zeroed so that a few of ``terms`` products are nonzero; 0 at both ends of axes with four
    elements or more.
    """
    rng = np.random.default_rng(seed)
    x = np.clip(x.astype(np.float64), -2, 2).astype(x.dtype) if terms > 4 else x
    kept = np.where(rng.random(x.shape) < min(1.0, (8 / terms) ** 0.5), x, np.zeros_like(x))
    for d, n in enumerate(x.shape):
        if n >= 4:
            kept[(slice(None),) * d + ([0, n - 1],)] = 0
    return kept


def free_inputs(outputs: Sequence[Tensor], arrays: Sequence[np.ndarray], conditions: Sequence[Expr]) -> list[bool]:
    """One boolean per input: true for arrays that may hold any whole numbers. False for scalars, index tables,
    divisors, shift counts, reinterpreted bits and arrays in specialization conditions.
    """
    fixed = {*gather_limits(outputs), *divisors(outputs), *shift_amounts(outputs), *bitcast_floats(outputs)}
    asked = {t for c in conditions for t in tensors_read(c)}
    return [
        np.ndim(x) > 0 and a not in fixed and a not in asked and DTYPES[a.dtype].kind in "fiu"
        for x, a in zip(arrays, arguments_of(outputs), strict=True)
    ]


def larger(
    outputs: tuple[Tensor, ...], source: Source, arrays: list[np.ndarray], seed: int = 0, turn: int = 0
) -> list[np.ndarray]:
    """Copy of ``arrays`` with random whole numbers, one array's as large as results allow without rounding before the
    end, to show intermediate rounding; ``arrays`` itself if impossible.

    turn: number of the run; selects the array with the largest numbers
    """
    rng = np.random.default_rng(seed)
    free = [n for n, f in enumerate(free_inputs(outputs, arrays, ())) if f and np.size(arrays[n]) > 1]
    whole = _all_whole(outputs)  # these wrap around
    if whole and reads_bits(outputs):
        return arrays  # all bits are there
    for most in (1 << n for n in range(10 if whole else 15, 3, -1)) if free else ():
        tried = list(arrays)
        for n in free:
            tried[n] = _whole(rng, arrays[n], most if n == free[turn % len(free)] else 8)
        if whole or (exactly(outputs, source, tried) and all_finite(evaluate(outputs, tried))):
            return tried
    return arrays


def longest(outputs: tuple[Tensor, ...], source: Source, arrays: list[np.ndarray], seed: int, turn: int) -> TextRun:
    """A test run for instructions that round operands: one operand has more significand bits than they keep, the others
    are sparse. tf32 keeps 11 bits (``TextRun.read`` holds the rounded values); 3xtf32 keeps 21, with exact results. If
    no such inputs are found, the run has ``arrays`` unchanged.

    turn: number of the run; selects the operand with many bits
    """
    about, rng, operands = ", with operands of many digits", np.random.default_rng(seed), _multiplied(outputs)
    free = free_inputs(outputs, arrays, ())
    given = [n for n, (f, a) in enumerate(zip(free, arguments_of(outputs), strict=True)) if f and a in operands]
    rounds = not any("3xtf32" in name for name in source.instructions)
    for bits in ((_ROUNDED_BITS,) if rounds else (20, 17, 14)) if given else ():
        tried = thinned(outputs, arrays, free, seed)
        which = given[turn % len(given)]
        shape, dtype = tried[which].shape, tried[which].dtype
        long = _off_the_middle(rng, shape) if rounds else rng.integers(-(1 << bits), 1 << bits, shape)
        tried[which] = long.astype(dtype)
        read = [(np.rint(long / 4) * 4).astype(dtype) if rounds and n == which else x for n, x in enumerate(tried)]
        if rounds_last(outputs, read, (24 if rounds else 21, 11), each=True) and all_finite(evaluate(outputs, read)):
            return TextRun(tried, True, read if rounds else None, about=about)
    return TextRun(arrays, about=about)


def _off_the_middle(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Random integers of ``_ROUNDED_BITS`` bits that are no ties when rounded to multiples of 4."""
    size = 4 * rng.integers(1 << _ROUNDED_BITS - 3, 1 << _ROUNDED_BITS - 2, shape) + rng.choice([1, 3], shape)
    return np.where(rng.random(shape) < 0.5, -size, size)


def _multiplied(outputs: Sequence[Tensor]) -> set[Any]:
    """Inputs that reach a product inside a sum through copies only, so that a matrix instruction may round them to
    tf32.
    """
    ops = computes_of(outputs)
    made = {t for op in ops for t in op.outputs}
    summed, touched = set[Any](), set[Any]()
    for op in reversed(ops):
        for b in op.bodies:
            read = tensors_read(b)
            copies = not any(DTYPES[x.a.dtype].kind == "f" for x in find(b, Binary)) and not has(b, Call)
            if isinstance(b, Reduce) or (copies and not summed.isdisjoint(op.outputs)):
                summed |= read
            else:
                touched |= read
    return summed - touched - made


def _all_whole(outputs: Sequence[Tensor]) -> bool:
    return all(DTYPES[a.dtype].kind != "f" for a in (*arguments_of(outputs), *outputs))


def all_finite(arrays: Sequence[np.ndarray]) -> bool:
    """True if no array holds an infinity or NaN."""
    return all(np.isfinite(np.asarray(x, np.float64)).all() for x in arrays)


def _whole(rng: np.random.Generator, like: np.ndarray, most: int) -> np.ndarray:
    """Random integers from ``-most`` (0 for unsigned types) to ``most`` in the shape and dtype of ``like``; integer
    arrays wider than a byte, usable as lengths, keep half of their elements.
    """
    kind = np.dtype(like.dtype)
    if kind.kind in "iu":
        most = min(most, int(np.iinfo(kind).max))
    made = rng.integers(0 if kind.kind == "u" else -most, most + 1, like.shape).astype(kind)
    return np.where(rng.random(like.shape) < 0.5, like, made) if kind.kind in "iu" and kind.itemsize > 1 else made
