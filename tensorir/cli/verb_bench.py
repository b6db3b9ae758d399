"""tensorir bench: our kernel and its peers, timed interleaved in one process."""

from __future__ import annotations

import secrets
from typing import Any, cast

from tensorir.api.measurer import Measurer
from tensorir.cli import common
from tensorir.cli.choice import on_device
from tensorir.cli.common import Stop, put, put_json, say
from tensorir.cli.options import split
from tensorir.cli.parse import workloads
from tensorir.cli.tables import table
from tensorir.codec import encode
from tensorir.runtime.machine import NO_LOAD
from tensorir.tune.brief import reason_of
from tensorir.tune.outcome import MachineReport
from tensorir.tune.progress import between, rate
from tensorir.tune.ratio import Ratio, Span, without_slots
from tensorir.tune.record import ESTIMATOR
from tensorir.tune.spec import RunSpec


def run(
    op: str, shape: tuple[str, ...], device: str | None, log: str, require: float | None, as_json: bool, **given: object
) -> int:
    """Time the best recorded (or the default) kernel of OP against libraries, interleaved; return the exit code.

    require: least ratio (fastest library's time over ours); exit code 8 if a workload has less
    """
    parameters = split(given)
    rows = [_row(make(), device, log) for make in workloads(op, shape, {**parameters, "log": log})]
    if as_json:
        put_json({"schema": 1, "rows": rows})
    else:
        put(_table(rows))
    for row in rows:
        if row["machine"]["said"]:
            say(f"{row['workload']}: {row['machine']['said']}")
    slow = [r for r in rows if require is not None and r["ratio"] is not None and r["ratio"] < require]
    for row in slow:
        doubt = "" if row["steady"] else f" ({row['doubt']})"
        say(f"{row['workload']}: {row['ratio']:.2f} of the best peer{doubt}, {require:g} is required")
    return common.TOO_SLOW if slow else common.OK


def _row(work: Any, device: str | None, log: str) -> dict[str, Any]:
    with Measurer(work, device, RunSpec()) as measurer:
        about = measurer.open()
        chosen = on_device(work, about, log)
        answer = measurer.against(chosen.template, chosen.config)
    result, name = encode(answer.results[0]), {"round": secrets.token_hex(8)}
    against = [encode(peer) | name for peer in answer.against]
    if result["status"] != "ok":
        wrong = result["status"] in ("wrong_result", "nondeterministic")
        raise Stop(common.WRONG_RESULT if wrong else common.NO_CONFIG, f"{work.title}: {reason_of(answer.results[0])}")
    load, mine = answer.load or NO_LOAD, Span.of_library(result | name)
    ratios = [Ratio.of(Span.of_library(a), mine, load if about["kind"] == "cpu" else None) for a in against]
    best = min(range(len(against)), key=lambda n: cast("float", against[n]["time_s"]), default=None)
    return {
        "workload": work.title,
        **chosen.json(),
        "time_s": result["time_s"],
        "low_s": result["low_s"],
        "high_s": result["high_s"],
        "gflops": work.flops / result["time_s"] / 1e9,
        "estimator": ESTIMATOR,
        "against": [without_slots(a) | r.json() for a, r in zip(against, ratios, strict=True)],
        **({"ratio": None, "steady": True} if best is None else ratios[best].json()),
        "machine": MachineReport(load, load).json(),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [["workload", "time", "rate", "peers", "ratio"]]
    for r in rows:
        peers = ", ".join(f"{a['name']} {between(a['time_s'], a['low_s'], a['high_s'])}" for a in r["against"])
        ratio = "" if r["ratio"] is None else Ratio.given(r).text()
        mine = between(r["time_s"], r["low_s"], r["high_s"])
        lines.append([r["workload"], mine, rate(r["gflops"] * 1e9), peers, ratio])
    return table(lines)
