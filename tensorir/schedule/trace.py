"""What was done to a schedule: steps of names and numbers, as Python, as JSON, replayable exactly."""

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
    """The steps of a schedule in order; ``str`` gives Python statements on a fresh schedule ``s``, with reasons."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"{step}  # {step.why}" if step.why else str(step) for step in self)

    @property
    def code(self) -> str:
        """The statements alone."""
        return "\n".join(map(str, self))

    def __repr__(self) -> str:
        return few_lines(
            f"<Trace of {len(self)} step{'s' * (len(self) != 1)}{': ' * bool(self)}{'; '.join(map(str, self))}>"
        )

    def to_json(self) -> str:
        """A JSON list of ``[primitive, args, options]``."""
        return json.dumps([[s.primitive, list(s.args), dict(s.options)] for s in self])


def read_trace(text: str) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """The calls of a JSON trace; anything else is refused, nothing is executed."""
    try:
        steps = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ScheduleError(Problem("trace.malformed", f"the trace is not JSON: {e}")) from None
    if not isinstance(steps, list):
        raise ScheduleError(Problem("trace.malformed", "a trace is a JSON list of steps"))
    for n, step in enumerate(steps):
        match step:
            case [str() as name, list() as args, dict() as options]:
                yield name, args, options
            case _:
                raise ScheduleError(Problem("trace.malformed", f"step {n + 1} is not [primitive, args, options]"))
