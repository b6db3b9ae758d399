"""The programs of tools/mutants are the examples here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "mutants"))
