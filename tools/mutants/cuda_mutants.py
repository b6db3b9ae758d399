"""How many wrong CUDA kernels do the checks find? Generated mutants of texts, of programs between passes, of tables.

    python tools/mutants/cuda_mutants.py [--json] [--save] [--only LAYER] [--kernels TEXT] [--each N] [--jobs 2]

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
import itertools
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import cuda_pass_layer
import cuda_tables
import cuda_text_layer
import cuda_tiles
from cuda_judge import Result, own_folder
from cuda_kernels import KERNELS

from tensorir.intrin.cuda import MULTIPLICATIONS

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "cuda_mutants"
LAYERS = {"text": cuda_text_layer.run_kernel, "passes": cuda_pass_layer.run_kernel, "tables": cuda_tables.run_kernel}
DETECTORS = ("legality", "interpreter", "emulator", "result")


def tasks(only: list[str] | None, each: int | None) -> list[tuple[str, str, int | None]]:
    """Layer, kernel or type, mutants of each kind: the longest first."""
    found = [("passes", k, each) for k in reversed(KERNELS)] + [("text", k, each) for k in reversed(KERNELS)]
    found += [("tables", m, each) for m in (*MULTIPLICATIONS, cuda_tiles.LINED)]
    return [t for t in found if not only or t[0] in only]


def work(task: tuple[str, str, int | None]) -> list[Result]:
    """One task, in a process of its own."""
    with own_folder():
        return LAYERS[task[0]](task[1], task[2])


def summary(results: list[Result]) -> dict[str, Any]:
    """For each layer numbers by kind, reasons, and what survived."""
    return {layer: _layer([r for r in results if r.layer == layer]) for layer in LAYERS
            if any(r.layer == layer for r in results)}  # fmt: skip


def _layer(results: list[Result]) -> dict[str, Any]:
    made = sorted((r for r in results if r.detector != "compiler"), key=lambda r: (r.kind, r.kernel, r.place))
    kinds = {kind: list(group) for kind, group in itertools.groupby(made, key=lambda r: r.kind)}
    return {
        **_counts(made),
        "kernels": dict(collections.Counter(r.kernel for r in made)),
        "refused_by_the_compiler": len(results) - len(made),
        "kinds": {kind: _counts(group) for kind, group in kinds.items()},
        "codes": dict(sorted(collections.Counter(r.code for r in made if r.code).items())),
        "reasons": dict(sorted(collections.Counter(r.reason for r in made if r.reason).items())),
        "survivors": [{"kernel": r.kernel, "kind": r.kind, "place": r.place}
                      for r in made if not r.detector and not r.reason],
    }  # fmt: skip


def _counts(made: list[Result]) -> dict[str, Any]:
    by = collections.Counter(r.detector for r in made if r.detector)
    equivalent = sum(bool(r.reason) for r in made)
    killed = sum(by.values())
    return {"mutants": len(made), "killed": killed, "by": {d: by[d] for d in DETECTORS if by[d]},
            "equivalent": equivalent, "survived": len(made) - killed - equivalent}  # fmt: skip


def added(one: Any, two: Any) -> Any:
    """Two summaries of different kernels as one: numbers are summed, lists are joined."""
    if isinstance(one, dict):
        every = dict.fromkeys((*one, *two))
        return {k: added(one[k], two[k]) if k in one and k in two else one.get(k, two.get(k)) for k in every}
    return one + two


def merged(known: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The layers of both; a layer that both have is of other kernels in each."""
    for layer in known.keys() & found.keys():
        if twice := known[layer].get("kernels", {}).keys() & found[layer]["kernels"].keys():
            raise SystemExit(f"{layer}: {', '.join(sorted(twice))} would count twice; run the whole layer")
    out = added(known, found)
    for layer in out.values():
        layer["kinds"] = dict(sorted(layer["kinds"].items()))
    return {name: out[name] for name in LAYERS if name in out}


def saved(found: dict[str, Any], part: bool, some: bool) -> dict[str, Any]:
    """Write the results. part: of some layers, others keep theirs;  some: of some kernels, which are added."""
    path = RESULTS.with_suffix(".json")
    known = json.loads(path.read_text()) if path.exists() and (part or some) else {}
    found = merged(known, found) if some else {x: (known | found)[x] for x in LAYERS if x in known or x in found}
    path.write_text(json.dumps(found, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(markdown(found))
    return found


def total(found: dict[str, Any], name: str) -> int:
    """A number summed over the layers."""
    return sum(layer[name] for layer in found.values())


def markdown(found: dict[str, Any]) -> str:
    """The tables of the documentation."""
    numbers = " ".join(f"{name} {total(found, name)}" for name in ("mutants", "killed", "equivalent", "survived"))
    refused = total(found, "refused_by_the_compiler")
    out = [f"**{numbers}**" + (f"; {refused} more are no C++ and do not count." if refused else ".")]
    out += ["", "| layer | mutants | " + " | ".join(DETECTORS) + " | equivalent | survived |", "|" + "---|" * 8]
    out += [_row([name], layer) for name, layer in found.items()]
    out += ["", "| layer | kind | mutants | " + " | ".join(DETECTORS) + " | equivalent | survived |", "|" + "---|" * 9]
    out += [_row([name, kind], n) for name, layer in found.items() for kind, n in layer["kinds"].items()]
    reasons: collections.Counter[str] = collections.Counter()
    for layer in found.values():
        reasons.update(layer["reasons"])
    out += ["", "| equivalent, since | mutants |", "|---|---|"]
    out += [f"| {reason} | {n} |" for reason, n in sorted(reasons.items())]
    left = [(name, s) for name, layer in found.items() for s in layer["survivors"]]
    if left:
        out += ["", "| survived in | kind | kernel | place |", "|---|---|---|---|"]
        out += [f"| {name} | {s['kind']} | {s['kernel']} | {_cell(s['place'])} |" for name, s in left]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _row(names: list[str], n: dict[str, Any]) -> str:
    cells = [n["mutants"], *(n["by"].get(d, 0) for d in DETECTORS), n["equivalent"], n["survived"]]
    return "| " + " | ".join([*names, *map(str, cells)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--save",
        action="store_true",
        help=f"write {RESULTS.name}.md and .json; with --only, their part; with --kernels, add to it",
    )
    parser.add_argument("--kernels", default="", metavar="TEXT", help="those whose names contain it")
    parser.add_argument("--only", nargs="*", choices=list(LAYERS), help="layers")
    parser.add_argument("--each", type=int, help="at most this many mutants of each kernel and kind")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    start = time.monotonic()
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for part in pool.imap_unordered(work, [t for t in tasks(given.only, given.each) if given.kernels in t[1]]):
            results += part
            if part:
                left = sum(not r.detector and not r.reason for r in part)
                spent = time.monotonic() - start
                text = f"{spent:5.0f} s  {part[0].layer:7} {part[0].kernel:26} {len(part):4} mutants, {left} survived"
                print(text, file=sys.stderr, flush=True)
    found = summary(results)
    if given.save:
        found = saved(found, bool(given.only), bool(given.kernels))
    print(json.dumps(found, indent=1) if given.json else markdown(found))
    sys.exit(1 if total(found, "survived") else 0)


if __name__ == "__main__":
    main()
