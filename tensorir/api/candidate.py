"""Makes one configuration's kernel without a device: schedule, emit, check in the interpreter; failures become
statuses.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tensorir.api.identity import on_cores_of
from tensorir.codegen.source import Source
from tensorir.errors import CompileError, DeviceError, LaunchError, LoweringError, ScheduleError, TensorIRError
from tensorir.schedule.registry import as_called
from tensorir.schedule.trace import Trace, read_steps
from tensorir.target import Target
from tensorir.tune.circumstances import environment
from tensorir.tune.record import Record
from tensorir.tune.trial import Check, Known, Outcome

if TYPE_CHECKING:
    from tensorir.api.schedule import Schedule
    from tensorir.api.work import Work

Progress = Callable[[str], None]

_LIMITS = {
    "compile.threads": "threads",
    "compile.grid": "grid",
    "compile.shared-memory": "smem",
    "launch.memory": "memory",
}
_LOST_DEVICE_WORDS = (
    "DEVICE_NOT_AVAILABLE",
    "DEVICE_NOT_FOUND",
    "device is lost",
    "cudaErrorDevicesUnavailable",
    "Xid",
)


class Refused(Exception):  # an outcome of a measurement, not a failure of the program
    """A configuration failed; ``outcome`` is recorded."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.status)


@dataclass
class Candidate:
    """A configuration's source, and facts known about it.

    max_error: None if exact on whole numbers; else the allowed error relative to the largest output
    """

    source: Source
    known: Known = field(default_factory=Known)
    schedule: Schedule | None = None
    max_error: float | None = None

    def check(self, progress: Progress) -> None:
        """Check equivalence, races and bounds in the interpreter at awkward shapes; raises Refused.

        Edited text and foreign sources have no loop tree to interpret; they are checked on the device.
        """
        if self.schedule is not None and self.schedule.edited is None:
            progress("check")
            before = self.known.check or Check(True)
            shapes = _checked(self.schedule, self.known)
            self.learn(check=replace(before, ok=True, shapes=(*shapes, *before.shapes)))

    def learn(self, **known: Any) -> None:
        """Set the given fields of ``known``, the facts for the candidate's record."""
        self.known = replace(self.known, **known)

    def checked(self, ok: bool, max_err: float | str | None, shape: str) -> None:
        """Set the result of a comparison with the reference. If ``ok``, ``shape`` is appended to the shapes that
        passed, else it replaces them.
        """
        before = () if self.known.check is None or not ok else self.known.check.shapes
        self.learn(check=Check(ok, max_err, (*before, shape)))

    def ended(self, outcome: Outcome) -> Refused:
        """Return a Refused with ``outcome`` and all facts known."""
        return Refused(outcome.knowing(self.known))


def quiet(phase: str) -> None:
    """A progress callback that does nothing."""


def prepare(
    work: Work,
    template: str,
    config: Mapping[str, object],
    target: Target,
    progress: Progress = quiet,
    check: bool = True,
) -> Candidate:
    """Candidate of one configuration: scheduled, emitted and, if ``check``, checked in the interpreter.

    Raises Refused with status "illegal_schedule", "wrong_result", "resource_limit" (host memory) or "internal_error".
    """
    progress("schedule")
    s = _scheduled(work, template, config, target)
    progress("emit")
    try:
        source = s._to_run()
    except TensorIRError as error:
        raise Refused(_failed("illegal_schedule", error, "emit")) from None
    except Exception as error:  # our bug: say so, and continue with the next configuration
        raise Refused(unexpected(error, "emit")) from None
    known = Known(trace=json.loads(s.trace.to_json()), source_sha256=source.sha256)
    made = Candidate(source, known, s, work.allowed_error(template))
    if check:
        made.check(progress)
    return made


def digest_of(work: Work, record: Record, target: Target) -> str | None:
    """SHA-256 of the source that the template now makes for a record's configuration; None if it fails."""
    try:
        return prepare(work, record.template, record.config, on_cores_of(record, target), check=False).source.sha256
    except Refused:
        return None


def _scheduled(work: Work, template: str, config: Mapping[str, object], target: Target) -> Schedule:
    try:
        return work.schedule(config, template=template, target=target)
    except TensorIRError as error:
        if isinstance(error.__cause__, MemoryError):
            raise Refused(no_memory(error.__cause__, "schedule")) from None
        raise Refused(_failed("illegal_schedule", error, "schedule")) from None
    except MemoryError as error:
        raise Refused(no_memory(error, "schedule")) from None
    except (Exception, SystemExit) as error:
        raise Refused(raised(error)) from None


def raised(error: BaseException) -> Outcome:
    """Outcome for an exception raised by the user's function."""
    detail = {"code": "template.raised", "message": in_words(error)[:1000], "phase": "schedule"}
    detail["traceback"] = "".join(traceback.format_exception(error))[-2000:]
    detail = {key: text.encode("utf-8", "replace").decode() for key, text in detail.items()}  # halves of pairs
    return Outcome("illegal_schedule", detail)


def in_words(error: BaseException) -> str:
    """Class and message of an exception, safe even if its ``__str__`` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as another:
        return f"{type(error).__name__}, whose text is not to be had ({type(another).__name__})"


def _checked(s: Schedule, known: Known) -> tuple[str, ...]:
    """Labels of the awkward shapes at which the schedule passes the interpreter's checks; raises Refused if it fails
    one.
    """
    try:
        verdict = s.check(level="fast")
    except TensorIRError as error:
        raise Refused(_failed("internal_error", error, "check").knowing(known)) from None
    except Exception as error:
        raise Refused(unexpected(error, "check").knowing(known)) from None
    if verdict:
        return tuple(verdict.shapes)
    problem = verdict.problems[0]
    detail = {"code": problem.code, "message": problem.message[:1000], "where": problem.at[:500], "phase": "check"}
    check = Check(False, None, tuple(verdict.shapes))
    raise Refused(Outcome("wrong_result", detail, check=check).knowing(known))


def _failed(status: str, error: TensorIRError, phase: str, **more: Any) -> Outcome:
    first = error.problems[0] if error.problems else None
    detail = {"code": error.code, "message": (first.message if first else str(error))[:1000], "phase": phase}
    if isinstance(error, CompileError) and error.log:
        detail["log"] = error.log[:4096]
    return Outcome(status, detail | more)


def no_memory(error: MemoryError, phase: str) -> Outcome:
    """Outcome for a candidate that exceeded the host's memory limit."""
    message = f"the measuring process is out of memory: {error}"[:1000]
    return Outcome("resource_limit", {"limit": "host memory", "message": message, "phase": phase})


def unexpected(error: BaseException, phase: str) -> Outcome:
    """Outcome for an internal error."""
    if isinstance(error, MemoryError):
        return no_memory(error, phase)
    lines = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}"[:1000]
    return Outcome("internal_error", {"message": message, "phase": phase, "traceback": lines[-4000:]})


_STATUS: tuple[tuple[type[TensorIRError], str], ...] = (
    (LoweringError, "illegal_schedule"),
    (CompileError, "compile_error"),
    (DeviceError, "device_error"),
    (LaunchError, "launch_error"),
)


def failure(error: TensorIRError, phase: str) -> Outcome:
    """Outcome for an error while compiling or running on the device."""
    if error.code in _LIMITS:
        return _failed("resource_limit", error, phase, limit=_LIMITS[error.code])
    if any(word in str(error) for word in _LOST_DEVICE_WORDS):
        return _failed("device_lost", error, phase)
    trouble = environment(f"{error} {getattr(error, 'log', '')}")
    if error.code.startswith("cache.") or trouble:  # the machine's fault: measured again when it is mended
        return _failed("internal_error", error, phase, **({"environment": trouble} if trouble else {}))
    return _failed(
        next((status for kind, status in _STATUS if isinstance(error, kind)), "internal_error"), error, phase
    )


def trace_text(made: Candidate) -> str:
    """The candidate's trace as Python statements."""
    return steps_text(made.known.trace)


def steps_text(steps: Any) -> str:
    """A record's steps as Python statements; "" if invalid (records are untrusted)."""
    try:
        return Trace(map(as_called, read_steps(steps or []))).code
    except ScheduleError:
        return ""
