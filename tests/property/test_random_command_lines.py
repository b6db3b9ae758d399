"""Random command lines: the exit code is one that is documented, and nothing is a bug."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "random_command_lines.py"


@pytest.mark.parametrize("seed", [39, random.SystemRandom().randrange(1 << 30)], ids=["fixed", "drawn"])
def test_command_lines_end_as_documented(seed):
    command = [sys.executable, str(TOOL), "--lines", "60", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
