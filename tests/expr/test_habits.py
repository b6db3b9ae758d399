"""The table of habits: what people type, and what comes of it. To add one, add a row.

WORKS: an element as it is typed, which is what NumPy makes of the same words. ANSWERED: statements that cannot mean
what they say, the code and words of the answer, and the remedy, which is tried.
"""

import linecache
import re

import numpy as np
import pytest

from tensorir.interp.reference import evaluate

N = 12
PRELUDE = """\
import math
import numpy as np
import tensorir as tir

n = 12
A, B = tir.placeholder((n,), name="A"), tir.placeholder((n,), name="B")
I, J = tir.placeholder((n,), "int32", name="I"), tir.placeholder((n,), "int32", name="J")
M, W = tir.placeholder((n, 8), name="M"), tir.placeholder((8, n), name="W")
k, r = tir.reduce_axis(8, name="k"), tir.reduce_axis(n, name="r")
a = np.arange(n, dtype="float32")


def declare(fn):
    return tir.compute((n,), fn, name="C")


def declare2(fn):
    return tir.compute((n, 8), fn, name="D")


P = tir.compute((n, 8), lambda i, k: M[i, k] * 2, name="P")
C = tir.compute((n, n), lambda i, j: tir.sum(P[i, k] * W[k, j], axis=k), name="C")
s = tir.Schedule(C)
"""


def run(code):
    """The names after ``code``, whose lines errors can quote."""
    text = PRELUDE + code + "\n"
    linecache.cache["<typed>"] = (len(text), None, text.splitlines(keepends=True), "<typed>")
    names = {}
    exec(compile(text, "<typed>", "exec"), names)
    return names


def values(seed=0):
    rng = np.random.default_rng(seed)
    small = rng.integers(-4, 5, (4, N))
    return small[0].astype("f4"), small[1].astype("f4") + 5, small[2].astype("i4"), small[3].astype("i4") + 5


# --- an element as it is typed; NumPy says the same of arrays, with i = 0 … n - 1, or what stands behind the colon

UNARY = (
    "exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "exp2", "log2", "log10", "abs", "absolute", "fabs", "square",
    "negative", "positive", "sign", "floor", "ceil", "rint", "trunc", "round", "reciprocal", "isnan", "logical_not",
)  # fmt: skip
BINARY = (
    "add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "remainder", "mod", "maximum", "minimum",
    "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_and", "logical_or", "logical_xor",
    "power",
)  # fmt: skip
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift")
WORKS = {
    **dict.fromkeys([
        "A[i]**2", "A[i]**3", "A[i]**0", "A[i]**1", "B[i]**-1", "B[i]**-2", "B[i]**0.5", "B[i]**1.5", "2**B[i]",
        "2.0**B[i]", "B[i]**A[i]", "I[i]**2", "I[i]**5", "I[i]**2.0", "i**2 + I[i]", "pow(A[i], 2)",
        "A[i]**np.int64(2)",
        "abs(A[i])", "abs(I[i])", "+A[i]", "I[i] // J[i]", "I[i] % J[i]", "A[i] // 2", "A[i] % 3", "7 % J[i]",
        "divmod(I[i], J[i])[0]", "divmod(I[i], 3)[1]", "divmod(7, J[i])[1]", 'A[i].astype("int32")',
        "I[i].astype(np.float32)", "I[i].astype(float)", "(A[i] > 0).astype(int)", "np.invert(I[i])", "np.sign(I[i])",
        "np.where(A[i] > 0, A[i], 0)", "np.clip(A[i], -1, 2)", "np.round(A[i] / 8, 1)", "np.round(A[i] * 8, -1)",
        "np.float32(2) * A[i]", "np.int64(3) * I[i]", "np.float32(0) < A[i]", "np.exp(I[i])", "np.mod(-7, J[i])",
        "np.exp(A[i]).astype(np.float16)", "-A[i] - -B[i]", "sum(A[(i + d) % n] for d in range(3))", "np.abs(I[i])",
        "A[np.int64(3)] + A[i]", "(A[i] > 0) & (B[i] < 7)", "(A[i] > 0) | ~(B[i] < 7)", "A[n - 1 - i]", "A[i % 3]",
    ]),
    **dict.fromkeys(f"np.{f}(B[i])" for f in UNARY),
    **dict.fromkeys(f"np.{f}(B[i], A[i])" for f in BINARY),
    **dict.fromkeys(f"np.{f}(I[i], J[i])" for f in BITS),
    "round(A[i] / 2)": "np.round(A / 2)", "round(A[i] / 8, 1)": "np.round(A / 8, 1)", "round(I[i])": "I",
    "math.floor(A[i] / 2)": "np.floor(A / 2)", "math.ceil(A[i] / 2)": "np.ceil(A / 2)", "math.floor(I[i])": "I",
    "math.trunc(A[i] / 2)": "np.trunc(A / 2)", "A[i] + np.float64(1.5)": "A + 1.5",
    "(A[i] > 0) * 2": "(A > 0) * np.int32(2)",
    "tir.maximum(A[i], B[i])": "np.maximum(A, B)", "tir.where(A[i] > 0, i, -1)": "np.where(A > 0, i, -1).astype('i4')",
}  # fmt: skip
ROUNDED = re.compile(r"exp|log|tan|sin|cos|\.5|-2|\*\*[BA]|power|/ 8|\* 8")
"""What is typed whose results are not exact."""


@pytest.mark.parametrize("typed", WORKS)
def test_an_element_that_works(typed):
    C = run(f"C = declare(lambda i: {typed})")["C"]
    given = dict(zip("ABIJ", values(), strict=True))
    want = np.asarray(eval(WORKS[typed] or typed, {"np": np, "n": N, "i": np.arange(N, dtype="i4"), **given}))
    got = evaluate((C,), [given[t.name] for t in sorted(C.op.inputs, key=lambda t: t.order)])[0]
    assert got.dtype == want.dtype
    if ROUNDED.search(typed):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)
