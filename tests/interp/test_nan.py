"""max and min with NaN are NumPy's on every executor: NaN spreads."""

import numpy as np
import pytest

import tensorir as tir
from tensorir.check.emulate import emulate
from tensorir.interp.numbers import Numbers
from tensorir.interp.reference import evaluate, results_of
from tensorir.interp.run import run
from tensorir.lower.pipeline import lower

VALUES = [np.nan, -np.inf, -2.0, -0.0, 0.0, 1.5, np.inf]


def executors(outputs, schedule=lambda s: s):
    """(name, function of arrays) of what can run a computation."""
    cpu, cuda = schedule(tir.Schedule(outputs)), schedule(tir.Schedule(outputs, target="cuda"))
    module = lower(cpu.program, cpu.target)

    def interpreter(*arrays):
        made = run(module, {b.name: x for b, x in zip(module.inputs, arrays, strict=True)}, Numbers())
        return tuple(made[b.name] for b in module.outputs)

    def emulator(*arrays):
        done = emulate(cuda.emitted("cuda"), arrays)
        assert not done.problems
        return tuple(done.outputs)

    yield "reference", lambda *arrays: evaluate(outputs, arrays)
    yield "interpreter", interpreter
    yield "emulated CUDA", emulator
    pytest.importorskip("pyopencl")
    yield "OpenCL", cpu.build()


def same_everywhere(outputs, arrays, want, schedule=lambda s: s):
    for who, f in executors(outputs, schedule):
        for g, w in zip(results_of(f(*arrays)), want, strict=True):
            assert np.array_equal(g, w, equal_nan=w.dtype.kind == "f"), who


def in_vectors(s):
    _, inner = s.split(s.loops(s.stages()[0].name)[0], [None, 4])
    return s.vectorize(inner)


def plainly(s):
    return s


@pytest.mark.parametrize("schedule, dtype", [
    (plainly, "float32"), (plainly, "float64"), (plainly, "float16"), (in_vectors, "float32"), (in_vectors, "float64"),
])  # fmt: skip
def test_maximum_and_minimum(schedule, dtype):
    a, b = (x.ravel().astype(dtype) for x in np.meshgrid(VALUES, VALUES))
    A, B = tir.placeholder(a.shape, dtype, name="A"), tir.placeholder(b.shape, dtype, name="B")
    pairs = ((tir.maximum, np.maximum), (tir.minimum, np.minimum))
    C = tir.compute(a.shape, lambda i: tuple(x for f, _ in pairs for x in (f(A[i], B[i]), f(A[i], 0), f(1, B[i]))),
                    name="C")  # fmt: skip
    one = np.asarray(1, dtype)
    want = [x for _, f in pairs for x in (f(a, b), f(a, one * 0), f(one, b))]
    same_everywhere(C, (a, b), want, schedule)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions(dtype):
    x = np.random.default_rng(0).choice(VALUES, (40, 6)).astype(dtype)
    x[0], x[1] = np.nan, 1.0
    X, k = tir.placeholder(x.shape, dtype, name="X"), tir.reduce_axis(6, name="k")
    fs = ((tir.max, np.max), (tir.min, np.min), (tir.argmax, np.argmax), (tir.argmin, np.argmin))
    outputs = tuple(tir.compute((40,), lambda i, f=f: f(X[i, k], axis=k), name=f"C{n}") for n, (f, _) in enumerate(fs))
    with np.errstate(all="ignore"):
        same_everywhere(outputs, (x,), [f(x, axis=1) for _, f in fs])


def test_a_relu_lets_nan_through():
    x = np.array([np.nan, -1, 2, np.nan], "float32")
    X = tir.placeholder((4,), name="X")
    same_everywhere((tir.compute((4,), lambda i: tir.maximum(X[i], 0), name="Y"),), (x,), [np.maximum(x, 0)])


def test_zeros_differ_by_sign_beside_other_numbers():
    for fn, sign in ((tir.minimum, True), (tir.maximum, False)):
        A, B = tir.placeholder((3,), name="A"), tir.placeholder((3,), name="B")
        C = tir.compute((3,), lambda i: fn(A[i], B[i]), name="C")
        (c,) = evaluate((C,), [np.array([1, 0, -0.0], "float32"), np.array([2, -0.0, 0], "float32")], Numbers())
        assert np.signbit(c).tolist() == [False, sign, sign] and c[0] == (1 if sign else 2)
