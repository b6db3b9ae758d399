"""How fast is a search that a model of seconds leads? Recorded tables answer it; no GPU is used.

    python benchmarks/tuner/led.py --tables DIR --only gemm_clblast    # without --only: all tables

DIR holds recorded tables (``*.npz``, the format of ``run.py``). Best time found over the table's optimum, the median of
the seeds, after 5, 10, 25 and 50 measurements, with no model ("cold") and with these:

    counted    the static model of GPU kernels (``tensorir.tune.gpu_model``), CLBlast only. It knows kernels that stage
               both operands; what the other three ways cost is the median over the faster half of the *other* device's
               table, which is all that is calibrated.
    elsewhere  the times of another device's table of the same kernel
    inverted, random, constant   models that are wrong
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))

from judge_model import CLBLAST, clblast_tiles
from measuring import environment

from tensorir.gpu_devices import GPUS
from tensorir.tune.gpu_model import MatrixProduct, seconds
from tensorir.tune.pool import Pool
from tensorir.tune.strategy import Bayes

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_led.json"
BUDGETS = (5, 10, 25, 50)
MODELS = ("cold", "counted", "elsewhere", "inverted", "random", "constant")


class Table:
    """A recorded space: value indices and seconds by row, not a number for what failed."""

    def __init__(self, path: Path) -> None:
        file = np.load(path)
        about = json.loads(file["meta"].tobytes())
        self.name, self.names, self.values = path.stem, about["params"], about["values"]
        self.family, self.problem = path.stem.split("__")[0], about["problem"]
        self.rows, self.seconds = file["X"], file["t"].astype(float) * 1e-3

    def configs(self) -> list[dict[str, Any]]:
        return [{n: v[i] for n, v, i in zip(self.names, self.values, row, strict=True)} for row in self.rows.tolist()]


@cache
def counted_alone(table: Table) -> Any:
    gpu = GPUS[CLBLAST[table.name]][1]
    product = MatrixProduct(*table.problem, kind="f32", in_bytes=4, out_bytes=4)
    return np.array([seconds(product, clblast_tiles(c, gpu), gpu) for c in table.configs()])


def staging(table: Table) -> Any:
    return np.array([2 * c["SA"] + c["SB"] for c in table.configs()])


def counted(table: Table, others: list[Table]) -> Any:
    """Seconds by row, with the factor of each way of staging from the other devices' tables."""
    found = np.log(counted_alone(table))
    for way in range(4):
        off = []
        for other in others:
            fast = (other.seconds <= np.nanmedian(other.seconds)) & (staging(other) == way)
            off.append(float(np.median(np.log(other.seconds / counted_alone(other))[fast])))
        found[staging(table) == way] += statistics.mean(off)
    return np.exp(found)


def by_another(table: Table, other: Table) -> Any:
    """Seconds by row as another device took them; their median where its table lacks a row or it failed there."""
    known = {tuple(c.values()): t for c, t in zip(other.configs(), other.seconds, strict=True)}
    middle = float(np.nanmedian(other.seconds))
    found = [known.get(tuple(c.values()), math.nan) for c in table.configs()]
    return np.array([middle if math.isnan(t) else t for t in found])


def modelled(kind: str, table: Table, others: list[Table]) -> Any:
    """Seconds by row, None for no model, or where there is none of this kind."""
    slowest = float(np.nanmax(table.seconds))
    if kind == "counted":
        known = [t for t in others if t.name in CLBLAST]
        return counted(table, known) if table.name in CLBLAST and known else None
    if kind == "elsewhere":
        return by_another(table, others[0]) if others else None
    if kind == "inverted":
        return 1.0 / np.where(np.isnan(table.seconds), slowest, table.seconds)
    if kind == "random":
        return np.exp(np.random.default_rng(0).normal(0.0, 0.7, len(table.seconds)))
    return np.ones(len(table.seconds)) if kind == "constant" else None


def one_run(pool: Pool, table: Table, seed: int) -> list[float]:
    """Ratios after each budget."""
    search, best, found = Bayes(pool, seed=seed, budget=max(BUDGETS)), math.inf, []
    optimum = float(np.nanmin(table.seconds))
    for n in range(1, max(BUDGETS) + 1):
        (row,) = search.ask()
        took = float(table.seconds[row])
        search.tell(row, None if math.isnan(took) else took)
        best = best if math.isnan(took) else min(best, took)
        if n in BUDGETS:
            found.append(best / optimum)
    return found


def median_ratios(table: Table, expected: Any, seeds: range) -> dict[str, float]:
    known = {} if expected is None else dict(zip((tuple(c.values()) for c in table.configs()), expected, strict=True))
    model = None if expected is None else (lambda c: float(known[tuple(c.values())]))
    pool = Pool(table.names, table.values, table.rows, model)
    runs = [one_run(pool, table, seed) for seed in seeds]
    return {str(b): statistics.median(run[i] for run in runs) for i, b in enumerate(BUDGETS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="tables whose name has this")
    parser.add_argument("--models", type=lambda t: t.split(","), default=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    tables = [Table(p) for p in sorted(options.tables.glob("*.npz"))]
    seeds, rows = range(options.first, options.first + options.seeds), []
    for table in (t for t in tables if options.only in t.name):
        others = [t for t in tables if t.family == table.family and t is not table]
        for kind in options.models:
            expected = modelled(kind, table, others)
            if expected is None and kind != "cold":
                continue
            rows.append({"table": table.name, "model": kind, **median_ratios(table, expected, seeds)})
            print(" ".join(f"{v:.3f}" if isinstance(v, float) else f"{v:30}" for v in rows[-1].values()), flush=True)
    means = []
    for kind in options.models:
        some = [r for r in rows if r["model"] == kind]
        mean = {str(b): math.exp(statistics.fmean(math.log(r[str(b)]) for r in some)) for b in BUDGETS} if some else {}
        means.append({"model": kind, "tables": len(some), **mean})
    document = {"schema": 1, "environment": environment(), "seeds": list(seeds), "rows": rows, "geomeans": means}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    main()
