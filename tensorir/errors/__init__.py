"""Every user-visible error: a stable dotted code, the user's own line, numbers and a legal alternative."""

from __future__ import annotations

import linecache
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from tensorir.codec import travels
from tensorir.errors.shown import Shown, few_lines, short

_PACKAGE = str(Path(__file__).parent.parent)
_PACKAGE_NAME = __name__.split(".")[0]


@travels
@dataclass(frozen=True, repr=False)
class Problem(Shown):
    """One broken rule: what is wrong, where, and what to do instead.

    ``code`` is a stable dotted id (``split.covers-extent``) whose first part is the primitive or phase. Documentation,
    tests and the tuner's statistics key on it; the words may change freely.

    at:    a few lines of loop tree or code, the offending line marked with a caret
    hint:  a legal alternative, as code where possible

    Its text is ``[code] message``, ``at``, ``try: hint``; messages and hints beyond four lines are cut to three. Fields
    that are no strings become short texts.
    """

    code: str
    message: str
    at: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        for name in ("code", "message", "at", "hint"):
            if not isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, short(value))

    def __str__(self) -> str:
        said = self.message.splitlines()
        if len(said) > 4:  # it quotes something long
            said = [*said[:3], "…"]
        lines = [f"[{self.code}] " + "\n".join(said)]
        if self.at:
            lines += [f"  {line}" for line in self.at.splitlines()]
        if self.hint:
            hint = self.hint.splitlines()
            lines.append("  try: " + "\n".join(hint if len(hint) <= 4 else [*hint[:3], "…"]))
        return printable("\n".join(lines))

    def __repr__(self) -> str:
        return few_lines(printable(f"<Problem [{self.code}] {self.message}>"))


def printable(text: str) -> str:
    r"""``text`` with control and invisible characters as escapes (``\x1b``), for terminals; newlines stay."""
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def user_line() -> str:
    """``file:line: text`` of the innermost frame outside this package; "" if there is none."""
    frame = sys._getframe(1)
    while frame is not None and ours(frame):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)


def warn(problem: Problem) -> None:
    """Issue ``problem`` as a RuntimeWarning at the user's line, once per line: code that is right but costs time
    needlessly.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and ours(frame):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(str(problem), RuntimeWarning, frame.f_code.co_filename, frame.f_lineno, registry=registry)


def line_of(error: BaseException) -> str | None:
    """``file:line: text`` of the user's line that raised ``error``: the innermost traceback frame outside this package;
    None if there is none.
    """
    own = [f for f in _frames(error.__traceback__) if not ours(f.tb_frame)]
    return _line(own[-1].tb_frame.f_code.co_filename, own[-1].tb_lineno) if own else None


def ours(frame: FrameType) -> bool:
    """True if a frame belongs to this package or is machinery between its frames (contextlib, functools, PyTorch's
    dispatch).

    Code that dataclasses generate has no file, only a module.
    """
    home = str(frame.f_globals.get("__name__", ""))
    return frame.f_code.co_filename.startswith(_PACKAGE) or home.split(".")[0] in (
        _PACKAGE_NAME,
        "contextlib",
        "functools",
        "torch",
    )


def _frames(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _line(name: str, number: int) -> str:
    text = linecache.getline(name, number).strip()
    return f"{name}:{number}" + (f": {text}" if text else "")


class TensorIRError(Shown, Exception):
    """Base of all tensorir errors; catch this one in applications.

    code:     the dotted id of the first problem; "unknown" if there is none
    problems: every broken rule that was found; the error's text has the first three. If user code raises the class with
              a text, a Problem ``unknown`` with it
    where:    ``file:line: text`` of the user's call that was refused; None: ``user_line()``, "" if unknown
    """

    def __init__(self, problems: Problem | Sequence[Problem], where: str | None = None) -> None:
        several = problems if isinstance(problems, list | tuple) else (problems,)
        self.problems = tuple(p if isinstance(p, Problem) else Problem("unknown", short(p)) for p in several)
        self.where = where if isinstance(where, str) else user_line()
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), str(self), dict(self.__dict__))  # workers send errors to their parents

    @property
    def code(self) -> str:
        return self.problems[0].code if self.problems else "unknown"

    def __repr__(self) -> str:
        said = "; ".join(f"[{p.code}] {p.message}" for p in self.problems)
        return few_lines(printable(f"<{type(self).__name__} {said}>"))

    def _text(self) -> str:
        shown = "\n".join(map(str, self.problems[:3]))
        return f"{shown}\n  at {self.where}" if self.where else shown

    def _render_traceback_(self) -> list[str]:
        """Lines that IPython shows in place of a traceback: class and message."""
        return [f"{type(self).__name__}: {line}" if n == 0 else line for n, line in enumerate(str(self).splitlines())]


def _unpickled(kind: type[TensorIRError], text: str, state: dict[str, Any]) -> TensorIRError:
    error = kind.__new__(kind)
    error.args = (text,)
    error.__dict__.update(state)
    return error


class DeclarationError(TensorIRError, ValueError):
    """A computation that does not make sense: shapes, dtypes, accesses out of range."""


class DeclarationTypeError(DeclarationError, TypeError):
    """Raised if a symbolic value is used as a number, a bool or a sequence; a TypeError, as Python's protocols
    expect.
    """


class ScheduleError(TensorIRError):
    """A schedule primitive was refused. The schedule is unchanged."""


class ScheduleTypeError(ScheduleError, TypeError):
    """A primitive was called with arguments that it does not take."""


class UnknownNameError(TensorIRError, AttributeError):
    """Raised for an unknown attribute; names similar attributes."""


class ImportRefusedError(TensorIRError, ImportError):
    """Raised by ``from tensorir import name`` for an unknown name; names similar ones."""


class LoweringError(TensorIRError):
    """Raised for a legal program that the pipeline of passes or the target cannot express."""


class CompileError(TensorIRError):
    """The device compiler refused the emitted or edited source; ``log`` is its output."""

    def __init__(self, problems: Problem | Sequence[Problem], log: str = "", where: str | None = None) -> None:
        self.log = log
        super().__init__(problems, where)


class LaunchError(TensorIRError, ValueError):
    """An argument does not fit the kernel's signature, or the device refused the launch."""


class LaunchTypeError(LaunchError, TypeError):
    """Raised at a launch for an argument of the wrong type."""


class DeviceError(TensorIRError):
    """No such device, or its runtime is missing or broken."""


class CheckError(TensorIRError):
    """A check could not be carried out, or a result that had to be right was wrong."""


class NotTuned(TensorIRError):
    """No usable tuning record for this workload and device; says what to run."""


def refuse(
    error: type[TensorIRError], code: str, message: str, *, at: str = "", hint: str = "", where: str | None = None
) -> TensorIRError:
    """Return, for the caller to raise, an error of class ``error`` with one Problem: ``raise refuse(...)``."""
    return error(Problem(code, message, at, hint), where=where)
