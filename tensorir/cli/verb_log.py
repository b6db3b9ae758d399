"""tensorir log: lists, shows, counts, merges and compacts the records of tuning logs."""

from __future__ import annotations

from tensorir.cli import common
from tensorir.cli.common import clean, plainly, put, put_json, say, usage
from tensorir.cli.tables import config_text, table
from tensorir.cli.titles import whole
from tensorir.codec import encode
from tensorir.tune import log as logs
from tensorir.tune.log import LogReader
from tensorir.tune.progress import milliseconds
from tensorir.tune.ranking import library
from tensorir.tune.ratio import without_slots
from tensorir.tune.record import seal


def skipped(reader: LogReader) -> None:
    """Print on stderr how many lines of the log were skipped, and why."""
    if reader.summary():
        say(f"log: {reader.summary()}")


def ls(log: str, as_json: bool) -> int:
    """Print one line per workload and device of a log; return the exit code."""
    reader = LogReader(log)
    rows = logs.listing(reader)
    skipped(reader)
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


def best(workload: str | None, log: str, as_json: bool) -> int:
    """Print the fastest valid configuration of each workload and device, latest first; return the exit code."""
    reader = LogReader(log)
    choices = logs.best(reader, workload=next(iter(whole(reader, [workload] if workload else [])), None))
    skipped(reader)
    rounds = logs.peers(reader)
    peers = [library((r for r in rounds if logs.identity_of(r) == logs.identity_of(c.record)), c) for c in choices]
    if as_json:
        records = [
            {
                **seal(encode(c.record)),
                "time_s": c.time_s,
                "low_s": c.low_s,
                "high_s": c.high_s,
                "confirmed": c.confirmed,
            }
            | ({} if peer is None else {"baseline": without_slots(peer[0]) | peer[1].json()})
            for c, peer in zip(choices, peers, strict=True)
        ]
        put_json({"schema": 1, "records": records})
        return common.OK
    for c, peer in zip(choices, peers, strict=True):
        config = config_text(c.record.config)
        ratio = "" if peer is None else f"  {peer[1].text(peer[0]['name'])}"
        words = "" if c.load is None else c.load.words()
        busy = f"  ({words} while it was timed)" if words else ""
        put(clean(f"{c.record.id}  {milliseconds(c.time_s)}{ratio}  {c.record.workload}  {config}{busy}"))
    if not choices:
        say(f"there is no valid record in {log}")
    return common.OK


def show(record: str, log: str, as_json: bool) -> int:
    """Print the records whose id starts with RECORD, and the final measurements of those; return the exit code."""
    reader = LogReader(log)
    found = logs.show(reader, record)
    skipped(reader)
    if not found:
        raise usage(f"there is no record {record!r:.60} in {log}", "tensorir log best")
    if as_json:
        put_json({"schema": 1, "records": [seal(encode(r)) for r in found]})
    else:
        for r in found:
            facts = [(k, plainly(v)) for k, v in seal(encode(r)).items() if v not in (None, [], {})]
            put("\n".join(clean(f"{k:14} {text}", 1 << 20) for k, text in facts) + "\n")
    return common.OK


def merge(sources: tuple[str, ...], output: str, as_json: bool) -> int:
    """Write the union of several logs to the folder given by -o; return the exit code."""
    return finish(logs.merge(sources, output), as_json)


def compact(log: str, as_json: bool) -> int:
    """Rewrite a log as one sorted file per workload instead of one per run; return the exit code."""
    return finish(logs.compact(log), as_json)


def stats(log: str, as_json: bool) -> int:
    """Print counts over a whole log; return the exit code."""
    return finish(logs.stats(LogReader(log)), as_json)


def finish(found: dict[str, object], as_json: bool) -> int:
    """Print ``found``, one entry per line or as JSON; return the exit code for success."""
    if as_json:
        put_json({"schema": 1, **found})
    else:
        for key, value in found.items():
            if isinstance(value, list) and value and not isinstance(value[0], dict):
                put("\n".join(clean(f"{key:12} {v}", 1 << 20) for v in value))
            else:
                put(clean(f"{key:12} {plainly(value)}", 1 << 20))
    return common.OK
