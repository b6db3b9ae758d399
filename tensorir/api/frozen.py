"""Kernel choices pinned by a frozen file (``tensorir log freeze``), and errors for stale ones.

``w.load(log=FILE)`` takes the choice of the file or nothing. The environment variable TENSORIR_FROZEN names a file for
the workloads and devices that it pins, wherever ``log`` is a folder; for all others the log decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensorir.api.candidate import Refused, prepare, steps_text, trace_text
from tensorir.api.identity import command_for
from tensorir.errors import NotTuned, Problem, ScheduleError, TensorIRError, refuse
from tensorir.target import Target
from tensorir.tune.frozen import looks_frozen
from tensorir.tune.record import Record, RunIdentity, Setting, relevant
from tensorir.tune.store import LogError, LogReader
from tensorir.tune.template import found_on

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.tune.ranking import RankedRecord

FROZEN_VARIABLE = "TENSORIR_FROZEN"


def is_frozen(log: str) -> bool:
    """True if ``log`` is a file of frozen choices, even a damaged one."""
    if not Path(log).is_file():
        return False
    try:
        with Path(log).open("rb") as file:
            return looks_frozen(file)
    except OSError:
        return True  # reading it says what is wrong


def log_for(work: Work, log: str, device: Mapping[str, object] | None = None) -> str:
    """``log``, or the file named by TENSORIR_FROZEN if it pins this workload on this device and ``log`` is no frozen
    file.

    device: as in a record; any when None
    Raises LogError ``log.unreadable`` if TENSORIR_FROZEN names no frozen file.
    """
    named = os.environ.get(FROZEN_VARIABLE)
    if not named or is_frozen(log):
        return log
    if not is_frozen(named):
        message = f"{FROZEN_VARIABLE} names {named}, and there is no such file"
        raise refuse(
            LogError, "log.unreadable", message, hint=f"unset {FROZEN_VARIABLE}, or tensorir log freeze -o {named}"
        )
    return named if any(device is None or _on(r, device) for r in _records(work, named)) else log


def _records(work: Work, log: str) -> list[Record]:
    return list(LogReader(log).records(workload=work.title))


def _on(record: Record, device: Mapping[str, object]) -> bool:
    return bool(record.device.get("name") == device.get("name"))


def chosen(records: Iterable[Record], identity: RunIdentity) -> list[RankedRecord]:
    """Usable configurations among ``records`` of one definition that ``identity`` accepts, fastest first."""
    from tensorir.tune.ranking import choose  # where the ranking is kept nobody chooses again

    return choose(r for r in records if identity.accepts(r))


def pinned(work: Work, identity: RunIdentity, log: str) -> Record | None:
    """The record pinned for this workload on this device; None if none is.

    Raises NotTuned ``load.frozen-stale`` if the pinned one was made for another definition, driver, limits or versions.
    """
    mine = [r for r in _records(work, log) if _on(r, identity.device)]
    found = chosen(mine, identity)
    if mine and not found:
        raise changed(work, mine[0], log, min((changes(r, identity) for r in mine), key=len))
    return found[0].record if found else None


def changes(record: Setting, identity: RunIdentity) -> list[str]:
    """Differences between a record's definition, driver, limits and versions and the present ones, in words; at least
    one.
    """
    found = ["the definition"] if record.compute != identity.compute else []
    for key, name in (("driver", "the driver"), ("target", "the limits of the device")):
        then, now = record.device.get(key), identity.device.get(key)
        if then != now and (key == "driver" or (then and now)):
            found.append(f"{name} ({then!s:.100} then, {now!s:.100} now)")
    then, now = relevant(record.versions), relevant(identity.versions)
    found += [
        f"{key} ({then.get(key, 'none'):.80} then, {now.get(key, 'none'):.80} now)"
        for key in sorted(then.keys() | now.keys())
        if then.get(key) != now.get(key)
    ]
    return found or ["its result (it is no valid measurement)"]


def why_stale(work: Work, record: Record, target: Target) -> list[str]:
    """Reasons why this version makes another source than the record's, as far as known."""
    name = record.template
    try:
        if not found_on(work.templates, name, target):
            return [f"the templates: there is no {name!r:.60} any more"]
    except ScheduleError as error:  # of rules
        return [f"the templates: {error.problems[0].message:.200}"]
    try:
        made = prepare(work, name, record.config, target, check=False)
    except Refused as refused:
        outcome = refused.outcome
        return [f"whether template {name} makes it: {outcome.told.get('message', outcome.status)!s:.200}"]
    then, now = steps_text(record.trace).splitlines(), trace_text(made).splitlines()
    for n in range(max(len(then), len(now))):
        a, b = (steps[n] if n < len(steps) else "nothing" for steps in (then, now))
        if a != b:
            return [f"the schedule of template {name}, step {n + 1} ({a:.100} then, {b:.100} now)"]
    return ["the text that the same schedule gives"]


def changed(work: Work, record: Record, log: str, what: list[str]) -> TensorIRError:
    """The NotTuned error for a pinned choice that changed."""
    message = f"record {record.id}, which {log} pins for {work.title}, is stale: changed since: {'; '.join(what[:3])}"
    hint = f"{command_for(work)}, then tensorir log freeze -o {log}"
    return NotTuned(Problem("load.frozen-stale", message, hint=hint))
