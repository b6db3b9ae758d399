"""Progress of a tuning run on stderr: plain lines, or a live panel on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tensorir._package import PACKAGE_VERSION
from tensorir.api.frozen import log_for
from tensorir.api.identity import identity_of
from tensorir.api.load import choices
from tensorir.api.workload import Workload
from tensorir.cli.common import say
from tensorir.cli.tables import config_text
from tensorir.tune.log import key_of
from tensorir.tune.outcome import without_default
from tensorir.tune.progress import Progress, between, line
from tensorir.tune.record import Record, key_text
from tensorir.tune.space import Space


class Watch:
    """Callbacks of a run; this one is silent."""

    def __init__(
        self, work: Workload, trials: int | None, budget_s: float | None, started: float, log: str = ""
    ) -> None:
        self.work, self.started, self.log = work, started, log
        self.state: Progress = Progress(total=trials, budget_s=budget_s, flops=work.flops)
        self._default = ""

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def on_start(self, device: Mapping[str, object], spaces: Mapping[str, Space], reused: int) -> None:
        self.state.start(device, reused)
        first = next(iter(spaces), None)
        self._default = "" if first is None else key_text([first, spaces[first].default])

    def on_peer(self, peer: Mapping[str, object]) -> None:
        self.state.hear(peer)

    def on_trial(self, record: Record) -> None:
        self.state.add(record)

    def failed_default(self, record: Record) -> str:
        """A line where this is the default's record, and it failed; nothing otherwise."""
        failed = record.status != "ok" and key_of(record) == self._default
        return f"default  {without_default(record)}" if failed else ""

    def close(self) -> None:
        """The end of the run."""


class Plain(Watch):
    """One line per improvement and one every ten seconds."""

    def on_start(self, device: Mapping[str, object], spaces: Mapping[str, Space], reused: int) -> None:
        super().on_start(device, spaces, reused)
        for told in head(self.work, device, spaces, reused, self.log):
            say(told)

    def on_peer(self, peer: Mapping[str, Any]) -> None:
        super().on_peer(peer)
        say(f"baseline {peer['name']} {between(peer['time_s'], peer['low_s'], peer['high_s'])}")

    def on_trial(self, record: Record) -> None:
        if told := self.failed_default(record):
            say(told)
        if self.state.due(self.elapsed, self.state.add(record)):
            say(line(self.state, self.elapsed))


class Live(Watch):
    """A panel that is redrawn, and erased at the end."""

    def __init__(
        self, work: Workload, trials: int | None, budget_s: float | None, started: float, log: str = ""
    ) -> None:
        super().__init__(work, trials, budget_s, started, log)
        from rich.console import Console
        from rich.live import Live as RichLive

        self._head: list[str] = []
        self._live = RichLive(
            console=Console(stderr=True), get_renderable=self._panel, transient=True, refresh_per_second=4
        )
        self._live.start()

    def _panel(self) -> Any:
        from rich.panel import Panel
        from rich.text import Text

        return Panel(Text("\n".join([*self._head, line(self.state, self.elapsed)])), title="tensorir tune")

    def on_start(self, device: Mapping[str, object], spaces: Mapping[str, Space], reused: int) -> None:
        super().on_start(device, spaces, reused)
        self._head = head(self.work, device, spaces, reused, self.log)

    def on_trial(self, record: Record) -> None:
        super().on_trial(record)
        self._head += [told] if (told := self.failed_default(record)) else []

    def close(self) -> None:
        self._live.stop()


def head(
    work: Workload, device: Mapping[str, object], spaces: Mapping[str, Space], reused: int, log: str = ""
) -> list[str]:
    """What is searched, and where; with a log, the best that is known already."""
    configs = sum(s.size for s in spaces.values())
    legal = sum(len(s.legal) for s in spaces.values())
    where = f"{device.get('id')} {device.get('name')} ({device.get('platform')})"
    return [
        f"tensorir {PACKAGE_VERSION}  {work.title}  on {where}",
        f"space {configs:,} configurations, {legal:,} legal; {reused} results reused",
        *(known_best(work, device, log) if reused and log else []),
    ]


def known_best(work: Workload, device: Mapping[str, object], log: str) -> list[str]:
    """A line about the fastest configuration that the log knows for this device; none where all of them failed."""
    found = choices(work, identity_of(work, device), log_for(work, log, device), most=1)[:1]
    return [
        f"known  best {between(c.time_s, c.low_s, c.high_s)}  {c.record.template}: "
        f"{config_text(c.record.config)}  ({c.record.id})"
        for c in found
    ]


def mode_for(mode: str) -> str:
    """What "auto" means on this terminal."""
    if mode != "auto":
        return mode
    plain = bool(os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM") == "dumb")
    return "live" if sys.stderr.isatty() and not plain else "plain"


def watch(
    mode: str, work: Workload, trials: int | None, budget_s: float | None, started: float, log: str = ""
) -> closing[Watch]:
    """The watcher for ``--progress``, closed at the end of a ``with``; log: where earlier results are."""
    kinds: dict[str, type[Watch]] = {"live": Live, "plain": Plain, "none": Watch}
    return closing(kinds[mode_for(mode)](work, trials, budget_s, started, log))
