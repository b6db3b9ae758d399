"""HTML cards, one per kind of public object; a schedule's shows its foldable loop tree."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from math import prod
from typing import Any

from tensorir.api.build import Executable
from tensorir.api.schedule import Schedule
from tensorir.api.shape_outcome import Portfolio, SetOutcome
from tensorir.api.work import Work
from tensorir.automatic.fusions import HEADER, Fusion, Fusions, cells, microseconds
from tensorir.check.verdict import Verdict
from tensorir.codegen.source import KernelLaunch, Param, Source
from tensorir.errors import Problem, TensorIRError
from tensorir.errors.shown import Text, fields_of, short
from tensorir.expr.tensor import Compute, Tensor
from tensorir.ir.dims import most_of
from tensorir.ir.dtypes import DTYPES
from tensorir.ir.node import Node
from tensorir.ir.text import show as expression
from tensorir.ir.text import text
from tensorir.ir.tree import Buffer, Const, Expr, Load, Loop, Scope, Stage, Stmt, Store, Update
from tensorir.ir.tree import Program as Tree
from tensorir.ir.visit import find
from tensorir.runtime.device import Device
from tensorir.runtime.launch import BoundLaunch, CompiledProgram
from tensorir.runtime.sequence import LaunchSequence
from tensorir.runtime.timing import Timing
from tensorir.schedule.analysis import Index, index_of
from tensorir.schedule.rewrite import footprint
from tensorir.schedule.schedule import BaseSchedule, StageRef
from tensorir.schedule.trace import Step, Trace, heading
from tensorir.show import curves
from tensorir.show.pieces import (
    Html,
    card,
    changes,
    code,
    coloured,
    dim,
    fold,
    grid,
    html,
    joined,
    pre,
    size,
    source,
    table,
    wide,
    words,
)  # fmt: skip
from tensorir.target import Target
from tensorir.tune.brief import reason_of
from tensorir.tune.outcome import Timed, TuneOutcome, without_default
from tensorir.tune.progress import between, duration, milliseconds, rate, statuses
from tensorir.tune.space import Space
from tensorir.tune.template import OneByOne, Template, Templates

FOLDED_TREE_LINES = 120
"""Lines of a tree from which on only its first three levels are open."""
MAX_SPLITS_TOLD = 12  # splits of splits that hovering tells
MAX_FOOTPRINTS = 2000
"""Pairs of a loop and a buffer below it for which the footprint is computed: it is shown, not waited for."""


def html_of(x: object) -> str:
    """HTML text of a public object's card: no scripts, nothing from a network, readable in a saved file. A live cell
    that shows ``x`` already is cleared.
    """
    if live := sys.modules.get("tensorir.show.live"):
        live.give_way(x)
    return str(card_of(x))


@singledispatch
def card_of(x: object) -> Html:
    """HTML card of ``x``; for objects of a kind without a card of its own, a table of their fields."""
    rows = {name: code(short(value)) for name, value in fields_of(x).items()}
    said = str(x)
    plain = "\n" in said or (bool(rows) and said == repr(x))
    return card(type(x).__name__, "" if plain else code(_bare(x, said)), table(rows))


def _bare(x: Any, said: str) -> str:
    """``said``, the text of ``x``, without ``<ClassName `` and ``>`` around it."""
    begin = f"<{type(x).__name__} "
    return said[len(begin) : -1] if said.startswith(begin) else said


# --- declarations ----------------------------------------------------------------------------------------------------


def _typed(name: str, dtype: str, shape: tuple[Any, ...]) -> str:
    return f"{name}: {dtype}[{', '.join(map(str, shape))}]" if shape else f"{name}: {dtype}"


def _nbytes(dtype: str, shape: tuple[int, ...]) -> str:
    n = DTYPES[dtype].bits
    for extent in shape:
        n *= extent
    return size(n / 8)


@card_of.register
def _(x: Tensor) -> Html:
    given = "values known at compile time" if x.buffer.data is not None else "given"
    reads = [] if x.op is None else x.op.inputs
    rows = {
        "is": given if x.op is None else Html(code(words(x.definition))),
        "reads": joined([code(_typed(t.name, t.dtype, t.shape)) for t in reads]),
        "size": _nbytes(x.dtype, x.shape),
    }
    return card("Tensor", code(_typed(x.name, x.dtype, x.shape)), table(rows))


@card_of.register
def _(x: Compute) -> Html:
    return card("Compute", code(x.name), pre(words("\n".join(t.definition for t in x.outputs))))


@card_of.register
def _(x: Node) -> Html:
    whole = isinstance(x, Tree | Stmt)
    said = tree(text(x).splitlines()) if whole else ""
    return card(
        type(x).__name__, "" if whole else code(_bare(x, repr(x))), said, dim(x.dtype) if isinstance(x, Expr) else ""
    )


# --- schedules -------------------------------------------------------------------------------------------------------


@card_of.register
def _(x: BaseSchedule) -> Html:
    steps = x.trace
    rows = {
        "target": code(x.target),
        "last step": code(words(str(steps[-1]))) if steps else None,
        "stages": f"{len(x.index.stages)} in {len(x.index.loops)} loops",
    }
    if isinstance(x, Schedule) and x.edited is None:
        rows["expected"] = _expected(x)
    elif isinstance(x, Schedule):
        rows["text"] = "edited by hand: the tree below is not what runs"
    made = code(", ".join(_typed(t.name, t.dtype, t.shape) for t in x.outputs))
    folds = [fold(f"{len(steps)} step{'s' * (len(steps) != 1)}", _steps(steps))]
    if isinstance(x, Schedule):
        others = [name for name in ("opencl", "cuda") if name != x.target.language]
        folds += [fold(f"{name} source", _source_or_why(x, name)) for name in (x.target.language, *others)]
    return card("Schedule", made, table(rows), schedule_tree(x), *folds)


def _expected(s: Schedule) -> Html | None:
    """Modelled time and what stays idle; None for a schedule that cannot be lowered yet, which has no time."""
    try:
        return joined([html(s.expected.brief.removeprefix("expected ")), *map(code, s.expected.facts)])
    except TensorIRError:
        return None


def _source_or_why(s: Schedule, language: str) -> Html:
    try:
        return pre(source(s.source(language)))
    except TensorIRError as error:
        return pre(str(error))


def _steps(steps: Trace) -> Html:
    """HTML of a trace, one step per line with its reason, the last step marked; the user's line is added where it
    changes.
    """
    lines, before = list[Html](), ""
    for s, why in steps.reasoned():
        line = s.where.partition(": ")[0].rpartition("/")[2]
        lines.append(Html(words(f"{heading(why)}{s}") + (dim(f"   {line}") if s.where != before else "")))
        before = s.where
    marked = [*lines[:-1], *(Html(f'<span class="tir-last">{x}</span>') for x in lines[-1:])]
    return pre(joined(marked, "\n"))


@card_of.register
def _(x: Trace) -> Html:
    return card("Trace", f"{len(x)} step{'s' * (len(x) != 1)}", _steps(x))


@card_of.register
def _(x: Step) -> Html:
    rows = {"made": code(", ".join(x.out)) if x.out else None, "at": code(x.where) if x.where else None}
    return card("Step", code(words(str(x))), table(rows))


@card_of.register
def _(x: StageRef) -> Html:
    loops = x.schedule.index.loops
    rows = [(code(a), code(expression(loops[a].extent)), loops[a].kind.value) for a in x.axes]
    return card("Stage", code(x.name), grid(["loop", "extent", "runs"], rows))


@card_of.register
def _(x: Text) -> Html:
    body = tree(x.splitlines()) if x.kind == "loop tree" else pre(changes(x))
    return card(x.kind.capitalize(), f"{len(x.splitlines())} lines" if x else "none", body)


@card_of.register
def _(x: Verdict) -> Html:
    head = coloured("✓ ok", "good") if x else coloured("✗ wrong", "bad")
    rows = {"shown": x.kind, "largest error": f"{x.max_error:.3g}" if x.max_error else None}
    shapes = fold(f"{len(x.shapes)} shape{'s' * (len(x.shapes) != 1)} tried", pre("\n".join(x.shapes)))
    return card("Verdict", head, table(rows), *(pre(str(p)) for p in x.problems), shapes)


@card_of.register
def _(x: Problem) -> Html:
    return card("Problem", code(x.code), pre(str(x)))


@card_of.register
def _(x: TensorIRError) -> Html:
    return card(type(x).__name__, code(x.code), pre(str(x)))


# --- what runs -------------------------------------------------------------------------------------------------------


def _params(params: tuple[Param, ...]) -> Html:
    rows = [(code(_typed(p.name, p.dtype, p.shape)), p.role, _nbytes(p.dtype, p.shape)) for p in params]
    return grid(["argument", "role", "size"], rows)


def _launches(kernels: tuple[KernelLaunch, ...]) -> str:
    def of(k: KernelLaunch) -> str:
        grid_, block = ("×".join(map(str, n)) for n in (k.grid, k.block))
        shared = f", {size(k.shared_bytes)} shared" if k.shared_bytes else ""
        return f"{k.name}: {grid_} blocks of {block} threads{shared}{', once' * k.once}"

    return "; ".join(map(of, kernels[:4])) + (f"; and {len(kernels) - 4} more" if len(kernels) > 4 else "")


def _signature(source: Source) -> Html:
    takes, gives = (", ".join(_typed(p.name, p.dtype, p.shape) for p in ps) for ps in (source.inputs, source.outputs))
    return code(f"{source.name}({takes}) → {gives}")


def _source_rows(x: Source) -> dict[str, Any]:
    workspace = size(x.workspace_bytes) if x.workspace_bytes else None
    return {"kernels": code(_launches(x.kernels)), "workspace": workspace, "instructions": ", ".join(x.instructions)}


@card_of.register
def _(x: Source) -> Html:
    lines = len(x.text.splitlines())
    rows = {"language": x.language, **_source_rows(x)}
    return card("Source", _signature(x), table(rows), fold("arguments", _params(x.params)),
                fold(f"{lines} lines", pre(source(x.text))))  # fmt: skip


def _resources(x: CompiledProgram) -> str:
    found = x.resources
    if found is None:
        return ""
    known = {"registers": found.get("registers"), "spills": found.get("spills")}
    said = [f"{value} {name}" for name, value in known.items() if value is not None]
    shared = found.get("shared_bytes")
    return ", ".join([*said, *([f"{size(shared)} shared memory"] if shared else [])])


def _program_rows(x: CompiledProgram) -> dict[str, Any]:
    name = x.device.identity.get("name", "")
    compiled = "from the cache" if x.cached else f"{x.compile_s:.2g} s"
    rows = {"device": f"{x.device.name}: {name}", **_source_rows(x.source)}
    return {**rows, "resources": _resources(x), "compiled": compiled}


@card_of.register
def _(x: Executable) -> Html:
    rows = _program_rows(x.program)
    rows["configuration of"] = str(x.nearest) if x.nearest else None
    rows["copied by the last call"] = _copies(x.copies)
    rows["results may be off by"] = None if x.max_error is None else f"{x.max_error:.2g} of the largest"
    steps = fold("schedule", pre(words(x.trace)))
    text_ = fold(f"{x.emitted.language} source, {len(x.source.splitlines())} lines", pre(source(x.source)))
    return card("Executable", _signature(x.emitted), table(rows), steps, text_)


@card_of.register
def _(x: CompiledProgram) -> Html:
    return card("Program", _signature(x.source), table(_program_rows(x)), fold("source", pre(source(x.source.text))))


def _copies(copies: tuple[Problem, ...]) -> Html | None:
    return joined([code(p.message) for p in copies]) if copies else None


@card_of.register
def _(x: BoundLaunch) -> Html:
    copied = {id(a) for _, a in x._attached.copied} | {id(a.array) for _, a in x._attached.uploads}
    rows = [(code(_typed(name, a.dtype, a.shape)), a.native, role, "copied" if id(a.array) in copied else "in place")
            for role, group in (("input", x._call.inputs), ("output", x._call.outputs))
            for name, a in group.items()]  # fmt: skip
    use = code("b(); y = b.wait()")
    return card("Bound launch", code(f"{x._program.source.name} on {x._program.device.name}"),
                table({"use": use, "copies": _copies(x.copies)}),
                fold("arrays", grid(["argument", "kind", "role", "memory"], rows)))  # fmt: skip


@card_of.register
def _(x: LaunchSequence) -> Html:
    names = [b._program.source.name for b in x.launches]
    head = f"{len(names)} launches on {x.device.name}"
    return card("Sequence", head, pre("\n".join(f"{n + 1:>3}  {name}" for n, name in enumerate(names))))


@card_of.register
def _(x: Timing) -> Html:
    rows: dict[str, Any] = {
        "samples": f"{len(x.samples)}",
        "least, most": f"{_time(min(x.samples))}, {_time(max(x.samples))}",
    }
    rows["not in it"] = _copies(x.copies)
    curve = curves.samples(x.samples, x.low_s, x.median_s, x.high_s)
    head = f"{_time(x.median_s)}, 95 % interval {_time(x.low_s)} to {_time(x.high_s)}"
    return card("Timing", head, table(rows), curve)


def _time(seconds: float) -> str:
    scale, unit = next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs"))
    return f"{seconds / scale:.4g} {unit}"


@card_of.register
def _(x: Device) -> Html:
    rows = {k: v for k, v in x.identity.items() if len(str(v)) < 200} | {"target": code(x.target)}
    return card("Device", code(x.name), table(rows))


@card_of.register
def _(x: Target) -> Html:
    rows: dict[str, Any] = {k: code(short(v)) for k, v in fields_of(x).items() if k not in ("language", "kind", "name")}
    named = {"device": x.name or x.device, "language": f"{x.language} on a {x.kind}"}
    return card("Target", code(x.text), table(named), fold("limits", table(rows)))


@card_of.register
def _(x: Fusions) -> Html:  # type: ignore[type-arg]
    worth = sum(r.recommended for r in x)
    rows = [[*map(code, line[:2]), *line[2:-1], _advice(r)] for r, line in ((r, cells(r)) for r in x)]
    return card("Fusions", f"{len(x)} pairs on {x.target.text}, {worth} recommended", wide(grid(HEADER, rows)))


@card_of.register
def _(x: Fusion) -> Html:  # type: ignore[type-arg]
    told = dict(zip(HEADER, cells(x), strict=True))
    ways = "\n".join(f"{name}: {microseconds(s)}" for name, s in x.ways.items())
    refused = "\n\n".join(f"{name}: {problem}" for name, problem in x.refused.items())
    folds = [fold(f"{n} ways", pre(text)) for n, text in (("legal", ways), ("refused", refused)) if text]
    return card("Fusion", code(f"{x.first}, {x.second}"), table({**told, "advice": _advice(x)}), *folds)


def _advice(r: Fusion[Any]) -> Html:
    return coloured(r.verdict, "good" if r.recommended else "bad" if not r.legal else "dim")


# --- tuning ----------------------------------------------------------------------------------------------------------


@card_of.register
def _(x: Work) -> Html:
    rows = {
        "takes": code(", ".join(_typed(a.name, a.dtype, getattr(a, "shape", ())) for a in x.inputs)),
        "gives": code(", ".join(_typed(t.name, t.dtype, t.shape) for t in x.outputs)),
        "operations": f"{x.flops / 1e9:.4g} G a run" if x.flops >= 1e7 else f"{x.flops:,.0f} a run",
        "baselines": ", ".join(x.baselines),
    }
    kinds = _templates(x.templates)
    bodies = "\n".join(t.definition for t in x.outputs)
    title = f"{x.name} {' '.join(f'{k}={short(v)}' for k, v in x.parameters.items())}"
    return card("Workload", code(title), table(rows), fold("templates", kinds), fold("definition", pre(words(bodies))))


def _templates(x: Mapping[str, Template]) -> Html:
    return grid(["template", "for", "space"], [(code(n), t.targets, t.size) for n, t in x.items()])


@card_of.register(OneByOne)
@card_of.register(Templates)
def _(x: Mapping[str, Template]) -> Html:
    return card("Templates", f"{len(x)}", _templates(x))


@card_of.register
def _(x: Template) -> Html:
    rows = {"for": x.targets, "space": x.size, "rounds otherwise": "yes" if x.approximate else None}
    return card("Template", code(short(x.function)), table(rows))


@card_of.register
def _(x: Space) -> Html:
    default = x.default
    rows = [(code(n), len(v), _values(v), code(short(default[n]))) for n, v in zip(x.names, x.values, strict=True)]
    legal = f"{len(x.legal):,}{' or more' if x.sampled else ''} legal" if x.where else "all legal"
    return card("Space", f"{x.size:,} configurations, {legal}", grid(["knob", "count", "values", "default"], rows),
                table({"constraints": ", ".join(x.where)}))  # fmt: skip


def _values(values: tuple[Any, ...]) -> Html:
    some = [*values[:8], "…", values[-1]] if len(values) > 10 else list(values)
    return code(", ".join(v if v == "…" else short(v) for v in some))


@card_of.register
def _(x: TuneOutcome) -> Html:
    head = joined([code(x.identity.workload), dim(f" on {x.identity.device.get('name', '')}")], "")
    curve = _curve(x)
    finalists = "\n".join(f"{_timed(t)}  {_config(t)}" for t in x.finalists)
    failed = "\n".join(f"{r['count']} × {r['reason']}" for r in x.reasons)
    folds = [fold(f"{len(x.finalists)} finalists, timed interleaved", pre(finalists))] if x.finalists else []
    return card("Tuning", head, outcome_table(x), curve, *folds, fold("failures", pre(failed)))


def _curve(x: TuneOutcome) -> Html:
    """SVG of trial times, with the best trial marked and a line at the library's time."""

    def told(n: int) -> str:
        r = x.records[n]
        config = " ".join(f"{k}={v}" for k, v in r.config.items())[:200]
        time_s = milliseconds(r.steady_s) if r.time_s is not None else reason_of(r)
        return f"trial {n + 1}: {time_s}\n{r.template}: {config}"

    best = None if x.best is None else x.best.trial
    chosen = next((n for n, r in enumerate(x.records) if r.id == best and r.time_s), None)
    library = None if x.baseline is None else (str(x.baseline["name"]), float(x.baseline["time_s"]))
    seconds = [r.steady_s if r.time_s else None for r in x.records]
    return curves.best_so_far(seconds, chosen, told, library, most=200)


def outcome_table(x: TuneOutcome) -> Html:
    """HTML table of a tuning result: times of the best, the default and the library, counts and end of the run."""
    rows: dict[str, Any] = {}
    if x.best is not None:
        rows |= {"best": _timed(x.best), "configuration": code(_config(x.best))}
    if x.default is not None:
        rows["default"] = _timed(x.default) + (f": best is {x.gain.text()} as fast" if x.gain is not None else "")
    if (b := x.baseline) is not None:
        ratio = f": best is {x.ratio.text()} as fast" if x.ratio is not None else ""
        rows[str(b["name"])] = between(b["time_s"], b.get("low_s"), b.get("high_s")) + ratio
    rows["doubt"] = next((r.doubt for r in (x.ratio, x.gain) if r is not None and r.doubt), None)
    rows["machine"] = x.machine.words()
    rows["trials"] = f"{x.trials} new, {x.reused} reused: {statuses(x.counts)}"
    rows["ended"] = f"{x.status}, by {x.stopped}, after {duration(x.elapsed_s)}"
    return table(rows | {"log": code(x.log_path) if x.log_path else None})


def _config(t: Timed) -> str:
    return f"{t.template}: {' '.join(f'{k}={v}' for k, v in t.config.items())}"


def _timed(t: Timed) -> str:
    if t.time_s is None:
        return without_default(t.record)
    return between(t.time_s, t.low_s, t.high_s) + (f", {rate(t.gflops * 1e9)}" if t.gflops else "")


@card_of.register
def _(x: Timed) -> Html:
    rows = {"configuration": code(_config(x)), "status": x.status, "trial": code(x.trial)}
    return card("Timed configuration", _timed(x), table(rows))


@card_of.register
def _(x: SetOutcome) -> Html:
    rows = []
    for r in x.results:
        best, first = (milliseconds(t) if t is not None else "" for t in (r.best_s, r.default_s))
        rows.append((code(r.work.title), best, first, r.refused or ("" if r.outcome else "no time left")))
    few = "" if x.portfolio is None else fold("the few kernels", _kernels(x.portfolio))
    total = x.total_s()
    head = f"{len(x.results)} shapes, {x.status}" + (f", {milliseconds(total)} in all" if total is not None else "")
    return card("Tuning of shapes", head, grid(["shape", "best", "default", ""], rows), few)


@card_of.register
def _(x: Portfolio) -> Html:
    return card("Portfolio", str(x), _kernels(x))


def _kernels(x: Portfolio) -> Html:
    rows = [(code(s.workload), s.kernel, milliseconds(s.time_s), f"{s.regret:.1%}") for s in x.served]
    named = "\n".join(f"{n}  {k.template}: {' '.join(f'{a}={b}' for a, b in k.config.items())}"
                      for n, k in enumerate(x.kernels))  # fmt: skip
    return Html(grid(["shape", "kernel", "time", "over its best"], rows) + pre(html(named)))


def schedule_tree(s: BaseSchedule) -> Html:
    """HTML loop tree of a schedule with the memory that each loop touches; lines that the last step changed are
    marked.
    """
    now = text(s.program).splitlines()
    new: set[int] = set()
    if s.trace:
        before = text(s.at(len(s.trace) - 1).program).splitlines()
        same = difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
        new = {n for kind, _, _, a, b in same if kind != "equal" for n in range(a, b)}
    return tree(now, footprints(s.program), new, origins(s.trace, s.index.loops))


def origins(steps: Sequence[Step], loops: Iterable[str]) -> dict[str, str]:
    """{loop: text, one line each: its original axes, then the steps that made the loop, latest first}. Of nested splits
    and fuses ``MAX_SPLITS_TOLD`` levels.
    """
    made = {name: step for step in steps for name in step.out}

    def lines(name: str, deep: int) -> list[str]:
        step = made.get(name)
        if step is None:
            stage, _, axis = name.partition(".")
            by = f", which {made[stage]} made" if stage in made else ""
            return [f"{name}: axis {axis or name} of {stage}{by}"]
        place = step.where.partition(": ")[0].rpartition("/")[2]
        above = [a for a in step.args if isinstance(a, str)] if step.primitive in ("split", "fuse") and deep else []
        found = [f"{name}: {step}" + (f" at {place}" if place else "")]
        return found + [line for parent in above for line in lines(parent, deep - 1)]

    found = {name: dict.fromkeys(lines(name, MAX_SPLITS_TOLD)) for name in loops}
    return {name: "\n".join(sorted(some, key=lambda line: ": axis " in line)) for name, some in found.items()}


def tree(
    lines: Sequence[str],
    notes: Mapping[str, str] | None = None,
    new: Iterable[int] = (),
    told: Mapping[str, str] | None = None,
) -> Html:
    """HTML of a loop tree's indented ``lines`` as nested folds, all open; from ``FOLDED_TREE_LINES`` lines on only the
    first three levels.

    notes: {loop: text after its line};  new: numbers of lines to mark;  told: {loop: tooltip}
    """
    notes, told, marked = notes or {}, told or {}, set(new)
    depths = [len(line) - len(line.lstrip()) for line in lines]

    def part(first: int, end: int, level: int) -> str:
        out, n = [], first
        while n < end:
            after = next((m for m in range(n + 1, end) if depths[m] <= depths[n]), end)
            line = lines[n].strip()
            loop = re.match(r"for (\S+) in ", line)
            cost = f'<span class="tir-cost">{html(notes[loop[1]])}</span>' if loop and loop[1] in notes else ""
            shown = str(words(line))
            if loop and loop[1] in told:
                origin = html(told[loop[1]]).replace("\n", "&#10;")
                shown = f'<span title="{origin}">{shown}</span>'
            shown = f'<span class="tir-last">{shown}</span>' if n in marked else shown
            if after == n + 1:
                out.append(f'<div class="tir-leaf">{shown}{cost}</div>')
            else:
                state = " open" if level < 3 or len(lines) < FOLDED_TREE_LINES else ""
                inner = part(n + 1, after, level + 1)
                out.append(
                    f'<details{state}><summary>{shown}{cost}</summary><div class="tir-body">{inner}</div></details>'
                )
            n = after
        return "".join(out)

    key = dim("after a loop: what one iteration of it touches") if notes else ""
    return Html(f'<div class="tir-tree">{part(0, len(lines), 0)}</div>{key}')


def footprints(program: Tree) -> dict[str, str]:
    """{loop: text "2 KiB: A[16, 32] …"}: total bytes, and each buffer's box, that one iteration touches of buffers that
    are not local to it. {} if a loop's extent is not constant; after ``MAX_FOOTPRINTS`` pairs of a loop and a buffer
    the remaining loops are left out.
    """
    index = index_of(program)
    if any(not isinstance(x.extent, Const) for x in index.loops.values()):
        return {}
    accesses = {s: _accesses(s) for s in index.stages.values()}
    homes = _homes(index, accesses)
    found: dict[str, str] = {}
    asked = 0
    for name, loop in index.loops.items():
        touched: dict[Buffer, list[tuple[Stage, tuple[Expr, ...]]]] = {}
        for s in find(loop, Stage):
            for b, where in accesses[s]:
                if b not in homes or homes[b] in (loop, *index.above(loop)):
                    touched.setdefault(b, []).append((s, where))
        asked += len(touched)
        if asked > MAX_FOOTPRINTS:
            break
        found[name] = _said(index, loop, touched)
    return found


def _homes(index: Index, accesses: Mapping[Stage, list[tuple[Buffer, tuple[Expr, ...]]]]) -> dict[Buffer, Loop]:
    """{buffer that is not global: innermost loop around all its accesses}."""
    around: dict[Buffer, list[Loop]] = {}
    for s, found in accesses.items():
        above = index.above(s)
        for b in dict(found):
            if b.scope not in (Scope.GLOBAL, Scope.CONSTANT):
                around[b] = [x for x in around.get(b, above) if x in above]
    return {b: loops[-1] for b, loops in around.items() if loops}


def _accesses(s: Stage) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    read = [(n.buffer, n.index) for n in find(s, Load)]
    stored = [(n.buffer, n.index) for n in find(s, Store)]
    return [*read, *stored, *((b, n.index) for n in find(s, Update) for b in n.buffers)]


def _said(index: Index, loop: Loop, touched: Mapping[Buffer, list[tuple[Stage, tuple[Expr, ...]]]]) -> str:
    boxes, total = [], 0
    for b, where in touched.items():
        shape = most_of(b)
        sides = footprint(index, where, loop, Scope.REGISTER, shape)
        box = [min(side.extent, n) for side, n in zip(sides, shape, strict=True)]
        total += prod(box) * DTYPES[b.dtype].bits // 8
        boxes.append(f"{b.name}[{', '.join(map(str, box))}]")
    shown = boxes if len(boxes) <= 5 else [*boxes[:4], f"and {len(boxes) - 4} more"]
    return f"{size(total)}: {' '.join(shown)}"
