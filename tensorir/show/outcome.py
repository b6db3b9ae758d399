"""What a tuning run found, as static HTML for notebooks."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from tensorir.show.html import curve_svg
from tensorir.tune.outcome import without_default
from tensorir.tune.progress import between, rate, statuses
from tensorir.tune.record import steady_s

if TYPE_CHECKING:
    from tensorir.tune.outcome import Timed, TuneOutcome


def outcome_html(o: TuneOutcome) -> str:
    """A table of facts and the curve of the best time over the trials."""
    rows = [("workload", o.identity.workload), ("device", str(o.identity.device.get("name", "")))]
    if o.best is not None:
        config = "  ".join(f"{k}={v}" for k, v in o.best.config.items())
        rows += [("best", _time(o.best)), ("configuration", f"{o.best.template}: {config}")]
    if o.default is not None:
        gain = f"  best is {o.gain.text()} as fast" if o.gain is not None else ""
        rows.append(("default", _time(o.default) + gain))
    if (b := o.baseline) is not None:
        ratio = f"  best is {o.ratio.text()} as fast" if o.ratio is not None else ""
        rows.append((str(b["name"]), between(b["time_s"], b.get("low_s"), b.get("high_s")) + ratio))
    if o.machine.words():
        rows.append(("machine", o.machine.words()))
    rows += [("trials", f"{o.trials} new, {o.reused} reused: {statuses(o.counts)}"), ("stopped", o.stopped)]
    rows += [("failed", f"{r['count']} x {r['reason']}") for r in o.reasons[:3]]
    cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows)
    return f"<table>{cells}</table>{curve_svg([steady_s(r) for r in o.records if r['time_s']])}"


def _time(timed: Timed) -> str:
    if timed.time_s is None:
        return without_default(timed.record)
    text = between(timed.time_s, timed.low_s, timed.high_s)
    return text + (f"  ({rate(timed.gflops * 1e9)})" if timed.gflops else "")
