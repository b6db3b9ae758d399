"""tensorir cache: compiled kernels, and taking them to another machine."""

from __future__ import annotations

from pathlib import Path

import click

from tensorir.cli import common
from tensorir.cli.common import Group, clean, device_option, json_option, log_option, put, put_json, say, usage


@click.group("cache", cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Take tuned, compiled kernels to another machine."""


@command.command("export", cls=common.Verb, context_settings=common.SETTINGS)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--workload", multiple=True, help="Only this workload (as log ls prints it); may be repeated.")
@device_option
@log_option
@json_option
def export(file: Path, workload: tuple[str, ...], device: str | None, log: str, as_json: bool) -> int:
    """Pack a log and its compiled kernels into FILE.

    The chosen kernels of tensorir's own operators are compiled and checked first where that is needed; of workloads
    of your own, what load() left in the cache is packed.
    """
    from tensorir.api.packed import export_pack
    from tensorir.cli.parse import work_of
    from tensorir.cli.titles import whole
    from tensorir.tune.log import LogReader

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


@command.command("import", cls=common.Verb, context_settings=common.SETTINGS)
@click.argument("file", type=click.Path(path_type=Path))
@log_option
@json_option
def take(file: Path, log: str, as_json: bool) -> int:
    """Take over the log and the compiled kernels of FILE, after verifying all of it.

    It holds machine code: import files of people whom you would let install programs, and no others.
    """
    from tensorir.api.packed import import_pack

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
    from tensorir.tune.pack import PackError, opened

    try:
        with opened(file):
            return True
    except PackError as error:
        return error.code in ("pack.newer", "pack.too-large")
