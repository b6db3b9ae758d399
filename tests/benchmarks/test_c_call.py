"""The script that times calls of an exported C function runs, and writes what it prints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tensorir.runtime.c_device import compilers

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not compilers(), reason="there is no C compiler")
def test_calls_of_c_functions_are_timed(tmp_path):
    script, file = ROOT / "benchmarks" / "frameworks" / "c_call.py", tmp_path / "found.json"
    command = [sys.executable, str(script), "--calls", "5", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(file.read_text())
    assert found["calls"] == 5 and len(found["results"]) == len(compilers())
    for rows in found["results"].values():
        assert rows["the kernel"]["over_kernel_least_ns"] == 0 and len(rows) == 5
        for case, row in rows.items():
            assert 0 <= row["least_ns"] <= row["median_ns"] and case in done.stdout
