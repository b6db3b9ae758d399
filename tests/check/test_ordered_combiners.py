"""States that are joined by + and by min or max: exact in whole numbers, wrong where a step or a combiner is."""

from dataclasses import replace

import numpy as np
import pytest

import tensorir as tir
from tensorir.check import equivalence
from tensorir.interp.whole import Whole
from tensorir.ir.visit import Rewriter

EXTREMES = {"min": (tir.minimum, np.inf), "max": (tir.maximum, -np.inf)}


def recurrence(n=24, which="min", join=None, rows=()):
    """h[i] = min(h[i - 1] + p[i], p[i] + q[i]) along the last axis."""
    pick, start = EXTREMES[which]
    op = tir.combiner(
        join or (lambda a, b: (a[0] + b[0], pick(a[1] + b[0], b[1]))), (0.0, start), name="mp", commutative=False
    )
    p, q = tir.placeholder((*rows, n), name="p"), tir.placeholder((*rows, n), name="q")
    x = tir.compute((*rows, n), lambda *i: p[i] + q[i], name="x")
    return tir.scan((p, x), axis=len(rows), op=op, name="h")[1]


def by_where(a, b):
    """The same written with a comparison."""
    return a[0] + b[0], tir.where(a[1] + b[0] <= b[1], a[1] + b[0], b[1])


def cusum(n=40):
    """g[i] = max(0, g[i - 1] + x[i]): states (sum, largest suffix sum)."""
    op = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1] + b[0], b[1])), (0.0, -np.inf), name="cs",
                      commutative=False)  # fmt: skip
    x = tir.placeholder((n,), name="x")
    return tir.scan((x, tir.compute((n,), lambda i: tir.maximum(x[i], 0), name="y")), axis=0, op=op, name="g")[1]


def viterbi(steps=9):
    """Products of 2 x 2 matrices in (max, +)."""

    def join(a, b):
        return tuple(tir.maximum(a[2 * i] + b[j], a[2 * i + 1] + b[2 + j]) for i in (0, 1) for j in (0, 1))

    op = tir.combiner(join, (0.0, -np.inf, -np.inf, 0.0), name="vt", commutative=False)
    given = tuple(tir.placeholder((steps,), name=f"m{n}") for n in range(4))
    return tir.scan(given, axis=0, op=op, name="v")[3]


def most_of_a_part(n=30):
    """The largest sum of neighbours: a reduction of four states."""

    def join(a, b):
        return (a[0] + b[0], tir.maximum(a[1], a[0] + b[1]), tir.maximum(b[2], a[2] + b[0]),
                tir.maximum(tir.maximum(a[3], b[3]), a[2] + b[1]))  # fmt: skip

    op = tir.combiner(join, (0.0, -np.inf, -np.inf, -np.inf), name="kadane", commutative=False)
    x, k = tir.placeholder((3, n), name="x"), tir.reduce_axis(n, name="k")
    return tir.compute((3,), lambda i: op((x[i, k],) * 4, axis=k), name="best")[3]


DECLARED = {
    "time warping": recurrence, "viterbi": viterbi, "cusum": cusum, "kadane": most_of_a_part,
    "by where": lambda: recurrence(join=by_where), "rows": lambda: recurrence(which="max", rows=(3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_right_ones_are_exactly_right(name):
    for s in (tir.Schedule(DECLARED[name]()), tir.auto_schedule(DECLARED[name](), target="cuda -arch=sm_80")):
        verdict = s.check()
        assert verdict and verdict.kind.startswith("exact over"), verdict
        assert s.blame() is None


def test_reductions_in_parts():
    s = tir.Schedule(most_of_a_part(), target="opencl")
    s.rfactor("best", s.split("best.k", [None, 4])[0])
    verdict = s.check()
    assert verdict and "whole numbers" in verdict.kind, verdict


@pytest.mark.parametrize("join", [
    lambda a, b: (a[0] + b[0], tir.minimum(a[1] + a[0], b[1])), lambda a, b: (a[0] + b[0], tir.minimum(a[1], b[1] - 1)),
    lambda a, b: (a[0] + b[0] + 0.125, tir.minimum(a[1] + b[0], b[1])),
])  # fmt: skip
def test_combiners_that_are_not_associative(join):
    s = tir.auto_schedule(recurrence(join=join), target="opencl")
    assert not s.check()
    with pytest.raises(tir.CheckError) as caught:
        s.blame()
    assert caught.value.code == "blame.no-step"


class Later(Rewriter):
    """The smaller of two is always the second one."""

    def on_Binary(self, n):
        n = self.children(n)
        return replace(n, a=n.b) if n.op == "min" else n


def test_wrong_kernels_are_wrong(monkeypatch):
    s = tir.auto_schedule(recurrence(), target="opencl")
    lower = equivalence.lower
    monkeypatch.setattr(equivalence, "lower", lambda p, t: spoilt(lower(p, t)))
    assert [p.code for p in s.check().problems] == ["check.not-equal"]


def spoilt(module):
    return replace(module, kernels=tuple(replace(k, body=Later()(k.body)) for k in module.kernels))


def test_combiners_that_divide_are_compared_in_doubles():
    """The largest mean of ... (a0 + b0, max(a1 + b0 / 3, b1)): quotients are rounded."""
    op = tir.combiner(lambda a, b: (a[0] + b[0], tir.maximum(a[1] + b[0] / 3, b[1])), (0.0, -np.inf), name="mean",
                      commutative=False)  # fmt: skip
    p = tir.placeholder((20,), name="p")
    s = tir.auto_schedule(tir.scan((p, p), axis=0, op=op, name="h")[1], target="opencl")
    verdict = s.check()
    assert verdict and "not exact" in verdict.kind and "mp" not in verdict.kind, verdict


def test_what_is_rounded_is_told():
    for made, exact in ((lambda w, x: w.float_binary("+", x, x, "float32"), True),
                        (lambda w, x: w.float_binary("/", x, 3.0, "float32"), False),
                        (lambda w, x: w.float_binary("*", x * 2.0**30, x * 2.0**30, "float32"), False),
                        (lambda w, x: w.sum(x * 2.0**47, (0,), "float32"), False),
                        (lambda w, x: w.call("exp", [x], "float32", "float32"), False),
                        (lambda w, x: w.float_binary("+", x, np.inf, "float32"), True)):  # fmt: skip
        numbers = Whole(4)
        made(numbers, np.arange(1.0, 40.0))
        assert numbers.exact_so_far is exact
