"""Registry of algorithms by name, for ``s.redeclare`` and for traces."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from tensorir.errors import DeclarationError, Problem, ScheduleError, TensorIRError, line_of, refuse
from tensorir.errors.habits import answers, near
from tensorir.errors.needs import need_bool, need_function, need_number, need_text
from tensorir.expr.program import as_outputs
from tensorir.expr.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_MODULES = "horizontal phases private_scatter ranges split_softmax stream_k tables tiled_scan winograd"
BUILT_IN = {name: f"tensorir.algorithms.{name}" for name in _MODULES.split()}
"""Built-in algorithm -> module that registers it, imported on first use."""


@dataclass(frozen=True)
class Algorithm:
    """A function that declares given outputs in another way, from outputs and parameters.

    error: bound of its rounding error relative to the largest result: a number, or a function with the algorithm's
           arguments; None if results round as declared
    exact: True if results equal the definition's in exact arithmetic
    """

    name: str
    function: Callable[..., Any]
    error: float | Callable[..., float] | None
    exact: bool

    @cached_property
    def signature(self) -> inspect.Signature:
        """Return the signature of ``function``."""
        return inspect.signature(self.function)

    def outputs(self, given: tuple[Tensor, ...], parameters: Mapping[str, object]) -> tuple[Tensor, ...]:
        """Return the outputs ``given``, declared by this algorithm.

        Raises ScheduleError ``redeclare.parameters`` for arguments that ``function`` does not take,
        ``redeclare.raised`` for exceptions of a user's function.
        """
        made = self._called(self.function, given, parameters)
        return as_outputs(tuple(made) if isinstance(made, list) else made)

    def bound(self, given: tuple[Tensor, ...], parameters: Mapping[str, object]) -> float | None:
        """Return the bound of the rounding error relative to the largest result; None if results round as declared.

        Raises the errors of ``outputs``.
        """
        if callable(self.error):
            return float(need_number("error", self._called(self.error, given, parameters), 0.0, ScheduleError))
        return self.error

    def _called(self, function: Callable[..., Any], given: tuple[Tensor, ...], parameters: Mapping[str, Any]) -> Any:
        try:
            self.signature.bind(given, **parameters)
        except TypeError as e:
            message = f"algorithm {self.name!r} cannot be called so: {e}"
            taken = ", ".join(list(map(str, self.signature.parameters.values()))[1:])
            hint = f"s.redeclare({self.name!r}, {taken})" if taken else f"s.redeclare({self.name!r})"
            raise ScheduleError(Problem("redeclare.parameters", message, hint=hint)) from None
        try:
            return function(given, **parameters)
        except TensorIRError:
            raise
        except Exception as e:  # the user's own code
            message = f"algorithm {self.name!r} raised {type(e).__name__}: {e}"
            raise ScheduleError(Problem("redeclare.raised", message), line_of(e)) from e


_ALGORITHMS: dict[str, Algorithm] = {}


@answers()
def algorithm(name: str, *, error: float | Callable[..., float] | None = None, exact: bool = True) -> Callable[[F], F]:
    """Decorator that registers a function (outputs, parameters) -> outputs for ``s.redeclare(name, …)``.

    An earlier function of that name is replaced.

    >>> @tir.algorithm("halves")
    ... def halves(outputs, parts=2): ...

    outputs: tuple of tensors whose declarations state the computation; parameters are JSON values
    error:   bound of the algorithm's own rounding error relative to the largest result; a number, or a function of the
             same arguments
    exact:   True if results equal the definition's in exact arithmetic: checks compare in a prime field, else within
             ``error``
    Raises DeclarationError ``algorithm.taken`` for the names of built-in algorithms, ``algorithm.error`` if neither
    ``exact`` nor an ``error`` is given.
    """
    label = need_text("name", name)
    if error is not None and not callable(error):
        error = float(need_number("error", error, 0.0))
    if not need_bool("exact", exact) and error is None:
        raise refuse(DeclarationError, "algorithm.error", f"algorithm {label!r} is not exact, and has no bound",
                     hint="error=1e-5, how far results may be off relative to the largest")  # fmt: skip

    def register(function: F) -> F:
        need_function("function", function)
        own = BUILT_IN.get(label)
        if own is not None and function.__module__ != own:
            raise refuse(DeclarationError, "algorithm.taken", f"{label!r} is an algorithm of tensorir",
                         hint=f'@tir.algorithm("my_{label}")')  # fmt: skip
        _ALGORITHMS[label] = Algorithm(label, function, error, exact)
        return function

    return register


def find_algorithm(name: str) -> Algorithm:
    """Return the algorithm named ``name``, built-in or registered. Raises ScheduleError ``trace.algorithm``."""
    if name not in _ALGORITHMS and name in BUILT_IN:
        importlib.import_module(BUILT_IN[name])
    if name not in _ALGORITHMS:
        known = sorted({*BUILT_IN, *_ALGORITHMS})
        hint = near(name, known) or f"import what registers it by tir.algorithm; there are {', '.join(known)}"
        raise ScheduleError(Problem("trace.algorithm", f"there is no algorithm {name!r}", hint=hint))
    return _ALGORITHMS[name]
