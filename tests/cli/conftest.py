import sys
from pathlib import Path

import pytest

from tensorir.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "api"))


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """``cli(*args)`` -> (exit code, stdout, stderr), in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args):
        code = main.run([str(a) for a in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run
