"""Schedules and results as static HTML for notebooks: no scripts, readable in a saved file."""

from __future__ import annotations

import html
from typing import Any

from tensorir.errors import TensorIRError

_COLOURS = {
    "block": "#1f6feb", "thread": "#8250df", "vectorize": "#bf3989", "unroll": "#9a6700", "cooperative": "#1a7f37",
}  # fmt: skip


def schedule_html(s: Any) -> str:
    """The loop tree, coloured by binding, with both sources folded below it."""
    lines = []
    for line in s.tree().splitlines():
        text, mark, note = line.partition("  # ")
        colour = next((c for word, c in _COLOURS.items() if note.startswith(word)), "#57606a")
        shown = html.escape(text)
        lines.append(f'{shown}<span style="color:{colour}">  # {html.escape(note)}</span>' if mark else shown)
    tree = "\n".join(lines)
    parts = [f'<pre style="line-height:1.25">{tree}</pre>']
    for target in ("opencl", "cuda"):
        try:
            text = s.source(target)
        except TensorIRError as e:
            text = str(e)
        parts.append(f"<details><summary>{target} source</summary><pre>{html.escape(text)}</pre></details>")
    return "".join(parts)


def curve_svg(seconds: list[float], width: int = 480, height: int = 160) -> str:
    """Best time so far over trials as an inline SVG; empty without measurements."""
    best: list[float] = []
    for t in seconds:
        best.append(min(t, best[-1]) if best else t)
    if not best:
        return ""
    low, high = min(best), max(*best, min(best) * 1.01)
    step = (width - 20) / max(1, len(best) - 1)

    def y(t: float) -> float:
        return 10 + (height - 20) * (1 - (t - low) / (high - low))

    points = " ".join(f"{10 + n * step:.1f},{y(t):.1f}" for n, t in enumerate(best))
    dots = "".join(
        f'<circle cx="{10 + n * step:.1f}" cy="{y(min(t, high)):.1f}" r="2" fill="#8c959f"/>'
        for n, t in enumerate(seconds)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
        f"<title>best time over {len(best)} trials</title>{dots}"
        f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="2"/></svg>'
    )
