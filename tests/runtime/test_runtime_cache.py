import os
import stat
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from runtime_sources import ADD

from tensorir.errors import DeviceError
from tensorir.runtime import cache as caching
from tensorir.runtime.cache import Cache, cache_key
from tensorir.runtime.launch import CompiledProgram


def entries(cache):
    return sorted(cache.directory.glob("*.bin"))


def test_put_get_replace_discard_clear(tmp_path):
    cache = Cache(tmp_path / "c")
    key = cache_key(b=1, a="x")
    assert key == cache_key(a="x", b=1)
    assert cache.get(key) is None
    cache.put(key, b"one")
    cache.put(key, b"two")
    assert cache.get(key) == b"two"
    assert Cache(tmp_path / "c").get(key) == b"two"
    cache.put("other", b"")
    assert cache.get("other") == b""
    about = cache.stat()
    assert (about.entries, about.hits, about.misses, about.damaged) == (2, 2, 1, 0)
    cache.discard(key)
    assert cache.get(key) is None
    assert cache.clear() == 1
    assert list(cache.directory.iterdir()) == []
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700


def test_the_whole_key_is_compared(tmp_path):
    cache = Cache(tmp_path)
    cache.put("this key", b"payload")
    cache.put("that key", b"other")
    this, that = (Cache._path(tmp_path, k) for k in ("this key", "that key"))
    os.replace(that, this)  # as if both had one digest
    assert cache.get("this key") is None
    assert cache.stat().damaged == 1


def test_links_and_other_files_are_not_read(tmp_path):
    cache = Cache(tmp_path / "c")
    cache.put("k", b"payload")
    path = entries(cache)[0]
    os.replace(path, tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    assert cache.get("k") is None
    cache.put("k", b"again")
    assert cache.get("k") == b"again"
    assert not path.is_symlink()


def test_oldest_entries_are_trimmed(tmp_path):
    cache = Cache(tmp_path)
    for n in range(5):
        cache.put(f"k{n}", bytes(1000))
        os.utime(Cache._path(tmp_path, f"k{n}"), (n, n))
    size = cache.stat().bytes // 5
    assert cache.trim(2 * size) == 3
    assert [cache.get(f"k{n}") is not None for n in range(5)] == [False] * 3 + [True] * 2


class CacheMachine(RuleBasedStateMachine):
    """Whatever happens to the files, a hit is the last payload put under the key."""

    keys = st.sampled_from(["a", "b", "c" * 100, "é\n"])

    @initialize()
    def begin(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.cache = Cache(self.folder.name)
        self.model, self.damaged = {}, set()

    @rule(key=keys, payload=st.binary(max_size=200))
    def put(self, key, payload):
        self.cache.put(key, payload)
        self.model[key] = payload
        self.damaged.discard(key)

    @rule(key=keys)
    def get(self, key):
        got = self.cache.get(key)
        if key in self.damaged:
            assert got in (None, self.model[key])
        else:
            assert got == self.model.get(key)

    @rule(key=keys, data=st.data())
    def corrupt(self, key, data):
        path = Cache._path(self.cache.directory, key)
        if not path.exists():
            return
        blob = bytearray(path.read_bytes())
        kind = data.draw(st.sampled_from(["flip", "cut", "grow", "empty", "noise"]))
        if kind == "flip" and blob:
            blob[data.draw(st.integers(0, len(blob) - 1))] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del blob[data.draw(st.integers(0, len(blob))) :]
        elif kind == "grow":
            blob += data.draw(st.binary(min_size=1, max_size=9))
        else:
            blob = bytearray() if kind == "empty" else bytearray(data.draw(st.binary(max_size=300)))
        path.write_bytes(blob)
        self.damaged.add(key)

    @rule()
    def crash_of_a_writer(self):
        (self.cache.directory / ".new-crashed").write_bytes(b"tensorir-cache 1\n{")

    @rule()
    def another_process(self):
        self.cache = Cache(self.folder.name)

    @rule()
    def clear(self):
        self.cache.clear()
        self.model, self.damaged = {}, set()

    def teardown(self):
        self.folder.cleanup()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_unwritable_directory_means_memory_with_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "_warned", set())
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="stay in memory"):
        cache = Cache(tmp_path / "file" / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cache(tmp_path / "file" / "d")
    cache.put("k", b"v")
    assert cache.get("k") == b"v"
    assert cache.stat().directory == ""
    assert cache.clear() == 1


def test_full_disk_means_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(caching, "_warned", set())
    cache = Cache(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space"):
        cache.put("k", b"v")
    assert cache.get("k") == b"v"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs user ids")
def test_foreign_directories_are_refused(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(DeviceError) as caught:
        Cache(tmp_path / "open")
    assert caught.value.code == "cache.foreign-directory"
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    with pytest.raises(DeviceError) as caught:
        Cache(tmp_path)
    assert caught.value.code == "cache.foreign-directory"


def test_default_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("TENSORIR_CACHE_DIR")
    if sys.platform.startswith("linux"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert caching.default_directory() == tmp_path / "tensorir"
    monkeypatch.setenv("TENSORIR_CACHE_DIR", str(tmp_path / "mine"))
    assert caching.default_cache().directory == tmp_path / "mine"
    assert caching.stat().entries == caching.clear() == 0


def test_programs_are_cached_and_damage_is_a_miss(device):
    if not device._has_binaries:
        pytest.skip("this OpenCL runtime gives no binaries")
    a = np.ones((5, 10), np.float32)
    for expected in (False, True):
        program = CompiledProgram(ADD, device)
        assert program.cached is expected
        np.testing.assert_array_equal(program(a, a), 3 * a)
        program.keep()
    cache = caching.default_cache()
    path = entries(cache)[0]
    path.write_bytes(path.read_bytes()[:-1])
    program = CompiledProgram(ADD, device)
    assert program.cached is False
    program(a, a)
    assert CompiledProgram(ADD, device).cached is False, "it costs as much as compiling, and PoCL has its own cache"
    program.keep()
    assert CompiledProgram(ADD, device).cached is True
    key = CompiledProgram(ADD, device)._module._key
    cache.put(key, b"poclbin but not one")  # verified, yet the driver refuses it
    assert CompiledProgram(ADD, device).cached is False
    assert CompiledProgram(replace(ADD, text=ADD.text + "\n"), device).cached is False
    assert CompiledProgram(ADD, device, cache=False).cached is False
