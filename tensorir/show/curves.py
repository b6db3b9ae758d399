"""Measurements as inline SVG: axes with units, dots, a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorir.show.pieces import Html, html

WIDTH, HEIGHT = 520, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 22, 38
MOST = 400  # dots: a live cell is sent anew each half second
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Axes:
    """From measurements to pixels. ``count`` places on the x axis; seconds between ``low`` and ``high`` on the y axis.

    logarithmic: equal factors of time take equal heights
    """

    count: int
    low: float
    high: float
    logarithmic: bool

    def x(self, n: int) -> float:
        """Pixels of the n-th place, from 1."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (n - 0.5) / self.count

    def y(self, seconds: float) -> float:
        """Pixels of a time; what is above or below the axis is put at its end."""
        f: Callable[[float], float] = math.log if self.logarithmic else float
        share = (f(min(max(seconds, self.low), self.high)) - f(self.low)) / (f(self.high) - f(self.low))
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    @property
    def unit(self) -> tuple[float, str]:
        """Seconds of the unit that the axis is marked in, and its name."""
        typical = math.sqrt(self.low * self.high) if self.logarithmic else self.high / 2
        return next((u for u in _UNITS if typical >= u[0]), _UNITS[-1])

    def drawn(self, title: str, x_label: str, y_label: str) -> str:
        """Both axes with marks, labels and a title."""
        scale, unit = self.unit
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        out = [f'<text x="{LEFT}" y="13">{html(title)}</text>']
        out.append(f'<path class="tir-axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
        for mark in marks(self.low / scale, self.high / scale, self.logarithmic):
            y = self.y(mark * scale)
            out.append(f'<path class="tir-axis" d="M{LEFT - 4} {y:.1f}H{LEFT}"/>')
            out.append(f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{mark:.4g}</text>')
        step = max(1, math.ceil(self.count / 8))
        step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, step) if s >= step)
        for n in sorted({1, *range(step, self.count + 1, step)}):
            out.append(f'<path class="tir-axis" d="M{self.x(n):.1f} {bottom}v4"/>')
            out.append(f'<text x="{self.x(n):.1f}" y="{bottom + 15}" text-anchor="middle">{n}</text>')
        middle = (LEFT + right) / 2, (TOP + bottom) / 2
        out.append(f'<text x="{middle[0]}" y="{HEIGHT - 5}" text-anchor="middle">{html(x_label)}</text>')
        turned = f'transform="rotate(-90 12 {middle[1]})" text-anchor="middle"'
        return "".join([*out, f'<text x="12" y="{middle[1]}" {turned}>{html(y_label)} ({unit})</text>'])


def marks(low: float, high: float, logarithmic: bool = False) -> list[float]:
    """Three to seven round numbers between two."""
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


def _svg(label: str, *parts: str) -> Html:
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
    return Html(f'<svg xmlns="http://www.w3.org/2000/svg" {box}><title>{html(label)}</title>{"".join(parts)}</svg>')


def _thin(n: int) -> range:
    """Every so many-th place, so that there are not too many."""
    return range(0, n, max(1, math.ceil(n / MOST)))


def best_so_far(seconds: Sequence[float | None]) -> Html:
    """The best time over the trials; None for a trial that failed. Empty without any time."""
    known = [t for t in seconds if t]
    if not known:
        return Html("")
    low, best = min(known), math.inf
    first = next(t for t in seconds if t)
    high = max(first, min(max(known), 4 * low), low * 1.05)
    axes = Axes(len(seconds), low * (low / high) ** 0.06, high * (high / low) ** 0.06, logarithmic=True)
    steps: list[str] = []
    dots = []
    for n, t in enumerate(seconds):
        if t and t < best:
            steps += [f"{'H' if steps else 'M'}{axes.x(n + 1):.1f}", f"{'V' if steps else ' '}{axes.y(t):.1f}"]
            best = t
    for n in _thin(len(seconds)):
        t = seconds[n]
        if t:
            dots.append(f'<circle class="tir-dot" cx="{axes.x(n + 1):.1f}" cy="{axes.y(t):.1f}" r="2"/>')
    end = f"H{axes.x(len(seconds)):.1f}"
    title = "time of each trial (dots; slower ones at the top), best so far (curve)"
    return _svg("best time over the trials", axes.drawn(title, "trial", "time"), *dots,
                f'<path class="tir-curve" d="{"".join([*steps, end])}"/>')  # fmt: skip


def samples(seconds: Sequence[float], low_s: float, median_s: float, high_s: float) -> Html:
    """Samples in the order of measurement, with their median and its interval."""
    least, most = min(seconds), max(seconds)
    spare = 0.08 * (most - least) or 0.05 * most or 1e-9
    axes = Axes(len(seconds), least - spare, most + spare, logarithmic=False)
    dots = (f'<circle class="tir-dot" cx="{axes.x(n + 1):.1f}" cy="{axes.y(seconds[n]):.1f}" r="2"/>'
            for n in _thin(len(seconds)))  # fmt: skip
    top, bottom, right = axes.y(high_s), axes.y(low_s), WIDTH - RIGHT
    band = f'y="{top:.1f}" width="{right - LEFT}" height="{max(1.0, bottom - top):.1f}"'
    return _svg(
        "samples, median and its interval",
        axes.drawn("samples (dots), median (line), its 95 % interval (band)", "sample", "time per call"),
        f'<rect class="tir-band" x="{LEFT}" {band}/>',
        *dots,
        f'<path class="tir-curve" d="M{LEFT} {axes.y(median_s):.1f}H{right}"/>',
    )
