"""tensorir show: the tree, the source, the resources and the machine code of a schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import click

from tensorir.api.automatic import fusions
from tensorir.api.schedule import Schedule
from tensorir.api.workload import Workload
from tensorir.automatic.plan import plans
from tensorir.cli import common
from tensorir.cli.choice import Chosen, offline
from tensorir.cli.common import plainly, put, put_code, put_json, say
from tensorir.cli.options import split
from tensorir.cli.parse import config_option, record_named, workloads
from tensorir.cli.tables import config_text
from tensorir.codegen.source import Source
from tensorir.errors import DeviceError
from tensorir.runtime.cuda import compile_cubin, sass, sass_opcodes
from tensorir.runtime.launch import CompiledProgram
from tensorir.runtime.limits import blocks_at_once, occupancy
from tensorir.target import Target
from tensorir.tune.template import suiting


def run(op: str, shape: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Print the loop tree, source, resources or machine code of OP's best recorded schedule, or of the default one;
    return the exit code.
    """
    parameters = split(given)
    (make,) = workloads(op, shape, {**parameters, "log": given["log"]})[:1]
    work = make()
    named = record_named(op, given["log"]) if not shape else None
    template = given["template"] or (named.template if named else None)
    config = config_option(given["config"]) or (named.config if named else None)
    chosen = offline(work, _target(given), given["log"], template, config)
    s = work.schedule(chosen.config, template=chosen.template, target=chosen.target)
    source = s.emitted()
    wants_cuda = source.language == "cuda" and (given["resources"] or given["sass"])
    resources, opcodes, sass = _cuda(source, chosen.target, given["sass"]) if wants_cuda else (None, None, "")
    if given["resources"] and resources is None:
        resources = _on_device(source, given["device"])
    document = {
        "schema": 1,
        "workload": work.title,
        "target": chosen.target.text,
        **chosen.json(),
        "tree": str(s),
        "source": s.source(),
        "trace": str(s.trace),
        "kernels": len(source.kernels),
        "workspace_bytes": source.workspace_bytes,
        "resources": resources,
        "sass_opcodes": opcodes,
    }
    if as_json or not given["parts"] or "why" in given["parts"]:
        document["expected"] = str(s.expected)
    if "why" in given["parts"]:
        document |= {"others": _others(work, chosen), "refused": _refused(work, chosen, s)}
    table = fusions(work.outputs, chosen.target) if "fusions" in given["parts"] else None
    if table is not None:
        document["fusions"] = [r.json() for r in table]
    if table is not None and "why" in given["parts"]:
        document["refused"] += [f"{r.first} and {r.second}: {said}" for r in table for said in r.untaken]
    if as_json:
        put_json(document)
    else:
        _put(s, document, given["parts"], resources, sass, str(table or ""))
    return common.OK


def _others(work: Workload, chosen: Chosen) -> dict[str, int]:
    """{template: number of legal configurations} of the workload's other templates for the target."""
    fitting = {n: t for n, t in suiting(work.templates, chosen.target) if n != chosen.template}
    return {n: len(t.space_for(chosen.target).legal) for n, t in fitting.items()}


def _refused(work: Workload, chosen: Chosen, s: Schedule) -> list[str]:
    """Reasons, each once, why parts of the automatic schedule were offered but not used; [] for schedules made by
    hand.
    """
    if not any(step.why for step in s.trace):
        return []
    tried = plans(work.outputs, chosen.target).items()
    plan = next((plan for name, plan in tried if name == chosen.template), None)
    return list(dict.fromkeys(map(str, plan.refused))) if plan else []


def _why(document: dict[str, Any]) -> str:
    """Text: the trace's steps with their reasons, then, as comments, other templates, refused parts and expected
    time.
    """
    others = [f"{name}: {count} legal configurations" for name, count in document.get("others", {}).items()]
    steps = document["trace"] or "# no steps: as it was declared"
    refused = [f"# {r}" for r in document.get("refused", ())]
    expected = [f"# {line}" for line in document.get("expected", "").splitlines()]
    return "\n".join([steps, *(f"# other template {o}" for o in others), *refused, *expected])


def _target(given: dict[str, Any]) -> str | None:
    target: str | None = given["target"] or given["device"]
    return f"{target or 'cuda'} -arch={given['arch']}" if given["arch"] else target


def _cuda(source: Source, target: Target, with_text: bool) -> tuple[dict[str, Any], dict[str, int] | None, str]:
    """(resources, {opcode: count}, SASS text) from compiling without a GPU; without a disassembler None for the counts
    and "" for the text.
    """
    cubin = compile_cubin(source.text, target.arch)
    asked = [(cubin.kernels[k.name].registers, k.shared_bytes, math.prod(k.block)) for k in source.kernels]
    resources = {
        "registers": cubin.registers,
        "spills": cubin.spills,
        "shared_bytes": max(shared for _, shared, _ in asked),
        "blocks": min(blocks_at_once(target, *a) for a in asked),
        "occupancy": min(round(occupancy(target, *a), 3) for a in asked),
        "arch": cubin.arch,
    }
    try:
        return resources, sass_opcodes(cubin), sass(cubin) if with_text else ""
    except DeviceError as error:
        say(common.words(error))
        return resources, None, ""


def _on_device(source: Source, device: str | None) -> dict[str, Any]:
    found: Mapping[str, object] = CompiledProgram(source, device or source.language).resources or {}
    return {key: found.get(key) for key in ("registers", "spills", "shared_bytes", "kernels")}


def _put(s: Schedule, document: dict[str, Any], parts: tuple[str, ...], resources: Any, sass: str, table: str) -> None:
    """Print the parts named in ``parts``, separated by empty lines. If it is empty: resources and machine code if these
    were asked for, else heading, loop tree and source.
    """
    only = list(dict.fromkeys(parts)) or [*(["resources"] if resources else []), *(["sass"] if sass else [])]
    resources = {k: v for k, v in (resources or {}).items() if k != "kernels"}
    about = "\n".join(f"{k:13} {plainly(v)}" for k, v in resources.items())
    config = f"{document['template']}: {config_text(document['config'])}"
    head = "\n".join((document["workload"], config, document["target"], document.get("expected", "")))
    shown = {
        "head": head,
        "tree": str(s),
        "source": document["source"],
        "why": _why(document),
        "fusions": table,
        "resources": about,
        "sass": sass,
    }
    wanted = [*(only or ["head", "tree", "source"]), "resources", "sass"]
    for number, name in enumerate(n for n in dict.fromkeys(wanted) if shown[n]):
        if number:
            put("")
        if name in ("why", "fusions"):
            click.echo(shown[name])  # a folded reason would be no comment, a folded row no row
        else:
            (put_code if name == "source" else put)(shown[name])
