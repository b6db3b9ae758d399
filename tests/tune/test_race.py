"""The race: nobody is called slower who is not, whatever the machine does, and differences are found."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorir.tune.race import MOST_ROUNDS, Race, log_capital, reconciled


class Machine:
    """A machine with drift, bursts, slow phases and heavy tails: everything but a memory of who is running."""

    def __init__(self, seed, times, noise=0.02, drift=0.3, burst=0.1):
        self.random, self.times, self.noise = np.random.default_rng(seed), times, noise
        self.drift, self.burst = drift, burst
        self.now, self.slow = 0, 1.0

    def __call__(self, n):
        r = self.random
        self.now += 1
        if r.random() < 0.02:
            self.slow = r.choice([1.0, 1.5, 2.2])  # for a while
        speed = math.exp(self.drift * math.sin(self.now / 40)) * self.slow
        tail = 1 + r.pareto(1.5) if r.random() < self.burst else 1.0
        return self.times[n] * speed * tail * math.exp(self.noise * r.standard_normal())


def run(race, machine, rounds=400):
    while not race.decided and race.rounds < rounds:
        race.add({n: machine(n) for n in race.order()})
    return race.standings()


def test_the_same_kernel_under_many_names_is_a_tie():
    wrong = 0
    for seed in range(20):
        standings = run(Race(20, seed=seed), Machine(seed, [1e-3] * 20), rounds=120)
        wrong += any(s.standing == "slower" for s in standings)
        assert [s.standing for s in standings].count("best") == 1
    assert wrong <= 1


def test_three_percent_are_found():
    found, ratios = 0, []
    for seed in range(20):
        standings = run(Race(6, seed=seed), Machine(seed, [1e-3] * 5 + [0.97e-3]))
        found += [s.standing for s in standings] == ["slower"] * 5 + ["best"]
        ratios += [s.ratio for s in standings[:5]]
        assert all(s.low <= s.ratio <= s.high for s in standings)
    assert found >= 19 and np.median(ratios) == pytest.approx(1 / 0.97, abs=0.005)


def test_level_holds_at_any_moment_for_pure_coin_tosses():
    """Looking after every round, a race of two calls one slower in at most 5 % of runs."""
    tosses = np.random.default_rng(5).random((2000, 300)) < 0.5
    ahead, rounds = tosses.cumsum(axis=1), np.arange(1, 301)
    sure = (log_capital(ahead, rounds) >= math.log(40)) | (log_capital(rounds - ahead, rounds) >= math.log(40))
    share = sure.any(axis=1).mean()
    assert 0.005 < share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_capital_is_that_of_the_bets():
    chances = (0.52, 0.55, 0.6, 0.7, 0.8, 0.9, 0.97)
    want = sum((2 * p) ** 7 * (2 * (1 - p)) ** 3 for p in chances) / 7
    assert log_capital(np.array(7), np.array(10)) == pytest.approx(math.log(want))
    assert log_capital(np.array(0), np.array(0)) == 0.0
    assert math.isfinite(log_capital(np.array(0), np.array(10_000)))


@given(rounds=st.integers(1, 60), ahead=st.integers(0, 60))
def test_capital_of_a_fair_coin_does_not_grow(rounds, ahead):
    ahead = min(ahead, rounds)
    now, won, lost = (
        math.exp(log_capital(np.array(a), np.array(n)))
        for a, n in ((ahead, rounds), (ahead + 1, rounds + 1), (ahead, rounds + 1))
    )
    assert (won + lost) / 2 == pytest.approx(now) and won >= lost


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=7), st.integers(0, 99), st.floats(1e-9, 1e3))
def test_without_noise_the_fastest_wins_and_units_do_not_matter(times, seed, unit):
    standings = run(Race(len(times), seed=seed), lambda n: times[n] * unit)
    best = min(times)
    for time, s in zip(times, standings, strict=True):
        assert s.ratio == pytest.approx(time / best)
        if time > best * math.exp(0.0051):
            assert s.standing == "slower" or time < best * math.exp(0.0201)
        if time < best * math.exp(0.0049):
            assert s.standing in ("best", "tie")


def test_losers_leave_early_and_few_rounds_suffice():
    calls = []

    def time_of(n):
        calls.append(n)
        return [1.0, 3.0, 1.5, 1.0001][n]

    race = Race(4)
    standings = run(race, time_of)
    assert [s.standing for s in standings] == ["best", "slower", "slower", "tie"] and race.decided
    assert calls.count(1) == standings[1].rounds < 20 and race.rounds < 20 and standings[1].than in (0, 2, 3)
    assert standings[1].ratio == pytest.approx(3) and standings[2].low <= 1.5 <= standings[2].high


def test_a_slow_kernel_is_not_saved_by_drift():
    """Alone, the faster one was measured while the machine was slow."""
    machine = Machine(3, [1e-3, 1.2e-3], drift=1.5)
    assert [s.standing for s in run(Race(2, seed=3), machine)] == ["best", "slower"]


def test_order_is_drawn_afresh_and_repeats_with_the_seed():
    race, again = Race(5, seed=4), Race(5, seed=4)
    orders = [race.order() for _ in range(50)]
    assert orders == [again.order() for _ in range(50)] and len({tuple(o) for o in orders}) > 30
    assert all(sorted(o) == [0, 1, 2, 3, 4] for o in orders)


def test_one_alone_has_nothing_to_decide():
    race = Race(1)
    assert race.decided
    race.add({0: 1.0})
    assert race.standings()[0].standing == "best" and race.standings()[0].ratio == 1.0


def test_too_little_is_a_tie_and_too_much_an_end():
    race = Race(3)
    race.add({0: 1.0, 1: 2.0, 2: 9.0})
    assert not race.decided and {s.standing for s in race.standings()} == {"best", "tie"}
    race = Race(2)
    race.add({0: 1.0, 1: 1.0})
    race._logs *= MOST_ROUNDS
    assert race.decided and race.rounds == MOST_ROUNDS and race.standings()[1].standing == "tie"


def test_somebody_stays_when_leads_run_in_a_circle():
    race, turn = Race(3), 0
    while not race.decided:
        race.add({n: 1 + (n + turn) % 3 for n in race.order()})  # each is ahead of the next in two of three rounds
        turn += 1
    assert len(race.running) == 1 and sorted(s.standing for s in race.standings()) == ["best", "slower", "slower"]


def test_seconds_come_from_batches_and_differences_from_the_race():
    standings = run(Race(3), lambda n: [1.0, 2.0, 4.0][n])
    assert reconciled([1e-3, 2.4e-3, 4e-3], standings) == pytest.approx([1e-3, 2e-3, 4e-3])
