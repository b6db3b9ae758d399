"""What a report says as numbers."""

import numpy as np
import pytest

from tensorir.tune.log import Identity
from tensorir.tune.summary import importance, knobs, levels, tuned

DEVICE = {"name": "cpu", "platform": "pocl", "driver": "3.0"}
ME = Identity("matmul m=4 n=4 k=4", "d1g357", DEVICE, {"tensorir": "0.1.0"})


def made(time_s=1e-3, kind="trial", template="t", identity=ME, status="ok", **rest):
    config = rest.pop("config", {"tile": 4})
    checked = {"ok": True, "max_err": 0.0, "shapes": []} if status == "ok" else None
    result = {"status": status, "time_s": time_s, "samples": [time_s], "check": checked, "source_sha256": "ab" * 32}
    return identity.record(kind, template, config, {**result, **rest})


def at(n, *records):
    """Records in the order in which they are given, whatever the clock says."""
    return [{**r, "started": f"2026-01-01T00:{n:02}:{k:02}Z"} for k, r in enumerate(records)]


def test_best_so_far_counts_what_was_right():
    wrong = made(status="wrong_result", config={"tile": 1})
    (found,) = tuned(at(0, wrong, made(3e-3), made(4e-3, config={"tile": 2}), made(1e-3, config={"tile": 8})))
    assert found.best_so_far() == [None, 3e-3, 3e-3, 1e-3]
    assert found.best.record["config"] == {"tile": 8}
    assert found.default_s is None, "the first trial is the default's, and was wrong"


def test_the_default_is_what_it_was_beside_the_best():
    default, other = made(2e-3), made(1e-3, config={"tile": 8})
    final = made(3e-3, kind="final", of=default["id"])
    (found,) = tuned(at(0, default, other, final))
    assert found.best.record["id"] == other["id"] and found.default_s == 2e-3, "the best is not in the final round"
    (found,) = tuned(at(0, default, other, final, made(1.5e-3, kind="final", of=other["id"], config={"tile": 8})))
    assert found.best.time_s == 1.5e-3 and found.default_s == 3e-3


def test_devices_and_computations_are_apart():
    other = Identity(ME.workload, ME.compute, {**DEVICE, "name": "gpu"}, ME.versions)
    found = tuned(at(0, made(), made(identity=other), made(identity=other, config={"tile": 2})))
    assert [(t.device, len(t.trials)) for t in found] == [("gpu", 2), ("cpu", 1)]
    assert tuned([]) == []


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
    assert importance(trials[:2]) == [], "as many values as trials tell nothing"
    assert importance([]) == []


@pytest.mark.parametrize(("values", "order"), [([8, 2, 4], [2, 4, 8]), (["b", "a"], ["a", "b"]), ([[2], 1], [1, [2]])])
def test_values_are_in_order(values, order):
    assert levels([made(config={"k": v}) for v in values], "k") == order
    assert knobs([made(config={"k": v}) for v in values]) == ["k"]
