"""Automatic schedules are built to see what they compute."""

import pytest


@pytest.fixture(autouse=True)
def _only_run(request):
    """PoCL takes up to 15 s to optimise a kernel of unrolled tiles; drawn definitions run as users run them."""
    request.getfixturevalue("unkept" if request.module.__name__ == "test_drawn" else "only_run")
