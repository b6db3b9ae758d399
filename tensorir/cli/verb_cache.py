"""tensorir cache: compiled kernels, and taking them to another machine."""

from __future__ import annotations

from pathlib import Path

from tensorir.api.packed import export_pack, import_pack
from tensorir.cli import common
from tensorir.cli.common import clean, put, put_json, say, usage
from tensorir.cli.parse import work_of
from tensorir.cli.titles import whole
from tensorir.tune.log import LogReader
from tensorir.tune.pack import PackError, opened


def export(file: Path, workload: tuple[str, ...], device: str | None, log: str, as_json: bool) -> int:
    """Pack a log and its compiled kernels into FILE."""
    if not Path(log).exists():
        raise usage(f"there is no tuning log {log}")
    if file.exists() and not _is_pack(file):
        raise usage(f"{file} is no packed log: it is not overwritten", "another file")
    done = export_pack(file, log, whole(LogReader(log), workload), work_of, device)
    for title, why in done["without"].items():
        say(clean(f"no kernel of {title:.200}: {why}"))
    if as_json:
        put_json({"schema": 1, **done})
    else:
        put(f"{file}  {done['records']} records, {done['artifacts']} kernels, {done['bytes']} bytes")
    return common.OK


def take(file: Path, log: str, as_json: bool) -> int:
    """Take over the log and the compiled kernels of FILE, after verifying all of it."""
    done = import_pack(file, log)
    for d in done["devices"]:
        if not d["here"]:
            what = f"{d['records']} records and {d['artifacts']} kernels"
            say(clean(f"{what} are for {d['name']} ({d['driver']}), which is not here: kept, not used"))
    if as_json:
        put_json({"schema": 1, **done})
    else:
        put(f"{log}  {done['records']} records, {done['artifacts']} kernels ({done['known']} were here already)")
    return common.OK


def _is_pack(file: Path) -> bool:
    try:
        with opened(file):
            return True
    except PackError as error:
        return error.code in ("pack.version", "pack.too-large")
