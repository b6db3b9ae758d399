"""Where PoCL and CuPy keep what they compile when the home folder cannot be written."""

import os
import stat

import pytest

from tensorir.runtime.caches import ensure_cache


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
