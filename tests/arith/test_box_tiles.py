"""Boxes of loops that share out an array: each element in exactly one of them."""

import itertools
import random

import pytest

from tensorir.arith.affine import Arith
from tensorir.arith.box import Side, tiles
from tensorir.arith.point import evaluate
from tensorir.ir.build import as_expr
from tensorir.ir.tree import Var

I, J, X = (Var(n, "index") for n in "ijx")


def boxes(*parts):
    """(index, extent) of each dimension -> its sides."""
    return [Side(Arith().linear(as_expr(i)), n) for i, n in parts]


def once(sides, shape, extents):
    """True if iterations cover each element once, by counting."""
    seen = dict.fromkeys(itertools.product(*map(range, shape)), 0)
    for at in itertools.product(*map(range, extents.values())):
        known = dict(zip(extents, at, strict=True))
        first = [int(evaluate(s.first.expr(), known)) for s in sides]
        for cell in itertools.product(*(range(a, a + s.extent) for a, s in zip(first, sides, strict=True))):
            if cell in seen:
                seen[cell] += 1
    return set(seen.values()) == {1}


SPLIT, ALL = (I * 16 + J, 1), (0, 5)


@pytest.mark.parametrize(
    ("sides", "shape", "extents"),
    [
        (boxes(SPLIT, ALL), (64, 5), {I: 4, J: 16}),
        (boxes(SPLIT, ALL), (61, 5), {I: 4, J: 16}),
        (boxes((I * 4, 4), (J, 1)), (15, 3), {I: 4, J: 3}),
        (boxes((X // 7, 1), (X % 7, 1)), (3, 7), {X: 21}),
        (boxes(((I * 16 + J) // 7, 1), ((I * 16 + J) % 7, 1)), (3, 7), {I: 2, J: 16}),
        (boxes((X // 12, 1), (X // 3 % 4, 1), (X % 3 * 2, 2)), (2, 4, 6), {X: 24}),
        (boxes(ALL), (5,), {I: 1}),
        (boxes((X % 4 + X // 8 * 4, 1), (X // 4 % 2, 1)), (8, 2), {X: 16}),
    ],
    ids=["split", "tail", "boxes", "fused", "fused and split", "three digits", "no loop", "digits apart"],
)
def test_shared_out(sides, shape, extents):
    assert tiles(sides, shape, extents) and once(sides, shape, extents)


@pytest.mark.parametrize(
    ("sides", "shape", "extents"),
    [
        (boxes((I * 8 + J, 1)), (40,), {I: 4, J: 16}),
        (boxes((I * 16 + J, 1)), (61,), {I: 4, J: 15}),
        (boxes((I * 16 + J, 1)), (65,), {I: 4, J: 16}),
        (boxes((I, 2)), (8,), {I: 8}),
        (boxes((I, 1)), (8,), {I: 8, J: 2}),
        (boxes((I + 1, 1)), (8,), {I: 8}),
        (boxes((I, 1), (I, 1)), (8, 8), {I: 8}),
        (boxes((X // 7, 1), (X % 6, 1)), (3, 6), {X: 21}),
        (boxes((X % 7, 1)), (7,), {X: 21}),
        (boxes((X // 4, 1), (X % 4 * 2, 2)), (3, 8), {X: 11}),
        (boxes((7 - I, 1)), (8,), {I: 8}),
        (boxes((X, 1)), (8,), {I: 8}),
    ],
    ids=["overlap", "gap", "short", "wide", "again", "offset", "diagonal", "other digits", "low digit alone",
         "last one missing", "backwards", "unknown"],
)  # fmt: skip
def test_not_shared_out(sides, shape, extents):
    assert not tiles(sides, shape, extents)


def test_what_is_proved_is_so():
    """Random digits of random loops, right and wrong ones."""
    draw, proved = random.Random(5), 0
    for _ in range(4000):
        extents = {I: draw.randint(1, 4), J: draw.randint(1, 4), X: draw.choice((1, 1, 6, 8, 12))}
        number = draw.choice((I * extents[J] + J, I * draw.randint(1, 4) + J, X, J))
        low = draw.randint(1, 4)
        terms = [number // low, number % low, number, I, J, X, number // 2 % low, X // 3, X % 3]
        widths = [draw.choice((1, 1, 2)) for _ in range(2)]
        first = [draw.choice(terms) * w + draw.choice((0, 0, draw.choice(terms) * 2, X * 3)) for w in widths]
        sides = boxes(*zip(first, widths, strict=True))
        shape = [draw.randint(1, 9), draw.choice((low, low, draw.randint(1, 9)))]
        if tiles(sides, shape, extents):
            proved += 1
            assert once(sides, shape, extents), (first, widths, shape, extents)
    assert proved > 30
