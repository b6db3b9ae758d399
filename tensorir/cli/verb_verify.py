"""tensorir log verify and log freeze: regenerate the kernels of a log's records, and pin choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensorir.api.candidate import Refused, prepare
from tensorir.api.identity import compute_digest, target_of
from tensorir.cli import common
from tensorir.cli.common import Stop, clean, put, put_json, say, usage
from tensorir.cli.parse import work_of
from tensorir.cli.titles import whole
from tensorir.cli.verb_log import finish, skipped
from tensorir.errors import TensorIRError
from tensorir.tune import log as logs
from tensorir.tune.frozen import frozen_records, frozen_text
from tensorir.tune.log import LogReader
from tensorir.tune.progress import milliseconds
from tensorir.tune.record import BadRecord, Record
from tensorir.tune.store import open_regular
from tensorir.tune.template import found_on


def freeze(workload: tuple[str, ...], output: str, log: str, as_json: bool) -> int:
    """Write the choice of each workload and device to one file, which --log, w.load(log=…) and TENSORIR_FROZEN take;
    return the exit code.
    """
    reader = LogReader(log)
    asked = whole(reader, workload)
    choices, stale = logs.freeze(reader, asked, _Regenerate())
    skipped(reader)
    if stale:
        say(f"log: {len(stale)} faster record{'s' * (len(stale) != 1)} left out: this version makes another kernel")
    missing = sorted({*asked} - {c.record.workload for c in choices})
    if missing or not choices:
        raise Stop(common.NO_CONFIG, f"there is no valid record of {clean((missing or [log])[0])} to freeze")
    _may_replace(Path(output))
    try:
        logs.write_whole(Path(output), frozen_text([c.record for c in choices]))
    except BadRecord as error:
        raise usage(f"cannot freeze {log}: {error}", "--workload") from None
    if as_json:
        rows = [{"id": c.record.id, "workload": c.record.workload, "device": c.record.device["name"],
                 "time_s": c.time_s} for c in choices]  # fmt: skip
        put_json({"schema": 1, "output": output, "choices": rows, "stale": stale})
        return common.OK
    for c in choices:
        put(clean(f"{c.record.id}  {milliseconds(c.time_s)}  {c.record.workload}  {c.record.device['name']}"))
    return common.OK


def _may_replace(path: Path) -> None:
    """Raise a usage error if ``path`` exists and is no frozen file; damaged frozen files may be replaced."""
    try:
        with open_regular(path) as file:
            other = file.read(1) != b"" and (file.seek(0), frozen_records(file))[1] is None
    except FileNotFoundError:
        return
    except (OSError, BadRecord) as error:
        other = isinstance(error, OSError)  # a damaged frozen file may be written anew
    if other:
        raise usage(f"{path} is no frozen file: it is not overwritten", "another -o")


def verify(log: str, as_json: bool) -> int:
    """Check every line of a log, and make every recorded kernel's source again to compare its digest; return the exit
    code, 7 if something is wrong.
    """
    if not Path(log).exists():
        raise usage(f"there is no tuning log {log}")
    found = logs.verify(LogReader(log), _Regenerate())
    finish(found, as_json)
    return common.OK if found["ok"] else common.BAD_LOG


class _Regenerate:
    """Function from a record to the SHA-256 of the source that this version makes for it, "refused" if its template
    fails; None for workloads defined outside of this package, other definitions, and templates that are gone. Cached.
    """

    def __init__(self) -> None:
        self._works: dict[str, Any] = {}
        self._made: dict[str, str | None] = {}

    def __call__(self, record: Record) -> str | None:
        fields = [record.workload, record.compute, record.template, record.config]
        key = json.dumps([*fields, record.device.get("target")])
        if key not in self._made:  # a trial, its final rounds, and the same on other devices
            self._made[key] = self._make(record)
        return self._made[key]

    def _make(self, record: Record) -> str | None:
        title = record.workload
        if title not in self._works:
            self._works[title] = work_of(title)
        work = self._works[title]
        if work is None or compute_digest(work) != record.compute:
            return None
        try:
            target = target_of(record)
            if not found_on(work.templates, record.template, target):
                return None
            return prepare(work, record.template, record.config, target, check=False).source.sha256
        except Refused:
            return "refused"
        except TensorIRError:
            return None
