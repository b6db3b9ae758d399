"""The machine of this computer: probed once, kept, and left for a table where it is not believed."""

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

GOOD = (4e10, 3e10, 2e10)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Probes that measure ``found``, the times they did, and whether others used the cores meanwhile."""
    state = SimpleNamespace(found=GOOD, times=0, disturbed=False, cache=Cache(tmp_path))

    def measured(stream, cores, end):
        state.times += 1
        return [*state.found]

    class Section:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.load = SimpleNamespace(disturbed=state.disturbed)

    monkeypatch.setattr(this_machine, "_measured", measured)
    monkeypatch.setattr(this_machine, "_Stream", lambda device, most: None)
    monkeypatch.setattr(this_machine, "Section", Section)
    monkeypatch.setattr(this_machine, "default_cache", lambda: state.cache)
    probed.cache_clear()
    yield state
    probed.cache_clear()


def rates():
    found = probed("c:0")
    return found and found.rates


def again():
    probed.cache_clear()
    return rates()


def test_a_probe_is_made_once_and_kept(made):
    assert rates() == GOOD and again() == GOOD and made.times == 1


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[1]", b'{"rates": [1.0], "clock": 3}', b"\xff", b'{"rates": 1, "cores": 2, "seconds": 1}'],
)
def test_a_broken_file_is_ignored(made, payload):
    assert rates() == GOOD
    (key,) = made.cache.stored()
    made.cache.put(key, payload)
    assert again() == GOOD and made.times == 2 and again() == GOOD and made.times == 2


def test_another_computers_file_is_ignored(made, monkeypatch):
    assert rates() == GOOD
    device = open_device("c:0")
    monkeypatch.setattr(device, "identity", {**device.identity, "name": "another processor"})
    assert again() == GOOD and made.times == 2


def test_what_is_measured_beside_others_is_neither_taken_nor_kept(made):
    made.disturbed = True
    assert rates() is None and again() is None and made.times == 2 and not [*made.cache.stored()]


@pytest.mark.parametrize("found", [(1e8, 1e8, 1e8), (1e13, 3e10, 2e10), ()])
def test_what_no_such_computer_does_is_not_believed_and_not_asked_again(made, found):
    made.found = found
    assert rates() is None and again() is None and made.times == 1
    target = open_device("c:0").target
    assert machine_here(target) == machine_of(target)


def test_a_probe_gives_up_in_time():
    stream = SimpleNamespace(seconds=lambda n: 1e-3, moved=12.0)
    assert this_machine._measured(stream, 2, end=0.0) == []
    assert len(this_machine._measured(stream, 2, end=float("inf"))) == len(CORE_BYTES)


@pytest.mark.parametrize(("name", "value"), [("memory_here", lambda: 1 << 27), ("MOST_CORES", 0)])
def test_large_machines_and_little_memory_are_not_probed(made, monkeypatch, name, value):
    monkeypatch.setattr(this_machine, name, value)
    assert rates() is None and made.times == 0


def test_memory_is_shared_by_all_cores(made):
    table = machine_of(Target.parse("c -units=8"))
    found = Probe(GOOD, 4, 0.1).applied(table)
    assert found.rate(1 << 40) == GOOD[-1] * 4 / 8 and found.rate(1) == GOOD[0]


def test_rates_are_of_the_level_that_holds_the_arrays(made):
    machine = machine_here(open_device("c:0").target)
    for nbytes, rate in zip(CORE_BYTES, GOOD, strict=True):
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
    made.found, made.cache = (4e9, 4e9, 4e9), Cache(None)
    probed.cache_clear()
    assert s.expected.seconds > 2 * named.expected.seconds


def test_a_repr_probes_nothing(made):
    x = tir.placeholder((1 << 22,), name="x")
    assert repr(tir.auto_schedule(tir.compute((1 << 22,), lambda i: x[i] + 1.0, name="y"), "c")) and made.times == 0


def test_a_kernel_is_timed_at_several_lengths():
    stream = this_machine._Stream(open_device("c:0"), 1 << 16)
    assert stream.moved >= 8 and stream.seconds(1) > 0 and stream.seconds(1 << 16) > 0
