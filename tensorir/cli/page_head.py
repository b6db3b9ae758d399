"""The head of a report: how good the best kernels are, next to libraries, defaults and measured peaks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from tensorir.cli.roofs import Above
from tensorir.cli.titles import brief
from tensorir.show import figures
from tensorir.show.pieces import Html, code, coloured, dim, grid, html, joined
from tensorir.tune.progress import UNTOLD, between, duration, milliseconds, rate, statuses
from tensorir.tune.ratio import Ratio
from tensorir.tune.record import Record, relevant
from tensorir.tune.summary import Tuned

MOST_CONFIG = 200


def config_words(record: Record, most: int = MOST_CONFIG) -> str:
    """``tile=8 vec=True``: a word for each knob, as searching takes them."""
    return figures.short(" ".join(f"{k}={figures.word(v)}" for k, v in record["config"].items()), most)


def summary(found: Sequence[Tuned], skipped: str) -> str:
    """What there is, in a line."""
    trials = sum(len(t.trials) for t in found)
    days = sorted(r["started"][:10] for t in found for r in (*t.trials[:1], *t.trials[-1:]))
    parts = [count(len({t.workload for t in found}), "workload"), count(len({t.device for t in found}), "device"),
             count(trials, "trial"), f"{duration(sum(t.spent_s for t in found))} of tuning",
             " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))]  # fmt: skip
    return ", ".join(p for p in (*parts, skipped) if p)


def count(n: int, what: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def whereabouts(found: Sequence[Tuned]) -> list[str]:
    """On which device each was tuned; of one workload on one device, also what tells the results apart."""
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
    """What results depend on besides workload and device (``log.identity_of``)."""
    record = t.trials[0] if t.trials or t.best is None else t.best.record
    return {"driver": record["device"]["driver"], **relevant(record["versions"]), "definition": record["compute"][:8]}


def _fact(label: str, big: Any, *notes: Any, doubtful: bool = False) -> str:
    mark = " tir-warn" if doubtful else ""
    said = "".join(f'<span class="tir-note">{html(n)}</span>' for n in notes[1:] if n)
    first = f'<span class="tir-ends">{html(notes[0])}</span>' if notes and notes[0] else ""
    return (f'<div class="tir-fact"><span class="tir-label">{html(label)}</span>'
            f'<span class="tir-big{mark}">{html(big)}</span>{first}{said}</div>')  # fmt: skip


def result(n: int, t: Tuned, above: Above | None, where: str) -> str:
    """The best kernel next to the library, the default and the peaks, and what it took to find it."""
    name = f'<a href="#w{n}">{html(brief(t.workload))}</a>'
    out = [f'<div class="tir-wide tir-what">{name} {dim(where)}</div>']
    if t.best is None:
        out += [_fact("best", "no valid configuration"), _search_fact(t)]
        return f'<div class="tir-result">{"".join(out)}</div>'
    best = t.best
    out += [_best_fact(t, above), _library_fact(t)]
    out += [_default_fact(t), _peak_fact(above), _search_fact(t)]
    config = f"{best.record['template']}: {config_words(best.record)}"
    trial = dim("trial " + best.record["id"])
    out.append(f'<div class="tir-wide">{code(config)} {trial}</div>')
    if doubt := _doubt(t):
        out.append(f'<div class="tir-wide">{coloured(doubt, "warn")}</div>')
    return f'<div class="tir-result">{"".join(out)}</div>'


def _best_fact(t: Tuned, above: Above | None) -> str:
    best = t.best
    assert best is not None
    unstable = "unstable_timing" in best.timed.get("flags", ())
    fast = f"{rate(above.point.best)}, " if above is not None and above.point is not None else ""
    where = fast + ("as a trial" if best.round is None else "final round")
    ends = f"{milliseconds(best.low_s)} to {milliseconds(best.high_s)}"
    if best.high_s > UNTOLD * best.low_s:
        ends = "cannot be told on this busy machine"
    mark = coloured("unstable timing", "warn") if unstable else ""
    time_s = ("~" if unstable else "") + milliseconds(best.time_s)
    return _fact("best time", time_s, ends, mark, where, doubtful=unstable)


def _doubt(t: Tuned) -> str:
    """Why times or ratios are unsteady; empty where they are not."""
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
    counts = Counter(r["status"] for r in t.trials)
    return _fact("search", count(len(t.trials), "trial"), f"in {duration(t.spent_s)}", statuses(counts))


def rooflines(found: Sequence[Tuned], above: Sequence[Above | None]) -> list[str]:
    """A figure for each device."""
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
