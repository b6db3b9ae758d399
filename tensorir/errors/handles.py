"""Copying and pickling of public objects: copies share attributes, or are the object itself; a pickle holds data."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any, Self

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.needs import shown


class _Probe(threading.local):
    """Thread-local state of a trial pickle (``unpicklable``): True while one runs, and the handles visited."""

    on = False

    def __init__(self) -> None:
        self.met: dict[int, weakref.ref[Handle]] = {}


_probe = _Probe()


class Sink:
    """A write-only file object that discards data."""

    def write(self, data: bytes | memoryview) -> int:
        """Discard ``data``; returns its length."""
        return len(data)


class Handle:
    """Base of public objects such as executables and schedule histories: ``copy`` and ``deepcopy`` both return a new
    object with the same attributes, none of them copied.

    A pickle holds ``_data()``, which is pickled on trial first. Refused with DeclarationError ``argument.pickle``:
    functions without a name in a module, arrays in a device's memory, expressions nested too deeply (unless cloudpickle
    or dill ask).
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    def _data(self) -> tuple[Any, ...]:
        """(function, arguments) that recreate the object."""
        made = object.__reduce_ex__(self, 4)
        assert isinstance(made, tuple)
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        made = self._data()
        if _probe.on:
            _probe.met[id(self)] = weakref.ref(self)
        elif (met := _probe.met.pop(id(self), None)) is None or met() is not self:
            reason = "" if _tolerant() else unpicklable(made[1:3])
            if reason:
                message = f"{shown(self)} cannot be pickled: {reason}"
                raise refuse(DeclarationError, "argument.pickle", message, hint="functions that a module defines")
        return made


class Value(Handle):
    """Base of immutable public objects, such as tensors and devices: ``copy`` and ``deepcopy`` return the object
    itself.
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self


def unpicklable(value: object) -> str:
    """Reason why ``value`` cannot be pickled; "" if it can."""
    before, _probe.on = _probe.on, True
    if not before:
        _probe.met.clear()
    try:
        sys.modules["pickle"].Pickler(Sink(), 4).dump(value)  # who asks has it; no module here reads a pickle
    except RecursionError:
        return "it is nested too deeply"
    except TensorIRError as error:
        return error.problems[0].message
    except Exception as error:  # each type has its own
        return f"{error!s:.200}"
    finally:
        _probe.on = before
    return ""


def _tolerant() -> bool:
    """True if cloudpickle or dill, which accept local functions, is running in a calling frame."""
    frame = sys._getframe(2)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("cloudpickle", "dill"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
