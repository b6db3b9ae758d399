"""SVG figures of a report: roofline, importance of knobs, parallel coordinates of configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorir.errors import printable
from tensorir.show.curves import RIGHT, WIDTH, Axes, Scale, dot, svg, thin
from tensorir.show.pieces import Html, html
from tensorir.tune.ratio import Ratio
from tensorir.tune.record import Record
from tensorir.tune.summary import Importance, knobs, levels

MOST_KNOBS, LABEL_CHARACTERS = 12, 24
MOST_LINES = 250
RATIO_AXIS_END = 10.0  # the ends of the little axis of a ratio, and one over it


@dataclass(frozen=True)
class Point:
    """A workload in a roofline plot: ``intensity`` in flops per byte, and flop/s of its best kernel (``low`` to
    ``high``) and of the default one.
    """

    name: str
    intensity: float
    best: float
    low: float
    high: float
    default: float | None = None


@dataclass(frozen=True)
class Roof:
    """A device's peak rates in flop/s and bytes/s.

    said:     their source in words, drawn next to the numbers
    measured: False for those of a data sheet, drawn dashed
    """

    flops: float
    bytes_s: float
    said: str
    measured: bool = True

    def at(self, intensity: float) -> tuple[float, str]:
        """(maximum flop/s at ``intensity`` flops per byte, "memory" or "arithmetic" for the limiting resource)."""
        moving = self.bytes_s * intensity
        return min(moving, self.flops), "memory" if moving < self.flops else "arithmetic"


def roofline(points: Sequence[Point], roof: Roof | None) -> Html:
    """SVG roofline plot: flop/s over flops per byte, both on log scales, for each workload's best and default kernel;
    ``roof`` None: points without a roof. ``points`` must not be empty.
    """
    rates = [r for p in points for r in (p.best, p.default) if r]
    left, right = min(p.intensity for p in points) / 4, max(p.intensity for p in points) * 4
    low, high = min(rates) / 3, max(rates) * 3
    if roof is not None:
        knee = roof.flops / roof.bytes_s
        left, right = min(left, knee / 8), max(right, knee * 8)
        low, high = min(low, roof.at(left)[0]), max(high, roof.flops * 2)
    axes = Axes(Scale("operations a byte of inputs and outputs", left, right, logarithmic=True),
                Scale("rate", low, high, logarithmic=True, unit=(1e9, "GFLOP/s")), height=250)  # fmt: skip
    parts = [axes.drawn("best kernels (dots), their defaults (rings)")]
    if roof is not None:
        parts.append(_roof(axes, roof, knee))
    taken: list[tuple[float, float]] = []
    kinds = [short(p.name.split()[0]) for p in points]
    for number, p in enumerate(points):
        x, y = axes.x(p.intensity), axes.y(p.best)
        if p.default is not None:
            parts.append(f'<path class="tir-axis" d="M{x:.1f} {axes.y(p.default):.1f}V{y:.1f}"/>')
            parts.append(dot(x, axes.y(p.default), f"{p.name}, its default: {p.default / 1e9:.4g} GFLOP/s", "hollow"))
        said = f"{p.name}: {p.best / 1e9:.4g} GFLOP/s, {p.intensity:.3g} operations a byte"
        parts.append(f'<path class="tir-whisker" d="M{x:.1f} {axes.y(p.low):.1f}V{axes.y(p.high):.1f}"/>')
        parts.append(dot(x, y, said, "best"))
        name = kinds[number] if len(set(kinds)) == len(kinds) else str(number + 1)  # the table below has the names
        wide = 8 * len(name)
        while any(abs(x - a) < wide and abs(y - b) < 11 for a, b in taken):  # of neighbours one below the other
            y += 11
        taken.append((x, y))
        end = ' text-anchor="end"' if x > WIDTH - wide - 20 else ""
        parts.append(
            f'<text class="tir-level" x="{x + (-9 if end else 9):.1f}" y="{y + 4:.1f}"{end}>{html(name)}</text>'
        )
    return svg("roofline", *parts, height=250)


def _roof(axes: Axes, roof: Roof, knee: float) -> str:
    kind = "roof" if roof.measured else "sheet"
    across = axes.across
    line = [(x, roof.at(x)[0]) for x in (across.low, knee, across.high)]
    path = "L".join(f"{axes.x(x):.1f} {axes.y(y):.1f}" for x, y in line)
    (x0, y0), (x1, y1) = ((axes.x(x), axes.y(y)) for x, y in line[:2])
    turn = math.degrees(math.atan2(y1 - y0, x1 - x0))
    at = (x0 + x1) / 2, (y0 + y1) / 2 - 6
    names = f"{roof.bytes_s / 1e9:.4g} GB/s {roof.said}", f"{roof.flops / 1e9:,.4g} GFLOP/s {roof.said}"
    return (f'<path class="tir-{kind}" d="M{path}"/>'
            f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="middle" '
            f'transform="rotate({turn:.1f} {at[0]:.0f} {at[1]:.0f})">{html(names[0])}</text>'
            f'<text x="{WIDTH - RIGHT}" y="13" text-anchor="end">line: {html(names[1])}</text>')  # fmt: skip


def importances(found: Sequence[Importance]) -> Html:
    """SVG bars of the first ``MOST_KNOBS`` knobs: share of the variance of log time, with its 90 % interval."""
    shown = list(found)[:MOST_KNOBS]
    left, row, top = 190, 19, 22
    bottom = top + row * len(shown)
    several = len({i.template for i in shown}) > 1

    def x(share: float) -> float:
        return left + (WIDTH - left - RIGHT - 8) * share

    parts = [f'<text x="{left}" y="13">share of the variance of log time, 90 % interval</text>']
    for n, i in enumerate(shown):
        y = top + row * n + row / 2
        name = short(f"{i.template}: {i.knob}" if several else i.knob, LABEL_CHARACTERS + 8)
        told = f"{i.template}: {i.knob}: {i.share:.0%} ({i.low:.0%} to {i.high:.0%}), {i.trials} trials"
        parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{html(name)}</text>')
        parts.append(f'<rect class="tir-bar" x="{left}" y="{y - 6:.1f}" height="12" width="{x(i.share) - left:.1f}">'
                     f"<title>{html(told)}</title></rect>")  # fmt: skip
        parts.append(f'<path class="tir-whisker" d="M{x(i.low):.1f} {y:.1f}H{x(i.high):.1f}m0-3v6M{x(i.low):.1f} '
                     f'{y - 3:.1f}v6"><title>{html(told)}</title></path>')  # fmt: skip
    parts.append(f'<path class="tir-axis" d="M{left} {top}V{bottom}H{x(1):.0f}"/>')
    for percent in (0, 25, 50, 75, 100):
        parts.append(f'<path class="tir-axis" d="M{x(percent / 100):.1f} {bottom}v4"/>')
        parts.append(f'<text x="{x(percent / 100):.1f}" y="{bottom + 16}" text-anchor="middle">{percent} %</text>')
    return svg("what the knobs explain", *parts, height=bottom + 22)


def parallel(
    trials: Sequence[Record], places: Sequence[int], best: str, told: Callable[[int], str], most: int = MOST_LINES
) -> Html:
    """SVG parallel coordinates: one line per configuration across its first ``MOST_KNOBS`` knobs, faster ones stronger,
    the best marked.

    trials: valid ones;  places: their indices, for ``told``;  best: id of the trial to mark
    told:   function from an index to its tooltip
    most:   number of lines (>= 2): the fastest half, and others evenly spaced by rank
    """
    names = knobs(trials)[:MOST_KNOBS]
    values = [levels(trials, name) for name in names]
    scales = [[json.dumps(v) for v in some] for some in values]
    order = sorted(range(len(trials)), key=lambda n: (trials[n].id == best, -trials[n].steady_s))
    half = order[-most // 2 :]  # the fastest, and some of all others
    kept = [order[n] for n in thin(max(0, len(order) - len(half)), most // 2)] + half
    width, height, top, bottom, side = 1060, 260, 14, 30, 60

    def x(n: int) -> float:
        return side + (width - 2 * side) * n / max(1, len(names) - 1)

    def y(level: int, count: int) -> float:
        return height - bottom - (height - top - bottom - 10) * level / max(1, count - 1)

    parts = []
    for rank, n in enumerate(kept):
        r = trials[n]
        at = [(x(k), y(s.index(json.dumps(r.config[name])), len(s)))
              for k, (name, s) in enumerate(zip(names, scales, strict=True))]  # fmt: skip
        kind, weight = ("tir-chosen", "") if r.id == best else ("tir-line", f' style="opacity:{_strong(rank, kept)}"')
        path = "L".join(f"{a:.0f} {b:.0f}" for a, b in at)
        title = f"<title>{html(told(places[n]))}</title>"
        parts.append(f'<path class="{kind}"{weight} data-t="{places[n]}" d="M{path}">{title}</path>')
    for k, (name, scale) in enumerate(zip(names, scales, strict=True)):
        some = thin(len(scale), 14)
        for level in some:
            said = html(short(word(values[k][level]), 14))
            parts.append(f'<text class="tir-level" x="{x(k):.0f}" y="{y(level, len(scale)) + 4:.0f}" '
                         f'text-anchor="middle">{said}</text>')  # fmt: skip
        parts.append(f'<text x="{x(k):.0f}" y="{height - 6}" text-anchor="middle">{html(short(name, 14))}</text>')
    return svg("configurations across their knobs", *parts, width=width, height=height)


def _strong(rank: int, kept: Sequence[int]) -> str:
    return f"{0.06 + 0.5 * ((rank + 1) / len(kept)) ** 4:.2f}"


def ratio_bar(ratio: Ratio) -> Html:
    """SVG of a ratio with its interval on a small log axis from 0.1 to 10, clamped to these ends."""
    scale = Scale("", 1 / RATIO_AXIS_END, RATIO_AXIS_END, logarithmic=True)
    width, height = 130, 16

    def x(value: float) -> float:
        return 5 + (width - 10) * scale.share(value)

    kind = "unsteady" if not ratio.steady else "best"
    told = f"{ratio.low:.3g} to {ratio.high:.3g}; the middle is 1, the ends a tenth and ten"
    return svg(
        "ratio and its interval",
        f"<title>{html(told)}</title>",
        f'<path class="tir-axis" d="M5 8H{width - 5}M{x(1):.1f} 1V15"/>',
        f'<path class="tir-whisker" d="M{x(ratio.low):.1f} 8H{x(ratio.high):.1f}"/>',
        f'<circle class="tir-{kind}" cx="{x(ratio.value):.1f}" cy="8" r="4"/>',
        width=width,
        height=height,
    )


def word(value: object) -> str:
    """Text of a knob's value without blanks, as in ``tile=8``."""
    return str(value).replace(" ", "")


def short(text: str, most: int = LABEL_CHARACTERS) -> str:
    """``text`` with control characters as escapes, cut to ``most`` characters with a final "…"."""
    text = printable(text)
    return text if len(text) <= most else text[: most - 1] + "…"
