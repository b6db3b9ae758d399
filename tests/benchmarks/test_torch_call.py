"""The script that times operators of PyTorch runs, and writes what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra torch is not installed")
ROOT = Path(__file__).parents[2]


def test_operators_are_timed(tmp_path):
    script, file = ROOT / "benchmarks" / "frameworks" / "torch_call.py", tmp_path / "found.json"
    command = [sys.executable, str(script), "--calls", "3", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(file.read_text())
    assert found["calls"] == 3 and set(found["results"]) == {"no gradient", "inference mode", "forward and backward"}
    for title, rows in found["results"].items():
        assert len(rows) >= 2, title
        assert any(name.startswith("ours") for name in rows), title
        for name, row in rows.items():
            assert 0 < row["least_us"] <= row["median_us"], name
            assert name in done.stdout
    assert found["results"]["no gradient"][found["peer"]]["over_peer_least_us"] == 0
