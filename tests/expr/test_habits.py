"""The table of habits: what people type, and what comes of it. To add one, add a row.

WORKS: an element as it is typed, which is what NumPy makes of the same words. ANSWERED: statements that cannot mean
what they say, the code and words of the answer, and the remedy, which is tried.
"""

import linecache
import re

import numpy as np
import pytest

import tensorir as tir
from tensorir.errors.habits import remedies
from tensorir.expr.program import inputs_of
from tensorir.interp.reference import evaluate

HABITS = remedies()
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
a = np.ones(n, "float32")


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
        "A[i] / B.sum()", "B.sum() - A[i]", "np.maximum(A[i], B.mean())", "A[i] * A.max() + 1",
        "A[i] == 0", "0 == A[i]", "A[i] != B[i]", "i == 3", "(i == 3) | (A[i] == 0)", "np.where(A[i] == 0, A[i], 1)",
    ]),
    **dict.fromkeys(f"np.{f}(B[i])" for f in UNARY),
    **dict.fromkeys(f"np.{f}(B[i], A[i])" for f in BINARY),
    **dict.fromkeys(f"np.{f}(I[i], J[i])" for f in BITS),
    "round(A[i] / 2)": "np.round(A / 2)", "round(A[i] / 8, 1)": "np.round(A / 8, 1)", "round(I[i])": "I",
    "math.floor(A[i] / 2)": "np.floor(A / 2)", "math.ceil(A[i] / 2)": "np.ceil(A / 2)", "math.floor(I[i])": "I",
    "math.trunc(A[i] / 2)": "np.trunc(A / 2)", "A[i] + np.float64(1.5)": "A + 1.5",
    "(A[i] > 0) * 2": "(A > 0) * np.int32(2)",
    "pow(I[i], 2, 3)": "I**2 % 3",
    "tir.maximum(A[i], B[i])": "np.maximum(A, B)", "tir.where(A[i] > 0, i, -1)": "np.where(A > 0, i, -1).astype('i4')",
}  # fmt: skip
ROUNDED = re.compile(r"exp|log|tan|sin|cos|\.5|-2|\*\*[BA]|power|/ 8|\* 8")
"""What is typed whose results are not exact."""


@pytest.mark.parametrize("typed", WORKS)
def test_an_element_that_works(typed):
    C = run(f"C = declare(lambda i: {typed})")["C"]
    given = dict(zip("ABIJ", values(), strict=True))
    want = np.asarray(eval(WORKS[typed] or typed, {"np": np, "n": N, "i": np.arange(N, dtype="i4"), **given}))
    got = evaluate((C,), [given[t.name] for t in inputs_of((C,))])[0]
    assert got.dtype == want.dtype
    if ROUNDED.search(typed):
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, want)


# --- answered: what is typed, the code, words of the answer, and the remedy, which must run


def of_element(typed, code, words, remedy):
    """A row of an element of a compute over i."""
    return (f"tir.compute((n,), lambda i: {typed})", code, words, f"tir.compute((n,), lambda i: {remedy})")


ANSWERED = [
    # Python
    of_element("math.exp(A[i])", "declare.number", "tir.exp(A[i])", "tir.exp(A[i])"),
    of_element("math.sqrt(A[i] + 1)", "declare.number", "tir.sqrt(A[i] + 1)", "tir.sqrt(A[i] + 1)"),
    of_element("math.fabs(A[i])", "declare.number", "abs(A[i])", "abs(A[i])"),
    of_element("math.pow(A[i], 2)", "declare.number", "x ** y", "A[i] ** 2"),
    of_element("math.log1p(A[i])", "declare.number", "tir.log(x + 1)", "tir.log(A[i] + 1)"),
    of_element("max(A[i], 0)", "declare.truth-value", "tir.maximum(A[i], 0)", "tir.maximum(A[i], 0)"),
    of_element(
        "min(A[i], B[i], 1)",
        "declare.truth-value",
        "tir.minimum(tir.minimum(A[i], B[i]), 1)",
        "tir.minimum(tir.minimum(A[i], B[i]), 1)",
    ),
    of_element(
        "A[i] if A[i] > 0 else 0", "declare.truth-value", "tir.where(A[i] > 0, A[i], 0)", "tir.where(A[i] > 0, A[i], 0)"
    ),
    of_element(
        "1 if 0 < A[i] < 5 else 0",
        "declare.truth-value",
        "tir.all_(0 < A[i], A[i] < 5)",
        "tir.where(tir.all_(0 < A[i], A[i] < 5), 1, 0)",
    ),
    of_element(
        "A[i] > 0 and B[i] > 0", "declare.truth-value", "tir.all_(A[i] > 0, B[i] > 0)", "tir.all_(A[i] > 0, B[i] > 0)"
    ),
    of_element(
        "A[i] > 0 or B[i] > 0", "declare.truth-value", "tir.any_(A[i] > 0, B[i] > 0)", "tir.any_(A[i] > 0, B[i] > 0)"
    ),
    of_element(
        "1 if A[i] == 0 else 2", "declare.truth-value", "tir.where(A[i] == 0, 1, 2)", "tir.where(A[i] == 0, 1, 2)"
    ),
    of_element(
        "1 if i in (0, 2) else 2",
        "declare.truth-value",
        "tir.any_(i == 0, i == 2)",
        "tir.where(tir.any_(i == 0, i == 2), 1, 2)",
    ),
    of_element("not A[i] > 0", "declare.truth-value", "~(A[i] > 0)", "~(A[i] > 0)"),
    of_element("not A[i]", "declare.truth-value", "tir.equal(A[i], 0)", "tir.equal(A[i], 0)"),
    of_element("bool(A[i])", "declare.truth-value", 'tir.cast(A[i], "bool")', 'tir.cast(A[i], "bool")'),
    of_element("any([A[i], B[i]])", "declare.truth-value", "tir.any(…, axis=k)", "tir.any_(A[i], B[i])"),
    of_element("sorted([A[i], B[i]])[0]", "declare.truth-value", "tir.maximum", "tir.minimum(A[i], B[i])"),
    of_element("int(A[i])", "declare.number", 'tir.cast(A[i], "int32")', 'tir.cast(A[i], "int32")'),
    of_element("float(I[i])", "declare.number", 'tir.cast(I[i], "float32")', 'tir.cast(I[i], "float32")'),
    of_element("complex(A[i])", "declare.number", "not a complex number", "A[i]"),
    of_element(
        "sum(M[i, c] for c in range(i))",
        "declare.number",
        "tir.sum(…, axis=k, where=k < bound)",
        "tir.sum(M[i, k], axis=k, where=k < i)",
    ),
    of_element("[1.0, 2.0, 3.0][i]", "declare.number", "tir.constant([1.0, 2.0, 3.0])", "tir.constant(a)[i]"),
    of_element("a[i]", "declare.number", "c = tir.constant(a) outside, c[i] here", "tir.constant(a)[i]"),
    of_element("{0: 1.0}[i]", "declare.lambda-failed", "KeyError", "tir.where(i < 1, 1.0, 0.0)"),
    of_element("sum(A[i])", "declare.iterated", "tir.sum(A[i], axis=k) over k", "tir.sum(A[r], axis=r)"),
    of_element("[x for x in A][i]", "declare.iterated", "index it with the axes", "A[i]"),
    of_element("A[i] * a", "declare.captured-array", "tir.constant(array)", "A[i] * tir.constant(a)[i]"),
    of_element("A[i] + '1'", "declare.value", "cannot use '1'", "A[i] + 1"),
    of_element("I[i] ** -1", "declare.power", "x ** -1.0, which is a float", "I[i] ** -1.0"),
    of_element("A[i] & 1", "declare.bitwise", "tir.cast(x, 'int32') for its value", "tir.cast(A[i], 'int32') & 1"),
    of_element("None", "declare.lambda-none", "return the element's expression", "A[i]"),
    (
        "A[0] = 1",
        "declare.assigned",
        "tir.compute((12,), lambda i: tir.where(tir.equal(i, 0), value, A[i]))",
        "tir.compute((12,), lambda i: tir.where(tir.equal(i, 0), 1, A[i]))",
    ),
    ("for x in A: pass", "declare.iterated", "index it with the axes", "declare(lambda i: A[i])"),
    ("sum(A)", "declare.iterated", "A.sum(axis=0)", "A.sum(axis=0)"),
    ("max(M)", "declare.iterated", "M.max(axis=0)", "M.max(axis=0)"),
    ("math.exp(A)", "declare.number", "tir.exp(A)", "tir.exp(A)"),
    ("declare(lambda i: A[i] @ B[i])", "declare.function", "A @ B of whole tensors", "A @ B"),
    ("if A: pass", "declare.truth-value", "tir.where", "A > 0"),
    # indices
    of_element("M[i][0]", "declare.rank", "M[i, 0]", "M[i, 0]"),
    of_element("A[i][0]", "declare.indexed", "A[i, 0]", "A[i]"),
    of_element("M[i]", "declare.rank", "M[i, j]", "M[i, 0]"),
    of_element("M[i, :]", "declare.slice", "index one element with axes", "M[i, 0]"),
    of_element("M[i, ...]", "declare.slice", "index one element with axes", "M[i, 0]"),
    of_element("A[-1]", "declare.out-of-range", "A[11]", "A[11]"),
    of_element("M[i, -2]", "declare.out-of-range", "M[i, 6]", "M[i, 6]"),
    of_element("A[i - 1]", "declare.out-of-range", "A.get(i - 1, fill=0)", "A.get(i - 1, fill=0)"),
    of_element("A[i / 2]", "declare.index-type", "i // 2", "A[i // 2]"),
    of_element("A[1.0]", "declare.index-type", "tir.cast(…, 'int32')", "A[1]"),
    of_element("A(i)", "declare.called", "A[i]", "A[i]"),
    of_element("A + 1", "declare.whole", "add[i]", "A[i] + 1"),
    of_element("A[i] + B", "declare.whole", "B[i]", "A[i] + B[i]"),
    of_element("A[i] * 1j", "declare.value", "real and imaginary", "A[i] * 0"),
    of_element("A[[0, 1]]", "declare.whole", "at = tir.placeholder((2,)", "A[0]"),
    of_element("A", "declare.whole", "A[i]", "A[i]"),
    of_element("A[i].exp()", "attribute.unknown", "tir.exp(x)", "tir.exp(A[i])"),
    of_element("A[i].clip(0, 1)", "attribute.unknown", "np.clip(x, 0, 1)", "np.clip(A[i], 0, 1)"),
    of_element("A[i].item()", "attribute.unknown", "once the kernel runs", "A[i]"),
    of_element("A[i].shape[0] * A[i]", "attribute.unknown", "A.shape is the tensor's", "A.shape[0] * A[i]"),
    # NumPy and torch
    of_element("np.cumsum(A[i])", "declare.function", "tir.scan(A, axis=0)", "tir.scan(A, axis=0)[i]"),
    of_element("np.log1p(A[i])", "declare.function", "tir.log(x + 1)", "tir.log(A[i] + 1)"),
    of_element(
        "np.hypot(A[i], B[i])", "declare.function", "tir.sqrt(x * x + y * y)", "tir.sqrt(A[i] * A[i] + B[i] * B[i])"
    ),
    of_element("np.sum(A[i])", "declare.function", "over k = tir.reduce_axis(n)", "tir.sum(A[r], axis=r)"),
    of_element("np.add.reduce(A[i])", "declare.function", "A.sum(axis=0)", "A.sum(axis=0)[()] + A[i]"),
    of_element("np.exp(A[i], dtype='f8')", "declare.function", "np.exp with dtype=", "np.exp(A[i].astype('f8'))"),
    of_element("np.array([A[i], B[i]])[0]", "declare.number", "f(a, b)", "A[i]"),
    of_element("np.gcd(I[i], J[i])", "declare.function", "means nothing", "I[i] + J[i]"),
    (
        "np.concatenate([A, B])",
        "declare.function",
        "tir.where(i < n, A.get(i), B.get(i - n))",
        "tir.compute((n + n,), lambda i: tir.where(i < n, A.get(i), B.get(i - n)))",
    ),
    ("np.einsum('ik,kj->ij', M, W)", "declare.function", "k = tir.reduce_axis(l)", "M @ W"),
    (
        "np.pad(A, 1)",
        "declare.function",
        "A.get(i - 1, fill=0)",
        "tir.compute((n + 2,), lambda i: A.get(i - 1, fill=0))",
    ),
    ("np.cumsum(A)", "declare.function", "tir.scan(A, axis=0)", "tir.scan(A, axis=0)"),
    ("np.sort(A)", "declare.function", "nothing sorts here", "A"),
    ("np.std(A)", "declare.function", "(A - A.mean())", "D = A - A.mean(); np.sqrt((D * D).mean())"),
    ("np.var(A)", "declare.function", "D = A - A.mean(); (D * D).mean()", "D = A - A.mean(); (D * D).mean()"),
    ("np.linalg.norm(A)", "declare.function", "tir.sqrt((A * A).sum())", "tir.sqrt((A * A).sum())"),
    (
        "np.stack([A, B])",
        "declare.function",
        "tir.where(s < 1, A[i], B[i])",
        "tir.compute((2, n), lambda s, i: tir.where(s < 1, A[i], B[i]))",
    ),
    ("np.asarray(A)", "declare.number", "f(a, b)", "C"),
    ("np.outer(A, B)", "declare.function", "a[i] * b[j]", "tir.compute((n, n), lambda i, j: A[i] * B[j])"),
    ("np.flip(A)", "declare.function", "A[n - 1 - i]", "A[::-1]"),
    ("A[I]", "declare.whole", "lambda i: A[I[i]]", "tir.compute((n,), lambda i: A[I[i]])"),
    (
        "A[[0, 1]]",
        "declare.whole",
        "at = tir.placeholder((2,)",
        "at = tir.placeholder((2,), 'int32'); tir.compute((2,), lambda i: A[at[i]])",
    ),
    (
        "M[[0, 1]]",
        "declare.whole",
        "tir.compute((2, 8), lambda i, j: M[at[i], j]) with at = tir.placeholder((2,)",
        'at = tir.placeholder((2,), "int32", name="at"); tir.compute((2, 8), lambda i, j: M[at[i], j])',
    ),
    (
        "M[np.array([3, 1, 0])]",
        "declare.whole",
        "tir.compute((3, 8), lambda i, j: M[at[i], j]) with at = tir.placeholder((3,)",
        'at = tir.placeholder((3,), "int32", name="at"); tir.compute((3, 8), lambda i, j: M[at[i], j])',
    ),
    ("M[I]", "declare.whole", "lambda i, j: M[I[i], j]", "tir.compute((12, 8), lambda i, j: M[I[i], j])"),
    ("M[M > 0]", "declare.whole", "tir.where(greater, M, 0)", "tir.where(M > 0, M, 0)"),
    (
        "tir.gather_nd(M, I)",
        "attribute.unknown",
        "an index tensor at",
        "tir.compute((n,), lambda i: M[I[i], I[i] % 8])",
    ),
    ("tir.gather(A, I)", "attribute.unknown", "A[at[i]]", "tir.compute((n,), lambda i: A[I[i]])"),
    ("tir.take(A, I)", "attribute.unknown", "A[at[i]]", "tir.compute((n,), lambda i: A[I[i]])"),
    (
        "tir.scatter_add(A, I, B)",
        "attribute.unknown",
        "index=lambda t: (at[t],)",
        "tir.scatter((n,), over=(n,), index=lambda t: (I[t],), value=lambda t: B[t])",
    ),
    ("A.nonzero()", "attribute.unknown", "known at launch only", "tir.where(A > 0, A, 0)"),
    ("tir.boolean_mask(A, A > 0)", "attribute.unknown", "known at launch only", "tir.where(A > 0, A, 0)"),
    (
        "tir.while_loop(lambda i: i < 5, lambda i: i + 1, 0)",
        "attribute.unknown",
        "tir.reduce_axis(n)",
        "tir.reduce_axis(5)",
    ),
    ("tir.fori_loop(0, 5, lambda i, x: x + i, A)", "attribute.unknown", "tir.reduce_axis(n)", "tir.reduce_axis(5)"),
    ("tir.cond(True, A, B)", "attribute.unknown", "tir.where(p, a, b)", "tir.where(A > 0, A, B)"),
    (
        "tir.vmap(lambda a: a + 1)(M)",
        "attribute.unknown",
        "one more axis",
        "tir.compute((n, 8), lambda z, i: M[z, i] + 1)",
    ),
    ("tir.grad(lambda a: (a * a).sum())", "attribute.unknown", "no gradients", "A * 2"),
    ("tir.value_and_grad(lambda a: a)", "attribute.unknown", "no gradients", "A * 2"),
    ("tir.conj(A)", "attribute.unknown", "no complex numbers", "A"),
    ("A.real", "attribute.unknown", "no complex numbers", "A"),
    ("A * 1j", "declare.value", "real and imaginary", "A * 0, A * 1"),
    ("A * np.complex64(1j)", "declare.value", "real and imaginary", "A * 0, A * 1"),
    ("tir.placeholder((n,), complex)", "declare.dtype", "real and imaginary", "tir.placeholder((n,), float)"),
    ("A[A > 0]", "declare.whole", "tir.where(greater, A, 0)", "tir.where(A > 0, A, 0)"),
    ("A.sum(dtype='f8')", "declare.function", 'A.astype("float32") before', "A.astype('f8').sum()"),
    ("A.sum(where=A > 0)", "declare.function", "tir.where(cond, A, 0)", "tir.where(A > 0, A, 0).sum()"),
    ("A.astype()", "argument.call", "astype(dtype)", "A.astype('f4')"),
    ("A.var()", "attribute.unknown", "D = A - A.mean()", "D = A - A.mean(); (D * D).mean()"),
    ("s.C", "attribute.unknown", 's["C"]', 's["C"]'),
    ("A + M", "declare.broadcast", "B[:, None]", "A[:, None] + M"),
    ("M @ M", "matmul.shape", "M @ M.T", "M @ M.T"),
    ("A.reshape(5, -1)", "declare.reshape", "A.reshape(12, -1)", "A.reshape(12, -1)"),
    ("A.view(3, 4)", "attribute.unknown", "A.reshape(n, m)", "A.reshape(3, 4)"),
    ("A.numpy()", "attribute.unknown", "c = f(a, b)", "C"),
    ("A.to('cuda')", "attribute.unknown", "s.build(device=…)", 'A.astype("float16")'),
    ("A.cuda()", "attribute.unknown", 'tir.Schedule(C, target="cuda")', 'tir.Schedule(C, target="cuda")'),
    ("A.float()", "attribute.unknown", 'A.astype("float32")', 'A.astype("float32")'),
    ("A.unsqueeze(0)", "attribute.unknown", "A[None, :]", "A[None, :]"),
    ("M.mm(W)", "attribute.unknown", "A @ B", "M @ W"),
    (
        "A.softmax(0)",
        "attribute.unknown",
        "E / E.sum",
        "E = tir.exp(M - M.max(axis=1, keepdims=True)); E / E.sum(axis=1, keepdims=True)",
    ),
    ("A.backward()", "attribute.unknown", "no gradients", "A"),
    ("A.shap", "attribute.unknown", "shape", "A.shape"),
    ("A.summ()", "attribute.unknown", "sum?", "A.sum()"),
    ("tir.sum(A, axis=r)", "declare.whole", "axis=0", "tir.sum(A, axis=0)"),
    ("tir.zeros((n,))", "attribute.unknown", "tir.compute((n,), lambda i: 0.0)", "tir.compute((n,), lambda i: 0.0)"),
    ("tir.array(a)", "attribute.unknown", "tir.constant(values)", "tir.constant(a)"),
    ("tir.relu(A)", "attribute.unknown", "tir.nn.relu(A)", "tir.nn.relu(A)"),
    ("tir.matmul(M, W)", "attribute.unknown", "tir.nn.matmul(A, B)", "tir.nn.matmul(M, W)"),
    ("tir.float32", "attribute.unknown", '"float32"', 'tir.placeholder((n,), "float32")'),
    ("tir.mean(A)", "attribute.unknown", "tir.reduce_axis(n)", "A.mean()"),
    ("tir.nn.Linear(8, 8)", "attribute.unknown", "A @ W.T + b", "M @ W + A"),
    ("tir.nn.Conv2d", "attribute.unknown", "tir.nn.conv2d", "tir.nn.conv2d"),
    ("tir.computee", "attribute.unknown", "compute", "tir.compute"),
    ('tir.placeholder((n,), "complex64")', "declare.dtype", "float32", 'tir.placeholder((n,), "float32")'),
    ('tir.placeholder((n,), "float33")', "declare.dtype", "float32", 'tir.placeholder((n,), "float32")'),
    ("tir.placeholder((n, None))", "declare.shape", "ints", "tir.placeholder((n, 4))"),
    ("tir.placeholder((n,), device='cuda')", "argument.call", "s.build(device=…)", "tir.placeholder((n,))"),
    ('tir.placeholder((n,), "complex64")  # a wave', "declare.dtype", "real and imaginary", "tir.placeholder((n,))"),
    (
        'tir.placeholder((n,), "tf32")',
        "declare.dtype",
        'precision="tf32"',
        'tir.ops.matmul(m=64, n=64, k=64, precision="tf32")',
    ),
    (
        "tir.compute(lambda i: A[i], (n,))",
        "declare.shape",
        "tir.compute((n, m), lambda i, j: …)",
        "declare(lambda i: A[i])",
    ),
    ("tir.max(1, 2)", "reduce.axis", "tir.maximum(a, b)", "tir.maximum(1, 2)"),
    (
        "declare(lambda i: tir.min(A[i], B[i]))",
        "reduce.axis",
        "tir.minimum(a, b)",
        "declare(lambda i: tir.minimum(A[i], B[i]))",
    ),
    ("tir.sum(A[r], dim=r)", "argument.call", "axis=k", "tir.sum(A[r], axis=r)"),
    ("tir.nn.matmul(M, W, transpose_b=True)", "argument.call", "matmul(a, b, ta, tb", "tir.nn.matmul(M, M, tb=True)"),
    ("tir.ops.matmull(m=8)", "attribute.unknown", "matmul", "tir.ops.matmul(m=8, n=8, k=8)"),
    ("tir.ops.matmul(M=8, N=8, K=8)", "argument.call", "matmul(m, n, k", "tir.ops.matmul(m=8, n=8, k=8)"),
    ("tir.Schedule(C, device='cuda')", "argument.call", "s.build(device=", "tir.Schedule(C, target='cuda')"),
    ("tir.Schedule(C, 'gpu')", "target.unknown", '"cuda"', "tir.Schedule(C, 'cuda')"),
    ("tir.Schedule(C, 'llvm')", "target.unknown", '"opencl"', "tir.Schedule(C, 'opencl')"),
    ("tir.Schedule(A)", "declare.output", "pass the result of tir.compute", "tir.Schedule(A + 1)"),
    ("tir.Space(tile=8)", "space.knob-values", "tile=[8]", "tir.Space(tile=[8])"),
    (
        "tir.ops.matmul(m=8, n=8, k=8).tune(n_trial=9)",
        "tune.option",
        "trials=200",
        "tir.ops.matmul(m=8, n=8, k=8).tune",
    ),
    ("tir.ops.matmul(m=8, n=8, k=8).tune(patienc=9)", "tune.option", "patience", "tir.ops.matmul(m=8, n=8, k=8).tune"),
    (
        "tir.ops.matmul(m=8, n=8, k=8).build()",
        "attribute.unknown",
        "w.schedule().build()",
        "tir.ops.matmul(m=8, n=8, k=8).schedule()",
    ),
    ('tir.placeholder((n,), "fp17")', "declare.dtype", '"float', 'tir.placeholder((n,), "fp16")'),
    ('tir.placeholder((n,), "foat32")', "declare.dtype", '"float32"', "tir.placeholder((n,))"),
    of_element(
        "1 if " + "(" * 18 + "A[i]" + " + 1)" * 18 + " else 0", "declare.truth-value", "tir.where(cond, a, b)", "A[i]"
    ),
    # TVM
    ("tir.te.placeholder((n,), name='X')", "attribute.unknown", "tir.placeholder", "tir.placeholder((n,), name='X')"),
    ("from tensorir import te", "attribute.unknown", "tir.placeholder", "from tensorir import placeholder"),
    (
        "from tensorir import Func, Var",
        "attribute.unknown",
        "tir.compute((n, m), lambda",
        "from tensorir import compute",
    ),
    ("from tensorir import placholder", "attribute.unknown", "placeholder?", "from tensorir import placeholder"),
    ("tir.create_schedule(C.op)", "attribute.unknown", "s = tir.Schedule(C)", "s = tir.Schedule(C)"),
    ("tir.thread_axis('threadIdx.x')", "attribute.unknown", 's.bind(axis, "thread.x")', 's.bind("C.i", "thread.x")'),
    ("tir.build(s, [A, B], 'llvm')", "attribute.unknown", "tir.Schedule(C).build()", "tir.Schedule(C).build"),
    ("tir.lower(s, [A, B], simple_mode=True)", "attribute.called", "print(s)", "print(s); s.source()"),
    ("tir.check(s)", "attribute.called", "s.check()", "s.check()"),
    ("tir.var('n')", "attribute.unknown", "extents are ints", "tir.placeholder((1024,))"),
    ("tir.if_then_else", "attribute.unknown", "tir.where(cond, a, b)", "declare(lambda i: tir.where(A[i] > 0, 1, 0))"),
    (
        "tir.comm_reducer",
        "attribute.unknown",
        "tir.combiner(lambda a, b: a + b, 0)",
        "tir.combiner(lambda a, b: a + b, 0)",
    ),
    ("tir.floordiv", "attribute.unknown", "a // b", "declare(lambda i: I[i] // 2)"),
    ("tir.topi.nn.relu(A)", "attribute.unknown", "tir.nn", "tir.nn.relu(A)"),
    ("tir.reduce_axis((0, n), name='k')", "declare.shape", "tir.reduce_axis(12)", "tir.reduce_axis(12, name='k')"),
    ("tir.reduce_axis(0, n)", "declare.shape", "tir.reduce_axis(12)", "tir.reduce_axis(12)"),
    ("tir.reduce_axis(range(n))", "declare.shape", "tir.reduce_axis(12)", "tir.reduce_axis(12)"),
    ("tir.compute((n,), lambda i: A[i], tag='elemwise')", "argument.call", "leave it out", "declare(lambda i: A[i])"),
    ("C.op.axis", "attribute.unknown", 's.split("C.i", [None, 8])', 's.split("C.i", [None, 8])'),
    ("C.op.reduce_axis", "attribute.unknown", 's.split("C.k", [None, 8])', 's.split("C.k", [None, 8])'),
    ("s[C].op.axis", "attribute.unknown", "s[C].axes", "s[C].axes"),
    ("s[C].split('i', factor=4)", "argument.call", "[None, 8]", "s[C].split('i', [None, 4])"),
    ("s.split('C.i', factor=4)", "argument.call", "[None, 8]", "s.split('C.i', [None, 4])"),
    ("s.split('C.i', nparts=4)", "argument.call", "[8, None]", "s.split('C.i', [4, None])"),
    ("s.split('C.i', 4)", "split.factors", "[None, 4]: 4 iterations inside", "s.split('C.i', [None, 4])"),
    (
        "s[C].tile('i', 'j', x_factor=4, y_factor=4)",
        "argument.call",
        "factors=[8, 8]",
        "s[C].tile('i', 'j', factors=[4, 4])",
    ),
    ("s.tile('C.i', 'C.j', 4, 4)", "argument.call", "tile(axes, factors)", "s.tile('C.i', 'C.j', factors=[4, 4])"),
    (
        "s.cache_read(W, 'shared', [C])",
        "attribute.unknown",
        "s.stage_in(A, at=",
        "s.stage_in(W, at='C.i', scope='shared')",
    ),
    ("s.cache_write(C, 'local')", "attribute.unknown", "s.stage_out(", "s.stage_out(C, at='C.i', scope='register')"),
    ("s.stage_in(W, 'C.i', 'local')", "scope.unknown", '"register"', "s.stage_in(W, 'C.i', 'register')"),
    ("s.set_scope('P', 'local')", "scope.unknown", '"register"', "s.set_scope('P', 'global')"),
    ("s[P].set_scope('shared')", "attribute.unknown", 's.set_scope("P", …)', "s.set_scope('P', 'global')"),
    ("s.bind('C.i', 'blockIdx.x')", "bind.unknown-axis", '"block.x"', "s.bind('C.i', 'block.x')"),
    ("s.bind('C.i', 'threadIdx.x')", "bind.unknown-axis", '"thread.x"', "s.bind('C.i', 'thread.x')"),
    (
        "s.bind('C.i', thread_axis='threadIdx.x')",
        "argument.call",
        's.bind(axis, "block.x")',
        "s.bind('C.i', 'thread.x')",
    ),
    ("s.reorder(['C.j', 'C.i'])", "argument.type", "one by one: 'C.j', 'C.i'", "s.reorder('C.j', 'C.i')"),
    ("s.fuse(['C.i', 'C.j'])", "argument.type", "one by one: 'C.i', 'C.j'", "s.fuse('C.i', 'C.j')"),
    ("s.vectorize('C.j', factor=4)", "argument.call", "vectorize the inner one", "s.split('C.j', [None, 4])"),
    ("s.unroll('C.k', factor=4)", "argument.call", "unroll the inner one", "s.unroll(s.split('C.k', [None, 4])[1])"),
    ("s.get_loops('C')", "attribute.unknown", 's.loops("C")', 's.loops("C")'),
    ("s.get_block('C')", "attribute.unknown", 's["C"]', 's["C"]'),
    ("s.double_buffer('P')", "attribute.unknown", "s.pipeline(", "s.pipeline"),
    ("s.storage_align('P', 0, 8, 1)", "attribute.unknown", "s.layout(tensor, pad=1)", "s.layout('P', pad=1)"),
    ("s.pragma('C.k', 'unroll')", "attribute.unknown", 's.unroll("C.k")', 's.unroll("C.k")'),
    ("s.lower()", "attribute.unknown", "s.source()", "s.source()"),
    ("s.mod.show()", "attribute.unknown", "print(s)", "print(s)"),
    ("s.splitt('C.i', [None, 4])", "attribute.unknown", "split?", "s.split('C.i', [None, 4])"),
    (
        "s.build(target='cuda')",
        "argument.call",
        'tir.Schedule(C, target="cuda").build()',
        'tir.Schedule(C, target="cuda").build',
    ),
    ("s.split('i', [None, 4], names='o')", "loop.ambiguous", "P.i", "s.split('C.i', [None, 4])"),
    # Halide
    ("tir.Func('f')", "attribute.unknown", "tir.compute((n, m), lambda i, j: …)", "declare(lambda i: A[i])"),
    ("tir.Var('x')", "attribute.unknown", "the lambda's parameters are the axes", "declare(lambda x: A[x])"),
    ("tir.RDom(0, n)", "attribute.unknown", "k = tir.reduce_axis(n)", "k = tir.reduce_axis(n)"),
    ("tir.ImageParam(2)", "attribute.unknown", "tir.placeholder((n, m))", "tir.placeholder((n, 8))"),
    ("tir.Param('f')", "attribute.unknown", 'tir.scalar("alpha")', 'tir.scalar("alpha")'),
    ("tir.select", "attribute.unknown", "tir.where(cond, a, b)", "tir.where"),
    (
        "s[C].gpu_tile('i', 'j', 8, 8)",
        "attribute.unknown",
        "factors=[8, 8]",
        'xo, yo, xi, yi = s.tile("C.i", "C.j", factors=[8, 8])',
    ),
    ("s[P].store_at('C', 'i')", "attribute.unknown", "s.compute_at(", 's.compute_at("P", "C.i")'),
    ("s[P].compute_root()", "attribute.unknown", "loops of its own", "s"),
    ("s.parallel('C.i', num_threads=2)", "argument.call", "all cores are used", "s.parallel('C.i')"),
    ("s.realize([n, n])", "attribute.unknown", "c = f(a, b)", "s.build"),
    ("s.print_loop_nest()", "attribute.unknown", "print(s)", "print(s)"),
    # Triton, Numba, loopy
    ("tir.jit(lambda x: x)", "attribute.unknown", "a kernel is declared, not written", "declare(lambda i: A[i])"),
    ("tir.program_id(0)", "attribute.unknown", 's.bind(axis, "block.x")', 's.bind("C.i", "block.x")'),
    ("tir.load(A, mask=None)", "attribute.unknown", "A.get(i, j, fill=0)", "M.get(0, 0, fill=0)"),
    ("tir.arange(0, 8)", "attribute.unknown", "tir.compute((n,), lambda i: i)", "tir.compute((n,), lambda i: i)"),
    ("tir.dot(M, W)", "attribute.unknown", "A @ B", "M @ W"),
    ("tir.cdiv(n, 5)", "attribute.unknown", "-(-n // m)", "-(-n // 5)"),
    (
        "tir.autotune(configs=[])",
        "attribute.unknown",
        "tir.Workload(",
        'tir.Workload("mine", C, {"default": (lambda s, c: s, tir.Space(tile=[4, 8]))})',
    ),
    ("tir.prange(n)", "attribute.unknown", 's.parallel("C.i")', 's.parallel("C.i")'),
    ("tir.njit", "attribute.unknown", "a kernel is declared, not written", "declare(lambda i: A[i])"),
    ("tir.make_kernel('{[i]: 0<=i<n}', '')", "attribute.unknown", "a kernel is declared", "declare(lambda i: A[i])"),
    ("tir.split_iname(s, 'i', 4)", "attribute.unknown", 's.split("C.i", [None, 8])', 's.split("C.i", [None, 8])'),
    ("s.tag_inames('i:g.0')", "attribute.unknown", 's.bind(axis, "block.x")', 's.bind("C.i", "block.x")'),
    ("s.add_prefetch('W')", "attribute.unknown", "s.stage_in(", 's.stage_in(W, at="C.i", scope="shared")'),
    ("s.bind('C.i', 'g.0')", "bind.unknown-axis", '"block.x"', "s.bind('C.i', 'block.x')"),
]
ON_DEVICE = [
    ("f.get_source()", "attribute.unknown", "f.source", "f.source"),
    ("f.imported_modules[0].get_source()", "attribute.unknown", "f.source", "f.source"),
    ("f.time_evaluator('f', 0)", "attribute.unknown", "f.time(a, b).median_s", "f.time(m, w, repeat=1).median_s"),
    ("f.export_library('x.so')", "attribute.unknown", "f.export(", "f.export"),
    ("f.run(m, w)", "attribute.unknown", "f(a, b)", "f(m, w)"),
    ("f(M=m, V=w)", "launch.keyword", "W", "f(M=m, W=w)"),
    ("f(m, M=m)", "launch.keyword", "given twice", "f(m, W=w)"),
    ("f(M=m)", "launch.count", "missing: W", "f(W=w, M=m)"),
    ("f(m, w, grid=(1, 1))", "launch.keyword", "grid is no input", "f(m, w)"),
    ("f(m.tolist(), w)", "launch.type", "numpy.asarray(M)", "f(np.asarray(m.tolist(), 'f4'), w)"),
    ("f(m.astype('f8'), w)", "launch.dtype", "float32", "f(m.astype('f8').astype('f4'), w)"),
    ("f.time(m, w, number=3)", "launch.keyword", "number", "f.time(m, w, repeat=3)"),
    ("f.export('out', to='sorce')", "export.destination", "source", "f.export('out', to='source')"),
    (
        "f.export('out', fmt='source')",
        "argument.call",
        'to=["source"]',
        "import pathlib; f.export(pathlib.Path('out'), to='source')",
    ),
]


def answered(typed, code, words):
    with pytest.raises(tir.TensorIRError) as caught:
        run(typed)
    text = str(caught.value)
    lines = text.splitlines()
    assert caught.value.code == code, text
    assert words in text
    assert len(lines) <= 12, text
    assert max(map(len, lines)) <= 200, text
    assert f"<typed>:{1 + (PRELUDE + typed).count(chr(10))}" in text
    assert typed.splitlines()[-1].strip() in text  # the user's line


@pytest.mark.parametrize(("typed", "code", "words", "remedy"), ANSWERED, ids=[a[0] for a in ANSWERED])
def test_answered(typed, code, words, remedy):
    answered(typed, code, words)
    run(remedy)


@pytest.mark.usefixtures("unoptimised")
@pytest.mark.parametrize(("typed", "code", "words", "remedy"), ON_DEVICE, ids=[a[0] for a in ON_DEVICE])
def test_answered_by_what_runs(typed, code, words, remedy, tmp_path, monkeypatch):
    pytest.importorskip("pyopencl")
    monkeypatch.chdir(tmp_path)
    built = "f = s.build(); m = np.ones((n, 8), 'f4'); w = np.ones((8, n), 'f4')\n"
    answered(built + typed, code, words)
    run(built + remedy)


def test_the_table_is_long_enough_and_has_no_row_twice():
    rows = [*WORKS, *(a[0] for a in (*ANSWERED, *ON_DEVICE))]
    assert len(rows) >= 120
    assert len(set(rows)) == len(rows)


@pytest.mark.parametrize("kind", HABITS)
def test_every_entry_is_a_remedy_for_something_that_is_not_there(kind):
    """What the table answers does not exist, so that the answer is given."""
    there = {"workload": tir.Workload, "tir": tir,
             "nn": tir.nn, "schedule": tir.Schedule, "tensor": tir.Tensor, "executable": tir.Executable,
             "element": type(tir.scalar("x")), "op": type(tir.nn.relu(tir.placeholder((2,))).op)}  # fmt: skip
    for name, remedy in HABITS[kind].items():
        assert remedy != name, (kind, name)
        assert 0 < len(remedy) <= 130, (kind, name)
        if kind in there:
            assert not hasattr(there[kind], name), f"{kind}.{name} exists: its row in the table of habits goes"


# --- one parser for each sort of argument, behind every entry point

SAID = {"float32": ["fp32", "f32", "single", "f4", np.float32], "float16": ["fp16", "f16", "half", np.float16],
        "bfloat16": ["bf16"], "int32": ["i32", "s32", np.int32], "uint8": ["u1"], "int64": ["i8", "i64", int],
        "float8_e4m3": ["e4m3", "fp8_e4m3"], "float64": ["f64", "double", float]}  # fmt: skip


@pytest.mark.parametrize(("name", "said"), [(n, s) for n, ways in SAID.items() for s in ways])
def test_dtypes_are_understood_everywhere(name, said):
    A = tir.placeholder((4, 4), said, name="A")
    assert A.dtype == tir.scalar("x", said).dtype == A.astype(said).dtype == tir.cast(1, said).dtype == name
    assert tir.nn.convert(A, said).dtype == tir.nn.matmul(A, A, accumulate=said).dtype == name
    assert tir.compute((4,), lambda i: tir.exp(A[i, 0]).astype(said)).dtype == name
    if name.startswith("float") and name[5:] in ("16", "32"):
        assert tir.ops.matmul(m=8, n=8, k=8, dtype=said).outputs[0].dtype == name


@pytest.mark.usefixtures("unoptimised")
def test_paths_destinations_and_lists_of_one(tmp_path):
    pytest.importorskip("pyopencl")
    A = tir.placeholder((np.int64(8),), name="A")
    s = tir.Schedule(A + 1)
    (axis,) = s.split("add.i", [8], names="only")
    assert axis == "add.only"
    assert s.check(shapes={"add.i": 5}).shapes == s.check(shapes=[{"add.i": 5}]).shapes
    f = s.build()
    for place, to in ((tmp_path / "a", "source"), (str(tmp_path / "b"), ["source"]), (tmp_path / "c", ("pyopencl",))):
        assert (f.export(place, to=to) / "manifest.json").exists()
    with pytest.raises(tir.NotTuned):
        tir.ops.matmul(m=8, n=8, k=8).load(log=tmp_path / "logs")
