"""Folds have the bits of what they replace: each identity of the table, for each type and special operands."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tensorir.interp.numbers import Numbers, numpy_dtype
from tensorir.ir.build import SHIFTS, binary, const, unary
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.identities import IDENTITIES, SIGNS, identity
from tensorir.ir.structure import structure
from tensorir.ir.tree import Binary, Const, Var
from tensorir.lower.fold_constants import product, sum_of

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import float_bits

TYPES = [n for n, d in DTYPES.items() if d.kind in "iuf" and n != "index"]


def operands(dtype):
    if dtype in float_bits.FLOATS:
        case = float_bits.Case("x", dtype, None, None)
        return float_bits.operands(case, 500, np.random.default_rng(1))[0]
    ends = np.iinfo(dtype)
    some = np.random.default_rng(1).integers(ends.min, ends.max, 50, np.dtype(dtype), endpoint=True)
    return np.concatenate([np.array([0, 1, ends.min, ends.max], dtype), some])


def value(e, env, dtype):
    """What an expression of names is in the interpreter's numbers, as it is stored."""
    n = Numbers()
    with np.errstate(all="ignore"):
        if isinstance(e, Var):
            return env[e]
        if isinstance(e, Const):
            return n.const(e.value, e.dtype)
        if isinstance(e, Binary):
            return n.binary(e.op, value(e.a, env, dtype), value(e.b, env, dtype), dtype)
        return n.unary(e.op, value(e.a, env, dtype), dtype)


def bits(x, dtype, shape):
    with np.errstate(all="ignore"):
        return float_bits.bits(np.broadcast_to(np.asarray(x), shape).astype(numpy_dtype(dtype)))


def equal(before, after, env, dtype):
    shape = next(iter(env.values())).shape
    return np.array_equal(*(bits(value(e, env, dtype), dtype, shape) for e in (before, after)))


@pytest.mark.parametrize("dtype", TYPES)
def test_an_identity_is_applied_where_it_holds_and_nowhere_else(dtype):
    x, whole = Var("x", dtype), DTYPES[dtype].kind != "f"
    env = {x: Numbers().inputs(operands(dtype), dtype)}
    for one in IDENTITIES:
        if one.op in ("^", "|", "&", *SHIFTS) and not whole:
            continue
        if one.op == "/" and whole:
            continue  # it is a float's
        for number in (one.number,) if whole else (float(one.number), -0.0 if one.number == 0 else 1):
            c = const(number, dtype)
            sides = (c, x) if one.left else (x, c)
            before, after = Binary(one.op, *sides, dtype), binary(one.op, *sides)
            gives = identity(one.op, number, dtype, one.left)
            assert bool(gives) == (after is x or isinstance(after, Const)), (one, number)
            assert equal(before, after, env, dtype), (one, number, dtype)
            if not gives:  # because it does not hold
                assert structure(after) == structure(before)


@pytest.mark.parametrize("dtype", TYPES)
def test_signs_and_zeros_of_sums_keep_bits(dtype):
    """What lower.fold_constants makes of every product and sum with a known number, or a sign."""
    x, y, kind = Var("x", dtype), Var("y", dtype), DTYPES[dtype].kind
    given = Numbers().inputs(operands(dtype), dtype)
    env = {x: given, y: np.random.default_rng(2).permutation(given)}
    numbers = [0, 1, 2, *([] if kind == "u" else [-1, -3]), *([0.0, -0.0] if kind == "f" else [])]
    made = set()
    for number in numbers:
        c = const(number, dtype)
        terms = [y, c, Binary("*", c, y, dtype), Binary("*", y, c, dtype), *([] if kind == "u" else [unary("-", y)])]
        for before in (*(Binary("*", *s, dtype) for s in ((x, c), (c, x))),
                       *(Binary(op, *s, dtype) for op in "+-" for t in terms for s in ((x, t), (t, x)))):  # fmt: skip
            after = (product if before.op == "*" else sum_of)(before)
            made.add(after is not before)
            assert equal(before, after, env, dtype), (number, before, after)
    assert made == {True, False}
    assert all(set(kinds) <= set("iuf") for kinds in SIGNS.values())


def test_bits_of_floats_are_numpys():
    """A part of tools/float_bits.py, which compares all executors, and other versions of NumPy too."""
    found = float_bits.compare(["reference"], 20_000, 3, {})
    assert found["reference"]["wrong"] == {}
