"""Records of other devices and shapes: no answers, but where a search starts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from records import ok
from searching import search

from tensorir.api.neighbours import START_SHAPES, near_records
from tensorir.tune import selection
from tensorir.tune.log import LogWriter, RunIdentity
from tensorir.tune.record import Record
from tensorir.tune.space import Space
from tensorir.tune.warm_start import MAX_TABLES, tables

CPU = {"name": "cpu", "platform": "x", "driver": "1"}
ME = RunIdentity("own n=8", "d1g357", CPU, {"tensorir": "0.1.0"})
OTHER = replace(ME, device={**CPU, "name": "another cpu"})
SPACE = Space(x=list(range(40)))


def trial(identity: RunIdentity, x: int, seconds: float | None, template: str = "t", kind: str = "trial") -> Record:
    result = {"status": "compile_error"} if seconds is None else ok(seconds)
    more = {"of": "0" * 16} if kind == "final" else {}
    return identity.record(kind, template, {"x": x}, {**result, **more})


def of_other(identity: RunIdentity, best: int) -> list[Record]:
    """Twenty times of a valley with its bottom at ``best``."""
    return [trial(identity, x, 1e-3 * (1 + abs(x - best) / 4)) for x in range(0, 40, 2)]


def test_each_other_device_version_and_shape_is_a_table() -> None:
    newer = replace(ME, versions={"tensorir": "0.2.0"})
    wider = replace(ME, workload="own n=16", compute="0ther")
    records = [trial(i, x, 1e-3) for i in (OTHER, newer, wider) for x in (1, 2)]
    found = tables(records, ME, {"t": SPACE})
    assert found == {"t": [{1: 1e-3, 2: 1e-3}] * 3}


def test_what_is_no_table() -> None:
    cancelled = OTHER.record("trial", "t", {"x": 3}, {"status": "cancelled"})
    final = trial(OTHER, 5, 1e-3, kind="final")
    records = [trial(ME, 1, 1e-3), trial(OTHER, 99, 1e-3), trial(OTHER, 1, 1e-3, "gone"), cancelled, final]
    assert tables(records, ME, {"t": SPACE}) == {}


def test_failures_are_kept_and_the_tables_that_know_most_are_taken() -> None:
    records = []
    for n in range(MAX_TABLES + 2):
        device = replace(ME, device={**CPU, "name": f"cpu {n}"})
        records += [trial(device, x, 1e-3) for x in range(n + 1)] + [trial(device, 20, None)]
    found = tables(records, ME, {"t": SPACE})["t"]
    assert [len(table) for table in found] == [n + 2 for n in range(MAX_TABLES + 1, 1, -1)]
    assert all(table[20] is None for table in found)


def measured(reuse: list[Record], trials: int = 4, **options: Any) -> list[int]:
    asked: list[int] = []

    def measure(template: str, config: dict[str, Any], kind: str, remaining: float | None) -> dict[str, Any]:
        asked.append(config["x"])
        return ok(1e-3 * (1 + abs(config["x"] - 30) / 4))

    outcome = search("bayes", {"t": SPACE}, measure, identity=ME, trials=trials, reuse=reuse, **options)
    assert outcome.reused == 0
    return asked


def test_a_search_begins_where_another_device_was_fast() -> None:
    default, second, *_ = measured(of_other(OTHER, 30))
    assert (default, second) == (0, 30)
    assert 30 not in measured([])[:2]


def test_records_of_another_device_are_measured_again_all_the_same() -> None:
    every = measured(of_other(OTHER, 30), trials=40)
    assert sorted(every) == list(range(40))


def test_replay_measures_what_other_records_say_and_the_default() -> None:
    def run() -> list[int]:
        asked: list[int] = []

        def measure(template: str, config: dict[str, Any], kind: str, remaining: float | None) -> dict[str, Any]:
            asked.append(config["x"])
            return ok(1e-3)

        search("replay", {"t": SPACE}, measure, identity=ME, reuse=of_other(OTHER, 30))
        return asked

    asked = run()
    assert asked[:2] == [0, 30]
    assert sorted(asked) == list(range(0, 40, 2))


def test_the_nearest_shapes_are_read_and_no_others(tmp_path) -> None:
    def shape(title: str, device: dict[str, str] = CPU) -> RunIdentity:
        return RunIdentity(title, f"c-{title}"[:20].replace(" ", "-"), device, ME.versions)

    titles = ["own n=9", "own n=10", "own n=12", "own n=64", "own n=8 layout=NHWC", "other n=8", "own n=8"]
    for title in titles:
        with LogWriter(tmp_path, title) as log:
            log.append(trial(shape(title), 1, 1e-3))
            log.append(trial(shape(title, {**CPU, "name": "another"}), 2, 1e-3))
    found = near_records(ME, str(tmp_path))
    assert [(r.workload, r.config["x"]) for r in found] == [("own n=9", 1), ("own n=10", 1), ("own n=12", 1)]
    assert len(found) == START_SHAPES
    assert near_records(ME, str(tmp_path / "nothing")) == []


@pytest.mark.parametrize("many", [3, 10, 11, 14, 15, 19, 40])
def test_a_run_lends_no_more_trials_than_its_share(monkeypatch, many):
    monkeypatch.setattr(selection, "MAX_START_RECORDS", 10)
    columns = {"final": np.zeros(many), "group": np.zeros(many, int), "steady": np.arange(many)[::-1]}
    taken = selection.sample(SimpleNamespace(columns=columns), np.ones(many, bool))
    assert min(many, 6) <= len(taken) <= 10
    assert {*range(many)[-5:]} <= {*taken.tolist()}, "the fastest"
