"""What loading keeps from one process to the next, and what makes it do the work again."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import zoo
from noted import note, operator

import tensorir as tir
from tensorir import _package
from tensorir.api import load, load_cache
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.codec import encode
from tensorir.lower import pipeline
from tensorir.runtime import cache
from tensorir.runtime.device import devices, open_device
from tensorir.tune.store import LogWriter

pytestmark = pytest.mark.skipif(
    not any(d.usable and not d.simulator and d.language == "opencl" for d in devices()), reason="no OpenCL device"
)

A, B = (np.arange(256, dtype=np.float32).reshape(16, 16) % n for n in (5, 7))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(load_cache, "package_state", lambda: "as it is")


@pytest.fixture
def counted(monkeypatch):
    """How often a source was made again, a kernel compared with the reference, a log ranked."""
    counts = {"regenerate": 0, "verify": 0, "choices": 0}

    def count(name, function):
        def wrapped(*args, **more):
            counts[name] += 1
            return function(*args, **more)

        return wrapped

    from tensorir.api.bench import Runner

    for name in ("regenerate", "choices"):
        monkeypatch.setattr(load, name, count(name, getattr(load, name)))
    monkeypatch.setattr(Runner, "verify", count("verify", Runner.verify))

    def since():
        seen = tuple(counts.values())
        counts.update(dict.fromkeys(counts, 0))
        return seen

    return since


def loaded(log, work=None):
    f = (work or operator()).load(log=str(log))
    np.testing.assert_array_equal(f(A, B), A @ B)
    return f


def test_a_second_load_does_nothing_twice(tmp_path, counted):
    note(operator(), tmp_path / "log", (2e-3, 1e-3))
    first = loaded(tmp_path / "log")
    assert counted() == (1, 1, 1)
    second = loaded(tmp_path / "log")
    assert counted() == (0, 0, 0)
    assert second.emitted == first.emitted
    assert second.trace == first.trace
    assert second.program.cached
    where = second.export(tmp_path / "out")
    assert json.loads((where / "manifest.json").read_text())["trace"] == first.trace.splitlines()


def test_a_new_package_starts_afresh(tmp_path, counted, monkeypatch):
    note(operator(), tmp_path / "log")
    loaded(tmp_path / "log")
    counted()
    monkeypatch.setattr(load_cache, "package_state", lambda: "edited")
    loaded(tmp_path / "log")
    assert counted() == (1, 1, 1)
    monkeypatch.setattr(load_cache, "package_state", lambda: None)  # cannot be told: nothing is kept, nothing used
    for _ in range(2):
        loaded(tmp_path / "log")
        assert counted() == (1, 1, 1)


def test_other_passes_make_other_sources(tmp_path, counted, monkeypatch):
    note(operator(), tmp_path / "log")
    loaded(tmp_path / "log")
    counted()
    monkeypatch.setattr(pipeline, "PASSES", [p for p in pipeline.PASSES if p is not pipeline.name_indices])
    with pytest.raises(tir.NotTuned, match="stale"):
        operator().load(log=str(tmp_path / "log"))
    assert counted()[0] > 0


def test_machine_code_that_was_not_checked_is(tmp_path, counted):
    """Another binary (the cache was emptied, the driver compiles anew) is compared with the reference again."""
    note(operator(), tmp_path / "log")
    f = loaded(tmp_path / "log")
    counted()
    keys = [f.program._module._cache_key()]
    cache.default_cache().discard(keys[0])
    loaded(tmp_path / "log")
    assert counted() == (0, 1, 0)
    loaded(tmp_path / "log")
    assert counted() == (0, 0, 0)
    payload = cache.default_cache().get(keys[0])
    key = load_cache.check_key(operator(), f.program, None)
    assert load_cache._get(key) == f.program.digest or payload is not None
    load_cache._put(key, "0" * 64)
    loaded(tmp_path / "log")
    assert counted() == (0, 1, 0)


@pytest.mark.parametrize("damage", ["cut", "other", "json", "text"])
def test_damaged_entries_count_as_absent(tmp_path, counted, damage):
    (record,) = note(operator(), tmp_path / "log")
    f = loaded(tmp_path / "log")
    counted()
    work, device = operator(), f.device
    source_key = load_cache.source_key(work, record, device.target)
    check_key = load_cache.check_key(work, f.program, None)
    if damage == "cut":
        for file in (tmp_path / "cache").iterdir():
            file.write_bytes(file.read_bytes()[:-7])
    elif damage == "other":
        wrong = replace(f.emitted, text=f.emitted.text.replace("+=", "-="))
        load_cache.keep_source(source_key, wrong)  # a whole entry with the wrong text
        load_cache._put(check_key, None)
    else:
        for key in (source_key, check_key):
            cache.default_cache().put(key, b'{"text": 3}' if damage == "json" else b"\xff[")
    loaded(tmp_path / "log")
    assert counted()[:2] == (1, 1)
    loaded(tmp_path / "log")
    assert counted() == (0, 0, 0)


def test_damaged_rankings_count_as_absent(tmp_path, counted, monkeypatch):
    note(operator(), tmp_path / "log")
    real = load_cache._get
    for bad in ({}, [3], [{"v": 1}], "x", [None], [[]]):
        monkeypatch.setattr(load_cache, "_get", lambda key, bad=bad: bad if key and '"ranking"' in key else real(key))
        loaded(tmp_path / "log")
        assert counted()[2] == 1


def test_a_log_that_grew_is_ranked_again(tmp_path, counted):
    work = operator()
    slow, fast = note(work, tmp_path / "log", (2e-3, 1e-3))
    assert loaded(tmp_path / "log").emitted.sha256 == fast.source_sha256
    counted()
    identity = identity_of(work, describe(open_device("opencl")))
    with LogWriter(tmp_path / "log", work.title) as writer:  # what was fastest turns out to be wrong
        writer.append(identity.record("final", fast.template, fast.config, {"status": "wrong_result"}))
    assert loaded(tmp_path / "log").emitted.sha256 == slow.source_sha256
    assert counted() == (1, 1, 1)


def test_stale_records_behind_the_kept_ones(tmp_path, counted):
    """More stale records in front than a kept ranking holds."""
    work = operator()
    template = work.template_for("opencl")
    space = work.templates[template].space
    device = open_device("opencl")
    identity = identity_of(work, describe(device))
    with LogWriter(tmp_path / "log", work.title) as writer:
        for n in range(load_cache.MAX_KEPT_RECORDS + 1):
            config = space.config(n)
            known = prepare(work, template, config, device.target, check=False).known
            if n < load_cache.MAX_KEPT_RECORDS:
                known = replace(known, source_sha256=f"{n:064x}")
            time_s = 1e-4 * (n + 1)
            result = {"status": "ok", "time_s": time_s, "samples": [time_s], "check": {"ok": True}, **encode(known)}
            writer.append(identity.record("trial", template, config, result))
    for _ in range(2):
        assert loaded(tmp_path / "log").emitted.sha256 == known.source_sha256
    assert counted()[2] >= 2


def test_users_functions_are_always_asked(tmp_path, counted, monkeypatch):
    """A user's template can call anything, and so can a user's reference: what they make is never load_cache."""
    work = zoo.product(16)
    assert work._reference is None
    note(work, tmp_path / "log")
    for n in range(2):
        loaded(tmp_path / "log", zoo.product(16))
        assert counted() == (1, 1 - n, 1 - n)
    mine = tir.Workload(
        work.name, work.outputs, work.templates, reference=lambda a, b: a @ b, parameters=dict(work.parameters)
    )
    for _ in range(2):
        loaded(tmp_path / "log", mine)
        assert counted()[1] == 1
    monkeypatch.setattr(zoo, "tile", lambda s, c: s.unroll("C.k"))
    with pytest.raises(tir.NotTuned, match="stale"):
        zoo.product(16).load(log=str(tmp_path / "log"))


def test_keys_tell_apart(tmp_path):
    work = operator()
    records = note(work, tmp_path / "log", (1e-3, 2e-3))
    device = open_device("opencl")
    target = device.target
    keys = {load_cache.source_key(work, r, target) for r in records}
    keys |= {load_cache.source_key(work, records[0], replace(target, vector_bytes=16))}
    keys |= {load_cache.source_key(tir.ops.matmul(m=16, n=16, k=16, ta=True), records[0], target)}
    keys |= {load_cache.source_key(work, replace(records[0], compute="0"), target)}
    keys |= {load_cache.source_key(work, replace(records[0], trace=records[0].trace[:-1]), target)}
    assert len(keys) == 6
    assert None not in keys
    assert load_cache.source_key(work, replace(records[0], template="absent"), target) is None
    unknown = [*records[0].trace, ["tensorize", ["C.i", "no.such"], {}]]
    assert load_cache.source_key(work, replace(records[0], trace=unknown), target) is None


def test_an_instruction_declared_anew_is_another_key(tmp_path):
    from tensorir.intrin.intrin import known, register

    work = operator()
    (record,) = note(work, tmp_path / "log")
    target = open_device("opencl").target
    name, old = next(iter(known().items()))
    record = replace(record, trace=[["tensorize", ["c.i", name], {}]])
    key = load_cache.source_key(work, record, target)
    try:
        register(replace(old, align={**old.align, old.operands[0].name: 4096}))
        assert load_cache.source_key(work, record, target) not in (None, key)
    finally:
        register(old)
    assert load_cache.source_key(work, record, target) == key


def test_package_state(tmp_path, monkeypatch):
    monkeypatch.undo()
    load_cache.package_state.cache_clear()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("1")
    monkeypatch.setattr(load_cache, "_PACKAGE", tmp_path)
    monkeypatch.setattr(_package, "LOADED", time.time() + 1)

    def state():
        load_cache.package_state.cache_clear()
        return load_cache.package_state()

    try:
        first = state()
        assert first
        assert state() == first
        (tmp_path / "sub" / "b.txt").write_text("not code")
        assert state() == first
        os.utime(tmp_path / "sub" / "a.py", (1, 1))
        assert state() not in (None, first)
        monkeypatch.setattr(_package, "LOADED", time.time() - 60)
        assert state() is None  # the files changed after this process had imported them
        monkeypatch.setattr(load_cache, "_PACKAGE", tmp_path / "absent")
        assert state() is None
    finally:
        load_cache.package_state.cache_clear()


def test_templates_that_are_gone_are_named(tmp_path):
    work = operator()
    identity = identity_of(work, describe(open_device("opencl")))
    with LogWriter(tmp_path / "log", work.title) as writer:
        result = dict(status="ok", time_s=1e-3, samples=[1e-3], source_sha256="0" * 64)
        writer.append(identity.record("trial", "former", {"tile": 8}, result))
    with pytest.raises(tir.NotTuned, match="there is no template former any more") as caught:
        work.load(log=str(tmp_path / "log"))
    assert caught.value.code == "load.not-tuned"
