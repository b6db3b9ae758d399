"""Progress of the tuning of several shapes, on stderr."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from tensorir.api.workload import Workload
from tensorir.cli.common import say
from tensorir.cli.watch import mode_for
from tensorir.tune.progress import SetProgress, set_line
from tensorir.tune.record import Record


class SetWatch:
    """The callback of a run; this one is silent."""

    def __init__(
        self, works: Sequence[Workload], weights: Sequence[float], budget_s: float | None, started: float
    ) -> None:
        self.started = started
        self.state = SetProgress({w.title: x for w, x in zip(works, weights, strict=True)}, budget_s)
        self._said = 0.0
        self.name = works[0].name

    def on_trial(self, record: Record) -> None:
        """Take in a trial of any of the shapes."""
        self.show(self.state.add(record))

    def show(self, better: bool) -> None:
        """After each trial."""

    def close(self) -> None:
        """The end of the run."""

    def line(self) -> str:
        """``[   12s] 37 trials, 23 of 23 shapes  total 12.34 ms (first 15.02 ms)  | ok 36  wrong 1 | eta 48s``."""
        return set_line(self.state, time.monotonic() - self.started)


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
