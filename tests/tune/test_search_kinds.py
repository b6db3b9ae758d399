"""Kinds of spaces in which a search goes wrong: valleys behind others, failures, noise, even steps, too many rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import ME
from searching import search

from tensorir.tune import gp, model, strategy
from tensorir.tune.baseline import Climber
from tensorir.tune.gp import Hyperparameters, Posterior
from tensorir.tune.model import Hyper, Model, Points
from tensorir.tune.pool import Pool, encode
from tensorir.tune.space import Space
from tensorir.tune.strategy import Bayes, Expectation, make, some_of

POWERS = [1, 2, 4, 8, 16, 32]


def play(found, steps, time):
    """The best time after so many measurements."""
    for _ in range(steps):
        for row in found.ask():
            found.tell(row, time(found.pool.config(row)))
    return found.results[found.best]


# -- nothing more to expect


def test_where_the_model_expects_nothing_rows_are_drawn_at_random() -> None:
    """One knob decides, and is known soon."""
    s = Space(x=POWERS, y=POWERS, z=POWERS)
    found = Bayes(s, seed=0)
    play(found, 50, lambda c: 1e-3 * (1 + abs(math.log2(c["x"]) - 2)))
    assert found.counts["random"] > 4
    assert found.counts["model"] > 3 and found.counts["local"] > 8


def test_a_valley_behind_a_condition_is_found() -> None:
    def time(c: dict) -> float:
        away = sum(abs(math.log2(c[k]) - 3) for k in "xy")
        return 1e-3 * (1.3 + 0.1 * away if c["way"] == "plain" else 1 + 0.4 * away + 0.3 * abs(c["depth"] - 4))

    s = Space(way=("plain", "staged"), x=POWERS, y=POWERS, depth=list(range(1, 7)))
    s = s.when(depth=lambda c: c["way"] == "staged")
    reached = [play(Bayes(s, seed=seed), 100, time) for seed in range(5)]
    assert sorted(reached)[2] <= 1.0001e-3


def test_switches_are_knobs_of_two_values_and_words() -> None:
    s = Space(way=("a", "b", "c"), x=[1, 2, 4], on=[False, True], size=[16, 32], one=[1])
    assert [s.names[j] for j in Pool.of(s).switches] == ["way", "on", "size"]
    assert not len(Pool.of(s.pin(way="a", on=True, size=16)).switches)


def test_the_other_side_of_a_switch_is_improved_on_its_own() -> None:
    """What the best row has is never proposed, and the fastest row of the other side counts as the best."""
    s = Space(way=("plain", "staged"), x=POWERS, y=POWERS)
    found = Bayes(s, seed=0)
    play(found, 20, lambda c: 1e-3 * (1 if c["way"] == "plain" else 3 + abs(math.log2(c["x"] * c["y"]) - 4)))
    assert found._stuck()
    assert {s.config(found._other_side())["way"] for _ in range(10)} == {"staged"}
    model = found._current()
    free = found._free(model)
    rivals = [row for row in found.results if s.config(row)["way"] == "staged"]
    whole, aside = (model.improvement(found.results, [], free, some)[0] for some in (None, rivals))
    assert (aside >= whole).all() and aside.max() > whole.max()


def test_a_narrow_valley_on_the_worse_side_is_found() -> None:
    """Nearly all of one side is much slower, and there other knobs matter than on the other."""

    def time(c: dict) -> float:
        if c["staged"]:
            return 1.2 + 0.05 * abs(math.log2(c["x"]) - 3) + 0.2 * abs(math.log2(c["y"]) - 3)
        wrong = c["w"] % 3 == 0 or c["v"] % 3 == 0
        return (
            (8.0 if wrong else 1.0) + 0.2 * math.log2(c["x"]) + 0.4 * (5 - math.log2(c["y"])) + 0.3 * (not c["cache"])
        )

    s = Space(staged=[0, 1], cache=[0, 1], w=[2, 3, 4, 6, 8, 12, 16, 24], v=[1, 2, 3, 4], x=POWERS, y=POWERS)

    def stuck(share: float) -> int:
        kind = type("Some", (Bayes,), {"STALE": share})
        return sum(play(kind(s, seed=seed), 60, time) > 1.05 for seed in range(8))

    assert stuck(Bayes.STALE) < stuck(0.0)


def test_the_best_candidates_of_a_sample_bring_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bayes, "CANDIDATES", 60)
    monkeypatch.setattr(strategy, "LEAST_CANDIDATES", 60)
    s = Space(**{f"k{n}": POWERS for n in range(5)})
    found = Bayes(s, seed=0)
    play(found, 12, lambda c: 1e-3 * math.exp(0.1 * sum(abs(math.log2(v) - 3) for v in c.values())))
    found._model = None
    model = found._current()
    assert len(np.unique(model.candidates)) == len(model.candidates) > 60
    free = found._free(model)
    first = free[free < 60]  # what was drawn: the best of it has its neighbours here
    gain, chance = model.improvement(found.results, [], first)
    near = found.pool.neighbours(int(model.candidates[first[np.argmax(gain * chance)]]))
    assert np.isin(near[~found._seen[near]], model.candidates).all()


# -- numbers at even distances


@pytest.mark.parametrize("values", [range(1, 65), range(16, 144, 16), [0.5 * n for n in range(1, 9)], range(16, 0, -2)])
def test_even_steps_have_a_column_of_their_own(values) -> None:
    columns = np.stack(encode(list(values))[:2])
    high, low = max(values), min(values)
    np.testing.assert_allclose(columns[1], [(v - low) / (high - low) for v in values])
    assert np.abs(columns[0] - columns[1]).max() > 0.05


@pytest.mark.parametrize(
    "values", [[1, 2, 4, 8, 16], [1, 2, 3, 4, 5, 6, 7], [False, True], [1, 2, 3, 4, 5, 6, 7, 9], ["a", "b", "c", "d"]]
)
def test_other_values_have_none(values) -> None:
    assert all(not np.allclose(np.diff(c), 1 / (len(values) - 1)) for c in encode(values)[1:])


# -- failures


def test_failures_are_no_times() -> None:
    """What failed does not move what is expected of its neighbours' times; it moves their chance to run."""
    pool = Pool.of(Space(x=POWERS, y=POWERS))
    ran = {row: 1.0 + row % 5 for row in range(0, 36, 3)}
    every = np.arange(len(pool))
    failed = {1: None, 4: None, 7: None}
    alone, among = (Model(pool, Points(pool), every, Hyper(2), r) for r in (ran, ran | failed))
    means = [
        m._times.observing([*ran, *more]).condition(m._beyond_trend(ran)).mean
        for m, more in ((alone, ()), (among, failed))
    ]
    np.testing.assert_allclose(*means, atol=1e-9)
    gain, chance = among.improvement(ran | failed, [], every)
    assert chance[1] < chance[0] and gain.shape == chance.shape
    assert (alone.improvement(ran, [], every)[1] == 1).all()


def test_rows_that_run_are_found_among_many_that_fail() -> None:
    s = Space(x=POWERS, y=POWERS, z=POWERS)
    found = Bayes(s, seed=1)
    best = play(found, 80, lambda c: 1e-3 * (1 + c["z"]) if c["x"] * c["y"] == 32 else None)
    assert best == 2e-3
    assert sum(t is not None for t in found.results.values()) > 2 * 80 * 6 / 36


def test_a_model_of_few_results_among_failures_does_not_go_to_the_ends() -> None:
    """Corners are what it knows least of, and what is rarely good: a quarter of all values are ends."""
    powers = [2**n for n in range(8)]
    asked = []
    for seed in range(8):
        found = Bayes(Space(**{f"k{n}": powers for n in range(5)}), seed=seed)
        rng = np.random.default_rng(seed)
        for _ in range(40):
            before, ran = found.counts["model"], sum(t is not None for t in found.results.values())
            (row,) = found.ask()
            if found.counts["model"] > before and ran < strategy.FEW_RESULTS:
                asked.append(found.pool.rows[row])
            found.tell(row, 1e-3 * (2 + rng.random()) if rng.random() < 0.1 else None)
    ends = np.isin(np.array(asked), [0, len(powers) - 1]).mean()
    assert len(asked) > 50 and ends < 0.4


# -- noise


def test_what_is_to_be_improved_on_is_the_mean_of_the_process() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 2)), rng.standard_normal(20)
    kernel, _ = Hyperparameters(2).fit(x, y)
    posterior = Posterior(x, kernel, 0.3)
    posterior.add(x)
    np.testing.assert_allclose(posterior.smoothed(y), posterior.condition(y).mean, atol=1e-9)
    assert posterior.smoothed(y).min() > y.min()
    some = posterior.smoothed(y, 0.1)
    assert (np.abs(some - y) < np.abs(posterior.smoothed(y) - y)).all() and np.abs(some - y).max() < 0.2


# -- more rows than can be listed

HUGE = {f"k{n}": POWERS for n in range(9)} | {"x": list(range(1, 9))}


@pytest.fixture(scope="module")
def huge() -> Space:
    return Space(**HUGE, where={"fits": lambda c: c["k0"] * c["k1"] <= 64}, default=dict.fromkeys(HUGE, 2))


def far(c: dict) -> float:
    return 1e-3 * math.exp(0.1 * sum(abs(math.log2(v) - 3) for v in c.values()))


def differing(a: dict, b: dict) -> int:
    return sum(a[k] != b[k] for k in a)


@pytest.mark.parametrize("name", ["bayes", "climb"])
def test_a_sample_grows_around_the_best(name: str) -> None:
    s = Space(**HUGE, where={"fits": lambda c: c["k0"] * c["k1"] <= 64}, default=dict.fromkeys(HUGE, 2))
    drawn = len(s.legal)
    found = make(name, s, seed=0)
    play(found, 45, far)
    assert len(s.legal) > drawn and any(row >= drawn for row in found.results)
    assert all(s.config(row)["k0"] * s.config(row)["k1"] <= 64 for row in found.results)
    assert all(s.index(s.config(row)) == row for row in [*found.results, drawn, len(s.legal) - 1])
    best = s.config(found.best)
    near = [s.config(int(row)) for row in found.pool.neighbours(found.best)]
    legal = sum(differing(best, c) == 1 for c in near)
    other = [{**best, k: v} for k, vs in HUGE.items() for v in vs if v != best[k]]
    assert legal == len(near) == sum(c["k0"] * c["k1"] <= 64 for c in other)


def test_two_searches_of_one_sample(huge: Space) -> None:
    """Rows that one lists, the other may be told."""
    one, other = Climber(huge, seed=0), Climber(huge, seed=1)
    play(one, 20, far)
    other.tell(len(huge.legal) - 1, 1.0)
    assert other.best == len(huge.legal) - 1
    assert len(set(other.ask(30))) == 30


def test_a_configuration_of_an_earlier_run_is_admitted(huge: Space) -> None:
    listed = {tuple(row) for row in huge.legal.tolist()}
    config = dict.fromkeys(HUGE, 1)
    while tuple(HUGE[k].index(v) for k, v in config.items()) in listed:
        config["x"] += 1
    assert huge.index(config) == -1
    row = huge.admit(config)
    assert huge.config(row) == config and huge.index(config) == huge.admit(config) == row
    assert huge.admit({**config, "k0": 32, "k1": 32}) == -1
    assert huge.admit({**config, "k0": 3}) == -1
    small = Space(a=[1, 2], where={"one": lambda c: c["a"] == 1})
    assert small.admit({"a": 2}) == -1 and small.admit({"a": 1}) == 0


# -- how much work a step is


def test_a_fit_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and evaluations of the likelihood, and candidates times results, whatever the number of both."""
    evaluated, made = [], []
    given = gp.Hyperparameters._maximise

    def counted(self, objective, initial, bounds):
        calls = []
        out = given(self, lambda *a, **k: calls.append(1) or objective(*a, **k), initial, bounds)
        evaluated.append(len(calls))
        return out

    class Watched(Model):
        def __init__(self, pool, points, candidates, hyper, results, trend=None):
            made.append((len(candidates), len(results)))
            super().__init__(pool, points, candidates, hyper, results, trend)

    monkeypatch.setattr(gp.Hyperparameters, "_maximise", counted)
    monkeypatch.setattr(strategy, "Model", Watched)
    monkeypatch.setattr(strategy, "MAX_MODEL_WORK", 20_000)
    monkeypatch.setattr(strategy, "LEAST_CANDIDATES", 100)
    s = Space(**{f"k{n}": POWERS for n in range(4)})
    found = Bayes(s, seed=0)
    for row in range(0, 1296, 8):
        found.tell(row, None if row % 5 == 0 else 1.0 + row % 7)
    play(found, 30, lambda c: 1.0)
    assert made and all(candidates * results <= 20_000 for candidates, results in made)
    # scipy looks at one point more than it was allowed
    assert evaluated and max(evaluated) <= gp.Hyperparameters.EVALUATIONS + 1
    assert model.FIT_ROWS <= 150


# -- what is known from elsewhere


def test_a_table_is_thinned_and_smoothed() -> None:
    pool = Pool.of(Space(x=POWERS, y=POWERS, z=POWERS))
    rng = np.random.default_rng(0)
    smooth = {row: math.exp(sum(pool.rows[row]) / 5) for row in range(216)}
    table = {row: t * math.exp(0.3 * rng.standard_normal()) for row, t in smooth.items()}
    kept = some_of(table)
    assert len(kept) == strategy.MOST_ROWS == len(set(kept)) and kept.items() <= table.items()
    assert sorted(table, key=table.__getitem__)[: strategy.FASTEST_ROWS] == list(kept)[: strategy.FASTEST_ROWS]
    expected = Expectation(pool, table)(np.arange(216))
    true = np.log(list(smooth.values()))
    seen = np.log(list(table.values()))
    assert np.corrcoef(expected, true)[0, 1] > np.corrcoef(seen, true)[0, 1]


@given(st.integers(1, 60), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_each_template_is_told_its_share(trials: int, templates: int) -> None:
    told = []

    def make_one(name, space, *, seed, budget, priors=()):
        told.append(budget)
        return make("random", space, seed=seed, budget=budget)

    spaces = {f"t{n}": Space(x=POWERS, y=POWERS) for n in range(templates)}
    measured = []

    def measure(template, config, kind, left):
        measured.append(config)
        return {"status": "crashed"}

    search("random", spaces, measure, identity=ME, trials=trials, make=make_one)
    assert told == [-(-trials // templates)] * templates
