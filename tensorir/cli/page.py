"""A report of tuning logs: one HTML file that needs nothing else, and in which nothing runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from tensorir.cli import figures
from tensorir.cli.figures import Point
from tensorir.cli.parse import work_of
from tensorir.cli.tables import config_text
from tensorir.expr.tensor import Tensor
from tensorir.ir.dtypes import DTYPES
from tensorir.tune.gpu_devices import gpu_of
from tensorir.tune.log import passed
from tensorir.tune.outcome import grouped_reasons
from tensorir.tune.progress import milliseconds
from tensorir.tune.summary import Tuned, importance, knobs

if TYPE_CHECKING:
    from tensorir.api.workload import Workload
    from tensorir.target import Target

LEAST_S = 1e-9
"""Of a time that counts as one."""

_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }}
h2 {{ margin-top: 3rem; border-top: 1px solid #ccd3da; padding-top: 1rem; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; }}
td, th {{ text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }}
pre {{ background: #f4f6f8; padding: .8rem; overflow-x: auto; font-size: 12px; line-height: 1.35; }}
svg {{ max-width: 100%; height: auto; }} .note {{ color: #5b6875; }}
</style>
"""


def page(log: str, found: Sequence[Tuned], skipped: str) -> str:
    """The whole file. skipped: what ``LogReader.summary`` says of lines that were left out"""
    made = {t.workload: work_of(t.workload) for t in found}
    out = [_HEAD.format(title=escape(f"Tuning of {log}")), f"<h1>Tuning of {escape(log)}</h1>"]
    trials = sum(len(t.trials) for t in found)
    out.append(f"<p>{trials} trials of {len(found)} workloads and devices. {escape(skipped)}</p>")
    out += [_roofline(found, made), *(_section(t, made[t.workload]) for t in found)]
    return "\n".join(out) + "\n</html>\n"


def _section(t: Tuned, work: Workload | None) -> str:
    out = [f"<h2>{escape(t.workload)}</h2>", f"<p>{escape(t.device)}</p>", _numbers(t)]
    good = [r for r in t.trials if passed(r)]
    if good:
        out += ["<h3>Convergence</h3>", figures.convergence(t)]
    if found := importance(t.trials):
        told = "What a knob explains by itself (epsilon squared, per template); knobs that matter only together show "
        out += ["<h3>Knobs</h3>", figures.importances(found), _note(f"{told}little of it.")]
    if t.best is not None:
        same = [r for r in good if r["template"] == t.best.record["template"]]
        if len(knobs(same)) > 1:
            out += [f"<h3>Configurations of {escape(t.best.record['template'])}</h3>", figures.parallel(same)]
    return "\n".join([*out, _failures(t), _source(t, work)])


def _note(text: str) -> str:
    return f"<p class=note>{escape(text)}</p>"


def _numbers(t: Tuned) -> str:
    older = f"; {t.older} of version 1, which do not compare, left out" if t.older else ""
    rows = [("trials", f"{len(t.trials)}, {sum(map(passed, t.trials))} valid{older}")]
    if t.best is not None:
        best, r = t.best, t.best.record
        span = f"{milliseconds(best.low_s)} to {milliseconds(best.high_s)}"
        how = "as a trial" if best.round is None else "measured again beside others"
        rows.append(("best", f"{milliseconds(best.time_s)} ({span}, {how}), record {r['id']}"))
        rows.append(("configuration", f"{r['template']}: {config_text(r['config'])}"))
        if t.default_s is not None and t.gain is not None:
            rows.append(("default", f"{milliseconds(t.default_s)}: best is {t.gain.text()} as fast"))
            if t.gain.doubt:
                rows.append(("in doubt", t.gain.doubt))
    else:
        rows.append(("best", "no valid configuration"))
    if (words := t.load.words()) and t.kind == "cpu":
        rows.append(("machine", f"while these were timed, {words}"))
    if unstable := sum("unstable_timing" in r.get("flags", ()) for r in t.trials):
        rows.append(("unstable", f"{unstable} trials whose interval is wider than a quarter of their time"))
    cells = "".join(f"<tr><th>{escape(a)}<td>{escape(b)}" for a, b in rows)
    return f"<table>{cells}</table>"


def _failures(t: Tuned) -> str:
    reasons = grouped_reasons(t.trials)
    if not reasons:
        return ""
    cells = "".join(
        f"<tr><td>{r['count']}<td>{escape(str(r['status']))}<td>{escape(str(r['reason']))}"
        f"<td><code>tensorir repro {escape(str(r['trial']))}</code>"
        for r in reasons
    )
    return f"<h3>Failures</h3><table><tr><th>trials<th>status<th>reason<th>again{cells}</table>"


def _source(t: Tuned, work: Workload | None) -> str:
    """The best configuration's text, where this version still makes the one that was measured."""
    from tensorir.api.load import regenerate

    if t.best is None:
        return ""
    target = _target(t)
    made = None if work is None or target is None else regenerate(work, t.best.record, target)
    if made is None:
        why = "the workload is defined outside of tensorir" if work is None else "this version makes another one"
        why = "this version does not know its target" if target is None else why
        return _note(f"The best configuration's source is not shown: {why}.")
    return f"<h3>Source of the best</h3><pre>{escape(made.source.text)}</pre>"


def _roofline(found: Sequence[Tuned], made: dict[str, Workload | None]) -> str:
    """By device: how near the best kernels come to what moves and computes at most."""
    out = []
    for device in dict.fromkeys(t.device for t in found):
        mine = [(t, made[t.workload]) for t in found if t.device == device and t.best is not None]
        points = [p for t, w in mine if w is not None and (p := _point(t, w)) is not None]
        if not points:
            continue
        (first, _), *_ = mine
        target = _target(first)
        gpu = gpu_of(target) if target is not None else None
        peaks = f"The line: peaks of {gpu.name} in threads and of its memory." if gpu else "No peaks are on record."
        out += [f"<h3>{escape(device)}</h3>", figures.roofline(points, gpu), _note(peaks)]
    return "\n".join(["<h2>Roofline</h2>", *out]) if out else ""


def _target(t: Tuned) -> Target | None:
    """What the best configuration was made for; None where this version does not know it."""
    from tensorir.api.identity import target_of
    from tensorir.errors import TensorIRError

    try:
        return None if t.best is None else target_of(t.best.record)
    except TensorIRError:
        return None


def _point(t: Tuned, work: Workload) -> Point | None:
    """None for times that no device takes."""
    assert t.best is not None
    arrays = [a for a in (*work.inputs, *work.outputs) if isinstance(a, Tensor)]
    moved = sum(DTYPES[a.dtype].bits // 8 * math.prod(map(int, a.shape)) for a in arrays)
    if t.best.time_s < LEAST_S or not work.flops:
        return None
    default = None if t.default_s is None or t.default_s < LEAST_S else work.flops / t.default_s
    return Point(work.name, work.flops / moved, work.flops / t.best.time_s, default)
