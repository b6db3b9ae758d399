"""Markdown of a result: ratios by class, element type and library, then every row. Above 1 ours is faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .results import Json

CACHES = ("cold", "warm")
BEST = "best library"


def ratios(row: Json, cache: str) -> dict[str, float]:
    """A library's median over ours by library, and that of the fastest of them; empty where it was not timed."""
    figures = row.get(cache) or {}
    ours = figures.get("ours", {}).get("median_s")
    if not ours:
        return {}
    found = {name: f["median_s"] / ours for name, f in figures.items() if name != "ours"}
    return found | ({BEST: min(found.values())} if found else {})


def geomean(values: Iterable[float]) -> float:
    """The geometric mean."""
    kept = list(values)
    return math.exp(sum(map(math.log, kept)) / len(kept))


def markdown(document: Json) -> str:
    """The whole report."""
    rows = document["rows"]
    parts = [_environment(document), _counts(rows), _stages(document), _kernels(rows), _classes(rows), _rows(rows),
             _remarks(document)]  # fmt: skip
    return "\n\n".join(p for p in parts if p) + "\n"


def classes(rows: Sequence[Json], of: Callable[[Json], str] = lambda row: str(row["group"])) -> list[Json]:
    """For each class, kind and library: number of rows, geometric mean and worst ratio, cold and warm.

    of: the class of a row
    """
    found: dict[tuple[str, str, str], dict[str, list[tuple[float, str]]]] = {}
    for row in rows:
        for cache in CACHES:
            for library, value in ratios(row, cache).items():
                key = of(row), row["kind"], library
                found.setdefault(key, {c: [] for c in CACHES})[cache].append((value, row["name"]))
    out = []
    for (group, kind, library), by_cache in found.items():
        line: Json = {"group": group, "kind": kind, "library": library, "rows": max(map(len, by_cache.values()))}
        for cache, values in by_cache.items():
            line[cache] = {"geomean": geomean(v for v, _ in values), "worst": min(values)} if values else None
        out.append(line)
    return out


# --- parts


def _environment(document: Json) -> str:
    return "\n\n".join(
        "; ".join(f"{name} {_plain(value)}" for name, value in run.items() if value not in (None, "", {}, []))
        for run in document["runs"][-1:]
    )


def _plain(value: Any) -> str:
    return ", ".join(f"{k} {_plain(v)}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def _counts(rows: Sequence[Json]) -> str:
    """How many are exact, and loudly what is not."""
    by = {s: [r for r in rows if r["status"] == s] for s in ("exact", "wrong", "failed", "skipped")}
    tried = [t for r in rows for t in r["tried"]]
    others = ", ".join(f"{sum(t['status'] == s for t in tried)} {s}" for s in ("wrong", "skipped", "failed"))
    exact = sum(t["status"] == "exact" for t in tried)
    told = [f"{len(by['exact'])} of {len(rows)} rows exact, {len(by['wrong'])} wrong, {len(by['failed'])} failed."]
    told[0] += f" {len(by['skipped'])} are not for this device." if by["skipped"] else ""
    told += [f"{exact} of {len(tried)} configurations exact, {others}."] if tried else []
    told += [f"- WRONG: {r['name']}: {r.get('wrong', 0)} configurations, largest difference {r.get('largest')}"
             for r in rows if r["status"] == "wrong" or r.get("wrong")]  # fmt: skip
    told += [f"- failed: {r['name']}: {r['reason']}" for r in by["failed"]]
    return "\n".join(told)


def _stages(document: Json) -> str:
    """What was compared only: how many rows of each stage are right, and how near to the bound of their errors."""
    stages: dict[str, list[Json]] = {}
    for row in document["rows"]:
        if not row["timed"]:
            stages.setdefault(row["group"], []).append(row)
    if not stages:
        return ""
    lines = []
    for group, rows in stages.items():
        counts = [sum(r["status"] == s for r in rows) for s in ("exact", "wrong", "failed", "skipped")]
        names = {r["name"] for r in rows}
        ended = sum(c["row"] in names for c in document["crashes"])
        shares = [t["of_bound"] for r in rows for t in r["tried"] if t.get("of_bound") is not None]
        lines.append(_line([group, *counts, ended, f"{max(shares):.2g}" if shares else ""]))
    head = ("compared", "right", "wrong", "failed", "not for this device", "ended the process", "error over its bound")
    return "\n".join([*_head(head), *lines])


def _kernels(rows: Sequence[Json]) -> str:
    """By operator, template and kind, against the best library of each row."""
    found = classes(rows, lambda row: f"{row['op']} by {row['template']}")
    return _ratios("kernels", [c for c in found if c["library"] == BEST])


def _classes(rows: Sequence[Json]) -> str:
    return _ratios("class", sorted(classes(rows), key=lambda c: c["library"] != BEST))


def _ratios(what: str, found: Sequence[Json]) -> str:
    if not found:
        return ""
    lines = [_line([c["group"], c["kind"], c["library"], c["rows"], *_pair(c["cold"]), *_pair(c["warm"])])
             for c in found]  # fmt: skip
    head = (what, "kind", "library", "rows", "cold: geomean", "worst", "at", "warm: geomean", "worst", "at")
    return "\n".join([*_head(head), *lines])


def _pair(figure: Json | None) -> tuple[str, str, str]:
    return (f"{figure['geomean']:.2f}", f"{figure['worst'][0]:.2f}", figure["worst"][1]) if figure else ("", "", "")


def _rows(rows: Sequence[Json]) -> str:
    lines = [_row(r) for r in rows if r["timed"]]
    head = ("problem", "status", "template", "best", "registers", "cold us", "TFLOP/s", "cold ratios", "warm us",
            "warm ratios", "largest error")  # fmt: skip
    return "\n".join([*_head(head), *lines]) if lines else ""


def _row(row: Json) -> str:
    best = row.get("best")
    line: Json = next((t for t in row["tried"] if t["config"] == best), {})
    cells: list[Any] = [row["name"], row["status"], row["template"], _config(best), line.get("registers", "")]
    for cache in CACHES:
        median = (row.get(cache) or {}).get("ours", {}).get("median_s")
        cells.append(f"{1e6 * median:.1f}" if median else "")
        if cache == "cold":
            cells.append(f"{row['flops'] / median / 1e12:.1f}" if median else "")
        found = ratios(row, cache).items()
        cells.append(", ".join(f"{name} {value:.2f}" for name, value in found if name != BEST))
    cells.append(", ".join(f"{name} {value:.1e}" for name, value in row.get("errors", {}).items()))
    return _line(cells)


def _config(config: Json | None) -> str:
    return " ".join(f"{k}={v}" for k, v in (config or {}).items())


def _remarks(document: Json) -> str:
    """Libraries that did not take part, and what ended a process."""
    told: dict[str, list[str]] = {}
    for row in document["rows"]:
        for name, why in (row.get("peers_failed") or {}).items():
            told.setdefault(f"{name}: {why}", []).append(row["name"])
    lines = [f"- left out, or timed otherwise: {what} ({names[0]}{f' and {len(names) - 1} more' if names[1:] else ''})"
             for what, names in told.items()]  # fmt: skip
    lines += [f"- crash: {c['row']}: {c.get('peer') or _config(c['config'])}: {c['reason']}"
              for c in document["crashes"]]  # fmt: skip
    return "\n".join(lines)


def _head(names: Sequence[str]) -> list[str]:
    return [_line(names), "|" + "---|" * len(names)]


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(str(c).replace("|", "/") for c in cells) + " |"
