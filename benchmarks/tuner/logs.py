"""How long is a large log read? Writes one of so many records and times what the command line asks of it.

python benchmarks/tuner/logs.py --records 100000

Records have about 2,800 bytes as those of tuning on a CPU device have: a trace of 27 steps, 12 samples, the device and
the versions. Each question is asked of the files afresh, with every line checked. Wall and processor seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[1]))

from measuring import environment

from tensorir.tune.log import LogReader, RunIdentity, best, encode, listing, slug, stats, verify

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_logs.json"
WORKLOADS = 20
DEVICE = {"name": "a CPU device", "platform": "Portable Computing Language", "driver": "OpenCL 3.0 PoCL " + "x" * 70}
DEVICE |= {"target": "opencl -shared_bytes=1048576 -registers=32 -vector_bytes=64 -units=2", "kind": "cpu"}
VERSIONS = dict.fromkeys(("tensorir", "python", "pyopencl", "numpy", "scikit-optimize", "scipy"), "1.2.3")
VERSIONS |= {"compiler": "OpenCL C 1.2 PoCL " + "x" * 60}


def result(rng: random.Random) -> dict[str, Any]:
    time_s = 10 ** rng.uniform(-5, -2)
    steps = [["reorder", ["sums.k", "sums.i", "sums.j.0", f"sums.j.{n}"], {"tail": "shift"}] for n in range(27)]
    found = {"status": "ok", "time_s": time_s, "samples": [time_s * rng.uniform(1, 1.2) for _ in range(12)]}
    shapes = [f"sums.k={n} c.i=32 c.j=48" for n in range(8)]
    found |= {"check": {"ok": True, "max_err": 0.0, "shapes": shapes}, "drift": rng.uniform(0.9, 1.1)}
    return {**found, "trace": steps, "source_sha256": f"{rng.getrandbits(256):064x}"}


def write(root: Path, records: int) -> int:
    """Bytes of a log of so many trials of ``WORKLOADS`` workloads below ``root``."""
    rng, size = random.Random(0), 0
    for n in range(WORKLOADS):
        me = RunIdentity(f"matmul m={n} n=64 k=64 dtype=float32", f"{n:032x}", DEVICE, VERSIONS)
        path = root / slug(me.workload) / "20260101T000000-host-1.jsonl"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            for trial in range(records * n // WORKLOADS, records * (n + 1) // WORKLOADS):
                config = {"rows": trial, "tile": 7, "vectors": 3, "unroll": 2, "pack": "kernel"}
                size += file.write(encode(me.record("trial", f"cpu_{trial % 4}", config, result(rng))))
    return size


def timed(ask: Callable[[LogReader], object], root: Path) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    ask(LogReader(root))
    return {"wall_s": round(time.perf_counter() - wall, 2), "cpu_s": round(time.process_time() - cpu, 2)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Time what is asked of a large tuning log.")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    asks: dict[str, Callable[[LogReader], object]] = {"records in a list": lambda reader: list(reader.records())}
    asks |= {"log best": best, "log stats": stats, "log ls": listing, "log verify": verify}
    with tempfile.TemporaryDirectory() as folder:
        size = write(Path(folder), options.records)
        found = {name: timed(ask, Path(folder)) for name, ask in asks.items()}
    for name, seconds in found.items():
        print(f"{name:20} {seconds['wall_s']:8.2f} s wall {seconds['cpu_s']:8.2f} s of a processor")
    about = {"records": options.records, "bytes": size, "environment": environment()}
    options.out.write_text(json.dumps({"schema": 1, **about, "seconds": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
