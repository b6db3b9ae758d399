"""Enumerates the legal configurations of a space, pruning by constraints as soon as their knobs are fixed.

Knobs are fixed one after another, with all partial configurations as rows of one matrix. A constraint is evaluated as
soon as the knobs it reads are fixed, once per combination of those knobs; the knobs are observed, not declared (similar
to ATF's chain of trees: Rasch et al., TACO 2021). In spaces too large to list, knobs read by the same constraint are
fixed consecutively; if a sample has few legal configurations, more are found by small changes of these.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorir.errors import DeclarationError, TensorIRError, refuse
from tensorir.errors.spelling import nearest

_end: ContextVar[float] = ContextVar("_end", default=math.inf)


@contextlib.contextmanager
def listed_until(end: float | None) -> Iterator[None]:
    """Context manager: enumerations of legal configurations inside must end by time ``end`` (``time.monotonic``; None
    for no limit), checked between constraint calls.

    Raises DeclarationError ``space.constraint-slow``.
    """
    before = _end.set(math.inf if end is None else end)
    try:
        yield
    finally:
        _end.reset(before)


Predicate = Callable[[Mapping[str, Any]], object]
Rows = npt.NDArray[np.int32]

EXACT_LIMIT = 2_000_000  # partial configurations side by side; beyond it they are sampled
SAMPLE_ROWS = 200_000
PARTIAL_CONFIGURATIONS = 512  # partial configurations that show whether a constraint says anything of all of them
FEW_LEGAL = 20_000  # legal ones of a sample below which more are looked for,
SEARCH_STEPS = 150_000  # with so many steps


@dataclass(frozen=True)
class Legal:
    """Result of an enumeration: legal configurations, and how many each constraint refused.

    rows:     value indices in the order of the declaration (last knob fastest)
    removed:  per constraint, the configurations that it was the first to refuse
    total:    legal configurations in all
    sampled:  True when ``rows`` is only a part of the legal configurations; the counts are estimates then
    tried:    configurations that were looked at one by one, of a sample
    """

    rows: Rows
    removed: dict[str, int]
    total: int
    sampled: bool
    tried: int = 0


class _Wait(BaseException):  # not an Exception: a constraint's own `except` must not catch it
    """A constraint read a knob that is not fixed yet."""

    def __init__(self, knob: int) -> None:
        self.knob = knob


class _Grow(_Wait):
    """A constraint read a fixed knob not known to matter to it."""


class _Partial(Mapping[str, Any]):
    """A configuration with some knobs fixed; reading another raises _Wait."""

    def __init__(self, position: dict[str, int], known: dict[int, Any], depth: int) -> None:
        self._position, self._known, self._depth = position, known, depth

    def __getitem__(self, name: str) -> Any:
        knob = self._position[name]
        if knob in self._known:
            return self._known[knob]
        raise _Grow(knob) if knob < self._depth else _Wait(knob)

    def __iter__(self) -> Iterator[str]:
        return iter(self._position)

    def __len__(self) -> int:
        return len(self._position)


class _Rule:
    """One constraint during enumeration, with the knobs it was observed to read.

    Memoizes its decision for each combination of these knobs.
    """

    def __init__(self, name: str, predicate: Predicate, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self.name, self.predicate, self.values = name, predicate, values
        self.position = {n: j for j, n in enumerate(names)}
        self.reads: set[int] = set()
        self.waits_for: set[int] = set()  # knobs that undecided configurations stopped at

    def keeps(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        """Mask of the partial configurations ``rows`` not refused; None if the knob fixed last is not one it
        waits for.
        """
        depth = rows.shape[1]
        if depth and depth - 1 not in self.waits_for:
            return None
        if (
            depth < len(self.values)
            and len(rows) > 4 * PARTIAL_CONFIGURATIONS
            and self._learnt(rows[:: len(rows) // PARTIAL_CONFIGURATIONS]).all()
        ):
            self.waits_for.add(len(self.values) - 1)  # at the latest
            return None
        return self._learnt(rows)

    def _learnt(self, rows: Rows) -> npt.NDArray[np.bool_]:
        while True:
            try:
                return self._judge(rows)
            except _Grow as more:
                self.reads.add(more.knob)

    def _judge(self, rows: Rows) -> npt.NDArray[np.bool_]:
        depth = rows.shape[1]
        columns = sorted(j for j in self.reads if j < depth)
        distinct, inverse = _distinct(rows[:, columns], [len(self.values[j]) for j in columns])
        waits: set[int] = set()
        verdicts = np.ones(len(distinct), dtype=bool)
        for n, index in enumerate(distinct.tolist()):
            self._in_time(n, len(distinct))
            known = {j: self.values[j][i] for j, i in zip(columns, index, strict=True)}
            view = _Partial(self.position, known, depth)
            try:
                verdicts[n] = bool(self.predicate(view))
            except _Grow:
                raise
            except _Wait as stop:
                waits.add(stop.knob)
            except Exception as error:
                # another constraint, undecided as yet, may exclude the case: complain about complete ones only
                if depth < len(self.values):
                    waits.add(len(self.values) - 1)
                else:
                    raise self._raised(error, known) from error
        self.waits_for = waits
        return np.asarray(verdicts[inverse])

    def _in_time(self, done: int, count: int) -> None:
        if time.monotonic() < _end.get():
            return
        message = f"constraint {self.name!r} had answered for {done} of {count} combinations when the budget ended"
        hint = "a constraint that does less, or a longer budget"
        raise refuse(DeclarationError, "space.constraint-slow", message, hint=hint)

    def _raised(self, error: Exception, known: dict[int, Any]) -> TensorIRError:
        if isinstance(error, TensorIRError):
            return error
        names = list(self.position)
        if isinstance(error, KeyError) and error.args and error.args[0] not in self.position:
            near = nearest(str(error.args[0]), names)
            message = f"constraint {self.name!r} reads knob {error.args[0]!r}, which does not exist"
            return refuse(DeclarationError, "space.unknown-knob", message, hint=near[0] if near else ", ".join(names))
        case = ", ".join(f"{names[j]}={v!r}" for j, v in sorted(known.items()))
        message = f"constraint {self.name!r} raised {type(error).__name__}: {error} for {case or 'every configuration'}"
        hint = "a constraint answers True or False for every combination of values"
        return refuse(DeclarationError, "space.constraint-raised", message, hint=hint)


def enumerate_legal(
    names: Sequence[str],
    values: Sequence[Sequence[object]],
    where: Mapping[str, Predicate],
    *,
    limit: int = EXACT_LIMIT,
    start: Sequence[int] | None = None,
) -> Legal:
    """Rows of value indices accepted by every constraint of ``where``, in order; a sample, the same at every call, if
    that takes more than ``limit`` partial configurations at once.

    start: a legal row, from which to find others where a sample has few

    Raises DeclarationError: ``space.constraint-raised``, ``space.unknown-knob``, ``space.constraint-slow``; errors of
    this package that a constraint raises pass through.
    """
    order = list(range(len(names)))
    if math.prod(map(len, values)) > limit:
        order = _together(names, values, where)
    found = _enumerated([names[j] for j in order], [values[j] for j in order], where, limit)
    rows = found.rows[:, np.argsort(order)]
    if found.sampled:
        if start is not None:
            rows = np.concatenate([rows, np.array([start], dtype=np.int32)])
        few = min(FEW_LEGAL, limit // 10)
        if 0 < len(rows) < few:
            rows = _grown(rows, names, values, where, few)
    if found.sampled or order != sorted(order):
        rows = np.unique(rows, axis=0)  # in the order of the declaration
    return replace(found, rows=rows, total=max(found.total, len(rows)))


def _together(
    names: Sequence[str], values: Sequence[Sequence[Any]], where: Mapping[str, Predicate], looks: int = 8
) -> list[int]:
    """Order of knobs (as their numbers) in which constraints have all knobs they read as early as possible.

    looks: random configurations on which each constraint is observed
    """
    rng = np.random.default_rng(0)
    reads: list[set[int]] = []
    for predicate in where.values():
        view = _Watched(names, values)
        for _ in range(looks):
            view.row = [int(rng.integers(len(v))) for v in values]
            with contextlib.suppress(Exception):  # said when it happens to a configuration that the others accept
                predicate(view)
        reads.append(view.read)
    order: list[int] = []
    while any(reads):
        some = min(filter(None, reads), key=lambda r: (math.prod(len(values[j]) for j in r), sorted(r)))
        order += sorted(some)
        reads = [r - set(order) for r in reads]
    return [*order, *(j for j in range(len(names)) if j not in set(order))]


class _Watched(Mapping[str, Any]):
    """A configuration that records which knobs are read."""

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[Any]]) -> None:
        self._position, self._values = {n: j for j, n in enumerate(names)}, values
        self.row: list[int] = []
        self.read: set[int] = set()

    def __getitem__(self, name: str) -> Any:
        knob = self._position[name]
        self.read.add(knob)
        return self._values[knob][self.row[knob]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._position)

    def __len__(self) -> int:
        return len(self._position)


def _grown(
    rows: Rows, names: Sequence[str], values: Sequence[Sequence[Any]], where: Mapping[str, Predicate], most: int
) -> Rows:
    """Further legal rows found by deterministic changes of one or two knobs of known ones.

    Two, since under a constraint on a product or sum no single knob can change.
    """
    rng = np.random.default_rng(0)
    known = dict.fromkeys(map(tuple, rows.tolist()))
    each = list(known)
    free = [j for j, v in enumerate(values) if len(v) > 1]
    view = _Watched(names, values)
    from_, knobs, drawn = rng.random(SEARCH_STEPS), rng.random((SEARCH_STEPS, 2)), rng.random((SEARCH_STEPS, 2))
    for n in range(SEARCH_STEPS if free else 0):
        row = list(each[int(from_[n] * len(each))])
        for knob, value in zip(knobs[n, : 2 - (n % 4 == 0)], drawn[n], strict=False):
            j = free[int(knob * len(free))]
            row[j] = int(value * len(values[j]))
        made = tuple(row)
        if made not in known:
            view.row = row
            if accepted(view, where):
                known[made] = None
                each.append(made)
                if len(each) == most:
                    break
    return np.array(each, dtype=np.int32).reshape(len(each), len(names))


def around(
    row: Sequence[int],
    names: Sequence[str],
    values: Sequence[Sequence[object]],
    where: Mapping[str, Predicate],
    pairs: int,
) -> Rows:
    """All legal rows that differ from ``row`` in one knob, then those of some random changes of two knobs that are
    legal; rows may occur twice, and ``row`` among them.

    pairs: number of two-knob changes tried, deterministic per row
    """
    free = [j for j, v in enumerate(values) if len(v) > 1]
    changes: list[tuple[tuple[int, int], ...]] = [((j, i),) for j in free for i in range(len(values[j])) if i != row[j]]
    rng = np.random.default_rng([pairs, *map(int, row)])
    for _ in range(pairs if len(free) > 1 else 0):
        two = rng.choice(free, 2, replace=False)
        changes.append(tuple((int(j), int(rng.integers(len(values[j])))) for j in two))
    view, found = _Watched(names, values), list[list[int]]()
    for change in changes:
        view.row = list(map(int, row))
        for j, i in change:
            view.row[j] = i
        if accepted(view, where):
            found.append(view.row)
    return np.array(found, dtype=np.int32).reshape(len(found), len(names))


def accepted(config: Mapping[str, object], where: Mapping[str, Predicate]) -> bool:
    """True if every constraint accepts ``config``; a constraint that raises refuses it."""
    try:
        return all(predicate(config) for predicate in where.values())
    except Exception:  # it would have been said of a configuration that was drawn
        return False


def _enumerated(
    names: Sequence[str], values: Sequence[Sequence[Any]], where: Mapping[str, Predicate], limit: int
) -> Legal:
    rules = [_Rule(n, p, names, values) for n, p in where.items()]
    rng = np.random.default_rng(0)  # the same sample at every start: row numbers stay comparable
    sizes = [len(v) for v in values]
    rows: Rows = np.zeros((1, 0), dtype=np.int32)
    removed = dict.fromkeys(where, 0)
    sampled, stands_for = False, 1.0  # configurations that one sampled partial configuration stands for
    tried, few = 0, min(SAMPLE_ROWS, limit)
    for depth in range(len(sizes) + 1):
        if depth:
            if len(rows) * sizes[depth - 1] > (few if sampled else limit):
                keep = min(len(rows), max(1, few // sizes[depth - 1]))
                stands_for *= len(rows) / keep
                rows, sampled = rows[np.sort(rng.choice(len(rows), keep, replace=False))], True
            rows = _extend(rows, sizes[depth - 1])
        tried = max(tried, len(rows)) if sampled else 0
        for rule in rules:
            mask = rule.keeps(rows)
            if mask is not None and not mask.all():
                gone = int((~mask).sum()) * math.prod(sizes[depth:])
                removed[rule.name] += round(gone * stands_for) if sampled else gone
                rows = rows[mask]
    total = round(len(rows) * stands_for) if sampled else len(rows)
    return Legal(rows, removed, total, sampled, tried)


def _extend(rows: Rows, size: int) -> Rows:
    """Every row with each of ``size`` indices appended."""
    out = np.empty((len(rows) * size, rows.shape[1] + 1), dtype=np.int32)
    out[:, :-1] = np.repeat(rows, size, axis=0)
    out[:, -1] = np.tile(np.arange(size, dtype=np.int32), len(rows))
    return out


def _distinct(rows: Rows, sizes: list[int]) -> tuple[Rows, npt.NDArray[np.int64]]:
    """(distinct rows, for each row its index among these).

    sizes: number of values in each column
    """
    if not sizes:
        return np.zeros((min(len(rows), 1), 0), dtype=np.int32), np.zeros(len(rows), dtype=np.int64)
    if math.prod(sizes) >= 2**62:
        some, inverse = np.unique(rows, axis=0, return_inverse=True)
        return some, inverse.reshape(-1)
    code = codes(rows, sizes)
    unique, inverse = np.unique(code, return_inverse=True)
    some = np.stack(np.unravel_index(unique, sizes), axis=1).astype(np.int32)
    return some, inverse.reshape(-1)


def codes(rows: np.ndarray, sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Each row as one integer (mixed radix, last column fastest), in row order."""
    code = np.zeros(len(rows), dtype=np.int64)
    for j, size in enumerate(sizes):
        code = code * size + rows[:, j]
    return code
