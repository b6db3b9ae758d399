"""The registry of schedule primitives: traces, the reference in docs/ and tests read what each file says of its own."""

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
    section: where the reference describes it
    method:  what ``Schedule`` and ``StageRef`` have under this name
    word:    first word of the error codes with which it refuses
    moves:   whether a cell may be written by one thread and read by another afterwards, so that owners are checked
    step:    whether traces hold it; a composition of others is in them as those
    """

    name: str
    section: str
    method: Callable[..., Any]
    word: str
    moves: bool
    step: bool

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature; asking Python for it takes longer than many a primitive."""
        return inspect.signature(self.method)

    @cached_property
    def defaults(self) -> dict[str, object]:
        """Optional arguments, each with the value that no step repeats."""
        return {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}

    def refusals(self) -> tuple[str, ...]:
        """Return the error codes of its own, from the catalogue."""
        return tuple(of_phase(self.word)) if self.word in phases() else ()


@dataclass(frozen=True)
class Mark:
    """A mark that a primitive leaves in the tree without doing it, and whose meaning no later primitive may take.

    makers: the primitives that may leave such a mark
    unfit:  why a primitive that comes later is refused; None where the mark has kept its meaning
    option: (name, value) of the step that leaves it, where the maker is another one than the mark's own primitive
    """

    name: str
    makers: frozenset[str]
    unfit: Unfit
    option: tuple[str, Any] | None = None

    def made_by(self, step: Step) -> bool:
        """True for a step that leaves such a mark."""
        if step.primitive not in self.makers:
            return False
        return self.option is None or step.primitive == self.name or self.option in step.options


PRIMITIVES: dict[str, Primitive] = {}
"""Every primitive by its name."""


def as_called(step: Step) -> Step:
    """A step with its options in the order of the primitive's parameters; a log's JSON sorts them by name."""
    places = {n: k for k, n in enumerate(PRIMITIVES[step.primitive].defaults)} if step.primitive in PRIMITIVES else {}
    return replace(step, options=tuple(sorted(step.options, key=lambda o: places.get(o[0], len(places)))))


MARKS: dict[str, Mark] = {}
"""Marks that need more than to be there, by the primitive that makes them."""


def primitive(section: str, *, word: str = "", moves: bool = False, step: bool = True) -> Callable[[F], F]:
    """A decorator of the method of a primitive, which registers it; ``Primitive`` says what the arguments are.

    word: the name with hyphens where it is not given
    """

    def register(method: F) -> F:
        name = method.__name__
        PRIMITIVES[name] = Primitive(name, section, method, word or name.replace("_", "-"), moves, step)
        return method

    return register


def mark(name: str, *others: str, option: tuple[str, object] | None = None) -> Callable[[Unfit], Unfit]:
    """A decorator of a function that says why a later primitive is refused, for the mark that primitive ``name`` makes.

    others: primitives that make it as well;  option: with which
    """

    def register(unfit: Unfit) -> Unfit:
        MARKS[name] = Mark(name, frozenset((name, *others)), unfit, option)
        return unfit

    return register
