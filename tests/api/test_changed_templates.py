"""Which records a run that goes on takes over: what its templates make now decides."""

import warnings

import pytest

from tensorir.api import tuning
from tensorir.api.tuning import current
from tensorir.api.workload import Template
from tensorir.engines.gemm_cpu import ColumnTile
from tensorir.tune.record import RunIdentity
from tensorir.tune.space import Space

ME = RunIdentity("own n=8", "d1g357", {"name": "cpu", "driver": "1"}, {"tensorir": "0.1.0"})
OK = {"status": "ok", "samples": [1e-3], "check": {"ok": True, "max_err": 0.0, "shapes": []}}
MINE = {"t": Template(lambda s, c: None, Space(x=range(9)))}
OURS = {"t": Template(ColumnTile.product, Space(x=range(9)))}


def record(x, made="a", kind="trial", **result):
    sha = None if made is None else made * 64
    return ME.record(kind, "t", {"x": x}, {**(OK | {"time_s": 1e-3 * (x + 1)}), **result, "source_sha256": sha})


def taken(records, makes, templates=MINE):
    """Configurations that are taken over, and those that were asked for; ``makes``: what each gives now."""
    asked = []

    def digests(some):
        asked.extend(r.config["x"] for r in some)
        return [m and m * 64 for m in (makes(r.config["x"]) for r in some)]

    return [r.config["x"] for r in current(records, ME, templates, digests)], asked


def test_only_what_is_made_as_it_was_is_taken():
    wrong = record(2, status="wrong_result", check={"ok": False})
    with pytest.warns(UserWarning, match="template t changed since: 2 configurations of the log stale"):
        found, asked = taken(
            [record(0), record(1, "b"), wrong, record(3), record(3, kind="final")], lambda x: "ab"[x > 0]
        )
    assert found == [0, 1] and sorted(asked) == [0, 1, 2, 3]


def test_what_has_been_measured_again_is_not_mentioned():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = taken([record(0, "a"), record(0, "b")], lambda x: "b")
    assert found == [0]


def test_records_without_a_source():
    """Refused then and now: as it was. Refused then, made now: mended. What fell: stale before others that are."""
    fell = record(3, None, status="crashed")
    refused, mended = (record(x, None, status="illegal_schedule") for x in (1, 2))
    assert taken([record(0), refused, fell], lambda x: "a" if x == 0 else None) == ([0, 1, 3], [0, 1])
    with pytest.warns(UserWarning, match="2 configurations"):
        found, asked = taken([record(0), refused, fell, mended], lambda x: None if x == 1 else "a")
    assert (found, sorted(asked)) == ([0, 1], [0, 1, 2])
    before, again = record(0, "b"), record(3, None, status="crashed")  # what fell is later than what is stale
    with pytest.warns(UserWarning, match="1 configuration "):
        assert taken([before, again], lambda x: "a")[0] == [3]


def test_of_templates_of_this_package_one_source_tells(monkeypatch):
    every = [record(x) for x in range(5)]
    assert taken(every, lambda x: "a", OURS) == ([0, 1, 2, 3, 4], [0])
    with pytest.warns(UserWarning, match="5 configurations"):
        assert taken(every, lambda x: "b", OURS) == ([], [0, 1, 2, 3, 4])
    monkeypatch.setattr(tuning, "REMADE_OF_PACKAGE", 2)
    assert taken(every, lambda x: "a", OURS)[1] == [0, 1]


def test_what_is_of_another_device_is_no_answer_anyway():
    other = RunIdentity(ME.workload, ME.compute, {"name": "gpu", "driver": "1"}, ME.versions)
    made = other.record("trial", "t", {"x": 1}, {**OK, "time_s": 1.0, "source_sha256": "b" * 64})
    assert taken([made], lambda x: "a") == ([1], [])


def test_of_many_configurations_some_are_asked_for(monkeypatch):
    """The fastest and a sample: as they were, so are the others; otherwise those not asked for are stale."""
    monkeypatch.setattr(tuning, "REMADE_OF_OTHERS", 4)
    every = [record(x) for x in range(9)]
    assert taken(every, lambda x: "a") == (list(range(9)), [0, 1, 2, 6])
    with pytest.warns(UserWarning, match="6 configurations"):
        assert taken(every, lambda x: "ab"[x == 6]) == ([0, 1, 2], [0, 1, 2, 6])
    with pytest.warns(UserWarning, match="6 configurations"):
        assert taken(every, lambda x: "ab"[x == 0], OURS) == ([1, 2, 6], [0, 1, 2, 6])
