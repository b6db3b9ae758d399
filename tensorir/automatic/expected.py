"""``Expected``: modelled seconds of a schedule, its limit, and notes on what a step would change."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from tensorir.automatic.counts import KernelCounts, arithmetic
from tensorir.automatic.notes import Modelled, facts_of, notes_of
from tensorir.errors.shown import Shown
from tensorir.ir.tree import Binary, Update
from tensorir.ir.visit import has
from tensorir.machine import Machine
from tensorir.schedule.schedule import BaseSchedule


@dataclass(frozen=True, repr=False)
class Expected(Shown):
    """Modelled time of a schedule on its target's machine.

    seconds: of one call, launches included, kernels of ``run_once`` left out; symbolic extents count as their maximum
    limit:   of the slowest kernel: "multiply-adds", "arithmetic", "dependent sums" (each waits for the last), "memory",
             "idle cores" (blocks for less than half of them, or threads), or "launch" if launches take most of the time
    kernels: number of kernels
    """

    seconds: float
    limit: str
    kernels: int
    _model: Modelled = field(repr=False, compare=False)

    @functools.cached_property
    def facts(self) -> tuple[str, ...]:
        """Scalar loops, idle cores and chains of kernels that take a fifth of the time or more each, the most first."""
        return facts_of(self._model)

    @functools.cached_property
    def notes(self) -> tuple[str, ...]:
        """The facts, each with a step against it that was tried in the model, which may take a second; or with what is
        known instead.
        """
        return notes_of(self._model)

    @property
    def brief(self) -> str:
        """Seconds, kernels and the limit in one line."""
        kernels = f"{self.kernels} kernel{'s' * (self.kernels != 1)}"
        return f"expected {self.seconds * 1e6:.3g} us in {kernels}, bound by {self.limit} (modelled, not measured)"

    def __str__(self) -> str:
        return "\n".join((self.brief, *(f"  {note}" for note in self.notes)))


def expected_of(s: BaseSchedule, machine: Machine) -> Expected:
    """The modelled time of a schedule on a machine. Raises LoweringError and CompileError if it cannot be lowered."""
    m = Modelled.of(s.fork(), machine)  # whose notes are asked for later
    slowest = max(m.kernels, key=lambda k: k.worked(m.machine))
    launch = not slowest.cycles or 2 * (m.counts.launch_s + m.machine.call_s) > m.counts.seconds
    limit = "launch" if launch else _limit(slowest, m.machine)
    return Expected(m.counts.seconds, limit, m.counts.kernels, m)


def _limit(k: KernelCounts, machine: Machine) -> str:
    if 2 * k.busy(machine) < 1:
        return "idle cores"
    if k.moved / k.rate > k.cycles / (machine.clock * machine.threads):
        return "memory"
    most = k.stages[0]
    if most.waits > most.busy:
        return "dependent sums"
    products = any(isinstance(x, Binary) and x.op == "*" for x, _ in arithmetic(most.stage.body, None))
    return "multiply-adds" if products and has(most.stage.body, Update) else "arithmetic"
