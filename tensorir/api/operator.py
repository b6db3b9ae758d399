"""``Operator``: command-line description of an operator (shape grammar, flags) and the function that makes its
workload.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorir.codec import travels
from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.shown import Shown


@travels
@dataclass(frozen=True, repr=False)
class Origin(Shown):
    """The recipe by which another process makes the workload again: a call of NAME(**options).

    kind: "ops" (the operators' folder of this package), "file" or "module"; place is the path or the module's name
    """

    kind: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def make(self) -> Any:
        """Result of NAME(**options), for the kinds "ops" and "module" (``api.origin.rebuild`` takes "file" as well).

        Imports the module. Raises DeclarationError ``workload.operator`` if it has no such function.
        """
        home = importlib.import_module(self.place or f"{__name__.split('.')[0]}.{self.kind}")
        function = getattr(home, self.name, None)
        if not callable(function):
            raise refuse(DeclarationError, "workload.operator", f"{home.__name__} has no {self.name!r}")
        return function(**self.options)


@dataclass(frozen=True)
class Flag:
    """A parameter of operators that is no extent.

    kind:  "switch", "dtype", "float", "int" from ``least`` on, "sides" (such an int, or several: "2x1"), or "choice" of
           ``choices``
    least: the smallest int of "int" and "sides"
    about: what it means, as help text; apart: (operator, other meaning) pairs
    """

    name: str
    kind: str
    about: str
    least: int = 0
    choices: tuple[str, ...] = ()
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def option(self) -> str:
        """Its command-line option."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, repr=False)
class Operator(Shown):
    """Description of an operator for the command line, lists, logs and messages.

    module:  home of the function ``name``, the maker of its workloads
    grammar: the typed shapes, "NxCxHxW KxCxRxS"; each letter is an extent, and stands for one number. Its second place
             may be divided by ``shared``, a flag (the channels of one group)
    example: numbers for the grammar
    flags:   names of its flags;  needed: those without a default
    tensors: parameters that are whole shapes, of any number of dimensions; the grammar names them then
    """

    name: str
    module: str
    grammar: str
    example: str
    flags: tuple[str, ...]
    shared: str = ""
    needed: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[str, ...]:
        """Names of the parameters that shape texts give, in order: ("n", "c", "h", "w", …)."""
        return self.tensors or tuple(dict.fromkeys(self.grammar.lower().replace(" ", "x").split("x")))

    @property
    def command(self) -> str:
        """Example shell command that tunes it."""
        return f"tensorir tune {self.name} {self.example}"

    def read(self, shapes: Sequence[str], given: Mapping[str, object]) -> dict[str, Any]:
        """{parameter: value}: the extents in ``shapes`` as ints (whole shapes, for ``tensors``, as text "8x16"), and
        the flags ``given``, unchecked.

        Raises DeclarationError ``operator.shape`` for another number of shapes or dimensions than the grammar has, for
        text that is no shape, and for unequal extents of one letter.
        """
        wanted = self.grammar.split()
        if len(shapes) != len(wanted):
            count = {1: "one shape", 2: "two shapes"}.get(len(wanted), f"{len(wanted)} shapes")
            raise _refuse(f"{self.name} needs {count}, {self.grammar}, not {len(shapes)}", self.command)
        if self.tensors:
            typed = zip(self.tensors, shapes, self.example.split(), strict=True)
            return {**{n: "x".join(map(str, _dims(text, "", example))) for n, text, example in typed}, **given}
        found: dict[str, int] = {}
        for letters, example, text in zip(wanted, self.example.split(), shapes, strict=True):
            for name, n in zip(letters.lower().split("x"), _dims(text, letters, example), strict=True):
                self._agree(found.setdefault(name, n), n, name, given)
        return {**found, **given}

    def _agree(self, first: int, again: int, name: str, given: Mapping[str, Any]) -> None:
        parts = int(given.get(self.shared, 1)) if self.shared else 1
        if again in (first, first / parts):
            return
        share = f" (or {first // parts} with {parts} {self.shared})" if parts > 1 and first % parts == 0 else ""
        letter = name.upper()
        raise _refuse(f"{letter} is {first} in one shape and {again} in another: they must agree{share}", self.command)

    def words(self, params: Mapping[str, object], usual: Mapping[str, object]) -> list[str]:
        """``params`` as command-line words: shapes, then flags that are ``needed`` or differ from the defaults
        ``usual``. If an extent is missing, every parameter is written as a flag.
        """
        if not params.keys() >= set(self.extents):
            return [flag_words(k, v) for k, v in params.items()]
        typed = [[n] for n in self.tensors] or [word.lower().split("x") for word in self.grammar.split()]
        shapes = ["x".join(str(params[n]) for n in names) for names in typed]
        rest = {k: v for k, v in params.items() if k not in self.extents}
        told = {k: v for k, v in rest.items() if k in self.needed or k not in usual or usual[k] != v}
        return [*shapes, *(flag_words(k, v) for k, v in told.items())]


def flag_words(name: str, value: object) -> str:
    """A parameter as command-line text, quoted for a shell: ``("block_k", 8)`` -> ``--block-k 8``; True -> the option
    alone. False and None are written as words: callers leave those out.
    """
    option = "--" + name.replace("_", "-")
    return option if value is True else f"{option} {shlex.quote(str(value))}"


def _dims(text: str, letters: str, example: str) -> list[int]:
    """Extents of a shape text such as "1x64x56x56"; one per letter, any number if ``letters`` is empty."""
    parts = text.lower().split("x")
    if not all(re.fullmatch(r"\d{1,12}", p) for p in parts):
        raise _refuse(f"{text!r:.60} is not a shape", f"{letters or 'extents'}, for example {example}")
    wanted = letters.lower().count("x") + 1
    if letters and len(parts) != wanted:
        raise _refuse(f"{text} has {len(parts)} dimensions, {letters} has {wanted}", f"for example {example}")
    return [int(p) for p in parts]


def _refuse(message: str, hint: str) -> TensorIRError:
    return refuse(DeclarationError, "operator.shape", message, hint=hint)
