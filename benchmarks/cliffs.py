"""Cliffs of untuned schedules: drawn declarations, each default against the best that a short search finds.

    python benchmarks/cliffs.py --count 200                 # goes on with benchmarks/results/cliffs.jsonl
    python benchmarks/cliffs.py --count 400 --model         # the model's best of all templates, nothing is timed
    python benchmarks/cliffs.py --only 17 --seed 20261130   # one declaration, with the texts of its best and default
    python benchmarks/cliffs.py --told                      # only what the file says

Declaration ``n`` of a seed is of a kind (maps, pairs, masks, integers, gathers, windows, reductions, scans, histograms,
products, attention, chains) and of a size, with few cells, one row or odd extents among them, and runs on a C and an
OpenCL device in turn. Every template's default is timed, then configurations drawn from their spaces, at most 24 and
20 s; the three best and the untuned one are timed again in turn. ``ratio``: time of the untuned schedule by that of the
best; ``stated``: seconds that ``s.expected`` says by those measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import environment

import tensorir as tir
from tensorir.errors import TensorIRError
from tensorir.expr.program import inputs_of
from tensorir.runtime.device import open_device

RESULTS = Path(__file__).parent / "results" / "cliffs.jsonl"
TRIALS, SECONDS, ROUNDS = 24, 20.0, 15
SIZES = {"small": 1 << 14, "medium": 1 << 18, "large": 1 << 22}
"""Operations of a declaration, about."""
BATCH_S = 0.002
ODD = (1, 2, 3, 5, 7, 13, 31, 97, 251)


def placed(*shape: int, name: str, dtype: str = "float32") -> tir.Tensor:
    return tir.placeholder(shape, dtype, name=name)


def sides(r: random.Random, cells: int, dims: int) -> tuple[int, ...]:
    """Extents with some ``cells`` cells, one of them odd or small now and then."""
    if dims == 1:
        return (max(1, cells + r.choice((0, 0, 1, -3))),)
    last = r.choice((*ODD, 16, 64, 100, 256, 1000, max(1, cells // r.choice((1, 2, 3)))))
    last = max(1, min(last, cells))
    return (*sides(r, max(1, cells // last), dims - 1), last)


def maps(r: random.Random, work: int) -> tir.Tensor:
    shape = sides(r, work // 4, r.choice((1, 2, 3)))
    a, b = placed(*shape, name="a"), placed(*shape, name="b")
    f = r.choice((lambda x, y: x * 2.0 + y, lambda x, y: tir.exp(x) / (1.0 + y * y), tir.maximum))
    return tir.compute(shape, lambda *i: f(a[i], b[i]), name="y")


def pairs(r: random.Random, work: int) -> Any:
    shape = sides(r, work // 4, r.choice((1, 2)))
    a, b = placed(*shape, name="a"), placed(*shape, name="b")
    return tir.compute(shape, lambda *i: (a[i] + b[i], a[i] - b[i] * 0.5), name="y")


def masks(r: random.Random, work: int) -> tir.Tensor:
    size, reach = max(8, math.isqrt(work // 49)), 3
    x, u, v = placed(size + 6, size + 6, name="x"), tir.reduce_axis(7, name="u"), tir.reduce_axis(7, name="v")
    inside = (u - reach) * (u - reach) + (v - reach) * (v - reach) <= reach * reach
    combine, other = r.choice(((tir.sum, 0.0), (tir.max, -1e30)))
    return tir.compute(
        (size, size), lambda i, j: combine(tir.where(inside, x[i + u, j + v], other), axis=[u, v]), name="y"
    )


def integers(r: random.Random, work: int) -> tir.Tensor:
    dtype, by = r.choice(("int32", "uint32", "uint8", "int64")), r.choice((3, 4, 10, 16, 7))
    a, what = placed(work // 4, name="a", dtype=dtype), r.choice(("divide", "choose", "bits"))

    def cell(i: Any) -> Any:
        if what == "divide":
            return a[i] // by + a[i] % by
        return tir.where(a[i] > by, a[i], a[i] * 2) if what == "choose" else (a[i] >> 1) ^ (a[i] & by)

    return tir.compute((work // 4,), cell, name="y")


def gathers(r: random.Random, work: int) -> tir.Tensor:
    rows, width = max(4, work // 256), r.choice((1, 3, 16, 64, 100))
    table, at = placed(1000, width, name="table"), placed(rows, name="at", dtype="int32")
    return tir.compute((rows, width), lambda i, j: table[tir.minimum(tir.maximum(at[i], 0), 999), j] * 2.0, name="y")


def windows(r: random.Random, work: int) -> tir.Tensor:
    taps = r.choice((3, 5, 9, 33))
    n, rows = max(8, work // taps // r.choice((1, 8, 64))), r.choice((1, 2, 8, 64))
    x, w, k = placed(rows, n + taps, name="x"), placed(taps, name="w"), tir.reduce_axis(taps, name="k")
    return tir.compute((rows, n), lambda i, j: tir.sum(x[i, j + k] * w[k], axis=k), name="y")


def reductions(r: random.Random, work: int) -> tir.Tensor:
    rows = r.choice((1, 3, 64, 1000))
    terms = max(8, work // rows)
    k, across = tir.reduce_axis(terms, name="k"), r.random() < 0.5
    x = placed(*((terms, rows) if across else (rows, terms)), name="x")
    combine = r.choice((tir.sum, tir.max))
    return tir.compute((rows,), lambda i: combine(x[k, i] if across else x[i, k], axis=k), name="y")


def scans(r: random.Random, work: int) -> tir.Tensor:
    return tir.scan(placed(work // 4, name="x"), op="sum", name="y")


def histograms(r: random.Random, work: int) -> tir.Tensor:
    n, bins = work // 4, r.choice((16, 256))
    at = placed(n, name="at", dtype="uint8")
    where = (lambda t: (tir.cast(at[t], "int32"),)) if bins == 256 else (lambda t: (tir.cast(at[t] // 16, "int32"),))
    return tir.scatter((bins,), over=(n,), index=where, value=lambda t: 1, op="sum", name="y")


def products(r: random.Random, work: int) -> tir.Tensor:
    m, n = (r.choice((*ODD, 16, 64, 128, 300)) for _ in range(2))
    k = max(4, 8 * work // (m * n))
    a, tb = placed(m, k, name="a"), r.random() < 0.4
    return tir.nn.matmul(a, placed(*((n, k) if tb else (k, n)), name="b"), tb=tb, name="y")


def attention(r: random.Random, work: int) -> tir.Tensor:
    heads, queries, depth = r.choice((1, 8)), r.choice((1, 4, 16, 64)), r.choice((16, 64))
    keys = max(16, 4 * work // (heads * queries * depth))
    shapes = {"q": queries, "k": keys, "v": keys}
    return tir.nn.attention(*(placed(1, heads, n, depth, name=name) for name, n in shapes.items()))


def chains(r: random.Random, work: int) -> Any:
    if r.random() < 0.5:
        n = work // 32
        c = placed(n, name="c")
        z = tir.compute((n,), lambda i: (c[i], c[i] * 0.5), name="z0")
        for t in range(1, 8):
            z = tir.compute((n,), lambda i, z=z: (z[0][i] * z[0][i] - z[1][i], z[0][i] * z[1][i] + c[i]), name=f"z{t}")
        return z
    side = r.choice((4, 5, 16, 32))
    n = max(1, work // (side * side * 12))
    y = placed(n, side, side, name="x")
    for t in range(3):
        k = [tir.reduce_axis(side, name=f"k{t}{s}") for s in "rc"]
        s = tir.compute((n, side), lambda b, i, y=y, k=k: tir.sum(y[b, i, k[0]], axis=k[0]), name=f"r{t}")
        y = tir.compute((n, side, side), lambda b, i, j, y=y, s=s: y[b, i, j] / s[b, i], name=f"a{t}")
        s = tir.compute((n, side), lambda b, j, y=y, k=k: tir.sum(y[b, k[1], j], axis=k[1]), name=f"c{t}")
        y = tir.compute((n, side, side), lambda b, i, j, y=y, s=s: y[b, i, j] / s[b, j], name=f"b{t}")
    return y


KINDS: tuple[Callable[[random.Random, int], Any], ...] = (
    maps, pairs, masks, integers, gathers, windows, reductions, scans, histograms, products, attention, chains,
)  # fmt: skip


def drawn(seed: int, number: int) -> tuple[str, str, Any, str]:
    """(kind, size, outputs, device) of declaration ``number`` of a seed."""
    r = random.Random(f"{seed} {number}")
    kind, size = KINDS[number % len(KINDS)], list(SIZES)[number // len(KINDS) % len(SIZES)]
    return kind.__name__, size, kind(r, SIZES[size]), ("c:0", "opencl:pocl")[number // 2 % 2]


def candidates(outputs: Any, target: tir.Target, r: random.Random) -> Iterator[tuple[str, Any]]:
    """(template and configuration, schedule): every template's default, then configurations drawn in turn."""
    found = dict(tir.auto(outputs, target))
    spaces = {name: t.space_for(target) for name, t in found.items()}
    order: list[tuple[str, Any]] = [(name, space.default) for name, space in spaces.items()]
    rows = {name: r.sample(range(len(s.legal)), min(TRIALS, len(s.legal))) for name, s in spaces.items()}
    for turn in range(TRIALS):
        order += [(name, spaces[name].config(some[turn])) for name, some in rows.items() if turn < len(some)]
    for name, config in order:
        s = tir.Schedule(outputs, target)
        try:
            yield f"{name} {json.dumps(config)}", found[name].function(s, dict(config)) or s
        except TensorIRError:
            continue


class Timed:
    """A schedule, built for a device and bound to arrays."""

    def __init__(self, name: str, s: Any, device: str, arrays: list[np.ndarray]) -> None:
        self.name = name
        self.call = s.build(device, limit_s=10).bind(*arrays)
        self.best = min(self.seconds(1) for _ in range(3))
        self.times = max(1, int(BATCH_S / max(self.best, 1e-7)))
        self.best = min(self.best, self.seconds(self.times))

    def seconds(self, times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            self.call()
        self.call.finish()
        return (time.perf_counter() - begin) / times


def measured(outputs: Any, device: str, seed: str) -> dict[str, Any]:
    """Seconds of the default and the best of a short search."""
    target, end = open_device(device).target, time.monotonic() + SECONDS
    untuned = tir.auto_schedule(outputs, target)
    rng = np.random.default_rng(0)
    arrays = [
        (rng.random(a.shape) if a.dtype == "float32" else rng.integers(0, 100, a.shape)).astype(a.dtype)
        for a in inputs_of(untuned.definition)
    ]
    first = Timed("untuned", untuned, device, arrays)
    texts, tried = {untuned.source()}, [first]
    for name, s in candidates(outputs, target, random.Random(seed)):
        if len(tried) > TRIALS or time.monotonic() > end:
            break
        try:
            if (text := s.source()) in texts:
                continue
            texts.add(text)
            tried.append(Timed(name, s, device, arrays))
        except TensorIRError:
            continue
    last = [first, *sorted((t for t in tried if t is not first), key=lambda t: t.best)[:3]]
    rounds = [[t.seconds(t.times) for t in last] for _ in range(ROUNDS)]
    medians = [statistics.median(row[n] for row in rounds) for n in range(len(last))]
    best = min(range(len(last)), key=medians.__getitem__)
    e = untuned.expected
    return {
        "ratio": round(medians[0] / medians[best], 3), "us": round(medians[0] * 1e6, 2), "best": last[best].name,
        "stated": round(e.seconds / medians[0], 3), "limit": e.limit, "notes": list(e.notes), "trials": len(tried),
    }  # fmt: skip


def modelled(outputs: Any, device: str) -> dict[str, Any]:
    """The model's seconds of the default, by those of the best default of all templates."""
    target = open_device(device).target
    default, found = tir.auto_schedule(outputs, target).expected.seconds, {}
    for name, template in tir.auto(outputs, target).items():
        s = tir.Schedule(outputs, target)
        try:
            found[name] = (template.function(s, dict(template.space_for(target).default)) or s).expected.seconds
        except TensorIRError:
            continue
    best = min(found, key=found.__getitem__)
    return {"ratio": round(default / min(default, found[best]), 3), "us": round(default * 1e6, 2), "best": best}


def told(rows: list[dict[str, Any]]) -> str:
    """Median, percentiles and the worst rows."""
    ratios = sorted(r["ratio"] for r in rows if "ratio" in r)
    if not ratios:
        return "no rows"
    at = [ratios[min(len(ratios) - 1, int(q * len(ratios)))] for q in (0.5, 0.95, 0.99, 1.0)]
    lines = [f"{len(ratios)} of {len(rows)} rows; untuned by best: median, p95, p99, worst {at}"]
    stated = [r["stated"] for r in rows if r.get("us", 0) > 20 and "stated" in r]
    if stated:
        good = sum(0.5 <= s <= 2 for s in stated) / len(stated)
        lines.append(f"stated within a factor of two: {good:.0%} of {len(stated)} above 20 us")
    lines += [json.dumps(r) for r in sorted(rows, key=lambda r: -r.get("ratio", 1e9))[:8]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--seconds", type=float, default=5000.0, help="stop then; the next call goes on")
    parser.add_argument("--only", type=int)
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.told:
        print(told(rows))
        return
    done, end = {(r["seed"], r["number"], r["model"]) for r in rows}, time.monotonic() + options.seconds
    for number in range(options.count) if options.only is None else [options.only]:
        if (options.seed, number, options.model) in done and options.only is None:
            continue
        if time.monotonic() > end:
            break
        kind, size, outputs, device = drawn(options.seed, number)
        row = {"seed": options.seed, "number": number, "model": options.model, "kind": kind, "size": size,
               "device": device}  # fmt: skip
        try:
            row |= modelled(outputs, device) if options.model else measured(outputs, device, f"{options.seed} {number}")
        except Exception as e:  # a finding too
            row["error"] = f"{type(e).__name__}: {e}"[:300]
        print(json.dumps(row), flush=True)
        rows.append(row)
        if options.only is None:
            with options.out.open("a") as file:
                file.write(json.dumps(row if number else {**row, "environment": environment()}) + "\n")
    print(told([r for r in rows if r["seed"] == options.seed and r["model"] == options.model]), file=sys.stderr)


if __name__ == "__main__":
    main()
