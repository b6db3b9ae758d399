import os
import sys
from functools import cache
from pathlib import Path

import pytest

from tensorir.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))


@pytest.fixture(autouse=True)
def _short_looks_at_peaks(monkeypatch):
    """What reports measure of a device is not what is tested: a second or two of each."""
    from tensorir.cli import roofline

    for name, small in {"REDUCTION_STEPS": 64, "LOOK_S": 0.01, "READ_BYTES": 1 << 22}.items():
        monkeypatch.setattr(roofline, name, small)


@pytest.fixture(autouse=True, scope="session")
def _listed_once():
    """Templates of an operator are planned once for ``tensorir list``."""
    from tensorir.cli import verb_list

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verb_list, "_planned", cache(verb_list._planned))
        yield


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """``cli(*args)`` -> (exit code, stdout, stderr), in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args):
        if args[0] == "doctor" and "POCL_CACHE_DIR" not in os.environ:  # it reads all files of the user's
            monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
        code = main.run([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run
