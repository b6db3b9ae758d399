"""tensorir tune: search, with progress on stderr and a table or one JSON document on stdout."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorir._package import PACKAGE_VERSION
from tensorir.api.candidate import digest_of
from tensorir.api.frozen import log_for
from tensorir.api.identity import describe, identity_of, repro_command
from tensorir.api.load import choices
from tensorir.api.places import device_names
from tensorir.api.shape_set import tune_set
from tensorir.api.tuning import Earlier, spaces_of, tune
from tensorir.api.workload import Workload
from tensorir.cli import common
from tensorir.cli.common import Stop, put, put_code, put_json, say, usage, words
from tensorir.cli.options import split
from tensorir.cli.parse import weighted
from tensorir.cli.tables import config_text, outcome_text, set_text
from tensorir.errors import DeviceError, TensorIRError
from tensorir.runtime.device import open_device
from tensorir.runtime.host import target_here
from tensorir.target import Target
from tensorir.tune.log import key_of
from tensorir.tune.outcome import TuneOutcome, without_default
from tensorir.tune.portfolio import REGRET
from tensorir.tune.progress import Progress, SetProgress, between, line, set_line
from tensorir.tune.record import Record, key_text
from tensorir.tune.space import Space
from tensorir.tune.spec import RunSpec


def run(
    began: float, op: str, shape: tuple[str, ...], device: str | None, as_json: bool, dry_run: bool, **given: Any
) -> int:
    """Search, and print the result; return the exit code. Without ``trials`` and ``budget`` it takes 60 s.

    began:   time at which the command started, on the clock of ``time.monotonic``
    dry_run: only print what would be searched
    """
    parameters = split(given)
    regret, folder = given.pop("regret"), given.pop("output")
    if not parameters["shapes"] and (regret is not None or folder is not None):
        raise usage("--regret and -o are about a set: they need --shapes")
    made = [(make(), weight) for make, weight in weighted(op, shape, parameters)]
    works = [work for work, _ in made]
    if dry_run:
        given.pop("progress")
        return _dry(works, device, _spec(given, began), as_json)
    given["budget"] = given["budget"] or (None if given["trials"] else 60.0)
    if folder is not None:
        _make(folder)
    if parameters["shapes"]:
        return _set(works, [weight for _, weight in made], device, began, regret, folder, as_json, given)
    outcome = _one(works[0], device, began, given)
    if as_json:
        put_json(outcome.json())
    else:
        put("\n".join([outcome_text(outcome), *(f"{'note':9} {note}" for note in _notes(works[0], outcome))]))
    return _code([outcome], lambda _, trial: repro_command(works[0], trial, given["log"], device))


def _notes(work: Workload, outcome: TuneOutcome) -> tuple[str, ...]:
    """Notes on what stays idle in the best kernel, or () without one."""
    best = outcome.best
    if best is None:
        return ()
    try:
        target = Target.parse(str(outcome.identity.device["target"]))
        return work.schedule(best.config, template=best.template, target=target).expected.notes
    except TensorIRError:  # its template is not here
        return ()


def _make(folder: str) -> None:
    """Create the results folder, so that an unwritable one is noticed before measuring. Raises ``Stop`` with the exit
    code of usage errors.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise usage(f"cannot make the folder {folder}: {error.strerror or type(error).__name__}") from None


def _one(work: Workload, device: str | None, began: float, given: dict[str, Any]) -> TuneOutcome:
    with watch(given.pop("progress"), work, given["trials"], given["budget"], began, given["log"]) as seen:
        spec = _spec(given, began, seen.on_trial)
        return tune(work, _several(device), replace(spec, on_start=seen.on_start, on_peer=seen.on_peer))


def _several(device: str | None) -> Any:
    """Value of ``--device`` as ``tune`` takes it: None, one name, or a list of names if the text has commas."""
    return device.split(",") if device and "," in device else device


def _set(
    works: list[Workload], weights: list[float], device: str | None, began: float, regret: float | None,
    folder: str | None, as_json: bool, given: dict[str, Any],
) -> int:  # fmt: skip
    """Tune several shapes, print the result and write the portfolio's files to ``folder``; return the exit code."""
    with watch_set(given.pop("progress"), works, weights, given["budget"], began) as seen:
        spec = _spec(given, began, seen.on_trial)
        found = tune_set(works, weights, _several(device), spec, REGRET if regret is None else regret)
    for r in found.results:
        if r.outcome is None:
            say(f"left out {r.work.title}: {r.refused}" if r.refused else f"no time left for {r.work.title}")
    if as_json:
        put_json(found.json())
    else:
        put(set_text(found))
    if folder is not None and found.portfolio is not None:
        say(f"wrote {found.save(folder)}: choose.py, choose.c, kernels.json")
    made = {work.title: work for work in works}
    code = _code(found.outcomes, lambda o, trial: repro_command(made[o.identity.workload], trial, given["log"], device))
    if code == common.OK and found.status != "ok":  # before anything was measured
        return common.INTERRUPTED if found.status == "interrupted" else common.NO_CONFIG
    return code


SPEC_NAMES = {"tuner": "strategy", "template": "templates"}
"""Flags that have another name in a RunSpec."""


def _spec(given: dict[str, Any], started: float, on_trial: Callable[[Any], object] | None = None) -> RunSpec:
    own = {SPEC_NAMES.get(name, name): value for name, value in given.items()}
    return RunSpec.of(wait=not own.pop("no_wait"), started=started, on_trial=on_trial, **own)


def _code(outcomes: Sequence[TuneOutcome], again: Callable[[TuneOutcome, str], str]) -> int:
    """Exit code, after printing errors and reasons on stderr: of the first outcome that lost the device (6), has an
    error (7) or was interrupted (130); else 4 if one has no valid configuration, else 0.

    again: function of an outcome and a trial that gives the command to repeat the trial
    """
    code = common.OK
    for outcome in outcomes:
        if outcome.error is not None:
            say(words(outcome.error))
        if outcome.stopped == "device_lost":
            say("tensorir: the device is lost; everything up to then is in the log")
            return common.DEVICE_LOST
        if outcome.error is not None:
            return common.BAD_LOG
        if outcome.status == "interrupted":
            return common.INTERRUPTED
        if outcome.status in ("no_valid_config", "not_tried"):
            code = common.NO_CONFIG
            _say_why(outcome, again)
    return code


def _say_why(outcome: TuneOutcome, again: Callable[[TuneOutcome, str], str]) -> None:
    title = outcome.identity.workload
    if outcome.status == "not_tried":
        say(f"tensorir: no configuration of {title} was tried: {outcome.why or outcome.stopped}")
        return
    say(f"tensorir: no valid configuration of {title} was found")
    for reason in outcome.reasons[:6]:
        say(f"  {reason['count']}x {reason['reason']}  ({again(outcome, reason['trial'])})")


def _dry(works: list[Workload], device: str | None, spec: RunSpec, as_json: bool) -> int:
    """Print the spaces to search, the number of reusable results and the default configuration, without measuring;
    return the exit code.
    """
    documents = []
    target, about = _target(next(iter(device_names(_several(device))), None))
    for work in works:
        spaces = spaces_of(work, spec, target)
        name, space = next(iter(spaces.items()))
        s = work.schedule(space.default, template=name, target=target)
        templates = {
            n: {"configs": x.size, "legal": len(x.legal), "default": x.default,
                "knobs": {k: list(v) for k, v in zip(x.names, x.values, strict=True)}}
            for n, x in spaces.items()
        }  # fmt: skip
        total = {
            "configs": sum(x.size for x in spaces.values()),
            "legal": sum(len(x.legal) for x in spaces.values()),
        }
        begin = {"default": space.default, "knobs": templates[name]["knobs"], "tree": str(s), "source": s.source()}
        reused = _reused(work, spec, spaces, about)
        begin = {"reused": reused, **begin}
        documents.append({"workload": work.title, "template": name, **total, "templates": templates, **begin})
        if not as_json:
            told = [f"template {n}: {x.explain()}" for n, x in spaces.items()]
            begins = f"begins with {name}: {config_text(space.default)}"
            counts = f"{total['configs']} configurations, {total['legal']} legal"
            counts += "" if reused is None else f"; {reused} results of the log would be reused"
            put("\n".join([f"{work.title}: {counts}", *told, begins, str(s.expected)]))
            put(f"\n{s}\n")
            put_code(s.source())
    if as_json:
        put_json({"schema": 1, "dry_run": True, "workloads": documents})
    if not documents:
        raise Stop(common.USAGE, "nothing to tune")
    return common.OK


def _reused(
    work: Workload, spec: RunSpec, spaces: Mapping[str, Space], about: Mapping[str, object] | None
) -> int | None:
    """Number of results in the log that a run would reuse; None if the device is absent."""
    if about is None:
        return None
    target = Target.parse(str(about["target"]))

    def digests(some: Sequence[Record]) -> list[str | None]:
        return [digest_of(work, record, target) for record in some]

    return len(Earlier(work, identity_of(work, about), spaces, spec, digests).reused)


def _target(device: str | None) -> tuple[Target, dict[str, object] | None]:
    """(target, description of the device). If the device is absent: a message is printed, the target is that of its
    name, the description None.
    """
    try:
        opened = open_device(device)
        return replace(opened.target, device=""), describe(opened)
    except DeviceError as error:
        target = target_here(device or "opencl")
        say(f"{error.problems[0].message}: this is what a device like {target.text} would begin with")
        return target, None


# Progress of the tuning of several shapes, on stderr.


class SetWatch:
    """Callbacks that show the progress of a run over several shapes; this base class prints nothing."""

    def __init__(
        self, works: Sequence[Workload], weights: Sequence[float], budget_s: float | None, started: float
    ) -> None:
        self.started = started
        self.state = SetProgress({w.title: x for w, x in zip(works, weights, strict=True)}, budget_s)
        self._said = 0.0
        self.name = works[0].name

    def on_trial(self, record: Record) -> None:
        """Add a trial of any shape to the state and show it."""
        self.show(self.state.add(record))

    def show(self, better: bool) -> None:
        """Show the state after a trial; does nothing here. ``better``: True if the trial improved the total time."""

    def close(self) -> None:
        """Called at the end of the run; does nothing here."""

    def line(self) -> str:
        """Progress line ``[   12s] 37 trials, 23 of 23 shapes  total 12.34 ms (first 15.02 ms)  | ok 36  wrong 1 | eta
        48s``.
        """
        return set_line(self.state, time.monotonic() - self.started)


class PlainSet(SetWatch):
    """Prints a progress line after improvements (at most every 2 s), else every ten seconds."""

    def show(self, better: bool) -> None:
        since = time.monotonic() - self._said
        if since > 10 or (better and since > 2):
            say(self.line())
            self._said = time.monotonic()


class LiveSet(SetWatch):
    """Redraws a panel on the terminal four times a second; the panel is erased at the end."""

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
    """Progress display for the value of ``--progress``, as a context manager that closes it."""
    kinds: dict[str, type[SetWatch]] = {"live": LiveSet, "plain": PlainSet, "none": SetWatch}
    return closing(kinds[mode_for(mode)](works, weights, budget_s, started))


class Watch:
    """Callbacks that show the progress of a run; this base class prints nothing."""

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
        """Message if ``record`` is a failed trial of the default configuration; "" otherwise."""
        failed = record.status != "ok" and key_of(record) == self._default
        return f"default  {without_default(record)}" if failed else ""

    def close(self) -> None:
        """Called at the end of the run; does nothing here."""


class Plain(Watch):
    """Prints a progress line after each improvement, else every ten seconds."""

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
    """Redraws a panel on the terminal four times a second; the panel is erased at the end."""

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
    """Lines printed before a run: workload and device, size of the spaces, reused results, and the log's best time so
    far.
    """
    configs = sum(s.size for s in spaces.values())
    legal = sum(len(s.legal) for s in spaces.values())
    where = f"{device.get('id')} {device.get('name')} ({device.get('platform')})"
    return [
        f"tensorir {PACKAGE_VERSION}  {work.title}  on {where}",
        f"space {configs:,} configurations, {legal:,} legal; {reused} results reused",
        *(known_best(work, device, log) if reused and log else []),
    ]


def known_best(work: Workload, device: Mapping[str, object], log: str) -> list[str]:
    """One line on the log's best configuration for this device; [] if there is none."""
    found = choices(work, identity_of(work, device), log_for(work, log, device), most=1)[:1]
    return [
        f"known  best {between(c.time_s, c.low_s, c.high_s)}  {c.record.template}: "
        f"{config_text(c.record.config)}  ({c.record.id})"
        for c in found
    ]


def mode_for(mode: str) -> str:
    """ "live", "plain" or "none" for the value of ``--progress``; "auto" becomes "live" on a colour terminal, else
    "plain".
    """
    if mode != "auto":
        return mode
    plain = bool(os.environ.get("NO_COLOR") or os.environ.get("CI") or os.environ.get("TERM") == "dumb")
    return "live" if sys.stderr.isatty() and not plain else "plain"


def watch(
    mode: str, work: Workload, trials: int | None, budget_s: float | None, started: float, log: str = ""
) -> closing[Watch]:
    """Progress display for the value of ``--progress``, as a context manager that closes it.

    mode: "live", "plain", "none" or "auto" (``mode_for``);  log: path of earlier results, "" for none
    """
    kinds: dict[str, type[Watch]] = {"live": Live, "plain": Plain, "none": Watch}
    return closing(kinds[mode_for(mode)](work, trials, budget_s, started, log))
