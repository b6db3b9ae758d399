"""The advisor on fusions: for each pair of stages whether one kernel may compute both, what that saves, and what a
model of the device makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

from tensorir.automatic.counts import Counts, counts_of
from tensorir.automatic.facts import Graph
from tensorir.automatic.pairs import Pair, cut_out, pairs_of
from tensorir.automatic.plan import Refusal
from tensorir.automatic.ways import Way, finished, ways
from tensorir.errors import Problem, ScheduleError, TensorIRError
from tensorir.errors.handles import Value
from tensorir.errors.needs import need_choice, need_int, need_slice
from tensorir.errors.shown import Shown
from tensorir.expr.program import as_outputs
from tensorir.expr.tensor import Tensor
from tensorir.lower.pipeline import lower
from tensorir.schedule.schedule import BaseSchedule
from tensorir.target import Target
from tensorir.tune.ratio import Ratio

S = TypeVar("S", bound=BaseSchedule)

MODELLED_GAIN = 1.15
"""The modelled gain from which on a fusion is recommended: of pairs that gain less by the model, some have lost."""
LEAST_S = 3e-6
"""The modelled seconds that a recommended fusion saves at least: of less the scatter of a launch decides."""
MEASURED_GAIN = 1.02
"""The measured gain from which on a fusion is recommended, where it was measured."""


@dataclass(frozen=True, repr=False)
class Fusion(Value, Shown, Generic[S]):
    """One kernel for a pair of stages, in place of the kernels that each stage has alone.

    kind, first, second: "vertical" (the second stage reads what the first one makes) or "horizontal", and the stages
    ways:     modelled seconds of each legal way, by the name of the primitive or of the rule that makes it
    refused:  what each other way was refused for
    untaken:  what rules offered for the legal ways as well, and why each was not taken
    before, after: counts of the kernels of the pair, with modelled ``seconds``
    measured: seconds before over seconds after, on a device, with their interval; None where nothing was measured
    """

    kind: str
    first: str
    second: str
    ways: Mapping[str, float]
    refused: Mapping[str, Problem]
    before: Counts
    after: Counts | None
    measured: Ratio | None = None
    untaken: tuple[str, ...] = ()
    _made: Callable[[str, str], S] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Fusion of {self.first} and {self.second}: {self.verdict}>"

    @property
    def legal(self) -> bool:
        """True when some way is legal."""
        return self.after is not None

    @property
    def way(self) -> str:
        """The legal way that is modelled to be fastest; "" where none is."""
        return min(self.ways, key=lambda name: self.ways[name], default="")

    @property
    def problem(self) -> Problem | None:
        """Why it is not legal: what the last way was refused for."""
        return None if self.legal else next(reversed([*self.refused.values()]), None)

    @property
    def code(self) -> str:
        """The code of ``problem``; "" where it is legal."""
        return self.problem.code if self.problem else ""

    @property
    def saved_bytes(self) -> int:
        """Bytes that kernels no longer read and write, each array counted once a kernel; less than 0 where more."""
        return self.before.nbytes - self.after.nbytes if self.after else 0

    @property
    def gain(self) -> float:
        """Modelled seconds before over those after; 0 where it is not legal."""
        return self.before.seconds / self.after.seconds if self.after else 0.0

    @property
    def saved_s(self) -> float:
        """Modelled seconds that it saves."""
        return self.before.seconds - self.after.seconds if self.after else 0.0

    @property
    def launch_bound(self) -> bool:
        """True when most of what it saves is a launch: larger arrays would gain less, and so do launches in a queue."""
        if self.after is None or self.saved_s <= 0:
            return False
        return self.before.launch_s - self.after.launch_s > 0.5 * self.saved_s

    @property
    def recommended(self) -> bool:
        """True when it is worth doing: by what was measured, else by the model."""
        if self.measured is not None:
            return self.measured.value >= MEASURED_GAIN and self.measured.low >= 1.0
        return self.gain >= MODELLED_GAIN and self.saved_s >= LEAST_S

    @property
    def verdict(self) -> str:
        """The advice, and its reason, in a few words."""
        if self.problem:
            return f"[{self.problem.code}] {self.problem.message.splitlines()[0]}"
        if not self.legal:
            return "no way is known"
        if not self.recommended:
            return "saves a launch: measure it" if self.launch_bound else "leave them apart"
        return f"{self.way}: gains a launch, at this size" if self.launch_bound else self.way

    def json(self) -> dict[str, Any]:
        """All of it as data."""
        told: dict[str, Any] = {
            "first": self.first,
            "second": self.second,
            "kind": self.kind,
            "legal": self.legal,
            "way": self.way,
        }
        told |= {"code": self.code, "reason": self.problem.message if self.problem else "", "ways": dict(self.ways)}
        told |= {"saved_bytes": self.saved_bytes, "before_s": self.before.seconds, "gain": self.gain}
        told |= {"after_s": self.after.seconds if self.after else None, "launch_bound": self.launch_bound}
        measured = self.measured and [self.measured.low, self.measured.value, self.measured.high]
        return told | {"measured": measured, "recommended": self.recommended, "untaken": list(self.untaken)}

    def schedule(self, way: str = "") -> S:
        """A schedule of all outputs with this fusion, and every other stage in a kernel of its own, to continue from.

        way: another one of ``ways``;  raises what it was refused for
        """
        return self._schedule("whole", way)

    def pair(self, fused: bool = True, way: str = "") -> S:
        """The schedule of the two stages alone, what they read being given: what is modelled and measured."""
        return self._schedule("alone", way) if fused else self._made_by("alone", "")

    def _schedule(self, which: str, way: str) -> S:
        name = way or self.way
        problem = self.refused.get(name, self.problem)
        if name not in self.ways and problem:
            raise ScheduleError(problem)
        need_choice("way", name, [*self.ways], ScheduleError)
        return self._made_by(which, name)

    def _made_by(self, which: str, name: str) -> S:
        assert self._made is not None
        return self._made(which, name)


class Fusions(Value, Sequence[Fusion[S]], Shown):
    """The fusions of a graph, those that save most by the model first, and the illegal ones last."""

    def __init__(self, rows: Sequence[Fusion[S]], target: Target) -> None:
        order = sorted(rows, key=lambda r: (not r.legal, -r.saved_s))
        self.rows, self.target = tuple(order), target

    @overload
    def __getitem__(self, at: int) -> Fusion[S]: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Fusion[S], ...]: ...

    def __getitem__(self, at: int | slice) -> Fusion[S] | tuple[Fusion[S], ...]:
        if not isinstance(at, slice):
            return self.rows[need_int("at", at, -len(self), len(self) - 1)]
        return tuple(self.rows[n] for n in need_slice(at, len(self), ScheduleError))

    def __iter__(self) -> Iterator[Fusion[S]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        worth = sum(r.recommended for r in self.rows)
        return f"<Fusions: {len(self)} pairs, {sum(r.legal for r in self.rows)} legal, {worth} recommended>"

    def __str__(self) -> str:
        lines = [HEADER, *(cells(r) for r in self.rows)]
        widths = [max(len(line[n]) for line in lines) for n in range(len(HEADER))]
        return "\n".join("  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in lines)


HEADER = ("first", "second", "kind", "saved", "before", "after", "gain", "measured", "advice")
"""The columns of the table."""


def cells(r: Fusion[S]) -> tuple[str, ...]:
    """A row of the table as text."""
    if r.after is None:
        return r.first, r.second, r.kind, "", microseconds(r.before.seconds), "", "", "", r.verdict
    measured = f"{r.measured.value:.2f} [{r.measured.low:.2f}, {r.measured.high:.2f}]" if r.measured else ""
    times = microseconds(r.before.seconds), microseconds(r.after.seconds)
    return r.first, r.second, r.kind, kibibytes(r.saved_bytes), *times, f"{r.gain:.2f}", measured, r.verdict


def microseconds(s: float) -> str:
    """A modelled time as text."""
    return f"{1e6 * s:.3g} us" if s < 1e-3 else f"{1e3 * s:.3g} ms"


def kibibytes(n: int) -> str:
    """Bytes as text."""
    return f"{n} B" if abs(n) < 1024 else f"{n / 1024:.3g} KiB" if abs(n) < 1 << 20 else f"{n / (1 << 20):.3g} MiB"


def fusions_of(outputs: Sequence[Tensor], target: Target, make: Callable[[Sequence[Tensor], Target], S]) -> Fusions[S]:
    """A row for each pair of stages: may one kernel compute both, and what does it save; ``make``: schedules."""
    outputs = as_outputs(outputs)
    whole = BaseSchedule(outputs, target)
    return Fusions([_fusion(whole, pair, make) for pair in pairs_of(Graph(whole.program))], target)


def _fusion(whole: BaseSchedule, pair: Pair, make: Callable[[Sequence[Tensor], Target], S]) -> Fusion[S]:
    """The fusion of one pair: each way is made on the whole graph, which proves that it is legal, and of the pair
    alone, where its kernels are counted.
    """
    target, alone = whole.target, cut_out(Graph(whole.program), pair)
    before = counts_of(finished(BaseSchedule(alone, target), ()).program, target)
    refused: dict[str, Problem] = {}
    legal: list[tuple[Counts, Way]] = []
    untaken: list[Refusal] = []
    for way in ways(whole, pair):
        offered: list[Refusal] = []
        try:
            way.begun(whole.fork())
            s = BaseSchedule(alone, target)
            program = finished(s, way.begun(s, offered), offered).program
            lower(program, target)
        except TensorIRError as e:
            refused[way.name] = e.problems[0]
        else:
            legal.append((counts_of(program, target), way))
            untaken += offered
    legal.sort(key=lambda found: found[0].seconds)

    def made(which: str, name: str) -> S:
        s = make(whole.definition if which == "whole" else alone, target)
        way = next((w for _, w in legal if w.name == name), None)
        finished(s, way.begun(s) if way else ())
        return s

    named = {way.name: counts.seconds for counts, way in reversed(legal)}
    after = legal[0][0] if legal else None
    refused = {name: problem for name, problem in refused.items() if name not in named}
    told = tuple(dict.fromkeys(map(str, untaken)))
    return Fusion(*(pair.kind, pair.first, pair.second), named, refused, before, after, untaken=told, _made=made)
