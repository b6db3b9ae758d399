"""tensorir check: every check there is, on the best recorded or the default kernel."""

from __future__ import annotations

from typing import Any

import click

from tensorir.cli import common
from tensorir.cli.common import device_option, json_option, log_option, put, put_json
from tensorir.cli.options import split, workload_options


@click.command("check", context_settings=common.SETTINGS)
@workload_options
@device_option
@log_option
@json_option
def command(op: str, shape: tuple[str, ...], device: str | None, log: str, as_json: bool, **given: Any) -> int:
    """Check the best recorded (or the default) kernel of OP: in the interpreter and on the device."""
    from tensorir.api.tuning import Measurer, Options
    from tensorir.cli.chosen import on_device
    from tensorir.cli.parse import workloads

    parameters = split(given)
    documents = []
    for make in workloads(op, shape, {**parameters, "log": log}):
        work = make()
        with Measurer(work, device, Options()) as measurer:
            chosen = on_device(work, measurer, measurer.open(), log)
            found = measurer.check(chosen.template, chosen.config)
        documents.append({"workload": work.title, **chosen.json(), "ok": found["ok"], "checks": found["checks"]})
    ok = all(d["ok"] for d in documents)
    if as_json:
        put_json({"schema": 1, **(documents[0] if len(documents) == 1 else {"ok": ok, "results": documents})})
    else:
        for d in documents:
            lines = [f"  {'ok   ' if c['ok'] else 'WRONG'} {c['name']:12} {c['detail']}" for c in d["checks"]]
            put("\n".join([d["workload"], *lines]))
    return common.OK if ok else common.WRONG
