"""Suggestions for names and calls from other libraries: a table of habits, and similar spellings."""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ParamSpec, TypeVar

from tensorir.errors import (
    DeclarationError,
    DeclarationTypeError,
    ImportRefusedError,
    LaunchError,
    LaunchTypeError,
    Problem,
    ScheduleError,
    ScheduleTypeError,
    TensorIRError,
    UnknownNameError,
    ours,
)
from tensorir.errors.spelling import nearest

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_DTYPE = re.compile(r"(?:bfloat|float|u?int|bool|complex|half|double)\d*(?:_e\dm\d\w*)?")

_ALSO = {"stage": "schedule", "tensor": "function", "tir": "function", "nn": "tir"}
"""The place to look for a name next, by the place before."""


@functools.cache
def remedies() -> Mapping[str, Mapping[str, str]]:
    """{kind of object: {name from another library: what to write here}}, from ``habits.toml``."""
    return tomllib.loads(Path(__file__).with_name("habits.toml").read_text(encoding="utf-8"))


def habit(kind: str, name: str) -> str | None:
    """Text on what to write in place of ``name`` on an object of ``kind``, from the table of habits; None if it has
    none. Kinds without an entry fall back: nn to tir; stage to schedule; tensor and tir to function.
    """
    found = remedies().get(kind, {}).get(name)
    if found is None and kind in ("tir", "nn") and _DTYPE.fullmatch(name):
        return f'dtypes are strings, "{name}", or NumPy\'s'
    return habit(_ALSO[kind], name) if found is None and kind in _ALSO else found


def near(name: str, legal: Iterable[str]) -> str:
    """Up to three names of ``legal`` similar to ``name``, as "a or b?"; "" if none is similar."""
    close = nearest(name, legal, 3)
    return " or ".join(close) + "?" if close else ""


def meant(kind: str, word: str, legal: Iterable[str], short: Mapping[str, str] | None = None) -> str:
    """Hint for an unknown word: ``"right"; one of …``, the right one by the table of habits or by spelling, then all of
    ``legal``.

    short: {accepted abbreviation: word that it stands for}
    """
    words, also = list(legal), short or {}
    close = nearest(word, [*words, *also], cutoff=0.7)
    one = habit(kind, word) or (also.get(close[0], close[0]) if close else "")
    first = f'"{one}"; ' if one in words else f"{one}; " if one else ""
    return f"{first}one of {', '.join(words)}"


def unknown(kind: str, name: str, label: str, legal: Iterable[str] = (), remedy: str = "") -> AttributeError:
    """Return the ``attribute.unknown`` error (UnknownNameError) for attribute ``name`` of ``label``, with a suggestion.
    A plain AttributeError for names with a leading underscore, which Python and notebooks probe, and if there is
    neither a remedy nor a ``legal`` name.

    kind: kind of object in the table of habits;  remedy: suggestion, if the caller has one
    """
    remedy = remedy or habit(kind, name) or (near(name, legal) if not name.startswith("_") else "")
    if name.startswith("_") or (not remedy and not legal):
        return AttributeError(f"{label} has no attribute {name!r}", name=name)
    return UnknownNameError(Problem("attribute.unknown", f"{label} has no attribute {name!r}", hint=remedy))


class Folder(ModuleType):
    """Class of modules that raise ``attribute.called`` with advice if the user calls them like a function."""

    @classmethod
    def of(cls, name: str) -> None:
        """Make the module ``name``, which is being imported, an instance of this class."""
        sys.modules[name].__class__ = cls

    def __call__(self, *args: object, **kwargs: object) -> Any:
        name = self.__name__.rpartition(".")[2]
        message = f"tir.{name} is a module, not a function"
        raise DeclarationTypeError(Problem("attribute.called", message, hint=habit("folder", name) or ""))


def unknown_here(name: str, legal: Iterable[str]) -> Exception:
    """Return the error for an unknown name, for the package's ``__getattr__``; an ImportError during ``from …
    import``.
    """
    error = unknown("tir", name, "module 'tensorir'", legal)
    frame = sys._getframe(2)
    if frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"] and isinstance(error, TensorIRError):
        return ImportRefusedError(error.problems)
    return error


def public(cls: type) -> list[str]:
    """Names of a class's attributes that do not begin with an underscore."""
    return [n for n in dir(cls) if not n.startswith("_")]


_CLASSES: dict[type[TensorIRError], type[TensorIRError]] = {
    DeclarationError: DeclarationTypeError, ScheduleError: ScheduleTypeError, LaunchError: LaunchTypeError,
}  # fmt: skip


def answers(error: type[TensorIRError] = DeclarationError) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for public functions that turns Python's argument errors into ``error``.

    Unknown arguments get an answer from the table of habits (``argument.call``). Arguments that break validation itself
    are refused: nested too deeply (``argument.nested``), larger than memory (``argument.memory``), text not encodable
    (``argument.text``), objects with failing special methods (``argument.raised``). Other errors pass unchanged: those
    of the user's functions, and bugs of this package.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TensorIRError:
                raise
            except Exception as e:
                fits = not isinstance(e, TypeError) or (problem := _misfit(function, args, kwargs)) is None
                if fits and (problem := _unfit(function.__name__.strip("_"), e)) is None:
                    raise
                assert problem is not None
                refused = error(problem) if fits else _CLASSES.get(error, error)(problem)
                cause = e if fits else None
            raise refused from cause

        return called

    return decorate


def _unfit(name: str, error: Exception) -> Problem | None:
    """Problem that names the argument on which Python failed; None if the error has another cause."""
    if isinstance(error, RecursionError):
        hint = "less in each other: at most some hundred levels"
        return Problem("argument.nested", f"{name}: an argument is nested too deeply", hint=hint)
    if isinstance(error, MemoryError):
        said = f": {error}" if str(error) else ""
        return Problem("argument.memory", f"{name} needs more memory than there is{said}", hint="smaller shapes")
    if isinstance(error, UnicodeEncodeError):
        message = f"{name}: a text holds {error.object[error.start : error.end]!a}, which is no character"
        return Problem("argument.text", message, hint="text and paths of Unicode characters")
    if isinstance(error, ValueError) and "integer string conversion" in str(error):  # of a message that tells it
        return Problem("argument.value", f"{name}: an int of thousands of digits", hint="ints of 64 bits")
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames if frames and not ours(frames[-1]) else ():  # what our own code raises is our own mistake
        if (special := _special(frame)) is not None:
            message = f"{name}: {special} of what was given raised {type(error).__name__}: {error!s:.80}"
            return Problem("argument.raised", message, hint="a value without it")
    return None


def _special(frame: FrameType) -> str | None:
    """Name of the user's special method that runs in ``frame``, as "Class.__index__"; None if it runs none."""
    code = frame.f_code
    if ours(frame) or not code.co_argcount or code.co_varnames[0] not in frame.f_locals:
        return None
    cls = type(frame.f_locals[code.co_varnames[0]])
    methods = ((n, m) for c in cls.__mro__ for n, m in vars(c).items() if n.startswith("__"))
    return next((f"{cls.__name__}.{n}" for n, m in methods if getattr(m, "__code__", None) is code), None)


def answering(error: type[TensorIRError]) -> Callable[[C], C]:
    """Return a class decorator that applies ``answers(error)`` to public methods, constructor and ``x[…]``."""

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if inspect.isfunction(method) and (name in ("__init__", "__getitem__") or not name.startswith("_")):
                setattr(cls, name, answers(error)(method))
        return cls

    return decorate


def _misfit(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Problem | None:
    """Problem for arguments that do not fit the signature; None if they do."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        names = [p for p in signature.parameters if p != "self"]
        name = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__  # which may inherit it
        foreign = [k for k in kwargs if k not in signature.parameters]
        hints = [habit(f"{name}()", k) or near(k, names) for k in foreign]
        hint = next((h for h in hints if h), f"{name}({', '.join(names)})")
        return Problem("argument.call", f"{name}({', '.join(names)}): {e}", hint=hint)
    return None
