"""A log of 100,000 records: seconds to the header of ``tune``, of ``tune --budget 5s``, of ``load``, and to index it.

    python benchmarks/long_log.py [--records N] [--log DIR] [--seed N]

Makes the log once (continues with one that is there), prints the seed, and writes ``results/long_log.json``. Each one
is also given for an empty log: the difference is what the length of the log costs. Processor time is a second witness.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tensorir import ops
from tensorir._package import PACKAGE_VERSION
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.runtime.device import open_device
from tensorir.target import Target
from tensorir.tune.index import NAME
from tensorir.tune.record import encode, slug
from tensorir.tune.store import LogReader

SHAPE = "512x512x512"
LIMITS = {"header_s": 1.0, "tune_s": 7.0, "load_s": 0.3, "index_s": 60.0}
"""Seconds; a budget of 5 s may be exceeded by two."""
LOAD = """
import sys, time
from tensorir import ops
w = ops.matmul(m=512, n=512, k=512)
w.load(log=sys.argv[1])  # devices, libraries, caches
began, cpu = time.monotonic(), time.process_time()
w.load(log=sys.argv[1])
print(time.monotonic() - began, time.process_time() - cpu)
"""


def write(log: Path, count: int, seed: int) -> int:
    """Records of a matrix product, one in ten failed; bytes."""
    work = ops.matmul(m=512, n=512, k=512)
    device = describe(open_device(None))
    identity, target = identity_of(work, device), Target.parse(str(device["target"]))
    spaces = {n: t.space_for(target) for n, t in work.templates.items() if t.suits(target)}
    rng, names = random.Random(seed), list(spaces)
    trace = [["split", ["c.i", [None, n]], {}] for n in range(30)]
    path = log / slug(work.title) / "20260101T000000-elsewhere-1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for n in range(count):
            name = names[n] if n < len(names) else rng.choice(names)
            space = spaces[name]
            config = space.default if n < len(names) else space.config(rng.randrange(len(space.legal)))
            if n < len(names):  # the fastest of each template, and as it is made now
                sha = prepare(work, name, config, target, check=False).source.sha256
            elif config == space.default:
                continue
            else:
                sha = hashlib.sha256(json.dumps([name, config]).encode()).hexdigest()
            if n >= len(names) and sha[0] in "07":
                result = {"status": "compile_error", "detail": {"message": "error: made"}}
                result["limits"] = {"compile_s": 60.0, "run_s": 10.0, "memory_bytes": rng.randrange(1 << 33)}
            else:
                seconds = 1e-4 * (n + 1) if n < len(names) else rng.uniform(1e-3, 1e-2)
                result = {"status": "ok", "time_s": seconds, "samples": [seconds] * 20}
                result["check"] = {"ok": True, "max_err": 0.0, "shapes": ["c[512, 512]"]}
            made = {**result, "trace": trace, "source_sha256": sha}
            file.write(encode(identity.record("trial", name, config, made)))
    return path.stat().st_size


def tuned(log: Path) -> dict[str, float]:
    """Seconds to the first line on stderr, and of all, of ``tensorir tune --budget 5s``."""
    command = [sys.executable, "-m", "tensorir", "tune", "matmul", SHAPE, "--budget", "5s", "--progress", "plain"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    with subprocess.Popen(
        [*command, "--log", str(log), "--json"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        run.stderr.readline()
        header = time.monotonic() - began
        out, _ = run.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    document = json.loads(out)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {"header_s": header, "tune_s": time.monotonic() - began, "tune_cpu_s": cpu}
    return found | {"trials": document["trials"], "reused": document["reused"]}


def main() -> None:
    """Measure, print and write the result."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "tensorir-long-log")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    print(f"seed {given.seed}")
    segments = LogReader(given.log).segments()
    size = sum(path.stat().st_size for path in segments) or write(given.log, given.records, given.seed)
    for index in given.log.glob(f"*/{NAME}"):
        index.unlink()
    began, cpu = time.monotonic(), time.process_time()
    count = len(LogReader(given.log).brief())
    made = {"index_s": time.monotonic() - began, "index_cpu_s": time.process_time() - cpu}
    began, cpu = time.monotonic(), time.process_time()
    LogReader(given.log).brief()
    read = {"read_s": time.monotonic() - began, "read_cpu_s": time.process_time() - cpu}
    with tempfile.TemporaryDirectory() as empty:
        short = tuned(Path(empty))
    long = tuned(given.log)
    asked = subprocess.run([sys.executable, "-c", LOAD, str(given.log)], capture_output=True, text=True, check=True)
    load_s, load_cpu_s = map(float, asked.stdout.split())
    about = {"date": datetime.now(UTC).isoformat(), "python": sys.version.split()[0], "numpy": np.__version__}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    about |= {"tensorir": PACKAGE_VERSION, "commit": commit.stdout.strip(), "load_average": str(os.getloadavg()[0])}
    found = {
        "environment": about, "seed": given.seed, "records": count, "bytes": size, "limits": LIMITS, **made, **read,
        "long": long, "empty": short, "load_s": load_s, "load_cpu_s": load_cpu_s,
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    path = Path(__file__).parent / "results" / "long_log.json"
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
