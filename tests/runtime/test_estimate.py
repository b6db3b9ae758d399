"""The one estimator of times, on a clock that moves only when what is timed moves it."""

import itertools
import random
import statistics

import pytest

from tensorir.runtime import estimate, timing
from tensorir.runtime.estimate import Estimate, ReferenceLaunch, Rounds, look
from tensorir.runtime.timing import Timing


class Clock:
    now = used = 0.0

    def perf_counter(self):
        return self.now

    def process_time(self):
        return self.used

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    monkeypatch.setattr(estimate, "time", made)
    return made


def test_a_machine_that_slows_down_cancels(clock):
    speed = [1.0]

    def call(seconds):
        clock.now += seconds * speed[0]
        speed[0] += 0.01

    found = look(lambda: call(2e-4), 3e-4, ReferenceLaunch(lambda: call(4e-4), 4e-4))
    assert found.seconds == pytest.approx(2e-4, rel=0.05), "although the clock showed ever more"
    assert found.low_s <= found.seconds <= found.high_s and found.high_s < 1.2 * found.low_s
    assert min(found.samples) > 1.05 * 2e-4 and found.pace > 1.2
    alone = look(lambda: call(2e-4), 3e-4)
    assert alone.seconds == Timing.of(alone.samples).median_s > 4e-4 and alone.pace == 1.0


def test_as_many_rounds_as_are_asked_for(clock):
    def call(seconds):
        clock.now += seconds

    def reference(seconds):
        return ReferenceLaunch(lambda: call(seconds), seconds)

    assert 10 <= len(look(lambda: call(2e-4), 3e-4, reference(4e-4)).samples) <= 60
    some = look(lambda: call(2e-4), 3e-4, reference(4e-4), enough=lambda own, others: len(own) == len(others) == 4)
    assert len(some.samples) == 4
    assert len(look(lambda: call(2e-4), 3e-4, reference(2.0)).samples) == 3, "a long one is not repeated for ever"


def test_the_interval_holds_the_ratio_whatever_the_noise_is_like():
    """Bursts of both, drift, a heavy tail: 95 % of the intervals hold the ratio of the medians."""
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        own, others = [], []
        for turn in range(10):
            pace = 1 + 0.1 * turn + (3.0 if rng.random() < 0.2 else 0.0)
            own.append(2e-3 * pace * rng.lognormvariate(0, 0.1) * (4 if rng.random() < 0.1 else 1))
            others.append(1e-3 * pace * rng.lognormvariate(0, 0.1) * (4 if rng.random() < 0.1 else 1))
        found = Estimate.of(own, others, 1e-3)
        held += found.low_s <= 2e-3 <= found.high_s
    assert held >= 0.93 * 400


def test_two_rounds_that_disagree_give_no_absurd_interval():
    """Of two rounds the range is widened as far as normal noise needs it: 40 times in both directions is no end."""
    found = Estimate.of([1e-3, 50e-3])
    assert found.low_s >= found.seconds / 1000 * 0.999 and found.high_s <= found.seconds * 1000


def test_everybody_is_divided_by_the_same_rounds(clock):
    """Finalists and libraries have the anchor's unit; where there is none, the anchor's present time is the unit."""
    slower = [1.0]

    def timed(seconds):
        def call():
            clock.now += seconds * slower[0]

        return call

    rounds = Rounds([(timed(x), x) for x in (1e-3, 2e-3, 5e-4)])
    for turn in range(9):
        slower[0] = 3.0 if turn > 5 else 1.5
        rounds.run()
    assert [len(s) for s in rounds.samples] == [9, 9, 9]
    then = rounds.estimates(0, 1e-3)
    assert [e.seconds for e in then] == pytest.approx([1e-3, 2e-3, 5e-4]) and then[1].pace == pytest.approx(1.5)
    assert then[1].high_s == pytest.approx(then[1].low_s), "the same ratio in every round"
    now = rounds.estimates(0)
    assert [e.seconds for e in now] == pytest.approx([1.5e-3, 3e-3, 7.5e-4])
    assert now[0].high_s == pytest.approx(3e-3), "the anchor's own interval is that of its slots"
    assert (then[0].low_s, then[0].high_s) == pytest.approx((1e-3, 2e-3))
    assert [e.seconds for e in rounds.estimates()] == pytest.approx([1.5e-3, 3e-3, 7.5e-4])
    assert [e.spread for e in now] == pytest.approx([2.0] * 3)


def test_what_follows_a_library_waits_until_its_threads_rest_and_nobody_is_timed_cold(clock):
    """The first call after a rest takes ten times as long; a library's threads spin for 27 ms and slow down others."""
    spinning_until, last = [0.0], [None]

    def ours():
        cold = last[0] != "ours"
        last[0] = "ours"
        clock.now += 1e-2 if cold else 1e-2 / 10
        if clock.now < spinning_until[0]:
            clock.now += 5e-2

    def library():
        cold = last[0] != "library"
        last[0] = "library"
        clock.now += 2e-2 if cold else 2e-3
        spinning_until[0] = clock.now + 0.027

    def spun():
        return min(clock.now, spinning_until[0])

    clock.process_time = lambda: 2 * spun()  # two threads, as long as they spin
    rounds = Rounds([(ours, 1e-3), (library, 2e-3)], loud=[1])
    for _ in range(8):
        rounds.run()
    mine, theirs = rounds.estimates(0)
    assert mine.seconds == pytest.approx(1e-3) and mine.high_s == pytest.approx(1e-3)
    assert theirs.seconds == pytest.approx(2e-3) and theirs.high_s == pytest.approx(2e-3)


def test_a_processor_that_has_rested_works_before_it_is_timed(clock):
    """It is slower until it has worked for 3 ms again."""
    worked = [0.0]

    def ours():
        took = 1e-3 if worked[0] > 3e-3 else 1.3e-3
        worked[0] += took
        clock.now += took

    def library():
        worked[0] = 0.0  # what follows waits
        clock.now += 2e-3

    rounds = Rounds([(ours, 1e-3), (library, 2e-3)], loud=[1])
    for _ in range(8):
        rounds.run()
    assert rounds.samples[0] == pytest.approx([1e-3] * 8)


def test_everybody_follows_everybody():
    """What always follows the same one is slower, or faster, by what that leaves behind."""
    seen: list[int] = []
    rounds = Rounds([(lambda n=n: seen.append(n), 1.0) for n in range(4)])
    for _ in range(40):
        rounds.run()
    turns = [n for n, before in zip(seen, [None, *seen], strict=False) if n != before]
    assert len({(a, b) for a, b in itertools.pairwise(turns)}) == 12


def test_waiting_for_threads_that_never_rest_ends(clock):
    clock.process_time = lambda: 2 * clock.now
    estimate.settle()
    assert estimate.SETTLE_S < clock.now < estimate.SETTLE_S + 0.01


def test_an_estimate_is_the_middle_of_its_slots():
    found = Estimate.of([3.0, 1.0, 2.0])
    assert found.seconds == statistics.median(found.samples) == 2.0
    half = Estimate.of([3.0, 1.0, 2.0, 2.0, 2.0, 2.0]).scaled(0.5)
    assert (half.low_s, half.seconds, half.high_s) == (0.5, 1.0, 1.5)


def test_the_interval_of_a_few_rounds_is_wider_than_their_range():
    """Three rounds have the median among them in 75 of 100 cases."""
    rng = random.Random(2)
    for rounds in (2, 3, 4, 5):
        held = 0
        for _ in range(1000):
            found = Estimate.of([rng.lognormvariate(0, 0.05) for _ in range(rounds)])
            held += found.low_s <= 1.0 <= found.high_s
        assert 930 < held < 1000, rounds
