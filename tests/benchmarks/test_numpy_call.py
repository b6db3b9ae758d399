"""The script that times plain calls runs, and writes what it prints."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_plain_calls_are_timed(tmp_path):
    script, file = ROOT / "benchmarks" / "frameworks" / "numpy_call.py", tmp_path / "found.json"
    command = [sys.executable, str(script), "--calls", "3", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(file.read_text())
    assert found["calls"] == 3 and set(found["results"]) == {"nothing", "convolution", "several", "prepacked"}
    for name, rows in found["results"].items():
        assert rows["bound and waited"]["over_bound_least_us"] == 0 and len(rows) >= 2, name
        for case, row in rows.items():
            assert 0 < row["least_us"] <= row["median_us"], case
            assert case in done.stdout
