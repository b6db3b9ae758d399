"""The harnesses of benchmarks/cpu, gpu and defaults are packages beside their scripts."""

import sys
from pathlib import Path

# last, because other benchmarks have a run.py as well
ROOT = Path(__file__).parents[2]
sys.path += [*(str(ROOT / "benchmarks" / name) for name in ("cpu", "gpu", "defaults")), str(ROOT / "tools")]
