"""Helpers shared by commands: messages on stderr, results on stdout, exit codes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence

import click

from tensorir.cli.terminal import coloured, columns, fold, fold_code, paint
from tensorir.cli.titles import brief
from tensorir.codec import plain
from tensorir.errors import TensorIRError, printable
from tensorir.errors.spelling import nearest

OK, BUG, USAGE, NO_DEVICE, NO_CONFIG = range(5)
WRONG_RESULT, DEVICE_LOST, BAD_LOG, TOO_SLOW, INTERRUPTED = 5, 6, 7, 8, 130
_BY_CLASS = (
    ("NotTuned", NO_CONFIG), ("DeviceError", NO_DEVICE), ("WorkerError", NO_DEVICE), ("LogError", BAD_LOG),
    ("CheckError", WRONG_RESULT), ("CompileError", BUG), ("LaunchError", BUG), ("DeclarationError", USAGE),
    ("ScheduleError", USAGE), ("LoweringError", USAGE), ("ExportError", USAGE),
)  # fmt: skip


class Stop(Exception):  # a planned end
    """Raised to end the command with an exit code, after a message on stderr."""

    def __init__(self, code: int, message: str = "") -> None:
        self.code, self.message = code, message
        super().__init__(message)


def usage(message: str, hint: str = "") -> Stop:
    """A Stop, for the caller to raise, with the exit code of usage errors."""
    return Stop(USAGE, message + (f"\n  try: {hint}" if hint else ""))


def no_such(what: str, name: str, legal: Collection[str], others: str = "") -> Stop:
    """A usage Stop, for the caller to raise, on an unknown ``what``; lists similar, then all ``legal`` names, and
    ``others``.
    """
    near = "".join(f"{n}?  " for n in nearest(name, legal))
    return usage(f"there is no {what} {name!r:.60}", f"{near}{', '.join(legal)}{others}")


def did_you_mean(word: str, legal: Sequence[str]) -> str:
    """Text such as `` Did you mean 'split'?`` for a misspelled word; "" if nothing is similar."""
    near = nearest(word, legal, 2)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


def say(text: str) -> None:
    """Print a message to stderr, ignoring a closed stream."""
    try:
        click.echo(_fitted(printable(text.expandtabs()), err=True), err=True)
    except OSError:
        return


def clean(text: str, most: int = 400) -> str:
    """A record's text as one terminal line: cut to ``most`` characters with a final "…", control characters escaped."""
    return printable((text if len(text) <= most else f"{text[: most - 1]}…").replace("\n", "\\n"))


def put(text: str) -> None:
    """Print a result to stdout."""
    click.echo(_fitted(text))


def put_code(text: str) -> None:
    """Print source code to stdout, wrapped to a terminal's width so that it still compiles; unmodified for pipes."""
    click.echo(fold_code(text, columns()))


def _fitted(text: str, err: bool = False) -> str:
    """``text`` as printed: titles of workloads shortened, lines wrapped to the terminal, status words coloured if
    wanted.
    """
    lines = fold(brief(text), columns(err))
    return paint(lines) if coloured(err) else lines


def plainly(value: object) -> str:
    """A value of a record as text without braces, quotes or None: "k v, k v" for a mapping, whose empty entries are
    left out, "yes" or "no" for a bool, "none" for an empty collection, "not known" for None.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {plainly(v)}" for k, v in value.items() if v not in (None, [], {})) or "none"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(plainly, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not known" if value is None else str(value)


def put_json(document: object) -> None:
    """Print the result as one JSON document."""
    click.echo(json.dumps(plain(document), indent=2, allow_nan=False))


def exit_code(error: TensorIRError) -> int:
    """The command's exit code for an error, by its class; that of internal errors for unknown classes."""
    if error.code.startswith("cache."):
        return BAD_LOG
    names = {c.__name__ for c in type(error).__mro__}
    return next((code for name, code in _BY_CLASS if name in names), BUG)


def words(error: TensorIRError) -> str:
    """Text of an error: its first two problems, in ten lines at most, and, if it is in the user's file, the line that
    caused it.
    """
    lines = "\n".join(map(str, error.problems[:2])).splitlines()[:10]
    place = error.where
    ours = ("site-packages", "/bin/tensorir", "__main__.py", "<frozen", "<string>")
    if place and not any(word in place.split(": ")[0] for word in ours):
        lines.append(f"  at {place}")
    return "\n".join(lines)


def process_start() -> float:
    """Start time of this process on the clock ``time.monotonic``; 0.2 s ago if the system does not tell, now if it is
    older than 5 s (not a process of one command alone).
    """
    now = time.monotonic()
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return now - 0.2  # about what starting Python takes
    return now - age if 0 <= age < 5 else now  # older: not a process of this command alone
