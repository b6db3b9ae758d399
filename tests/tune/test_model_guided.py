"""A search that a space's own model of seconds leads: models that are right, noisy, inverted, constant or random."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest

import tensorir as tir
from tensorir.tune.baseline import Climber, Guide, concordance
from tensorir.tune.pool import Pool
from tensorir.tune.strategy import Bayes

TILES = [1, 2, 4, 8, 16, 32]


def truth(c) -> float:
    off = (math.log2(c["x"]) - 3) ** 2 + (math.log2(c["y"]) - 1) ** 2 + 0.7 * (math.log2(c["z"]) - 4) ** 2
    return 1e-3 * math.exp(0.15 * off)


def noise(c, seed: int = 0) -> float:
    return zlib.crc32(repr((seed, sorted(c.items()))).encode()) / 2**32 - 0.5


MODELS = {
    "right": truth,
    "scaled": lambda c: 40 * truth(c) ** 0.8,
    "noisy": lambda c: truth(c) * math.exp(0.4 * noise(c)),
    "inverted": lambda c: 1 / truth(c),
    "random": lambda c: math.exp(2 * noise(c, 1)),
    "constant": lambda c: 1.0,
    "nearly none": lambda c: math.inf if c["x"] > 1 else 1.0,
}


def space(model=None):
    made = tir.Space(x=TILES, y=TILES, z=TILES)
    return made if model is None else made.expecting(MODELS[model])


def searched(model, trials: int, seed: int = 0, strategy=Bayes):
    made = space(model)
    search = strategy(made, seed=seed, budget=trials)
    rows = []
    for _ in range(trials):
        (row,) = search.ask()
        search.tell(row, truth(made.config(row)))
        rows.append(row)
    return search, rows, [truth(made.config(r)) / 1e-3 for r in rows]


@pytest.mark.parametrize("model", ["right", "scaled"])
def test_a_right_model_finds_the_optimum_at_once(model):
    pytest.importorskip("skopt")
    search, rows, times = searched(model, 10)
    assert times[0] == pytest.approx(1.0)
    modelled = Pool.of(space(model)).slowness[rows[:3]]
    assert (np.diff(modelled) > 0).all(), "its distinct configurations in its order"
    assert search._guide.agrees


def test_a_noisy_model_helps_early_and_does_not_mislead_late():
    pytest.importorskip("skopt")
    led = [searched("noisy", 50, seed)[2] for seed in range(3)]
    cold = [searched(None, 50, seed)[2] for seed in range(3)]
    assert sorted(min(t[:5]) for t in led)[1] < sorted(min(t[:5]) for t in cold)[1]
    assert max(min(t) for t in led) == pytest.approx(1.0)


@pytest.mark.parametrize("model", ["inverted", "random", "constant", "nearly none"])
def test_a_wrong_model_costs_little(model):
    pytest.importorskip("skopt")
    for seed in range(2):
        search, _, times = searched(model, 50, seed)
        assert min(times) == pytest.approx(1.0), (model, seed)
        assert not search._led() or model == "nearly none"


@pytest.mark.parametrize("strategy", [Bayes, Climber])
def test_what_a_contradicted_model_takes_for_hopeless_is_searched(strategy):
    pytest.importorskip("skopt")
    made = space("inverted")
    best = next(r for r in range(len(made.legal)) if truth(made.config(r)) == 1e-3)
    assert Pool.of(made).hopeless[best]
    search, _, _ = searched("inverted", 60, strategy=strategy)
    assert not search._guide.agrees
    assert Pool.of(made).hopeless[list(search.results)].any()


def test_rows_that_the_model_cannot_tell_apart_are_measured_once_at_first():
    pytest.importorskip("skopt")
    made = tir.Space(x=TILES, y=TILES).expecting(lambda c: float(c["x"]))  # blind to y
    search = Bayes(made, seed=0)
    rows = [search.ask()[0] for _ in range(search.LED)]
    assert [made.config(r)["x"] for r in rows] == TILES[: search.LED]


def test_concordance_counts_pairs_by_how_far_apart_the_model_has_them():
    x = np.log(np.array([1.0, 1.01, 4.0]))
    assert concordance(x, np.array([0.0, 1.0, 2.0])) == pytest.approx(1.0)
    assert concordance(x, np.array([1.0, 0.0, 2.0])) > 0.9, "near ties say little"
    assert concordance(x, np.array([1.0, 2.0, 0.0])) < 0, "a slow one that is fastest says much"
    assert concordance(np.zeros(3), np.array([1.0, 2.0, 0.0])) == 1.0, "nothing was said, so nothing was wrong"
    assert concordance(-np.arange(9.0), np.arange(9.0)) < -0.8


def test_a_trend_takes_the_scale_of_what_was_measured():
    made = space("right").expecting(lambda c: 7 * truth(c) ** 2)
    guide = Guide(Pool.of(made))
    results = {r: truth(made.config(r)) for r in range(0, len(made.legal), 5)}
    guide.judge(results)
    assert guide.agrees and not guide.blind
    rows = np.arange(len(made.legal))
    wanted = np.log([truth(made.config(r)) for r in rows])
    assert np.abs(guide.trend(results)(rows) - wanted).max() < 0.05
