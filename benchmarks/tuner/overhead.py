"""What a trial costs beside its timing, part by part; when the first one begins; what a budget of five seconds gives.

python benchmarks/tuner/overhead.py                     # both parts, a table, and the results as JSON
python benchmarks/tuner/overhead.py --trials 30 --runs 0 --builders 1

The wall time of a trial is that of its own request and its share of what was built with it; its overhead is that less
the phase "time". Phases are those of the record: "schedule" and "emit" make the source, "check" interprets it,
"compile" is the runtime's compiler, "run" what the runtime puts off to the first launch and the first blocks, "whole"
all blocks, compared with the reference, "reference" that on normal floats, "beside" the kernel that others are timed
beside. "built" is the share of a trial in the wall time of builders (their phases, which run at the same time, follow
in brackets), and "supervisor" what is left: the search, the log, the messages. Run it on a machine that does nothing
else: what other programs took of the processor is printed with the results.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tensorir as tir
from tensorir.api.measurer import Measurer
from tensorir.api.workload import Workload
from tensorir.codec import encode
from tensorir.tune.log import key_of
from tensorir.tune.trial import Outcome, Trial

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_overhead.json"
CONV = ("conv2d", "1x64x56x56", "64x64x3x3", "--pad", "1")
TARGET_S, FLOOR_S = 0.7, 1.2  # median overhead of a trial
BEGIN_S, BEGIN_FLOOR_S = 1.5, 2.5  # from the start of the process to the first trial's


def workloads() -> dict[str, Workload]:
    """The README's convolution and a square matrix product."""
    return {
        "conv2d 1x64x56x56 64x64x3x3": tir.ops.conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, pad=1),
        "matmul 512x512x512": tir.ops.matmul(512, 512, 512),
    }


class Noted:
    """One tuning run, with the seconds of each trial: ``rows`` has a dict of parts for every one."""

    def __init__(self, work: Workload, trials: int, seed: int, builders: int | None) -> None:
        self.rows: list[dict[str, float]] = []
        self.built: dict[str, list[float]] = defaultdict(list)
        self._shares: dict[str, float] = {}
        before, began = processor_s(), time.monotonic()
        build, measure = Measurer.build, Measurer.measure
        ends: list[float] = []

        def noted_build(measurer: Measurer, wanted: Sequence[Any], remaining: float | None) -> Any:
            at = time.monotonic()
            replies = build(measurer, wanted, remaining)
            self._shares = {key_of(encode(w)): (time.monotonic() - at) / len(wanted) for w in wanted}
            return replies

        def noted_measure(measurer: Measurer, trial: Trial, *given: Any) -> Outcome:
            at, key = time.monotonic(), key_of(encode(trial))
            outcome = measure(measurer, trial, *given)
            self._note(outcome, time.monotonic() - at, self._shares.pop(key, 0.0))
            return outcome

        Measurer.build, Measurer.measure = noted_build, noted_measure  # type: ignore[method-assign, assignment]
        try:
            with tempfile.TemporaryDirectory() as log:
                options = {"trials": trials, "budget": None, "seed": seed, "log": log, "builders": builders, "top": 1}
                self.outcome = work.tune(on_trial=lambda _: ends.append(time.monotonic()), **options)
        finally:
            Measurer.build, Measurer.measure = build, measure  # type: ignore[method-assign]
        self.processor_s, self.elapsed_s = processor_s() - before, time.monotonic() - began
        searched = (ends[-1] - ends[0]) / max(1, len(ends) - 1)  # without the first one, whose costs are of the start
        known = statistics.fmean(sum(row.values()) for row in self.rows[1:])
        for row in self.rows:
            row["supervisor"] = row.get("supervisor", 0.0) + max(0.0, searched - known)

    def _note(self, outcome: Outcome, own_s: float, share: float) -> None:
        detail = outcome.told
        phases = dict(detail.get("seconds") or {})
        for name, seconds in (detail.get("built") or {}).items():
            self.built[name].append(seconds)
        self.rows.append({**phases, "built": share, "supervisor": max(0.0, own_s - sum(phases.values()))})

    def json(self) -> dict[str, Any]:
        """Medians over the trials after the first one, which pays for the start of everything."""
        rows = self.rows[1:]
        names = sorted({name for row in rows for name in row})
        wall = [sum(row.values()) for row in rows]
        over = [w - row.get("time", 0.0) for w, row in zip(wall, rows, strict=True)]
        return {
            "trials": len(self.rows),
            "counts": self.outcome.counts,
            "overhead_s": statistics.median(over),
            "overhead_p90_s": sorted(over)[int(0.9 * (len(over) - 1))],
            "wall_s": statistics.median(wall),
            "mean_s": {name: statistics.fmean(row.get(name, 0.0) for row in rows) for name in names},
            "median_s": {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names},
            "built_s": {name: statistics.median(found) for name, found in self.built.items()},
            "processor_s_per_trial": self.processor_s / len(self.rows),
            "elapsed_s": self.elapsed_s,
            "rows": self.rows,
        }


def processor_s() -> float:
    """Of this process and of all that it has waited for, user and system."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in both)


def short_runs(count: int, budget: str) -> list[dict[str, Any]]:
    """``tensorir tune`` with a short budget, so many times, each with a log of its own."""
    found = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as log:
            command = [sys.executable, "-m", "tensorir", "tune", *CONV, "--budget", budget, "--json", "--log", log]
            began = time.time()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            elapsed = time.time() - began
            best = (json.loads(done.stdout or "{}").get("best") or {}) if done.returncode == 0 else {}
            lines = [
                json.loads(x) for path in sorted(Path(log).rglob("*.jsonl")) for x in path.read_text().splitlines()
            ]
            first = next((r for r in lines if r["kind"] == "trial"), None)
            begin = None if first is None else _began(first) - began
            trials = sum(r["kind"] == "trial" for r in lines)
            row = {"exit": done.returncode, "checked": bool(best.get("checked")), "trials": trials, "begin_s": begin}
            found.append(row | {"confirmed": bool(best.get("confirmed")), "elapsed_s": elapsed})
            print(f"  {found[-1]}", file=sys.stderr)
    return found


def _began(record: dict[str, Any]) -> float:
    """When the worker took a trial up: its record was made when the last of its phases ended."""
    made = datetime.fromisoformat(record["started"].replace("Z", "+00:00")).timestamp()
    return float(made - sum((record.get("detail") or {}).get("seconds", {}).values()))


def stolen() -> tuple[float, float]:
    """Processor seconds that the machine has spent on anything, and on nothing, since it started (Linux)."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), idle / os.sysconf("SC_CLK_TCK")


def table(runs: dict[str, Any]) -> str:
    """Parts by workload, in seconds."""
    every = sorted({n for r in runs.values() for n in r["mean_s"]} - {"time"}, key=lambda n: -max(
        r["mean_s"].get(n, 0.0) for r in runs.values()))  # fmt: skip
    lines = ["| workload | median overhead | 90 % | " + " | ".join(every) + " | time | processor s |"]
    lines.append("|---" * (len(every) + 5) + "|")
    for title, r in runs.items():
        parts = " | ".join(f"{r['mean_s'].get(n, 0.0):.3f}" for n in [*every, "time"])
        built = ", ".join(f"{n} {s:.2f}" for n, s in r["built_s"].items())
        title += f" [builders: {built}]" if built else ""
        over = f"{r['overhead_s']:.2f} s | {r['overhead_p90_s']:.2f} s"
        lines.append(f"| {title} | {over} | {parts} | {r['processor_s_per_trial']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=25, help="of each workload; 0 leaves them out")
    parser.add_argument("--runs", type=int, default=20, help="of the command with a short budget; 0 leaves them out")
    parser.add_argument("--budget", default="5s")
    parser.add_argument("--builders", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    began, (busy, idle) = processor_s(), stolen()
    runs: dict[str, Any] = {}
    for title, work in workloads().items() if given.trials else ():
        runs[title] = Noted(work, given.trials, given.seed, given.builders).json()
    short = short_runs(given.runs, given.budget)
    own, (busy_now, idle_now) = processor_s() - began, stolen()
    others = max(0.0, busy_now - busy - own) / max(1e-9, busy_now - busy + idle_now - idle)
    found = {"others": others, "trials": runs, "short": short, "cores": os.cpu_count(), "budget": given.budget}
    found["made"] = datetime.now(UTC).isoformat(timespec="seconds")
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if runs:
        print("Mean seconds of a trial by part, the median of its overhead and all processor seconds:\n")
        print(table(runs))
        worst = max(r["overhead_s"] for r in runs.values())
        print(f"\noverhead {worst:.2f} s (wanted {TARGET_S}, floor {FLOOR_S})")
    if short:
        good = sum(r["exit"] == 0 and r["checked"] for r in short)
        begins = sorted(r["begin_s"] for r in short if r["begin_s"] is not None)
        print(f"\n--budget {given.budget}: a checked kernel in {good} of {len(short)} runs")
        if begins:
            middle, last = statistics.median(begins), begins[-1]
            print(f"first trial after {middle:.2f} s, at most {last:.2f} s (wanted {BEGIN_S}, floor {BEGIN_FLOOR_S})")
    print(f"\nother programs took {others:.0%} of the processor")


if __name__ == "__main__":
    main()
