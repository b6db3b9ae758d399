"""tensorir report: a tuning log as one HTML file that needs no other; its script only searches and highlights."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorir.api.load import regenerate
from tensorir.api.schedule import Schedule
from tensorir.api.workload import Workload
from tensorir.cli import common
from tensorir.cli.common import Stop, clean, put, put_json, say, usage
from tensorir.cli.parse import work_of
from tensorir.cli.roofline import Above, Roofs, target_of
from tensorir.cli.titles import brief, whole
from tensorir.show import curves, figures
from tensorir.show.pieces import Html, code, coloured, dim, file, fold, grid, html, joined, pre, source, style, table
from tensorir.tune.brief import reason_of
from tensorir.tune.log import LogReader, passed
from tensorir.tune.outcome import grouped_reasons
from tensorir.tune.progress import UNTOLD_RATIO, between, duration, milliseconds, rate, statuses
from tensorir.tune.ratio import Ratio, without_slots
from tensorir.tune.record import Record, relevant
from tensorir.tune.summary import IMPORTANCE_HALVES, Tuned, importance, knobs, tuned

MAX_ROWS, MAX_DOTS, MAX_LINES = 1200, 800, 400  # at most, in all tables and figures of a page together
DEFAULT_LOG = "tuning_logs"
COMPACT_RESULTS = 3  # results from which on they are shown in little room
MAX_WORKLOADS = 100  # on a page at most
MAX_REASONS = 40  # kinds of failures shown of a workload at most
MAX_SOURCE_CHARACTERS = 250_000  # characters of kernels on a page at most
MAX_PAGE_BYTES = 950_000  # size of a page at most, without the names of what is left out
MOST_CONFIG = 200

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src '{sum}'">
<title>{title}</title>{style}</head>
"""


def run(log: str, output: str, workload: str | None, measure: bool, as_json: bool) -> int:
    """Make one HTML page of the tuning log in the folder LOG, which needs no other file and no network; return the exit
    code.
    """
    reader = LogReader(log)
    asked = next(iter(whole(reader, [workload] if workload else [])), None)
    found = tuned(reader.records(workload=asked))
    if reader.summary():
        say(f"log: {reader.summary()}")
    if not found and workload:
        raise usage(f"there are no records of {clean(workload)} in {log}", f"tensorir log ls --log {log}")
    if not found:
        raise usage(f"there are no records in {log}", "tensorir tune conv2d")
    name = log.encode("utf-8", "replace").decode()  # folders may have names that are no text
    text = page(name, found, reader.summary(), measure)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as e:
        raise Stop(common.USAGE, f"cannot write {output}: {e.strerror}") from None
    if as_json:
        rows = [_row(t) for t in found]
        put_json({"schema": 1, "output": output, "rows": rows})
    else:
        put(output)
    return common.OK


def _row(t: Tuned) -> dict[str, Any]:
    """Summary of a workload's tuning on one device, as JSON fields."""
    best = {key: getattr(t.best, key, None) for key in ("time_s", "low_s", "high_s")}
    library = None
    if t.library is not None and t.ratio is not None:
        library = without_slots(t.library) | t.ratio.json()
    default = None if t.gain is None else {"time_s": t.default_s, **t.gain.json()}
    row = {"workload": t.workload, "device": t.device, "trials": len(t.trials), "spent_s": round(t.spent_s, 3)}
    return row | {"best": t.best.record.id if t.best else None, **best, "default": default, "baseline": library}


def page(log: str, found: Sequence[Tuned], skipped: str, measure: bool = True) -> str:
    """Complete HTML text of the report, 0.95 MB at most without the headings: on the first ``MAX_WORKLOADS`` results,
    with fewer rows, dots and sources the more there are.

    skipped: ``LogReader.summary`` of lines left out;  measure: True: measure the peaks of devices that are here
    """
    script = file("report.js")
    digest = "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    head = _HEAD.format(sum=digest, title=html(f"Tuning of {log}"), style=style("report.css"))
    told = summary(found, skipped)
    if len(found) > MAX_WORKLOADS:
        told += f"; {count(len(found) - MAX_WORKLOADS, 'result')} with fewer trials are left out"
        found = found[:MAX_WORKLOADS]
    works = {t.workload: work_of(t.workload) for t in found}
    roofs = Roofs(measure)
    above = [None if t.best is None else roofs.above(t, works[t.workload]) for t in found]
    body = [f'<h1 class="tir-head"><b>Tuning</b>{code(log)}</h1>', f"<p>{dim(told)}</p>"]
    where = whereabouts(found)
    shown = (result(n, t, a, w) for n, (t, a, w) in enumerate(zip(found, above, where, strict=True)))
    body.append(f'<div class="{"tir-many" if len(found) > COMPACT_RESULTS else "tir-few"}">{"".join(shown)}</div>')
    roofline = rooflines(found, above)
    if len(found) > 1:
        body.append(_figures(*roofline))
        roofline = []
    room = _Room(sum(len(t.trials) for t in found), log, MAX_PAGE_BYTES - sum(len(x.encode()) for x in (*body, head)))
    for n, (t, w) in enumerate(zip(found, where, strict=True)):
        heading = f'<section id="w{n}"><h2>{html(brief(t.workload))} <small>{dim(w)}</small></h2>'
        section = _section(t, works[t.workload], room, roofline)
        while len(found) == 1 and not room.holds(section) and room.halve():
            section = _section(t, works[t.workload], room, roofline)
        body.append(room.kept(t, heading, section))
    text = "\n".join(body)
    return f'{head}<body class="tir-page"><main class="tir">{text}</main>\n<script>{script}</script></body></html>\n'


class _Room:
    """Size budget of the page: numbers of rows, dots and lines to show per workload, and bytes left."""

    def __init__(self, trials: int, log: str, left: int) -> None:
        self._trials, self.sources = max(1, trials), MAX_SOURCE_CHARACTERS
        self._log, self._left, self._part = log, left, 1

    def holds(self, text: str) -> bool:
        """True if ``text`` fits in the bytes that are left."""
        return len(text.encode()) <= self._left

    def halve(self) -> bool:
        """Halve the number of items shown per workload; return False if it has become too small to go lower."""
        self._part *= 2
        self.sources = MAX_SOURCE_CHARACTERS
        return self._part <= 64

    def kept(self, t: Tuned, heading: str, text: str) -> str:
        """HTML of a workload's section, subtracted from the bytes left; if ``text`` does not fit, a command that shows
        it instead.
        """
        if not self.holds(text):
            again = code(f"tensorir report {shlex.quote(self._log)} --workload {shlex.quote(brief(t.workload))}")
            text = f"<p>{dim(joined(['left out of a page this long; ', again], ''))}</p>"
        self._left -= len(text.encode())
        return f"{heading}\n{text}\n</section>"

    def again(self, verb: str, trial: str) -> Html:
        """HTML of the command ``tensorir VERB TRIAL``, which shows or repeats a trial."""
        log = "" if self._log == DEFAULT_LOG else f" --log {shlex.quote(self._log)}"
        return code(f"tensorir {verb} {trial}{log}")

    def share(self, t: Tuned, of: int, least: int) -> int:
        """Number of ``t``'s items to show if the page shows ``of`` in total: by its share of the trials, at least
        ``least``.
        """
        return max(least, of * len(t.trials) // max(self._trials, of) // self._part)


def _section(t: Tuned, work: Workload | None, room: _Room, first: list[str]) -> str:
    good = [k for k, r in enumerate(t.trials) if passed(r)]
    shown = [_convergence(t, room)] if good else []
    shown += first
    if found := importance(t.trials):
        told = "Each knob alone (epsilon squared, per template): knobs that only matter together show little. The "
        told += f"interval is from {IMPORTANCE_HALVES} random halves of the trials: few trials, long lines."
        shown.append(f"<h3>Knobs</h3>{figures.importances(found)}<p>{html(told)}</p>")
    out = [_figures(*shown), _across(t, good, room), _trials(t, room), _failures(t, room), _notes(t)]
    return "\n".join([*out, _source(t, work, room)])


def _figures(*some: str) -> str:
    return f'<div class="tir-figures">{"".join(f"<div>{x}</div>" for x in some)}</div>' if some else ""


def _verdict(r: Record) -> str:
    """The fault of a trial in words, or "not checked" for one that only ran; "" for one that passed."""
    if passed(r):
        return ""
    return "not checked" if r.status == "ok" else reason_of(r)


def _told(t: Tuned, n: int) -> str:
    """Tooltip of the trial number ``n``: time, verdict, configuration."""
    r = t.trials[n]
    time_s = [] if r.time_s is None else [between(r.steady_s, *r.span)]
    head = f"trial {n + 1}: " + ", ".join([*time_s, _verdict(r) or "right", *["the best"] * (n == t.place)])
    return figures.short(head, MOST_CONFIG) + "\n" + figures.short(f"{r.template}: {config_words(r)}", MOST_CONFIG)


def _convergence(t: Tuned, room: _Room) -> str:
    seconds = [r.steady_s if passed(r) else None for r in t.trials]
    library = None if t.library is None else (str(t.library["name"])[:40], float(t.library["time_s"]))
    drawn = curves.best_so_far(seconds, t.place, lambda n: _told(t, n), library, room.share(t, MAX_DOTS, 20))
    least, fastest = min((s, n) for n, s in enumerate(seconds) if s is not None)
    said = ""
    if t.best is not None and t.place is not None and least < t.trials[t.place].steady_s:
        said = f"When it was tried, trial {fastest + 1} was faster than the best, trial {t.place + 1}. "
        said += ("It failed when it was run again, or its template makes another kernel now." if t.best.round is None
                 else "The final round, which times the fastest interleaved, decides.")  # fmt: skip
    return f"<h3>Convergence</h3>{drawn}" + (f"<p>{html(said)}</p>" if said else "")


def _across(t: Tuned, good: Sequence[int], room: _Room) -> str:
    if t.best is None:
        return ""
    template = t.best.record.template
    places = [n for n in good if t.trials[n].template == template]
    same = [t.trials[n] for n in places]
    if len(knobs(same)) < 2:
        return ""
    drawn = figures.parallel(same, places, t.best.record.id, lambda n: _told(t, n), room.share(t, MAX_LINES, 20))
    said = "A line for each valid configuration: the stronger the faster, the best in red."
    return f'<h3>Configurations of {html(template)}</h3><div class="tir-wide-figure">{drawn}</div><p>{dim(said)}</p>'


def _trials(t: Tuned, room: _Room) -> str:
    """HTML table of trials: the best, then others by time, then failures."""
    order = [n for *_, n in sorted((n != t.place, not passed(r), r.steady_s, n) for n, r in enumerate(t.trials))]
    kept = order[: room.share(t, MAX_ROWS, 10)]
    best = "the best"
    if t.best is not None and t.best.round is not None:
        best += f", {milliseconds(t.best.time_s)} in the final round"
    rows = []
    for n in kept:
        r = t.trials[n]
        times = ["", ""]
        if r.time_s is not None:
            low, high = map(milliseconds, r.span)
            times = [milliseconds(r.steady_s), f"{low} to {high}"]
        said = best if n == t.place else figures.short(_verdict(r), 60)
        cells: list[Any] = [n + 1, *times, said, r.template]
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
    known = {r.id: r for r in t.trials}
    some = reasons[:MAX_REASONS]
    rows = [(r["count"], str(r["status"]), str(r["reason"]), room.again("repro", r["trial"]),
             code(config_words(known[r["trial"]])) if r["trial"] in known else "") for r in some]  # fmt: skip
    if not rows:
        return ""
    made = grid(["trials", "status", "reason", "again", "such as"], rows)
    left = f"<p>{dim(count(len(reasons) - MAX_REASONS, 'other reason') + ' are left out')}</p>" * (
        len(reasons) > MAX_REASONS
    )
    return f'<h3>Failures</h3><div class="tir-failures">{made}</div>{left}'


def _notes(t: Tuned) -> str:
    """HTML notes on the load of the machine and on trials with wide confidence intervals; empty if there are none."""
    unstable = sum("unstable_timing" in (r.flags or ()) for r in t.trials)
    words = t.load.words() if t.kind == "cpu" else ""
    rows = {
        "machine": f"while these were timed, {words}" if words else None,
        "unstable": f"{count(unstable, 'trial')} with an interval wider than a quarter of the time" * bool(unstable),
    }
    return str(table(rows))


def _source(t: Tuned, work: Workload | None, room: _Room) -> str:
    """HTML of the best configuration's kernel text, or of the reason for its absence; "" without a best configuration.

    A text over ``room.sources`` characters is replaced by the command that shows it; else its length is subtracted.
    """
    if t.best is None:
        return ""
    target = target_of(t)
    made = None if work is None or target is None else regenerate(work, t.best.record, target)
    if made is None:
        why = "the workload is defined outside of tensorir" if work is None else "this version makes another one"
        why = "this version does not know its target" if target is None else why
        said = dim(f"The best configuration's source is not shown: {why}.")
        return f"<p>{said}</p>"
    noted = f"<p>{_modelled(made.schedule)}</p>\n" if made.schedule is not None else ""
    text = made.source.text
    lines = f"Source of the best, {len(text.splitlines())} lines"
    if len(text) > room.sources:
        again = room.again("show", t.best.record.id)
        return f"{noted}<p>{dim(joined([lines, ': left out of a page this long; ', again], ''))}</p>"
    shown = source(text) if 3 * len(text) <= room.sources else html(text)
    room.sources -= len(shown)
    return f"{noted}{fold(lines, pre(shown))}"


def _modelled(s: Schedule) -> Html:
    """Modelled time of the best configuration, with what stays idle and the step against it."""
    return joined([s.expected.brief, *map(code, s.expected.notes)], "; ")


# The head of a report: how good the best kernels are, next to libraries, defaults and measured peaks.


def config_words(record: Record, most: int = MOST_CONFIG) -> str:
    """Configuration as searchable words ``tile=8 vec=True``, cut to ``most`` characters."""
    return figures.short(" ".join(f"{k}={figures.word(v)}" for k, v in record.config.items()), most)


def summary(found: Sequence[Tuned], skipped: str) -> str:
    """One line with the log's numbers of workloads, devices and trials, its seconds of tuning and its days.

    skipped: text on skipped lines, appended
    """
    trials = sum(len(t.trials) for t in found)
    days = sorted(r.started[:10] for t in found for r in (*t.trials[:1], *t.trials[-1:]))
    parts = [count(len({t.workload for t in found}), "workload"), count(len({t.device for t in found}), "device"),
             count(trials, "trial"), f"{duration(sum(t.spent_s for t in found))} of tuning",
             " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))]  # fmt: skip
    return ", ".join(p for p in (*parts, skipped) if p)


def count(n: int, what: str) -> str:
    """``1 trial``, ``2 trials``: a number with its noun."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def whereabouts(found: Sequence[Tuned]) -> list[str]:
    """One text per result: its device, and the facts that differ between results of one workload and device."""
    alike: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for t in found:
        alike[t.workload, t.device].append(_circumstances(t))
    out = []
    for t in found:
        mine, others = _circumstances(t), alike[t.workload, t.device]
        telling = [f"{k} {v}" for k, v in mine.items() if any(o.get(k) != v for o in others)]
        out.append(", ".join([f"on {t.device}", *telling]))
    return out


def _circumstances(t: Tuned) -> dict[str, str]:
    """Facts of a result besides workload and device: driver, versions, digest of the definition."""
    record = t.trials[0] if t.trials or t.best is None else t.best.record
    return {"driver": record.device["driver"], **relevant(record.versions), "definition": record.compute[:8]}


def _fact(label: str, big: Any, *notes: Any, doubtful: bool = False) -> str:
    mark = " tir-warn" if doubtful else ""
    said = "".join(f'<span class="tir-note">{html(n)}</span>' for n in notes[1:] if n)
    first = f'<span class="tir-ends">{html(notes[0])}</span>' if notes and notes[0] else ""
    return (f'<div class="tir-fact"><span class="tir-label">{html(label)}</span>'
            f'<span class="tir-big{mark}">{html(big)}</span>{first}{said}</div>')  # fmt: skip


def result(n: int, t: Tuned, above: Above | None, where: str) -> str:
    """HTML block on the best kernel: compared with library, default and roofline, and the search's cost.

    n: number of the section that it links to;  where: text on the device
    """
    name = f'<a href="#w{n}">{html(brief(t.workload))}</a>'
    out = [f'<div class="tir-wide tir-what">{name} {dim(where)}</div>']
    if t.best is None:
        out += [_fact("best", "no valid configuration"), _search_fact(t)]
        return f'<div class="tir-result">{"".join(out)}</div>'
    best = t.best
    out += [_best_fact(t, above), _library_fact(t)]
    out += [_default_fact(t), _peak_fact(above), _search_fact(t)]
    config = f"{best.record.template}: {config_words(best.record)}"
    trial = dim("trial " + best.record.id)
    out.append(f'<div class="tir-wide">{code(config)} {trial}</div>')
    if doubt := _doubt(t):
        out.append(f'<div class="tir-wide">{coloured(doubt, "warn")}</div>')
    return f'<div class="tir-result">{"".join(out)}</div>'


def _best_fact(t: Tuned, above: Above | None) -> str:
    best = t.best
    assert best is not None
    unstable = "unstable_timing" in (best.timed.flags or ())
    fast = f"{rate(above.point.best)}, " if above is not None and above.point is not None else ""
    where = fast + ("as a trial" if best.round is None else "final round")
    ends = f"{milliseconds(best.low_s)} to {milliseconds(best.high_s)}"
    if best.high_s > UNTOLD_RATIO * best.low_s:
        ends = "cannot be told on this busy machine"
    mark = coloured("unstable timing", "warn") if unstable else ""
    time_s = ("~" if unstable else "") + milliseconds(best.time_s)
    return _fact("best time", time_s, ends, mark, where, doubtful=unstable)


def _doubt(t: Tuned) -> str:
    """Reason why times are unreliable, beginning "unsteady: "; "" if they are reliable."""
    library = "the library" if t.library is None else figures.short(str(t.library["name"]))
    load = None if t.best is None else t.best.load
    busy = "" if load is None else load.words()
    named = [(f"against {name}", r) for name, r in ((library, t.ratio), ("the default", t.gain))]
    said = [f"{name} {r.doubt}" for name, r in named if r is not None and r.doubt and r.doubt != busy]
    said += [busy] if busy else []
    return "unsteady: " + "; ".join(said) if said else ""


def _default_fact(t: Tuned) -> str:
    if t.default is t.best is not None:
        return _fact("against the default", "1.00x", "", "the default is the best")
    return _ratio_fact("against the default", t.gain, "", f"default {milliseconds(t.default_s or 0)}")


def _library_fact(t: Tuned) -> str:
    if t.library is None or t.ratio is None:
        return _fact("against a library", "not timed", "", "the log has none of its final rounds")
    name = str(t.library["name"])
    peer = f"{name} {between(t.library['time_s'], t.library['low_s'], t.library['high_s'])}"
    return _ratio_fact(f"against {figures.short(name)}", t.ratio, figures.ratio_bar(t.ratio), peer)


def _ratio_fact(label: str, ratio: Ratio | None, *notes: Any) -> str:
    if ratio is None:
        return _fact(label, "not known", "", "it has no valid time")
    if ratio.hopeless:
        return _fact(label, "unsteady", "no ratio can be told", *notes[1:], doubtful=True)
    mark = "" if ratio.steady else coloured("unsteady", "warn")
    ends = f"{ratio.low:.3g} to {ratio.high:.3g}x {label.removeprefix('against ')}"
    return _fact(label, ratio.text().removesuffix(" (unsteady)"), ends, *notes[:1], mark, *notes[1:],
                 doubtful=not ratio.steady)  # fmt: skip


def _peak_fact(above: Above | None) -> str:
    if above is None or above.share is None or above.point is None or above.roof is None:
        why = "not measured" if above is None else above.why
        short = "not measured" if why.startswith("not measured") else "not known"
        return _fact("of the measured peak", short, "", why.removeprefix("not measured: "))
    most, what = above.roof.at(above.point.intensity)
    low, high = above.point.low / most, above.point.high / most
    what += ", from caches" if above.share > 1 and what == "memory" else ""
    unit = f"{above.roof.bytes_s / 1e9:.4g} GB/s" if what.startswith("memory") else rate(most)
    busy = coloured("at most: measured on a busy machine", "warn") if above.busy else ""
    return _fact("of the measured peak", f"{above.share:.0%}", f"{low:.0%} to {high:.0%}", f"of {what}: {unit}", busy,
                 doubtful=bool(above.busy))  # fmt: skip


def _search_fact(t: Tuned) -> str:
    counts = Counter(r.status for r in t.trials)
    return _fact("search", count(len(t.trials), "trial"), f"in {duration(t.spent_s)}", statuses(counts))


def rooflines(found: Sequence[Tuned], above: Sequence[Above | None]) -> list[str]:
    """HTML of roofline figures, one per device with a known position of a kernel; of several results also a table of
    the points of each.
    """
    out = []
    for device in dict.fromkeys(t.device for t in found):
        mine = [(t, a) for t, a in zip(found, above, strict=True) if t.device == device and a is not None and a.point]
        points = [a.point for _, a in mine if a.point is not None]
        if not points:
            continue
        roof = next((a.roof for _, a in mine if a.roof is not None), None)
        busy = next((a.busy for _, a in mine if a.busy), "")
        out.append(f"<h3>Roofline of {html(device)}</h3>{figures.roofline(points, roof)}<p>{_peaks(roof, busy)}</p>")
        if len(found) > 1:
            header = ["", "workload", "ops/byte", "rate", "limit", "of the peak"]
            rows = [(n + 1, *_place(t, a)) for n, (t, a) in enumerate(mine)]
            out.append(f'<h3>Its points</h3><div class="tir-rows">{grid(header, rows)}</div>')
    return out


def _place(t: Tuned, above: Above) -> tuple[Any, ...]:
    assert above.point is not None
    limit = above.roof.at(above.point.intensity)[1] if above.roof is not None and above.roof.measured else ""
    share = "not measured" if above.share is None else f"{above.share:.0%}"
    return code(brief(t.workload)), f"{above.point.intensity:.3g}", rate(above.point.best), limit, share


def _peaks(roof: figures.Roof | None, busy: str) -> Html:
    if roof is None:
        return html("Peaks: not measured. A report made on the device's machine measures them.")
    if not roof.measured:
        return html("Peaks: not measured; dashed, what the data sheet says of float32 in threads and of memory.")
    said = "Peaks: measured here, by multiply-adds of float32 in registers and by reading an array of 512 MiB."
    return joined([html(said), coloured(f" Meanwhile {busy}: they may be higher.", "warn") if busy else ""], "")
