"""Automatic schedules are built to see what they compute."""

import pytest


@pytest.fixture(autouse=True)
def _only_run(request):
    """PoCL takes up to 15 s to optimise a kernel of unrolled tiles; what is drawn runs as users run it."""
    request.getfixturevalue("unkept" if request.module.__name__ == "test_drawn" else "only_run")
