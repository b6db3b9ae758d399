"""Chooses a kernel for a shape: a table for tuned shapes, a small decision tree for others."""

from __future__ import annotations

import itertools
import keyword
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.needs import shown
from tensorir.errors.shown import Shown

Shape = Mapping[str, Any]
_RESERVED = ("KERNELS", "TUNED", "ValueError")  # names that the emitted function uses itself
UNKNOWN_LOG_REGRET = math.log(10.0)  # the regret of a kernel that a shape cannot have, or was not measured with


@dataclass(frozen=True)
class Leaf:
    """Tree leaf: the number of the kernel for all shapes that reach it."""

    kernel: int


@dataclass(frozen=True)
class Split:
    """Tree node with a test: ``name <= value`` for numbers, ``name == value`` for strings and booleans."""

    name: str
    value: Any
    yes: Node
    no: Node

    def holds(self, shape: Shape) -> bool:
        """True if ``shape`` satisfies the test (branch ``yes``)."""
        given = shape[self.name]
        return bool(given <= self.value) if is_number(self.value) else bool(given == self.value)


Node = Leaf | Split


def is_number(value: object) -> bool:
    """True for an int or float, not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def follow(node: Node, shape: Shape) -> int:
    """Number of the kernel that the tree selects for ``shape``; raises KeyError if it lacks a tested parameter."""
    while isinstance(node, Split):
        node = node.yes if node.holds(shape) else node.no
    return node.kernel


def grow(shapes: Sequence[Shape], times: npt.NDArray[np.float64], regret: float) -> Node:
    """Decision tree from shapes (columns of ``times``) to kernels (rows; seconds > 0, inf: illegal or not measured).

    Classification and regression trees (Breiman, Friedman, Olshen, Stone 1984) with the cost of a leaf in place of
    impurity: the sum of log regrets of its shapes under its best kernel. A node is a leaf as soon as one kernel is
    within ``regret`` on all of its shapes, so the tree is no deeper than the tuned shapes demand; thresholds are in the
    middle of a gap by ratio.
    """
    with np.errstate(invalid="ignore"):
        costs = np.log(times / times.min(axis=0))
    costs[~np.isfinite(costs)] = UNKNOWN_LOG_REGRET
    return _grow(list(shapes), costs, np.arange(costs.shape[1]), math.log1p(regret) + 1e-9)


def _grow(shapes: list[Shape], costs: Any, members: Any, limit: float) -> Node:
    here = costs[:, members]
    good = np.flatnonzero((here <= limit).all(axis=1))
    if len(good):
        return Leaf(int(good[np.argmin(here[good].sum(axis=1))]))
    best: tuple[tuple[float, float], str, Any, Any] | None = None
    for name, value, margin in _questions([shapes[j] for j in members]):
        side = np.array([Split(name, value, Leaf(0), Leaf(0)).holds(shapes[j]) for j in members])
        cost = sum(float(here[:, half].sum(axis=1).min()) for half in (side, ~side))
        rank = (round(cost, 9), -margin)
        if best is None or rank < best[0]:
            best = rank, name, value, side
    if best is None:  # equal shapes: nothing to ask
        return Leaf(int(np.argmin(here.sum(axis=1))))
    _, name, value, side = best
    yes, no = (_grow(shapes, costs, members[half], limit) for half in (side, ~side))
    return yes if yes == no else Split(name, value, yes, no)


def _questions(shapes: list[Shape]) -> Iterator[tuple[str, Any, float]]:
    """Yield (name, value, gap) of every test that separates two of the shapes."""
    for name in shapes[0]:
        values = list(dict.fromkeys(s[name] for s in shapes))
        if len(values) < 2:
            continue
        if all(map(is_number, values)):
            ordered = sorted(values)
            for low, high in itertools.pairwise(ordered):
                yield name, _between(low, high), math.log((abs(high) + 1) / (abs(low) + 1))
        else:
            yield from ((name, value, 0.0) for value in values[: len(values) if len(values) > 2 else 1])


def _between(low: float, high: float) -> float:
    if isinstance(low, int) and isinstance(high, int):
        return math.isqrt(low * high) if 0 < low < high - 1 else (low + high) // 2
    middle = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2
    return middle if low <= middle < high else low  # neighbours have nothing between them


@dataclass(frozen=True, repr=False)
class DispatchKernel(Shown):
    """A kernel to choose: template name and configuration."""

    template: str
    config: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Dispatch(Shown):
    """``choose(**parameters)`` returns the kernel for a shape.

    kernels: the kernels to choose from
    shapes:  parameters of the tuned shapes
    chosen:  number of the kernel of each tuned shape
    tree:    decision tree for other shapes
    """

    kernels: tuple[DispatchKernel, ...]
    shapes: tuple[dict[str, Any], ...]
    chosen: tuple[int, ...]
    tree: Node

    @classmethod
    def of(
        cls, kernels: Sequence[DispatchKernel], shapes: Sequence[Shape], times: npt.ArrayLike, regret: float
    ) -> Dispatch:
        """Dispatch to the fastest of ``kernels`` (rows of ``times``) for each tuned shape (columns), and by a tree for
        others.

        Raises DeclarationError where shapes have parameters of different names, or no plain values.
        """
        plain = tuple(dict(s) for s in shapes)
        _check_plain(plain)
        matrix = np.array(times, dtype=np.float64, ndmin=2)
        matrix[~(matrix > 0)] = np.inf
        chosen = tuple(int(j) for j in matrix.argmin(axis=0))
        return cls(tuple(kernels), plain, chosen, grow(plain, matrix, regret))

    @property
    def fixed(self) -> dict[str, object]:
        """{parameter: value} of strings and booleans equal in all tuned shapes; no kernel is known for other values."""
        first = self.shapes[0]
        return {n: v for n, v in first.items() if not is_number(v) and all(s[n] == v for s in self.shapes)}

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of the parameters that ``choose`` requires, in order: all but the ``fixed`` ones."""
        return tuple(n for n in self.shapes[0] if n not in self.fixed)

    @property
    def words(self) -> dict[str, tuple[Any, ...]]:
        """{parameter: its strings (or None) among tuned shapes}; no kernel is known for other strings."""
        every = {n: tuple(dict.fromkeys(s[n] for s in self.shapes)) for n in self.asked}
        return {n: v for n, v in every.items() if not any(is_number(x) or isinstance(x, bool) for x in v)}

    def index(self, **parameters: object) -> int:
        """Number of the kernel for a shape: from the table of tuned shapes, else from the tree.

        Raises DeclarationError for parameters that are missing, unknown or outside what was tuned.
        """
        unknown = [n for n in parameters if n not in self.shapes[0]]
        missing = [n for n in self.asked if n not in parameters]
        if unknown or missing:
            words = f"has no parameter {unknown[0]!r}" if unknown else f"needs {', '.join(missing)}"
            hint = f"choose({', '.join(f'{n}=…' for n in self.asked)})"
            raise refuse(DeclarationError, "shapes.parameters", f"this choice of kernels {words}", hint=hint)
        for name, value in self.fixed.items():
            if parameters.get(name, value) != value:
                message = f"these kernels were tuned for {name}={value!r}, not for {shown(parameters[name])}"
                raise refuse(DeclarationError, "shapes.parameters", message)
        for name, tuned in self.words.items():
            if parameters[name] not in tuned:
                message = f"these kernels were tuned for {name} in {tuned!r}, not for {shown(parameters[name])}"
                raise refuse(DeclarationError, "shapes.parameters", message)
        for shape, kernel in zip(self.shapes, self.chosen, strict=True):
            if all(parameters[n] == shape[n] for n in self.asked):
                return kernel
        return follow(self.tree, parameters)

    def choose(self, **parameters: object) -> DispatchKernel:
        """The kernel for a shape given by keyword; raises DeclarationError for parameters missing, unknown or outside
        what was tuned.
        """
        return self.kernels[self.index(**parameters)]


def _check_plain(shapes: Sequence[Shape]) -> None:
    """Raise DeclarationError unless all shapes have the same parameters in one order, named by no keyword or reserved
    word, each a number, string, boolean or None, of one kind in all shapes.
    """
    for s in shapes:
        if list(s) != list(shapes[0]):
            message = f"the shapes have different parameters: {', '.join(shapes[0])} and {', '.join(s)}"
            raise refuse(DeclarationError, "shapes.parameters", message)
        for name, value in s.items():
            named = name.isidentifier() and not keyword.iskeyword(name) and name not in _RESERVED
            if not named or _sort(value) is None or _sort(value) != _sort(shapes[0][name]):
                message = f"{name} = {shown(value)} cannot be asked about: only numbers, words, or switches of one name"
                raise refuse(DeclarationError, "shapes.parameters", message)


def aligned(shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    """The shapes with all parameters in each: a missing one becomes False, 0 or None, by its type elsewhere.

    Raises DeclarationError ``shapes.parameters`` for values that are no finite numbers, strings, booleans or None, for
    one parameter of several types, and for names that are no identifiers.
    """
    nothing = {"switch": False, "number": 0, "word": None}
    names: dict[str, Any] = {}
    for s in shapes:
        for name, value in s.items():
            names.setdefault(name, nothing.get(_sort(value) or ""))
    made = [{n: s.get(n, absent) for n, absent in names.items()} for s in shapes]
    _check_plain(made)
    return made


def _sort(value: object) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    sorts = ((bool, "switch"), (int | float, "number"), (str | None, "word"))
    return next((name for kind, name in sorts if isinstance(value, kind)), None)


def tree_json(node: Node) -> dict[str, object]:
    """A tree as nested dicts for JSON."""
    if isinstance(node, Leaf):
        return {"kernel": node.kernel}
    test = "<=" if is_number(node.value) else "=="
    return {"if": [node.name, test, node.value], "then": tree_json(node.yes), "else": tree_json(node.no)}
