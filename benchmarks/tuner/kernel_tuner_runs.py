"""Kernel Tuner's strategies on recorded tables, through its own simulation mode."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import kernel_tuner.interface as interface
import kernel_tuner.runners.simulation as simulation
import numpy as np

NOT_SEARCHES = {"brute_force", "nsga2", "nsga3"}  # everything in order, and those for several objectives


def strategies() -> list[str]:
    return [name for name in interface.strategy_map if name not in NOT_SEARCHES]


class Visits(set[str]):
    """The runner's set of visited configurations, which also remembers their order."""

    order: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.order = []

    def add(self, key: str) -> None:
        if key not in self:
            self.order.append(key)
        super().add(key)


class Recorded:
    """One table as what Kernel Tuner wants: a cache file, and a search space that is made once for all runs."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        meta = json.loads(data["meta"].tobytes())
        self.params: dict[str, list[Any]] = dict(zip(meta["params"], meta["values"], strict=True))
        rows = [tuple(v[i] for v, i in zip(meta["values"], row, strict=True)) for row in data["X"]]
        self.times = {",".join(map(str, row)): float(t) for row, t in zip(rows, data["t"], strict=True)}
        self.best = float(np.nanmin(data["t"]))
        self.valid = set(rows)
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name) / "cache.json"
        entries = {}
        for row, t in zip(rows, data["t"], strict=True):
            time_ms: float | str = "RuntimeFailedConfig" if np.isnan(t) else float(t)
            entries[",".join(map(str, row))] = {**dict(zip(self.params, row, strict=True)), "time": time_ms}
        head: dict[str, Any] = {"device_name": "recorded", "kernel_name": "k", "problem_size": [1], "objective": "time"}
        head |= {"tune_params_keys": list(self.params), "tune_params": self.params, "cache": entries}
        self.file.write_text(json.dumps(head))
        self.space = _SearchSpace(self.params, [self.allowed], 10**9)
        self.cache = _process_cache

    def allowed(self, p: dict[str, Any]) -> bool:
        return tuple(p[name] for name in self.params) in self.valid


_SearchSpace = interface.Searchspace
_process_cache = interface.util.process_cache


@cache
def recorded(path: Path) -> Recorded:
    return Recorded(path)


def run(strategy: str, tables: Path, table: str, seed: int, budget: int) -> dict[str, Any]:
    """The curve of the best ratio over the unique evaluations, in their order; what Kernel Tuner itself took."""
    known = recorded(tables / f"{table}.npz")
    runners: list[Any] = []

    class Runner(simulation.SimulationRunner):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.visited_results = Visits()
            runners.append(self)

    # reading the cache and listing the space take seconds and are the same for every run
    loaded: list[Any] = [getattr(known, "entries", None)]

    def process_cache(*given: Any) -> Any:
        if loaded[0] is None:
            known.entries = loaded[0] = _process_cache(*given)  # type: ignore[attr-defined]
        return loaded[0]

    kept = simulation.SimulationRunner, interface.Searchspace, interface.util.process_cache
    simulation.SimulationRunner = Runner
    interface.Searchspace = lambda *_, **__: copy.copy(known.space)
    interface.util.process_cache = process_cache
    random.seed(seed)
    np.random.seed(seed)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            interface.tune_kernel(
                "k", "__global__ void k() {}", 1, [], dict(known.params), restrictions=[known.allowed], lang="CUDA",
                strategy=strategy, strategy_options={"max_fevals": budget}, cache=str(known.file), simulation_mode=True,
                quiet=True, seed=seed,
            )  # fmt: skip
    finally:
        simulation.SimulationRunner, interface.Searchspace, interface.util.process_cache = kept
    took = time.perf_counter() - began
    curve, best = [], float("inf")
    for key in runners[0].visited_results.order[:budget]:
        t = known.times[key]
        best = best if np.isnan(t) else min(best, t / known.best)
        curve.append(best)
    return {"curve": curve, "evaluated": len(curve), "ms_step": 1e3 * took / max(1, len(curve))}
