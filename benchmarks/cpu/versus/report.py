"""A run as text: who took part, the ratios of each class, the figures that count."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from versus.acceptance import Bar, Figure, figures
from versus.document import Json, Result, Row, rows
from versus.stats import Interval, ratio

BUSY = 0.5  # processes that want to run, for each core

CLASSES = {
    "square": "Matrix products, squares",
    "bert": "Matrix products of BERT-base, 128 tokens",
    "skinny": "Matrix products with few rows",
    "resnet50": "ResNet-50 convolutions",
    "mobilenet": "MobileNet v1 depthwise convolutions",
    "vgg+alexnet": "VGG-16 and AlexNet convolutions",
}


def text(document: Json) -> str:
    """The whole report."""
    found = rows(document)
    blocks = [head(document), *_tables(found, document.get("peak")), _excluded(found), _figures(found, _peak(document))]
    return "\n\n".join(b for b in blocks if b)


def progress(row: Row) -> str:
    """One workload in one line: GF/s by medians."""
    parts = [f"{r.name} {row.gflops(r.median_s):.1f}" for r in sorted(row.results, key=lambda r: r.median_s)]
    out = [f"{name} out" for name in row.excluded]
    return f"{row.problem.name:24} GF/s: " + ", ".join([*parts, *out])


def head(document: Json) -> str:
    """Where it ran, and who took part."""
    e = document["environment"]
    lines = [
        f"{e['cpu']}, {document['settings']['threads']} threads, {e['started']}; load {e['load'][0]:.1f} at the start"
    ]
    if e["load"][0] > BUSY * e["cores"]:
        lines.append("the machine was busy with something else: these figures say nothing about speed")
    peak = document.get("peak")
    if peak:
        middle = statistics.median(peak["slots_gflops"])
        lines.append(f"FMA peak, measured: {peak['gflops']:.1f} GF/s ({middle:.1f} by medians of slots)")
    said = ""
    for name, c in document["competitors"].items():
        about = f"missing: {c['missing']}" if c["missing"] else _versions(c["versions"])
        lines.append(f"  {name:17} " + (about if about != said else "the same"))
        said = about
    for label, reason in document.get("unavailable", {}).items():
        lines.append(f"  {'ours:' + label:17} not available: {reason}")
    return "\n".join(lines)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{k} {v}" for k, v in versions.items())[:150]


# --- tables


def _tables(found: Sequence[Row], peak: dict[str, Any] | None) -> Iterator[str]:
    for group, title in CLASSES.items():
        mine = [r for r in found if r.problem.group == group]
        if mine:
            top = peak["gflops"] if peak else None
            lines = [f"{title}: best peer's time / ours, by medians [95 %], and of the fastest calls", _columns()]
            yield "\n".join([*lines, *(line for r in mine for line in _lines(r, top))])


_FORMAT = "{:24} {:>22} {:>5}  {:22} {:>6} {:>5}  {:>5} {:>13} {:>7}  {}"


def _columns() -> str:
    return _FORMAT.format("", "best peer, GF/s", "peak", "ours", "GF/s", "peak", "ratio", "", "fastest", "")


def _lines(row: Row, peak: float | None) -> Iterator[str]:
    best = row.best("peer")
    theirs = (
        ("no peer", "") if best is None else (f"{best.name} {row.gflops(best.median_s):.1f}", _share(row, best, peak))
    )
    name = row.problem.name
    for r in sorted(row.side("ours") + row.side("reference"), key=lambda r: (r.side, r.layout, r.label)):
        yield _FORMAT.format(name, *theirs, *_cells(row, r, best, peak)).rstrip()
        name, theirs = "", ("", "")
    if name:
        yield _FORMAT.format(name, *theirs, "none of ours", *[""] * 6).rstrip()


def _cells(row: Row, r: Result, best: Result | None, peak: float | None) -> tuple[str, ...]:
    who = (r.name, f"{row.gflops(r.median_s):.1f}", _share(row, r, peak))
    fastest = row.fastest("peer")
    if best is None or fastest is None:
        return (*who, "", "", "", _how(r))
    value = ratio(best.rounds, r.rounds)
    return (*who, f"{value.value:.2f}", _range(value), f"{fastest / r.fastest_s:.2f}", _how(r))


def _share(row: Row, r: Result, peak: float | None) -> str:
    """Of the peak, by the fastest call: what the kernel can, not what the machine was doing."""
    return f"{100 * row.gflops(r.fastest_s) / peak:.0f}%" if peak else ""


def _how(r: Result) -> str:
    origin = {"default": "untuned", "log": "tuned"}.get(r.about.get("origin", ""), "")
    return " ".join(filter(None, [origin, r.algorithm if r.algorithm != r.label else "", f"error {r.error:.0e}"]))


def _range(i: Interval) -> str:
    return f"[{i.low:.2f}, {i.high:.2f}]"


def _excluded(found: Sequence[Row]) -> str:
    lines = [f"  {row.problem.name}: {name}: {why}" for row in found for name, why in row.excluded.items()]
    return "\n".join(["Left out:", *lines]) if lines else ""


# --- the figures that count


def _peak(document: Json) -> float | None:
    return document["peak"]["gflops"] if document.get("peak") else None


def _figures(found: Sequence[Row], peak: float | None) -> str:
    lines = [line for f in figures(found, peak) for line in _figure(f)]
    return "\n".join(["Figures, with floor / goal where there is one:", *lines]) if lines else ""


def _figure(f: Figure) -> Iterator[str]:
    whole = f.count >= f.wanted
    part = "" if whole else f"  only {f.count} of {f.wanted}"
    value = f"{f.value.value:.2f} {_range(f.value)}, fastest {f.fastest:.2f}"
    remark = f"  ({f.remark})" if f.remark else ""
    yield f"{f.item:>2} {f.title:62} {value:38} {_bar(f.bar, f.value.value, whole)}{part}{remark}".rstrip()
    if f.at_peak is not None:
        yield f"{'':5}{'with what is direct at the FMA peak':60} fastest {f.at_peak:.2f}"
    if f.worst is not None:
        ratio_, fastest, name = f.worst
        worst = f"{ratio_:.2f}, fastest {fastest:.2f}"
        yield f"{'':5}worst {name:54} {worst:38} {_bar(f.worst_bar, ratio_, whole)}".rstrip()


def _bar(bar: Bar, value: float, whole: bool) -> str:
    """What is asked; a part of the workloads reaches nothing."""
    if bar.floor is None:
        return ""
    asked = f"{bar.floor:.2f}" + (f" / {bar.goal:.2f}" if bar.goal is not None else "")
    return f"{asked}: {bar.verdict(value)}" if whole else asked


def figures_json(document: Json) -> list[Json]:
    """The same figures for the document."""
    out = []
    for f in figures(rows(document), _peak(document)):
        worst = None if f.worst is None else dict(zip(("ratio", "fastest", "workload"), f.worst, strict=True))
        out.append(
            {"item": f.item, "title": f.title, "value": f.value.value, "low": f.value.low, "high": f.value.high,
             "fastest": f.fastest, "at_peak": f.at_peak, "floor": f.bar.floor, "goal": f.bar.goal,
             "workloads": f.count, "of": f.wanted, "worst": worst, "worst_floor": f.worst_bar.floor,
             "worst_goal": f.worst_bar.goal, "remark": f.remark}
        )  # fmt: skip
    return out
