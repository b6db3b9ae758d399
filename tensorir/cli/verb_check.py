"""tensorir check: every check there is, on the best recorded or the default kernel."""

from __future__ import annotations

from typing import Any

from tensorir.api.measurer import Measurer
from tensorir.api.workload import Workload
from tensorir.cli import common
from tensorir.cli.chosen import on_device
from tensorir.cli.common import put, put_json
from tensorir.cli.emulated import emulated, table
from tensorir.cli.options import split
from tensorir.cli.parse import workloads
from tensorir.codec import encode
from tensorir.tune.spec import RunSpec


def run(
    op: str, shape: tuple[str, ...], device: str | None, emulate: bool, target: str | None, log: str, as_json: bool,
    **given: object,
) -> int:  # fmt: skip
    """Check the best recorded (or the default) kernel of OP: in the interpreter and on the device."""
    parameters = split(given)
    if target is not None and not emulate:
        raise common.Stop(common.USAGE, "--target is for --emulate: a device is checked with its own target")
    if device is not None and emulate:
        raise common.Stop(common.USAGE, "--emulate needs no device: leave --device out, or say --target")
    documents = []
    for make in workloads(op, shape, {**parameters, "log": log}):
        work = make()
        documents.append(emulated(work, target, log) if emulate else _on_device(work, device, log))
    ok = all(d["ok"] for d in documents)
    if as_json:
        put_json({"schema": 1, **(documents[0] if len(documents) == 1 else {"ok": ok, "results": documents})})
    else:
        for d in documents:
            lines = [f"  {'ok   ' if c['ok'] else 'WRONG'} {c['name']:12} {c['detail']}" for c in d["checks"]]
            put("\n".join([d["workload"], *lines, *table(d.get("traffic", []))]))
    return common.OK if ok else common.WRONG


def _on_device(work: Workload, device: str | None, log: str) -> dict[str, Any]:
    with Measurer(work, device, RunSpec()) as measurer:
        chosen = on_device(work, measurer, measurer.open(), log)
        found = measurer.check(chosen.template, chosen.config)
    return {"workload": work.title, **chosen.json(), "ok": found.ok, "checks": encode(found)["checks"]}
