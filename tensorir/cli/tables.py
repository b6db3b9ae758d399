"""Results as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensorir.tune.progress import milliseconds, rate, statuses

if TYPE_CHECKING:
    from tensorir.tune.outcome import TuneOutcome


def outcome_text(o: TuneOutcome) -> str:
    """What a run found, a line a fact."""
    lines = [
        ("workload", o.identity.workload),
        ("device", f"{o.identity.device.get('id', '')} {o.identity.device['name']}"),
    ]
    best = o.best
    if best is not None and best.time_s is not None:
        text = milliseconds(best.time_s)
        if best.low_s is not None and best.high_s is not None:
            text += f"  [{milliseconds(best.low_s)}, {milliseconds(best.high_s)}]"
        text += f"  {rate(best.gflops * 1e9)}" if best.gflops else ""
        text += f"  {o.baseline['time_s'] / best.time_s:.2f}x {o.baseline['name']}" if o.baseline else ""
        lines += [("best", text), ("config", f"{best.template}: {config_text(best.config)}"), ("trial", best.trial)]
    if o.ties:
        lines.append(("tied", ", ".join(t.trial for t in o.ties)))
    if o.default is not None:
        lines.append(("default", milliseconds(o.default.time_s) if o.default.time_s else o.default.status))
    if o.baseline:
        lines.append(("baseline", f"{milliseconds(o.baseline['time_s'])} {o.baseline['name']}"))
    space = f"{o.space['configs']:,} configurations, {o.space['legal']:,} legal"
    lines += [("space", space), ("trials", f"{o.trials} new, {o.reused} reused  | {statuses(o.counts)}")]
    lines.append(("stopped", o.stopped))
    if o.log_path:
        lines.append(("log", o.log_path))
    return "\n".join(f"{name:9} {text}" for name, text in lines)


def config_text(config: Mapping[str, Any]) -> str:
    """``tile 8  vec True``."""
    return "  ".join(f"{k} {v}" for k, v in config.items()) or "(no knobs)"


def set_text(outcomes: Sequence[TuneOutcome]) -> str:
    """A row per workload, and the total."""
    rows = [["workload", "best", "rate", "default", "baseline", "ratio", "trials"]]
    total = 0.0
    for o in outcomes:
        best = o.best.time_s if o.best else None
        total += best or 0.0
        rows.append([
            o.identity.workload,
            milliseconds(best) if best else o.status,
            rate(o.best.gflops * 1e9) if o.best and o.best.gflops else "",
            milliseconds(o.default.time_s) if o.default and o.default.time_s else "",
            f"{milliseconds(o.baseline['time_s'])} {o.baseline['name']}" if o.baseline else "",
            f"{o.baseline['time_s'] / best:.2f}x" if o.baseline and best else "",
            str(o.trials + o.reused),
        ])  # fmt: skip
    return f"{table(rows)}\ntotal {milliseconds(total)}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns lined up: the first to the left, the others to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
