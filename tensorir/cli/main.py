"""Entry point of the command line: lazy commands, exit codes, no tracebacks."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
import warnings
from typing import Any

import click

from tensorir._package import PACKAGE_VERSION, Lazy, reserve_standard_streams
from tensorir.cli.common import BAD_LOG, USAGE, Stop, clean, exit_code, say, words
from tensorir.cli.group import VerbGroup
from tensorir.errors import TensorIRError

VERBS = {
    "tune": "Search for the fastest schedule of an operator or of your own workload.",
    "show": "Show the loop tree, the source, the resources or the machine code of a schedule.",
    "bench": "Time the chosen kernel against libraries.",
    "check": "Check the chosen kernel against the reference.",
    "export": "Write a folder that runs without tensorir.",
    "onnx": "Say which nodes of a model have kernels, and make them call these.",
    "log": "Look at, check and tidy tuning logs.",
    "cache": "Take tuned, compiled kernels to another machine.",
    "doctor": "Say what works here and how to fix what does not.",
    "devices": "List the devices and the names to pass.",
    "list": "List operators, their parameters and templates.",
    "explain": "Explain an error code.",
    "repro": "Measure one recorded configuration again.",
    "report": "Make a page of a tuning log.",
}


_verb_called = Lazy("tensorir.cli.verbs", "verb_called")


class Verbs(VerbGroup):
    """The top-level command group; the module of a command is imported when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _verb_called(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"tensorir {PACKAGE_VERSION}")
        ctx.exit()


cli = Verbs(
    "cli",
    """Tensor computations: scheduled, checked, tuned and exported as readable CUDA or OpenCL.

    The result goes to stdout (one JSON document with --json), progress and messages to stderr.

    \b
    tensorir tune conv2d 1x64x56x56 64x64x3x3 --pad 1
    tensorir tune matmul 512x512x512 --budget 60s
    tensorir tune kernels.py:my_op
    """,
    params=[
        click.Option(
            ["--version"], is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
        )
    ],
)


def main(args: list[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    _open_streams()
    _end_as_interrupted()
    code = run(args)
    try:
        sys.stdout.flush()
    except OSError:  # whoever read our output is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def _open_streams() -> None:
    """Replace standard streams that the caller closed (``>&-``), so that prints do not fail or land in another file."""
    reserve_standard_streams()
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - to the end
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _end_as_interrupted() -> None:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; a signal ignored by the caller (``nohup``) stays
    ignored.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def run(args: list[str] | None = None) -> int:
    """Run the command line; return its exit code. Errors are printed, not raised.

    args: words after ``tensorir``; None: those of the process
    """
    warnings.showwarning = _warning
    for arg in sys.argv[1:] if args is None else args:
        if not _is_text(arg):
            say(f"tensorir: {arg!a:.80} is no text that files or results could have")
            return USAGE
    try:
        code = cli.main(args, prog_name="tensorir", standalone_mode=False)
    except Stop as stop:
        if stop.message:
            say(f"tensorir: {stop.message}")
        return stop.code
    except (KeyboardInterrupt, click.Abort):
        say("tensorir: interrupted")
        return 130
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().rstrip("\n"))
        return error.exit_code
    except TensorIRError as error:
        if _nowhere():  # whatever it could not find or write
            return USAGE
        say(words(error))
        return exit_code(error)
    except SystemExit as end:  # a schedule function that ends the process must not look like success
        *_, (frame, _) = traceback.walk_tb(end.__traceback__)
        if frame.f_globals.get("__name__", "").startswith("click."):  # its own end: whoever read our output is gone
            return 0
        say(f"tensorir: the workload's own code ended the process with sys.exit({end.code!r})")
        return USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        return _refused(error)
    except UnicodeEncodeError as error:  # bytes of a path that are no characters, in a result that is text
        say(f"tensorir: {error.object[error.start : error.end]!a} is no text that results could have")
        return USAGE
    except Exception as error:
        return _bug(error)
    return code if isinstance(code, int) else 0


def _is_text(arg: str) -> bool:
    """True if ``arg`` has no NUL and no lone surrogate, so that files may be named by it."""
    try:
        return b"\0" not in os.fsencode(arg)
    except UnicodeError:
        return False


def _warning(message: Warning | str, *_: Any, **__: Any) -> None:
    text = str(message).strip().splitlines()
    if text:
        say(f"warning: {text[0].removeprefix('tensorir: ')}")


def _refused(error: OSError) -> int:
    """Exit code for an OSError, after printing it."""
    if error.errno == errno.ENAMETOOLONG:
        say(f"tensorir: {error.strerror}: {clean(str(error.filename)):.60}…")
        return USAGE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        say(f"tensorir: {error.strerror}: {clean(str(error.filename or 'the result cannot be written'))}")
        return BAD_LOG
    return USAGE if _nowhere() else _bug(error)


def _nowhere() -> bool:
    """True, after printing a message, if the working directory was deleted; else False."""
    try:
        os.getcwd()
    except OSError:
        say("tensorir: the folder that this was called in is gone")
        return True
    return False


def _bug(error: Exception) -> int:
    """Print an internal error to stderr and its traceback to a temporary file; return the exit code 1."""
    import tempfile

    say(f"tensorir: internal error: {type(error).__name__}: {error}"[:500])
    try:
        number, path = tempfile.mkstemp(prefix="tensorir-error-", suffix=".txt")
        with os.fdopen(number, "w") as file:
            file.write("".join(traceback.format_exception(error)))
        say(f"this is a bug; the details are in {path}")
    except OSError:
        say("this is a bug")
    return 1
