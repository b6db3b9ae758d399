"""Bits of sums whose terms use different bits: apart for low and high ones."""

import itertools
import random

import pytest

from tensorir.arith.affine import Arith, same
from tensorir.arith.point import evaluate
from tensorir.ir.build import as_expr, binary, bitwise
from tensorir.ir.tree import Var

I, J, K = (Var(n, "index") for n in "ijk")
EXTENTS = {I: 4, J: 8, K: 3}


def arith(extents=EXTENTS):
    return Arith({v: (0, n - 1) for v, n in extents.items()})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda: bitwise("^", I * 8 + J, 17), lambda: bitwise("^", I, 2) * 8 + bitwise("^", J, 1)),
        (lambda: bitwise("&", I * 8 + J, 2), lambda: bitwise("&", J, 2)),
        (lambda: bitwise("&", I * 8 + J, 16), lambda: bitwise("&", I, 2) * 8),
        (lambda: bitwise("|", I * 16 + J, 8), lambda: I * 16 + bitwise("|", J, 8)),
        (lambda: bitwise("^", K * 32 + I * 8 + J, 8), lambda: K * 32 + bitwise("^", I, 1) * 8 + J),
        (lambda: bitwise("^", I * 8, 0), lambda: I * 8),
    ],
)
def test_apart(before, after):
    known = arith()
    assert same(known.linear(before()).expr(), known.linear(after()).expr())


def test_terms_that_share_bits_stay_together():
    known = arith()
    for e in (bitwise("^", I * 4 + J, 5), bitwise("^", J, 3), bitwise("|", I * 8 + J + 1, 2)):
        assert len(known.linear(e).terms) == 1


def test_values_stay():
    draw = random.Random(3)
    for _ in range(600):
        extents = {v: draw.randint(1, 9) for v in EXTENTS}
        form = sum(
            (v * draw.choice((0, 1, 2, 3, 4, 8, 12, 16, -8)) for v in extents), as_expr(draw.choice((0, 0, 1, 8, -3)))
        )
        e = binary(draw.choice("&|^"), form, draw.choice((1, 2, 3, 4, 6, 8, 15, 16, 24, 40, 1023)))
        if draw.random() < 0.3:
            e = binary(draw.choice("&|^"), e, draw.choice((1, 4, 16, 21)))
        made = arith(extents).linear(e).expr()
        for at in itertools.product(*map(range, extents.values())):
            env = dict(zip(extents, at, strict=True))
            assert evaluate(made, env) == evaluate(e, env), (e, made, env)
