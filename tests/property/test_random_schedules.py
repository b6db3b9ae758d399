"""Every call on a random schedule is refused in the proper way or keeps the meaning; traces replay; undo restores."""

import pytest
import random_schedules as drawn
from hypothesis import given
from hypothesis import strategies as st


class Drawn:
    """Decisions by hypothesis, so that failures shrink."""

    def __init__(self, data):
        self.data = data

    def pick(self, items):
        return items[self.data.draw(st.integers(0, len(items) - 1))]


@pytest.mark.parametrize("group", range(4))
@given(data=st.data())
def test_refused_or_right(group, data):
    names = list(drawn.ZOO)[group::4]
    drawn.run_case(Drawn(data), names, calls=data.draw(st.integers(1, 12)))


@pytest.mark.parametrize("seed", range(50))
def test_refused_or_right_long_schedules(seed):
    drawn.run_case(drawn.Chance(10_000_000 + seed), calls=20)


@pytest.mark.parametrize("seed", range(16))
def test_the_device_agrees(seed):
    pytest.importorskip("pyopencl")
    c = drawn.Chance(20_000_000 + seed)
    case, outcome = drawn.run_case(c, calls=8, device=True)
    assert outcome in {"ok", *drawn.EXPECTED_LOWERING}, str(case)
