"""A report of tuning logs: one HTML file that needs nothing else; what runs in it only searches and highlights."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Sequence
from typing import Any

from tensorir.api.load import regenerate
from tensorir.api.workload import Workload
from tensorir.cli.page_head import MOST_CONFIG, config_words, count, result, rooflines, summary, whereabouts
from tensorir.cli.parse import work_of
from tensorir.cli.roofs import Roofs, target_of
from tensorir.cli.titles import brief
from tensorir.show import curves, figures
from tensorir.show.pieces import Html, code, dim, file, fold, grid, html, joined, pre, source, style, table
from tensorir.tune.brief import reason_of
from tensorir.tune.log import passed
from tensorir.tune.outcome import grouped_reasons
from tensorir.tune.progress import between, milliseconds
from tensorir.tune.record import Record, span, steady_s
from tensorir.tune.summary import HALVES, Tuned, importance, knobs

MANY = 3  # results from which on they are shown in little room
ROWS, DOTS, LINES = 1200, 800, 400  # at most, in all tables and figures of a page together
WORKLOADS = 100  # on a page at most
REASONS = 40  # kinds of failures shown of a workload at most
SOURCES = 250_000  # characters of kernels on a page at most
BYTES = 950_000  # size of a page at most, without the names of what is left out
DEFAULT_LOG = "tuning_logs"

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src '{sum}'">
<title>{title}</title>{style}</head>
"""


def page(log: str, found: Sequence[Tuned], skipped: str, measure: bool = True) -> str:
    """The whole file.

    skipped: what ``LogReader.summary`` says of lines that were left out; measure: the peaks of devices that are here
    """
    script = file("report.js")
    digest = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = _HEAD.format(sum=digest, title=html(f"Tuning of {log}"), style=style("report.css"))
    told = summary(found, skipped)
    if len(found) > WORKLOADS:
        told += f"; {count(len(found) - WORKLOADS, 'result')} with fewer trials are left out"
        found = found[:WORKLOADS]
    works = {t.workload: work_of(t.workload) for t in found}
    roofs = Roofs(measure)
    above = [None if t.best is None else roofs.above(t, works[t.workload]) for t in found]
    body = [f'<h1 class="tir-head"><b>Tuning</b>{code(log)}</h1>', f"<p>{dim(told)}</p>"]
    where = whereabouts(found)
    shown = (result(n, t, a, w) for n, (t, a, w) in enumerate(zip(found, above, where, strict=True)))
    body.append(f'<div class="{"tir-many" if len(found) > MANY else "tir-few"}">{"".join(shown)}</div>')
    roofline = rooflines(found, above)
    if len(found) > 1:
        body.append(_figures(*roofline))
        roofline = []
    room = _Room(sum(len(t.trials) for t in found), log, BYTES - sum(len(x.encode()) for x in (*body, head)))
    for n, (t, w) in enumerate(zip(found, where, strict=True)):
        heading = f'<section id="w{n}"><h2>{html(brief(t.workload))} <small>{dim(w)}</small></h2>'
        section = _section(t, works[t.workload], room, roofline)
        while len(found) == 1 and not room.holds(section) and room.halve():
            section = _section(t, works[t.workload], room, roofline)
        body.append(room.kept(t, heading, section))
    text = "\n".join(body)
    return f'{head}<body class="tir-page"><main class="tir">{text}</main>\n<script>{script}</script></body></html>\n'


class _Room:
    """How much of each workload is shown, so that a page of a long log is no larger than one can send."""

    def __init__(self, trials: int, log: str, left: int) -> None:
        self._trials, self.sources = max(1, trials), SOURCES
        self._log, self._left, self._part = log, left, 1

    def holds(self, text: str) -> bool:
        """Whether the page is short enough with it."""
        return len(text.encode()) <= self._left

    def halve(self) -> bool:
        """Show half as many things of each workload; False where they are few already."""
        self._part *= 2
        self.sources = SOURCES
        return self._part <= 64

    def kept(self, t: Tuned, heading: str, text: str) -> str:
        """The section of a workload, or where it is found if the page has no room for it."""
        if not self.holds(text):
            again = code(f"tensorir report {shlex.quote(self._log)} --workload {shlex.quote(brief(t.workload))}")
            text = f"<p>{dim(joined(['left out of a page this long; ', again], ''))}</p>"
        self._left -= len(text.encode())
        return f"{heading}\n{text}\n</section>"

    def again(self, verb: str, trial: str) -> Html:
        """The command that shows or runs a trial."""
        log = "" if self._log == DEFAULT_LOG else f" --log {shlex.quote(self._log)}"
        return code(f"tensorir {verb} {trial}{log}")

    def share(self, t: Tuned, of: int, least: int) -> int:
        """How many of ``of`` things one workload may show, at least ``least``."""
        return max(least, of * len(t.trials) // max(self._trials, of) // self._part)


def _section(t: Tuned, work: Workload | None, room: _Room, first: list[str]) -> str:
    good = [k for k, r in enumerate(t.trials) if passed(r)]
    shown = [_convergence(t, room)] if good else []
    shown += first
    if found := importance(t.trials):
        told = (f"Each knob alone (epsilon squared, per template): knobs that only matter together show little. The "
                f"interval is from {HALVES} random halves of the trials: few trials, long lines.")  # fmt: skip
        shown.append(f"<h3>Knobs</h3>{figures.importances(found)}<p>{html(told)}</p>")
    out = [_figures(*shown), _across(t, good, room), _trials(t, room), _failures(t, room), _notes(t)]
    return "\n".join([*out, _source(t, work, room)])


def _figures(*some: str) -> str:
    return f'<div class="tir-figures">{"".join(f"<div>{x}</div>" for x in some)}</div>' if some else ""


def _verdict(r: Record) -> str:
    """What is wrong with a trial; empty where nothing is."""
    if passed(r):
        return ""
    return "not checked" if r["status"] == "ok" else reason_of(r)


def _told(t: Tuned, n: int) -> str:
    """What hovering over a trial says: time, verdict, configuration."""
    r = t.trials[n]
    time_s = [] if r["time_s"] is None else [between(steady_s(r), *span(r))]
    head = f"trial {n + 1}: " + ", ".join([*time_s, _verdict(r) or "right", *["the best"] * (n == t.place)])
    return figures.short(head, MOST_CONFIG) + "\n" + figures.short(f"{r['template']}: {config_words(r)}", MOST_CONFIG)


def _convergence(t: Tuned, room: _Room) -> str:
    seconds = [steady_s(r) if passed(r) else None for r in t.trials]
    library = None if t.library is None else (str(t.library["name"])[:40], float(t.library["time_s"]))
    drawn = curves.best_so_far(seconds, t.place, lambda n: _told(t, n), library, room.share(t, DOTS, 20))
    least, fastest = min((s, n) for n, s in enumerate(seconds) if s is not None)
    said = ""
    if t.best is not None and t.place is not None and least < steady_s(t.trials[t.place]):
        said = f"When it was tried, trial {fastest + 1} was faster than the best, trial {t.place + 1}. "
        said += ("It failed when it was run again, or its template makes another kernel now." if t.best.round is None
                 else "The final round, which times the fastest interleaved, decides.")  # fmt: skip
    return f"<h3>Convergence</h3>{drawn}" + (f"<p>{html(said)}</p>" if said else "")


def _across(t: Tuned, good: Sequence[int], room: _Room) -> str:
    if t.best is None:
        return ""
    template = t.best.record["template"]
    places = [n for n in good if t.trials[n]["template"] == template]
    same = [t.trials[n] for n in places]
    if len(knobs(same)) < 2:
        return ""
    drawn = figures.parallel(same, places, t.best.record["id"], lambda n: _told(t, n), room.share(t, LINES, 20))
    said = "A line for each valid configuration: the stronger the faster, the best in red."
    return f'<h3>Configurations of {html(template)}</h3><div class="tir-wide-figure">{drawn}</div><p>{dim(said)}</p>'


def _trials(t: Tuned, room: _Room) -> str:
    """A table of them, the best first, then by their times, then what failed."""
    order = [n for *_, n in sorted((n != t.place, not passed(r), steady_s(r), n) for n, r in enumerate(t.trials))]
    kept = order[: room.share(t, ROWS, 10)]
    best = "the best"
    if t.best is not None and t.best.round is not None:
        best += f", {milliseconds(t.best.time_s)} in the final round"
    rows = []
    for n in kept:
        r = t.trials[n]
        times = ["", ""]
        if r["time_s"] is not None:
            low, high = map(milliseconds, span(r))
            times = [milliseconds(steady_s(r)), f"{low} to {high}"]
        said = best if n == t.place else figures.short(_verdict(r), 60)
        cells: list[Any] = [n + 1, *times, said, r["template"]]
        text = " ".join(f"<td>{html(c)}</td>" for c in cells[:-2])
        text += f' <td class="tir-said">{html(cells[-2])}</td> <td>{html(cells[-1])}</td>'
        mark = ' class="tir-picked"' if n == t.place else ""
        rows.append(f'<tr data-t="{n}"{mark}>{text} <td class="tir-told">{code(config_words(r))}</td></tr>')
    head = "".join(f"<th>{x}</th>" for x in ("trial", "time", "interval", "", "template", "configuration"))
    left = f"; {count(len(order) - len(kept), 'other')} are left out" if len(kept) < len(order) else ""
    final = "; those of finalists were measured again, interleaved" * (t.best is not None and t.best.round is not None)
    note = f"By their times{final}{left}."
    find = ('<input class="tir-search" type="search" hidden aria-label="search" '
            'placeholder="search: words, or knob=value"> <span class="tir-count tir-dim"></span>')  # fmt: skip
    made = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<h3>Trials</h3><p>{dim(note)}</p>{find}<div class="tir-rows">{made}</div>'


def _failures(t: Tuned, room: _Room) -> str:
    reasons = grouped_reasons(t.trials)
    known = {r["id"]: r for r in t.trials}
    some = reasons[:REASONS]
    rows = [(r["count"], str(r["status"]), str(r["reason"]), room.again("repro", r["trial"]),
             code(config_words(known[r["trial"]])) if r["trial"] in known else "") for r in some]  # fmt: skip
    if not rows:
        return ""
    made = grid(["trials", "status", "reason", "again", "such as"], rows)
    left = f"<p>{dim(count(len(reasons) - REASONS, 'other reason') + ' are left out')}</p>" * (len(reasons) > REASONS)
    return f'<h3>Failures</h3><div class="tir-failures">{made}</div>{left}'


def _notes(t: Tuned) -> str:
    """What else should be known of the times."""
    unstable = sum("unstable_timing" in r.get("flags", ()) for r in t.trials)
    words = t.load.words() if t.kind == "cpu" else ""
    rows = {
        "machine": f"while these were timed, {words}" if words else None,
        "unstable": f"{count(unstable, 'trial')} with an interval wider than a quarter of the time" * bool(unstable),
    }
    return str(table(rows))


def _source(t: Tuned, work: Workload | None, room: _Room) -> str:
    """The best configuration's text, where this version still makes the one that was measured."""
    if t.best is None:
        return ""
    target = target_of(t)
    made = None if work is None or target is None else regenerate(work, t.best.record, target)
    if made is None:
        why = "the workload is defined outside of tensorir" if work is None else "this version makes another one"
        why = "this version does not know its target" if target is None else why
        said = dim(f"The best configuration's source is not shown: {why}.")
        return f"<p>{said}</p>"
    text = made.source.text
    lines = f"Source of the best, {len(text.splitlines())} lines"
    if len(text) > room.sources:
        again = room.again("show", t.best.record["id"])
        return f"<p>{dim(joined([lines, ': left out of a page this long; ', again], ''))}</p>"
    shown = source(text) if 3 * len(text) <= room.sources else html(text)
    room.sources -= len(shown)
    return str(fold(lines, pre(shown)))
