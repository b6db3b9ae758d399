"""Validation of user arguments (``need_int``, ``need_name``, …): return the value or raise with name and expectation.

Without it, Python would report most of these mistakes deep inside the package, in terms of internals. ``error``: the
class to raise, the caller's phase.
"""

from __future__ import annotations

import errno
import functools
import inspect
import math
import operator
import os
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, SupportsIndex, TypeVar, cast

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.habits import answers
from tensorir.errors.shown import Shown
from tensorir.errors.spelling import nearest

Class = type[TensorIRError]
P = ParamSpec("P")
R = TypeVar("R")


def shown(value: object) -> str:
    """``value`` as text of at most 60 characters on one line, even if its ``repr`` fails."""
    try:
        lines = repr(value).splitlines()
    except Exception:
        lines = []
    text = lines[0] if lines else f"a {type(value).__name__}"
    return text if len(text) <= 60 and len(lines) < 2 else f"{text[:57]}..."


def wrong(name: str, value: object, expected: str, error: Class = DeclarationError, hint: str = "") -> TensorIRError:
    """Return, for the caller to raise, the ``argument.type`` error: argument ``name`` must be ``expected``."""
    return refuse(error, "argument.type", f"{name} must be {expected}, not {shown(value)}", hint=hint)


def need_int(
    name: str, value: object, low: int | None = None, high: int | None = None, error: Class = DeclarationError
) -> int:
    """``value`` as an int from ``low`` to ``high``; raises ``error`` with ``argument.type`` or ``argument.value``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        n = operator.index(cast("SupportsIndex", value))
    except Exception:  # whatever its __index__ does
        raise wrong(name, value, "an int", error) from None
    if (low is not None and n < low) or (high is not None and n > high):
        limits = [f"{word} {n}" for word, n in (("from", low), ("to", high)) if n is not None]
        legal = " ".join(limits) + " up" * (high is None)
        raise refuse(error, "argument.value", f"{name} must be an int {legal}, not {shown(value)}")
    return n


def plain_int(value: object) -> Any:
    """A NumPy int as a Python int; other values unchanged.

    Tensors and elements are not asked for ``__index__``: their refusal takes time, as it reads the user's source.
    """
    if isinstance(value, bool | int | Shown) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(cast("SupportsIndex", value))
    except Exception:  # whatever its __index__ does
        return value


def plain_ints(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: ``function`` with NumPy ints among its arguments converted to Python ints, and with ``answers``."""
    answered = answers()(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return answered(*map(plain_int, args), **{k: plain_int(v) for k, v in kwargs.items()})

    return called


def need_ints(name: str, value: object, error: Class = DeclarationError) -> tuple[int, ...]:
    """``value``, a list or tuple, as a tuple of ints; raises ``error`` with ``argument.type`` for others."""
    return tuple(need_int(f"{name}[{n}]", v, error=error) for n, v in enumerate(need_list(name, value, "ints", error)))


def need_number(name: str, value: object, low: float = -math.inf, error: Class = DeclarationError) -> float:
    """``value`` as a finite float >= ``low``; raises ``error`` with ``argument.type`` or ``argument.value``."""
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(cast("float", value))
    except Exception:  # whatever its __float__ does
        raise wrong(name, value, "a number", error) from None
    if not (math.isfinite(number) and number >= low):
        least = f" from {low:g} up" if low > -math.inf else ""
        raise refuse(error, "argument.value", f"{name} must be a finite number{least}, not {shown(value)}")
    return number


def need_bool(name: str, value: object, error: Class = DeclarationError) -> bool:
    """``value`` if it is True or False; raises ``error`` with ``argument.type`` for others."""
    if not isinstance(value, bool):
        raise wrong(name, value, "True or False", error)
    return value


def need_text(name: str, value: object, error: Class = DeclarationError, empty: bool = False) -> str:
    """``value`` if it is a string without surrogates, nonempty unless ``empty``; raises ``error`` with
    ``argument.type`` or ``argument.text``.
    """
    if not isinstance(value, str) or not (value or empty):
        raise wrong(name, value, "a string" if empty else "a non-empty string", error)
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        message = f"{name} has half of a surrogate pair, which is no character: {shown(value)}"
        raise refuse(error, "argument.text", message, hint="text of Unicode characters")
    return value


def need_name(name: str, value: object, error: Class = DeclarationError, code: str = "argument.value") -> str:
    """Return ``value`` if it is a nonempty string in Unicode's normal form NFKC; raises ``error`` for others, with
    ``code`` for another form, else ``argument.type`` or ``argument.text``.

    Python normalizes identifiers to NFKC, so keyword arguments would not match another form.
    """
    text = need_text(name, value, error)
    normal = unicodedata.normalize("NFKC", text)
    if normal != text:
        points = " ".join(f"U+{ord(c):04X}" for c in normal)
        message = f"{name} is {shown(text)}, which Python reads as another name: it is not in the normal form NFKC"
        raise refuse(error, code, message, hint=f"{normal!r} ({points})")
    return text


def need_choice(name: str, value: object, legal: Collection[str], error: Class = DeclarationError) -> str:
    """``value`` if it is one of ``legal``; raises ``error`` with ``argument.value`` for others."""
    if not isinstance(value, str) or value not in legal:
        words = ", ".join(map(repr, legal))
        hint = "".join(map(repr, nearest(value, legal)))
        raise refuse(error, "argument.value", f"{name} must be one of {words}, not {shown(value)}", hint=hint)
    return value


def need_list(name: str, value: object, of: str, error: Class = DeclarationError) -> tuple[object, ...]:
    """``value``, a list or tuple, as a tuple, its items unchecked; raises ``error`` with ``argument.type`` for others.

    of: noun for the items, in the message
    """
    if not isinstance(value, list | tuple):
        raise wrong(name, value, f"a list of {of}", error)
    return tuple(value)


def need_slice(x: slice, length: int, error: Class = DeclarationError) -> range:
    """The range of positions that slice ``x`` selects from ``length`` elements; raises ``error`` with ``argument.type``
    unless its ends are ints or None, and its step is not 0.
    """
    try:
        return range(*x.indices(length))
    except (TypeError, ValueError):
        raise wrong("a slice", x, "a slice of ints", error) from None


def need_names(name: str, value: object, error: Class = DeclarationError) -> tuple[str, ...]:
    """``value``, a list or tuple, as a tuple of strings, nonempty and already in the form NFKC; a single string counts
    as one. Raises ``error`` with ``argument.type``, ``argument.text`` or ``argument.value`` for others.
    """
    found = (value,) if isinstance(value, str) else need_list(name, value, "names", error)
    return tuple(need_name(f"{name}[{n}]", v, error) for n, v in enumerate(found))


def need_mapping(name: str, value: object, error: Class = DeclarationError) -> Mapping[Any, Any]:
    """``value`` if it is a mapping with string keys; raises ``error`` with ``argument.type`` for others."""
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise wrong(name, value, "a dict with names as keys", error)
    return value


def need_function(
    name: str, value: object, error: Class = DeclarationError, takes: int | None = None
) -> Callable[..., Any]:
    """``value`` if it is callable; raises ``error`` with ``argument.type`` for others.

    takes: number of positional arguments that it must accept, checked if its signature is known
    """
    if not callable(value):
        raise wrong(name, value, "a function", error)
    if takes is not None:
        try:
            inspect.signature(value).bind(*[None] * takes)
        except TypeError:
            raise wrong(name, value, f"a function of {takes or 'no'} argument{'s' * (takes != 1)}", error) from None
        except ValueError:  # of a built-in function nothing is known
            pass
    return value


_NO_PATH = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ELOOP}
"""The errors of systems for a path that none of their files can have."""


def need_path(name: str, value: object, error: Class = DeclarationError) -> str:
    """``value``, a string or os.PathLike, as a path string that the file system accepts; the file need not exist.
    Raises ``error`` with ``argument.type`` or ``argument.path``.
    """
    try:
        path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if isinstance(path, str) and path:
            os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        if e.errno in _NO_PATH:
            raise refuse(error, "argument.path", f"{name}={shown(path)}: {e.strerror}", hint="a shorter path") from None
    except Exception:  # lone surrogates, NUL, whatever its __fspath__ does
        path = None
    if not isinstance(path, str) or not path:
        raise wrong(name, value, "a path", error)
    return path


_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(rf"\s*(\d{{1,9}}(?:\.\d{{1,6}})?)\s*({'|'.join(_UNITS)})?\s*")


def seconds_of(value: object) -> float | None:
    """Seconds, as a float > 0, of "90s", "5m", "1.5h", "250ms", or a number of seconds (also as text); None for
    anything else, 0 and infinity included.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) and value > 0 else None
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    return (float(match[1]) * _UNITS[match[2] or "s"] or None) if match else None


def need_seconds(value: object) -> float:
    """Seconds, as a float > 0, of "90s", "5m", "250ms" or a number of seconds; raises DeclarationError ``tune.time``
    for anything else.
    """
    found = seconds_of(value)
    if found is None:
        raise refuse(DeclarationError, "tune.time", f"{shown(value)} is not a time", hint="90s, 5m, 1h")
    return found


def spelt(value: object) -> object:
    """The int, or tuple of ints, of a text such as "2" or "2x1"; other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(x\d{1,9})*", value):
        return tuple(map(int, value.split("x"))) if "x" in value else int(value)
    return value


def text_of(values: Sequence[int]) -> int | str:
    """The int that all ``values`` equal, or text such as "2x1" if they differ."""
    return values[0] if len(set(values)) == 1 else "x".join(map(str, values))
