"""What is built is run to see what it computes."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _unoptimised(unoptimised):
    """PoCL takes up to 20 s to optimise a kernel whose loops are unrolled."""
