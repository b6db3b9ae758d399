"""Reductions over threads, drawn at random: extents, threads, rows of a block, combiners, types, order of the terms.

Whole numbers in every type, so that any order gives the same bits; NumPy says what they are.
"""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir

AFFINE = tir.combiner(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), name="affine", commutative=False)
MOMENTS = tir.combiner(lambda a, b: (a[0] + b[0], a[1] + b[1]), (0, 0), name="moments")
TYPES = ("float32", "float64", "int32", "uint32", "int64", "int16")
KINDS = ("sum", "max", "min", "argmax", "argmin", "moments", "affine")
CASES = st.fixed_dictionaries({
    "kind": st.sampled_from(KINDS), "dtype": st.sampled_from(TYPES), "rows": st.integers(1, 9),
    "terms": st.integers(1, 300), "threads": st.sampled_from((1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 33, 48, 64, 96, 128)),
    "per_block": st.integers(1, 4), "chunks": st.booleans(), "scope": st.sampled_from((None, "register")),
})  # fmt: skip


def affine(a):
    """The maps x -> 2 x + a composed along rows, modulo what the type holds."""
    p, q = np.ones(len(a), a.dtype), np.zeros(len(a), a.dtype)
    for k in range(a.shape[1]):
        p, q = p * a.dtype.type(2), q * a.dtype.type(2) + a[:, k]
    return p, q


def declared(kind, dtype, rows, terms):
    """The outputs, and NumPy's."""
    A, k = tir.placeholder((rows, terms), dtype, name="A"), tir.reduce_axis(terms, name="k")
    if kind == "moments":
        return tir.compute((rows,), lambda i: MOMENTS((A[i, k], A[i, k] * A[i, k]), axis=k), name="S"), (
            lambda a: (a.sum(1, dtype=a.dtype), (a * a).sum(1, dtype=a.dtype)))  # fmt: skip
    if kind == "affine":
        return tir.compute((rows,), lambda i: AFFINE((2, A[i, k]), axis=k), name="S"), affine
    reduce = getattr(tir, kind)
    made = tir.compute((rows,), lambda i: reduce(A[i, k], axis=k), name="S")
    return made, lambda a: a.sum(1, dtype=a.dtype) if kind == "sum" else getattr(a, kind)(1)


def scheduled(outputs, target, terms, threads, per_block, chunks, scope):
    """Each row by so many threads along x, some rows along y; the result perhaps first in everybody's registers."""
    s = tir.Schedule(outputs, target)
    stage = s.stages()[0].name
    block, row = s.split(f"{stage}.i", [None, per_block])
    s.bind(block, "block.x").bind(row, "thread.y")
    outer, inner = s.split(f"{stage}.k", [threads, None] if chunks else [None, threads])
    loop = outer if chunks else inner
    if not chunks:
        s.reorder(inner, outer)
    s.reduce_across(loop, "thread.x")
    if scope and len(s.index.stages[stage].body.buffers) == 1:
        s.stage_out(stage, at=row, scope=scope)
    return s


def drawn(case):
    """The case as its computation takes it: affine maps in order, and in integers, which wrap around."""
    case = dict(case)
    if case["kind"] == "affine":
        case["chunks"], case["dtype"] = True, "uint32"
    return case, declared(case["kind"], case["dtype"], case["rows"], case["terms"])


def arguments(case):
    low = 0 if case["dtype"].startswith("u") else -9
    return np.random.default_rng(case["terms"]).integers(low, 10, (case["rows"], case["terms"])).astype(case["dtype"])


KEYS = ("terms", "threads", "per_block", "chunks", "scope")


@given(CASES)
@settings(max_examples=20, deadline=None)
def test_on_the_device(case):
    case, (outputs, want) = drawn(case)
    s = scheduled(outputs, "opencl", **{k: case[k] for k in KEYS})
    a = arguments(case)
    got, expected = s.build()(a), want(a)
    for g, e in zip(got if isinstance(got, tuple) else (got,), np.atleast_2d(expected), strict=True):
        assert np.array_equal(g, e), str(s)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
@given(CASES)
@settings(max_examples=6, deadline=None)
def test_emulated(case):
    case, (outputs, _) = drawn(case)
    s = scheduled(outputs, "cuda -arch=sm_80", **{k: case[k] for k in KEYS})
    verdict = s.check("emulate")
    assert verdict, f"{s}\n{verdict}"


@given(CASES)
@settings(max_examples=12, deadline=None)
def test_interpreted(case):
    case, (outputs, _) = drawn(case)
    for target in ("opencl", "cuda -arch=sm_80"):
        s = scheduled(outputs, target, **{k: case[k] for k in KEYS})
        verdict = s.check()
        assert verdict, f"{s}\n{verdict}"
