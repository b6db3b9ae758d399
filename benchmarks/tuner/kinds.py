"""Score the search strategies on kinds of spaces that recorded tables lack; nothing is compiled or run.

python benchmarks/tuner/kinds.py                       # every kind, 20 seeds
python benchmarks/tuner/kinds.py --kinds huge --seeds 5 --only bayes,climb

Each kind makes a space and a time for each of its configurations from a seed, so that each seed is another landscape,
the same for all strategies. The optimum is one by construction. What counts is the time of the configuration that
measured best, over the optimum, after 25, 50 and 100 measurements; a configuration that fails costs a measurement.
The kind "noisy" replays recorded tables (``--tables``) with 5 % of noise. Runs that are in the file of results already
are not made again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.append(str(Path(__file__).resolve().parents[1]))

from measuring import environment

from tensorir.tune.pool import Pool
from tensorir.tune.space import Space
from tensorir.tune.strategy import make

RESULT = Path(__file__).resolve().parent.parent / "results" / "tuner_kinds.json"
BUDGETS = (25, 50, 100)
STRATEGIES = ("bayes", "climb", "random", "evolve")
BAR = 1.02
POWERS = [1, 2, 4, 8, 16, 32, 64, 128]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """space: a ``Space`` or a ``Pool``;  time: seconds over the optimum's, None where a configuration fails;
    noise: relative deviation of one measurement
    """

    space: Any
    time: Callable[[Config], float | None]
    noise: float = 0.0


def chance(seed: int, *what: object) -> float:
    """A number in [0, 1) that depends on nothing but what is given."""
    return zlib.crc32(repr((seed, *what)).encode()) / 2**32


class Valley:
    """Times with their least, 1, at ``best``: each knob costs by how far it is from there, some only together.

    linear: knobs whose values count as they are, not by their logarithms
    rough:  what a configuration costs besides, at random, in the logarithm
    """

    def __init__(
        self, seed: int, values: Mapping[str, Sequence[Any]], best: Config, linear: str = "", rough: float = 0.05
    ):
        rng = np.random.default_rng(seed)
        self.seed, self.best, self.rough, self.names = seed, dict(best), rough, list(values)
        self.place = {n: places(seed, n, v, n in linear.split()) for n, v in values.items()}
        one = np.diag(np.exp(rng.normal(0.0, 0.7, len(values))))
        two = [self._pair(rng) for _ in values] if len(values) > 1 else []
        self.ridges = np.array([*one, *two])

    def _pair(self, rng: np.random.Generator) -> Any:
        ridge = np.zeros(len(self.names))
        ridge[rng.choice(len(self.names), 2, replace=False)] = rng.normal(0.0, 1.0, 2)
        return ridge

    def __call__(self, config: Config) -> float:
        away = np.array([self.place[n][config[n]] - self.place[n][self.best[n]] for n in self.names])
        cost = float((np.abs(self.ridges @ away) ** 1.3).sum())
        same = all(config[n] == self.best[n] for n in self.names)
        return math.exp(cost + (0.0 if same else self.rough * chance(self.seed, *map(config.get, self.names))))


def places(seed: int, name: str, values: Sequence[Any], linear: bool) -> dict[Any, float]:
    """Where each value of a knob is in [0, 1]; words are anywhere."""
    if not all(isinstance(v, (int, float)) for v in values):
        return {v: chance(seed, name, v) for v in values}
    at = [float(v) if linear else math.log2(1 + v) for v in values]
    span = (max(at) - min(at)) or 1.0
    return {v: (x - min(at)) / span for v, x in zip(values, at, strict=True)}


def drawn(seed: int, space: Any) -> Config:
    """A legal configuration."""
    row = int(np.random.default_rng(seed + 1).integers(len(space.legal)))
    return dict(space.config(row))


def conditional(seed: int) -> Task:
    """Three ways with knobs of their own; the one that is best when all is right is the worst on average."""
    way = ("plain", "staged", "split")
    knobs: dict[str, Any] = {"way": way, "m": POWERS[:6], "n": POWERS[:6], "unroll": POWERS[:4]}
    knobs |= {"depth": [1, 2, 3, 4, 5, 6], "pad": [0, 1, 2, 4], "parts": [1, 2, 4, 8, 16], "sums": ("tree", "atomic")}
    staged, split = (lambda c: c["way"] == "staged"), (lambda c: c["way"] == "split")
    space = Space(**knobs).when(depth=staged, pad=staged, parts=split, sums=split)
    base = {"m": 16, "n": 8, "unroll": 2, "depth": 4, "pad": 2, "parts": 8, "sums": "tree"}
    numbers = {k: v for k, v in knobs.items() if k != "way"}
    valleys = {w: Valley(seed + n, numbers, base, rough=0.1) for n, w in enumerate(way)}
    own = {"plain": ("depth", "pad", "parts", "sums"), "staged": ("parts", "sums"), "split": ("depth", "pad")}
    offset = {"plain": 1.3, "staged": 1.0, "split": 1.15}

    def time_of(c: Config) -> float:
        w = c["way"]
        return offset[w] * valleys[w]({**c, **{k: base[k] for k in own[w]}})

    return Task(space, time_of)


def failing(seed: int, fails: Callable[[Config, Config], bool]) -> Task:
    values = {f"k{n}": POWERS for n in range(5)}
    space = Space(**values)
    best = drawn(seed, space)
    valley = Valley(seed, values, best)
    return Task(space, lambda c: None if c != best and fails(c, best) else valley(c))


def failing_at_random(seed: int) -> Task:
    """Nine of ten configurations fail, whatever their neighbours do."""
    return failing(seed, lambda c, _: chance(seed, "fails", *c.values()) < 0.9)


def failing_by_a_rule(seed: int) -> Task:
    """Nine of ten configurations fail: where a product of two knobs is too large or two others are too far apart."""

    def fails(c: Config, best: Config) -> bool:
        k = [math.log2(v) for v in c.values()]
        b = [math.log2(v) for v in best.values()]
        return k[0] + k[1] > b[0] + b[1] + 0.5 or abs((k[2] - k[3]) - (b[2] - b[3])) > 1.5

    return failing(seed, fails)


def equal(seed: int) -> Task:
    """Fast where two of the numbers 1 … 64 are equal."""
    values = {"x": list(range(1, 65)), "y": list(range(1, 65))}
    best = int(np.random.default_rng(seed).integers(8, 60))

    def time_of(c: Config) -> float:
        off = abs(c["x"] - c["y"]) / 64 + 0.3 * abs(c["x"] + c["y"] - 2 * best) / 128
        return math.exp(2.5 * off**0.7 + 0.02 * chance(seed, c["x"], c["y"]) * (off > 0))

    return Task(Space(**values), time_of)


def product(seed: int) -> Task:
    """Fast where the product of two powers of two is 2048."""
    powers = [2**n for n in range(12)]
    values = {"x": powers, "y": powers, "z": powers}
    best = int(np.random.default_rng(seed).integers(2, 10))

    def time_of(c: Config) -> float:
        x, y, z = (math.log2(c[n]) for n in "xyz")
        off = abs(x + y - 11) / 11 + 0.2 * abs(x - best) / 11 + 0.2 * abs(z - 5) / 11
        return math.exp(1.5 * off**0.7 + 0.03 * chance(seed, *c.values()) * (off > 0))

    return Task(Space(**values), time_of)


def linear(seed: int) -> Task:
    """Two numbers of 1 … 64 that count as they are, a number of warps and a word."""
    values = {"x": list(range(1, 65)), "y": list(range(1, 65)), "warps": POWERS[:4], "mode": ("a", "b", "c")}
    rng = np.random.default_rng(seed)
    best = {"x": int(rng.integers(24, 60)), "y": int(rng.integers(24, 60)), "warps": 4, "mode": "b"}
    return Task(Space(**values), Valley(seed, values, best, linear="x y", rough=0.02))


def divisible(seed: int) -> Task:
    """Sizes that should divide a length, as tiles of awkward shapes do."""
    rng = np.random.default_rng(seed)
    m, n = (int(v) for v in rng.choice([96, 120, 144, 168, 180, 200], 2))
    values = {"x": list(range(1, 65)), "y": list(range(1, 65)), "unroll": POWERS[:4]}
    divides = [[d for d in range(8, 33) if size % d == 0] for size in (m, n)]
    best = {"x": int(rng.choice(divides[0])), "y": int(rng.choice(divides[1])), "unroll": 4}
    valley = Valley(seed, values, best, rough=0.02)

    def waste(size: int, tile: int) -> float:
        return -(-size // tile) * tile / size

    return Task(Space(**values), lambda c: valley(c) * waste(m, c["x"]) * waste(n, c["y"]))


def huge(seed: int) -> Task:
    """About 10**8 legal configurations of 7 * 10**8, of which a space lists a sample."""
    values = {f"k{n}": POWERS[: 7 + n % 2] for n in range(9)} | {"x": [1, 2, 3, 4, 6, 8], "mode": ("a", "b", "c")}
    where = {"fits": lambda c: c["k0"] * c["k1"] * c["k2"] <= 2**13, "threads": lambda c: c["k3"] * c["k4"] <= 1024}
    default = dict.fromkeys(values, 4) | {"mode": "a"}
    rng = np.random.default_rng(seed)
    best = {n: v[int(rng.integers(1, len(v) - 2))] for n, v in values.items() if n != "mode"} | {"mode": "b"}
    valley = Valley(seed, values, best, rough=0.05)
    return Task(Space(**values, where=where, default=default), lambda c: valley(c) ** 0.5)


def one_legal(seed: int) -> Task:
    """One legal configuration."""
    values = {"x": POWERS, "y": POWERS}
    wanted = 2 ** (seed % 8)
    return Task(Space(**values, where={"one": lambda c: c["x"] == wanted == c["y"]}), lambda c: 1.0)


def one_runs(seed: int) -> Task:
    """Of 36 legal configurations one runs."""
    values = {"x": POWERS[:6], "y": POWERS[:6]}
    best = drawn(seed, Space(**values))
    return Task(Space(**values), lambda c: 1.0 if c == best else None)


def plateaus(seed: int) -> Task:
    """Times in steps of 15 %: most changes change nothing."""
    values = {f"k{n}": POWERS for n in range(5)}
    best = drawn(seed, Space(**values))
    valley = Valley(seed, values, best, rough=0.0)
    return Task(Space(**values), lambda c: 1.15 ** math.floor(math.log(valley(c)) / math.log(1.15)))


def words(seed: int) -> Task:
    """Three knobs of 16 words each, and a number."""
    values: dict[str, Any] = {k: tuple(f"{k}{n}" for n in range(16)) for k in "abc"} | {"n": POWERS[:4]}
    best = drawn(seed, Space(**values))
    return Task(Space(**values), Valley(seed, values, best))


def orders(seed: int) -> Task:
    """The order of five loops, by what is inner to what, and two tile sizes."""
    loops = tuple(permutations("ijklm"))
    values: dict[str, Any] = {"order": loops, "x": POWERS[:6], "y": POWERS[:6]}
    rng = np.random.default_rng(seed)
    best = {"order": loops[int(rng.integers(len(loops)))], "x": 8, "y": 16}
    matter = {a + b: float(rng.exponential(0.25)) for a, b in permutations("ijklm", 2)}
    valley = Valley(seed, {n: values[n] for n in "xy"}, best)

    def time_of(c: Config) -> float:
        at, wanted = ({x: o.index(x) for x in o} for o in (c["order"], best["order"]))
        wrong = [p for p in matter if (at[p[0]] < at[p[1]]) and not wanted[p[0]] < wanted[p[1]]]
        return valley(c) * math.exp(sum(matter[p] for p in wrong))

    return Task(Space(**values), time_of)


def one_knob_decides(seed: int) -> Task:
    """One of eight knobs is worth a factor of twenty, the others some percent."""
    values = {f"k{n}": POWERS[:4] for n in range(7)} | {"x": POWERS}
    best = drawn(seed, Space(**values))
    valley = Valley(seed, values, best)
    place = places(seed, "x", POWERS, False)
    return Task(Space(**values), lambda c: valley(c) ** 0.15 * 20 ** abs(place[c["x"]] - place[best["x"]]))


def deceptive(seed: int) -> Task:
    """A broad valley that ends at 1.15, and a narrow one that ends at 1."""
    values = {f"k{n}": POWERS for n in range(4)}
    space = Space(**values)
    rng = np.random.default_rng(seed)
    broad = {n: POWERS[int(rng.integers(1, 4))] for n in values}
    narrow = {n: POWERS[int(rng.integers(5, 7))] for n in values}
    wide, deep = Valley(seed, values, broad), Valley(seed + 1, values, narrow)
    return Task(space, lambda c: min(1.15 * wide(c) ** 0.7, deep(c) ** 1.2))


def many_knobs(seed: int) -> Task:
    """Fifteen knobs of two or three values, of which five matter."""
    values: dict[str, Any] = {f"k{n}": POWERS[: 2 + n % 2] for n in range(15)}
    best = {n: v[int(chance(seed, n) * len(v))] for n, v in values.items()}
    some = {f"k{int(n)}": values[f"k{int(n)}"] for n in np.random.default_rng(seed).choice(15, 5, replace=False)}
    matter, others = Valley(seed, some, best), Valley(seed + 1, values, best)
    return Task(Space(**values), lambda c: matter(c) ** 0.4 * others(c) ** 0.02)


KINDS: dict[str, Callable[[int], Task]] = {
    "conditional": conditional,
    "failing at random": failing_at_random,
    "failing by a rule": failing_by_a_rule,
    "equal": equal,
    "product": product,
    "linear": linear,
    "divisible": divisible,
    "huge": huge,
    "one legal": one_legal,
    "one runs": one_runs,
    "plateaus": plateaus,
    "words": words,
    "orders": orders,
    "one knob decides": one_knob_decides,
    "deceptive": deceptive,
    "many knobs": many_knobs,
}


def noisy(path: Path) -> Callable[[int], Task]:
    """A recorded table, each measurement with 5 % of noise."""
    score = loaded(path.parent)
    table = score.Table(path)
    times = table.t / np.nanmin(table.t)
    pool = Pool(table.params, table.values, table.X)
    row_of = {tuple(indices): n for n, indices in enumerate(table.X.tolist())}

    def time_of(c: Config) -> float | None:
        t = float(times[row_of[tuple(c[n] for n in table.params)]])
        return None if math.isnan(t) else t

    # by index: a table may have values that are equal numbers
    pool.config = lambda row: {n: int(i) for n, i in zip(table.params, pool.rows[row], strict=True)}  # type: ignore[method-assign]
    return lambda seed: Task(pool, time_of, 0.05)


@cache
def loaded(folder: Path) -> Any:
    sys.dont_write_bytecode = True  # the folder of tables is not ours
    sys.path.insert(0, str(folder))
    import score

    return score


def play(task: Task, strategy: str, seed: int, budget: int) -> dict[str, Any]:
    """One search: the true time of what measured best after each measurement, and the search's own seconds."""
    rng = np.random.default_rng(seed + 999)
    search = make(strategy, task.space, seed=seed, budget=budget)
    best, shown, curve, steps = math.inf, math.inf, [], []
    for _ in range(budget):
        began = time.process_time()
        rows = search.ask()
        steps.append(time.process_time() - began)
        if not rows:
            break
        true = task.time(search.pool.config(rows[0]))
        measured = None if true is None else true * max(0.2, 1 + task.noise * rng.standard_normal())
        if true is not None and measured is not None and measured < shown:
            best, shown = true, measured
        curve.append(best)
        search.tell(rows[0], None if measured is None else 1e-3 * measured)
    found = {str(b): curve[min(b, len(curve)) - 1] for b in BUDGETS if b <= budget}
    return {"best": found, "ms": 1e3 * statistics.mean(steps), "longest_ms": 1e3 * max(steps)}


def medians(runs: Mapping[str, Any], kind: str, strategy: str) -> dict[int, float]:
    mine = [r["best"] for name, r in runs.items() if name.startswith(f"{kind}/{strategy}/")]
    return {b: statistics.median(r[str(b)] for r in mine) for b in BUDGETS} if mine else {}


def table(runs: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Medians over the seeds, and bayes over the better of climb and random after 50 and 100 (the bar is 1.02)."""
    some = [s for s in STRATEGIES if any(f"/{s}/" in name for name in runs)]
    lines = [f"{'':28}" + "".join(f"{s + ' @25 / @50 / @100':>26}" for s in some) + f"{'over the better':>18}"]
    for kind in kinds:
        each = {s: medians(runs, kind, s) for s in some}
        cells = [" / ".join(f"{each[s][b]:.3f}" for b in BUDGETS) if each[s] else "-" for s in some]
        over = [against(each, b) for b in BUDGETS[1:]]
        said = " ".join("-" if o is None else f"{o:.3f}{'!' if o > BAR else ' '}" for o in over)
        lines.append(f"{kind:28}" + "".join(f"{c:>26}" for c in cells) + f"{said:>18}")
    return "\n".join(lines)


def against(each: Mapping[str, Mapping[int, float]], budget: int) -> float | None:
    others = [each[s][budget] for s in ("climb", "random") if each.get(s)]
    if not others or not each.get("bayes"):
        return None
    mine, best = each["bayes"][budget], min(others)
    return 1.0 if mine == best else mine / best


def main() -> int:
    parser = argparse.ArgumentParser(description="Score the search strategies on kinds of spaces.")
    parser.add_argument("--kinds", type=lambda t: t.split(","), help="of " + ", ".join(KINDS))
    parser.add_argument("--tables", type=Path, metavar="DIR", help="folder with *.npz and score.py, for the noisy ones")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", type=lambda t: t.split(","), default=list(STRATEGIES))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    kinds = dict(KINDS)
    if options.tables:
        kinds |= {f"noisy {p.stem}": noisy(p) for p in sorted(options.tables.resolve().glob("*.npz"))}
    kinds = {k: v for k, v in kinds.items() if not options.kinds or any(k.startswith(w) for w in options.kinds)}
    document = json.loads(options.out.read_text()) if options.out.exists() else {"schema": 1, "runs": {}}
    runs, saved = document["runs"], time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        for kind, task in kinds.items():
            for strategy in options.only:
                name = f"{kind}/{strategy}/{seed}"
                if name not in runs:
                    runs[name] = play(task(seed), strategy, seed, BUDGETS[-1])
            if time.monotonic() - saved > 10:
                saved = time.monotonic()
                write(options.out, document)
    write(options.out, document)
    print(table(runs, list(kinds)))
    return 0


def write(path: Path, document: dict[str, Any]) -> None:
    document["environment"] = environment()
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
