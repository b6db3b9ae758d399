"""An ONNX model whose nodes become operators of its own: which kernels they take, and what is written."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.cli.common import LOG, Stop, usage
from tensorir.errors import TensorIRError
from tensorir.ir.tree import Var

if TYPE_CHECKING:
    from tensorir.api.workload import Workload
    from tensorir.cli.chosen import Chosen
    from tensorir.ops.onnx_nodes import Graph, Match

FORMAT = "tensorir-onnx"
TOGETHER = 1 << 31
"""Bytes of a message of protocol buffers; weights of larger models are stored next to them."""


@dataclass
class Kernel:
    """A workload that nodes of the model are.

    chosen: None where there is no record, and a default was not asked for
    count:  how many nodes it would replace
    """

    work: Workload
    chosen: Chosen | None
    count: int = 0
    name: str = ""

    @property
    def record(self) -> str | None:
        """The record that it is from."""
        return str(self.chosen.record["id"]) if self.chosen is not None and self.chosen.record else None


@dataclass
class Plan:
    """What becomes of each node: ``taken`` by number in the graph, ``left`` with the reason."""

    graph: Graph
    taken: dict[int, tuple[Match, Kernel]] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    missing: dict[str, Workload] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """How people find a node: its operator, and its name or what it makes."""
        self.labels = [f"{n.op_type} {n.name or n.output[0]}" for n in self.graph.nodes]

    def operators(self) -> dict[str, tuple[Match, Kernel]]:
        """Operators of the new model by name: one for each kernel and shapes in the graph."""
        made: dict[str, tuple[Match, Kernel]] = {}
        for number in self.taken:
            made.setdefault(self.operator(number), self.taken[number])
        return made

    def operator(self, number: int) -> str:
        """The operator that a node becomes. What has other shapes than the kernel says them in its name."""
        match, kernel = self.taken[number]
        shapes = [*(shape for _, shape in match.inputs), match.output[1]]
        own = [tuple(t.shape) for t in (*kernel.work.inputs, *kernel.work.outputs) if not isinstance(t, Var)]
        if shapes == own:
            return kernel.name
        return f"{kernel.name}_{'_'.join('x'.join(map(str, s)) or '1' for s in shapes)}"


def read(path: Path) -> Any:
    """The model in a file; Stop where there is none."""
    try:
        import onnx
    except ImportError:
        raise Stop(LOG, "tensorir onnx needs the package onnx: pip install onnx onnxruntime") from None
    try:
        model = onnx.load(str(path))
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # protocol buffers have several classes for it
        raise usage(f"{path} is no ONNX model: {error!s:.200}") from None
    if not model.graph.node:
        raise usage(f"{path} is no ONNX model: it has no nodes")
    return model


def plan(graph: Graph, choose: Callable[[Workload], Chosen | None], default: bool = False) -> Plan:
    """Which nodes take which kernels. Of a node's workloads that one is taken which does most and has a kernel.

    choose:  the kernel on record, None for none;  default: where there is none, take the default schedule
    """
    from tensorir.ops.onnx_nodes import Left, candidates

    made = Plan(graph)
    kernels: dict[str, Kernel] = {}
    for number, found in candidates(graph):
        if isinstance(found, Left):
            made.left[number] = found.why
            continue
        works = [(match, _kernel(kernels, match, choose)) for match in found]
        for match, kernel in works:
            if kernel.chosen is not None:
                made.taken[number] = match, kernel
                kernel.count += 1
                break
        else:
            match, kernel = works[0]
            made.missing.setdefault(kernel.work.title, kernel.work)
            if default:
                kernel.chosen = _default(kernel.work)
                made.taken[number] = match, kernel
                kernel.count += 1
            else:
                made.left[number] = "not on record"
    made.kernels = [k for k in kernels.values() if k.count]
    counts = Counter[str]()
    for kernel in made.kernels:
        counts[kernel.work.name] += 1
        kernel.name = f"{kernel.work.name}_{counts[kernel.work.name]}"
    return made


def _kernel(known: dict[str, Kernel], match: Match, choose: Callable[[Workload], Chosen | None]) -> Kernel:
    """The kernel of a workload."""
    work = match.work()
    if work.title not in known:
        known[work.title] = Kernel(work, choose(work))
    return known[work.title]


def _default(work: Workload) -> Chosen:
    from tensorir.cli.chosen import Chosen
    from tensorir.runtime.host import target_here

    target = target_here("c")
    name = work.template_for(target)
    return Chosen(name, work.templates[name].space_for(target).default, target)


def write(made: Plan, out: Path) -> dict[str, Any]:
    """Write the model ``out`` and, next to it, the folder of its kernels with their library; what the manifest says.

    The folder is ``OUT.kernels``: a folder as ``tensorir export --to c`` writes it for each kernel, and the library of
    all. What cannot be lowered to C is moved from ``made.taken`` to ``made.left``.
    """
    folder = out.with_suffix(".kernels")
    old = _existing(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    except OSError as error:
        raise usage(f"cannot write {folder}: {error.strerror or error}") from None
    try:
        _export(made, scratch)
        manifest = _library(made, scratch, _identifier(out.stem))
        _rewrite(made, manifest["onnxruntime"]["domain"])
        _save(made.graph.model, out)
        scratch.chmod(0o755)
        if old:
            shutil.rmtree(folder)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {**manifest, "folder": str(folder)}


def _existing(folder: Path) -> bool:
    """Whether an earlier run wrote the folder; refuses one that holds anything else."""
    if not folder.exists():
        return False
    try:
        about = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        known = {"manifest.json", *about["holds"]} if about.get("format") == FORMAT else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        known = set()
    if not known or {p.name for p in folder.iterdir()} - known - {"__pycache__"}:
        raise usage(f"{folder} holds what tensorir onnx did not write", "another name for -o")
    return True


def _export(made: Plan, scratch: Path) -> None:
    """A folder for each kernel; nodes whose kernel is no C are left."""
    from tensorir.api.export_shapes import about_record
    from tensorir.api.shipping import part_of_work
    from tensorir.export.folder import export_part

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
                made.left[number] = f"its kernel is no C: {error.problems[0].message}"
                del made.taken[number]


def _library(made: Plan, scratch: Path, stem: str) -> dict[str, Any]:
    """Compile all kernels into one library; the folder's manifest."""
    from tensorir import __version__
    from tensorir.export.onnx_operators import glue
    from tensorir.export.shipped import build

    operators = made.operators()
    domain = f"tensorir.{stem}"
    own = [_operator(name, match, kernel, scratch) for name, (match, kernel) in operators.items()]
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "made_by": f"tensorir {__version__}",
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
    if own and build.compiler() is not None:
        contents = {Path(name).name: (scratch / name).read_bytes() for name in about["library"]["sources"]}
        (scratch / f"lib{stem}.so").write_bytes(build.compiled(build.compiler() or (), contents))
    return about


def _operator(name: str, match: Match, kernel: Kernel, scratch: Path) -> Any:
    """A kernel as an operator on tensors of the shapes that they have in the model."""
    from tensorir.export.doors import program_of
    from tensorir.export.onnx_operators import Operator

    program = program_of(json.loads((scratch / kernel.name / "manifest.json").read_text(encoding="utf-8")))
    shapes: Iterator[Sequence[int]] = iter([*(shape for _, shape in match.inputs), match.output[1]])
    arguments = [p for p in program["arguments"] if p["role"] in ("input", "output")]
    arguments.sort(key=lambda p: str(p["role"]))  # inputs, then outputs; their order stays
    given = [{**p, "shape": list(shape)} for p, shape in zip(arguments, shapes, strict=True)]
    return Operator(name, kernel.name, given)


def _rewrite(made: Plan, domain: str) -> None:
    """Nodes become operators of the domain; a Relu that one of them does is taken away."""
    from onnx import helper

    model = made.graph.model
    gone = []
    known = {v.name for v in model.graph.value_info}
    for number, (match, kernel) in made.taken.items():
        node = model.graph.node[number]
        node.doc_string = kernel.work.title
        node.op_type, node.domain = made.operator(number), domain
        del node.input[:], node.output[:]
        node.input.extend(name for name, _ in match.inputs)
        name, shape = match.output
        node.output.append(name)
        if match.taken is not None:
            gone.append(model.graph.node[match.taken])
        if name not in known and all(name != v.name for v in model.graph.output):
            kind = made.graph.values[match.inputs[0][0]].type
            model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))
    for node in gone:
        model.graph.node.remove(node)
    if made.taken:
        model.opset_import.append(helper.make_opsetid(domain, 1))


def _save(model: Any, out: Path) -> None:
    import onnx

    size = sum(len(w.raw_data) or 4 * prod(w.dims) for w in model.graph.initializer)
    try:
        if size < TOGETHER * 0.9:
            onnx.save(model, str(out))
        else:
            onnx.save(model, str(out), save_as_external_data=True, location=f"{out.name}.data")
    except OSError as error:
        raise usage(f"cannot write {out}: {error.strerror or error}") from None


def _identifier(text: str) -> str:
    from tensorir.codegen.names import identifier

    return identifier(text)


def compared(path: Path, out: Path, library: Path | None, seed: int = 0) -> dict[str, float]:
    """The largest difference of each output of two models, relative to the largest value of it in the first."""
    import numpy as np
    import onnxruntime as ort

    def session(where: Path, own: Path | None) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if own is not None:
            options.register_custom_ops_library(str(own.resolve()))
        return ort.InferenceSession(str(where), options, providers=["CPUExecutionProvider"])

    new, old = session(out, library), session(path, None)
    rng = np.random.default_rng(seed)
    given = {i.name: _random(rng, i) for i in new.get_inputs()}
    names = [o.name for o in old.get_outputs()]
    found = {}
    for name, a, b in zip(names, old.run(names, given), new.run(names, given), strict=True):
        scale = float(np.abs(a).max(initial=0)) or 1.0
        found[name] = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0)) / scale
    return found


def _random(rng: Any, value: Any) -> Any:
    """Values for an input of a session: of a normal distribution, and 0 or 1 where it is no float."""
    import numpy as np

    shape = [n if isinstance(n, int) else 1 for n in value.shape]
    kinds: Mapping[str, Any] = {"float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64,
                                "int32": np.int32, "bool": np.bool_, "uint8": np.uint8, "int8": np.int8}  # fmt: skip
    kind = kinds.get(value.type.removeprefix("tensor(").removesuffix(")"))
    if kind is None:
        raise usage(f"{value.name} is a {value.type}: --test knows no values for it")
    if np.dtype(kind).kind == "f":
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0, 2, shape).astype(kind)
