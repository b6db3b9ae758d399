"""Programs of peers without a schedule, against NumPy, SciPy and PyTorch.

    export OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2 OMP_WAIT_POLICY=passive
    export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8589934592
    python benchmarks/peers_programs.py                     # goes on with benchmarks/results/peers_programs.jsonl
    python benchmarks/peers_programs.py --only 'topk|moe'   # these again
    python benchmarks/peers_programs.py --told              # only what the file says

``programs/`` declares them, each with its formulations. Automatic schedules on C and on PoCL and all formulations,
two threads each, are compared, then take turns in rounds of one slot each. Columns: kernels, microseconds of ours on
the faster device, microseconds of NumPy and of the best peer, their ratios to ours (above 1 ours is faster) with the
95 % interval of the rounds, and the same of processor time. See rows.py for the settings of the environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "automatic")]

from measuring import aligned, environment, seconds  # noqa: E402
from programs import PROGRAMS, Inputs  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "peers_programs.jsonl"
DEVICES = ("c:0", "opencl:pocl")
MODULES = ("triton", "tilelang", "topi", "others")
SEED = 41


def listed(result: Any) -> list[np.ndarray]:
    """Arrays of one result or several, of NumPy or PyTorch."""
    found = result if isinstance(result, (tuple, list)) else [result]
    narrow = (torch.bfloat16, torch.float8_e4m3fn)
    return [a.float().numpy() if getattr(a, "dtype", None) in narrow else np.asarray(a) for a in found]


def compare(name: str, got: Any, want: Any, may_differ: float) -> None:
    """Raise where results differ: whole numbers at all, but for a share of them; floats by more than rounding gives."""
    got, want = listed(got), listed(want)
    assert len(got) == len(want), f"{name}: {len(got)} results, not {len(want)}"
    for a, b in zip(got, want, strict=True):
        assert a.size == b.size, f"{name}: {a.shape}, not {b.shape}"
        a = a.reshape(b.shape)
        if a.dtype.kind in "iub":
            if np.mean(a != b) > may_differ:
                np.testing.assert_array_equal(a, b, err_msg=name)
            continue
        loose = 2e-2 if a.itemsize < 4 or b.itemsize < 4 else 1e-3
        a, b = a.astype("float64"), b.astype("float64")
        np.testing.assert_allclose(a, b, rtol=loose, atol=loose * max(1e-30, float(np.abs(b).mean())), err_msg=name)


def formulations(peers: dict[str, Callable[..., Any]], arrays: list[np.ndarray]) -> dict[str, Callable[[], Any]]:
    """Calls of the peers, each on arrays of its kind."""
    tensors = [torch.from_numpy(a) if a.dtype.kind != "V" and a.dtype.name in TORCH else a for a in arrays]
    return {name: partial(f, *(tensors if name.startswith("torch") else arrays)) for name, f in peers.items()}


TORCH = {"float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool"}


def row(name: str, rounds: int, seed: int, devices: tuple[str, ...]) -> dict[str, Any]:
    """Microseconds of ours and of the others, and how they compare."""
    given = Inputs(seed)
    outputs, peers = PROGRAMS[name](given)
    arrays = {n: aligned(a) for n, a in given.arrays.items()}
    theirs = formulations(peers, list(arrays.values()))
    want = theirs["numpy"]()
    for peer, call in theirs.items():
        compare(peer, call(), want, given.may_differ)
    ours: dict[str, Any] = {}
    out: dict[str, Any] = {"program": name, "seed": seed, "kernels": {}, "schedule_s": {}, "notes": {}, "stated_us": {}}
    for device in devices:
        begin = time.perf_counter()
        s = tir.auto_schedule(outputs, open_device(device).target)
        kernel = s.build(device)
        out["schedule_s"][device] = round(time.perf_counter() - begin, 2)
        own = [arrays[p.name] for p in kernel.emitted.inputs]
        compare(device, kernel(*own), want, given.may_differ)
        ours[device] = kernel.bind(*own)
        out["kernels"][device] = len(kernel.emitted.kernels)
        out["notes"][device] = [str(note) for note in s.expected.notes]
        out["stated_us"][device] = round(s.expected.seconds * 1e6, 1)
    calls = {**ours, **theirs}
    turns = Rounds([(c, seconds(c)) for c in calls.values()], range(len(ours), len(calls)))
    for _ in range(rounds):
        turns.run()
    samples = dict(zip(calls, turns.samples, strict=True))
    cpu = {n: seconds(c, 8, time.process_time) for n, c in calls.items()}
    best = {of: min(of, key=lambda n: middle(samples[n])[0]) for of in (tuple(ours), tuple(theirs))}
    mine, peer = best[tuple(ours)], best[tuple(theirs)]
    out |= {"ours": mine, "best": peer, "us": {n: round(1e6 * middle(s)[0], 2) for n, s in samples.items()}}
    out["cpu_us"] = {n: round(1e6 * s, 2) for n, s in cpu.items()}
    for key, other in (("numpy", "numpy"), ("peer", peer)):
        ratio = middle([t / o for t, o in zip(samples[other], samples[mine], strict=True)])
        out[f"by_{key}"] = [round(x, 3) for x in ratio]
        out[f"cpu_by_{key}"] = round(cpu[other] / cpu[mine], 3) if cpu[mine] else None
    return out


def line(r: dict[str, Any]) -> str:
    if "error" in r:
        return f"{r['program']:34} {r['error'][:120]}"
    us, mine = r["us"], r["ours"]
    others = " ".join(f"{d} {us[d]:.0f}/{r['kernels'][d]}" for d in r["kernels"])
    ratio = "{:6.2f} [{:.2f}, {:.2f}]".format(*r["by_peer"])
    return (
        f"{r['program']:34} {r['kernels'][mine]:3} {us[mine]:9.1f} {us['numpy']:9.1f} {r['by_numpy'][0]:7.2f}  "
        f"{r['best']:14} {us[r['best']]:9.1f} {ratio}  "
        f"cpu {r['cpu_by_numpy'] or 0:.2f} {r['cpu_by_peer'] or 0:.2f}  {others}"
    )


def told(rows: dict[str, dict[str, Any]]) -> str:
    """Rows by their ratio to the best peer, and geometric means."""
    good = sorted((r for r in rows.values() if "error" not in r), key=lambda r: r["by_peer"][0])
    lines = [line(r) for r in (*(r for r in rows.values() if "error" in r), *good)]
    if good:
        for key in ("numpy", "peer"):
            mean = math.exp(np.mean([math.log(r[f"by_{key}"][0]) for r in good]))
            below = ", ".join(f"{sum(r[f'by_{key}'][0] < bar for r in good)} below {bar}" for bar in (0.7, 1.0))
            lines.append(f"{len(good)} programs, geometric mean by {key} {mean:.2f}; {below}")
    return "\n".join(lines)


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The last row of each program."""
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {r["program"]: r for r in rows if "program" in r}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression: these programs again")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--devices", type=lambda t: tuple(t.split(",")), default=DEVICES)
    parser.add_argument("--seconds", type=float, default=5000.0, help="stop then; the next call goes on")
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.told:
        print(told(load(options.out)))
        return
    torch.set_num_threads(2)
    for module in MODULES:
        importlib.import_module(f"programs.{module}")
    print(f"seed {options.seed}", flush=True)
    done = {} if options.only else load(options.out)
    chosen = [name for name in PROGRAMS if re.search(options.only, name) and "us" not in done.get(name, {})]
    end, found = time.monotonic() + options.seconds, environment(("torch", "ml_dtypes"))
    with options.out.open("a", encoding="utf-8") as file:
        if chosen:
            print(json.dumps({"environment": found | {"load": os.getloadavg()[0]}, "seed": options.seed}), file=file)
        for name in chosen:
            if time.monotonic() > end:
                break
            try:
                made = row(name, options.rounds, options.seed, options.devices)
            except (AssertionError, tir.TensorIRError, RuntimeError, TypeError, ValueError) as error:
                made = {"program": name, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(made), file=file, flush=True)
            print(line(made), flush=True)


if __name__ == "__main__":
    main()
