"""Where PoCL and CuPy keep what they compile when the home folder cannot be written."""

import os
import stat
import subprocess
import sys

import pytest

from tensorir.runtime.library_caches import damaged_pocl_cache, ensure_cache, pocl_files


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOME_CACHE", "")  # as if it were not set; put back afterwards
    return tmp_path


def test_what_can_be_written_stays(temporary, monkeypatch):
    ensure_cache("SOME_CACHE", str(temporary / "a/b"))
    assert os.environ["SOME_CACHE"] == "" and (temporary / "a/b").is_dir()
    monkeypatch.setenv("SOME_CACHE", str(temporary / "c"))
    ensure_cache("SOME_CACHE", "/dev/null/x")
    assert os.environ["SOME_CACHE"] == str(temporary / "c")


def test_else_there_is_one_of_this_user(temporary, monkeypatch):
    ensure_cache("SOME_CACHE", str(temporary / "file/x"))
    place = temporary / f"t/tensorir-some-{os.geteuid()}"
    assert os.environ["SOME_CACHE"] == str(place) and stat.S_IMODE(place.stat().st_mode) == 0o700
    monkeypatch.setenv("SOME_CACHE", str(temporary / "file/y"))
    ensure_cache("SOME_CACHE", "unused")
    assert os.environ["SOME_CACHE"] == str(place)
    place.rmdir()
    place.symlink_to(temporary)  # somebody else was first
    monkeypatch.setenv("SOME_CACHE", "")
    ensure_cache("SOME_CACHE", str(temporary / "file/x"))
    other = os.environ["SOME_CACHE"]
    assert other not in ("", str(place)) and other.startswith(str(temporary / "t/tensorir-some-"))


def test_without_any_place_nothing_changes(temporary, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "file"))
    ensure_cache("SOME_CACHE", str(temporary / "file/x"))
    assert os.environ["SOME_CACHE"] == ""


RUN = """
import numpy as np, tensorir as tir
A = tir.placeholder((64,), name="A")
f = tir.Schedule(tir.compute((64,), lambda i: A[i] * 3, name="B")).build()
assert np.array_equal(f(np.ones(64, np.float32)), np.full(64, 3, np.float32))
"""


@pytest.fixture(scope="module")
def kept(device, tmp_path_factory):
    """PoCL's cache after one program, and a function that runs the program again on a copy of it."""
    place = tmp_path_factory.mktemp("pocl")

    def run():
        env = {"POCL_CACHE_DIR": str(place / "kcache"), "TENSORIR_CACHE_DIR": str(place / f"own {os.urandom(4).hex()}")}
        env = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=env, check=False)

    assert run().returncode == 0
    return place / "kcache", run


@pytest.mark.parametrize("suffix", [".so", ".bc"])
@pytest.mark.parametrize("harm", ["emptied", "overwritten", "cut", "whole"])
def test_what_pocl_stumbles_over_is_seen(kept, monkeypatch, suffix, harm):
    """The damage in its cache with which PoCL fails is what ``pocl_files`` tells of."""
    folder, run = kept
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    changed = [p for p in before if p.suffix == suffix]
    assert changed and all(whole for _, whole in pocl_files(folder))
    try:
        for p in before:
            if p.suffix == ".so" and suffix == ".bc" and harm != "whole":
                p.unlink()  # else nothing of the program is read
        for p in changed:
            data = before[p]
            harmed = {"emptied": b"", "overwritten": bytes(len(data)), "cut": data[: len(data) // 2], "whole": data}
            p.write_bytes(harmed[harm])
        seen = {p for p, whole in pocl_files(folder) if not whole}
        done = run()
        if harm == "whole":
            assert not seen and done.returncode == 0
        elif (suffix, harm) != (".bc", "cut"):  # of which its header tells nothing: LLVM reads it, or not
            assert seen == set(changed) and done.returncode != 0
            monkeypatch.setenv("POCL_CACHE_DIR", str(folder))
            assert damaged_pocl_cache(done.stderr) == folder
        if "[cache." in done.stderr:
            assert f"rm -r {folder}" in done.stderr
    finally:
        for p, data in before.items():
            p.parent.mkdir(parents=True, exist_ok=True)
            p.write_bytes(data)


def test_what_pocl_is_still_writing_is_no_damage(tmp_path, monkeypatch):
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    (tmp_path / "tempfile_uyMwVM.so").touch()
    assert damaged_pocl_cache("") is None
    (tmp_path / "kernel.so").touch()
    assert damaged_pocl_cache("") == tmp_path
