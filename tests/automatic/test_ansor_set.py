"""Every operator of Ansor's set has a schedule on every target, and what it computes is what was declared."""

import ansor_set
import pytest
from judging import TARGETS, judged_of

from tensorir.automatic.plan import default_plan
from tensorir.expr.program import as_outputs
from tensorir.target import Target

TAKEN = dict.fromkeys(ansor_set.SMALL, ("cpu_tile_", "gpu_tile_warp")) | {
    "GRP": ("cpu_", "gpu_"),  # few channels a group, which may divide no tile
    "DEP": ("cpu_tile_registers", "gpu_tile_windows"),
    "NRM": ("cpu_rows", "gpu_rows"),
    "SFM": ("cpu_rows", "gpu_rows"),
}
"""How the default of each operator begins, on CPUs and on GPUs: the rule that schedules what counts most."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ansor_set.SMALL)
def test_an_operator_is_right_without_a_schedule(name, target):
    cpu = target == "opencl"
    row = judged_of(ansor_set.SMALL[name](), target, build=cpu, emulate=not cpu, fast=cpu)
    assert row["found"] == "right", row.get("why")
    assert 0 < row["space"] <= 5000


def test_all_are_there_in_both_sizes():
    assert list(ansor_set.SMALL) == list(ansor_set.REAL) and len(ansor_set.REAL) == 13


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ansor_set.SMALL)
def test_an_operator_is_taken_by_the_rule_that_is_for_it(name, target):
    for sizes in (ansor_set.SMALL, ansor_set.REAL):
        plan = default_plan(as_outputs(sizes[name]()), Target.parse(target))
        kind = Target.parse(target).kind
        assert f"{kind}_{plan.main.name}".startswith(TAKEN[name][kind == "gpu"]), plan.main
        assert not plan.refused, "\n".join(map(str, plan.refused))
