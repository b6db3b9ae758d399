"""tensorir repro: one recorded configuration, measured again."""

from __future__ import annotations

from typing import Any

from tensorir.api.identity import compute_digest
from tensorir.api.measurer import Measurer
from tensorir.cli import common
from tensorir.cli.common import (
    Stop,
    clean,
    plainly,
    put,
    put_json,
    say,
    usage,
)
from tensorir.cli.parse import from_title, record_named, workloads
from tensorir.cli.tables import config_text
from tensorir.codec import encode
from tensorir.tune.record import Record, seal
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import Trial


def run(
    record: str, workload: str | None, arg: tuple[str, ...], timeout: float, device: str | None, log: str, as_json: bool
) -> int:
    """Schedule, check, compile, run and time the configuration of RECORD again, and print all results; nothing is
    logged. Return the exit code: 0, 5 for a wrong result, 4 for other failures, 7 if the definition has changed.
    """
    found = record_named(record, log)
    if found is None:
        raise usage(f"there is no single record {record!r:.60} in {log}", "tensorir log best")
    instead = "--workload FILE.py:FUNCTION"
    make = workloads(workload, (), {"arg": arg})[0] if workload else from_title(found.workload, instead)
    work = make()
    if compute_digest(work) != found.compute:
        raise Stop(
            common.BAD_LOG, f"{work.title} is not the computation of record {found.id}: its definition has changed"
        )
    with Measurer(work, device, RunSpec(timeout=timeout)) as measurer:
        measurer.open()
        result = encode(measurer.measure(Trial(found.template, found.config), None))
    same = result.get("source_sha256") == found.source_sha256
    _tell(found, result, same, as_json)
    if result["status"] == "ok":
        return common.OK
    return common.WRONG_RESULT if result["status"] in ("wrong_result", "nondeterministic") else common.NO_CONFIG


def _tell(found: Record, result: dict[str, Any], same: bool, as_json: bool) -> None:
    if not same and found.source_sha256 and result.get("source_sha256"):
        say(f"record {found.id} is stale: this version makes another source for it")
    if as_json:
        put_json({"schema": 1, "record": seal(encode(found)), "again": result, "same_source": same})
        return
    put(clean(f"{found.id}  {found.workload}"))
    put(clean(f"config   {found.template}: {config_text(found.config)}"))
    put(f"then     {found.status} {found.time_s or ''}")
    put(f"now      {result['status']} {result.get('time_s') or ''}")
    for key, value in (result.get("detail") or {}).items():
        put(clean(f"  {key}: {plainly(value)}", 5000))
