"""Registry of schedule primitives and of the marks that they leave in the tree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from tensorir.errors import Problem
from tensorir.errors.catalogue import of_phase, phases
from tensorir.ir.tree import Program
from tensorir.schedule.trace import Step

F = TypeVar("F", bound=Callable[..., Any])

Unfit = Callable[[Program, Program, str], Problem | None]
"""Why a primitive of this name may not make the second program of the first one: marks would lose their meaning."""

SECTIONS = (
    "Loops", "Where a stage runs", "Copies and memory", "Reductions", "Instructions", "Arguments", "Algorithms",
)  # fmt: skip
"""Those of the reference of primitives, in its order."""


@dataclass(frozen=True)
class Primitive:
    """A schedule primitive, as its file registers it.

    name:    of the method, and of its steps in traces
    section: section of the reference manual
    method:  method of ``Schedule`` and ``StageRef``
    word:    first word of its error codes
    moves:   true if elements may then be written by one thread and read by another, so that ownership is checked
    step:    true if traces contain it; a composition appears as its component steps
    """

    name: str
    section: str
    method: Callable[..., Any]
    word: str
    moves: bool
    step: bool

    @cached_property
    def signature(self) -> inspect.Signature:
        """Signature of the method, cached."""
        return inspect.signature(self.method)

    @cached_property
    def defaults(self) -> dict[str, object]:
        """{optional argument: default}, omitted from recorded steps."""
        return {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}

    def refusals(self) -> tuple[str, ...]:
        """Return the primitive's own error codes, from the catalogue."""
        return tuple(of_phase(self.word)) if self.word in phases() else ()


@dataclass(frozen=True)
class Mark:
    """A mark left in the tree by a primitive, carried out by lowering; later primitives must preserve its meaning.

    makers: names of the primitives that leave it
    unfit:  function (before, after, primitive) -> Problem, or None if the mark kept its meaning
    option: (name, value) of the step that leaves it, if made by another primitive than its namesake
    """

    name: str
    makers: frozenset[str]
    unfit: Unfit
    option: tuple[str, Any] | None = None

    def made_by(self, step: Step) -> bool:
        """True if ``step`` leaves this mark."""
        if step.primitive not in self.makers:
            return False
        return self.option is None or step.primitive == self.name or self.option in step.options


PRIMITIVES: dict[str, Primitive] = {}
"""Every primitive by its name."""


def as_called(step: Step) -> Step:
    """``step`` with options in parameter order (logs sort them by name)."""
    places = {n: k for k, n in enumerate(PRIMITIVES[step.primitive].defaults)} if step.primitive in PRIMITIVES else {}
    return replace(step, options=tuple(sorted(step.options, key=lambda o: places.get(o[0], len(places)))))


MARKS: dict[str, Mark] = {}
"""Marks that need more than to be there, by the primitive that makes them."""


def primitive(section: str, *, word: str = "", moves: bool = False, step: bool = True) -> Callable[[F], F]:
    """Decorator that registers a method as a primitive, under the method's name.

    section: section of the reference manual;  word: first word of its error codes, by default the name with hyphens
    moves:   true if elements may then be written by one thread and read by another, so that ownership is checked
    step:    true if traces contain it; a composition appears as its component steps
    """

    def register(method: F) -> F:
        name = method.__name__
        PRIMITIVES[name] = Primitive(name, section, method, word or name.replace("_", "-"), moves, step)
        return method

    return register


def mark(name: str, *others: str, option: tuple[str, object] | None = None) -> Callable[[Unfit], Unfit]:
    """Decorator that registers a function as the check that later primitives preserve the mark left by primitive
    ``name``.

    others: further primitives that leave it;  option: the step option that leaves it
    """

    def register(unfit: Unfit) -> Unfit:
        MARKS[name] = Mark(name, frozenset((name, *others)), unfit, option)
        return unfit

    return register
