"""Loading a tuned kernel: the best usable record, regenerated, compared with its digest, built and checked here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorir.api.bench import Data, Output, Runner
from tensorir.api.build import Executable
from tensorir.api.candidate import Candidate, Refused, prepare, quiet
from tensorir.api.identity import command_for, compute_digest, describe, folder_of, identity_of, nearest
from tensorir.errors import NotTuned, Problem
from tensorir.runtime.device import Device, open_device
from tensorir.target import Target
from tensorir.tune.inputs import arguments
from tensorir.tune.log import Choice, Identity, LogReader, Record, choose

if TYPE_CHECKING:
    from tensorir.api.workload import Workload


def load(work: Workload, device: str | Device | None, log: str) -> Executable:
    """The fastest kernel known for this definition and device; see ``Workload.load``."""
    opened = open_device(device)
    identity = identity_of(work, describe(opened))
    stale = 0
    for choice in choices(work, identity, log):
        made = regenerate(work, choice.record, opened.target)
        if made is None:
            stale += 1
            continue
        runner = _checked(work, made, opened)
        if runner is not None:
            return Executable(made.source, opened, trace_text(made), work.outputs)
    raise not_tuned(work, identity, log, stale)


def choices(work: Workload, identity: Identity, log: str) -> list[Choice]:
    """The usable configurations for this definition and device, fastest first."""
    records = LogReader(folder_of(work, log)).records(compute=identity.compute)
    return choose(r for r in records if identity.accepts(r))


def regenerate(work: Workload, record: Record, target: Target) -> Candidate | None:
    """The source that this version makes for a record; None when it is not the one that was measured (stale)."""
    if record["template"] not in work.templates:
        return None
    try:
        made = prepare(work, record["template"], record["config"], target, check=False)
    except Refused:
        return None
    return made if made.source.sha256 == record["source_sha256"] else None


def _checked(work: Workload, made: Candidate, device: Device) -> Runner | None:
    """The kernel, compared with the reference on this device; None when it is wrong here."""
    given, exact = arguments(work.outputs)
    outputs = [Output(t.name, t.dtype, t.shape) for t in work.outputs]
    data = Data(given, exact, outputs, "", work.reference)
    try:
        runner = Runner(device, made, data, cache=True)
        runner.verify(quiet)
    except Refused:
        return None
    finally:
        data.remove()
    return runner


def trace_text(made: Candidate) -> str:
    """The trace as Python statements."""
    from tensorir.schedule.trace import Step

    steps = made.known.get("trace") or []
    return "\n".join(str(Step(name, tuple(args), tuple(options.items()))) for name, args, options in steps)


def left_out(work: Workload, log: str, fits: Callable[[Record], bool], stale: int = 0) -> str:
    """Why the records of this workload are not used, in words to put behind "not tuned"; empty when there are none.

    fits:  whether a record was made for the device that is meant
    stale: records whose kernel this version makes in another way
    """
    digest, changed, elsewhere = compute_digest(work), 0, dict[str, None]()
    for record in LogReader(folder_of(work, log)).records():
        if record["status"] == "ok" and record["compute"] != digest:
            changed += 1
        elif record["status"] == "ok" and not fits(record):
            elsewhere[str(record["device"].get("name"))] = None
    parts = [
        f"{n} record{'s' * (n != 1)} of another {of}: stale, not used"
        for n, of in ((stale, "version"), (changed, "definition of the operator"))
        if n
    ]
    parts += [f"tuned for another device, driver or version: {', '.join(elsewhere)}"] if elsewhere else []
    return f" ({'; '.join(parts)})" if parts else ""


def not_tuned(work: Workload, identity: Identity, log: str, stale: int = 0) -> NotTuned:
    """What to say when there is no usable record."""
    name = identity.device.get("name", "this device")
    message = f"{work.title} is not tuned for {name} in {log}{left_out(work, log, identity.accepts, stale)}"
    like = nearest(work, LogReader(log).records())
    if like:
        message += f"; nearest tuned: {like}"
    return NotTuned(Problem("load.not-tuned", message, hint=command_for(work)))
