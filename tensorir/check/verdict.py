"""check: what was shown, on which shapes, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorir.errors import Problem


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; true when nothing is wrong.

    shapes: what was tried, in words;  kind: how equality was shown
    """

    problems: tuple[Problem, ...]
    shapes: tuple[str, ...]
    kind: str
    max_error: float = 0.0

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            return "wrong: " + "\n".join(map(str, self.problems))
        return f"ok: {self.kind} on {', '.join(self.shapes)}"


def check(s: Any, level: str = "fast", shapes: Any = None, seed: int = 0) -> Verdict:
    """Placeholder until the checker lands in the next commit."""
    raise refuse_pending(level)


def refuse_pending(level: str) -> Exception:
    """The error of a level that does not exist yet."""
    from tensorir.errors import CheckError

    return CheckError(Problem("check.level", f"level {level!r} is not implemented yet"))
