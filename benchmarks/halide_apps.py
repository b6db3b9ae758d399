"""Halide's apps, untuned, against Halide's own autoschedulers on two threads.

    pip install halide                                       # the wheel has the autoschedulers
    python benchmarks/halide_apps.py                         # goes on with benchmarks/results/halide_apps.jsonl
    python benchmarks/halide_apps.py --only harris --again   # one app, measured anew
    python benchmarks/halide_apps.py --told                  # only what the file says

Each app is declared twice, from what it computes: ``apps/declared.py``, ``apps/pipelines.py``. Ours is scheduled by
``tir.auto_schedule`` for a C and an OpenCL device; theirs by Adams2019, Mullapudi2016 and Li2018. All results are
compared first, integers exactly (one in a thousand may differ where floats are rounded to them). Then all take turns, a
slot each in a round; ``ratio`` is the median of the rounds' ratios, of the fastest of theirs by the faster of ours (by
medians), with its 95 % interval: above 1 ours is faster. Processor times are medians, threads together.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
os.environ["HL_NUM_THREADS"] = str(THREADS)  # read once, by the first pipeline

import halide as hl  # noqa: E402
import numpy as np  # noqa: E402
from apps import declared, pipelines  # noqa: E402
from measuring import aligned, environment, seconds  # noqa: E402

import tensorir as tir  # noqa: E402
from tensorir.expr.program import inputs_of  # noqa: E402
from tensorir.runtime.device import open_device  # noqa: E402
from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "halide_apps.jsonl"
DEVICES = ("c:0", "opencl:pocl")
SCHEDULERS = ("Adams2019", "Mullapudi2016", "Li2018")
SEED = 20261130
MARGIN = 64
LONG_SEARCHES = ("interpolate", "nl_means", "stencil_chain", "bilateral_grid")
"""Apps for which Adams2019 keeps one schedule in its search in place of 32, with which it takes many minutes."""
FLOOR, GOAL, LEAST_FLOOR, LEAST_GOAL = 1.2, 1.6, 0.7, 0.9


def drawn(inputs: Any) -> list[np.ndarray]:
    """Inputs of an app: integers up to 1000 (or what the type holds), floats in [0, 1)."""
    rng = np.random.default_rng(SEED)
    return [
        aligned(rng.random(t.shape, "float32") if t.dtype == "float32"
                else rng.integers(0, min(1000, np.iinfo(t.dtype).max), t.shape).astype(t.dtype))
        for t in inputs
    ]  # fmt: skip


def scheduled_by_halide(
    which: str, formulation: Any, arrays: list[np.ndarray], result: np.ndarray, margin: int = 0
) -> tuple[Callable[[], Any], np.ndarray]:
    """(call, its result) of a formulation with an autoscheduler's schedule.

    margin: zeros around the rows and columns of inputs, for schedules whose tiles end beyond the image
    """
    params = [hl.ImageParam(hl.Buffer(a).type(), a.ndim, f"a{n}") for n, a in enumerate(arrays)]
    kept = []  # Halide refers to their memory
    for p, a in zip(params, arrays, strict=True):
        p.set_estimates([(0, n) for n in reversed(a.shape)])
        around = [(margin, margin) if n >= a.ndim - 2 else (0, 0) for n in range(a.ndim)]
        kept.append(aligned(np.pad(a, around)))
        image = hl.Buffer(kept[-1])
        image.set_min([-before for before, _ in reversed(around)])
        p.set(image)
    f = formulation(*params)
    f.set_estimates([(0, n) for n in reversed(result.shape)])
    pipeline, target = hl.Pipeline(f), hl.get_jit_target_from_environment()
    greedy = {"beam_size": "1"} if which == "Adams2019" and formulation.__name__ in LONG_SEARCHES else {}
    pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(which, {"parallelism": str(THREADS), **greedy}))
    pipeline.compile_jit(target)
    out = aligned(np.zeros_like(result))
    buffer = hl.Buffer(out)
    kept.append(out)

    def call() -> None:
        assert kept
        pipeline.realize(buffer)

    call()
    return call, out


def candidates(name: str) -> tuple[dict[str, Callable[[], Any]], dict[str, Any]]:
    """Calls of all that is compared, each of a right result, and what else is known of them."""
    outputs = getattr(declared, name)()
    arrays = drawn(inputs_of([outputs]))
    calls: dict[str, Callable[[], Any]] = {}
    facts: dict[str, Any] = {"shape": list(outputs.shape), "kernels": {}, "expected_ms": {}, "failed": {}}
    want = None
    for text in DEVICES:
        device = open_device(text)
        began = time.perf_counter()
        s = tir.auto_schedule(outputs, device.target)
        facts["schedule_s"] = round(time.perf_counter() - began, 2)
        facts["kernels"][text] = len(s.emitted().kernels)
        facts["expected_ms"][text] = round(1e3 * s.expected.seconds, 3)
        kernel = s.build(device)
        got = np.asarray(kernel(*arrays))
        same(got, got if want is None else want, text)
        want, calls[text] = got.copy(), kernel.bind(*arrays)
    assert want is not None
    for formulation in pipelines.FORMULATIONS[name]:
        for which in SCHEDULERS:
            label = which if formulation.__name__ == name else f"{which} {formulation.__name__}"
            print(f"  {label}", file=sys.stderr, flush=True)
            for margin in (0, MARGIN):
                try:
                    call, out = scheduled_by_halide(which, formulation, arrays, want, margin)
                except hl.HalideError as e:
                    facts["failed"][label] = str(e).strip().splitlines()[0][:120]
                    continue
                facts["failed"].pop(label, None)
                same(out, want, label)
                calls[label] = call
                break
    return calls, facts


def same(got: np.ndarray, want: np.ndarray, label: str) -> None:
    """Compare results: floats closely, integers exactly, but for one in a thousand that floats were rounded to."""
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4, err_msg=label)
    else:
        assert (got != want).mean() <= 1e-3, f"{label}: {(got != want).mean():.2%} of {want.size} integers differ"


def row(name: str, rounds: int) -> dict[str, Any]:
    """Times and ratios of an app."""
    calls, facts = candidates(name)
    rough = {label: seconds(call, 3) for label, call in calls.items()}
    least = min(t for label, t in rough.items() if label not in DEVICES)
    kept = [label for label in calls if label in DEVICES or rough[label] < 2 * least]
    turns, processor = Rounds([(calls[label], rough[label]) for label in kept]), {label: [] for label in kept}
    for _ in range(rounds):
        turns.run()
        for label in kept:
            processor[label].append(seconds(calls[label], 2, time.process_time))
    times = {label: 1e3 * middle(t)[0] for label, t in zip(kept, turns.samples, strict=True)}
    ours = min(DEVICES, key=times.__getitem__)
    theirs = min((label for label in kept if label not in DEVICES), key=times.__getitem__)
    pairs = zip(*(turns.samples[kept.index(label)] for label in (theirs, ours)), strict=True)
    ratio, low, high = middle([t / o for t, o in pairs])
    return {
        "app": name, **facts, "ratio": round(ratio, 3), "low": round(low, 3), "high": round(high, 3), "ours": ours,
        "theirs": theirs, "ms": {label: round(t, 4) for label, t in times.items()},
        "processor_ms": {label: round(1e3 * middle(t)[0], 3) for label, t in processor.items()},
        "left_out_ms": {label: round(1e3 * t, 2) for label, t in rough.items() if label not in kept},
    }  # fmt: skip


def told(rows: dict[str, dict[str, Any]]) -> str:
    """A line for each app, then the bars."""
    lines = []
    for r in sorted(rows.values(), key=lambda r: r.get("ratio", 0)):
        if "error" in r:
            lines.append(f"{r['app']:20} {r['error']}")
            continue
        ours, theirs = r["ours"], r["theirs"]
        lines.append(
            f"{r['app']:20} {r['ratio']:6.2f} [{r['low']:.2f}, {r['high']:.2f}]  ours {r['ms'][ours]:8.3f} ms ({ours}; "
            + ", ".join(f"{d} {r['ms'][d]:.3f} in {r['kernels'][d]} kernels" for d in DEVICES)
            + f")  theirs {r['ms'][theirs]:8.3f} ({theirs})  processor ms {r['processor_ms'][ours]:.2f}, "
            f"{r['processor_ms'][theirs]:.2f}"
        )
    ratios = [r["ratio"] for r in rows.values() if "ratio" in r]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"{len(ratios)} apps: geometric mean {mean:.2f} (floor {FLOOR}, goal {GOAL}), least {min(ratios)} "
                     f"(floor {LEAST_FLOOR}, goal {LEAST_GOAL})")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(pipelines.FORMULATIONS), action="append")
    parser.add_argument("--again", action="store_true", help="also what the file has")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--told", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = {r["app"]: r for r in map(json.loads, lines)}
    for name in [] if options.told else options.only or list(pipelines.FORMULATIONS):
        if name in rows and not options.again:
            continue
        print(f"{name} (seed {SEED})", file=sys.stderr, flush=True)
        try:
            rows[name] = row(name, options.rounds)
        except Exception as e:  # a finding too
            rows[name] = {"app": name, "error": f"{type(e).__name__}: {e}"[:400]}
        rows[name]["environment"] = environment(("halide",)) | {"load": round(os.getloadavg()[0], 1)}
        options.out.write_text("".join(json.dumps(r) + "\n" for r in rows.values()), encoding="utf-8")
    print(told(rows))


if __name__ == "__main__":
    libraries = Path(hl.__file__).parent / "lib64"
    for scheduler in SCHEDULERS:
        hl.load_plugin(str(libraries / f"libautoschedule_{scheduler.lower()}.so"))
    main()
