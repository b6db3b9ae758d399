"""Automatic schedules are built to see what they compute."""

import math

import judging
import pytest

judging.SLOW_S = math.inf  # how long a schedule takes to make is a benchmark's: here none is made three times


@pytest.fixture(autouse=True)
def _unoptimised(request):
    """PoCL takes up to 15 s to optimise a kernel of unrolled tiles; what is drawn runs as users run it."""
    if request.module.__name__ != "test_drawn":
        request.getfixturevalue("unoptimised")
