"""SVG plots of measurements: axes with units, dots, curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorir.show.pieces import Html, html

WIDTH, HEIGHT = 520, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 22, 38
LEAST_S = 1e-12  # what is less was not a time
MAX_DOTS = 400  # dots: a live cell is sent anew each half second
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Scale:
    """An axis of a plot from ``low`` to ``high``, labelled ``label``.

    logarithmic: True for a log scale
    unit:        (size of the axis unit, its name)
    places:      True for an axis of integers from 1
    """

    label: str
    low: float
    high: float
    logarithmic: bool = False
    unit: tuple[float, str] = (1.0, "")
    places: bool = False

    @classmethod
    def count(cls, label: str, n: int) -> Scale:
        """Axis for the integers from 1 to ``n``."""
        return cls(label, 0.5, n + 0.5, places=True)

    @classmethod
    def time(cls, label: str, low: float, high: float, logarithmic: bool = False) -> Scale:
        """Axis for seconds (> 0), labelled in s, ms or µs."""
        typical = math.sqrt(low * high) if logarithmic else high / 2
        return cls(label, low, high, logarithmic, next((u for u in _UNITS if typical >= u[0]), _UNITS[-1]))

    def share(self, value: float) -> float:
        """Position of ``value`` along the axis, from 0 (``low``) to 1 (``high``), clamped."""
        f: Callable[[float], float] = math.log if self.logarithmic else float
        return (f(min(max(value, self.low), self.high)) - f(self.low)) / (f(self.high) - f(self.low))

    def marks(self) -> list[tuple[float, str]]:
        """[(value, label)] of the tick marks, values in the data's unit, labels in the axis' unit."""
        if self.places:
            n = round(self.high - 0.5)
            step = max(1, math.ceil(n / 8))
            step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, step) if s >= step)
            return [(k, str(k)) for k in sorted({1, *range(step, n + 1, step)})]
        one, _ = self.unit
        found = marks(self.low / one, self.high / one, self.logarithmic)
        return [(m * one, f"{m:,.0f}" if 1e4 <= m < 1e7 else f"{m:.4g}") for m in found]

    @property
    def title(self) -> str:
        """The label followed by the unit in parentheses."""
        return f"{self.label} ({self.unit[1]})" if self.unit[1] else self.label


@dataclass(frozen=True)
class Axes:
    """Horizontal and vertical axis of an SVG plot; maps values to pixels."""

    across: Scale
    up: Scale
    height: int = HEIGHT

    def x(self, value: float) -> float:
        """Pixels from the left edge at which the horizontal ``value`` is drawn."""
        return LEFT + (WIDTH - LEFT - RIGHT) * self.across.share(value)

    def y(self, value: float) -> float:
        """Pixels from the top edge at which the vertical ``value`` is drawn."""
        return TOP + (self.height - TOP - BOTTOM) * (1 - self.up.share(value))

    def drawn(self, title: str) -> str:
        """SVG elements of both axes with ticks, labels and title."""
        right, bottom = WIDTH - RIGHT, self.height - BOTTOM
        out = [f'<text x="{LEFT}" y="13">{html(title)}</text>']
        out.append(f'<path class="tir-axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        for mark, said in self.up.marks():
            y = self.y(mark)
            out.append(f'<path class="tir-axis" d="M{LEFT - 4} {y:.1f}H{LEFT}"/>')
            out.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{said}</text>')
        for mark, said in self.across.marks():
            out.append(f'<path class="tir-axis" d="M{self.x(mark):.1f} {bottom}v4"/>')
            out.append(f'<text x="{self.x(mark):.1f}" y="{bottom + 15}" text-anchor="middle">{said}</text>')
        middle = (LEFT + right) / 2, (TOP + bottom) / 2
        out.append(f'<text x="{middle[0]}" y="{self.height - 5}" text-anchor="middle">{html(self.across.title)}</text>')
        turned = f'transform="rotate(-90 12 {middle[1]})" text-anchor="middle"'
        return "".join([*out, f'<text x="12" y="{middle[1]}" {turned}>{html(self.up.title)}</text>'])


def marks(low: float, high: float, logarithmic: bool = False) -> list[float]:
    """Round numbers between ``low`` and ``high`` for tick marks, three to seven if possible; on a log scale powers of
    ten, or 1, 2, 5 (or 1, 3) times these.
    """
    if logarithmic:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        for kinds in ((1, 2, 5), (1, 3), (1,)):
            found = [m * 10.0**e for e in range(first, last + 1) for m in kinds if low <= m * 10.0**e <= high]
            if 3 <= len(found) <= 7:
                return found
        if len(found) > 7:
            return found[:: math.ceil(len(found) / 7)]
    rough = (high - low) / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def svg(label: str, *parts: str, width: int = WIDTH, height: int = HEIGHT) -> Html:
    """An SVG image of the elements ``parts``.

    label: description for screen readers
    """
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return Html(f'<svg xmlns="http://www.w3.org/2000/svg" {box} aria-label="{html(label)}">{"".join(parts)}</svg>')


def dot(x: float, y: float, told: str = "", kind: str = "dot", mark: str = "") -> str:
    """SVG circle for a measurement at pixels (x, y).

    told: tooltip;  kind: "dot", or another class of the stylesheet for a ring;  mark: attributes for scripts
    """
    shape = f'class="tir-{kind}"{mark} cx="{x:.1f}" cy="{y:.1f}" r="{2 if kind == "dot" else 6}"'
    return f"<circle {shape}><title>{html(told)}</title></circle>" if told else f"<circle {shape}/>"


def thin(n: int, most: int = MAX_DOTS) -> range:
    """Evenly spaced indices from 0 on, below ``n``, ``most`` (>= 1) of them at most."""
    return range(0, n, max(1, math.ceil(n / most)))


def best_so_far(
    seconds: Sequence[float | None],
    chosen: int | None = None,
    told: Callable[[int], str] | None = None,
    other: tuple[str, float] | None = None,
    most: int = MAX_DOTS,
) -> Html:
    """SVG plot of the best seconds after each trial (log scale; slow trials are drawn at the top), failed trials (None)
    as crosses; "" if no trial has a time.

    chosen: index of the configuration finally used;  told: function from an index to its tooltip; None: no crosses
    other:  (name, seconds) drawn as a line, unless it is far off (a factor of 3);  most: number of dots
    """
    seconds = [max(t, LEAST_S) if t else None for t in seconds]
    known = [t for t in seconds if t]
    if not known:
        return Html("")
    low, best = min(known), math.inf
    first = known[0]
    high = max(first, min(max(known), 4 * low), low * 1.05)
    if other is not None:  # drawn with the curve where it is not far off
        low, high = max(low / 3, min(low, other[1])), min(high * 3, max(high, other[1]))
    up = Scale.time("time", low * (low / high) ** 0.12, high * (high / low) ** 0.06, logarithmic=True)
    axes = Axes(Scale.count("trial", len(seconds)), up)
    steps: list[str] = []
    for n, t in enumerate(seconds):
        if t and t < best:
            steps += [f"{'H' if steps else 'M'}{axes.x(n + 1):.1f}", f"{'V' if steps else ' '}{axes.y(t):.1f}"]
            best = t
    shown = {*thin(len(seconds), most), *([] if chosen is None else [chosen])}
    dots = [_place(axes, n, seconds[n], told, n == chosen) for n in sorted(shown)]
    end = f"H{axes.x(len(seconds)):.1f}"
    title = "time of each trial (dots; slower ones at the top), best so far (curve)"
    title = title if chosen is None else "trials (dots; slower ones at the top), best so far (curve), the best (ring)"
    parts = [axes.drawn(title), f'<path class="tir-curve" d="{"".join([*steps, end])}"/>']
    if other is not None and up.low <= other[1] <= up.high:
        y = axes.y(other[1])
        below = 12 if y < TOP + 14 else -4  # the title is above
        parts.append(f'<path class="tir-other" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT}" y="{y + below:.1f}" text-anchor="end">{html(other[0])}</text>')
    return svg("best time over the trials", *parts, *dots)


def _place(axes: Axes, n: int, t: float | None, told: Callable[[int], str] | None, chosen: bool) -> str:
    said = "" if told is None else told(n)
    mark = "" if told is None else f' data-t="{n}"'
    if t:
        ring = dot(axes.x(n + 1), axes.y(t), said, "ring") if chosen else ""
        return dot(axes.x(n + 1), axes.y(t), said, mark=mark) + ring
    if told is None:
        return ""
    x, y = axes.x(n + 1), axes.height - BOTTOM - 4
    return f'<path class="tir-fail"{mark} d="M{x - 2.5:.1f} {y - 2.5}l5 5m0-5l-5 5"><title>{html(said)}</title></path>'


def samples(seconds: Sequence[float], low_s: float, median_s: float, high_s: float) -> Html:
    """SVG plot of timing samples (not empty; up to ``MAX_DOTS`` drawn) in order of measurement, with their median and
    its 95 % interval, all in seconds.
    """
    least, most = min(seconds), max(seconds)
    spare = 0.08 * (most - least) or 0.05 * most or 1e-9
    axes = Axes(Scale.count("sample", len(seconds)), Scale.time("time per call", least - spare, most + spare))
    dots = (dot(axes.x(n + 1), axes.y(seconds[n])) for n in thin(len(seconds)))
    top, bottom, right = axes.y(high_s), axes.y(low_s), WIDTH - RIGHT
    band = f'y="{top:.1f}" width="{right - LEFT}" height="{max(1.0, bottom - top):.1f}"'
    return svg(
        "samples, median and its interval",
        axes.drawn("samples (dots), median (line), its 95 % interval (band)"),
        f'<rect class="tir-band" x="{LEFT}" {band}/>',
        *dots,
        f'<path class="tir-curve" d="M{LEFT} {axes.y(median_s):.1f}H{right}"/>',
    )
