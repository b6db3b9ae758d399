"""The harness of benchmarks/cpu is a package beside its script."""

import sys
from pathlib import Path

# last, because other benchmarks have a run.py as well
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "cpu"))
