"""Are the printed numbers true on a busy machine, and said plainly on one at rest?

    python benchmarks/tuner/honest.py                   # 20 tunings at rest, 20 next to two busy processes: 20 minutes
    python benchmarks/tuner/honest.py --runs 3 --budget 10s
    python benchmarks/tuner/honest.py --report          # what the results on record say

The machine must have nothing else to do. Three workloads are tuned in turn by the command, each time with a log of its
own, and `bench` times what was found; then, at rest, each kernel that was found and its default are timed again next to
the libraries. Every ratio that was printed (live, at the end, by `bench`) is a row: whether it was marked, and what it
is at rest. Reported:

contradicted  ratios that were printed unmarked, and are another one at rest by more than 1.5
marked        the share of the ratios that were marked or withheld (at rest 5 % is the most)
apart         of these, those whose sides differ at rest by more than 1.25: a mark is for sides that are equally fast
agree         tunings in which the intervals of the best as a trial and at the end overlap, as do those of the fastest
              trial and of the best, and of the default as a trial and at the end; and in which the best is no slower
              than the default

Runs that are on record are not made again. Rows and outcomes go to benchmarks/results/tuner_honest.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorir.api.measurer import Measurer
from tensorir.cli.parse import work_of
from tensorir.tune.log import LogReader
from tensorir.tune.record import Record
from tensorir.tune.spec import RunSpec

RESULTS = Path(__file__).parent.parent / "results" / "tuner_honest.jsonl"
WORKLOADS = (
    ("matmul", "256x256x256"),
    ("conv2d", "1x64x28x28", "64x64x3x3", "--pad", "1"),
    ("conv2d", "1x160x20x20", "320x160x1x1"),
)
APART = 1.5
EQUAL = 1.25
Row = dict[str, Any]
LIVE = re.compile(
    r"best (?P<ms>[\d.]+) ms.*?  (?:(?P<about>~?)(?P<share>\d+)%|unsteady) (?:of|against) "
    r"(?P<name>[^|]+?)(?: \(unsteady\))?(?=  \||$)"
)


def command(*arguments: str) -> tuple[dict[str, Any], str]:
    """The document that a command prints, and what it says meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "tensorir", *arguments, "--json"], capture_output=True, text=True, check=False
    )
    if not done.stdout:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout), done.stderr


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that do nothing but keep cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def said(text: str) -> list[Row]:
    """The ratios of the live lines, each with the milliseconds of the best that it is about."""
    found = []
    for line in text.splitlines():
        if match := LIVE.search(line):
            value = None if match["share"] is None else int(match["share"]) / 100
            steady = value is not None and not match["about"]
            found.append({"where": "live", "of": match["name"].strip(), "ratio": value, "steady": steady,
                          "time_s": float(match["ms"]) / 1e3})  # fmt: skip
    return found


def tuned(arguments: tuple[str, ...], budget: str) -> Row:
    """One tuning and one `bench` of what it found: what they printed, and how the times of the log agree."""
    with tempfile.TemporaryDirectory() as log:
        found, text = command("tune", *arguments, "--budget", budget, "--progress", "plain", "--log", log)
        if found["best"] is None:
            return {"status": found["status"], "ratios": [], "stderr": text[-2000:]}
        bench = command("bench", *arguments, "--log", log)[0]["rows"][0]
        records = list(LogReader(log).records())
    best, peer, default = found["best"], found["baseline"], found["default"]
    ratios = said(text)
    if peer is not None and "ratio" in peer:
        ratios.append({"where": "tune", "of": peer["name"], "ratio": peer["ratio"], "steady": peer["steady"],
                       "doubt": peer.get("doubt", "")})  # fmt: skip
    if default.get("ratio") is not None:
        ratios.append({"where": "tune", "of": "default", "ratio": default["ratio"], "steady": default["steady"],
                       "doubt": default.get("doubt", "")})  # fmt: skip
    ratios += [
        {"where": "bench", "of": a["name"], "ratio": a["ratio"], "steady": a["steady"], "doubt": a.get("doubt", "")}
        for a in bench["against"]
    ]
    trials = [r for r in records if r.kind == "trial"]
    chosen = {"template": best["template"], "config": best["config"]}
    first = {"template": trials[0].template, "config": trials[0].config}
    return {
        "status": found["status"],
        "title": found["workload"],
        "trials": found["trials"],
        "machine": found["machine"],
        "chosen": chosen,
        "default": first,
        "time_s": best["time_s"],
        "ratios": ratios,
        "agree": agreement(records, found),
    }


def agreement(records: list[Record], found: dict[str, Any]) -> dict[str, bool]:
    """Which of the times of a log agree with each other's intervals."""
    trials = {r.id: r for r in records if r.kind == "trial"}
    finals = {r.of: r for r in records if r.kind == "final" and r.status == "ok"}
    best, default = trials[found["best"]["trial"]], next(iter(trials.values()))
    live = min((r for r in trials.values() if r.status == "ok"), key=lambda r: r.steady_s)
    end = (found["best"]["low_s"], found["best"]["high_s"])

    def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] <= b[1] and b[0] <= a[1]

    made = {"best": overlap(best.span, end), "live": overlap(live.span, end)}
    if default.id in finals:
        made["default"] = overlap(default.span, finals[default.id].span)
    slowest = found["default"]["time_s"]
    made["no slower"] = slowest is None or found["best"]["time_s"] <= slowest
    return made


def at_rest(run: Row) -> dict[str, float]:
    """The true ratios of a run's kernel: of each library's time, and of the default's, to its own."""
    work = work_of(run["title"])
    if work is None:
        raise RuntimeError(f"no workload {run['title']}")
    kinds = [{**kind, "id": name, "source_sha256": None, "trace": None, "check": None, "resources": None}
             for name, kind in (("chosen", run["chosen"]), ("default", run["default"]))]  # fmt: skip
    with Measurer(work, None, RunSpec(budget_s=None, final_s=1.0)) as measurer:
        measurer.open()
        against = measurer.against(run["chosen"]["template"], run["chosen"]["config"])
        true = {a.name: a.time_s / against.results[0].steady_s for a in against.against}
        if run["chosen"] == run["default"]:
            return {**true, "default": 1.0}
        chosen, default = measurer.final(kinds, None, searched_s=4.0).results
    return {**true, "default": default.steady_s / chosen.steady_s}


def compared(run: Row) -> list[Row]:
    """The ratios of a run that were measured again at rest, each with what it is there."""
    found = []
    for row in run["ratios"]:
        true = run.get("true", {}).get(row["of"])
        if true is None:
            continue
        if "time_s" in row:  # of a kernel that was the best for a while
            true *= run["time_s"] / row["time_s"]
        found.append({**row, "true": true})
    return found


def contradicted(run: Row) -> list[Row]:
    """Ratios that were printed unmarked and are others at rest."""
    return [r for r in compared(run) if r["steady"] and not 1 / APART <= r["ratio"] / r["true"] <= APART]


def marked_apart(run: Row) -> list[Row]:
    """Ratios that were marked though one side is plainly the faster one at rest."""
    return [r for r in compared(run) if not r["steady"] and not 1 / EQUAL <= r["true"] <= EQUAL]


def report(runs: list[Row]) -> dict[str, Any]:
    """The three numbers, for the machine at rest and the busy one."""
    made: dict[str, Any] = {}
    for kind in ("rest", "busy"):
        mine = [r for r in runs if r["machine_is"] == kind]
        rows = [x for r in mine for x in r["ratios"]]
        wrong = [x for r in mine for x in contradicted(r)]
        agree = [r["agree"] for r in mine if "agree" in r]
        made[kind] = {
            "tunings": len(mine),
            "without a kernel": sum(r["status"] != "ok" for r in mine),
            "ratios": len(rows),
            "marked": sum(not x["steady"] for x in rows),
            "marked_share": round(sum(not x["steady"] for x in rows) / max(1, len(rows)), 3),
            "marked_apart": sum(len(marked_apart(r)) for r in mine),
            "compared_at_rest": sum(len(compared(r)) for r in mine),
            "contradicted": wrong,
            "agree": sum(all(a.values()) for a in agree),
            "disagree_in": dict(Counter(k for a in agree for k, v in a.items() if not v)),
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="tunings of each kind")
    parser.add_argument("--budget", default="15s", help="of a tuning")
    parser.add_argument("--busy", type=int, default=2, help="processes that keep cores busy")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args()
    runs: dict[str, Row] = {}
    if options.out.exists():  # the last line of a run counts
        runs = {r["name"]: r for r in map(json.loads, options.out.read_text().splitlines())}

    def keep(run: Row) -> None:
        runs[run["name"]] = run
        with options.out.open("a") as file:
            file.write(json.dumps(run) + "\n")

    for kind, count in (("rest", 0), ("busy", options.busy)):
        with busy(0 if options.report else count):
            for n in range(0 if options.report else options.runs):
                name, which = f"{kind} {n}", n % len(WORKLOADS)
                if name not in runs:
                    run = tuned(WORKLOADS[which], options.budget)
                    load = [round(x, 2) for x in os.getloadavg()]
                    keep({"name": name, "machine_is": kind, "workload": which, "load": load, **run})
                    print(name, run["status"], [(r["of"], r["ratio"], r["steady"]) for r in run["ratios"]], flush=True)
    for run in [] if options.report else list(runs.values()):
        if "true" not in run and "chosen" in run:
            keep({**run, "true": at_rest(run)})
            print(run["name"], "at rest", runs[run["name"]]["true"], flush=True)
    print(json.dumps(report(list(runs.values())), indent=1))


if __name__ == "__main__":
    main()
