"""Whole tensors mean what NumPy means: shapes, types and, of small integers, every bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorir as tir
from tensorir.expr.program import inputs_of
from tensorir.interp.reference import evaluate

VALUES = {
    "A": np.arange(24, dtype="f4").reshape(4, 6) % 7 - 2,
    "B": np.arange(6, dtype="f4") - 2,
    "M": np.arange(30, dtype="i4").reshape(6, 5) - 9,
    "V": np.arange(3 * 2 * 4, dtype="f4").reshape(3, 2, 4) % 5,
    "Q": np.arange(4, dtype="u1").reshape(2, 2) + 250,
    "T": np.arange(6).reshape(2, 3) % 2 == 0,
    "H": (np.arange(8) - 3).astype("f2"),
}
TYPED = [
    "A + B", "A * 2 - 1", "2 / (A + 3)", "A // 2 + A % 3", "A**2", "abs(B)", "-A", "+A", "2**B", "B**2.0", "A > B",
    "~(A > B)", "(A > 0) & (A < 3)", "M << 1", "M & 3", "divmod(A, B + 9)[1]", "A + np.float32(2)", "np.float32(2) * A",
    "A @ B", "B @ B", "A @ A.T", "A.T @ A", "B @ M.astype('f4')", "V @ V.transpose(0, 2, 1)", "M.T @ M", "A @ M",
    "V @ V[0, ...].T",
    "np.dot(A, B)", "np.matmul(A, B)",
    "A.sum()", "A.sum(axis=0)", "A.sum(axis=-1)", "A.sum((0, 1))", "A.sum(axis=1, keepdims=True)", "np.sum(A, axis=1)",
    "M.sum()", "Q.sum()", "Q.prod(axis=0)", "T.sum(axis=1)", "A.prod(axis=0)", "A.max()", "np.max(A, axis=0)",
    "np.min(A)", "A.mean()", "A.mean(axis=1)", "M.mean(axis=0)", "np.mean(A, axis=0, keepdims=True)", "H.mean()",
    "A.any()", "np.all(A, axis=0)", "(A > 3).all(axis=1)", "A - A.mean(axis=1, keepdims=True)", "np.amax(A, axis=0)",
    "A.T", "V.T", "A.transpose()", "V.transpose(1, 2, 0)", "V.transpose((2, 0, 1))", "np.transpose(V)",
    "A.swapaxes(0, 1)", "np.swapaxes(V, 0, 2)", "A.reshape(6, 4)", "A.reshape((2, 12))", "A.reshape(-1)",
    "A.reshape(2, -1, 3)", "A.ravel()", "V.flatten()", "np.reshape(V, (4, 6))", "np.ravel(V)", "A[:, None].squeeze()",
    "np.squeeze(A[None], 0)", "np.expand_dims(B, 1)", "A[1:3]", "A[:, ::2]", "A[..., 0]", "A[None]", "A[:, None, 1:]",
    "A[::-1, -1:]", "A[-1, :]", "A[1:1]", "A[-3:-1, 5:0:-2]", "V[0, ...]", "A[2:, :] + B[None, :]",
    "np.exp(A)", "np.where(A > 3, A, 0)", "np.maximum(A, B)", "np.clip(A, -1, 2)", "A.clip(0, 1)", "A.clip(min=0)",
    "A.round()", "np.round(A / 4, 1)", "np.sign(A)", "np.square(A)", "np.sqrt(abs(A))", "np.equal(A, B)",
    "A.astype('int32')",
    "M.astype(float)", "np.logical_not(A)", "np.isnan(A)", "A.size", "A.ndim", "A.shape", "len(A)",
    "np.shape(A)", "np.ndim(V)",
]  # fmt: skip


def declared(values=VALUES):
    return {n: tir.placeholder(v.shape, v.dtype, name=n) for n, v in values.items()}


def computed(tensor, values=VALUES):
    return evaluate((tensor,), [values[t.name] for t in inputs_of((tensor,))])[0]


@pytest.mark.parametrize("typed", dict.fromkeys(TYPED))
def test_as_numpy(typed):
    got, want = eval(typed, {"np": np, **declared()}), eval(typed, {"np": np, **VALUES})
    if not isinstance(got, tir.Tensor):
        assert got == want
        return
    made = computed(got) if got.op is not None else VALUES[got.name]
    assert (got.shape, got.dtype) == (want.shape, want.dtype.name)
    assert (made.shape, made.dtype) == (want.shape, want.dtype)
    exact = not any(f in typed for f in ("exp", "sqrt", "/", "mean", "**B"))
    assert np.array_equal(made, want) if exact else np.allclose(made, want, rtol=1e-6)
    if got.op is not None and got.size:
        assert tir.Schedule(got).check()


@pytest.mark.parametrize(("typed", "same"), [
    ("tir.where(A > 3, A, 0)", "np.where(A > 3, A, 0)"), ("tir.maximum(A, B)", "np.maximum(A, B)"),
    ("tir.sum(A, axis=0)", "A.sum(axis=0)"), ("tir.max(A)", "A.max()"), ("tir.cast(A, 'int32')", "A.astype('i4')"),
    ("tir.sum(A, axis=1, keepdims=True)", "A.sum(axis=1, keepdims=True)"), ("tir.abs(A)", "abs(A)"),
    ("tir.equal(A, B)", "A == B"), ("tir.all_(A > 0, A < 3)", "(A > 0) & (A < 3)"),
    ("tir.floor(A / 2)", "np.floor(A / 2)"),
    ("A.argmax(axis=1)", "A.argmax(axis=1).astype('i4')"), ("np.argmin(B)", "np.argmin(B).astype('i4')"),
    ("A.argmax()", "A.argmax().astype('i4')"),
    ("np.argmin(A, keepdims=True)", "np.argmin(A, keepdims=True).astype('i4')"),
    ("tir.scalar('alpha') * 0 + A", "A"), ("A.sum(dim=0, keepdim=True)", "A.sum(axis=0, keepdims=True)"),
])  # fmt: skip
def test_in_our_words(typed, same):
    got, want = eval(typed, {"tir": tir, "np": np, **declared()}), np.asarray(eval(same, {"np": np, **VALUES}))
    assert got.dtype == want.dtype.name
    scalars = [np.float32(3)] if "alpha" in typed else []  # it is declared last
    assert np.array_equal(evaluate((got,), [VALUES[t.name] for t in inputs_of((got,))] + scalars)[0], want)


def torchs(name):
    """A function of torch's, as it reaches a class that takes its calls over."""

    def function(*args, **kwargs):
        return type(args[0]).__torch_function__(function, (), args, kwargs)

    function.__name__ = name
    return function


def test_functions_of_torch():
    t = declared()
    A, B, a, b = t["A"], t["B"], VALUES["A"], VALUES["B"]
    for made, want in (
        (torchs("relu")(A), np.maximum(a, 0)), (torchs("add")(A, B), a + b), (torchs("mm")(A, A.T), a @ a.T),
        (torchs("sum")(A, dim=1), a.sum(1)), (torchs("clamp")(A, min=0), a.clip(0)), (torchs("abs")(A), abs(a)),
        (torchs("max")(A, B), np.maximum(a, b)), (torchs("unsqueeze")(B, 0), b[None]),
        (torchs("permute")(A, (1, 0)), a.T),
    ):  # fmt: skip
        assert np.array_equal(computed(made), want)
    with pytest.raises(tir.DeclarationError, match="cumsum"):
        torchs("cumsum")(A, 0)


# --- drawn

SIDES = st.integers(1, 4)
SHAPES = st.lists(SIDES, min_size=1, max_size=3).map(tuple)


def small(shape, seed, dtype="float32"):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@st.composite
def broadcastable(draw):
    """Two shapes that NumPy broadcasts."""
    shape = draw(SHAPES)
    keep = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    other = tuple(n if k else 1 for n, k in zip(shape, keep, strict=True))[draw(st.integers(0, len(shape) - 1)) :]
    return (shape, other) if draw(st.booleans()) else (other, shape)


@settings(max_examples=60, deadline=None)
@given(broadcastable(), st.sampled_from(["+", "-", "*", "<", "<=", ">", ">="]),
       st.sampled_from(["float32", "int32", "float64"]),
       st.integers(0, 99))  # fmt: skip
def test_broadcasting(shapes, op, dtype, seed):
    values = {n: small(s, seed + i, dtype) for i, (n, s) in enumerate(zip("AB", shapes, strict=True))}
    text = f"A {op} B"
    assert np.array_equal(computed(eval(text, declared(values)), values), eval(text, values))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data(), st.booleans(), st.sampled_from(["sum", "prod", "max", "min", "any", "all", "mean"]))
def test_reductions(shape, data, keepdims, name):
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1)
                     | st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1).map(tuple))  # fmt: skip
    values = {"A": small(shape, 3, data.draw(st.sampled_from(["float32", "int16", "int64"])))}
    made = getattr(declared(values)["A"], name)(axis=axis, keepdims=keepdims)
    want = np.asarray(getattr(values["A"], name)(axis=axis, keepdims=keepdims))
    assert (made.shape, made.dtype) == (want.shape, want.dtype.name)
    assert np.allclose(computed(made, values), want, rtol=0 if name != "mean" else 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products(data):
    m, n, k = (data.draw(SIDES) for _ in range(3))
    batch = data.draw(st.lists(SIDES, max_size=2).map(tuple))
    a = data.draw(st.sampled_from([(k,), (m, k), (*batch, m, k), (1, m, k)]))
    b = data.draw(st.sampled_from([(k,), (k, n), (*batch, k, n)]))
    values = {"A": small(a, 1), "B": small(b, 2)}
    try:
        want = values["A"] @ values["B"]
    except ValueError:
        with pytest.raises(tir.DeclarationError):
            eval("A @ B", declared(values))
        return
    made = eval("A @ B", declared(values))
    assert made.shape == np.shape(want)
    assert np.array_equal(computed(made, values), want)


@settings(max_examples=80, deadline=None)
@given(SHAPES, st.data())
def test_parts(shape, data):
    ints = st.none() | st.integers(-6, 6)
    steps = st.none() | st.integers(-3, 3).filter(bool)
    index = tuple(
        data.draw(st.builds(slice, ints, ints, steps) | st.integers(-n, n - 1))
        for n in shape[: data.draw(st.integers(1, len(shape)))]
    )
    for extra in data.draw(st.lists(st.sampled_from([None, Ellipsis]), unique=True, max_size=2)):
        index = (*index, extra)
    if not any(i is None or i is Ellipsis or isinstance(i, slice) for i in index):
        index = (*index, Ellipsis)
    values = {"A": small(shape, 5)}
    made, want = declared(values)["A"][index], values["A"][index]
    assert made.shape == want.shape
    assert np.array_equal(computed(made, values), want)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_orders_and_shapes(shape, data):
    values = {"A": small(shape, 6)}
    A = declared(values)["A"]
    order = data.draw(st.permutations(range(len(shape))))
    divisors = [d for d in range(1, A.size + 1) if A.size % d == 0]
    first = data.draw(st.sampled_from(divisors))
    for made, want in (
        (A.transpose(*order), values["A"].transpose(*order)),
        (A.reshape(first, -1), values["A"].reshape(first, -1)),
        (A.transpose(*order).reshape(-1, first), values["A"].transpose(*order).reshape(-1, first)),
    ):
        assert np.array_equal(computed(made, values), want)


# --- scheduled


def test_parts_of_one_name_are_found_by_their_tensors():
    t = declared()
    first = t["A"] + 1
    both = first + t["B"]
    s = tir.Schedule(both)
    assert (s[first].name, s[both].name) == ("add", "add_1")
    s[first].compute_inline()
    assert s.check()


@pytest.mark.usefixtures("unoptimised")
def test_softmax_of_whole_tensors_on_the_device():
    pytest.importorskip("pyopencl")
    A = tir.placeholder((8, 32), name="A")
    E = np.exp(A - A.max(axis=1, keepdims=True))
    S = E / E.sum(axis=1, keepdims=True)
    f = tir.Schedule(S).build()
    a = small((8, 32), 1)
    e = np.exp(a - a.max(axis=1, keepdims=True))
    np.testing.assert_allclose(f(A=a), e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    assert np.array_equal(f(a), f(A=a))
    out = np.zeros_like(a)
    f.bind(A=a, out=out)()
    assert np.array_equal(out, f(a))
    assert f.time(A=a, repeat=2).median_s > 0


def test_numpys_and_pythons_own_uses_of_a_tensor_are_answered():
    A = declared()["A"]
    for code, act in {
        "declare.truth-value": lambda: bool(A), "declare.iterated": lambda: list(A), "declare.called": lambda: A(0, 1),
        "declare.number": lambda: np.asarray(A), "declare.broadcast": lambda: A + A.T, "matmul.shape": lambda: A @ A,
        "declare.reshape": lambda: A.reshape(5, 5), "declare.function": lambda: np.cumsum(A),
        "argument.value": lambda: A.transpose(0, 0), "reduce.axis": lambda: A.argmin(axis=(0, 1)),
        "argument.type": lambda: A @ 3,
    }.items():  # fmt: skip
        with pytest.raises(tir.DeclarationError) as caught:
            act()
        assert caught.value.code == code
        assert "test_whole.py" in str(caught.value)
    with pytest.raises(tir.DeclarationError) as caught:
        A[0, 0] = 1
    assert caught.value.code == "declare.assigned"


def test_dimensions_of_extent_1_come_and_go_beside_symbolic_ones():
    n = tir.dim("n", low=1, high=40)
    X = tir.placeholder((1, n, 3), name="X")
    x = np.arange(21, dtype=np.float32).reshape(1, 7, 3)
    for y, want in (
        (X.squeeze(), x[0]),
        (np.squeeze(X, 0), x[0]),
        (np.expand_dims(X, 2), x[:, :, None]),
        (np.expand_dims(X, -1), x[..., None]),
    ):
        s = tir.Schedule(y)
        assert s.check() and np.array_equal(s.build()(x), want)
    for call in (lambda: X.reshape(3, -1), lambda: X.reshape(n, 3), X.ravel):
        with pytest.raises(tir.DeclarationError) as e:
            call()
        assert e.value.code == "dim.constant"
