"""How much faster tuning gets with workers, and what a killed and a hung one cost: fake devices that only sleep.

    python benchmarks/tuner/scaling.py                    # threads, processes and a local Dask cluster, 1 and 4 workers

What is measured is the loop's own share: the searches, logs and supervision of the production code around trials that
take SECONDS each and no processor. Speedup is trials a second on 4 workers over those on 1, each the best of REPEATS
runs, for what else a machine does only adds. The default is measured alone, so of four 3.77 are left with 49 trials.
Dask needs ``pip install "tensorir[dask]"``. Everything is written to benchmarks/results/tuner_scaling.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tensorir.api.places import ExecutorPlaces
from tensorir.codec import encode
from tensorir.tune.flight import Flights, Sent, TrialPlaces
from tensorir.tune.interfaces import Bench, Task
from tensorir.tune.log import LogReader, LogWriter, RunIdentity
from tensorir.tune.loop import search
from tensorir.tune.space import Space
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import Outcome, Trial

RESULT = Path(__file__).parents[1] / "results" / "tuner_scaling.json"
ME = RunIdentity("sleeping", "0", {"name": "none", "driver": "0"}, {})
SPACE = Space(a=range(16), b=range(16), c=range(8), default={"a": 0, "b": 0, "c": 0})


def seconds_of(config: dict[str, int]) -> float:
    """The time that a fake kernel reports: smooth, least at (11, 5, 6)."""
    return 1e-3 * (1 + 0.1 * abs(config["a"] - 11) + 0.05 * abs(config["b"] - 5) + 0.2 * abs(config["c"] - 6))


def measured(message: dict[str, Any], limits: dict[str, float], remaining: float | None) -> dict[str, Any]:
    """What a worker does: sleep; where the message names a folder, one is killed and one hangs."""
    folder = message.get("folder")
    if folder is not None:
        for name, signum in (("killed", signal.SIGKILL), ("hung", signal.SIGSTOP)):
            if len(list(Path(folder).glob("trial-*"))) >= 12 and _first_to(name, folder):
                os.kill(os.getpid(), signum)
        Path(folder, f"trial-{os.urandom(8).hex()}").touch()
    time.sleep(message["seconds"])
    time_s = seconds_of(message["config"])
    check = {"ok": True, "max_err": 0.0, "shapes": []}
    return {"status": "ok", "time_s": time_s, "samples": [time_s] * 3, "check": check}


def _first_to(name: str, folder: str) -> bool:
    try:
        with Path(folder, name).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


@contextmanager
def threads(width: int) -> Iterator[TrialPlaces]:
    with ThreadPoolExecutor(width) as pool:
        yield ExecutorPlaces(pool, width, {}, measured)


@contextmanager
def processes(width: int) -> Iterator[TrialPlaces]:
    with ProcessPoolExecutor(width) as pool:
        yield ExecutorPlaces(pool, width, {}, measured)


@contextmanager
def dask(width: int) -> Iterator[TrialPlaces]:
    from distributed import Client, LocalCluster

    from tensorir.api.places import DaskPlaces

    options = {"processes": True, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with LocalCluster(n_workers=width, **options) as cluster, Client(cluster) as client:
        yield DaskPlaces(client, {}, measured)


def run(places: TrialPlaces, strategy: str, trials: int, seconds: float, folder: str | None = None) -> dict[str, Any]:
    """One search over an empty log."""

    def prepare(trial: Trial) -> Sent:
        return Sent({**encode(trial), "seconds": seconds} | ({} if folder is None else {"folder": folder}))

    timeout = None if folder is None else 10 * seconds
    flights = Flights(places, prepare=prepare, trial_timeout=timeout)
    with tempfile.TemporaryDirectory() as root, LogWriter(root, ME.workload) as log:
        flights.ask({"config": SPACE.default, "seconds": 0.0}, None)  # the workers are up
        began = time.perf_counter()
        spec = RunSpec(strategy=strategy, trials=trials, budget_s=None)
        outcome = search(spec, Task(ME, {"t": SPACE}), Bench(_nowhere, flights=flights), log)
        took = time.perf_counter() - began
        logged = [r.config for r in LogReader(root).records(kind="trial")]
    assert outcome.best is not None
    different = len({json.dumps(c, sort_keys=True) for c in logged})
    found = {"wall_s": round(took, 3), "counts": outcome.counts, "logged": len(logged), "different": different}
    return found | {"best": outcome.best.config, "best_s": outcome.best.time_s}


def _nowhere(*_: Any) -> Outcome:
    raise AssertionError("measured outside the places")


def scaling(make: Callable[[int], Any], strategy: str, trials: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Trials a second on 1 and on 4 workers, in turn."""
    walls: dict[int, list[float]] = {1: [], 4: []}
    for _ in range(repeats):
        for width, found in walls.items():
            with make(width) as places:
                found.append(run(places, strategy, trials, seconds)["wall_s"])
    row = {"executor": make.__name__, "strategy": strategy, "trials": trials, "sleep_s": seconds}
    return row | {"speedup": round(min(walls[1]) / min(walls[4]), 3), "one_s": walls[1], "four_s": walls[4]}


def losses(trials: int, seconds: float) -> dict[str, Any]:
    """Four workers of a Dask cluster, one of them killed and one hung after a dozen trials, against four that live."""
    with tempfile.TemporaryDirectory() as folder, dask(4) as places:
        hurt = run(places, "grid", trials, seconds, folder)
        happened = sorted(p.name for p in Path(folder).iterdir() if not p.name.startswith("trial-"))
        if "hung" in happened:
            os.kill(int(Path(folder, "hung").read_text()), signal.SIGKILL)  # nobody waits for a stopped process
    with dask(4) as places:
        well = run(places, "grid", trials, seconds)
    return {"trials": trials, "sleep_s": seconds, "happened": happened, "hurt": hurt, "well": well,
            "same_best": hurt["best"] == well["best"]}  # fmt: skip


def environment() -> dict[str, Any]:
    found: dict[str, Any] = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()}
    for name in ("tensorir", "distributed", "numpy", "scikit-optimize"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found | {"python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=49)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    rows = []
    for make, strategy in ((threads, "random"), (processes, "random"), (dask, "random"), (dask, "bayes")):
        rows.append(scaling(make, strategy, given.trials, given.seconds, given.repeats))
        print(f"{make.__name__:10} {strategy:7} {rows[-1]['speedup']:.2f}x on 4 workers", flush=True)
    lost = losses(given.trials, given.seconds)
    print(f"one killed, one hung: {lost['hurt']['counts']} of {given.trials}, {lost['hurt']['different']} different")
    print(f"same best: {lost['same_best']}; {lost['hurt']['wall_s']:.1f} s against {lost['well']['wall_s']:.1f} s")
    document = {"environment": environment(), "scaling": rows, "losses": lost}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
