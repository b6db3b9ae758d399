"""Search strategies: never a repeat, nothing outside the pool, failures and earlier records taken in their stride."""

from __future__ import annotations

import builtins
import json
import math
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorir.errors import DeclarationError
from tensorir.tune import strategy
from tensorir.tune.baseline import Climber, GridSearch, RandomSearch
from tensorir.tune.gp import Hyperparameters, Posterior, evidence, one_thread, squared_distances
from tensorir.tune.model import Hyper, Model, Points, measured, response
from tensorir.tune.pool import Pool, encode
from tensorir.tune.space import Space
from tensorir.tune.strategy import STRATEGIES, Bayes, Priors, make

ALL = sorted(set(STRATEGIES) - {"replay"})  # replay proposes what other logs know, and nothing else
SIZES = [1, 2, 4, 8, 16, 32]


def space() -> Space:
    return Space(x=SIZES, y=SIZES, z=[1, 2, 3, 4], mode=["a", "b"], where={"area": lambda c: c["x"] * c["y"] <= 256})


def seconds(c: dict) -> float | None:
    """A smooth valley with its bottom at x=8, y=16, z=3, mode b; large z fails with mode a."""
    if c["mode"] == "a" and c["z"] == 4:
        return None
    away = math.log2(c["x"] / 8) ** 2 + math.log2(c["y"] / 16) ** 2 + (c["z"] - 3) ** 2
    return 1e-3 * (1 + 0.2 * away + (0.5 if c["mode"] == "a" else 0.0))


def play(search, steps: int, time=seconds) -> list[float]:
    best, curve = math.inf, []
    for _ in range(steps):
        rows = search.ask()
        if not rows:
            break
        t = time(search.pool.config(rows[0]))
        search.tell(rows[0], t)
        best = min(best, math.inf if t is None else t)
        curve.append(best)
    return curve


# -- what holds for each strategy


def test_numbers_of_any_size_and_sign_have_places():
    """Whole numbers beyond floats, differences beyond floats, and zero between negative and positive ones."""
    for values in ([10**400, 10**401, 10**500], [-(10**400), 0, 10**350], [-1e308, 0.0, 1e308], [-8, -1, 0, 1, 2]):
        place = encode(values)[0]
        assert place[0] == 0.0 and place[-1] == 1.0 and list(place) == sorted(set(place))
    assert len(Bayes(Space(a=[10**400, 10**401, 1], b=[-5, 0, 5]), seed=1, budget=9).ask(9)) == 9


@pytest.mark.parametrize("name", ALL)
def test_visits_every_row_once_and_then_stops(name: str) -> None:
    s = Space(x=[1, 2, 4], y=[1, 2, 4], mode=["a", "b"], where={"w": lambda c: c["x"] * c["y"] < 16})
    search = make(name, s, seed=1)
    rows = []
    while batch := search.ask(3):
        rows += batch
        for row in batch:
            search.tell(row, float(1 + row % 5))
    assert sorted(rows) == list(range(len(s.legal)))
    assert search.ask() == []


@pytest.mark.parametrize("name", ALL)
def test_rows_are_plain_ints_that_survive_json(name: str) -> None:
    row = make(name, space()).ask()[0]
    assert json.loads(json.dumps(row)) == row


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_search(name: str) -> None:
    runs = [play(make(name, space(), seed=5), 25) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", ["bayes", "climb", "random"])
def test_seeds_differ(name: str) -> None:
    assert make(name, space(), seed=1).ask(8) != make(name, space(), seed=2).ask(8)


@pytest.mark.parametrize("name", ALL)
def test_rows_told_but_not_asked_for_are_known(name: str) -> None:
    s = space()
    search = make(name, s)
    told = list(range(0, len(s.legal), 2))
    for row in told:
        search.tell(row, seconds(s.config(row)))
    asked = []
    while batch := search.ask(4):
        asked += batch
        for row in batch:
            search.tell(row, 1.0)
        if len(asked) > 40:
            break
    assert not set(asked) & set(told)
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("bad", [None, math.inf, math.nan, 0.0, -1.0])
def test_what_is_no_time_is_a_failure(name: str, bad: float | None) -> None:
    search = make(name, space())
    search.tell(3, bad)
    assert search.results == {3: None}
    assert search.best is None


@pytest.mark.parametrize("name", ALL)
def test_when_everything_fails_the_search_goes_on(name: str) -> None:
    search = make(name, space())
    assert len(play(search, 40, lambda c: None)) == 40
    assert search.best is None


@pytest.mark.parametrize("name", ALL)
def test_telling_again_replaces(name: str) -> None:
    search = make(name, space())
    search.tell(1, 2.0)
    search.tell(2, 3.0)
    assert search.best == 1
    search.tell(2, 1.0)
    assert search.best == 2


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("row", [-1, 10**9])
def test_a_row_outside_the_pool_is_an_error(name: str, row: int) -> None:
    with pytest.raises(IndexError):
        make(name, space()).tell(row, 1.0)


@pytest.mark.parametrize("name", ALL)
def test_a_space_with_one_configuration(name: str) -> None:
    search = make(name, Space())
    assert search.ask(5) == [0]
    search.tell(0, 1.0)
    assert search.ask() == []


@pytest.mark.parametrize("name", ALL)
def test_asking_for_more_than_there_is(name: str) -> None:
    s = Space(x=[1, 2, 4])
    assert sorted(make(name, s).ask(10)) == [0, 1, 2]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_order_of_asking_and_telling(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(ALL))
    s = Space(x=[1, 2, 4, 8], y=[1, 2, 4], m=["a", "b", "c"], where={"w": lambda c: c["x"] * c["y"] <= 16})
    search = make(name, s, seed=data.draw(st.integers(0, 5)), budget=data.draw(st.sampled_from([None, 1, 20])))
    known: set[int] = set()
    open_rows: list[int] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["ask", "tell", "tell", "foreign"]))
        if action == "ask":
            rows = search.ask(data.draw(st.integers(1, 3)))
            assert not known & set(rows)
            assert len(set(rows)) == len(rows)
            known |= set(rows)
            open_rows += rows
        elif action == "tell" and open_rows:
            row = open_rows.pop(data.draw(st.integers(0, len(open_rows) - 1)))
            search.tell(row, data.draw(st.one_of(st.none(), st.floats(1e-7, 10))))
        elif action == "foreign":
            row = data.draw(st.integers(0, len(s.legal) - 1))
            search.tell(row, data.draw(st.one_of(st.none(), st.floats(1e-7, 10))))
            known.add(row)


# -- the simple ones


def test_grid_goes_in_order_and_spreads_a_budget() -> None:
    s = Space(x=list(range(1, 101)))
    assert GridSearch(s).ask(4) == [0, 1, 2, 3]
    assert GridSearch(s, budget=5).ask(7) == [0, 24, 49, 74, 99, 1, 2]
    assert GridSearch(s, budget=500).ask(2) == [0, 1]


def test_the_climber_changes_one_knob_of_the_best() -> None:
    s = space()
    search = Climber(s, seed=3)
    play(search, Climber.initial)
    for _ in range(10):
        best = search.best
        row = search.ask()[0]
        assert (s.legal[row] != s.legal[best]).sum() == 1
        search.tell(row, seconds(s.config(row)))


def test_the_climber_goes_on_with_the_second_best() -> None:
    s = Space(x=list(range(1, 31)), y=[1, 2])
    search = Climber(s, seed=0)
    curve = play(search, 60, lambda c: float(c["x"]))
    assert len(curve) == 60


# -- Bayes


def test_evolution_combines_the_knobs_of_its_parents() -> None:
    search = make("evolve", space(), seed=0)
    play(search, 60)
    assert play(make("random", space(), seed=0), 60)[-1] > search.results[search.best]
    # after the random start, a child differs from some parent in few knobs
    late = list(search.results)[30:]
    fast = search._fastest(search.PARENTS)
    near = [min(search.pool.differing(row)[p] for p in fast if p != row) for row in late]
    assert sorted(near)[len(near) // 2] <= 2


@pytest.mark.parametrize("name", ALL)
def test_what_was_not_measured_after_all_may_be_asked_for_again(name: str) -> None:
    s = Space(x=[1, 2, 4], y=[1, 2, 4])
    search = make(name, s, seed=1)
    first = search.ask(4)
    for row in first:
        search.forget(row)
    search.tell(first[0], 1.0)
    search.forget(first[0])  # that one was measured
    rest = [row for _ in range(20) for row in search.ask()]
    assert sorted(rest) == sorted(set(range(9)) - {first[0]})


# -- what is known from elsewhere


def elsewhere(s: Space, factor: float = 1.0, rows: int | None = None) -> dict[int, float | None]:
    """Times of another device: the same valley, a bit off."""
    pool = Pool.of(s)
    order = np.random.default_rng(7).permutation(len(pool))[:rows]
    out: dict[int, float | None] = {}
    for row in order.tolist():
        t = seconds(pool.config(row))
        out[row] = None if t is None else factor * t * (1 + 0.03 * math.sin(row))
    return out


def test_bayes_starts_from_what_was_fast_elsewhere() -> None:
    cold = make("bayes", space(), seed=0, budget=30)
    warm = make("bayes", space(), seed=0, budget=30, priors=[elsewhere(space(), 3.0, 150)])
    assert play(warm, 8)[-1] < play(cold, 8)[-1]
    assert warm.counts["elsewhere"] == warm.ELSEWHERE
    play(warm, 12)
    assert warm.results[warm.best] == pytest.approx(1e-3)


def test_what_misleads_is_dropped() -> None:
    upside_down = {row: None if t is None else 1e-6 / t for row, t in elsewhere(space(), rows=120).items()}
    warm = make("bayes", space(), seed=0, budget=60, priors=[upside_down])
    assert play(warm, 45)[-1] <= 1.05e-3
    assert Priors(warm.pool, [upside_down]).trend(warm.results) is None
    assert Priors(warm.pool, [upside_down, elsewhere(space(), rows=120)]).trend(warm.results) is not None


def test_the_trend_is_in_the_units_of_the_results() -> None:
    pool, table = Pool.of(space()), elsewhere(space(), 100.0, 120)
    here = {row: seconds(pool.config(row)) for row in list(table)[:40]}
    trend = Priors(pool, [table]).trend(here)
    assert trend is not None
    ran = measured(here)
    off = trend(list(ran)) - response(list(ran.values()))
    assert abs(off.mean()) < 1e-9
    assert np.abs(off).max() < 0.3
    assert Priors(pool, [table]).trend({}) is None


def test_too_few_times_say_nothing() -> None:
    few = dict(list(elsewhere(space()).items())[:6])
    search = make("bayes", space(), seed=0, priors=[few])
    play(search, 3)
    assert "elsewhere" not in search.counts


def test_expectations_of_a_large_pool_are_made_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Priors(Pool.of(space()), [elsewhere(space(), rows=60)])
    monkeypatch.setattr(strategy, "AT_ONCE", 7)
    large = Priors(Pool.of(space()), [elsewhere(space(), rows=60)])
    rows = np.arange(0, len(large.pool), 5)
    np.testing.assert_allclose(large.expected[0](rows), small.expected[0](rows), rtol=1e-12)


def test_replay_measures_the_fastest_of_each_table_in_turn_and_nothing_else() -> None:
    s = Space(x=[1, 2, 4, 8, 16])
    tables = [{0: 3.0, 1: 1.0, 2: None}, {4: 9.0, 1: 20.0}]
    assert make("replay", s, priors=tables).ask(9) == [1, 4, 0]
    search = make("replay", s, priors=tables)
    search.tell(4, 1.0)
    assert [search.ask(), search.ask(), search.ask()] == [[1], [0], []]
    assert make("replay", s).ask() == []


def test_bayes_beats_random_on_a_valley() -> None:
    def trials(kind) -> float:
        runs = [play(kind(space(), seed=n), 60) for n in range(5)]
        return float(np.median([next((i for i, t in enumerate(r) if t <= 1.001e-3), 200) for r in runs]))

    assert trials(Bayes) < 40 < trials(RandomSearch)


def test_bayes_counts_where_its_rows_came_from() -> None:
    search = Bayes(space(), seed=0)
    play(search, 40)
    assert sum(search.counts.values()) == 40
    assert search.counts["initial"] == Bayes.INITIAL
    assert search.counts["local"] == (40 - Bayes.INITIAL) // Bayes.LOCAL_EVERY
    assert "skopt" in search.surrogate


def test_bayes_expects_less_and_less() -> None:
    search = make("bayes", space(), seed=0)
    play(search, 12)
    assert search.expected_gain is None
    play(search, 12)
    early = search.expected_gain
    play(search, 60)
    assert early is not None and 0 <= search.expected_gain < early


def test_a_small_budget_has_a_small_start() -> None:
    search = Bayes(space(), seed=0, budget=12)
    play(search, 12)
    assert search.counts["initial"] == 4


def test_earlier_records_replace_the_start() -> None:
    s = space()
    search = Bayes(s, seed=0)
    for row in range(20):
        search.tell(row, seconds(s.config(row)))
    play(search, 6)
    assert search.counts["initial"] == 0


def test_a_batch_spreads_out() -> None:
    s = space()
    search = Bayes(s, seed=0)
    play(search, 14)
    batch = search.ask(6)
    assert len(set(batch)) == 6
    for row in batch[::-1]:
        search.tell(row, seconds(s.config(row)))
    assert len(play(search, 5)) == 5


def test_bayes_avoids_what_keeps_failing() -> None:
    s = Space(x=SIZES, y=SIZES, z=list(range(1, 9)))

    def fragile(c: dict) -> float | None:
        return None if c["x"] >= 16 else 1e-3 * (40 - c["x"] + abs(c["z"] - 4))

    search = Bayes(s, seed=0)
    play(search, 60, fragile)
    late = list(search.results.values())[30:]
    assert sum(t is None for t in late) < len(late) / 3  # at random it would be as many


def test_features_are_inputs_of_every_second_model() -> None:
    asked = []

    def features(c: dict) -> list[float]:
        asked.append(c)
        return [c["x"] * c["y"], math.inf if c["z"] == 1 else 1.0]

    s = space()
    search = Bayes(s, seed=0, features=features)
    curve = play(search, 40)
    assert curve[-1] <= 1.3e-3
    assert len(asked) == len(s.legal)  # once for each configuration, whatever the number of fits


def test_features_of_the_space_are_taken() -> None:
    seen = []

    def features(c: dict) -> list[float]:
        seen.append(c["x"] * c["y"])
        return [c["x"] * c["y"]]

    play(make("bayes", space().describing(features), seed=0), 14)
    assert len(set(seen)) > 5


def test_what_two_divides_is_a_column_of_its_own() -> None:
    size, twos = encode([16, 24, 48, 96, 97, 128])
    np.testing.assert_allclose(twos, [4 / 6, 3 / 6, 4 / 6, 5 / 6, 0, 1])
    assert size[3] < size[4] < size[5]
    for plain in ([1, 2, 4, 8], [1, 2, 3], [0, 4, 12, 20], [3, 5, 6, 7], [0.5, 4, 12, 20]):
        assert len(encode(plain)) == 1


def test_orders_are_placed_by_where_things_are() -> None:
    orders = [("i", "j", "k"), ("i", "k", "j"), ("k", "j", "i")]
    np.testing.assert_array_equal(np.stack(encode(orders), axis=1), [[0, 0.5, 1], [0, 1, 0.5], [1, 0.5, 0]])


@pytest.mark.parametrize("bad", [lambda c: [1 / 0], lambda c: [1.0] * c["x"], lambda c: ["word"], lambda c: 3])
def test_features_that_do_not_work(bad) -> None:
    search = Bayes(space(), seed=0, features=bad)
    with pytest.raises(DeclarationError) as caught:
        play(search, 20)
    assert caught.value.code == "space.features"


def test_a_large_pool_is_searched_through_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bayes, "CANDIDATES", 20)
    search = Bayes(space(), seed=0)
    assert min(play(search, 60)) < 1.5e-3
    rows = []
    while batch := search.ask():
        search.tell(batch[0], 1.0)
        rows += batch
        if len(rows) > 30:
            break
    assert len(rows) == 31


def test_many_results_are_fitted_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorir.tune.model.FIT_ROWS", 12)
    assert len(play(Bayes(space(), seed=0), 40)) == 40


# -- without scikit-optimize


@pytest.fixture
def no_skopt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "skopt"]:
        monkeypatch.delitem(sys.modules, name)
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "skopt":
            raise ImportError("No module named 'skopt'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr("tensorir.tune.gp.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_skopt")
def test_without_skopt_bayes_is_the_climber_and_one_warning() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search = make("bayes", space(), seed=0)
        play(search, 40)
    assert type(search) is Climber
    assert search.name == "climb"
    assert len(caught) == 1
    assert "scikit-optimize" in str(caught[0].message)


@pytest.mark.usefixtures("no_skopt")
def test_without_skopt_the_others_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("random", "climb", "grid"):
            assert len(play(make(name, space()), 20)) == 20


@pytest.mark.usefixtures("no_skopt")
def test_without_skopt_the_class_itself_is_refused() -> None:
    with pytest.raises(DeclarationError) as caught:
        Bayes(space())
    assert caught.value.code == "tune.skopt-missing"


def test_a_broken_skopt_is_searched_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy, "missing", lambda: "AttributeError: np.int")
    search = make("bayes", space(), seed=0)
    with pytest.warns(UserWarning, match=r"np\.int") as caught:
        play(search, 40)
    assert len(search.results) == 40 and len(caught) == 1
    assert search.counts["model"] == 0 and search.counts["local"] > 10


def test_skopt_is_imported_when_the_model_is_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(strategy, "missing", lambda: looks.append(1) or "")
    search = make("bayes", space(), seed=0)
    play(search, search.INITIAL)
    assert not looks and search.counts["model"] == 0
    search.ask(1)
    assert len(looks) == 1


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(DeclarationError) as caught:
        make("bays", space())
    assert caught.value.code == "tune.unknown-strategy"
    assert "bayes" in str(caught.value)


# -- the pool and the model


def test_a_pool_of_recorded_rows() -> None:
    pool = Pool(["x", "y"], [[1, 2, 4], ["a", "b"]], [[0, 0], [2, 1], [2, 0]])
    assert len(pool) == 3
    assert pool.config(1) == {"x": 4, "y": "b"}
    assert pool.neighbours(2).tolist() == [0, 1]
    assert Pool.of(pool) is pool
    assert pool.points([0, 1]).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert Climber(pool).ask(9)


def test_encoding() -> None:
    assert [c.tolist() for c in encode([1, 2, 4, 16])] == [[0.0, 0.25, 0.5, 1.0]]
    assert [c.tolist() for c in encode([0, 1, 3])] == [[0.0, 0.5, 1.0]]
    assert [c.tolist() for c in encode([-1, 0, 1])] == [[0.0, 0.5, 1.0]]
    assert [c.tolist() for c in encode([False, True])] == [[0.0, 1.0]]
    assert [c.tolist() for c in encode(["x", "y"])] == [[0.0, 1.0]]
    assert [c.tolist() for c in encode([(1, 8), (2, 8), (4, 8)])] == [[0.0, 0.5, 1.0]]
    assert encode([7]) == []
    words = np.stack(encode(["x", "y", "z"]), axis=1)
    assert np.linalg.norm(words[0] - words[2]) == pytest.approx(1.0)
    assert len(encode([None, 1, 2])) == 3


def test_response_squashes_the_slow_half_and_imputes_failures() -> None:
    y = response([1.0, 2.0, 4.0, 64.0, None])
    assert y[:2].tolist() == pytest.approx([0.0, math.log(2)])
    assert (np.diff(y[:4]) > 0).all()
    assert y[3] < math.log(64)
    assert y[4] == y[3]
    assert response([3.0, 3.0]).tolist() == pytest.approx([math.log(3)] * 2)


def test_feasibility_is_learnt_from_failures() -> None:
    pool = Pool.of(Space(x=SIZES, y=SIZES))
    results = {row: None if pool.config(row)["x"] > 8 else 1.0 + row % 7 for row in range(0, 36, 2)}
    every = np.arange(len(pool))
    model = Model(pool, Points(pool), every[1:], Hyper(2), results)
    p = model.chances(results, every)
    fails = np.array([pool.config(int(row))["x"] > 8 for row in every[1:]])
    assert p[1:][fails].max() < p[1:][~fails].min()
    assert ((p > 0) & (p <= 1)).all()
    assert p[0] == pytest.approx(np.mean([t is not None for t in results.values()]))  # no candidate: the average
    assert (model.chances({0: 1.0}, every) == 1).all()


def test_the_posterior_over_the_pool_is_the_one_skopt_predicts() -> None:
    from skopt.learning import GaussianProcessRegressor

    rng = np.random.default_rng(0)
    x, y, pool = rng.random((12, 3)), rng.standard_normal(12), rng.random((50, 3))
    with one_thread():
        kernel, noise = Hyperparameters(3).fit(x, (y - y.mean()) / y.std())
        ours = Posterior(pool, kernel, noise, capacity=2)
        ours.add(x[:1])
        ours.add(x[1:])
        belief = ours.condition(y)
        theirs = GaussianProcessRegressor(kernel=kernel, alpha=noise, optimizer=None, normalize_y=True).fit(x, y)
        mean, std = theirs.predict(pool, return_std=True)
    assert belief.mean == pytest.approx(mean, abs=1e-6)
    assert belief.std == pytest.approx(std, abs=1e-5)
    assert belief.predict(np.array([3, 7]))[0].tolist() == belief.mean[[3, 7]].tolist()


def test_the_likelihood_and_its_gradient_are_those_of_skopt() -> None:
    from skopt.learning import GaussianProcessRegressor

    rng = np.random.default_rng(0)
    x, y = rng.random((15, 4)), rng.standard_normal(15)
    x[3] = x[4]  # no distance, where the square root has no derivative
    kernel = Hyperparameters(4)._kernel
    theirs = GaussianProcessRegressor(kernel=kernel, optimizer=None).fit(x, y)
    for _ in range(5):
        theta = kernel.theta + rng.normal(0.0, 0.7, len(kernel.theta))
        value, gradient = theirs.log_marginal_likelihood(theta, eval_gradient=True)
        ours = evidence(theta, squared_distances(x), y)
        assert ours[0] == pytest.approx(-value, rel=1e-9)
        assert ours[1] == pytest.approx(-gradient, rel=1e-6, abs=1e-8)


def test_points_under_way_shrink_the_deviation_and_leave_the_mean() -> None:
    rng = np.random.default_rng(0)
    x, y, pool = rng.random((8, 2)), rng.standard_normal(8), rng.random((20, 2))
    kernel, noise = Hyperparameters(2).fit(x, y)
    p = Posterior(pool, kernel, noise)
    p.add(x)
    before = p.condition(y)
    p.add(pool[4:5])
    after = p.condition(y)
    assert after.mean == pytest.approx(before.mean)
    assert after.std[4] < before.std[4]
    p.keep(8)
    assert len(p) == 8
    assert p.condition(y).std == pytest.approx(before.std, abs=1e-7)


def test_candidates_added_later_are_like_those_of_the_start() -> None:
    rng = np.random.default_rng(0)
    x, y, pool = rng.random((9, 3)), rng.standard_normal(9), rng.random((40, 3))
    kernel, noise = Hyperparameters(3).fit(x, (y - y.mean()) / y.std())
    whole, grown, early = (Posterior(some, kernel, noise, capacity=2) for some in (pool, pool[:25], pool[:25]))
    early.consider(pool[25:])
    for posterior in (whole, grown, early):
        posterior.add(x[:6])
    grown.consider(pool[25:])
    for posterior in (whole, grown, early):
        posterior.add(x[6:])
        found, wanted = posterior.condition(y), whole.condition(y)
        assert found.mean == pytest.approx(wanted.mean, abs=1e-9) and found.std == pytest.approx(wanted.std, abs=1e-9)


def test_a_model_considers_more_rows() -> None:
    pool = Pool.of(space())
    every = np.arange(len(pool))
    results = {row: None if row % 7 == 0 else 1.0 + row % 5 for row in range(0, 40, 2)}
    at = Points(pool)
    size = at([0]).shape[1]
    whole, grown = (Model(pool, at, some, Hyper(size), results, np.sqrt) for some in (every, every[:30]))
    grown.chances(results, every[:3])
    grown.consider(every[30:])
    assert grown.candidates.tolist() == every.tolist()
    for found, wanted in zip(grown.improvement(results, [], every), whole.improvement(results, [], every), strict=True):
        assert found == pytest.approx(wanted, abs=1e-9)
    assert grown.chances(results, every) == pytest.approx(whole.chances(results, every))


def test_points_have_the_features_behind_the_knobs() -> None:
    pool = Pool.of(Space(x=[1, 2, 4]))
    points = Points(pool, lambda c: [c["x"] * 10])
    assert points([0, 1, 2]).tolist() == [[0.0, 0.0], [0.5, pytest.approx(1 / 3)], [1.0, 1.0]]
    assert points([]).shape == (0, 1)


def test_the_hyperparameters_find_the_knob_that_matters() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((60, 3))
    y = np.sin(6 * x[:, 1])
    kernel, noise = Hyperparameters(3).fit(x, (y - y.mean()) / y.std())
    scales = kernel.k2.length_scale
    assert scales[1] < 0.5 * min(scales[0], scales[2])
    assert noise < 0.05


def test_the_start_goes_anywhere_where_knobs_are_conditional() -> None:
    """The farthest rows are the ends of every branch, whose number does not depend on how many rows it has."""
    big = Space(way=("a", "b"), x=range(40), y=range(40)).when(x=lambda c: c["way"] == "b", y=lambda c: c["way"] == "b")
    assert big.conditional and big.pin(way="b").conditional and not Space(x=range(4)).conditional
    ends = 0
    for seed in range(20):
        search = make("bayes", big, seed=seed, budget=50)
        ends += sum(search.pool.config(row)["x"] in (0, 39) for row in search.ask(7))
    assert ends < 35, "of 140 rows, a seventh by chance"
