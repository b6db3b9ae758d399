"""Loads a tuned kernel: picks the best usable record, regenerates its source, verifies the digest, builds and checks
it.

Results of earlier processes are reused (``api.load_cache``), so modules for the full path are imported only when
needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from tensorir.api.bench import Runner
from tensorir.api.build import Executable
from tensorir.api.candidate import Candidate, Refused, prepare, quiet, steps_text, trace_text
from tensorir.api.frozen import changed, changes, chosen, is_frozen, log_for, pinned, why_stale
from tensorir.api.identity import (
    command_for,
    compute_digest,
    describe,
    folder_of,
    identity_of,
    most_like,
    on_cores_of,
    suits,
)
from tensorir.api.load_cache import check_key, keep_check, keep_source, ranked, recall_source, source_key, was_checked
from tensorir.api.outputs import Data
from tensorir.api.questions import Output
from tensorir.api.unproven import needs_proof, prove
from tensorir.api.work import Work
from tensorir.errors import NotTuned, Problem, ScheduleError, TensorIRError
from tensorir.interp.magnitude import is_continuous
from tensorir.runtime.device import Device, open_device
from tensorir.runtime.launch import CompiledProgram
from tensorir.target import Target
from tensorir.tune.inputs import arguments
from tensorir.tune.record import Record, RunIdentity, Setting
from tensorir.tune.selection import contenders, counted
from tensorir.tune.store import LogReader
from tensorir.tune.template import found_on

if TYPE_CHECKING:
    from tensorir.export.program import ExportProgram
    from tensorir.tune.ranking import RankedRecord


MAX_RANKED = 100
"""Configurations among which the first to load are chosen: the fastest."""
Differences = Callable[[Setting], list[str]]


def load(work: Work, device: str | Device | None, log: str, nearest: bool = False) -> Executable:
    """Executable of the fastest kernel known for this definition and device, checked; see ``Workload.load``.

    Raises NotTuned: ``load.not-tuned``, and for a frozen file ``load.frozen-stale``, ``load.frozen-wrong``.
    """
    opened = open_device(device)
    identity = identity_of(work, describe(opened), search=False)
    log = log_for(work, log, identity.device)
    if is_frozen(log):
        return _pinned(work, identity, log, opened)
    first = ranked(work, identity, log, lambda: [c.record for c in choices(work, identity, log, MAX_RANKED)])
    made, stale, wrong = _first_good(work, first, opened)
    if made is None:  # what was kept of the ranking may be a part of it
        every = [c.record for c in choices(work, identity, log)]
        made, stale, wrong = _first_good(work, every, opened)
    if made is None and nearest:
        made = _from_nearest(work, identity, log, opened)
    if made is None:
        raise not_tuned(work, identity, log, stale, wrong)
    return made


def _pinned(work: Work, identity: RunIdentity, log: str, device: Device) -> Executable:
    """Executable of the kernel pinned by a frozen file."""
    record = pinned(work, identity, log)
    if record is None:
        raise not_tuned(work, identity, log)
    made, stale, _ = _first_good(work, [record], device)
    if made is not None:
        return made
    if stale:
        raise changed(work, record, log, why_stale(work, record, device.target))
    message = f"record {record.id}, which {log} pins for {work.title}, does not compute it on this device now"
    raise NotTuned(Problem("load.frozen-wrong", message, hint=f"tensorir repro {record.id} --log {log}"))


def _from_nearest(work: Work, identity: RunIdentity, log: str, device: Device) -> Executable | None:
    """Executable for this shape by a nearby shape's configuration that is legal and right here; None if there
    is none.
    """
    from tensorir.api.neighbours import near_choices

    for several in near_choices(identity, log):
        legal = (near for near in several if _legal(work, near.template, near.config, device.target))
        for near in islice(legal, MAX_COMPILED):
            try:
                made = prepare(work, near.template, near.config, device.target, check=False)
                program = _checked(work, made, device)
            except Refused:
                continue
            if program is not None:
                again = partial(_lowered_for, work, near.template, near.config, device.target)
                steps = trace_text(made)
                return Executable(made.source, device, steps, work.outputs, program, near, made.max_error, again)
    return None


MAX_COMPILED = 5
"""Configurations of one other shape that are compiled at most."""


def _legal(work: Work, name: str, config: Mapping[str, object], target: Target) -> bool:
    template = found_on(work.templates, name, target)
    return template is not None and template.suits(target) and template.space_for(target).index(config) >= 0


def _first_good(work: Work, records: Iterable[Record], device: Device) -> tuple[Executable | None, int, int]:
    """(Executable of the first reproducible, right record or None, number of stale records, number of wrong ones)."""
    stale = wrong = 0
    for record in records:
        target = on_cores_of(record, device.target)
        key = source_key(work, record, target)
        source = recall_source(key, record)
        if source is None:
            made = regenerate(work, record, target)
            if made is None:
                stale += 1
                continue
            source = made.source
            keep_source(key, source)
        error = work.allowed_error(record.template)
        program = _checked(work, Candidate(source, max_error=error), device)
        if program is not None:
            again = partial(_lowered_for, work, record.template, record.config, target)
            f = Executable(
                source,
                device,
                partial(steps_text, record.trace),
                work.outputs,
                program,
                max_error=error,
                again=again,
            )
            return f, stale, wrong
        wrong += 1
    return None, stale, wrong


def _lowered_for(work: Work, template: str, config: Mapping[str, object], target: Target, wanted: str) -> ExportProgram:
    """The kernel lowered for target ``wanted``, for export."""
    from tensorir.api.shipping import again_of_work

    return again_of_work(work, template, config, target)(wanted)


def choices(work: Work, identity: RunIdentity, log: str, most: int | None = None) -> list[RankedRecord]:
    """Usable configurations for this definition and device, fastest first; [] if there are none.

    most: number needed; None: all
    """
    known = LogReader(folder_of(work, log)).brief()
    title = work.title
    mine = known.rows_of(lambda group: group.workload == title and identity.accepts(group))
    return chosen(known.records(contenders(known, mine, most)), identity)


def regenerate(work: Work, record: Record, target: Target) -> Candidate | None:
    """Candidate made by this version for a record; None if its source differs from the measured one (stale)."""
    if gone(work, [record.template], target):
        return None
    try:
        made = prepare(work, record.template, record.config, target, check=False)
    except Refused:
        return None
    return made if made.source.sha256 == record.source_sha256 else None


def _checked(work: Work, made: Candidate, device: Device) -> CompiledProgram | None:
    """Compiled program, compared with the reference now or earlier; None if it is wrong or fails to build or to run."""
    try:
        if needs_proof(made.source, edited=False):
            prove(made.source, device, work.random_inputs)
        program = CompiledProgram(made.source, device)
    except TensorIRError:
        return None
    key = check_key(work, program, made.max_error)
    if was_checked(key, program):
        return program
    made.check(quiet)  # what comes from a record was checked so when it was measured, and has no schedule here
    if not computes_right(work, made, program, device):
        return None
    program.keep()
    keep_check(key, program)
    return program


def gone(work: Work, templates: Sequence[str], target: Target | None = None) -> list[str]:
    """Names among ``templates``, sorted and each once, that the workload lacks, on a target if it is given."""
    try:
        return sorted(
            name
            for name in {*templates}
            if not (found_on(work.templates, name, target) if target else name in work.templates)
        )
    except ScheduleError:
        return sorted({*templates})


def left_out(work: Work, log: str, differences: Differences, stale: int = 0, wrong: int = 0) -> str:
    """Reasons why the workload's records are unusable, to follow "not tuned"; "" if there are none.

    differences: differences of each record of this definition from the device and versions; empty for a match
    stale:       number of records for which this version generates another kernel
    wrong:       number of records whose kernel fails to build here, or gives wrong results
    """
    digest, redefined = compute_digest(work), 0
    apart, failed = dict[str, None](), Counter[str]()
    reader = LogReader(folder_of(work, log))
    for run, statuses in counted(reader.brief()):
        if run.workload != work.title:
            continue
        ok = statuses.pop("ok", 0)
        if run.compute != digest:
            redefined += ok
        elif found := differences(run):
            apart.update({"; ".join(found[:3]): None} if ok else {})
        else:
            failed.update(statuses)
    parts = [
        f"{n} record{'s' * (n != 1)} of another {of}: stale, not used"
        for n, of in ((stale, "version"), (redefined, "definition of the operator"))
        if n
    ]
    mine = reader.records(workload=work.title, compute=digest)
    lost = gone(work, [r.template for r in mine if not differences(r)])
    parts += [f"there is no template {', '.join(lost)} any more"] if lost else []
    parts += [f"{wrong} record{'s' * (wrong != 1)} whose kernel fails its check here"] if wrong else []
    parts += [f"tuned for another {words}" for words in list(apart)[:3]]
    if not parts and failed.total():
        parts = [f"of {failed.total()} trials none was right: {', '.join(f'{n} {s}' for s, n in failed.most_common())}"]
    return f" ({'; '.join(parts)})" if parts else ""


def differences_from(identity: RunIdentity) -> Differences:
    """Function from a record to its differences from ``identity`` in words, [] if it is comparable: device, else
    driver, limits and versions.
    """

    def found(record: Setting) -> list[str]:
        if identity.accepts(record):
            return []
        name = str(record.device.get("name"))
        if name != identity.device.get("name"):
            return [f"device ({name:.80} then, {identity.device.get('name')!s:.80} now)"]
        return [words.removeprefix("the ") for words in changes(record, identity)]

    return found


def other_target(target: Target | str | None) -> Differences:
    """Function from a record to ["device: NAME"] if it was made for another kind of target, else []."""
    return lambda record: [] if suits(record, target) else [f"device: {record.device.get('name')!s:.80}"]


def not_tuned(work: Work, identity: RunIdentity, log: str, stale: int = 0, wrong: int = 0) -> NotTuned:
    """The NotTuned error, with reasons and what to run."""
    name = identity.device.get("name", "this device")
    message = (
        f"{work.title} is not tuned for {name} in {log}{left_out(work, log, differences_from(identity), stale, wrong)}"
    )
    like = most_like(work, LogReader(log).brief())
    if like:
        message += f"; nearest tuned: {like:.400}"
    return NotTuned(Problem("load.not-tuned", message, hint=command_for(work)))


# A loaded kernel, run and compared with the reference here.


def computes_right(work: Work, made: Candidate, program: CompiledProgram, device: Device) -> bool:
    """True if a program matches the reference on small integers and on floats."""
    given, exact = arguments(work.outputs)
    outputs = Output.of(work.outputs)
    data = Data(given, exact, outputs, "", work.reference, continuous=is_continuous(work.outputs))
    try:
        runner = Runner(device, made, data, cache=True, program=program)
        runner.verify(quiet)
        runner.try_floats(math.inf, quiet)
    except Refused:
        return False
    finally:
        data.remove()
    return True
