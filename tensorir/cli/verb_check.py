"""tensorir check: every check there is, on the best recorded or the default kernel."""

from __future__ import annotations

from typing import Any

from tensorir.api.measurer import Measurer
from tensorir.api.workload import Workload
from tensorir.check.emulate import Traffic, emulate
from tensorir.check.exact_inputs import exactly
from tensorir.check.verdict import compare_results
from tensorir.cli import common
from tensorir.cli.choice import offline, on_device
from tensorir.cli.common import put, put_json, say
from tensorir.cli.options import split
from tensorir.cli.parse import workloads
from tensorir.cli.terminal import columns, cut
from tensorir.codec import encode
from tensorir.codegen.source import Source
from tensorir.interp.reference import evaluate, random_arguments
from tensorir.tune.spec import RunSpec


def run(
    op: str, shape: tuple[str, ...], device: str | None, emulate: bool, target: str | None, log: str, as_json: bool,
    **given: object,
) -> int:  # fmt: skip
    """Check the best recorded (or the default) kernel of OP: in the interpreter and on the device; return the exit
    code.

    emulate: True: check its CUDA text on the CPU instead
    """
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
    return common.OK if ok else common.WRONG_RESULT


def _on_device(work: Workload, device: str | None, log: str) -> dict[str, Any]:
    with Measurer(work, device, RunSpec()) as measurer:
        chosen = on_device(work, measurer.open(), log)
        found = measurer.check(chosen.template, chosen.config)
    return {"workload": work.title, **chosen.json(), "ok": found.ok, "checks": encode(found)["checks"]}


# tensorir check --emulate: the CUDA text of a kernel, run on the CPU.

MOST_FLOPS = 5e8
"""Operations of the largest run whose memory traffic is counted: some seconds."""


def emulated(work: Workload, target: str | None, log: str) -> dict[str, Any]:
    """JSON result of emulating the chosen CUDA kernel (``choice.offline``) at awkward shapes and, up to ``MOST_FLOPS``,
    at its own, with the memory costs there ("traffic"; [] if wrong or larger).

    target: None: "cuda"
    """
    chosen = offline(work, target or "cuda", log, None, None)
    s = work.schedule(chosen.config, template=chosen.template, target=chosen.target)
    verdict = s.check(level="emulate")
    checks = [{"name": "emulated", "ok": bool(verdict), "detail": str(verdict)}]
    traffic: list[dict[str, Any]] = []
    if verdict and work.flops > MOST_FLOPS:
        say(f"more than {MOST_FLOPS:.0e} operations: what accesses cost is counted at smaller shapes than {work.title}")
    elif verdict:
        source, arrays = s.emitted(None if s.target.language == "cuda" else "cuda"), random_arguments(s.outputs, 0)
        run, want = emulate(source, arrays), evaluate(s.began_with, arrays)
        exact = exactly(s.outputs, source, arrays)
        wrong = (
            run.problems or compare_results(s.outputs, run.outputs, want, exact, error=s.allowed_error or 0.0).problems
        )
        checks.append({"name": "own shape", "ok": not wrong, "detail": "; ".join(map(str, wrong)) or "exact, no race"})
        traffic = [_counted(t, source) for t in run.traffic]
    ok = all(c["ok"] for c in checks)
    return {"workload": work.title, **chosen.json(), "ok": ok, "checks": checks, "traffic": traffic}


def _counted(t: Traffic, source: Source) -> dict[str, Any]:
    lines = source.text.splitlines()
    return {**encode(t), "text": lines[t.line - 1].strip() if 0 < t.line <= len(lines) else ""}


def table(traffic: list[dict[str, Any]]) -> list[str]:
    """Lines of a text table: for each memory access its cost and the least possible cost for its bytes; [] without
    accesses.
    """
    if not traffic:
        return []
    room = columns() or 118
    head = f"  {'line':>4}  {'access':13} {'bytes':>5} {'requests':>9} {'cost':>8} {'least':>8}  text"
    rows = [
        f"  {t['line']:>4}  {t['what']:13} {t['width']:>5} {t['requests']:>9} {t['units']:>8} {t['ideal']:>8}  "
        f"{cut(t['text'], max(4, room - 57))}"
        for t in traffic
    ]
    foot = "  cost: wavefronts of shared memory, sectors of 32 bytes of global memory, of the first block"
    return [head, *rows, foot]
