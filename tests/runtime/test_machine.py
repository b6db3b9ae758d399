"""What others took of the cores while something was timed."""

import pytest

from tensorir.runtime import machine
from tensorir.runtime.machine import ProcessorLoad, Section

TICK = machine._TICK_S


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """A machine of two cores of which this process may use one or both; what it says is set."""
    at = {"now": 0.0, "own": 0.0}

    class Time:
        def perf_counter(self):
            return at["now"]

        def process_time(self):
            return at["own"]

    monkeypatch.setattr(machine, "time", Time())
    monkeypatch.setattr(machine, "STAT", tmp_path / "stat")
    monkeypatch.setattr(machine, "_cores", lambda: frozenset([0, 1]))

    def set_(now, own, *busy, stolen=0.0):
        at.update(now=now, own=own)
        rows = [f"cpu{n} {round(b / TICK)} 0 0 99 0 0 0 {round(stolen / TICK)} 0 0" for n, b in enumerate(busy)]
        (tmp_path / "stat").write_text("cpu  1 2 3\n" + "\n".join(rows) + "\nintr 1 2\n")

    return set_


def section(counted, before, after):
    counted(*before)
    with Section() as found:
        counted(*after)
    return found.load


def test_others_are_what_this_process_did_not_use(counted, monkeypatch):
    load = section(counted, (0.0, 0.0, 5.0, 5.0, 9.0), (1.0, 1.2, 6.0, 5.9, 19.0))
    assert load.used == pytest.approx(0.7, abs=0.03) and load.lost == 0 and load.cores == 2 and load.disturbed
    assert load.words() == "other programs used 0.7 of 2 cores"
    at_rest = section(counted, (0.0, 0.0, 5.0, 5.0), (1.0, 1.9, 6.0, 5.95))
    assert not at_rest.disturbed and at_rest.words() == ""
    monkeypatch.setattr(machine, "_cores", lambda: frozenset([1]))
    assert section(counted, (0.0, 0.0, 5.0, 5.0), (1.0, 0.0, 6.0, 5.0)).used == 0, "another core's business"


def test_short_sections_say_little_and_many_of_them_much(counted):
    once = section(counted, (0.0, 0.0, 5.0, 5.0), (0.05, 0.05, 5.05, 5.02))
    assert not once.disturbed, "two steps of the counters"
    assert ProcessorLoad.sum([once.fields()] * 20).disturbed
    assert ProcessorLoad.sum([None, {}]) == ProcessorLoad.of(None) and not ProcessorLoad.of({}).disturbed


def test_stolen_time_is_said(counted):
    counted(0.0, 0.0, 0.0, 0.0)
    with Section() as found:
        counted(1.0, 1.0, 0.5, 0.5, stolen=0.3)
    assert found.load.disturbed and found.load.words() == "30% of their time was stolen"


def test_where_nobody_counts_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "STAT", tmp_path / "none")
    with Section() as found:
        pass
    assert found.load == machine.NO_LOAD and found.load.fields() == {}
    (tmp_path / "none").write_text("cpu0 what\n")
    with Section() as found:
        pass
    assert found.load.fields() == {}


def test_what_a_log_says_of_the_load_may_be_anything():
    for forged in ({"seconds": "1"}, {"seconds": True, "others": []}, {"cores": -3}, {"average": "x"}):
        assert not ProcessorLoad.of(forged).disturbed
    load = ProcessorLoad(2.0, 1.0, 0.5, 4, 3.25)
    assert ProcessorLoad.of(load.fields()) == load


def test_it_is_counted_here():
    with Section() as found:
        sum(range(10**6))
    assert found.load.fields() == {} or found.load.seconds > 0
