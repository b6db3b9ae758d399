"""Every function of ``tir.ops``, gradients, optimizers and quantized operators are right by their definitions alone."""

import operator_set
import pytest
from judging import TARGETS, judged_of

from tensorir.ops.operators import OPERATORS

PRODUCTS = ("conv", "matmul", "linear", "attention", "product", "bits")
"""Words in the names of operators that are products, in which alone the rules of the last target differ."""
CASES = [
    (name, target)
    for name in operator_set.SMALL
    for target in TARGETS
    if target != TARGETS[-1] or any(word in name for word in PRODUCTS)
]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_an_operator_is_right_without_a_template(name, target):
    text = "sm_80" in target
    row = judged_of(operator_set.SMALL[name](), target, build=target == "opencl", emulate=text, fast=not text)
    assert row["found"] == "right", row.get("why")
    assert 0 < row["space"] <= 10_000  # engines of products alone have all their values


def test_every_function_of_ops_is_there_in_both_sizes():
    assert set(OPERATORS) <= set(operator_set.SMALL)
    assert set(operator_set.SMALL) == set(operator_set.REAL)
