"""Random command lines in one process: the exit code is one that is documented, and there is no traceback.

python tools/random_command_lines.py --lines 2000 --seed 5 --json benchmarks/results/random_command_lines.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path

from random_calls import Hang, _stop, environment

from tensorir.cli.common import (
    BAD_LOG,
    DEVICE_LOST,
    INTERRUPTED,
    NO_CONFIG,
    NO_DEVICE,
    OK,
    TOO_SLOW,
    USAGE,
    WRONG_RESULT,
)
from tensorir.cli.main import VERBS, run
from tensorir.cli.verbs import verb_called

CODES = frozenset((OK, USAGE, NO_DEVICE, NO_CONFIG, WRONG_RESULT, DEVICE_LOST, BAD_LOG, TOO_SLOW, INTERRUPTED))
"""Exit codes of what is no bug."""
LIMIT_S = 60.0
"""Processor time of one line; ``list --space``, the longest, plans every operator and takes 15 s."""
WORDS = (
    "matmul", "conv2d", "softmax", "8x8x8", "1x2x4x4 2x2x3x3", "4x8", "1", "0", "-1", "2x1", "1e999", "nan", "x" * 300,
    "a\0b", "\ud800", "\udcff", "", "--", "-", "log", "no/such/file", "file.py:make", "file.py:", ":", "opencl:99", "c",
    "split.covers-extent", "cuda",
    "tile < 4", "(", "9" * 40, "10**30", "../..", "/dev/null", "%s", "{}", "\n", "é",
)  # fmt: skip
SAFE = {"tune", "bench"}
"""What measures: always with a budget of next to nothing."""


def line(seed: int, n: int) -> list[str]:
    """The arguments of line n of a seed."""
    rng = random.Random(f"{seed}:{n}")
    verb = rng.choice([*VERBS, "nonsense", ""]) if rng.random() < 0.95 else rng.choice(WORDS)
    names = [o for p in verb_called(verb).params for o in p.opts if o.startswith("-")] if verb in VERBS else []
    args = [verb] if verb else []
    for _ in range(rng.randrange(5)):
        word = rng.choice(names) if names and rng.random() < 0.5 else rng.choice(WORDS)
        args += word.split(" ") if word else [word]
        if word.startswith("--") and rng.random() < 0.7:
            args.append(rng.choice(WORDS))
    if verb in SAFE:
        args += ["--budget", "0.1", "--trials", "1"] if verb == "tune" else ["--help"]
    return args


def judged(args: list[str]) -> str:
    """What is wrong with a line; "" where nothing is."""
    out = io.StringIO()
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = run(args)
    except Hang:
        return "hang"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:200]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if "Traceback (most recent call last)" in out.getvalue():
        return "traceback: " + out.getvalue().strip().splitlines()[-1][:160]
    return "" if code in CODES else f"exit code {code}: {out.getvalue().strip()[:200]}"


def main() -> None:
    """Run what is asked for; exit status 1 where something was found."""
    parse = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parse.add_argument("--lines", type=int, default=2000)
    parse.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parse.add_argument("--json", type=Path)
    given = parse.parse_args()
    kept = given.json.resolve() if given.json else None
    print("seed", given.seed, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    signal.signal(signal.SIGPROF, _stop)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for n in range(given.lines):
            args = line(given.seed, n)
            kind = judged(args)
            if kind:
                found.append({"n": n, "line": ascii(args), "finding": kind})
                print(json.dumps(found[-1]), flush=True)
        os.chdir("/")
    print(len(found), "findings in", given.lines, "lines")
    if kept:
        kept.write_text(json.dumps({"seed": given.seed, "lines": given.lines, "findings": found,
                                    "environment": environment()}, indent=1) + "\n")  # fmt: skip
    sys.stdout.flush()
    os._exit(bool(found))


if __name__ == "__main__":
    main()
