"""tensorir log: what tuning logs hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorir.cli import common
from tensorir.cli.common import Group, Stop, clean, json_option, log_option, plainly, put, put_json, say, usage
from tensorir.cli.titles import whole

if TYPE_CHECKING:
    from tensorir.tune.log import LogReader
    from tensorir.tune.record import Record


@click.group("log", cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look at, check and tidy tuning logs."""


def _reader(log: str) -> LogReader:
    from tensorir.tune.log import LogReader

    return LogReader(log)


def _skipped(reader: LogReader) -> None:
    if reader.summary():
        say(f"log: {reader.summary()}")


@command.command("ls", cls=common.Verb, context_settings=common.SETTINGS)
@log_option
@json_option
def ls(log: str, as_json: bool) -> int:
    """One line per workload and device."""
    from tensorir.cli.tables import table
    from tensorir.tune.log import listing
    from tensorir.tune.progress import milliseconds

    reader = _reader(log)
    rows = listing(reader)
    _skipped(reader)
    if as_json:
        put_json({"schema": 1, "rows": rows})
    elif rows:
        lines = [["workload", "device", "trials", "ok", "best", "last"]]
        for r in rows:
            best = milliseconds(r["best_s"]) if r["best_s"] else ""
            lines.append(
                [clean(r["workload"]), clean(r["device"]), str(r["trials"]), str(r["ok"]), best, r["last"][:19]]
            )
        put(table(lines))
    else:
        say(f"there are no records in {log}")
    return common.OK


@command.command("best", cls=common.Verb, context_settings=common.SETTINGS)
@click.option("--workload", help="Only this workload (as log ls prints it).")
@log_option
@json_option
def best(workload: str | None, log: str, as_json: bool) -> int:
    """The fastest valid configuration of each workload and device, latest first."""
    from tensorir.cli.tables import config_text
    from tensorir.tune.choosing import library
    from tensorir.tune.log import best as find
    from tensorir.tune.log import identity_of
    from tensorir.tune.progress import milliseconds
    from tensorir.tune.ratio import without_slots
    from tensorir.tune.record import compares

    reader = _reader(log)
    choices = find(reader, workload=next(iter(whole(reader, [workload] if workload else [])), None))
    _skipped(reader)
    rounds = [r for r in reader.records() if r.get("baseline")]
    beside = [library((r for r in rounds if identity_of(r) == identity_of(c.record)), c) for c in choices]
    if as_json:
        records = [
            {**c.record, "time_s": c.time_s, "low_s": c.low_s, "high_s": c.high_s, "confirmed": c.confirmed}
            | ({} if peer is None else {"baseline": without_slots(peer[0]) | peer[1].json()})
            for c, peer in zip(choices, beside, strict=True)
        ]
        put_json({"schema": 1, "records": records})
        return common.OK
    for c, peer in zip(choices, beside, strict=True):
        config = config_text(c.record["config"])
        ratio = "" if peer is None else f"  {peer[1].text(peer[0]['name'])}"
        words = "" if c.load is None else c.load.words()
        busy = f"  ({words} while it was timed)" if words else ""
        older = "" if compares(c.timed) else "  (version 1, which does not compare with others)"
        put(clean(f"{c.record['id']}  {milliseconds(c.time_s)}{ratio}  {c.record['workload']}  {config}{busy}{older}"))
    if not choices:
        say(f"there is no valid record in {log}")
    return common.OK


@command.command("show", cls=common.Verb, context_settings=common.SETTINGS)
@click.argument("record")
@log_option
@json_option
def show(record: str, log: str, as_json: bool) -> int:
    """The records whose id starts with RECORD."""
    from tensorir.tune.log import show as find

    reader = _reader(log)
    found = find(reader, record)
    _skipped(reader)
    if not found:
        raise usage(f"there is no record {record!r:.60} in {log}", "tensorir log best")
    if as_json:
        put_json({"schema": 1, "records": found})
    else:
        for r in found:
            facts = [(k, plainly(v)) for k, v in r.items() if v not in (None, [], {})]
            put("\n".join(clean(f"{k:14} {text}", 1 << 20) for k, text in facts) + "\n")
    return common.OK


@command.command("merge", cls=common.Verb, context_settings=common.SETTINGS)
@click.argument("sources", nargs=-1, required=True, metavar="DIR...")
@click.option("-o", "--output", required=True, metavar="DIR")
@json_option
def merge(sources: tuple[str, ...], output: str, as_json: bool) -> int:
    """Write the union of several logs below -o."""
    from tensorir.tune.log import merge as join

    return _done(join(sources, output), as_json)


@command.command("compact", cls=common.Verb, context_settings=common.SETTINGS)
@log_option
@json_option
def compact(log: str, as_json: bool) -> int:
    """One sorted file per workload instead of one per run."""
    from tensorir.tune.log import compact as tidy

    return _done(tidy(log), as_json)


@command.command("migrate", cls=common.Verb, context_settings=common.SETTINGS)
@log_option
@json_option
def migrate(log: str, as_json: bool) -> int:
    """Bring records of older versions to the present one; the files as they were are kept beside, as *.older."""
    from tensorir.tune.migrate import migrate as bring

    if not Path(log).exists():
        raise usage(f"there is no tuning log {log}")
    return _done(bring(log), as_json)


@command.command("freeze", cls=common.Verb, context_settings=common.SETTINGS)
@click.option("--workload", multiple=True, help="Only this workload (as log ls prints it); may be repeated.")
@click.option("-o", "--output", default="frozen.json", show_default=True, metavar="FILE")
@log_option
@json_option
def freeze(workload: tuple[str, ...], output: str, log: str, as_json: bool) -> int:
    """Pin the choice of each workload and device in one file, which --log, w.load(log=…) and TENSORIR_FROZEN take.

    A file that is loaded from decides alone, whatever the log learns later; a choice whose kernel this version of
    tensorir makes in another way is refused.
    """
    from tensorir.tune.frozen import frozen_text
    from tensorir.tune.log import freeze as choose
    from tensorir.tune.log import write_whole
    from tensorir.tune.progress import milliseconds
    from tensorir.tune.record import BadRecord

    reader = _reader(log)
    asked = whole(reader, workload)
    choices, stale = choose(reader, asked, _Regenerate())
    _skipped(reader)
    if stale:
        say(f"log: {len(stale)} faster record{'s' * (len(stale) != 1)} left out: this version makes another kernel")
    missing = sorted({*asked} - {c.record["workload"] for c in choices})
    if missing or not choices:
        raise Stop(common.NO_CONFIG, f"there is no valid record of {clean((missing or [log])[0])} to freeze")
    _may_replace(Path(output))
    try:
        write_whole(Path(output), frozen_text([c.record for c in choices]))
    except BadRecord as error:
        raise usage(f"cannot freeze {log}: {error}", "--workload") from None
    if as_json:
        rows = [{"id": c.record["id"], "workload": c.record["workload"], "device": c.record["device"]["name"],
                 "time_s": c.time_s} for c in choices]  # fmt: skip
        put_json({"schema": 1, "output": output, "choices": rows, "stale": stale})
        return common.OK
    for c in choices:
        put(clean(f"{c.record['id']}  {milliseconds(c.time_s)}  {c.record['workload']}  {c.record['device']['name']}"))
    return common.OK


def _may_replace(path: Path) -> None:
    """Refuse to overwrite what is not a frozen file."""
    from tensorir.tune.frozen import frozen_records
    from tensorir.tune.record import BadRecord
    from tensorir.tune.store import open_regular

    try:
        with open_regular(path) as file:
            other = file.read(1) != b"" and (file.seek(0), frozen_records(file))[1] is None
    except FileNotFoundError:
        return
    except (OSError, BadRecord) as error:
        other = isinstance(error, OSError)  # a damaged frozen file may be written anew
    if other:
        raise usage(f"{path} is no frozen file: it is not overwritten", "another -o")


@command.command("stats", cls=common.Verb, context_settings=common.SETTINGS)
@log_option
@json_option
def stats(log: str, as_json: bool) -> int:
    """Counts over a whole log."""
    from tensorir.tune.log import stats as count

    return _done(count(_reader(log)), as_json)


@command.command("verify", cls=common.Verb, context_settings=common.SETTINGS)
@log_option
@json_option
def verify(log: str, as_json: bool) -> int:
    """Check every line, and make every source again to compare its digest; exit 7 when something is wrong."""
    from tensorir.tune.log import verify as check

    if not Path(log).exists():
        raise usage(f"there is no tuning log {log}")
    found = check(_reader(log), _Regenerate())
    _done(found, as_json)
    return common.OK if found["ok"] else common.LOG


class _Regenerate:
    """The digest of the source that this version makes for a record; None for workloads of users' files."""

    def __init__(self) -> None:
        self._works: dict[str, Any] = {}
        self._made: dict[str, str | None] = {}

    def __call__(self, record: Record) -> str | None:
        import json

        fields = [record[k] for k in ("workload", "compute", "template", "config")]
        key = json.dumps([*fields, record["device"].get("target")])
        if key not in self._made:  # a trial, its final rounds, and the same on other devices
            self._made[key] = self._make(record)
        return self._made[key]

    def _make(self, record: Record) -> str | None:
        from tensorir.api.candidate import Refused, prepare
        from tensorir.api.identity import compute_digest, target_of
        from tensorir.cli.parse import work_of
        from tensorir.errors import TensorIRError

        title = record["workload"]
        if title not in self._works:
            self._works[title] = work_of(title)
        work = self._works[title]
        if work is None or compute_digest(work) != record["compute"] or record["template"] not in work.templates:
            return None
        try:
            return prepare(work, record["template"], record["config"], target_of(record), check=False).source.sha256
        except Refused:
            return "refused"
        except TensorIRError:
            return None


def _done(found: dict[str, Any], as_json: bool) -> int:
    if as_json:
        put_json({"schema": 1, **found})
    else:
        for key, value in found.items():
            if isinstance(value, list) and value and not isinstance(value[0], dict):
                put("\n".join(clean(f"{key:12} {v}", 1 << 20) for v in value))
            else:
                put(clean(f"{key:12} {plainly(value)}", 1 << 20))
    return common.OK
