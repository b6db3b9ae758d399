"""``sequence``: several bound launches prepared as one, enqueued in order with a single wait."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorir.errors import LaunchError, LaunchTypeError, Problem, refuse
from tensorir.errors.habits import answers
from tensorir.errors.handles import Handle
from tensorir.errors.needs import shown
from tensorir.errors.shown import Shown, few_lines
from tensorir.runtime.arguments import Argument, bytes_of
from tensorir.runtime.base import Step
from tensorir.runtime.launch import BoundLaunch
from tensorir.runtime.timing import Timing, measure

Span = tuple[object, int, int]


@answers(LaunchError)
def sequence(launches: Sequence[BoundLaunch | LaunchSequence]) -> LaunchSequence:
    """The launches of a network's layers, in order, as one object with one wait.

    >>> one = f.bind(x, w1)
    >>> two = g.bind(one.results, w2, out=y)
    >>> net = tir.sequence([one, two])
    >>> y = net.run()              # enqueues every kernel, waits once, returns the results of the last launch

    An array that one launch writes and another reads is one memory for both: nothing is copied between launches, nor
    between host and device where the device works on host arrays in place. What is read before anything here writes it
    is copied to the device now, and again at ``refresh``; what is written comes back at ``wait``.

    Sequences among ``launches`` are replaced by their launches. Raises LaunchTypeError ``sequence.launches`` for none,
    or for other objects; LaunchError ``sequence.device``, ``sequence.overlap``.
    """
    try:
        items = iter(launches)
    except Exception:  # not iterable, an array without axes, whatever its __iter__ does
        raise _no_launch(launches) from None
    bound = [b for item in items for b in _bound(item)]
    if not bound:
        raise refuse(LaunchTypeError, "sequence.launches", "a sequence needs at least one bound launch", hint=_HINT)
    device = bound[0]._program.device
    for n, b in enumerate(bound):
        if b._program.device is not device:
            other = b._program.device
            where = f"{other.name} in another context" if other.name == device.name else other.name
            message = f"launch {n} ({b._program.source.name}) is on {where}, the first one on {device.name}"
            raise refuse(LaunchError, "sequence.device", message, hint="one sequence for each device")
    return LaunchSequence(bound)


_HINT = "tir.sequence([f.bind(x, out=y), g.bind(y, out=z)])"


def _bound(item: Any) -> tuple[BoundLaunch, ...]:
    if isinstance(item, LaunchSequence):
        return item.launches
    if not isinstance(item, BoundLaunch):
        raise _no_launch(item)
    return (item,)


def _no_launch(item: Any) -> Exception:
    message = f"a sequence is made of what f.bind(…) returns, not of {shown(item)}"
    return refuse(LaunchTypeError, "sequence.launches", message, hint=_HINT)


@dataclass
class _Use:
    """One array used by one launch. span: its memory in bytes; staged: the launch works on a copy"""

    launch: int
    name: str
    argument: Argument
    span: Span
    output: bool
    memory: Any
    staged: bool


class LaunchSequence(Handle, Shown):
    """Result of ``tir.sequence``: calling it (or ``enqueue()``) enqueues everything and returns at once.

    ``run()`` enqueues, waits and returns the results of the last launch; ``wait()`` only waits and returns them;
    ``finish()`` only waits. ``refresh()`` takes over inputs that have changed, as a bound launch does.
    """

    def __init__(self, launches: Sequence[BoundLaunch]) -> None:
        self.launches = tuple(launches)
        self.device = launches[0]._program.device
        uses = [u for n, b in enumerate(self.launches) for u in _uses(n, b)]
        self._written = {u.span for u in uses if u.output}
        self._check_overlaps(uses)
        chosen = _one_memory_each(uses)
        self._in_place = [(u.memory, u.argument.array) for u in chosen.values() if not u.staged and self._back(u)]
        self._copied = [(u.memory, u.argument.array) for u in chosen.values() if u.staged and self._back(u)]
        first = {u.span: u for u in reversed(uses)}
        self._uploads = [(u.memory, u.argument) for s, u in chosen.items() if u.staged and not first[s].output]
        self._uploads += [(u.memory, u.argument) for u in uses if not u.argument.contiguous]
        self._natives = [u.argument.array for u in uses if u.argument.native != "numpy"]
        self._early: list[BoundLaunch] = []
        self._turns = [(b._program._lock, tuple(self._prepared(n, b, uses, chosen)))
                       for n, b in enumerate(self.launches)]  # fmt: skip
        self._upload()

    def __deepcopy__(self, memo: dict[int, Any]) -> LaunchSequence:
        return LaunchSequence(deepcopy(self.launches, memo))

    def _data(self) -> tuple[Any, ...]:
        return LaunchSequence, (self.launches,)

    def _makes(self, argument: Argument) -> bool:
        """True if a launch of the sequence writes memory that overlaps this array."""
        return any(_meet(argument.span(), w) for w in self._written)

    def _back(self, use: _Use) -> bool:
        return use.span in self._written and use.argument.native == "numpy"

    def _check_overlaps(self, uses: list[_Use]) -> None:
        """Raise for partially overlapping arrays that do not share memory."""
        arrays = {(u.span, u.argument.contiguous): u for u in uses}.values()
        spans = sorted(arrays, key=lambda u: (str(u.span[0]), u.span[1:]))
        for n, a in enumerate(spans):
            for b in spans[n + 1 :]:
                if b.span[0] != a.span[0] or b.span[1] >= a.span[2]:
                    break
                safe = a.argument.native != "numpy" or (self.device.coherent and not self._apart(uses, a, b))
                if not safe and (a.span in self._written or b.span in self._written):
                    message = (
                        f"{b.name} of launch {b.launch} ({self._name(b)}) overlaps {a.name} of launch {a.launch} "
                        f"({self._name(a)}) without being the same array, and one of them is written"
                    )
                    raise refuse(LaunchError, "sequence.overlap", message, hint="arrays of their own")

    def _apart(self, uses: list[_Use], a: _Use, b: _Use) -> bool:
        return any(u.staged or not u.argument.contiguous for u in uses if u.span in (a.span, b.span))

    def _name(self, use: _Use) -> str:
        return self.launches[use.launch]._program.source.name

    def _prepared(self, n: int, b: BoundLaunch, uses: list[_Use], chosen: dict[Span, _Use]) -> Iterator[Step]:
        """Steps of one launch, on the sequence's shared memories."""
        if b._call.empty:
            return
        program = b._program
        launches = program._launches()
        packed = {name for k in launches if k.once for name in k.params}
        mine = [u for u in uses if u.launch == n]
        fresh = any(_meet(u.span, w) for u in mine if u.name in packed for w in self._written)
        memories = b._memories | {u.name: chosen[u.span].memory for u in mine if u.argument.contiguous}
        if not fresh and b._once:
            self._early.append(b)
        same = all(memories[name] is b._memories[name] for k in launches if not k.once for name in k.params)
        if fresh or not same:
            yield from program._steps([k for k in launches if fresh or not k.once], memories, private=True)
        else:
            yield from b._steps

    def _upload(self) -> None:
        for memory, argument in self._uploads:
            self.device.write(memory, bytes_of(np.ascontiguousarray(argument.array)))

    def __call__(self) -> None:
        try:
            with self.device.in_order(self._natives):
                for lock, steps in self._turns:
                    with lock:  # all launches of a program share its workspace
                        for step in steps:
                            step()
        except Exception as error:  # each runtime has its own
            raise self.device.failure(error) from None

    def enqueue(self) -> None:
        """Enqueue every kernel; the same as calling."""
        self()

    def finish(self) -> None:
        """Wait for everything enqueued."""
        self.device.finish()

    def wait(self) -> Any:
        """Wait, bring what was written into host arrays, and return the results of the last launch."""
        if self._in_place:
            self.device.publish(self._in_place)
        else:
            self.device.finish()
        for memory, array in self._copied:
            self.device.read(memory, bytes_of(array))
        return self.launches[-1].results

    def run(self) -> Any:
        """Enqueue, wait, and return the results of the last launch."""
        self()
        return self.wait()

    def refresh(self) -> None:
        """Take over changed inputs: those not used in place, and those of kernels that run once. Raises LaunchError for
        indices out of range, except in arrays that a launch of the sequence writes.
        """
        problems = [p for b in self.launches for p in b._call.outside(self._makes)]
        if problems:
            raise LaunchError(problems)
        for b in self._early:
            b.refresh()
        self._upload()

    def time(self, repeat: int = 30, min_seconds: float = 0.1, max_seconds: float = 10.0) -> Timing:
        """Timing of one run of all launches, seconds: median of batches with a 95 % interval."""
        self()
        alone = copy(self)
        alone._natives = []  # their turn has come
        timing = measure(alone, repeat, min_seconds, max_seconds)
        self.wait()
        return replace(timing, copies=self.copies)

    @property
    def copies(self) -> tuple[Problem, ...]:
        """Problems for avoidable copies of host arrays, made at creation and at ``refresh``."""
        return tuple(dict.fromkeys(p for b in self.launches for p in b.copies))

    @property
    def _steps(self) -> tuple[Step, ...]:
        return tuple(step for _, steps in self._turns for step in steps)

    def __len__(self) -> int:
        return len(self.launches)

    def __repr__(self) -> str:
        names = [b._program.source.name for b in self.launches]
        some = ", ".join(names if len(names) <= 6 else [*names[:3], "…", *names[-2:]])
        kernels = f"{len(self._steps)} kernels, on {self.device.name}"
        return few_lines(f"<sequence of {len(names)} launches ({some}), {kernels}>")


def _uses(n: int, b: BoundLaunch) -> Iterator[_Use]:
    staged = {id(memory) for memory, _ in (*b._attached.uploads, *b._attached.copied)}
    if b._call.empty:
        return
    for output, table in ((False, b._call.inputs), (True, b._call.outputs)):
        for name, argument in table.items():
            if argument.array.size:
                memory = b._attached.memories[name]
                yield _Use(n, name, argument, argument.span(), output, memory, id(memory) in staged)


def _one_memory_each(uses: list[_Use]) -> dict[Span, _Use]:
    """For each array, the use whose memory all launches share."""
    chosen: dict[Span, _Use] = {}
    for use in uses:
        best = chosen.get(use.span)
        if not use.argument.contiguous:
            continue
        if best is None or (use.staged, use.output) > (best.staged, best.output):
            chosen[use.span] = use
    return chosen


def _meet(a: Span, b: Span) -> bool:
    return a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2])
