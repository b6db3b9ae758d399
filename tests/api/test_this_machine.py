"""The machine of this computer: probed once, kept, and left for a table where it is not believed."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tensorir as tir
from tensorir.api import this_machine
from tensorir.api.this_machine import CORE_BYTES, Probe, machine_here, probed
from tensorir.machine import machine_of
from tensorir.runtime.cache import Cache
from tensorir.runtime.device import open_device
from tensorir.runtime.host import target_here
from tensorir.target import Target

GOOD = Probe((4e10, 3e10, 2e10), 0.5)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Probes made from ``found``, one of them at a time, and whether others used the cores meanwhile."""
    state = SimpleNamespace(found=GOOD, times=0, disturbed=False, cache=Cache(tmp_path))

    def measured(device, table):
        state.times += 1
        return state.found

    class Section:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.load = SimpleNamespace(disturbed=state.disturbed)

    monkeypatch.setattr(this_machine, "_measured", measured)
    monkeypatch.setattr(this_machine, "Section", Section)
    monkeypatch.setattr(this_machine, "default_cache", lambda: state.cache)
    probed.cache_clear()
    yield state
    probed.cache_clear()


def again():
    probed.cache_clear()
    return probed("c:0")


def test_a_probe_is_made_once_and_kept(made):
    assert probed("c:0") == GOOD and again() == GOOD and made.times == 1


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[1]", b'{"rates": [1.0], "clock": 3}', b"\xff", b'{"rates": "x", "seconds": 1}']
)
def test_a_broken_file_is_ignored(made, payload):
    assert probed("c:0") == GOOD
    (key,) = made.cache.stored()
    made.cache.put(key, payload)
    assert again() == GOOD and made.times == 2 and again() == GOOD and made.times == 2


def test_another_computers_file_is_ignored(made, monkeypatch):
    assert probed("c:0") == GOOD
    device = open_device("c:0")
    monkeypatch.setattr(device, "identity", {**device.identity, "name": "another processor"})
    assert again() == GOOD and made.times == 2


def test_what_is_measured_beside_others_is_not_kept(made):
    made.disturbed = True
    assert probed("c:0") == GOOD and again() == GOOD and made.times == 2


@pytest.mark.parametrize("rates", [(1e8, 1e8, 1e8), (1e13, 3e10, 2e10)])
def test_what_no_such_computer_does_is_not_believed(made, rates):
    made.found = Probe(rates, 0.5)
    assert probed("c:0") is None
    target = open_device("c:0").target
    assert machine_here(target) == machine_of(target)


def test_a_probe_that_takes_too_long_is_a_table(made):
    made.found = None
    assert probed("c:0") is None and not [*made.cache.stored()]


def test_rates_are_of_the_level_that_holds_the_arrays(made):
    machine = machine_here(open_device("c:0").target)
    for nbytes, rate in zip(CORE_BYTES, GOOD.rates, strict=True):
        assert machine.rate(nbytes * machine.cores) == rate


def test_only_targets_made_here_are_probed(made):
    for target in ("c -units=2", "opencl -vector_bytes=64 -units=2", "cuda"):
        assert machine_here(Target.parse(target)) == machine_of(Target.parse(target))
    assert made.times == 0
    plain = target_here("c")
    assert plain.here and machine_here(plain) != machine_of(plain) and made.times == 1
    assert plain == replace(plain, here=False) and "here" not in plain.text


def test_stated_seconds_are_of_this_computer(made):
    x = tir.placeholder((1 << 22,), name="x")
    y = tir.compute((1 << 22,), lambda i: x[i] + 1.0, name="y")
    s = tir.auto_schedule(y, "c")
    named = tir.auto_schedule(y, s.target.text)
    assert s.source() == named.source()
    slow = Probe((4e9, 4e9, 4e9), 0.5)
    made.found, made.cache = slow, Cache(None)
    probed.cache_clear()
    assert s.expected.seconds > 2 * named.expected.seconds


def test_a_real_probe_is_quick_and_travels():
    device = open_device("c:0")
    probe = this_machine._measured(device, machine_of(device.target))
    assert probe is None or (0 < probe.seconds <= this_machine.PROBE_S and min(probe.rates) > 0)
    assert json.loads(json.dumps(tir.codec.encode(GOOD))) == {"rates": [4e10, 3e10, 2e10], "seconds": 0.5}
