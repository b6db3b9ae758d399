"""Time the gallery's schedules, and README's first one, beside NumPy and PyTorch.

    export OMP_WAIT_POLICY=passive  # PyTorch's threads spin between calls and would take our cores
    python benchmarks/gallery/run.py                       # all, where torch can be imported with it
    python benchmarks/gallery/run.py --only argmax,readme --rounds 9     # rows of others stay

Each kernel is checked, compared with NumPy's result and then timed in turn with the libraries, in rounds of one slot
each (``tensorir.runtime.estimate``): ours as a bound launch, theirs as they are called. Ratios are medians of the
rounds' ratios with their 95 % intervals; the machine should have nothing else to do. Writes
benchmarks/results/gallery.json and gallery.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from gallery import NAMES  # noqa: E402
from measuring import environment, seconds  # noqa: E402

from tensorir.runtime.estimate import Rounds, middle  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "gallery.json"
FLOOR = 1 / 1.2
BARRED = ("layer_norm", "max_pool", "depthwise_1d", "quantised_linear", "batched_matmul", "masked_dilated", "argmax",
          "matmul")  # fmt: skip
"""Operators that are to be within 1.2 of the best library; the others need more of the language."""


def readme() -> Any:
    """README's first block as a module of the gallery."""
    names: dict[str, Any] = {}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    exec(found[1], names)
    product = lambda a, b: a @ b  # noqa: E731
    return SimpleNamespace(schedule=lambda: names["auto"], inputs=lambda: (names["a"], names["b"]), by_numpy=product,
                           by_torch=product, TOLERANCE=1e-4, __doc__="README's first schedule.")  # fmt: skip


def libraries(module: Any, inputs: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {"numpy": partial(module.by_numpy, *inputs)}
    if hasattr(module, "by_scipy"):
        found["scipy"] = partial(module.by_scipy, *inputs)
    try:
        import torch
    except ImportError:
        return found
    return found | {"torch": partial(module.by_torch, *(torch.from_numpy(x) for x in inputs))}


def timed(name: str, rounds: int) -> dict[str, Any]:
    """One row: microseconds of ours, and of each library with the interval of its time over ours."""
    module = readme() if name == "readme" else importlib.import_module(f"gallery.{name}")
    schedule, inputs = module.schedule(), module.inputs()
    verdict = schedule.check()
    assert verdict, verdict
    kernel = schedule.build()
    peers = libraries(module, inputs)
    got, tolerance = kernel(*inputs), getattr(module, "TOLERANCE", 0.0)
    for peer in peers.values():
        np.testing.assert_allclose(got, np.asarray(peer()), rtol=tolerance, atol=tolerance)
    bound = kernel.bind(*inputs)
    calls = [(c, seconds(c)) for c in (bound, *peers.values())]
    turns = Rounds(calls, range(1, len(calls)))
    for _ in range(rounds):
        turns.run()
    ours, *theirs = turns.samples
    row: dict[str, Any] = {"what": (module.__doc__ or "").splitlines()[0], "us": 1e6 * middle(ours)[0], "peers": {}}
    for peer, slots in zip(peers, theirs, strict=True):
        ratio, low, high = middle([t / o for t, o in zip(slots, ours, strict=True)])
        row["peers"][peer] = {"us": 1e6 * middle(slots)[0], "ratio": ratio, "low": low, "high": high}
    row["ratio"] = min(p["ratio"] for p in row["peers"].values())
    print(f"{name:18} {row['us']:9.1f} us", {n: round(p["ratio"], 2) for n, p in row["peers"].items()}, flush=True)
    return row


def table(document: dict[str, Any]) -> str:
    """As Markdown."""
    rows = document["rows"]
    names = sorted({p for r in rows.values() for p in r["peers"]})
    lines = [
        "| operator | ours, us | " + " | ".join(f"{n} / ours" for n in names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for name, row in rows.items():
        cells = [
            f"{p['ratio']:.2f} [{p['low']:.2f}, {p['high']:.2f}]" if (p := row["peers"].get(n)) else "" for n in names
        ]
        lines.append(f"| {name.replace('_', ' ')} | {row['us']:.0f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n\n" + document["note"] + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda t: t.split(","), default=["readme", *NAMES])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else {}
    now = {name: timed(name, options.rounds) for name in options.only}
    rows = {name: (before | now)[name] for name in ("readme", *NAMES) if name in before | now}
    found = environment()
    versions = {"numpy": np.__version__}
    if "torch" in sys.modules:
        versions["torch"] = sys.modules["torch"].__version__
    core = os.environ.get("OPENBLAS_CORETYPE")
    said = ", ".join(f"{k} {v}" for k, v in versions.items())
    taken = (
        f"{os.cpu_count()} cores, {said}{f', OpenBLAS as for {core}' if core else ''}, load {os.getloadavg()[0]:.1f}"
    )
    note = "Time of the library over ours in the same rounds, medians with 95 % intervals; last run: "
    note += f"{', '.join(now)}: {taken}."
    document = {"schema": 1, "environment": found | {"versions": versions, "openblas_coretype": core}, "rows": rows,
                "note": note}  # fmt: skip
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".md").write_text(table(document), encoding="utf-8")
    slow = [n for n in BARRED if n in rows and rows[n]["ratio"] < FLOOR]
    print("slower than 1.2 times the best library:", ", ".join(slow) or "none")


if __name__ == "__main__":
    main()
