"""Random calls of every public function with hostile arguments: what is raised is ours, nothing hangs."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "random_calls.py"
CALLS = 1000
FIXED, DRAWN = 39, random.SystemRandom().randrange(1 << 30)


@pytest.mark.parametrize("seed", [FIXED, DRAWN], ids=["fixed", "drawn"])
def test_calls_raise_what_is_ours(seed, tmp_path):
    print(f"seed {seed}: python tools/random_calls.py --calls {CALLS} --seeds {seed}")
    kept = tmp_path / "found.json"
    command = [sys.executable, str(TOOL), "--calls", str(CALLS), "--seeds", str(seed), "--json", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(kept.read_text())["seeds"][str(seed)]
    assert found["calls"] == CALLS, done.stderr
    assert not found["findings"], "\n".join(map(str, found["findings"]))
