"""tensorir check --emulate: the CUDA text of a kernel, run on the CPU."""

from __future__ import annotations

from typing import Any

from tensorir.api.workload import Workload
from tensorir.check.emulate import Traffic, emulate
from tensorir.check.exact_inputs import exactly
from tensorir.check.verdict import compare_results
from tensorir.cli.chosen import offline
from tensorir.cli.common import say
from tensorir.cli.terminal import columns, cut
from tensorir.codec import encode
from tensorir.codegen.source import Source
from tensorir.interp.reference import evaluate, random_arguments

MOST_FLOPS = 5e8
"""Of one run whose traffic is counted: some seconds."""


def emulated(work: Workload, target: str | None, log: str) -> dict[str, Any]:
    """The chosen kernel for a CUDA target at awkward shapes, and at its own shape what its accesses cost."""
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
    """What each access of the first block cost, against the least that its bytes need."""
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
