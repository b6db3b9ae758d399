"""Scans of 2^24 elements on CPUs: the bandwidth that they reach, over that of a copy.

    python benchmarks/scans.py                                   # five scans, PoCL and c:0, both schedules
    python benchmarks/scans.py --devices c:0 --only cumsum,ema --rounds 25 --out scans.json

Two schedules (examples/gallery/cumsum.py): ``lanes`` scans vectors one after another, ``tiles`` shares tiles among the
cores. Both are checked, compared with NumPy's double-precision result, and timed in turn with a copy by a kernel of the
same device and one by NumPy, in rounds of one slot each. The bandwidth of a scan is that of the arrays that it has to
read and write, and the copies' is that of two arrays; ratios are medians of the rounds' ratios with their 95 %
intervals: at 1 a scan is as fast as a copy of its arrays. ``lanes`` runs on one core and copies of a device on all: the
machine should have nothing else to do, and the load is written with the results. The least processor times are what
other work changes least: by them ``cores`` is the bandwidth over the copy's where a scan's cores (one, or all for
``tiles``) run at once. Writes benchmarks/results/scans.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from gallery import cumsum  # noqa: E402
from measuring import environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "scans.json"
CORES = os.cpu_count() or 1
DECAY = 0.75


def affine(after: tuple[Any, Any], before: tuple[Any, Any]) -> tuple[Any, Any]:
    return after[0] * before[0], after[1] * before[0] + before[1]


MAPS = tir.combiner(affine, (1.0, 0.0), name="affine", commutative=False)


def declared(name: str, n: int) -> tuple[Any, int]:
    """The outputs of a scan of ``n`` elements, and how many arrays it reads and writes."""
    A, B = tir.placeholder((n,), name="A"), tir.placeholder((n,), name="B")
    if name == "affine":
        return tir.scan((A, B), op=MAPS, name="S"), 4
    if name == "ema":
        D = tir.compute((n,), lambda i: DECAY, name="D")
        E = tir.compute((n,), lambda i: A[i] * (1 - DECAY), name="E")
        return tir.scan((D, E), op=MAPS, name="S")[1], 2
    return tir.scan(A, op={"cumsum": "sum", "cumprod": "prod", "maximum": "max"}[name], name="S"), 2


def by_numpy(name: str, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """The same in double precision."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    if name in ("cumsum", "cumprod", "maximum"):
        return [{"cumsum": np.cumsum, "cumprod": np.cumprod, "maximum": np.maximum.accumulate}[name](a)]
    from scipy.signal import lfilter

    if name == "ema":
        return [lfilter([1 - DECAY], [1, -DECAY], a)]
    signs = np.cumprod(a)  # the factors are 1 and -1
    return [signs, signs * np.cumsum(b * signs)]


def copy(n: int, target: Any, device: str) -> Any:
    A = tir.placeholder((n,), name="A")
    s = tir.Schedule(tir.compute((n,), lambda i: A[i], name="C"), target=target)
    o, _, i = s.split("C.i", [64, None, 16])
    return s.bind(o, "block.x").vectorize(i).build(device)


def processor_ms(call: Any, times: int = 5) -> float:
    """The least processor time of a call, of all threads."""
    return 1e3 * seconds(call, times, time.process_time)


def timed(name: str, device: str, n: int, rounds: int) -> dict[str, Any]:
    """One row: bandwidth of each schedule over that of the copies."""
    target = open_device(device).target  # with the vector registers of this processor
    rng = np.random.default_rng(0)
    whole, signs = rng.integers(-3, 4, n).astype("float32"), rng.choice([-1, 1], n).astype("float32")
    a, b = (signs if name in ("cumprod", "affine") else whole), whole  # exact, but for moving averages
    inline = ("D", "E") if name == "ema" else ()
    want, calls = by_numpy(name, a, b), {}
    for form in ("lanes", "tiles"):
        ordered = {"ordered": name in ("affine", "ema")} if form == "tiles" else {}
        lanes = 8 if name == "maximum" else 16  # a step of which is several instructions
        made = partial(cumsum.FORMS[form], inline=inline, lanes=lanes, **ordered)
        assert made(tir.Schedule(declared(name, 1 << 15)[0], target=target)).check()
        outputs, arrays = declared(name, n)
        f = made(tir.Schedule(outputs, target=target)).build(device)
        given = (a, b)[: arrays // 2]
        got = f(*given)
        for x, y in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 if name == "ema" else 0)
        calls[form] = f.bind(*given)
    calls["copy"] = copy(n, target, device).bind(a)
    calls["numpy.copyto"] = partial(np.copyto, np.empty_like(a), a)
    turns = Rounds([(c, seconds(c, 3)) for c in calls.values()], range(3, 4))
    for _ in range(rounds):
        turns.run()
    samples = dict(zip(calls, turns.samples, strict=True))
    row: dict[str, Any] = {"scan": name, "device": device, "elements": n, "ms": {}, "bandwidth over": {}}
    row["processor ms"] = {form: processor_ms(c) for form, c in calls.items()}
    copied, cores = row["processor ms"]["copy"] / CORES, {"lanes": 1, "tiles": CORES}
    row["cores"] = {f: arrays / 2 * copied / (row["processor ms"][f] / n) for f, n in cores.items()}
    for form, slots in samples.items():
        row["ms"][form] = 1e3 * middle(slots)[0]
    for form in ("lanes", "tiles"):
        over = {}
        for peer in ("copy", "numpy.copyto"):
            ratios = [arrays / 2 * t / o for t, o in zip(samples[peer], samples[form], strict=True)]
            over[peer] = dict(zip(("ratio", "low", "high"), middle(ratios), strict=True))
        row["bandwidth over"][form] = over
        told = ", ".join(f"{p} {r['ratio']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" for p, r in over.items())
        print(
            f"{name:8} {device:7} {form:6} {row['ms'][form]:6.2f} ms, over {told}, cores {row['cores'][form]:.2f}",
            flush=True,
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", type=lambda t: t.split(","), default=["cumsum", "cumprod", "maximum", "affine", "ema"]
    )
    parser.add_argument("--devices", type=lambda t: t.split(","), default=["opencl", "c:0"])
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = [timed(name, d, options.elements, options.rounds) for name in options.only for d in options.devices]
    found = environment() | {"load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({"schema": 1, "environment": found, "rows": rows}, indent=1) + "\n",
                           encoding="utf-8")  # fmt: skip


if __name__ == "__main__":
    main()
