import itertools
import random
from math import comb

import pytest

from tensorir.runtime import timing
from tensorir.runtime.timing import Timing, interleaved, measure, slots


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that moves only when the timed callables move it."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_order_statistics_cover_the_median():
    for n in (1, 2, 5, 6, 9, 20, 30, 101, 999, 1001, 5000):
        skip = timing.outside(n)
        assert 2 * skip < n
        miss = 2 * sum(comb(n, k) for k in range(skip + 1)) / 2**n
        if n >= 6:
            assert miss <= 0.05
        wider = miss + 2 * comb(n, skip + 1) / 2**n
        assert n < 6 or n > 1000 or wider > 0.05


def test_interval_holds_its_level():
    draw = random.Random(1)
    inside = 0
    for _ in range(400):
        t = Timing.of([draw.lognormvariate(0, 1) for _ in range(15)])
        assert t.low_s <= t.median_s <= t.high_s
        inside += t.low_s <= 1 <= t.high_s
    assert inside / 400 > 0.92


def test_timing_text():
    assert str(Timing.of([2e-6])) == "2 us [2, 2] of 1"
    assert str(Timing.of([0.25, 0.25])).startswith("250 ms")


def test_measure_batches_and_stops(clock):
    calls = []

    def call():
        calls.append(1)
        clock.now += 1e-4

    result = measure(call, repeat=10, min_seconds=0.0)
    assert result.median_s == pytest.approx(1e-4)
    assert len(result.samples) == 10
    assert 10 * 30 < len(calls) < 10 * 80 + 500

    def slow():
        clock.now += 4.0

    assert len(measure(slow, repeat=100, max_seconds=10.0).samples) == 3


def test_bound_launches_finish_once_a_batch(clock):
    class Bound:
        finishes = launches = 0

        def __call__(self):
            self.launches += 1

        def finish(self):
            self.finishes += 1
            clock.now += 1e-3

    bound = Bound()
    result = measure(bound, repeat=5, min_seconds=0.0)
    assert bound.launches > bound.finishes
    assert result.median_s < 1e-3


def test_interleaved_goes_round_robin(clock):
    order = []

    def timed(name, seconds):
        def call():
            order.append(name)
            clock.now += seconds

        return call

    results = interleaved([timed("a", 0.01), timed("b", 0.02), timed("c", 0.03)], rounds=6)
    assert [r.median_s for r in results] == pytest.approx([0.01, 0.02, 0.03])
    assert all(len(r.samples) == 6 for r in results)
    last = [k for k, _ in itertools.groupby(order[-18:])]
    assert last[:6] == ["a", "b", "c", "b", "c", "a"]


def test_slot_gives_its_fastest_part(clock):
    calls = []

    def call(seconds=2e-4):
        calls.append(1)
        clock.now += seconds * (10 if len(calls) % 4 == 0 else 1)  # a disturbance now and then

    fast, slow = slots([call, lambda: call(2e-3)], 2e-4)
    assert fast() == pytest.approx(2e-4) and len(calls) == 3 * 3
    calls.clear()
    assert slow() == pytest.approx(2e-3) and len(calls) == 3 * 3, "measured as the fast one is"
    calls.clear()
    slots([lambda: call(0.05)], 0.05)[0]()
    assert len(calls) == 1, "a long call is not repeated"
