"""A log of 100,000 records: seconds to the header of ``tune``, of ``tune --budget 5s``, of ``load``, and to index it.

    python benchmarks/long_log.py [--records N] [--log DIR] [--seed N] [--rounds N]

Makes the log once, a segment at a time (continues where it was stopped), prints the seed, and writes
``results/long_log.json``. ``tune`` is run on an empty log alternately: the difference of the medians is what the length
of the log costs. Limits are of processor time, for other programs may use the machine; wall time stands next to it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensorir import ops
from tensorir._package import PACKAGE_VERSION
from tensorir.api.candidate import prepare
from tensorir.api.identity import describe, identity_of
from tensorir.runtime.device import open_device
from tensorir.target import Target
from tensorir.tune.index import INDEX_NAME
from tensorir.tune.record import Record, RunIdentity, encode, slug
from tensorir.tune.space import Space
from tensorir.tune.store import LogReader
from tensorir.tune.template import suiting

SHAPE = "512x512x512"
SEGMENTS = 10
LIMITS = {"header_cpu_s": 1.0, "tune_s": 7.0, "load_cpu_s": 0.3, "index_cpu_s": 60.0}
"""Seconds; a budget of 5 s may be exceeded by two. That of the header is for what the log adds to an empty one's."""
TRACE = [["split", ["c.i", [None, n]], {}] for n in range(30)]
FAILED = {"status": "compile_error", "detail": {"message": "error: made"}}
CHECK = {"ok": True, "max_err": 0.0, "shapes": ["c[512, 512]"]}
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
    """Write the segments that are not there yet; bytes of all."""
    work = ops.matmul(m=512, n=512, k=512)
    device = describe(open_device(None))
    identity, target = identity_of(work, device), Target.parse(str(device["target"]))
    spaces = {n: t.space_for(target) for n, t in suiting(work.templates, target)}
    folder = log / slug(work.title)
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for part in range(SEGMENTS):
        path = folder / f"20260101T00000{part}-elsewhere-{part}.jsonl"
        if not path.exists():
            lines = drawn(identity, spaces, count // SEGMENTS, random.Random(f"{seed} {part}"))
            if part == 0:  # the fastest of each template, as it is made now
                first = [prepare(work, n, s.default, target, check=False).source.sha256 for n, s in spaces.items()]
                lines[: len(first)] = [
                    passed(identity, n, s.default, sha, 1e-4 * (k + 1))
                    for k, ((n, s), sha) in enumerate(zip(spaces.items(), first, strict=True))
                ]
            scratch = path.with_suffix(".tmp")
            scratch.write_bytes(b"".join(map(encode, lines)))
            scratch.rename(path)
        total += path.stat().st_size
    return total


def drawn(identity: RunIdentity, spaces: Mapping[str, Space], count: int, rng: random.Random) -> list[Record]:
    """Records of a matrix product, one in eight failed, of other configurations than the defaults."""
    found: list[Record] = []
    while len(found) < count:
        name = rng.choice(list(spaces))
        config = spaces[name].config(rng.randrange(len(spaces[name].legal)))
        if config == spaces[name].default:
            continue
        sha = hashlib.sha256(json.dumps([name, config]).encode()).hexdigest()
        if sha[0] in "07":
            limits = {"compile_s": 60.0, "run_s": 10.0, "memory_bytes": rng.randrange(1 << 33)}
            made = {**FAILED, "limits": limits, "trace": TRACE, "source_sha256": sha}
            found.append(identity.record("trial", name, config, made))
        else:
            found.append(passed(identity, name, config, sha, rng.uniform(1e-3, 1e-2)))
    return found


def passed(identity: RunIdentity, name: str, config: Mapping[str, Any], sha: str, seconds: float) -> Record:
    """A trial that was right."""
    result = {"status": "ok", "time_s": seconds, "samples": [seconds] * 20, "check": CHECK}
    return identity.record("trial", name, config, {**result, "trace": TRACE, "source_sha256": sha})


def cpu_of(process: int) -> float:
    """Processor time of a process so far, without that of its children."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tuned(log: Path) -> dict[str, Any]:
    """Seconds to the first line on stderr, and of all, of ``tensorir tune --budget 5s``."""
    command = [sys.executable, "-m", "tensorir", "tune", "matmul", SHAPE, "--budget", "5s", "--progress", "plain"]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--log", str(log), "--json"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        first = run.stderr.readline()
        header, cpu = time.monotonic() - began, cpu_of(run.pid)
        out, err = run.communicate()
    if "tensorir" not in first or not out:
        raise SystemExit(f"tune failed ({run.returncode}):\n{first}{err}")
    document = json.loads(out)
    found = {"header_s": header, "header_cpu_s": cpu, "tune_s": time.monotonic() - began}
    return found | {key: document[key] for key in ("trials", "reused", "stopped")}


def timed(name: str, work: Callable[[], object]) -> dict[str, float]:
    """Seconds and processor time of a call."""
    began, cpu = time.monotonic(), time.process_time()
    work()
    return {f"{name}_s": time.monotonic() - began, f"{name}_cpu_s": time.process_time() - cpu}


def medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each number the median, the least and the most."""
    names = [name for name, value in runs[0].items() if isinstance(value, float)]
    found: dict[str, Any] = {n: [f([r[n] for r in runs]) for f in (statistics.median, min, max)] for n in names}
    return found | {name: [r[name] for r in runs] for name in runs[0] if name not in names}


def main() -> None:
    """Measure, print and write the result."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=100_000)
    options.add_argument("--log", type=Path, default=Path(tempfile.gettempdir()) / "tensorir-long-log")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    print(f"seed {given.seed}", flush=True)
    size = write(given.log, given.records, given.seed)
    for index in given.log.glob(f"*/{INDEX_NAME}"):
        index.unlink()
    found: dict[str, Any] = timed("index", LogReader(given.log).brief)
    found |= timed("read", LogReader(given.log).brief)
    short, long = [], []
    for n in range(given.rounds):
        with tempfile.TemporaryDirectory() as empty:
            short.append(tuned(Path(empty)))
        long.append(tuned(given.log))
        print(f"round {n + 1} of {given.rounds}: header {long[-1]['header_s']:.2f} s", flush=True)
    asked = subprocess.run([sys.executable, "-c", LOAD, str(given.log)], capture_output=True, text=True, check=True)
    found["load_s"], found["load_cpu_s"] = map(float, asked.stdout.split())
    found |= {"long": medians(long), "empty": medians(short)}
    found["header_cpu_s"] = found["long"]["header_cpu_s"][0] - found["empty"]["header_cpu_s"][0]
    found["tune_s"] = found["long"]["tune_s"][0]
    found["within"] = {name: found[name] <= limit for name, limit in LIMITS.items()}
    about = {"date": datetime.now(UTC).isoformat(), "python": sys.version.split()[0], "numpy": np.__version__}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    about |= {"tensorir": PACKAGE_VERSION, "commit": commit.stdout.strip(), "load_average": str(os.getloadavg()[0])}
    head = {"environment": about, "seed": given.seed, "records": len(LogReader(given.log).brief()), "bytes": size}
    document = {**head, "limits": LIMITS, **found}
    print(json.dumps(document, indent=2))
    path = Path(__file__).parent / "results" / "long_log.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
