"""A run as bars: best peer's time over ours, one panel for each class of workloads."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from versus.document import Json, Row, rows
from versus.report import CLASSES
from versus.stats import ratio


def draw(document: Json, path: Path) -> bool:
    """Write the picture; False without matplotlib or without ratios."""
    shown = [r for r in rows(document) if r.best("peer") and r.side("ours")]
    if not shown:
        return False
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ImportError:
        return False
    matplotlib.use("Agg")
    plt: Any = importlib.import_module("matplotlib.pyplot")
    groups = {g: [r for r in shown if r.problem.group == g] for g in CLASSES}
    groups = {g: found for g, found in groups.items() if found}
    names = sorted({r.name for row in shown for r in row.side("ours")})
    sizes = [sum(len(row.side("ours")) for row in found) + len(found) for found in groups.values()]
    figure, axes = plt.subplots(
        len(groups), 1, figsize=(9, 1.2 + sum(0.16 * s + 0.6 for s in sizes)), squeeze=False,
        gridspec_kw={"height_ratios": [s + 2 for s in sizes]}, layout="constrained",
    )  # fmt: skip
    colours = {name: f"C{n}" for n, name in enumerate(names)}
    for ax, (group, found) in zip(axes[:, 0], groups.items(), strict=True):
        _panel(ax, found, colours)
        ax.set_title(CLASSES[group], loc="left", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=c) for c in colours.values()]
    figure.legend(handles, list(colours), loc="outside lower center", ncols=4, fontsize=8)
    e = document["environment"]
    figure.suptitle(f"best peer's time / ours (above 1: ours is faster)\n{e['cpu']}, {e['started'][:10]}", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _panel(ax: Any, found: Sequence[Row], colours: dict[str, str]) -> None:
    """Bars by medians with their intervals, a dot for the ratio of fastest calls."""
    y, ticks = 0.0, []
    for row in found:
        best, fastest = row.best("peer"), row.fastest("peer")
        assert best is not None
        assert fastest is not None
        mine = sorted(row.side("ours"), key=lambda r: r.name)
        ticks.append((y + (len(mine) - 1) / 2, row.problem.name))
        for r in mine:
            value = ratio(best.rounds, r.rounds)
            spread = [[value.value - value.low], [value.high - value.value]]
            ax.barh(y, value.value, height=0.85, color=colours[r.name])
            ax.errorbar(value.value, y, xerr=spread, color="black", linewidth=0.8)
            ax.plot(fastest / r.fastest_s, y, ".", color="black", markersize=3)
            y += 1
        y += 1
    ax.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    ax.set_yticks([t for t, _ in ticks], [name for _, name in ticks], fontsize=7)
    ax.tick_params(axis="x", labelsize=7)
    ax.set_ylim(y - 0.5, -1)
