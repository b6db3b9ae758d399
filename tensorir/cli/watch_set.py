"""Progress of the tuning of several shapes, on stderr."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tensorir.cli.common import say
from tensorir.cli.watch import mode_for
from tensorir.tune.record import steady_s

if TYPE_CHECKING:
    from tensorir.api.workload import Workload


class SetWatch:
    """The callback of a run; this one is silent."""

    def __init__(
        self, works: Sequence[Workload], weights: Sequence[float], budget_s: float | None, started: float
    ) -> None:
        self.started, self.budget_s, self.number = started, budget_s, len(works)
        self._weights = {w.title: x for w, x in zip(works, weights, strict=True)}
        self._first: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._said = 0.0
        self.name = works[0].name

    def on_trial(self, record: Mapping[str, Any]) -> None:
        """Take in a trial of any of the shapes."""
        self._counts[record["status"]] += 1
        title, time_s = record["workload"], steady_s(record)
        better = time_s < self._best.get(title, float("inf"))
        if better:
            self._first.setdefault(title, time_s)
            self._best[title] = time_s
        self.show(better)

    def show(self, better: bool) -> None:
        """After each trial."""

    def close(self) -> None:
        """The end of the run."""

    def line(self) -> str:
        """``[   12s] 37 trials, 23 of 23 shapes  total 12.34 ms (first 15.02 ms)  | ok 36  wrong 1 | eta 48s``."""
        from tensorir.tune.progress import duration, milliseconds, statuses

        elapsed = time.monotonic() - self.started
        now, first = (sum(self._weights[t] * s for t, s in d.items()) for d in (self._best, self._first))
        text = f"[{duration(elapsed):>6}] {self._counts.total()} trials, {len(self._best)} of {self.number} shapes"
        text += f"  total {milliseconds(now)} (first {milliseconds(first)})" if self._best else "  nothing valid yet"
        text += f"  | {statuses(self._counts)}" if self._counts else ""
        left = None if self.budget_s is None else max(0.0, self.budget_s - elapsed)
        return text if left is None else f"{text} | eta {duration(left)}"


class PlainSet(SetWatch):
    """A line every other second when something improved, and one every ten seconds."""

    def show(self, better: bool) -> None:
        since = time.monotonic() - self._said
        if since > 10 or (better and since > 2):
            say(self.line())
            self._said = time.monotonic()


class LiveSet(SetWatch):
    """A panel that is redrawn, and erased at the end."""

    def __init__(
        self, works: Sequence[Workload], weights: Sequence[float], budget_s: float | None, started: float
    ) -> None:
        super().__init__(works, weights, budget_s, started)
        from rich.console import Console
        from rich.live import Live
        from rich.panel import Panel
        from rich.text import Text

        self._live = Live(
            console=Console(stderr=True),
            get_renderable=lambda: Panel(Text(self.line()), title=f"tensorir tune {self.name}"),
            transient=True,
            refresh_per_second=4,
        )
        self._live.start()

    def close(self) -> None:
        self._live.stop()


def watch_set(
    mode: str, works: Sequence[Workload], weights: Sequence[float], budget_s: float | None, started: float
) -> closing[SetWatch]:
    """The watcher for ``--progress``, closed at the end of a ``with``."""
    kinds: dict[str, type[SetWatch]] = {"live": LiveSet, "plain": PlainSet, "none": SetWatch}
    return closing(kinds[mode_for(mode)](works, weights, budget_s, started))
