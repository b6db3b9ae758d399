"""Make the tuning log that is committed, anew: the README's convolution and a matmul, tuned by the command line.

python tools/example_log.py

Run it on an idle machine after the package prints another source for a recorded configuration, as
tests/test_example_log.py tells. It takes a minute.
"""

import subprocess
import sys
from pathlib import Path

LOG = Path(__file__).parents[1] / "tuning_logs"
NAME = "example.jsonl"
"""Name of a committed segment, which .gitignore excepts; those of runs hold their time, host and process."""

MAX_BYTES = 200_000
RUNS = [
    ["conv2d", "1x64x56x56", "64x64x3x3", "--pad", "1", "--trials", "8", "--budget", "60s"],
    ["matmul", "512x512x512", "--trials", "16", "--budget", "60s"],
]


def main() -> None:
    for old in LOG.glob(f"*/{NAME}"):
        old.unlink()
    before = set(LOG.glob("*/*.jsonl"))
    for words in RUNS:
        print("tensorir tune", *words, flush=True)
        command = [sys.executable, "-m", "tensorir", "tune", *words, "--fresh", "--seed", "0", "--progress", "none"]
        subprocess.run(command, cwd=LOG.parent, check=True)
    for new in sorted(set(LOG.glob("*/*.jsonl")) - before):
        new.replace(new.with_name(NAME))
    size = sum(p.stat().st_size for p in LOG.glob(f"*/{NAME}"))
    print(f"{size} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"more than {MAX_BYTES} bytes: fewer trials")


if __name__ == "__main__":
    main()
