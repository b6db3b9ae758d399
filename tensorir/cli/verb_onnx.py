"""tensorir onnx: what of a model there are kernels for, and a model that calls them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from tensorir.api.identity import command_for
from tensorir.api.shape_set import tune_set
from tensorir.api.workload import Workload
from tensorir.cli import common, onnx_replace
from tensorir.cli.chosen import Chosen, recorded
from tensorir.cli.common import put, put_json, say, usage
from tensorir.cli.onnx_replace import Plan
from tensorir.export.shipped import build
from tensorir.ops.onnx_nodes import fix_dims, graph_of, others
from tensorir.target import Target
from tensorir.tune.spec import RunSpec

TOLERANCE = 1e-4
"""What --test allows, relative to the largest value of an output."""


def run(model: Path, replace: bool, output: Path | None, dim: tuple[str, ...], tune: bool, budget: float | None,
        device: str | None, untuned: bool, test: bool, log: str, as_json: bool) -> int:  # fmt: skip
    """Say for which nodes of an ONNX MODEL kernels are on record; with --replace, write a model that calls them."""
    if replace != (output is not None):
        raise usage("--replace writes a model: it needs -o OUT" if replace else "-o OUT is for --replace")
    if test and not replace:
        raise usage("--test compares what --replace writes")
    if not tune and (budget is not None or device is not None):
        raise usage("--budget and --device are for --tune")
    if output is not None and not output.name:
        raise usage(f"-o {output} names no file", f"-o {model.stem}_tir.onnx")
    if output is not None and output.suffix == ".kernels":
        raise usage(f"{output} is the name of the folder of the kernels", f"-o {output.stem}.onnx")
    if output is not None and output.resolve() == model.resolve():
        raise usage(f"{output} is the model itself", f"-o {model.stem}_tir.onnx")
    read = onnx_replace.read(model)
    graph = graph_of(read, _dims(dim, read))
    known: dict[str, Chosen | None] = {}

    def on_record(work: Workload) -> Chosen | None:
        if work.title not in known:
            known[work.title] = _recorded(work, log)
        return known[work.title]

    made = onnx_replace.plan(graph, on_record)
    if tune and made.missing:
        _tune(list(made.missing.values()), device, budget or 60.0, log)
        for title in made.missing:
            del known[title]
        made = onnx_replace.plan(graph, on_record)
    if untuned:
        made = onnx_replace.plan(graph, on_record, default=True)
    rows = _rows(made)
    written = onnx_replace.write(made, output) if output is not None else None
    document = _document(made, rows if written is None else _rows(made), model, output, written)
    code = common.OK
    if test and output is not None:
        code, document["test"] = _compare(model, output, written or {})
    put_json(document) if as_json else put(_text(document))
    return code


def _dims(given: tuple[str, ...], model: Any) -> dict[str, int]:
    made = {}
    for text in given:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or not 0 < int(size) < 1 << 40:
            raise usage(f"--dim {text!r:.60} is not NAME=SIZE", "--dim batch=1")
        made[name] = int(size)
    known = fix_dims(model, {})
    for name in made:
        if name not in known:
            raise common.no_such("symbolic extent", name, sorted(known))
    return made


def _recorded(work: Workload, log: str) -> Chosen | None:
    """The best record for processors: of C, else of OpenCL, whose schedule is then lowered to C."""
    return recorded(work, Target.parse("c"), log) or recorded(work, Target.parse("opencl"), log)


def _tune(works: list[Workload], device: str | None, budget: float, log: str) -> None:
    """Tune workloads under one budget, the operators one after another."""
    where = device or ("c:0" if build.compiler() else None)
    say(f"tuning {len(works)} workloads for {budget:.0f} s on {where or 'the first device'}")
    counts = Counter(work.name for work in works)
    for name, count in counts.items():
        spec = RunSpec(budget_s=budget * count / len(works), log=log, started=time.monotonic())
        found = tune_set([w for w in works if w.name == name], None, where, spec)
        for r in found.results:
            if r.outcome is None:
                say(f"left out {r.work.title}: {r.refused or 'no time'}")


def _rows(made: Plan) -> list[dict[str, Any]]:
    """The kernels that nodes take, and the nodes that are left, alike ones in one row."""
    taken = [
        {"workload": k.work.title, "nodes": [made.labels[n] for n, (_, of) in made.taken.items() if of is k],
         "tuned": bool(k.chosen and k.chosen.tuned), "template": k.chosen.template if k.chosen else None,
         "time_s": k.chosen.record.time_s if k.chosen and k.chosen.record else None, "folder": k.name}
        for k in made.kernels
    ]  # fmt: skip
    left: dict[str, dict[str, Any]] = {}
    for number, found in sorted(made.left.items()):
        row = left.setdefault(found.why, {"nodes": [], "left": found.why, "code": found.code})
        row["nodes"].append(made.labels[number])
    commands = [command_for(work) for work in made.missing.values()]
    return [*taken, *left.values(), *([{"missing": commands}] if commands else [])]


def _document(made: Plan, rows: list[dict[str, Any]], model: Path, output: Path | None, written: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"schema": 1, "model": str(model)}
    found["kernels"] = [r for r in rows if "workload" in r]
    found["left"] = [r for r in rows if "left" in r]
    found["missing"] = next((r["missing"] for r in rows if "missing" in r), [])
    if written is None:
        found["others"] = dict(others(made.graph))
        return found
    about = written["onnxruntime"]
    path = Path(written["folder"]) / about["library"]
    library = str(path) if found["kernels"] else None
    if library and not path.exists():
        say(f"{path} is not there: this machine has no C compiler; where there is one, {path.with_name('build.py')}"
            " makes it")  # fmt: skip
    return {**found, "output": str(output), "folder": written["folder"], "library": library, "domain": about["domain"]}


def _text(document: dict[str, Any]) -> str:
    """The document for people."""
    total = sum(len(r["nodes"]) for r in document["kernels"])
    lines = [f"{document['model']}: {total} nodes {'replaced' if 'output' in document else 'have kernels'}"]
    for row in document["kernels"]:
        how = f"{row['time_s'] * 1e3:.4g} ms" if row["time_s"] else "not tuned"
        lines.append(f"  {len(row['nodes'])} x {row['workload']}  ({row['template']}, {how})")
    for row in document["left"]:
        shown = ", ".join(row["nodes"][:4]) + (f" and {len(row['nodes']) - 4} more" if len(row["nodes"]) > 4 else "")
        lines += [f"left {len(row['nodes'])}: {row['left']} [{row['code']}]", f"  {shown}"]
    if document["missing"]:
        lines += ["to have them on record (or --tune; --untuned takes default schedules):"]
        lines += [f"  {words}" for words in document["missing"]]
    if document.get("others"):
        lines += ["never replaced: " + ", ".join(f"{n} {name}" for name, n in document["others"].items())]
    if "output" in document:
        lines += [f"wrote {document['output']} and {document['folder']}"]
    if document.get("library"):
        lines += [f"run it with options.register_custom_ops_library({document['library']!r})"]
    for name, error in document.get("test", {}).items():
        lines += [f"{name}: {error:.2g} of its largest value off"]
    return "\n".join(lines)


def _compare(model: Path, output: Path, written: dict[str, Any]) -> tuple[int, dict[str, float]]:
    library = Path(written["folder"]) / written["onnxruntime"]["library"]
    found = onnx_replace.compared(model, output, library if written.get("operators") else None)
    wrong = [name for name, error in found.items() if not error <= TOLERANCE]
    for name in wrong:
        say(f"{name} is wrong: it differs by {found[name]:.2g} of its largest value, {TOLERANCE:g} is allowed")
    return common.WRONG if wrong else common.OK, found
