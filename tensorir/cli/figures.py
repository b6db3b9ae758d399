"""The figures of a report, as SVG elements, by matplotlib."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from tensorir.tune.gpu_devices import Gpu
from tensorir.tune.log import passed
from tensorir.tune.record import Record, steady_s
from tensorir.tune.summary import Importance, Tuned, knobs, levels

# text of a log is never markup; the same records give the same file
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "tensorir", "text.parse_math": False, "font.size": 9,
          "axes.spines.top": False, "axes.spines.right": False}  # fmt: skip
MOST_KNOBS, LABEL = 12, 24


@dataclass(frozen=True)
class Point:
    """A workload in a roofline: operations for each byte that must move, and operations a second."""

    name: str
    intensity: float
    best: float
    default: float | None


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _axes(height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, height))
    return figure, figure.add_subplot()


def _plain(axis: Any) -> None:
    """Numbers of a logarithmic axis without markup, a few of them however little it spans."""
    low, high = axis.get_view_interval()
    if high < 4 * low:
        axis.set_major_locator(MaxNLocator(4))
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "235" else ""))


def convergence(t: Tuned) -> str:
    """Milliseconds of each trial, and of the best so far."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(3)
        numbers = np.arange(1, len(t.trials) + 1)
        good = [(n, steady_s(r) * 1e3) for n, r in zip(numbers, t.trials, strict=True) if passed(r)]
        bad = [n for n, r in zip(numbers, t.trials, strict=True) if not passed(r)]
        axes.plot(*zip(*good, strict=True), "o", color="#7a8793", markersize=3, label="trial")
        so_far = [(n, s * 1e3) for n, s in zip(numbers, t.best_so_far(), strict=True) if s is not None]
        axes.step(*zip(*so_far, strict=True), where="post", color="#c2410c", label="best so far")
        if passed(t.trials[0]):
            axes.axhline(steady_s(t.trials[0]) * 1e3, color="#1d4ed8", linewidth=0.8, linestyle="--", label="default")
        if bad:
            axes.plot(bad, [0.02] * len(bad), "x", color="black", markersize=4, clip_on=False,
                      transform=axes.get_xaxis_transform(), label="failed or cut short")  # fmt: skip
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain(axes.yaxis)
        axes.set_xlabel("trial")
        axes.set_ylabel("ms")
        axes.legend(frameon=False)
        return _svg(figure)


def importances(found: Sequence[Importance]) -> str:
    """Bars: the share of the variance of log time that each knob explains by itself."""
    shown = list(found)[:MOST_KNOBS][::-1]
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(0.6 + 0.25 * len(shown))
        axes.barh(range(len(shown)), [100 * i.share for i in shown], color="#1d4ed8")
        axes.set_yticks(range(len(shown)), [f"{_short(i.template)}: {_short(i.knob)}" for i in shown])
        axes.set_xlabel("% of the variance of log time")
        axes.set_xlim(0, 100)
        return _svg(figure)


def parallel(trials: Sequence[Record]) -> str:
    """One line for each valid configuration of one template across its knobs, dark where it is fast."""
    names = knobs(trials)[:MOST_KNOBS]
    scales = [[json.dumps(v) for v in levels(trials, name)] for name in names]
    order = sorted((r for r in trials if passed(r)), key=lambda r: -steady_s(r))
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(3.2)
        for rank, r in enumerate(order):
            at = [s.index(json.dumps(r["config"][n])) / max(1, len(s) - 1) for n, s in zip(names, scales, strict=True)]
            speed = (rank + 1) / len(order)
            best = rank == len(order) - 1
            color = "#c2410c" if best else (0.1, 0.2, 0.45, 0.15 + 0.6 * speed**3)
            axes.plot(range(len(names)), at, color=color, linewidth=2 if best else 0.9)
        for n, scale in enumerate(scales):
            for k, value in enumerate(scale):
                axes.text(n, k / max(1, len(scale) - 1), _short(value.strip('"')), fontsize=7, va="center", ha="center",
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
        axes.set_xticks(range(len(names)), [_short(n) for n in names])
        axes.set_yticks([])
        return _svg(figure)


def roofline(points: Sequence[Point], gpu: Gpu | None) -> str:
    """Operations a second against operations a byte: the default and the best of each workload, under the peaks."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(3.2)
        for p in points:
            axes.plot([p.intensity], [p.best / 1e9], "o", color="#c2410c")
            if p.default is not None:
                axes.plot([p.intensity] * 2, [p.default / 1e9, p.best / 1e9], color="#7a8793", linewidth=0.8)
                axes.plot([p.intensity], [p.default / 1e9], "o", color="#7a8793", markersize=3)
            axes.annotate(_short(p.name), (p.intensity, p.best / 1e9), fontsize=7, xytext=(4, 2),
                          textcoords="offset points")  # fmt: skip
        if gpu is not None:
            x = np.geomspace(min(p.intensity for p in points) / 8, max(p.intensity for p in points) * 8, 100)
            peak = gpu.threads_rate * gpu.units * gpu.clock
            axes.plot(x, np.minimum(x * gpu.dram, peak) / 1e9, color="black", linewidth=0.9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        rates = [r / 1e9 for p in points for r in (p.best, p.default) if r]
        axes.set_xlim(min(p.intensity for p in points) / 8, max(p.intensity for p in points) * 8)
        axes.set_ylim(min(rates) / 8, 8 * max(rates))
        _plain(axes.xaxis)
        _plain(axes.yaxis)
        axes.set_xlabel("operations a byte of inputs and outputs")
        axes.set_ylabel("GFLOP/s")
        return _svg(figure)


def _short(text: str) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"
