"""tensorir onnx: the nodes of a model with kernels on record, and a model that calls them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files as resources
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

from tensorir._package import PACKAGE_VERSION
from tensorir.api.export_shapes import about_record
from tensorir.api.identity import command_for
from tensorir.api.shape_set import tune_set
from tensorir.api.shipping import part_of_work
from tensorir.api.workload import Workload
from tensorir.cli import common
from tensorir.cli.choice import Chosen, recorded
from tensorir.cli.common import put, put_json, say, usage
from tensorir.codec import small_file
from tensorir.codegen.names import identifier
from tensorir.errors import TensorIRError, refuse
from tensorir.export.doors import program_of
from tensorir.export.folder import export_part
from tensorir.export.onnx_operators import OnnxOperator, glue
from tensorir.export.options import MAX_MANIFEST
from tensorir.export.program import ExportError
from tensorir.export.shipped import build
from tensorir.ir.tree import Var
from tensorir.ops.onnx_nodes import Left, Match, OnnxGraph, candidates, domains, fix_dims, graph_of, others
from tensorir.runtime.host import target_here
from tensorir.target import Target
from tensorir.tune.spec import RunSpec
from tensorir.tune.template import template_on

FOLDER_FORMAT = "tensorir-onnx"
MODEL_MARK = "tensorir"
"""Key of the metadata of a model that we wrote."""
MAX_MODEL_BYTES = 1 << 31
"""Bytes of a message of protocol buffers; weights of larger models are stored next to them."""
TEST_TOLERANCE = 1e-4
"""The tolerance of --test, relative to the largest value of an output."""


def run(model: Path, replace: bool, output: Path | None, dim: tuple[str, ...], tune: bool, budget: float | None,
        device: str | None, untuned: bool, test: bool, log: str, as_json: bool) -> int:  # fmt: skip
    """Print which nodes of an ONNX MODEL have kernels on record; with --replace, write a model that calls them. Returns
    the exit code.
    """
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
    loaded = load_model(model)
    graph = graph_of(loaded, _dims(dim, loaded))
    known: dict[str, Chosen | None] = {}

    def on_record(work: Workload) -> Chosen | None:
        if work.title not in known:
            known[work.title] = _recorded(work, log)
        return known[work.title]

    made = plan(graph, on_record)
    if tune and made.missing:
        _tune(list(made.missing.values()), device, budget or 60.0, log)
        for title in made.missing:
            del known[title]
        made = plan(graph, on_record)
    if untuned:
        made = plan(graph, on_record, default=True)
    rows = _rows(made)
    written = write(made, output) if output is not None else None
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
    """Best record for CPUs: one in C, else one in OpenCL, which is lowered to C; None without either."""
    return recorded(work, Target.parse("c"), log) or recorded(work, Target.parse("opencl"), log)


def _tune(works: list[Workload], device: str | None, budget: float, log: str) -> None:
    """Tune workloads, operator by operator; ``budget`` seconds are divided by their numbers of workloads."""
    where = device or ("c:0" if build.compiler() else None)
    say(f"tuning {len(works)} workloads for {budget:.0f} s on {where or 'the first device'}")
    counts = Counter(work.name for work in works)
    for name, number in counts.items():
        spec = RunSpec(budget_s=budget * number / len(works), log=log, started=time.monotonic())
        found = tune_set([w for w in works if w.name == name], None, where, spec)
        for r in found.results:
            if r.outcome is None:
                say(f"left out {r.work.title}: {r.refused or 'no time'}")


def _rows(made: ReplacementPlan) -> list[dict[str, Any]]:
    """JSON rows: one per kernel with the nodes it replaces, one per reason with the nodes that stay, and one with the
    commands that would tune missing workloads.
    """
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


def _document(
    made: ReplacementPlan, rows: list[dict[str, Any]], model: Path, output: Path | None, written: Any
) -> dict[str, Any]:
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
    """Human-readable text of the command's JSON document."""
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
    found = compared(model, output, library if written.get("operators") else None)
    wrong = [name for name, error in found.items() if not error <= TEST_TOLERANCE]
    for name in wrong:
        say(f"{name} is wrong: it differs by {found[name]:.2g} of its largest value, {TEST_TOLERANCE:g} is allowed")
    return common.WRONG_RESULT if wrong else common.OK, found


@dataclass
class NodeKernel:
    """The kernel for all nodes of one workload.

    chosen: None without a record, if no default was requested
    count:  number of nodes it replaces
    name:   of its folder and operator
    """

    work: Workload
    chosen: Chosen | None
    count: int = 0
    name: str = ""

    @property
    def record(self) -> str | None:
        """Id of the kernel's record; None if it has none."""
        return str(self.chosen.record.id) if self.chosen is not None and self.chosen.record else None


@dataclass
class ReplacementPlan:
    """Decision for each node: ``taken`` {node number: (match, kernel)}, ``left`` {node number: reason}.

    joined:  numbers of nodes that the kernel of an earlier node computes too
    missing: workloads, by title, that would need a record;  labels: readable name of each node
    """

    graph: OnnxGraph
    taken: dict[int, tuple[Match, NodeKernel]] = field(default_factory=dict)
    left: dict[int, Left] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    kernels: list[NodeKernel] = field(default_factory=list)
    missing: dict[str, Workload] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Derive a readable name for each node."""
        self.labels = [f"{n.op_type} {n.name or n.output[0]}" for n in self.graph.nodes]

    def take(self, match: Match, kernel: NodeKernel) -> None:
        """Assign ``kernel`` to the node of ``match`` and to the following nodes that the match includes."""
        self.taken[match.node] = match, kernel
        self.joined.update(match.taken)
        kernel.count += 1

    def operators(self) -> dict[str, tuple[Match, NodeKernel]]:
        """{operator name: (match, kernel)} of the new model, one entry per kernel and shapes."""
        made: dict[str, tuple[Match, NodeKernel]] = {}
        for number in self.taken:
            made.setdefault(self.operator(number), self.taken[number])
        return made

    def operator(self, number: int) -> str:
        """Name of the new operator for the node ``number``: the kernel's, followed by tensor shapes if the node's
        differ from the kernel's.
        """
        match, kernel = self.taken[number]
        shapes = [*(shape for _, shape in match.inputs), match.output[1]]
        own = [tuple(t.shape) for t in (*kernel.work.inputs, *kernel.work.outputs) if not isinstance(t, Var)]
        if shapes == own:
            return kernel.name
        return f"{kernel.name}_{'_'.join('x'.join(map(str, s)) or '1' for s in shapes)}"


def load_model(path: Path) -> Any:
    """The ONNX model in a file. Raises ExportError ``onnx.model`` if it is unreadable, damaged or without nodes,
    ``onnx.missing`` without the package onnx.
    """
    onnx = package("onnx")
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise refuse(ExportError, "onnx.model", f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # protocol buffers have several classes for it
        words = " ".join(str(error).split())
        raise refuse(ExportError, "onnx.model", f"{path} is no ONNX model, or is damaged: {words:.300}") from None
    if not model.graph.node:
        raise refuse(ExportError, "onnx.model", f"{path} is no ONNX model: it has no nodes")
    graph = model.graph
    made = {"", *(v.name for v in (*graph.input, *graph.initializer))} | {
        w.values.name for w in graph.sparse_initializer
    }
    for node in graph.node:
        if unknown := [name for name in node.input if name not in made]:
            message = (
                f"{path} is damaged: {node.op_type} {node.name} reads {unknown[0]!r}, which nothing before it makes"
            )
            raise refuse(ExportError, "onnx.model", message[:400])
        made.update(node.output)
    return model


def package(name: str) -> Any:
    """Import a package that ``tensorir[onnx]`` installs; raises ExportError ``onnx.missing``."""
    try:
        return import_module(name)
    except ImportError as error:
        message = f"tensorir onnx needs the package {name}, which cannot be imported: {error!s:.200}"
        raise refuse(ExportError, "onnx.missing", message, hint='pip install "tensorir[onnx]"') from None


def plan(graph: OnnxGraph, choose: Callable[[Workload], Chosen | None], default: bool = False) -> ReplacementPlan:
    """Plan the replacement of a graph's nodes: each gets the kernel on record that covers most nodes from it on.

    choose:  function from a workload to its kernel on record, or None
    default: True: without a record, take the default schedule in C; False: leave the node, as ``onnx.not-tuned``
    """
    made = ReplacementPlan(graph)
    kernels: dict[str, NodeKernel] = {}
    wanted = set[int]()  # what follows would be joined by nodes that are not on record
    for number, found in candidates(graph):
        if isinstance(found, Left):
            made.left[number] = found
            continue
        works = [(m, _kernel(kernels, m, choose)) for m in found if made.joined.isdisjoint(m.taken)]
        known = next(((m, kernel) for m, kernel in works if kernel.record is not None), None)
        match, kernel = known or next(w for w in works if wanted.isdisjoint(w[0].taken))
        if known is None:
            wanted.update(match.taken)
            made.missing.setdefault(kernel.work.title, kernel.work)
            if not default:
                made.left[number] = Left(number, "onnx.not-tuned", "not on record")
                continue
            kernel.chosen = kernel.chosen or _default(kernel.work)
        made.take(match, kernel)
    made.kernels = [k for k in kernels.values() if k.count]
    counts = Counter[str]()
    for kernel in made.kernels:
        counts[kernel.work.name] += 1
        kernel.name = f"{kernel.work.name}_{counts[kernel.work.name]}"
    return made


def _kernel(known: dict[str, NodeKernel], match: Match, choose: Callable[[Workload], Chosen | None]) -> NodeKernel:
    """The kernel for the workload of ``match``, chosen once per workload and kept in ``known`` by title."""
    work = match.work()
    if work.title not in known:
        known[work.title] = NodeKernel(work, choose(work))
    return known[work.title]


def _default(work: Workload) -> Chosen:
    target = target_here("c")
    name = work.template_for(target)
    return Chosen(name, template_on(work.templates, name, target).space_for(target).default, target)


def write(made: ReplacementPlan, out: Path) -> dict[str, Any]:
    """Write the new model ``out`` and its kernel folder ``OUT.kernels``; return the folder's manifest.

    The folder holds, for each kernel, a folder as ``tensorir export --to c`` writes it, and one library with all
    kernels (only its sources without a C compiler). Nodes whose kernel cannot be lowered to C move from ``made.taken``
    to ``made.left``; the model of ``made.graph`` is rewritten.

    Raises ExportError ``onnx.exists`` for files that this command did not write, ``export.unwritable``,
    ``export.library`` if compiling fails.
    """
    folder = out.with_suffix(".kernels")
    _need_ours(out, folder)
    scratch = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        (kernels := scratch / "kernels").mkdir()
        _export(made, kernels)
        stem = identifier(out.stem)
        manifest = _library(made, kernels, stem, _unused(f"tensorir.{stem}", made.graph.model))
        _rewrite(made, manifest["onnxruntime"]["domain"])
        files = _save(made.graph.model, scratch / out.name)
        if folder.exists():
            shutil.rmtree(folder)
        kernels.rename(folder)
        for file in files:
            file.replace(out.parent / file.name)
    except OSError as error:
        message = f"cannot write {out} and {folder}: {error.strerror or error}"
        raise refuse(ExportError, "export.unwritable", message, hint="another -o OUT") from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return {**manifest, "folder": str(folder)}


def _need_ours(out: Path, folder: Path) -> None:
    """Raise ExportError ``onnx.exists`` if the model or the folder exists and no earlier run of this command wrote
    it.
    """
    for path, ours in ((out, _our_model), (folder, _our_folder)):
        if (path.exists() or path.is_symlink()) and not ours(path):
            message = f"{path} is there and tensorir onnx did not write it"
            raise refuse(ExportError, "onnx.exists", message, hint="another -o OUT")


def _our_model(path: Path) -> bool:
    try:
        model = package("onnx").load(str(path), load_external_data=False)
    except (OSError, ValueError):  # a folder, for one
        return False
    except Exception:  # no model: protocol buffers have several classes for it
        return False
    return any(entry.key == MODEL_MARK for entry in model.metadata_props)


def _our_folder(folder: Path) -> bool:
    try:
        about = json.loads(small_file(folder / "manifest.json", MAX_MANIFEST))
        known = {"manifest.json", *about["holds"]} if about.get("format") == FOLDER_FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(known) and not {p.name for p in folder.iterdir()} - known - {"__pycache__"}


def _export(made: ReplacementPlan, scratch: Path) -> None:
    """Export each kernel to a folder below ``scratch``; nodes whose kernel has no C form move to ``made.left``."""
    for kernel in list(made.kernels):
        work, chosen = kernel.work, kernel.chosen
        assert chosen is not None
        about = {"workload": work.title, "config": chosen.config, "template": chosen.template,
                 "record": None if chosen.record is None else about_record(chosen.record)}  # fmt: skip
        try:
            part = part_of_work(work, chosen.template, chosen.config, chosen.target, about)
            export_part(part, scratch / kernel.name, ["c"], name=kernel.name)
        except TensorIRError as error:
            made.kernels.remove(kernel)
            for number in [n for n, (_, k) in made.taken.items() if k is kernel]:
                problem = error.problems[0]
                made.left[number] = Left(number, problem.code, f"its kernel is no C: {problem.message}")
                made.joined.difference_update(made.taken.pop(number)[0].taken)


def _unused(domain: str, model: Any) -> str:
    """``domain``, or ``domain_2``, ``domain_3`` …: the first operator domain that the model does not use."""
    known = {o.domain for o in model.opset_import} | set(domains(model.graph))
    return next(d for n in count(1) if (d := domain if n == 1 else f"{domain}_{n}") not in known)


def _library(made: ReplacementPlan, scratch: Path, stem: str, domain: str) -> dict[str, Any]:
    """Compile all kernels into one library in ``scratch``, write its manifest and return it."""
    operators = made.operators()
    own = [_operator(name, match, kernel, scratch) for name, (match, kernel) in operators.items()]
    about: dict[str, Any] = {
        "format": FOLDER_FORMAT,
        "version": 1,
        "made_by": f"tensorir {PACKAGE_VERSION}",
        "onnxruntime": {"library": f"lib{stem}.so", "domain": domain},
        "operators": [
            {"op": name, "workload": kernel.work.title, "folder": kernel.name, "record": kernel.record}
            for name, (_, kernel) in operators.items()
        ],
    }  # fmt: skip
    sources = [f"{k.name}/{k.name}.{end}" for k in made.kernels for end in ("c", "h")]
    if own:
        (scratch / "operators.c").write_text(glue(domain, own), encoding="utf-8")
        about["library"] = {"file": f"lib{stem}.so", "sources": [*sources, "operators.c"]}
        (scratch / "build.py").write_bytes(resources("tensorir.export.shipped").joinpath("build.py").read_bytes())
    about["holds"] = [p.name for p in scratch.iterdir()] + ([f"lib{stem}.so"] if own else [])
    about["sha256"] = {name: hashlib.sha256((scratch / name).read_bytes()).hexdigest() for name in sources}
    (scratch / "manifest.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    command = build.compiler()
    if own and command is not None:
        contents = {Path(name).name: (scratch / name).read_bytes() for name in about["library"]["sources"]}
        try:
            (scratch / f"lib{stem}.so").write_bytes(build.compiled(command, contents))
        except (RuntimeError, subprocess.SubprocessError) as error:
            message = f"the library of the kernels cannot be made: {error}"[:600]
            raise refuse(ExportError, "export.library", message, hint="CC=clang, or another compiler") from None
    return about


def _operator(name: str, match: Match, kernel: NodeKernel, scratch: Path) -> Any:
    """Description of the custom operator ``name``, which calls ``kernel``, with the model's tensor shapes."""
    manifest = json.loads((scratch / kernel.name / "manifest.json").read_text(encoding="utf-8"))
    shapes = [*(shape for _, shape in match.inputs), match.output[1]]
    return OnnxOperator.of(name, kernel.name, program_of(manifest), shapes)


def _rewrite(made: ReplacementPlan, domain: str) -> None:
    """Replace matched nodes of the graph by calls of the new operators; each call is where the last node of its match
    was.
    """
    from onnx import NodeProto, helper

    model = made.graph.model
    place = {max((number, *match.taken)): number for number, (match, _) in made.taken.items()}
    kept = []
    known = {v.name for v in (*model.graph.value_info, *model.graph.output)}
    for number, node in enumerate(model.graph.node):
        if number in place:
            match, kernel = made.taken[place[number]]
            name, shape = match.output
            own = made.operator(match.node)
            inputs, label = [name for name, _ in match.inputs], model.graph.node[match.node].name
            kept.append(helper.make_node(own, inputs, [name], label, kernel.work.title, domain))
            if name not in known:
                kind = made.graph.values[match.inputs[0][0]].type
                model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
        elif number not in made.taken and number not in made.joined:
            kept.append(NodeProto())
            kept[-1].CopyFrom(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    if made.taken:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    marks = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {**marks, MODEL_MARK: PACKAGE_VERSION})


def _save(model: Any, out: Path) -> list[Path]:
    """Write the model; return its files, the main one last. Models near protobuf's size limit get a second file for
    weights.
    """
    import onnx

    size = sum(len(w.raw_data) or 8 * prod(w.dims) for w in model.graph.initializer)
    if size < MAX_MODEL_BYTES * 0.9:
        onnx.save(model, str(out))
        return [out]
    onnx.save(model, str(out), save_as_external_data=True, location=f"{out.name}.data")
    return [out.with_name(f"{out.name}.data"), out]


def compared(path: Path, out: Path, library: Path | None, seed: int = 0) -> dict[str, float]:
    """{output name: ``apart`` of its values} for two models run by ONNX Runtime on the same random inputs.

    library: custom operators that the model ``out`` calls, None without any
    Raises ExportError: ``onnx.model`` for a model that does not load or run, or has an output without finite values;
    ``onnx.dtype``, ``onnx.missing``, ``export.library`` if the library is not there.
    """
    import numpy as np

    ort = package("onnxruntime")

    def session(where: Path, own: Path | None) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if own is not None:
            options.register_custom_ops_library(str(own.resolve()))
        try:
            return ort.InferenceSession(str(where), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of classes without a common one
            message = f"onnxruntime does not take {where}: {' '.join(str(error).split()):.400}"
            raise refuse(ExportError, "onnx.model", message, hint="without --test") from None

    if library is not None and not library.exists():
        message = f"--test needs {library}, and there is no C compiler here to make it with"
        raise refuse(ExportError, "export.library", message, hint="without --test")
    old, new = session(path, None), session(out, library)
    rng = np.random.default_rng(seed)
    given = {i.name: _random(rng, i) for i in new.get_inputs()}
    names = [o.name for o in old.get_outputs()]
    results = []
    for where, run in ((path, old), (out, new)):
        try:
            results.append(run.run(names, given))
        except Exception as error:  # of classes without a common one
            message = f"{where} does not run on random inputs: {' '.join(str(error).split()):.400}"
            raise refuse(ExportError, "onnx.model", message, hint="without --test") from None
    for name, a in zip(names, results[0], strict=True):
        if not _comparable(a):
            message = f"{name} of {path} has no finite values for random inputs: nothing can be compared"
            raise refuse(ExportError, "onnx.model", message, hint="without --test")
    return {name: apart(a, b) for name, a, b in zip(names, *results, strict=True)}


def _comparable(a: Any) -> bool:
    """False if a result has floats and all of them are infinite or NaN; else True."""
    import numpy as np

    if isinstance(a, list | dict):
        return not a or any(map(_comparable, a.values() if isinstance(a, dict) else a))
    floats = isinstance(a, np.ndarray) and a.dtype.kind == "f"
    return not floats or not a.size or bool(np.isfinite(a).any())


def apart(a: Any, b: Any) -> float:
    """Largest absolute difference of two results of ONNX Runtime, divided by the largest finite absolute value of ``a``
    (by 1 if that is 0); of lists and dicts the largest over their items.

    Infinite for different types, shapes, keys or texts, or if just one of the results has a NaN or infinity somewhere.
    """
    import numpy as np

    if isinstance(a, dict) and isinstance(b, dict):
        return apart(list(a.values()), list(b.values())) if list(a) == list(b) else np.inf
    if isinstance(a, list) and isinstance(b, list):
        return max(map(apart, a, b), default=0.0) if len(a) == len(b) else np.inf
    if a is None or b is None or isinstance(a, list | dict) or isinstance(b, list | dict):
        return 0.0 if a is b else np.inf
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.inf
    if a.dtype.kind not in "biuf":
        return 0.0 if np.array_equal(a, b) else np.inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    a, b = a[~same | np.isfinite(a)], b[~same | np.isfinite(a)]
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return np.inf
    return float(np.abs(a - b).max(initial=0)) / (float(np.abs(a).max(initial=0)) or 1.0)


def _random(rng: Any, value: Any) -> Any:
    """Random array for an input of a session: normally distributed floats; 0 or 1 for other types. Dims of unknown size
    get 1.
    """
    import numpy as np

    shape = [n if isinstance(n, int) else 1 for n in value.shape]
    words = value.type.removeprefix("tensor(").removesuffix(")")
    kinds: Mapping[str, Any] = {"float": np.float32, "double": np.float64, "float16": np.float16, "bool": np.bool_}
    kind = np.dtype(words) if re.fullmatch(r"u?int(8|16|32|64)", words) else kinds.get(words)
    if kind is None:
        message = f"{value.name} is a {value.type}: --test knows no values for it"
        raise refuse(ExportError, "onnx.dtype", message, hint="without --test")
    if np.dtype(kind).kind == "f":
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)
