"""What is built is run to see what it computes."""

import pytest


@pytest.fixture(autouse=True)
def _unoptimised(unoptimised):
    """PoCL takes up to 20 s to optimise a kernel whose loops are unrolled."""
