"""Live notebook cell of a tuning run, updated while it runs."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from tensorir import _package
from tensorir.show import curves
from tensorir.show.pieces import Html, card, code, table
from tensorir.tune.progress import Progress, SetProgress, between, duration, eta, line, rate, set_line, statuses
from tensorir.tune.record import Record

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.tune.spec import RunSpec

EVERY_S = 0.5
T = TypeVar("T")
Put = Callable[[str, str], object]
"""Function (html, text) that replaces the cell's content; the text is for front ends without HTML."""


class Single:
    """State of one workload's tuning run, fed by the run's callbacks, and its text and HTML."""

    def __init__(self, work: Work, spec: RunSpec) -> None:
        self.title, self.device, self.failed = work.title, "", ""
        self.state = Progress(total=spec.trials, budget_s=spec.budget_s, flops=work.flops)
        self.seconds: list[float | None] = []

    def on_start(self, device: Mapping[str, object], spaces: Mapping[str, object], reused: int) -> None:
        """Store the device and the number of reused results."""
        self.device = str(device.get("name", ""))
        self.state.start(device, reused)

    def on_peer(self, peer: Mapping[str, object]) -> None:
        """Store the library's time."""
        self.state.hear(peer)

    def on_trial(self, record: Record) -> None:
        """Add a trial to the state."""
        self.state.add(record)
        self.seconds.append(record.steady_s if record.status == "ok" else None)

    def line(self, elapsed_s: float) -> str:
        """One line of text on the progress after ``elapsed_s`` seconds."""
        return line(self.state, elapsed_s)

    def html(self, elapsed_s: float) -> Html:
        """HTML card with a table of the state and a curve of the best time."""
        s, left = self.state, eta(self.state, elapsed_s)
        best = ratio = None
        if s.best is not None:
            best = between(s.best.time_s, s.best.low_s, s.best.high_s)
            best += f", {rate(s.flops / s.best.time_s)}" if s.flops else ""
            ratio = s.ratio
        rows = {
            "elapsed": _elapsed(elapsed_s, left),
            "trials": f"{s.done}{f' of {s.total}' if s.total is not None else ''}: {statuses(s.counts) or 'none yet'}",
            "best": best or "nothing valid yet",
            "ratio": None if ratio is None or s.baseline is None else ratio.share(s.baseline[0]),
            "doubt": None if ratio is None else ratio.doubt,
        }
        busy = s.load.words() if s.load is not None and s.load.disturbed else ""
        rows["machine"] = busy if busy != rows["doubt"] else None
        head = code(self.title + (f" on {self.device}" if self.device else ""))
        return card("Tuning …", head, table(rows), curves.best_so_far(self.seconds))


class Several:
    """State of a tuning run over several shapes, fed by the run's callbacks, and its text and HTML."""

    def __init__(self, works: Sequence[Work], weights: Sequence[float], spec: RunSpec) -> None:
        self.title = works[0].name
        self.state = SetProgress({w.title: x for w, x in zip(works, weights, strict=True)}, spec.budget_s)

    def on_trial(self, record: Record) -> None:
        """Add a trial of any shape to the state."""
        self.state.add(record)

    def line(self, elapsed_s: float) -> str:
        """One line of text on the progress after ``elapsed_s`` seconds."""
        return set_line(self.state, elapsed_s)

    def html(self, elapsed_s: float) -> Html:
        """HTML card with a table of the state."""
        s = self.state
        rows = {
            "elapsed": _elapsed(elapsed_s, None if s.budget_s is None else max(0.0, s.budget_s - elapsed_s)),
            "trials": f"{s.counts.total()}: {statuses(s.counts) or 'none yet'}",
            "shapes": f"{len(s.best)} of {len(s.weights)}",
            "best": s.total(),
        }
        return card("Tuning …", f"{len(s.weights)} shapes of {self.title}", table(rows))


def _elapsed(elapsed_s: float, left_s: float | None) -> str:
    return duration(elapsed_s) + (f", {duration(left_s)} to go" if left_s is not None else "")


class LiveCell:
    """Context manager that refreshes a notebook display with the state ``heard``, in a thread, until it is closed."""

    def __init__(self, heard: Single | Several, put: Put, clock: Callable[[], float] = time.monotonic) -> None:
        self.heard, self.put, self.clock = heard, put, clock
        self._started, self._lock, self._over = clock(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), daemon=True)

    def listening(self, spec: RunSpec) -> RunSpec:
        """Copy of ``spec`` whose callbacks also update this cell's state."""
        heard: dict[str, Any] = {}
        for name in ("on_start", "on_peer", "on_trial"):
            if (mine := getattr(self.heard, name, None)) is not None:
                heard[name] = self._both(mine, getattr(spec, name))
        return replace(spec, **heard)

    def _both(self, mine: Callable[..., object], theirs: Callable[..., object] | None) -> Callable[..., None]:
        def called(*given: Any) -> None:
            with self._lock:
                mine(*given)
            if theirs is not None:
                theirs(*given)

        return called

    def renew(self) -> None:
        """Refresh the display now."""
        with self._lock:
            elapsed = self.clock() - self._started
            shown = self.heard.html(elapsed), self.heard.line(elapsed)
        self.put(*shown)

    def _run(self) -> None:
        while not self._over.wait(EVERY_S):
            self.renew()

    def __enter__(self) -> LiveCell:
        self.renew()
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()


def watched(heard: Single | Several, spec: RunSpec, run: Callable[[RunSpec], T]) -> T:
    """Return ``run(spec)``; in a notebook and with ``spec.live``, a live cell shows the progress meanwhile, renewed
    every 0.5 s, and at the end the result.
    """
    put = screen() if spec.live else None
    if put is None:
        return run(spec)
    with LiveCell(heard, put) as cell:
        outcome = run(cell.listening(spec))
    put(_package.html_of(outcome), repr(outcome))
    _stay(outcome, put)
    return outcome


def _notebook() -> Any:
    """The IPython shell if this process is a notebook's kernel, else None; does not import IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if hasattr(shell, "kernel") else None


def screen() -> Put | None:
    """Function ``put(html, text)`` that updates one display of the running notebook cell; None outside notebooks."""
    if _notebook() is None:
        return None
    handle = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)

    def put(html: str, text: str) -> None:
        with contextlib.suppress(OSError):  # the front end has gone
            handle.update({"text/html": html, "text/plain": text}, raw=True)

    return put


_stays: list[tuple[weakref.ref[Any], int, Put]] = []


def _stay(outcome: Any, put: Put) -> None:
    shell = _notebook()
    if shell is not None:
        _stays[:] = [(weakref.ref(outcome), shell.execution_count, put)]


def give_way(x: object) -> None:
    """Clear the live display of the result ``x`` if the user's cell displays ``x`` itself, so that it is shown once."""
    shell = _notebook()
    for shown, count, put in _stays:
        if shown() is x and shell is not None and shell.execution_count == count:
            put("", "")
            _stays.clear()
