"""``Space``: declared knobs with values and named constraints, enumerable before anything runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, refuse
from tensorir.errors.habits import answering, answers
from tensorir.errors.handles import Handle
from tensorir.errors.needs import need_int, need_list, need_mapping, shown
from tensorir.errors.shown import Shown, few_lines
from tensorir.errors.spelling import nearest
from tensorir.errors.text_expr import KEYWORDS
from tensorir.tune.legal import EXACT_LIMIT, Legal, Predicate, accepted, around, codes, enumerate_legal
from tensorir.tune.pool import Features
from tensorir.tune.restrict import parse

Config = dict[str, Any]
Expected = Callable[[Mapping[str, Any]], float]
"""Function from a configuration to its expected seconds."""
MAX_VALUES = 1 << 20
"""Maximum number of values of one knob."""
MAX_PERMUTED = 8
"""Maximum number of things whose orders are listed: eight have 40,320."""
LONGEST_INT = 2048  # bits; Python and JSON readers stop at some number of digits


@answering(DeclarationError)
class Space(Handle, Shown):
    """``Space(tile=[1, 2, 4], mode=["row", "col"], where={"fits": lambda c: c["tile"] < 4})``.

    A knob's values are ints, floats, words, booleans, None or tuples of these; a configuration maps every
    knob to one of its values. ``where`` names predicates on configurations (anything readable like a dict);
    they must depend on the configuration alone. ``default`` is the configuration to start from; without it,
    the first legal one. Spaces never change: ``restrict``, ``pin``, ``when`` and the others return new ones.

    Raises DeclarationError: ``space.knob-name``, ``space.knob-values``, ``space.reserved-knob``, ``space.constraint``,
    ``space.default-illegal``. Whether any configuration is legal shows at the first use of ``legal``.
    """

    def __init__(
        self,
        *,
        where: Mapping[str, Predicate] | None = None,
        default: Mapping[str, object] | None = None,
        **knobs: Iterable[Any],
    ) -> None:
        for keyword, given in (("where", where), ("default", default)):
            if given is not None and not isinstance(given, Mapping):
                message = f"{keyword}= is a dict, not {type(given).__name__}; no knob can be called {keyword!r}"
                raise refuse(DeclarationError, "space.reserved-knob", message, hint=f"{keyword}_ = …")
        self.names: tuple[str, ...] = tuple(_name(n) for n in knobs)
        self.values: tuple[tuple[Any, ...], ...] = tuple(_values(n, v) for n, v in knobs.items())
        self.where: dict[str, Predicate] = dict(need_mapping("where", where or {}))
        for name, predicate in self.where.items():
            if not callable(predicate):
                message = f"constraint {name!r} is {shown(predicate)}, not a function of a configuration"
                raise refuse(DeclarationError, "space.constraint", message, hint=f'where={{"{name}": lambda c: …}}')
        self._position = [{v: i for i, v in enumerate(vs)} for vs in self.values]
        # not functools.cached_property: its frame would be taken for the user's line in errors
        self._listed: Legal | None = None
        self._keys: npt.NDArray[Any] | None = None
        self._more: dict[int, int] = {}  # rows that were listed later, by code
        self.expected_s: Expected | None = None
        self.features: Features | None = None
        self.conditional = False  # knobs mean something under a condition only (``when``)
        self._default: Config | None = None if default is None else self._checked_default(default)

    # -- counting and listing

    @property
    def size(self) -> int:
        """Configurations in the full product, legal or not."""
        return math.prod(len(v) for v in self.values)

    @property
    def legal(self) -> npt.NDArray[np.int32]:
        """The legal configurations, one row of value indices each, last knob fastest; read-only.

        Found on first use. Constraints prune as soon as the knobs they read are fixed, so what counts is the
        number of partial configurations, not the product; beyond 2 million of them the rows are a sample and
        ``sampled`` is True. Where few are legal, others are looked for around those that were drawn and the default.
        Of a sample, a search may list more, after the others, whose numbers stay (``list_around``, ``admit``).

        Raises DeclarationError ``space.empty`` if there are none, ``space.constraint-raised`` if a constraint fails.
        """
        return self._found.rows

    @property
    def configs(self) -> npt.NDArray[np.int32]:
        """Another name of ``legal``."""
        return self.legal

    @property
    def sampled(self) -> bool:
        """True if ``legal`` holds only a part of the legal configurations."""
        return self._found.sampled

    @property
    def default(self) -> Config:
        """The configuration to start from: the declared one (after ``restrict`` or ``pin`` if still legal), else the
        first legal one.
        """
        return self.config(0) if self._default is None else dict(self._default)

    def config(self, row: int) -> Config:
        """The configuration of one row of ``legal``; raises DeclarationError ``argument.value`` for other numbers."""
        return self._at(self.legal[need_int("row", row, 0, len(self.legal) - 1)])

    def index(self, config: Mapping[str, object]) -> int:
        """The row of ``legal`` that holds ``config`` (as it is or as JSON returned it); -1 if it is illegal or not
        listed.
        """
        code = self._quick(config)
        if code is None:
            try:
                code = self._code(self._indices(config))
            except DeclarationError:
                return -1
        return self._more[code] if code in self._more else self._drawn(code)

    def rows(self, configs: Sequence[Mapping[str, object]]) -> list[int]:
        """Row of ``legal`` for each configuration; -1 if it is illegal or not listed."""
        for n, config in enumerate(need_list("configs", configs, "dicts")):
            if not isinstance(config, Mapping):
                need_mapping(f"configs[{n}]", config)
        known, wanted = self._codes(), self._quick_codes(configs)
        if known.dtype == object or not len(known) or wanted is None:
            return [self.index(config) for config in configs]
        found = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        hits = zip(found.tolist(), (known[found] == wanted).tolist(), configs, strict=True)
        return [row if hit else self.index(config) for row, hit, config in hits]

    def admit(self, config: Mapping[str, object]) -> int:
        """Row of ``config`` in ``legal``; -1 if illegal. A legal one that a sampled space has not listed is
        appended.
        """
        row = self.index(config)
        if row >= 0 or not self.sampled:
            return row
        try:
            indices = self._indices(config)
        except DeclarationError:
            return -1
        if accepted(self._at(indices), self.where):
            self._list_more(np.array([indices], dtype=np.int32))
        return self.index(config)

    def list_around(self, row: int, pairs: int = 0) -> None:
        """Append to ``legal``, where that is a sample, the legal configurations that differ from a row in one knob; no
        effect where it is complete.

        pairs: changes of two knobs that are looked at as well, at random
        """
        if self.sampled:
            self._list_more(around(self.legal[row].tolist(), self.names, self.values, self.where, pairs))

    def explain(self) -> str:
        """Number of configurations, and of those that each constraint removed, as text; also for an empty space."""
        try:
            found = self._found
        except DeclarationError as error:
            if error.code != "space.empty":
                raise
            found = self._search()
        knobs = " x ".join(f"{n} {len(v)}" for n, v in zip(self.names, self.values, strict=True))
        lines = [f"{self.size} configurations ({knobs or 'no knobs'}), {found.total} legal"]
        if found.sampled:
            lines[0] += f" (estimated: too many to list, {len(found.rows)} of them were drawn)"
        width = max(map(len, self.where), default=0)
        lines += [f"  {n:{width}}  removes {found.removed[n]}" for n in self.where]
        if len(self.where) > 1:
            lines.append("  (a configuration that several constraints refuse counts for the first that could tell)")
        return "\n".join(lines)

    # -- new spaces

    def restrict(self, condition: str) -> Space:
        """Only the configurations that satisfy a condition such as ``"tile <= 4 and mode in ('row', 'col')"``.

        The text is never executed (``tensorir.tune.restrict``). Raises DeclarationError: ``space.restrict-grammar``,
        ``space.restrict-type``, ``space.unknown-knob``, ``space.empty`` if none is left.
        """
        predicate = parse(condition, self.names)
        label = f"restrict {condition}" if len(condition) <= 60 else f"restrict {condition[:57]}…"
        while label in self.where:
            label += "'"
        return self._derived(self.values, {**self.where, label: predicate})

    def pin(self, **knobs: object) -> Space:
        """Only the configurations in which these knobs have these values.

        Raises DeclarationError: ``space.unknown-knob``, ``space.unknown-value``, ``space.empty`` if none is left.
        """
        chosen = {j: self._value_index(j, v) for j, v in ((self._knob(n), v) for n, v in knobs.items())}
        values = tuple((vs[chosen[j]],) if j in chosen else vs for j, vs in enumerate(self.values))
        return self._derived(values, self.where)

    def when(self, **conditions: Predicate) -> Space:
        """The same space with conditional knobs: ``when(depth=lambda c: c["staged"])``, ``depth`` matters only if
        staged.

        Where the condition fails, the knob has its first value, so that each schedule is one configuration.
        Restricting or pinning the knob to another value keeps only configurations in which it matters.
        """
        where = dict(self.where)
        for name, condition in conditions.items():
            first = self.values[self._knob(name)][0]
            if not callable(condition):
                message = f"the condition of {name!r} is {shown(condition)}, not a function of a configuration"
                raise refuse(DeclarationError, "space.constraint", message, hint=f"when({name}=lambda c: …)")
            where[f"{name} is {first!r} where it means nothing"] = _used_or(name, first, condition)
        new = self._derived(self.values, where)
        new.conditional = True
        return new

    def describing(self, features: Features | None) -> Space:
        """The same space with numbers derived from a configuration, for the search's model to learn from.

        features: ``lambda c: [threads, bytes of shared memory, …]``, always as many numbers; None for none
        """
        if features is not None and not callable(features):
            message = f"{shown(features)} is not a function of a configuration"
            raise refuse(DeclarationError, "space.features", message, hint='describing(lambda c: [c["x"] * c["y"]])')
        new = copy(self)
        new.features = features
        return new

    def expecting(self, seconds: Expected | None) -> Space:
        """The same space with a model: ``seconds(config)`` is the time that a configuration is expected to take.

        What is legal stays as it is. The search tries first what is expected to be fast and last what is expected to be
        hopeless; None for no model.
        """
        new = copy(self)
        new.expected_s = seconds
        return new

    # -- configurations from outside

    def canonical(self, config: Mapping[str, object]) -> Config:
        """``config`` with exactly the declared names and values: undoes what JSON did (tuples became lists).

        Constraints are not checked. Raises DeclarationError: ``space.missing-knob``, ``space.unknown-knob``,
        ``space.unknown-value``.
        """
        return self._at(self._indices(config))

    def accept(self, config: Mapping[str, object]) -> Config:
        """``config`` with exactly the declared names and values (``canonical``), if every constraint accepts it.

        Raises DeclarationError ``space.illegal`` naming the constraints that refuse it, and those of ``canonical``.
        """
        made = self.canonical(config)
        if not accepted(made, self.where):
            broken = ", ".join(map(repr, self._refusals(made)))
            said = ", ".join(f"{n}={v!r}" for n, v in made.items())
            raise refuse(DeclarationError, "space.illegal", f"{broken} refuses {said[:400]}", hint=self._near(made))
        return made

    # -- inside

    @property
    def _found(self) -> Legal:
        if self._listed is None:
            self._listed = self._list()
        return self._listed

    def _list(self) -> Legal:
        found = self._search()
        if not len(found.rows) and found.sampled:
            message = f"{self.size} configurations are too many to list, and none of {found.tried} drawn is legal"
            hint = "a default=…, from which others are found, or knobs with fewer values"
            raise refuse(DeclarationError, "space.empty", message, hint=hint)
        if not len(found.rows):
            worst = max(found.removed, key=lambda n: found.removed[n])
            message = (
                f"none of {self.size} configurations is legal; constraint {worst!r} removes {found.removed[worst]}"
            )
            raise refuse(DeclarationError, "space.empty", message, hint=f"relax {worst!r}; space.explain() counts all")
        found.rows.setflags(write=False)
        return found

    def _search(self) -> Legal:
        start = None if self._default is None else self._indices(self._default)
        return enumerate_legal(self.names, self.values, self.where, start=start)

    def _codes(self) -> npt.NDArray[Any]:
        """Sorted integer keys of the legal rows: their value indices as digits of one number."""
        if self._keys is None:
            if self.size < 2**62:
                self._keys = codes(self.legal, [len(v) for v in self.values])
            else:
                self._keys = np.array([self._code(tuple(row)) for row in self.legal.tolist()], dtype=object)
        return self._keys

    def _list_more(self, rows: npt.NDArray[np.int32]) -> None:
        """Append rows of value indices, those not yet listed, to a sampled space."""
        self._codes()
        found, more, listed = self._found, dict(self._more), list[int]()
        for n, indices in enumerate(rows.tolist()):
            code = self._code(tuple(indices))
            if code not in more and self._drawn(code) < 0:
                more[code] = len(found.rows) + len(listed)
                listed.append(n)
        if listed:
            legal = np.concatenate([found.rows, rows[listed]])
            legal.setflags(write=False)
            self._listed, self._more = replace(found, rows=legal, total=max(found.total, len(legal))), more

    def _drawn(self, code: int) -> int:
        known = self._codes()
        n = int(np.searchsorted(known, code))
        return n if n < len(known) and known[n] == code else -1

    def _quick(self, config: Mapping[str, object]) -> int | None:
        """Integer key of a configuration that is a dict with exactly the declared knobs and values; None for others."""
        if type(config) is not dict or len(config) != len(self.names):
            return None
        code = 0
        try:
            for name, position in zip(self.names, self._position, strict=True):
                code = code * len(position) + position[config[name]]
        except (KeyError, TypeError):
            return None
        return code

    def _quick_codes(self, configs: Sequence[Mapping[str, object]]) -> npt.NDArray[np.int64] | None:
        """Integer keys of several configurations, computed by NumPy; None if one of them has other knobs or values."""
        if self.size >= 2**62 or any(len(config) != len(self.names) for config in configs):
            return None
        made = np.zeros(len(configs), dtype=np.int64)
        try:
            for name, position in zip(self.names, self._position, strict=True):
                values: Iterable[Any] = map(itemgetter(name), configs)
                if any(isinstance(value, tuple) for value in position):
                    values = map(_frozen, values)
                places = np.fromiter(map(position.__getitem__, values), np.int64, len(configs))
                made = made * len(position) + places
        except (KeyError, TypeError):
            return None
        return made

    def _code(self, indices: tuple[int, ...]) -> int:
        code = 0
        for index, values in zip(indices, self.values, strict=True):
            code = code * len(values) + int(index)
        return code

    def _at(self, indices: Iterable[int]) -> Config:
        return {n: v[int(i)] for n, v, i in zip(self.names, self.values, indices, strict=True)}

    def _indices(self, config: Mapping[str, object]) -> tuple[int, ...]:
        config = need_mapping("config", config)
        for name in config:
            self._knob(name)
        missing = [n for n in self.names if n not in config]
        if missing:
            message = f"the configuration says nothing about {', '.join(missing)}"
            raise refuse(DeclarationError, "space.missing-knob", message, hint=f"one of {self.values_text(missing[0])}")
        return tuple(self._value_index(j, config[n]) for j, n in enumerate(self.names))

    def values_text(self, name: str) -> str:
        """Values of one knob as text, for messages."""
        return ", ".join(map(repr, self.values[self._knob(name)]))

    def _knob(self, name: str) -> int:
        if not isinstance(name, str) or name not in self.names:
            near = nearest(str(name), self.names)
            hint = near[0] if near else f"one of {', '.join(self.names)}" if self.names else ""
            raise refuse(DeclarationError, "space.unknown-knob", f"there is no knob {shown(name)}", hint=hint)
        return self.names.index(name)

    def _value_index(self, knob: int, value: Any) -> int:
        try:
            found = self._position[knob].get(_frozen(value))
        except TypeError:  # not hashable: nothing that was declared
            found = None
        if found is None:
            message = f"{self.names[knob]} cannot be {shown(value)}"
            hint = f"one of {self.values_text(self.names[knob])}"
            raise refuse(DeclarationError, "space.unknown-value", message, hint=hint)
        return found

    def _near(self, config: Config) -> str:
        """Hint naming the knob changes that lead to the nearest legal configuration."""
        if self._listed is None and self.size > EXACT_LIMIT:
            return "space.config(row) gives the legal ones"
        same = self.legal == np.array(self._indices(config), np.int32)
        legal = self.config(int(same.sum(axis=1).argmax()))
        return ", ".join(f"{n}={v!r}" for n, v in legal.items() if v != config[n])

    def _checked_default(self, default: Mapping[str, object]) -> Config:
        config = self.canonical(default)
        broken = self._refusals(config)
        if broken:
            message = f"the default {config} is refused by {', '.join(map(repr, broken))}"
            raise refuse(DeclarationError, "space.default-illegal", message)
        return config

    def _refusals(self, config: Config) -> list[str]:
        one = [(v,) for v in config.values()]
        return [n for n, p in self.where.items() if not len(enumerate_legal(self.names, one, {n: p}).rows)]

    def _derived(self, values: tuple[tuple[Any, ...], ...], where: Mapping[str, Predicate]) -> Space:
        knobs: dict[str, Any] = dict(zip(self.names, values, strict=True))
        new = Space(where=where, **knobs)
        new.expected_s, new.features = self.expected_s, self.features
        new.conditional = self.conditional
        if self._default is not None:
            # a pinned knob moves the declared default with it, where that is legal
            wish = {
                n: self._default[n] if self._default[n] in vs else vs[0]
                for n, vs in zip(new.names, new.values, strict=True)
            }
            new._default = None if new._refusals(wish) else new.canonical(wish)
        _ = new.legal  # refuse an empty space now, at the caller's line
        return new

    def __repr__(self) -> str:
        parts = [f"{n}={list(v)!r}" for n, v in zip(self.names, self.values, strict=True)]
        parts += [f"where={{{', '.join(map(repr, self.where))}}}"] if self.where else []
        return few_lines(f"Space({', '.join(parts)})")


def _used_or(name: str, first: Any, condition: Predicate) -> Predicate:
    return lambda c: c[name] == first or bool(condition(c))


def _name(name: str) -> str:
    if not name.isidentifier() or name in KEYWORDS:
        message = f"a knob cannot be called {name!r}: conditions could not name it"
        raise refuse(DeclarationError, "space.knob-name", message, hint="letters, digits and _")
    return name


def _values(name: str, given: Iterable[Any]) -> tuple[Any, ...]:
    try:
        found = None if isinstance(given, str | bytes | Mapping) else list(islice(given, MAX_VALUES + 1))
    except TypeError:  # not iterable, or an array without axes
        found = None
    if found is None:
        message = f"the values of {name} are {shown(given)}, not a list"
        raise refuse(DeclarationError, "space.knob-values", message, hint=f"{name}=[{shown(given)}]")
    if len(found) > MAX_VALUES:
        message = f"{name} has more than {MAX_VALUES} values"
        raise refuse(DeclarationError, "space.knob-values", message, hint="powers_of_two(low, high), divisors(extent)")
    values = tuple(_frozen(v) for v in found)
    for value in values:
        if not _plain(value):
            message = f"{name} has the value {shown(value)}; a log cannot hold a {type(value).__name__} like that"
            raise refuse(
                DeclarationError, "space.knob-values", message, hint="ints, floats, words, booleans, None, tuples"
            )
    if not values or len(set(values)) < len(values):
        what = "has no values" if not values else "has a value twice (1, 1.0 and True are one value)"
        raise refuse(DeclarationError, "space.knob-values", f"{name} {what}: {list(values)!r}")
    return values


def _frozen(value: Any) -> Any:
    """``value`` with lists as tuples and NumPy numbers as Python's."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_plain(v) for v in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return value.bit_length() <= LONGEST_INT
    return value is None or isinstance(value, str)


@answers()
def powers_of_two(low: int, high: int) -> list[int]:
    """The powers of two from ``low`` to ``high``, both included: ``powers_of_two(4, 40)`` is ``[4, 8, 16, 32]``.

    Raises DeclarationError where there are none.
    """
    first, last = need_int("low", low, 1, 2**62), need_int("high", high, 1, 2**62)
    found = [2**n for n in range(63) if first <= 2**n <= last]
    if not found:
        message = f"there is no power of two from {first} to {last}"
        raise refuse(DeclarationError, "space.knob-values", message, hint=f"powers_of_two(1, {max(first, last)})")
    return found


@answers()
def divisors(extent: int, low: int = 1, high: int | None = None) -> list[int]:
    """The divisors of ``extent`` from ``low`` to ``high`` (``extent`` itself when None), in order.

    Tiles of these sizes leave no rest: ``divisors(28, high=14)`` is ``[1, 2, 4, 7, 14]``. Raises DeclarationError where
    there are none.
    """
    n, first = need_int("extent", extent, 1, 2**40), need_int("low", low, 1, 2**40)
    last = n if high is None else need_int("high", high, 1, 2**40)
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    found = [d for d in sorted({*small, *(n // d for d in small)}) if first <= d <= last]
    if not found:
        message = f"no divisor of {n} is from {first} to {last}"
        raise refuse(DeclarationError, "space.knob-values", message, hint=f"divisors({n}, high={n})")
    return found


@answers()
def permutations(things: Sequence[object]) -> list[tuple[object, ...]]:
    """All orders of up to eight different words or numbers, as tuples; a word is taken letter by letter.

    ``permutations("ij")`` is ``[("i", "j"), ("j", "i")]``. A search places orders by where they have each thing.
    Raises DeclarationError for more, and for things that are there twice.
    """
    given = tuple(things) if isinstance(things, str) else need_list("things", things, "words or numbers")
    plain = all(isinstance(x, (str, int, float)) for x in given)
    if not plain or not given or len(given) > MAX_PERMUTED or len(set(given)) < len(given):
        message = f"the orders of {shown(things)} cannot be listed: one to {MAX_PERMUTED} different words or numbers"
        raise refuse(DeclarationError, "space.knob-values", message, hint='permutations(["i", "j", "k"])')
    return list(itertools.permutations(given))
