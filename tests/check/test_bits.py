"""Faults in operators on bits are seen: by the exact check in schedules' kernels, by the emulator in text."""

from dataclasses import replace

import pytest

import tensorir as tir
from tensorir.check.equivalence import compare_module
from tensorir.interp.magnitude import is_exact
from tensorir.interp.numbers import Field
from tensorir.interp.uses import gather_limits
from tensorir.ir.build import const
from tensorir.ir.tree import Binary, Call, Const, Unary
from tensorir.ir.visit import Rewriter, find
from tensorir.lower.pipeline import lower
from tensorir.tune.inputs import arguments, integer_arrays

N = 37


def mixed(dtype="uint32"):
    A, B = tir.placeholder((N,), dtype, name="A"), tir.placeholder((N,), dtype, name="B")
    return tir.compute((N,), lambda i: (A[i] << 13 ^ A[i] >> 15) + (~B[i] & 0x7F00FF) | B[i] >> 24, name="C")


def shifted():
    A, B = tir.placeholder((N,), "int32", name="A"), tir.placeholder((N,), "int32", name="B")
    return tir.compute((N,), lambda i: (A[i] << B[i], A[i] >> B[i]), name="C")


def gathered():
    A, B = tir.placeholder((8,), name="A"), tir.placeholder((N,), "int32", name="B")
    return tir.compute((N,), lambda i: A[B[i] & 7], name="C")


def folded():
    A, k = tir.placeholder((5, N), "int32", name="A"), tir.reduce_axis(N, name="k")
    parity = tir.combiner(lambda a, b: a ^ b, 0, name="parity")
    return tir.compute((5,), lambda i: parity(A[i, k] >> 20, axis=k), name="C")


def quantised():
    X, Q = tir.placeholder((N,), name="X"), tir.placeholder((N,), "uint8", name="Q")
    return tir.compute((N,), lambda i: tir.cast(tir.cast(X[i], "int32") >> 7 ^ tir.cast(Q[i] >> 4, "int32"), "float32"))


def bits_of_floats():
    X = tir.placeholder((N,), name="X")
    return tir.compute((N,), lambda i: tir.bitcast(tir.bitcast(X[i], "uint32") & 0xFFFF0000, "float32"), name="C")


class _Plant(Rewriter):
    """One operator on bits, the n-th, made another one."""

    def __init__(self, target):
        self.target = target

    def on_Binary(self, n):
        if n is not self.target:
            return self.children(n)
        if isinstance(n.b, Const):
            return n.replace(b=const(n.b.value ^ 1, n.b.dtype))
        return n.replace(op={"&": "|", "|": "^", "^": "|", "<<": ">>", ">>": "<<"}[n.op])

    def on_Unary(self, n):
        return n.a if n is self.target else self.children(n)


@pytest.mark.parametrize("make", [mixed, shifted, gathered, folded, quantised, bits_of_floats])
def test_a_changed_operator_is_seen(make):
    outputs = make()
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    s = tir.Schedule(outputs)
    module = lower(s.program, s.target)
    assert compare_module(module, outputs, Field(), 0) is None
    (kernel,) = module.kernels
    places = find(kernel.body, Binary, lambda n: n.op in ("&", "|", "^", "<<", ">>"))
    places += find(kernel.body, Unary, lambda n: n.op == "~")
    assert places
    for place in places:
        planted = replace(module, kernels=(replace(kernel, body=_Plant(place)(kernel.body)),))
        assert compare_module(planted, outputs, Field(), 0) is not None, place.op


TEXTS = [
    (mixed, "<< 13", "<< 12"), (mixed, ">> 15", ">> 16"), (mixed, "~B", "B"), (mixed, "^", "|"),
    (mixed, "8323327", "8323326"),
    (mixed, ">> 24", ">> 25"), (mixed, "8323327", "255"), (shifted, "< 32 ? a << b : 0", "<= 32 ? a << b : 0"),
    (shifted, "b : 31)", "b : 30)"), (shifted, "a >> (", "(int)((unsigned int)a >> ("), (gathered, " & 7", ""),
    (folded, ">> 20", ">> 21"), (bits_of_floats, "4294901760u", "4294836224u"),
]  # fmt: skip


@pytest.mark.parametrize("make, old, new", TEXTS, ids=[f"{m.__name__}-{a}-{b}" for m, a, b in TEXTS])
def test_changed_text_is_seen(make, old, new):
    s = tir.Schedule(make(), target="cuda")
    text = s.source("cuda")
    assert old in text
    changed = text.replace(old, new)
    if new.endswith("a >> ("):
        changed = changed.replace(": 31);", ": 31));")
    assert not s.with_source(changed).check(level="emulate")


def test_right_text_is_right():
    for make in (mixed, shifted, gathered, folded, bits_of_floats):
        s = tir.Schedule(make(), target="cuda")
        assert s.check(level="emulate"), make.__name__


def test_inputs_of_tuned_kernels_have_all_bits():
    given, exact = arguments((mixed(),))
    assert exact
    for x in integer_arrays(given):
        assert x.max() > 1 << 30
    amounts = integer_arrays(arguments(shifted())[0])[1]
    assert amounts.min() < 0
    assert amounts.max() > 31
    places = integer_arrays(arguments((gathered(),))[0])[1]
    assert places.min() < 0
    assert places.max() > 7


def test_masks_keep_numbers_exact():
    """A nibble times a float is as exact as the nibble is small."""
    Q, S = tir.placeholder((N,), "int32", name="Q"), tir.placeholder((N,), name="S")
    C = tir.compute((N,), lambda i: tir.cast(Q[i] >> 4 & 15, "float32") * S[i], name="C")
    assert is_exact((C,), 1000, gather_limits((C,)))
    D = tir.compute((N,), lambda i: tir.cast(tir.bitcast(S[i], "int32"), "float32"), name="D")
    assert not is_exact((D,), 1000, gather_limits((D,)))
    assert find(D.op.bodies[0], Call)[0].fn == "bitcast"
