"""tensorir report: a page of a tuning log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorir.cli import common
from tensorir.cli.common import Stop, clean, put, put_json, say, usage
from tensorir.cli.page import page
from tensorir.cli.titles import whole
from tensorir.tune.log import LogReader
from tensorir.tune.ratio import without_slots
from tensorir.tune.summary import Tuned, tuned


def run(log: str, output: str, workload: str | None, measure: bool, as_json: bool) -> int:
    """Make one HTML page of the tuning log in the folder LOG, which needs no other file and no network."""
    reader = LogReader(log)
    asked = next(iter(whole(reader, [workload] if workload else [])), None)
    found = tuned(reader.records(workload=asked))
    if reader.summary():
        say(f"log: {reader.summary()}")
    if not found and workload:
        raise usage(f"there are no records of {clean(workload)} in {log}", f"tensorir log ls --log {log}")
    if not found:
        raise usage(f"there are no records in {log}", "tensorir tune conv2d")
    name = log.encode("utf-8", "replace").decode()  # folders may have names that are no text
    text = page(name, found, reader.summary(), measure)
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as e:
        raise Stop(common.USAGE, f"cannot write {output}: {e.strerror}") from None
    if as_json:
        rows = [_row(t) for t in found]
        put_json({"schema": 1, "output": output, "rows": rows})
    else:
        put(output)
    return common.OK


def _row(t: Tuned) -> dict[str, Any]:
    """What the page opens with."""
    best = {key: getattr(t.best, key, None) for key in ("time_s", "low_s", "high_s")}
    library = None
    if t.library is not None and t.ratio is not None:
        library = without_slots(t.library) | t.ratio.json()
    default = None if t.gain is None else {"time_s": t.default_s, **t.gain.json()}
    row = {"workload": t.workload, "device": t.device, "trials": len(t.trials), "spent_s": round(t.spent_s, 3)}
    return row | {"best": t.best.record.id if t.best else None, **best, "default": default, "baseline": library}
