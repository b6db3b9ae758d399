"""Every operator of Ansor's set has a schedule on every target, and what it computes is what was declared."""

import ansor_set
import pytest
from judging import TARGETS, judged_of


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ansor_set.SMALL)
def test_an_operator_is_right_without_a_schedule(name, target):
    row = judged_of(ansor_set.SMALL[name](), target, build=target == "opencl", emulate=target != "opencl")
    assert row["found"] == "right", row.get("why")
    assert 0 < row["space"] <= 5000


def test_all_are_there_in_both_sizes():
    assert list(ansor_set.SMALL) == list(ansor_set.REAL) and len(ansor_set.REAL) == 13
