"""Schedules to be refused something, and what every refusal must show."""

import re

import pytest

import tensorir as tir
from tensorir.ir.tree import Axis, Iter, Loop, Stage, Store
from tensorir.ir.visit import find, replace


def matmul(m=16, n=16, k=16):
    A, B = tir.placeholder((m, k), name="A"), tir.placeholder((k, n), name="B")
    kk = tir.reduce_axis(k, name="k")
    return A, B, tir.compute((m, n), lambda i, j: tir.sum(A[i, kk] * B[kk, j], axis=kk), name="C")


def plain(target="opencl"):
    return tir.Schedule(matmul()[2], target)


def relu(target="opencl"):
    """P = A * 2, C = P B, D = relu(C)."""
    A, B = tir.placeholder((8, 8), name="A"), tir.placeholder((8, 8), name="B")
    k = tir.reduce_axis(8, name="k")
    P = tir.compute((8, 8), lambda i, r: A[i, r] * 2, name="P")
    C = tir.compute((8, 8), lambda i, j: tir.sum(P[i, k] * B[k, j], axis=k), name="C")
    return tir.Schedule(tir.compute((8, 8), lambda i, j: tir.maximum(C[i, j], 0), name="D"), target)


def elementwise(*steps):
    """A chain of 8 x 8 tensors, each from the one before: ``lambda X, i, j: expression``."""
    X = first = tir.placeholder((8, 8), name="X")
    for name, f in zip("PQRS", steps, strict=False):
        X = tir.compute((8, 8), lambda i, j, X=X, f=f: f(X, i, j), name=name)
    return first, tir.Schedule(X)


def gather(target="opencl", rows=7):
    """Rows of T that ``at`` picks."""
    T, at = tir.placeholder((rows, 8), name="T"), tir.placeholder((5,), "int32", name="at")
    return tir.Schedule(tir.compute((5, 8), lambda i, j: T[at[i], j] * 2, name="G"), target)


def masked(dtype="int32", name="Y", target="opencl"):
    """Rows of X, doubled, or 0 where the mask is."""
    mask, X = tir.placeholder((9,), dtype, name="mask"), tir.placeholder((9, 8), name="X")
    off = (lambda i: ~mask[i]) if dtype == "bool" else (lambda i: tir.equal(mask[i], 0))
    return tir.Schedule(tir.compute((9, 8), lambda i, j: tir.where(off(i), 0, X[i, j] * 2), name=name), target)


def ordered():
    """A schedule whose loop C.k is ordered: each iteration needs the one before."""
    s = plain()
    stage = find(s.program, Stage)[0]
    iters = tuple(Iter(it.var, it.extent, Axis.ORDERED if it.axis is Axis.REDUCE else it.axis) for it in stage.iters)
    return changed(s, stage, stage.replace(iters=iters))


def triangular(make=None):
    """A schedule whose second loop runs to i."""
    s = (make or plain)()
    i, j = find(s.program, Loop)[:2]
    return changed(s, j, j.replace(extent=i.var + 1))


def changed(s, old, new):
    s._start(s.program.replace(body=replace(s.program.body, {old: new})))
    return s


def diamond():
    """Z reads P and Q, and Q is made after P."""
    X = tir.placeholder((8,), name="X")
    P = tir.compute((8,), lambda i: X[i] + 1, name="P")
    Q = tir.compute((8,), lambda i: X[i] * 2, name="Q")
    return tir.Schedule(tir.compute((8,), lambda i: P[i] + Q[i], name="Z"))


def neighbours():
    """P and N are outputs, and N adds up neighbours of P."""
    X = tir.placeholder((9,), name="X")
    P = tir.compute((9,), lambda i: X[i] * 2, name="P")
    return tir.Schedule((P, tir.compute((8,), lambda i: P[i] + P[i + 1], name="N")))


def written_by_two():
    s = elementwise(lambda X, i, j: X[i, j], lambda X, i, j: X[i, j], lambda X, i, j: X[i, j])[1]
    first, second = find(s.program, Store)[:2]
    return changed(s, second, second.replace(buffer=first.buffer))


def written_backwards():
    s = elementwise(lambda X, i, j: X[i, j] + 1)[1]
    store = find(s.program, Store)[0]
    i, j = store.index
    return changed(s, store, store.replace(index=(7 - i, j)))


class Refusals(list):
    """The refusals of one test module, as parameters for ``assert_refused``."""

    def case(self, code, key):
        """Register a generator: what comes before its ``yield`` is legal, what follows is refused."""

        def add(f):
            self.append(pytest.param(code, key, f, id=f"{code} {f.__name__}"))
            return f

        return add

    def once(self, code, key, act, make=plain, before=lambda s: None):
        """Register one call: ``act`` is refused on what ``make`` and ``before`` give."""

        def f():
            s = make()
            before(s)
            yield s
            act(s)

        f.__name__ = str(key).replace(" ", "-")
        self.case(code, key)(f)


def assert_refused(code, key, act):
    """The error has its code, the key part of its message and the user's line; the schedule is as it was."""
    steps = act()
    s = next(steps)
    before, trace = str(s), str(s.trace)
    with pytest.raises(tir.ScheduleError) as caught:
        next(steps, None)
    error = caught.value
    text = str(error)
    assert error.code == code, text
    assert key in text
    assert str(s) == before
    assert str(s.trace) == trace
    assert re.search(r"test_refusals\w*\.py:\d+", text), text
    assert len(text.splitlines()) <= 14, text
    assert error.problems[0].code == code
