"""Definitions as users write them (written.py, written_networks.py): every automatic schedule is right."""

import pytest
from judging import TARGETS, judged_of
from written import WRITTEN
from written_networks import NETWORKS

from tensorir.expr.program import as_outputs

EVERY = {**WRITTEN, **NETWORKS}


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("name", EVERY)
def test_a_written_definition_is_scheduled_and_right(name, target):
    row = judged_of(as_outputs(EVERY[name]()), target)
    assert row["found"] == "right", row
    assert row["space"] <= 5000
