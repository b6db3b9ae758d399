"""Recorded scheduling steps (Step, Trace): as Python code, as JSON, replayable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorir.errors import Problem, ScheduleError
from tensorir.errors.shown import Shown, few_lines


@dataclass(frozen=True, repr=False)
class Step(Shown):
    """One applied primitive. Arguments are names and numbers, so a step is JSON.

    out:   names of what it made
    where: the user's file and line
    why:   the reason of an automatic schedule, which the text of a trace has as a comment
    """

    primitive: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    out: tuple[str, ...] = ()
    where: str = ""
    why: str = ""

    def __str__(self) -> str:
        given = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.options]
        return f"s.{self.primitive}({', '.join(given)})"

    def __repr__(self) -> str:
        return few_lines(f"<Step {self}>")


class Trace(tuple[Step, ...], Shown):
    """The steps of a schedule in order; ``str`` gives Python statements on a fresh schedule ``s``.

    Steps in a row with one reason have it as a comment above them; an empty line follows if the next has no reason.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"{heading(why)}{step}" for step, why in self.reasoned())

    def reasoned(self) -> Iterator[tuple[Step, str | None]]:
        """Yield (step, reason), the reason None if equal to the previous step's."""
        before = ""
        for step in self:
            yield step, None if step.why == before else step.why
            before = step.why

    @property
    def code(self) -> str:
        """Python statements without comments."""
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return few_lines(
            f"<Trace of {len(self)} step{'s' * (len(self) != 1)}{': ' * bool(self)}{'; '.join(map(str, self))}>"
        )

    def to_json(self) -> str:
        """A JSON list of ``[primitive, args, options]``; a fourth entry is the reason, where it changes."""
        return json.dumps([
            [s.primitive, list(s.args), dict(s.options), *([] if why is None else [why])] for s, why in self.reasoned()
        ])  # fmt: skip


def heading(why: str | None) -> str:
    """Comment line to print above a step with reason ``why``: "" for None (as the step before), an empty line
    for "".
    """
    return "" if why is None else f"# {why}\n" if why else "\n"


def read_trace(text: str) -> Iterator[Step]:
    """Iterator over the steps of a JSON trace, which are not applied. Raises ScheduleError ``trace.malformed``: at once
    for text that is no JSON, during iteration for other steps.
    """
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ScheduleError(Problem("trace.malformed", f"the trace is not JSON: {e}")) from None
    return read_steps(steps)


def read_steps(steps: object) -> Iterator[Step]:
    """Yield the steps of a parsed JSON trace; a step without a reason has that of the step before. Names of primitives
    and arguments are not checked. Raises ScheduleError ``trace.malformed`` for other values than lists, and at the
    first step of another form.
    """
    if not isinstance(steps, list):
        raise ScheduleError(Problem("trace.malformed", "a trace is a JSON list of steps"))
    why = ""
    for n, step in enumerate(steps):
        match step:
            case [str() as name, list() as args, dict() as options]:
                pass
            case [str() as name, list() as args, dict() as options, str() as said]:
                why = " ".join(said.split())  # it becomes a comment of one line
            case _:
                message = f"step {n + 1} is not [primitive, args, options] or [primitive, args, options, reason]"
                raise ScheduleError(Problem("trace.malformed", message))
        yield Step(name, tuple(args), tuple(options.items()), why=why)
