"""What a report says as numbers."""

from dataclasses import replace

import numpy as np
import pytest

from tensorir.tune.log import RunIdentity
from tensorir.tune.summary import importance, knobs, levels, tuned

DEVICE = {"name": "cpu", "platform": "pocl", "driver": "3.0"}
ME = RunIdentity("matmul m=4 n=4 k=4", "d1g357", DEVICE, {"tensorir": "0.1.0"})


def made(time_s=1e-3, kind="trial", template="t", identity=ME, status="ok", **rest):
    config = rest.pop("config", {"tile": 4})
    checked = {"ok": True, "max_err": 0.0, "shapes": []} if status == "ok" else None
    result = {"status": status, "time_s": time_s, "samples": [time_s], "check": checked, "source_sha256": "ab" * 32}
    return identity.record(kind, template, config, {**result, **rest})


def at(n, *records):
    """Records in the order in which they are given, whatever the clock says."""
    return [replace(r, started=f"2026-01-01T00:{n:02}:{k:02}Z") for k, r in enumerate(records)]


def test_best_so_far_counts_what_was_right():
    wrong = made(status="wrong_result", config={"tile": 1})
    (found,) = tuned(at(0, wrong, made(3e-3), made(4e-3, config={"tile": 2}), made(1e-3, config={"tile": 8})))
    assert found.best_so_far() == [None, 3e-3, 3e-3, 1e-3]
    assert found.best.record.config == {"tile": 8}
    assert found.default_s is None, "the first trial is the default's, and was wrong"


def test_the_default_is_what_it_was_beside_the_best():
    default, other = made(2e-3), made(1e-3, config={"tile": 8})
    final = made(3e-3, kind="final", of=default.id)
    (found,) = tuned(at(0, default, other, final))
    assert found.best.record.id == other.id and found.default_s == 2e-3, "the best is not in the final round"
    (found,) = tuned(at(0, default, other, final, made(1.5e-3, kind="final", of=other.id, config={"tile": 8})))
    assert found.best.time_s == 1.5e-3 and found.default_s == 3e-3


def test_a_default_that_is_the_best_is_as_fast_as_itself():
    """Its time is of one measurement, however wide the interval and busy the machine."""
    busy = {"seconds": 1.0, "others": 1.5, "stolen": 0.0, "cores": 2}
    (found,) = tuned(at(0, made(low_s=0.5e-3, high_s=2e-3, load=busy), made(5e-3, config={"tile": 8})))
    assert (found.gain.value, found.gain.low, found.gain.high, found.gain.doubt) == (1.0, 1.0, 1.0, "")


def test_devices_and_computations_are_apart():
    other = RunIdentity(ME.workload, ME.compute, {**DEVICE, "name": "gpu"}, ME.versions)
    found = tuned(at(0, made(), made(identity=other), made(identity=other, config={"tile": 2})))
    assert [(t.device, len(t.trials)) for t in found] == [("gpu", 2), ("cpu", 1)]
    assert tuned([]) == []


def noisy(count, seed):
    """Trials in which one of two knobs explains about half."""
    g = np.random.default_rng(seed)
    drawn = [(int(g.integers(4)), int(g.integers(4))) for _ in range(count)]
    return [made(float(np.exp(0.5 * a + 0.5 * g.standard_normal())), config={"a": a, "b": b}) for a, b in drawn]


def test_the_interval_of_an_importance_holds_what_endless_trials_would_say():
    found = [next(i for i in importance(noisy(40, seed)) if i.knob == "a") for seed in range(40)]
    true = 0.25 * 1.25 / (0.25 * 1.25 + 0.25)  # the variance of four values, and of the noise
    assert sum(i.low <= true <= i.high for i in found) >= 33
    many = next(i for i in importance(noisy(300, 0)) if i.knob == "a")
    assert np.mean([i.high - i.low for i in found]) > 2 * (many.high - many.low), "few trials say little"


def test_the_interval_of_an_importance_holds_its_share():
    """Among halves of a few trials with many values, rare ones far below zero pull down the mean."""
    g = np.random.default_rng(77)
    n, k = int(g.integers(8, 16)), int(g.integers(3, 7))
    drawn = [(int(a), float(np.exp(a * (g.random() < 0.5) + 0.3 * g.standard_normal()))) for a in g.integers(k, size=n)]
    (found,) = importance([made(time_s, config={"a": a}) for a, time_s in drawn])
    assert found.low <= found.share <= found.high


def test_the_library_of_the_final_round_of_the_best():
    """Its slots and the best's are of the same rounds, so what met both cancels."""
    default, other = made(2e-3), made(1e-3, config={"tile": 8})
    slots = [1e-3, 3e-3, 1e-3, 2e-3, 1e-3, 1e-3, 1e-3]
    peer = {"name": "numpy", "time_s": 2e-3, "low_s": 2e-3, "high_s": 6e-3, "samples": [2 * s for s in slots]}
    final = made(1e-3, kind="final", of=other.id, config={"tile": 8}, round="b", samples=slots, baseline=peer,
                 low_s=1e-3, high_s=3e-3)  # fmt: skip
    old = made(2e-3, kind="final", of=default.id, round="a", baseline={**peer, "name": "old"})
    (found,) = tuned(at(0, default, other, old, final))
    assert found.library["name"] == "numpy" and found.place == 1
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    (found,) = tuned(at(0, default, other))
    assert found.library is None and found.ratio is None


def test_time_spent_is_that_between_records_without_the_pauses():
    records = at(0, made(), made(config={"tile": 2}))
    records[0] = replace(records[0], detail={"seconds": {"run": 2.5, "x": "y"}})
    (found,) = tuned([*records, *at(30, made(config={"tile": 8}))])
    assert found.spent_s == pytest.approx(3.5)


def test_importance_is_the_share_of_the_variance():
    """One knob decides, another does nothing, a third has one value."""
    g = np.random.default_rng(0)
    trials = [
        made(float(np.exp(a + 0.01 * g.standard_normal())), config={"a": a, "b": b, "c": 1})
        for a in range(4) for b in range(5) for _ in range(2)
    ]  # fmt: skip
    found = {i.knob: i.share for i in importance(trials)}
    assert found.keys() == {"a", "b"}
    assert found["a"] > 0.99
    assert found["b"] < 0.1, "five groups of forty explain some of it by chance, which is taken off"
    for i in importance(trials):
        assert 0 <= i.low <= i.share <= i.high <= 1
    assert importance(trials[:2]) == [], "as many values as trials tell nothing"
    assert importance([]) == []


@pytest.mark.parametrize(("values", "order"), [([8, 2, 4], [2, 4, 8]), (["b", "a"], ["a", "b"]), ([[2], 1], [1, [2]])])
def test_values_are_in_order(values, order):
    assert levels([made(config={"k": v}) for v in values], "k") == order
    assert knobs([made(config={"k": v}) for v in values]) == ["k"]
