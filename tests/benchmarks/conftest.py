"""The harnesses of benchmarks/cpu, gpu and defaults are packages beside their scripts."""

import sys
from pathlib import Path

# last, because other benchmarks have a run.py as well
sys.path += [str(Path(__file__).parents[2] / "benchmarks" / name) for name in ("cpu", "gpu", "defaults")]
