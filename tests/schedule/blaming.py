"""Which step a check blames for a fault, asked where the fault was seen."""

from __future__ import annotations

import pytest

from tensorir.check import verdict


def checked_and_blamed(s):
    """The verdict on every awkward shape, and the step that is blamed on those up to where it was wrong, or None."""
    every, tried = verdict.awkward_shapes, []

    def one_by_one(s):
        for shape in every(s):
            tried.append(shape)
            yield shape

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "awkward_shapes", one_by_one)
        found = s.check()
        if found:
            return found, None
        patch.setattr(verdict, "awkward_shapes", lambda _: list(tried))
        return found, s.blame()
