"""How many wrong CUDA kernels do the checks find? Generated mutants of texts, of programs between passes, of tables.

    python benchmarks/mutants/cuda_mutants.py [--json] [--save] [--only LAYER] [--each N] [--jobs 2]

Layers:

* *text*: the emitted CUDA text of small kernels of every class, changed in one place and run by the emulator;
* *passes*: the program behind a pass, changed in one place; the rest of lowering, then the interpreter, then the
  emulator on the text that comes out;
* *tables*: what is declared of an instruction for tensor cores; the interpreter believes it, the emulator does not.

Places are all those to which a kind of change applies, or a sample with a seed. A mutant that survives the first shape
meets the second. What survives both is *equivalent* only when an experiment of its own says why (``cuda_reasons``).
Text that the C++ compiler refuses is counted by itself and no mutant.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cuda_pass_layer
import cuda_tables
import cuda_text_layer
from cuda_judge import Result, own_folder
from cuda_kernels import KERNELS

from tensorir.intrin.cuda import MULTIPLICATIONS

RESULTS = Path(__file__).parents[1] / "results" / "cuda_mutants"
LAYERS = {"text": cuda_text_layer.run_kernel, "passes": cuda_pass_layer.run_kernel, "tables": cuda_tables.run_kernel}
DETECTORS = ("legality", "interpreter", "emulator", "result")


def tasks(only: list[str] | None, each: int | None) -> list[tuple[str, str, int | None]]:
    """Layer, kernel or type, mutants of each kind: the longest first."""
    found = [("passes", k, each) for k in reversed(KERNELS)] + [("text", k, each) for k in reversed(KERNELS)]
    found += [("tables", m, each) for m in MULTIPLICATIONS]
    return [t for t in found if not only or t[0] in only]


def work(task: tuple[str, str, int | None]) -> list[Result]:
    """One task, in a process of its own."""
    with own_folder():
        return LAYERS[task[0]](task[1], task[2])


def summary(results: list[Result]) -> dict[str, Any]:
    """Numbers by layer and kind, reasons, and what survived."""
    made = [r for r in results if r.detector != "compiler"]
    order = list(LAYERS)
    groups: dict[tuple[str, str], list[Result]] = {}
    for r in sorted(made, key=lambda r: (order.index(r.layer), r.kind)):
        groups.setdefault((r.layer, r.kind), []).append(r)
    return {
        "schema": 1,
        **_counts(made),
        "refused_by_the_compiler": len(results) - len(made),
        "layers": {layer: _counts([r for r in made if r.layer == layer]) for layer in LAYERS},
        "kinds": [{"layer": layer, "kind": kind, **_counts(group)} for (layer, kind), group in groups.items()],
        "codes": dict(sorted(collections.Counter(r.code for r in made if r.code).items())),
        "reasons": dict(sorted(collections.Counter(r.reason for r in made if r.reason).items())),
        "survivors": [{k: v for k, v in asdict(r).items() if k in ("layer", "kernel", "kind", "place")}
                      for r in made if not r.detector and not r.reason],
    }  # fmt: skip


def _counts(made: list[Result]) -> dict[str, Any]:
    by = collections.Counter(r.detector for r in made if r.detector)
    equivalent = sum(bool(r.reason) for r in made)
    killed = sum(by.values())
    return {"mutants": len(made), "killed": killed, "by": {d: by[d] for d in DETECTORS if by[d]},
            "equivalent": equivalent, "survived": len(made) - killed - equivalent}  # fmt: skip


def markdown(found: dict[str, Any]) -> str:
    """The tables of the documentation."""
    out = [_line(found)]
    out += ["", "| layer | mutants | " + " | ".join(DETECTORS) + " | equivalent | survived |", "|" + "---|" * 8]
    for layer, n in found["layers"].items():
        out.append(_row([layer], n))
    out += ["", "| layer | kind | mutants | " + " | ".join(DETECTORS) + " | equivalent | survived |", "|" + "---|" * 9]
    out += [_row([row["layer"], row["kind"]], row) for row in found["kinds"]]
    out += ["", "| equivalent, since | mutants |", "|---|---|"]
    out += [f"| {reason} | {n} |" for reason, n in found["reasons"].items()]
    if found["survivors"]:
        out += ["", "| survived | kernel | place |", "|---|---|---|"]
        out += [f"| {s['kind']} | {s['kernel']} | {_cell(s['place'])} |" for s in found["survivors"]]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _line(n: dict[str, Any]) -> str:
    said = f"mutants {n['mutants']} killed {n['killed']} equivalent {n['equivalent']} survived {n['survived']}"
    return f"**{said}**, and {n['refused_by_the_compiler']} that the C++ compiler refused"


def _row(names: list[str], n: dict[str, Any]) -> str:
    cells = [n["mutants"], *(n["by"].get(d, 0) for d in DETECTORS), n["equivalent"], n["survived"]]
    return "| " + " | ".join([*names, *map(str, cells)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}.md and .json beside the results")
    parser.add_argument("--only", nargs="*", choices=list(LAYERS), help="layers")
    parser.add_argument("--each", type=int, help="at most this many mutants of each kernel and kind")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    start = time.monotonic()
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for part in pool.imap_unordered(work, tasks(given.only, given.each)):
            results += part
            if part:
                left = sum(not r.detector and not r.reason for r in part)
                spent = time.monotonic() - start
                text = f"{spent:5.0f} s  {part[0].layer:7} {part[0].kernel:26} {len(part):4} mutants, {left} survived"
                print(text, file=sys.stderr, flush=True)
    found = summary(sorted(results, key=lambda r: (r.layer, r.kernel, r.kind, r.place)))
    text = markdown(found)
    print(json.dumps(found, indent=1) if given.json else text)
    if given.save:
        RESULTS.with_suffix(".md").write_text(text)
        RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if found["survived"] else 0)


if __name__ == "__main__":
    main()
