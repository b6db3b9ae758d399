"""Frozen choices decide what is loaded: alone, checked, and refused when they are not what they were."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from noted import note, operator

import tensorir as tir
from tensorir.api import load_cache
from tensorir.lower import pipeline
from tensorir.runtime.device import devices
from tensorir.tune.frozen import frozen_text
from tensorir.tune.log import LogError, LogReader, freeze

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)

A, B = (np.arange(256, dtype=np.float32).reshape(16, 16) % n for n in (5, 7))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch, unoptimised):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TENSORIR_FROZEN", raising=False)
    monkeypatch.setattr(load_cache, "package_state", lambda: None)


@pytest.fixture
def pinned(tmp_path):
    """``pinned(**changes)``: a frozen file of one choice, changed and sealed again; its path and its record."""
    (record,) = note(operator(), tmp_path / "log", (5e-3,))

    def freeze(**changes):
        (tmp_path / "frozen.json").write_bytes(frozen_text([replace(record, **changes)]))
        return str(tmp_path / "frozen.json")

    return freeze, record


def loaded(log):
    f = operator().load(log=str(log))
    np.testing.assert_array_equal(f(A, B), A @ B)
    return f.emitted.sha256


def refused(log, code="load.frozen-stale"):
    with pytest.raises(tir.NotTuned) as caught:
        operator().load(log=log)
    assert caught.value.code == code
    return str(caught.value)


def test_it_decides_whatever_the_log_learns(tmp_path, pinned):
    file, record = pinned[0](), pinned[1]
    _, faster = note(operator(), tmp_path / "log", (6e-3, 1e-3))
    assert loaded(tmp_path / "log") == faster.source_sha256
    assert loaded(file) == record.source_sha256 != faster.source_sha256
    (tmp_path / "log").rename(tmp_path / "elsewhere")
    assert loaded(file) == record.source_sha256, "it needs no log"


def test_the_environment_names_one(tmp_path, pinned, monkeypatch):
    file, record = pinned[0](), pinned[1]
    _, faster = note(operator(), tmp_path / "log", (6e-3, 1e-3))
    monkeypatch.setenv("TENSORIR_FROZEN", file)
    assert loaded(tmp_path / "log") == record.source_sha256
    others = tmp_path / "others.json"
    others.write_bytes(frozen_text([faster]))
    assert loaded(others) == faster.source_sha256, "what the call names comes first"
    for changes in ({"workload": "matmul m=1 n=1 k=1"}, {"device": {**record.device, "name": "another"}}):
        pinned[0](**changes)
        assert loaded(tmp_path / "log") == faster.source_sha256, "it pins nothing for this workload and device"
    pinned[0](versions={**record.versions, "tensorir": "0.0.1"})
    assert "tensorir (0.0.1 then" in refused(str(tmp_path / "log"))
    monkeypatch.setenv("TENSORIR_FROZEN", str(tmp_path / "gone.json"))
    with pytest.raises(LogError, match=r"TENSORIR_FROZEN names .*gone\.json"):
        operator().load(log=str(tmp_path / "log"))


def test_what_changed_is_said(pinned):
    freeze, record = pinned
    device, versions = record.device, record.versions
    for changes, said in [
        ({"compute": "0" * 32}, "the definition"),
        ({"device": {**device, "driver": "pocl 9"}}, "the driver (pocl 9 then, "),
        ({"device": {**device, "target": "opencl -registers=7"}}, "the limits of the device (opencl -registers=7 then"),
        ({"versions": {**versions, "compiler": "llvm 3"}}, "compiler (llvm 3 then, "),
        ({"template": "gone"}, "there is no 'gone' any more"),
        ({"config": {"none": 1}}, "whether template"),
        ({"source_sha256": "0" * 64}, "the text that the same schedule gives"),
        ({"source_sha256": "0" * 64, "trace": record.trace[:-1]}, "(nothing then, s."),
        ({"source_sha256": "0" * 64, "trace": "__import__('os')"}, "step 1 (nothing then, s."),
        ({"time_s": None, "status": "crashed"}, "no valid measurement"),
    ]:
        words = refused(freeze(**changes))
        assert said in words and record.id in words and "tensorir log freeze" in words, words


def test_another_device_is_not_tuned(pinned):
    freeze, record = pinned
    words = refused(freeze(device={**record.device, "name": "another"}), "load.not-tuned")
    assert "tuned for another device (another then, " in words


def test_other_passes_are_noticed(pinned, monkeypatch):
    monkeypatch.setattr(pipeline, "PASSES", [p for p in pipeline.PASSES if p is not pipeline.name_indices])
    assert "name_indices" in refused(pinned[0]())


def test_a_kernel_that_is_wrong_here_is_refused(pinned, monkeypatch):
    from tensorir.api.bench import Runner
    from tensorir.api.candidate import Refused
    from tensorir.tune.trial import Outcome

    def wrong(*_):
        raise Refused(Outcome("wrong_result"))

    monkeypatch.setattr(Runner, "verify", wrong)
    assert "does not compute it" in refused(pinned[0](), "load.frozen-wrong")


def test_what_is_frozen_is_what_load_takes(tmp_path):
    records = note(operator(), tmp_path / "log", (3e-3, 2e-3, 1e-3))
    choices, _ = freeze(LogReader(tmp_path / "log"))
    (tmp_path / "frozen.json").write_bytes(frozen_text([c.record for c in choices]))
    assert loaded(tmp_path / "frozen.json") == loaded(tmp_path / "log") == records[2].source_sha256


def test_damaged_files_and_records_that_lie(tmp_path, pinned):
    file, record = pinned[0](), pinned[1]
    content = Path(file).read_bytes()
    Path(file).write_bytes(content.replace(b'"time_s":0.005', b'"time_s":0.001'))
    with pytest.raises(LogError) as caught:
        operator().load(log=file)
    assert caught.value.code == "log.frozen-damaged"
    pinned[0](trace="__import__('os').system('touch pwned')", source_sha256=record.source_sha256)
    assert operator().load(log=file).trace == ""


def test_nothing_is_tuned_implicitly(tmp_path, pinned, monkeypatch):
    monkeypatch.setattr("tensorir.api.tuning.tune", None)
    refused(pinned[0](source_sha256="0" * 64))
    assert not list(tmp_path.rglob("*.jsonl"))[1:]
